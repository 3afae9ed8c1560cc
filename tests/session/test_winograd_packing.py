"""Panels of Winograd's weights from native code are those that NumPy makes in f64, rounded once."""
from __future__ import annotations

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.build.packing import pack_panels, packed_shape
from tilewright.build.winograd_packing import winograd_packer
from tilewright.core.winograd import transformed
from tilewright.kernels.launch import Packed

PACKED = Packed("panels", 32, True)


@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize("shape", [(70, 5, 3, 3), (32, 1, 3, 3), (1, 9, 3, 3), (40, 3, 2, 3, 3), (33, 2, 2, 2, 3, 3)])
def test_native_panels_are_those_of_numpy(tile: int, shape: tuple[int, ...]) -> None:
    wide = fresh_rng().standard_normal((shape[0], shape[1] + 2, *shape[2:])).astype(np.float32)
    shifted = np.frombuffer(b"\0" + wide.tobytes(), np.uint8)[1:].view(np.float32).reshape(wide.shape)  # as in a file: at any address
    w = shifted[:, 1:-1]
    u = transformed(w, tile)
    want, got = (np.full(packed_shape(u.shape, PACKED), 7, np.float32) for _ in range(2))
    pack_panels(u, PACKED, want, 0, len(want))
    fill = winograd_packer(w, tile, PACKED)
    assert fill is not None
    fill(got, 0, 1)
    fill(got, 1, len(got))
    np.testing.assert_array_max_ulp(got, want, 1)
    assert (got != want).mean() < 1e-3


def test_what_native_code_leaves_to_numpy() -> None:
    w = np.zeros((8, 4, 3, 3), np.float32)
    assert winograd_packer(w.astype(np.float64), 2, PACKED) is None
    assert winograd_packer(w.transpose(0, 1, 3, 2), 2, PACKED) is None
    assert winograd_packer(w, 2, Packed("panels", 7, True)) is None
    assert winograd_packer(w, 2, Packed("panels", 32, False)) is None
