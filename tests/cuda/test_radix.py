"""Radix sorts and running sums of long rows on the CUDA target, emulated, against PyTorch and NumPy: dtypes, NaN, ties, several blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.cuda.launching import Emulated, graph
from tilewright.core.dtypes import dtype
from tilewright.kernels.scan.cuda.running import LONG
from tilewright.kernels.sort.cuda.radix import ITEMS, RadixKernel
from tilewright.ops.index.indexing import TopK
from tilewright.ops.index.sorting import ArgSort, Sort
from tilewright.ops.rows.cumulative import CumProd, CumSum
from tilewright.tile.builder import KernelBuilder

slow = pytest.mark.slow


def numbers(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> torch.Tensor:
    x = torch.from_numpy(rng.normal(size=shape) * 40).to(getattr(torch, kind))
    if x.is_floating_point():
        flat = x.view(-1)
        flat[3], flat[17], flat[5], flat[9], flat[7], flat[8] = float("nan"), -float("nan"), -0.0, 0.0, float("inf"), -float("inf")
    return x


def raw(x: torch.Tensor) -> Any:
    return x.view(torch.int16).numpy().view(dtype("bf16").np) if x.dtype is torch.bfloat16 else x.numpy()


CASES = [("uint8", (2, 70), 1), ("bfloat16", (100,), 0), *(pytest.param(*c, marks=slow) for c in (
    ("float32", (1, 5000), 1), ("int32", (300,), 0), ("float64", (90, 2), 0), ("int64", (2, 4097), 1), ("float16", (3, 200), 1)))]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize(("kind", "shape", "axis"), CASES)
def test_sorts_are_those_of_torch(kind: str, shape: tuple[int, ...], axis: int, descending: bool, rng: np.random.Generator) -> None:
    x = numbers(kind, shape, rng)
    g = graph(lambda v: Sort(axis=axis, descending=descending)(v), (dtype(raw(x).dtype), shape))
    emulated = Emulated(g)
    assert any(isinstance(k.kernel, RadixKernel) for k in emulated.program.launches)
    values, indices = emulated(raw(x))
    want = torch.sort(x, dim=axis, descending=descending, stable=True)
    np.testing.assert_array_equal(indices, want.indices.numpy())
    np.testing.assert_array_equal(values.astype(np.float64), want.values.double().numpy())


def test_topk_and_argsort_of_many_equal_elements_keep_the_first(rng: np.random.Generator) -> None:
    x = rng.integers(0, 3, (1, ITEMS + 40)).astype(np.uint8)
    order = Emulated(graph(lambda v: ArgSort(axis=1, descending=False, dtype=dtype("i32"))(v), (dtype("u8"), x.shape)))(x)[0]
    np.testing.assert_array_equal(order, np.argsort(x, axis=1, kind="stable"))
    values, indices = Emulated(graph(lambda v: TopK(k=70, axis=1, largest=True)(v), (dtype("u8"), x.shape)))(x)
    first = np.argsort(-x.astype(int), axis=1, kind="stable")[:, :70]
    np.testing.assert_array_equal(indices, first)
    np.testing.assert_array_equal(values, np.take_along_axis(x, first, 1))


@pytest.mark.parametrize("threads", [16, 32, 128])
@pytest.mark.parametrize("kind", ["i32", "f32", "f64"])
def test_scans_of_tiles_that_threads_share(kind: str, threads: int, rng: np.random.Generator) -> None:
    """The interpreter's order, so the same bits."""
    from tests.cuda.emulator import Heap
    from tests.cuda.emulator import run as emulate
    from tilewright.kernels.cuda.groups import on_threads
    from tilewright.target.cuda.code import emit_cuda
    from tilewright.target.cuda.device import cuda_target
    from tilewright.tile.interp import run

    b = KernelBuilder("running")
    source, goal = b.view("x", dtype(kind), (1,)), b.view("y", dtype(kind), (1,))
    b.store(goal, (0,), b.scan("sum", b.load(source, (0,), (threads,))))
    kernel = on_threads(b.build(), threads, 1)
    x = (rng.normal(size=threads) * 100).astype(dtype(kind).np)
    want, got, heap = np.zeros_like(x), np.zeros_like(x), Heap()
    run(kernel, [x, want], 1)
    emulate(emit_cuda(kernel, cuda_target("sm_90a")), heap, [heap.add(x), heap.add(got)], 1, threads)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("kind", "shape", "axis", "exclusive", "reverse"), [
    ("i32", (2, LONG + 900), 1, False, False), ("f32", (LONG + 1,), 0, True, True), ("f16", (3, 40), 0, False, True)])
def test_running_sums_of_long_rows(kind: str, shape: tuple[int, ...], axis: int, exclusive: bool, reverse: bool,
                                   rng: np.random.Generator) -> None:
    x = (rng.normal(size=shape) * 9).astype(dtype(kind).np)
    op = CumSum(axis=axis, exclusive=exclusive, reverse=reverse)
    emulated = Emulated(graph(lambda v: op(v), (dtype(kind), shape)))
    assert any("threads a row" in k.note for k in emulated.program.launches)
    exact = np.cumsum(np.flip(x, axis) if reverse else x, axis, dtype=np.float64)
    exact = exact - (np.flip(x, axis) if reverse else x) if exclusive else exact
    want = np.flip(exact, axis) if reverse else exact
    np.testing.assert_allclose(emulated(x)[0].astype(np.float64), want, rtol=1e-3 if kind == "f16" else 1e-6, atol=1e-5)


def test_running_products_of_long_rows(rng: np.random.Generator) -> None:
    x = rng.choice([0.5, 2.0, -1.0], LONG + 3).astype(np.float32)
    got = Emulated(graph(lambda v: CumProd(axis=0)(v), (dtype("f32"), x.shape)))(x)[0]
    np.testing.assert_array_equal(got, np.cumprod(x.astype(np.float64)).astype(np.float32))


@pytest.mark.parametrize("size", [0, 5])
def test_running_sums_of_rows_whose_length_is_found_at_the_call(size: int) -> None:
    from tests.kernels.test_registry import build

    sample = next(s for s in CumSum.samples if s.attrs.get("exclusive") and not s.types[0].is_static)
    x = np.ones((size, 3), np.float32)
    got = Emulated(build(CumSum, sample))(x, np.zeros(size, "i1"), np.zeros(3, "i1"))[0]
    np.testing.assert_array_equal(got, np.arange(size, dtype=np.float32)[:, None].repeat(3, 1))
