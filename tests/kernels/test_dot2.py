"""The dot product of two bf16 numbers a lane: native code on every feature level and the tile interpreter against float64."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright.core.dtypes import f32, i32
from tilewright.target.cpu.host import host_target
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel

from .harness import KERNEL, address, target


def kernel() -> Kernel:
    b = KernelBuilder("dot2")
    x, y, z = (b.view(n, d, (1,)) for n, d in zip("xyz", (i32, i32, f32), strict=True))
    for at, shape in ((0, (16,)), (16, (16,)), (32, (8,)), (40, (4,)), (44, ())):
        b.store(z, (at,), b.dot2(b.load(x, (at,), shape), b.load(y, (at,), shape), b.load(z, (at,), shape)))
    return b.build()


def outcome(level: str, x: Any, y: Any, z: Any) -> Any:
    x, y, z = np.ascontiguousarray(x).view(np.int32).reshape(-1), np.ascontiguousarray(y).view(np.int32).reshape(-1), z.copy()
    if level == "interpreter":
        run(kernel(), [x, y, z], 1)
        return z
    k = kernel()
    k.name = f"dot2_{level}"
    words = np.array([v.ctypes.data for v in (x, y, z)], np.int64)
    spec = replace(host_target() if level == "native" else target(level), checks=False)  # nobody says where its buffers end
    KERNEL(address(k, spec))(words.ctypes.data, 0, 1, 0)
    return z


@pytest.mark.parametrize("level", ["baseline", "avx2", "avx512", "native", "interpreter"])
def test_dot2(level: str) -> None:
    rng = fresh_rng()
    x, y = (rng.standard_normal((45, 2)).astype(ml_dtypes.bfloat16) for _ in range(2))
    z = rng.standard_normal(45).astype(np.float32)
    terms = np.concatenate([x.astype(np.float64) * y.astype(np.float64), z[:, None].astype(np.float64)], 1)
    got = outcome(level, x, y, z)
    assert np.all(np.abs(got - terms.sum(1)) <= 2.0**-22 * np.abs(terms).sum(1))


@pytest.mark.parametrize("level", ["avx2", "native", "interpreter"])
def test_special_numbers(level: str) -> None:
    x, y = (np.ones((45, 2), ml_dtypes.bfloat16) for _ in range(2))
    z = np.zeros(45, np.float32)
    x[0, 0], x[1, 1], z[2] = np.inf, np.nan, -np.inf
    x[3, 0], y[3, 0] = np.inf, 0
    x[4, 0], x[4, 1] = np.inf, -np.inf
    got = outcome(level, x, y, z)
    assert got[0] == np.inf and got[2] == -np.inf
    assert np.isnan(got[[1, 3, 4]]).all() and np.all(got[5:] == 2)
