"""Small block programs, and a way to run one in the tile interpreter and as PTX in the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.cuda.emulator import Heap
from tests.cuda.emulator import run as launch
from tests.cuda.emulator_hopper import run as hopper
from tilewright.core.dtypes import DType, f32
from tilewright.kernels.cuda.tiled import TiledKernel, tiled_kernel
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.tiled.emit import SHARED_BYTES, emit_tiled
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run as interpret
from tilewright.tile.ir import Kernel, ViewType
from tilewright.tile.parse import parse
from tilewright.tile.text import to_text
from tilewright.tile.verify import verify

Array = Any


def check(kernel: Kernel, args: Sequence[Any], grid: int, arch: str = "sm_80", **schedule: Any) -> None:
    """Run in the interpreter and in the emulator: the arrays hold what the emulator wrote, `expected` what the interpreter did."""
    k = tiled_kernel(kernel, **schedule)
    verify(k)
    plain = Kernel(k.name, k.params, k.pid, k.body)
    assert to_text(parse(to_text(plain))) == to_text(plain)
    expected = [a.copy() if isinstance(a, np.ndarray) else a for a in args]
    interpret(k, expected, grid)
    emulate(k, args, grid, arch)
    for got, want in zip(args, expected, strict=True):
        if isinstance(got, np.ndarray):
            wide = np.float64 if got.dtype.kind == "V" or got.dtype.itemsize < 8 else got.dtype
            limit = 2e-2 if got.dtype.itemsize == 2 else 1e-4
            np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=limit, atol=limit)


def emulate(k: TiledKernel, args: Sequence[Any], grid: int, arch: str = "sm_80") -> str:
    text = emit_tiled(k, cuda_target(arch))
    heap, words = Heap(), []
    for p, a in zip(k.params, args, strict=True):
        if isinstance(p.type, ViewType):
            base = a
            while isinstance(base.base, np.ndarray):
                base = base.base
            words.append(heap.add(base.reshape(-1).view(np.uint8)) + a.__array_interface__["data"][0] - base.__array_interface__["data"][0])
            words += [s // a.itemsize for s, known in zip(a.strides, p.type.strides, strict=True) if known is None]
        else:
            words.append(int(a))
    if "mbarrier." in text or "wgmma." in text:
        hopper(text, heap, words, grid, k.block, SHARED_BYTES[k.name], k.maps, {})
    else:
        launch(text, heap, words, grid, k.block, SHARED_BYTES[k.name])
    if find_ptxas() is not None:
        assemble(text, arch)
    return text


def matmul(
    dtype: DType, bm: int = 64, bn: int = 64, bk: int = 32, *, swap_a: bool = False, swap_b: bool = False, out: DType = f32,
    precision: str | None = None,
) -> Kernel:
    """C = A · B with edges; A is [M, K] (or given as [K, M]), B [K, N] (or [N, K])."""
    b = KernelBuilder("matmul")
    a_, b_ = b.view("a", dtype, (None, 1)), b.view("b", dtype, (None, 1))
    c_ = b.view("c", out, (None, 1))
    m, n, k = b.index("m"), b.index("n"), b.index("k")
    across = b.ceildiv(n, bn)
    row, column = b.pid // across * bm, b.pid % across * bn
    with b.loop(0, k, bk, [b.full((bm, bn), 0.0, f32 if dtype.itemsize < 8 else dtype)]) as loop:
        at = loop.index
        if swap_a:
            x = b.transpose(b.load(a_, (at, row), (bk, bm), limit=(k - at, m - row)))
        else:
            x = b.load(a_, (row, at), (bm, bk), limit=(m - row, k - at))
        if swap_b:
            y = b.transpose(b.load(b_, (column, at), (bn, bk), limit=(n - column, k - at)))
        else:
            y = b.load(b_, (at, column), (bk, bn), limit=(k - at, n - column))
        loop.next(b.mma(x, y, loop.carried[0], **({"precision": precision} if precision else {})))
    b.store(c_, (row, column), b.cast(loop.results[0], out), limit=(m - row, n - column))
    return b.build()
