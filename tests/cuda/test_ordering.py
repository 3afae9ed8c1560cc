"""Tokens on the CUDA target: derived barriers and no others, acquire and release, atomics; the emulator sees races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.emulator import Fault, Heap, run
from tests.cuda.launching import Emulated, graph
from tests.tile.kernels import ring
from tilewright.core.dtypes import DType, bf16, f32, i32, i64
from tilewright.core.errors import CompileError
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile.barriers import derive_barriers
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.ir import Kernel


def ptx(kernel: Kernel, threads: int, programs: int = 1) -> str:
    k = BlockKernel(kernel.name, kernel.params, kernel.pid, kernel.body, threads=threads, programs=programs)
    return emit_block_kernel(k, cuda_target())


@pytest.mark.parametrize("stages, barriers", [(1, 2), (2, 1), (3, 1)])
def test_a_ring_has_the_derived_barriers(stages: int, barriers: int, rng: np.random.Generator) -> None:
    text = ptx(ring(stages, 64), 64)
    assert text.count("bar.sync") == len(derive_barriers(ring(stages, 64), "gpu").barriers) == barriers
    x, y, heap = rng.standard_normal((5, 64)).astype(np.float32), np.zeros((5, 64), np.float32), Heap()
    run(text, heap, [heap.add(x), 64, heap.add(y), 64, 5], 1, 64)
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize("threads", [32, 64])
def test_a_missing_barrier_is_a_race(threads: int, rng: np.random.Generator) -> None:
    b = KernelBuilder("turn")
    x, y = b.view("x", f32, (threads, 1)), b.view("y", f32, (threads, 1))
    s = b.scratch(f32, (threads, threads + 1), "shared")
    b.store(s, [0, 0], b.load(x, [0, 0], (threads, threads)))
    b.store(y, [0, 0], b.load(s, [0, 0], (threads, threads), axes=(1, 0)))
    text = ptx(b.build(), threads)
    name = "bar.sync 0;" if threads > 32 else "bar.warp.sync -1;"
    assert text.count(name) == 1
    values, out = rng.standard_normal((threads, threads)).astype(np.float32), np.zeros((threads, threads), np.float32)
    heap = Heap()
    words = [heap.add(values), heap.add(out)]
    run(text, heap, words, 1, threads)
    np.testing.assert_array_equal(out, values.T)
    with pytest.raises(Fault, match="races with another"):
        run(text.replace(name, ""), heap, words, 1, threads)


@pytest.mark.parametrize("threads", [32, 64])
def test_tokens_order_global_memory(threads: int, rng: np.random.Generator) -> None:
    """What other threads of the program wrote is read behind a barrier where a token says so; without a token nothing is ordered."""
    def turned(*, tokens: bool) -> str:
        b = KernelBuilder("turn")
        x, y, z = (b.view(n, f32, (threads, 1)) for n in "xyz")
        b.store(y, [0, 0], b.load(x, [0, 0], (threads, threads)))
        written = b.token()
        b.store(z, [0, 0], b.load(y, [0, 0], (threads, threads), axes=(1, 0), after=[written] if tokens else []))
        return ptx(b.build(), threads)

    name = "bar.sync 0;" if threads > 32 else "bar.warp.sync -1;"
    text = turned(tokens=True)
    assert (text.count(name), turned(tokens=False).count(name)) == (1, 0)
    assert max(text.find("st.global"), 0) < text.find(name) < text.rfind("ld.global")
    values, heap = rng.standard_normal((threads, threads)).astype(np.float32), Heap()
    out = [np.zeros_like(values) for _ in range(2)]
    run(text, heap, [heap.add(x) for x in (values, *out)], 1, threads)
    np.testing.assert_array_equal(out[1], values.T)


@pytest.mark.parametrize("threads", [32, 64])
def test_tokens_order_global_memory_in_branches_and_nested_loops(threads: int, rng: np.random.Generator) -> None:
    """Where nothing is derived every such access has its barrier; a read after a read needs none."""
    b = KernelBuilder("turn")
    x, y, z, n = (*(b.view(n, f32, (threads, 1)) for n in "xyz"), b.index("n"))
    with b.loop(0, n, 1) as outer, b.loop(0, n, 1), b.if_(b.compare("ge", outer.index, 0)):
        b.store(y, [0, 0], b.load(x, [0, 0], (threads, threads)))
        turned = b.load(y, [0, 0], (threads, threads), axes=(1, 0), after=[b.token()])
        again = b.load(y, [0, 0], (threads, threads), axes=(1, 0), after=[b.token()])
        b.store(z, [0, 0], turned + again)
    text = ptx(b.build(), threads)
    assert text.count("bar.sync 0;" if threads > 32 else "bar.warp.sync -1;") == 1
    values, heap = rng.standard_normal((threads, threads)).astype(np.float32), Heap()
    out = [np.zeros_like(values) for _ in range(2)]
    run(text, heap, [*(heap.add(x) for x in (values, *out)), 2], 1, threads)
    np.testing.assert_array_equal(out[1], 2 * values.T)


def test_orders_bring_their_own_barriers() -> None:
    """A release has one before it and an acquire one after it: tokens ask for no second."""
    b = KernelBuilder("flag")
    x, flag = b.view("x", f32, (1,)), b.view("flag", i32, (1,))
    b.store(x, [0], b.full((64,), 1.0))
    written = b.token()
    b.store(flag, [0], b.full((1,), 1, i32), after=[written], order="release", scope="block")
    seen = b.load(flag, [1], (1,), order="acquire", scope="cluster")
    b.store(x, [64], b.load(x, [0], (64,), after=[b.token()]))
    b.store(flag, [2], seen)
    kernel = b.build()
    text = ptx(kernel, 64)
    assert text.count("bar.sync") == 2 and ".acquire.cluster." in text
    with pytest.raises(CompileError, match="scope cluster needs sm_90a or newer, got sm_80; use device"):
        emit_block_kernel(BlockKernel(kernel.name, kernel.params, kernel.pid, kernel.body, threads=64, programs=1), cuda_target("sm_80"))


def test_orders_and_scopes_are_in_the_instructions() -> None:
    b = KernelBuilder("flag")
    x, flag = b.view("x", f32, (1,)), b.view("flag", i32, (1,))
    b.store(x, [0], b.full((64,), 1.0))
    written = b.token()
    b.store(flag, [0], b.full((1,), 1, i32), after=[written], order="release", scope="device")
    seen = b.load(flag, [1], (1,), order="acquire", scope="system")
    b.store(flag, [2], seen, order="relaxed", scope="block")
    lines = [line.strip() for line in ptx(b.build(), 64).splitlines()]
    order = [i for i, line in enumerate(lines) if "st.global" in line or ".release." in line or ".acquire." in line or "bar.sync" in line]
    found = [next(w for w in ("bar.sync", "st.release.gpu", "ld.acquire.sys", "st.global") if w in lines[i]) for i in order]
    assert found == ["st.global", "bar.sync", "st.release.gpu", "ld.acquire.sys", "bar.sync"]
    assert any("st.relaxed.cta.global" in line for line in lines)


ATOMICS = [(fn, dtype) for dtype in (i32, i64) for fn in ("add", "max", "min", "and", "or", "xor", "exchange")] + [("add", f32)]


@pytest.mark.parametrize("fn, dtype", ATOMICS, ids=str)
def test_atomics(fn: str, dtype: DType, rng: np.random.Generator) -> None:
    """Four programs meet at the same elements; what each found there is what a row of all of them would see."""
    b = KernelBuilder("atomic")
    x, y, old = b.view("x", dtype, (None, 1)), b.view("y", dtype, (1,)), b.view("old", dtype, (None, 1))
    n = b.index("n")
    tile = b.load(x, [b.pid, 0], (32,), limit=(n,))
    b.store(old, [b.pid, 0], b.atomic(fn, y, [0], tile, limit=(n,), order="relaxed", scope="device"), limit=(n,))
    values = rng.integers(-50, 50, (4, 21)).astype(dtype.np)
    out, seen, heap = rng.integers(-50, 50, 21).astype(dtype.np), np.zeros((4, 21), dtype.np), Heap()
    start = out.copy()
    run(ptx(b.build(), 32), heap, [heap.add(values), 21, heap.add(out), heap.add(seen), 21, 21], 4, 32)
    ufunc: Any = {"add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
                  "exchange": lambda a, b: b}[fn]  # fmt: skip
    for row in range(4):
        np.testing.assert_array_equal(seen[row], start)
        start = ufunc(start, values[row])
    np.testing.assert_array_equal(out, start)


def test_atomics_that_are_no_instruction_are_refused() -> None:
    b = KernelBuilder("atomic")
    b.atomic("max", b.view("y", f32, (1,)), [0], b.full((32,), 1.0))
    with pytest.raises(CompileError, match="atomic max of f32 is no instruction"):
        ptx(b.build(), 32)


TURNS = [(f32, (70, 33), (1, 0)), (bf16, (2, 17, 5, 40), (0, 2, 3, 1)), (i64, (3, 20, 2, 2, 18), (4, 0, 3, 2, 1))]


@pytest.mark.parametrize("dtype, shape, perm", TURNS, ids=str)
def test_turning_copies(dtype: DType, shape: tuple[int, ...], perm: tuple[int, ...], rng: np.random.Generator) -> None:
    """Up to rank 5, odd sizes, through shared memory where both sides are long."""
    x = rng.integers(-99, 99, shape).astype(dtype.np)
    emulated = Emulated(graph(lambda v: o.transpose(v, perm), (dtype, shape)))
    assert [launch.kernel.name.startswith("transposing") for launch in emulated.program.launches] == [True]
    np.testing.assert_array_equal(emulated(x)[0], x.transpose(perm))


def test_the_report_counts_what_a_naive_placement_would_have() -> None:
    session: Any = tw.compile(graph(lambda v: o.transpose(v, (1, 0)), (f32, (64, 64))), target="sm_90a")
    (kernel,) = session.report().data["kernels"].values()
    assert kernel["barriers"]["bar.warp.sync"] == 1 and kernel["naive_barriers"] == 64
    assert "1 bar.warp.sync (threads of a warp share memory)" in str(session.report())
