"""Programs over the same constants share their packed form while one of them holds it."""
from __future__ import annotations

import gc
import weakref

import numpy as np

from tests.fresh import fresh_rng
from tilewright.build.packing import pack_constants
from tilewright.core.dtypes import u8
from tilewright.kernels.launch import Buffer, ConstBuffer, Packed
from tilewright.kernels.quant.panels import LANES, pack_panels, panel_shape
from tilewright.ops.structure import ConstantData


def _constants(data: list[ConstantData]) -> list[ConstBuffer]:
    return [ConstBuffer(d, Buffer(d.name, "const", 0, i), Packed("quantized panels", LANES, False, "Q4_1")) for i, d in enumerate(data)]


def test_shared_while_held() -> None:
    data = [ConstantData(fresh_rng().integers(0, 256, (n, 60)).astype(u8.np), f"w{n}") for n in (16, 37)]
    first = pack_constants(_constants(data))
    again = pack_constants(_constants(data[::-1]))
    assert [a is b for a, b in zip(first, again[::-1], strict=True)] == [True, True]
    for d, a in zip(data, first, strict=True):
        want = np.empty(panel_shape("Q4_1", *d.array.shape), np.uint8)
        pack_panels(d.array, "Q4_1", want, 0, len(want))
        np.testing.assert_array_equal(a, want)
    alive = weakref.ref(first[0])
    del first, again, a
    gc.collect()
    assert alive() is None, "nobody runs on it: the memory goes back"
    assert pack_constants(_constants(data))[1].shape == (3, 3, 320)
