"""Kernels that training needs, in the emulator, against PyTorch in f64: norms' backward pass, sums of columns, rows added at indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as tf

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated, graph
from tilewright.core.dtypes import DType, bf16, f16, f32, i64

TOLERANCE = {"f32": 2e-6, "f16": 1e-3, "bf16": 8e-3}


def floats(rng: np.random.Generator, dtype: DType, *shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32).astype(dtype.np)


def close(got: Any, want: Any, dtype: DType) -> None:
    wide = np.asarray(want, np.float64)
    assert np.linalg.norm(got.astype(np.float64) - wide) <= TOLERANCE[dtype.name] * np.linalg.norm(wide)


def wide(x: Any) -> torch.Tensor:
    return torch.from_numpy(x.astype(np.float64)).requires_grad_()


@pytest.mark.parametrize("case", [(f32, 37, 67, True), (bf16, 70, 264, True), (f16, 33, 96, False)], ids=str)
def test_norm_backward(case: tuple[DType, int, int, bool], rng: np.random.Generator) -> None:
    dtype, rows, n, centred = case
    x, w, g = floats(rng, dtype, rows, n), floats(rng, dtype, n), floats(rng, dtype, rows, n)
    op = o.NormBackward(affine="both" if centred else "weight", centred=centred)
    made = Emulated(graph(lambda *v: op(*v), (dtype, x.shape), (dtype, w.shape), (dtype, g.shape)))
    assert len(made.program.launches) == 3
    leaves = [wide(x), wide(w), *([torch.zeros(n, dtype=torch.float64, requires_grad=True)] if centred else [])]
    y = tf.layer_norm(leaves[0], (n,), leaves[1], leaves[-1], 1e-5) if centred else tf.rms_norm(leaves[0], (n,), leaves[1], 1e-5)
    for got, want in zip(made(x, w, g), torch.autograd.grad(y, leaves, wide(g).detach()), strict=True):
        close(got, want.numpy(), dtype)


@pytest.mark.parametrize("case", [(f32, (300, 33)), (bf16, (5, 16, 264)), (f16, (64, 8))], ids=str)
def test_column_sums(case: tuple[DType, tuple[int, ...]], rng: np.random.Generator) -> None:
    """With elementwise work before the sum, whose result is wanted too, and after it."""
    dtype, shape = case
    axes = tuple(range(len(shape) - 1))

    def build(x: Any, y: Any) -> Any:
        product = o.Mul()(x, y)
        return product, o.Cast(dtype=f32)(o.Sum(axes=axes)(product))

    x, y = floats(rng, dtype, *shape), floats(rng, dtype, *shape)
    made = Emulated(graph(build, (dtype, shape), (dtype, shape)))
    assert [n.name.partition(".")[2] for n in made.program.launches][-2:] == ["chunks", ""]
    product, total = made(x, y)
    exact = x.astype(np.float64) * y.astype(np.float64)
    close(product, exact, dtype)
    close(total, exact.sum(axes), dtype)


@pytest.mark.parametrize("dtype", [f32, bf16], ids=str)
def test_rows_added_at_indices(dtype: DType, rng: np.random.Generator) -> None:
    table, ids = floats(rng, dtype, 11, 33), rng.integers(0, 11, (5, 9))
    ids[0] = 3  # many of one kind
    updates = floats(rng, dtype, 5, 9, 33)
    made = Emulated(graph(lambda *v: o.ScatterAdd()(*v), (dtype, (11, 33)), (i64, (5, 9)), (dtype, (5, 9, 33))))
    (got,) = made(table, ids, updates)
    want = table.astype(np.float64)
    np.add.at(want, ids, updates.astype(np.float64))
    close(got, want, dtype)
    assert not made.errors.any()
    ids[2, 3] = 11
    made(table, ids, updates)
    assert list(made.errors[2:]) == [21, 11]


def test_a_result_on_an_operand_of_a_kernel_of_several_results(rng: np.random.Generator) -> None:
    """The first result takes the memory of an operand that only the second one needs: everything is read before anything is written."""

    def build(a: Any, c: Any, x: Any) -> Any:
        sums, wide = o.CumSum(axis=0)(a), o.Cast(dtype=f32)(x)
        total = o.Add()(sums, o.Mul()(wide, c))
        return o.CumSum(axis=0)(total), o.CumSum(axis=0)(wide)

    a, c, x = floats(rng, f32, 24, 40), floats(rng, f32, 24, 40), floats(rng, bf16, 24, 40)
    with fake_gpu():
        session: Any = tw.compile(graph(build, (f32, a.shape), (f32, c.shape), (bf16, x.shape)), target="cuda")
        first, second = (y.numpy() for y in session(a, c, x))
    total = np.cumsum(a.astype(np.float64), 0) + x.astype(np.float64) * c
    close(first, np.cumsum(total, 0), f32)
    close(second, np.cumsum(x.astype(np.float64), 0), f32)
