"""Sorts and top-k at lengths where the kernels change, with ties, NaN and both zeros, in pieces and against PyTorch's stable sort."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.fresh import fresh_rng
from tilewright.core.dtypes import dtype
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import Op, Sort, TopK

from .harness import run_graph

CASES = [("f4", n) for n in (64, 65, 4097, 40000)] + [(k, n) for k in ("f8", "i8", "f2", "i1") for n in (65, 16385)]
CASES += [("u1", 65), ("?", 65)]


def numbers(kind: str, shape: tuple[int, ...]) -> Any:
    rng = fresh_rng()
    if np.dtype(kind).kind == "f":
        x = (rng.standard_normal(shape) * 9).round(1).astype(kind)  # many ties
        x.flat[:: max(x.size // 7, 1)] = np.nan
        x.flat[1 :: max(x.size // 5, 1)] = -0.0
        x.flat[2 :: max(x.size // 5, 1)] = 0.0
        return x
    info = np.iinfo(kind) if kind != "?" else None
    return rng.integers(info.min if info else 0, info.max if info else 2, shape, endpoint=info is not None, dtype=kind)


def run(op: Op, x: Any, parts: int = 1) -> list[Any]:
    g = Graph("sort")
    g.outputs = list(g.add(op, g.input(TensorType(dtype(x.dtype), x.shape), "x")).values)
    got, error = run_graph(g, [x], parts=parts)
    assert not error.any()
    return got


@pytest.mark.parametrize("kind,length", CASES)
def test_sort(kind: str, length: int) -> None:
    x = numbers(kind, (2, length))
    descending = bool(fresh_rng().integers(2))
    values, order = run(Sort(axis=1, descending=descending), x, parts=3)
    want = torch.sort(torch.from_numpy(x), dim=1, descending=descending, stable=True)
    np.testing.assert_array_equal(order, want.indices.numpy())
    np.testing.assert_array_equal(values, want.values.numpy())
    np.testing.assert_array_equal(np.signbit(values) if values.dtype.kind == "f" else values < 0,
                                  np.signbit(want.values.numpy()) if values.dtype.kind == "f" else want.values.numpy() < 0)


@pytest.mark.parametrize("kind,k", [("f4", 1), ("f4", 7), ("f4", 64), ("f4", 65), ("f8", 7), ("i8", 7), ("u1", 7)])
@pytest.mark.parametrize("rows,length", [(3, 5000), (9, 256), (6, 65), (5, 67)])
def test_top_k(kind: str, k: int, rows: int, length: int) -> None:
    x = numbers(kind, (rows, length))
    for largest in (True, False):
        values, order = run(TopK(k=k, axis=1, largest=largest), x)
        want = torch.sort(torch.from_numpy(x), dim=1, descending=largest, stable=True)
        np.testing.assert_array_equal(order, want.indices[:, :k].numpy())
        np.testing.assert_array_equal(values, want.values[:, :k].numpy())


def test_top_k_of_rising_and_equal_rows() -> None:
    rising = np.arange(1000, dtype="f4")
    x = np.stack([rising, rising[::-1], np.zeros(1000, "f4"), np.full(1000, np.nan, "f4")])
    values, order = run(TopK(k=9, axis=1), x)
    want = torch.sort(torch.from_numpy(x), dim=1, descending=True, stable=True)
    np.testing.assert_array_equal(order, want.indices[:, :9].numpy())
    np.testing.assert_array_equal(values, want.values[:, :9].numpy())


def test_columns() -> None:
    x = numbers("f4", (300, 3))
    values, order = run(Sort(axis=0), x)
    want = torch.sort(torch.from_numpy(x), dim=0, stable=True)
    np.testing.assert_array_equal(order, want.indices.numpy())
    np.testing.assert_array_equal(values, want.values.numpy())
