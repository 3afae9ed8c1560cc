"""The four-byte dot product: native code on every feature level and the tile interpreter give NumPy's integers."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dtypes import i32
from tilewright.target.cpu.host import host_target
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel

from .harness import KERNEL, address, target


def kernel() -> Kernel:
    b = KernelBuilder("dot4")
    x, y, z = (b.view(n, i32, (1,)) for n in "xyz")
    for i in range(0, 48, 16):
        b.store(z, (i,), b.dot4(b.load(x, (i,), (16,)), b.load(y, (i,), (16,)), b.load(z, (i,), (16,))))
    b.store(z, (48,), b.dot4(b.load(x, (48,), ()), b.load(y, (48,), ()), b.load(z, (48,), ())))
    return b.build()


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512", "native", "interpreter"])
def test_dot4(level: str) -> None:
    rng = fresh_rng()
    x, y, z = (rng.integers(-(2**31), 2**31, 49).astype(np.int32) for _ in range(3))
    x[:4], y[:4] = -1, np.array([0x7F7F7F7F, -0x7F7F7F80, 0, 1])  # all bytes 255; extremes that saturate 16-bit sums
    a, c = x.view(np.uint8).reshape(-1, 4).astype(np.int64), y.view(np.int8).reshape(-1, 4).astype(np.int64)
    want = (z.astype(np.int64) + (a * c).sum(-1)).astype(np.int32)
    if level == "interpreter":
        run(kernel(), [x, y, z], 1)
    else:
        k = kernel()
        k.name = f"dot4_{level}"
        words = np.array([v.ctypes.data for v in (x, y, z)], np.int64)
        spec = replace(host_target() if level == "native" else target(level), checks=False)  # nobody says where its buffers end
        KERNEL(address(k, spec))(words.ctypes.data, 0, 1, 0)
    np.testing.assert_array_equal(z, want)
