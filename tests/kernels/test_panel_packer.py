"""The packing kernels write the same bytes as the NumPy packer, for every format and for any number of rows."""
from __future__ import annotations

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.build.quantized_panels import pack_all
from tilewright.kernels.quant.panels import LANES, PANELS, pack_panels, panel_shape
from tilewright.ops import quant


@pytest.mark.parametrize("name", sorted(PANELS))
def test_same_bytes(name: str) -> None:
    rng = fresh_rng()
    block = quant.by_name(name).bytes
    matrices, wanted = [], []
    for n in (1, 15, 16, 17, int(rng.integers(18, 200))):
        rows = rng.integers(0, 256, (n, int(rng.integers(1, 6)) * block)).astype(np.uint8)
        out = np.full(panel_shape(name, n, rows.shape[1]), 77, np.uint8)
        want = np.full_like(out, 99)
        pack_panels(rows, name, want, 0, len(want))
        matrices.append((rows, name, out))
        wanted.append(want)
    pack_all(matrices)
    for (_, _, out), want in zip(matrices, wanted, strict=True):
        np.testing.assert_array_equal(out, want)


def test_mixed_formats_odd_addresses_and_nothing() -> None:
    """Rows at an odd address, rows apart from one another, and an empty matrix, beside ordinary ones."""
    rng = fresh_rng()
    pool = rng.integers(0, 256, 1 << 16).astype(np.uint8)
    matrices, wanted = [], []
    for name, start, gap, n in (("Q4_1", 1, 0, 33), ("Q8_0", 0, 6, 40), ("Q4_0", 2, 3, 32), ("Q6_K", 0, 0, 0), ("Q5_K", 0, 0, LANES)):
        row = quant.by_name(name).bytes * 2
        rows = np.lib.stride_tricks.as_strided(pool[start:], (n, row), (row + gap, 1), writeable=False)
        out = np.full(panel_shape(name, n, row), 77, np.uint8)
        want = out.copy()
        if n:
            pack_panels(np.ascontiguousarray(rows), name, want, 0, len(want))
        matrices.append((rows, name, out))
        wanted.append(want)
    pack_all(matrices)
    for (_, _, out), want in zip(matrices, wanted, strict=True):
        np.testing.assert_array_equal(out, want)
