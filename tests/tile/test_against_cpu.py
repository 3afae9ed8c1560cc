"""The CPU target and the interpreter give the same bits: random kernels, plain, optimised and with fused multiply-adds."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.tile.kernels import random_arguments, random_kernel
from tilewright.core.dtypes import DType, bf16, f32, f64, i16, i32, i64, u8, u32
from tilewright.core.errors import CompileError
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.interp import run
from tilewright.tile.ir import Kernel, ViewType, local_bytes
from tilewright.tile.passes import DEFAULT, optimise


def run_native(kernel: Kernel, args: list[Any], grid: int, level: Any) -> None:
    target = host_target(level=level)
    library = Library([compile_ir(emit_kernel(kernel, target), target)], [kernel.name])
    words: list[int] = []
    for p, a in zip(kernel.params, args, strict=True):
        if isinstance(p.type, ViewType):
            words += [a.ctypes.data, *(s // a.itemsize for s, known in zip(a.strides, p.type.strides, strict=True) if known is None)]
        else:
            words.append(a)
    error = np.zeros(4, np.int64)
    if target.checks:
        for a in (a for p, a in zip(kernel.params, args, strict=True) if isinstance(p.type, ViewType)):
            words += np.lib.array_utils.byte_bounds(a.base if isinstance(a.base, np.ndarray) else a)
        words.append(error.ctypes.data)
    block = np.array(words, np.int64)
    scratch = np.full(local_bytes(kernel) + 64, 0xFF, np.uint8)
    aligned = -(-scratch.ctypes.data // 64) * 64
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(library.address(kernel.name))
    function(block.ctypes.data, 0, grid, aligned)
    library.close()
    assert not error.any(), f"view {error[1]} leaves its memory at byte {error[2]}, program {error[3]}"


@pytest.mark.parametrize("seed, level", [(0, "native"), (1, "native"), (2, "avx2"), (3, "baseline")])
def test_same_bits(seed: int, level: str) -> None:
    kernel = random_kernel(seed, 14)
    bits = [p for p in DEFAULT if p.name != "fma"]
    for version in (kernel, optimise(kernel, bits), optimise(kernel)):
        expected, got = random_arguments(seed), random_arguments(seed)
        run(version, expected, 2)
        run_native(version, got, 2, level)
        nan = np.isnan(expected[1])
        assert np.array_equal(nan, np.isnan(got[1]))
        assert np.array_equal(np.where(nan, 0, expected[1]).view(np.int32), np.where(nan, 0, got[1]).view(np.int32))


@pytest.mark.parametrize("level", ["native", "avx2", "baseline"])
@pytest.mark.parametrize("stride", [2, -1])
def test_near_strides_and_shuffles(level: str, stride: int) -> None:
    """Every second element and elements from behind, whole and cut short at the ends of their memory, mixed in a random order."""
    rng = fresh_rng()
    for size, inside in ((3, 2), (16, 16), (40, 33)):
        order = tuple(int(k) for k in rng.integers(0, 2 * size, 27))
        b = KernelBuilder("near")
        x, y, n = b.view("x", f32, (stride,)), b.view("y", f32, (1,)), b.index("n")
        cut, whole = b.load(x, [0], (size,), limit=[n], other=7.0), b.load(x, [inside - size], (size,))
        b.store(y, [0], b.shuffle(cut, whole, order))
        kernel = b.build()
        data = rng.normal(size=2 * size).astype(np.float32)
        if stride == 2:
            view, first = data[2 * (size - inside) :: 2], 2 * (size - inside)
        else:
            view, first = data[inside - 1 :: -1], inside - 1
        expected = np.concatenate([np.where(np.arange(size) < inside, view[np.minimum(np.arange(size), inside - 1)], 7.0),
                                   [data[first + stride * (i + inside - size)] for i in range(size)]])[list(order)].astype(np.float32)
        got = np.zeros(27, np.float32)
        run_native(kernel, [view, got, inside], 1, level)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype,index", [(f32, i32), (f64, i64)], ids=str)
def test_picks(dtype: DType, index: DType) -> None:
    rng, n = fresh_rng(), 64 // dtype.itemsize
    b = KernelBuilder("picks")
    x, at, y = b.view("x", dtype, (1,)), b.view("at", index, (1,)), b.view("y", dtype, (1,))
    b.store(y, [0], b.pick(b.load(x, [0], (2 * n,)), b.load(at, [0], (n,))))
    kernel = b.build()
    data, places = rng.normal(size=2 * n).astype(dtype.np), rng.integers(0, 2 * n, n).astype(index.np)
    found = np.zeros(n, dtype.np)
    run(kernel, [data, places, found], 1)
    np.testing.assert_array_equal(found, data[places])
    if host_target().has("avx512f"):
        got = np.zeros(n, dtype.np)
        run_native(kernel, [data, places, got], 1, "native")
        np.testing.assert_array_equal(got, found)
    with pytest.raises(CompileError, match="picks need AVX-512"):
        run_native(kernel, [data, places, found], 1, "avx2")


@pytest.mark.parametrize("dtype", [i32, i64, u8, u32], ids=str)
def test_atomics(dtype: DType) -> None:
    """Programs combine a number of their own into one place; each finds what those before it left."""
    rng = fresh_rng()
    for fn in ("add", "max", "min", "and", "or", "xor", "exchange"):
        b = KernelBuilder(fn)
        x, y, old = b.view("x", dtype, (1,)), b.view("y", dtype, (1,)), b.view("old", dtype, (1,))
        b.store(old, [b.pid], b.atomic(fn, y, [1], b.load(x, [b.pid], ())))
        kernel, values = b.build(), rng.integers(0, 200, 9).astype(dtype.np)
        expected, got = ([values, np.array([1, 100, 2], dtype.np), np.zeros(9, dtype.np)] for _ in range(2))
        run(kernel, expected, 9)
        run_native(kernel, got, 9, "native")
        for a, c in zip(expected, got, strict=True):
            np.testing.assert_array_equal(a, c)


def test_atomics_that_are_no_instruction_are_refused() -> None:
    for shape, dtype in (((), f32), ((4,), i32)):
        b = KernelBuilder("atomic")
        b.atomic("add", b.view("y", dtype, (1,)), [0], b.full(shape, 1, dtype))
        with pytest.raises(CompileError, match="atomics are of single integers, got add of"):
            emit_kernel(b.build(), host_target())


@pytest.mark.parametrize("source, target", [(f32, bf16), (i64, i32), (i32, u8), (i64, u8), (i32, i16)])
@pytest.mark.parametrize("inside", [1, 3])
def test_a_narrowed_store_cut_short_leaves_what_stands_behind_it(source: DType, target: DType, inside: int) -> None:
    """The limit is known to LLVM 22, which joined the truncation with a masked store of one lane and wrote a wide element."""
    for lanes in (2, 4, 8, 16, 32):
        b = KernelBuilder("narrowed")
        x, y = b.view("x", source, (1,)), b.view("y", target, (1,))
        b.store(y, [0], b.cast(b.load(x, [0], (lanes,)), target), limit=[inside])
        given, memory = np.arange(5, 5 + lanes).astype(source.np), np.full(lanes + 8, 9).astype(target.np)
        run_native(b.build(), [given, memory], 1, "native")
        count = min(inside, lanes)
        assert memory[:count].astype(int).tolist() == list(range(5, 5 + count))
        assert (memory[count:].astype(int) == 9).all()
