"""Products and convolutions of bytes and of bf16 by constant weights, which are read as 32-bit words: against NumPy and PyTorch."""
from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core.dtypes import bf16, i32, u8
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.target.cpu.host import host_target

LEVELS = ["baseline", "avx2", "avx512", "native"]
MATRICES = [(1, 4, 1), (7, 30, 50), (5, 3, 17), (64, 768, 64), (13, 2052, 70), (129, 64, 128), (3, 0, 5), (0, 8, 5)]
CONVS: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((2, 5, 6, 7), (9, 5, 3, 2), {"stride": (2, 1), "padding": (1, 1), "dilation": (1, 2)}),
    ((1, 3, 17, 15), (24, 3, 7, 7), {"stride": (2, 2), "padding": (3, 3)}),
    ((2, 64, 7, 7), (70, 64, 3, 3), {"padding": (1, 1)}),
    ((2, 32, 5, 4), (16, 32, 1, 1), {}),
    ((1, 32, 5, 4), (16, 32, 1, 1), {"stride": (2, 2)}),
    ((1, 16, 9, 9), (24, 8, 3, 3), {"padding": (1, 1), "groups": 2}),
    ((2, 40, 9, 11), (40, 1, 3, 3), {"stride": (2, 2), "padding": (1, 1), "groups": 40}),
    ((1, 8, 20), (6, 8, 4), {"padding": (2,)}),
    ((1, 4, 3, 5, 4), (3, 4, 2, 2, 2), {"padding": (1, 0, 1)}),
    ((1, 3, 4), (2, 3, 1), {}),
]


def session(x: TensorType, w: Any, op: Any, level: str) -> Any:
    graph = Graph("product")
    graph.outputs = [op(graph.input(x, "x"), graph.constant(w, "w"))]
    return tw.compile(graph, target=host_target(level=level))  # type: ignore[arg-type]


@pytest.mark.parametrize(("level", "m", "k", "n"), [("native", *m) for m in MATRICES] + [(x, *MATRICES[4]) for x in LEVELS[:-1]])
def test_products_of_bytes(level: str, m: int, k: int, n: int) -> None:
    rng = fresh_rng()
    x, w = rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (n, k)).astype(np.int8)
    got = session(TensorType(u8, (m, k)), w, o.Matmul(transpose_b=True, dtype=i32), level)(x)
    np.testing.assert_array_equal(got, x.astype(np.int64) @ w.T.astype(np.int64))


@pytest.mark.parametrize(("level", "m", "k", "n"), [("native", *m) for m in MATRICES] + [("avx2", *MATRICES[4])])
def test_products_of_bf16(level: str, m: int, k: int, n: int) -> None:
    rng = fresh_rng()
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k)))
    got = session(TensorType(bf16, (m, k)), w, o.Matmul(transpose_b=True), level)(x).astype(np.float64)
    wide, size = x.astype(np.float64) @ w.T.astype(np.float64), np.abs(x.astype(np.float64)) @ np.abs(w.T.astype(np.float64))
    assert np.all(np.abs(got - wide) <= 2.0**-8 * np.abs(wide) + 2.0**-18 * size)


@pytest.mark.parametrize(("level", "case", "border"), [("native", c, b) for c in range(len(CONVS)) for b in (0, 200)]
                         + [(x, c, 200) for x in LEVELS[:-1] for c in (0, 6)])
def test_convolutions_of_bytes(level: str, case: int, border: int) -> None:
    shape, kernel, options = CONVS[case]
    rng = fresh_rng()
    x, w = rng.integers(0, 256, shape).astype(np.uint8), rng.integers(-128, 128, kernel).astype(np.int8)
    rank = len(shape) - 2
    padding = tuple((p, p) for p in options.get("padding", (0,) * rank))
    op = o.IntConv(stride=options.get("stride", (1,) * rank), padding=padding, dilation=options.get("dilation", (1,) * rank),
                   groups=options.get("groups", 1), border=border)
    got = session(TensorType(u8, shape), w, op, level)(x)
    around = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=border)
    want = conv(around, w, {**options, "padding": (0,) * rank})
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("level", "case"), [("native", c) for c in range(len(CONVS))] + [("avx2", 2)])
def test_convolutions_of_bf16(level: str, case: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Direct sums: tests/passes/test_winograd.py has those by Winograd's transforms."""
    monkeypatch.setenv("TILEWRIGHT_WINOGRAD", "off")
    shape, kernel, options = CONVS[case]
    rng = fresh_rng()
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in (shape, kernel))
    rank = len(shape) - 2
    op = o.Conv(stride=options.get("stride", (1,) * rank), padding=tuple((p, p) for p in options.get("padding", (0,) * rank)),
                dilation=options.get("dilation", (1,) * rank), groups=options.get("groups", 1))
    got = session(TensorType(bf16, shape), w, op, level)(x).astype(np.float64)
    want, size = conv(x, w, options), conv(np.abs(x), np.abs(w), options)
    assert np.all(np.abs(got - want) <= 2.0**-8 * np.abs(want) + 2.0**-18 * size)


def test_a_row_alone_has_the_bits_of_a_row_in_a_batch() -> None:
    rng = fresh_rng()
    x, w = (rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((77, 1030), (96, 1030)))
    graph = Graph("product")
    rows = tw.Dim("M", 1, 128)
    graph.outputs = [o.Cast(dtype=tw.core.dtypes.f32)(o.Matmul(transpose_b=True)(graph.input(TensorType(bf16, (rows, 1030)), "x"),
                                                                                  graph.constant(w, "w")))]
    one, two = tw.compile(graph, threads=1), tw.compile(graph, threads=2)
    whole = one(x)
    np.testing.assert_array_equal(whole, two(x))
    for i in (0, 5, 76):
        np.testing.assert_array_equal(whole[i : i + 1], two(x[i : i + 1]))


def conv(x: Any, w: Any, options: dict[str, Any]) -> Any:
    """PyTorch's, in f64: exact for these integers."""
    run = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][x.ndim - 3]
    return run(torch.from_numpy(x.astype(np.float64)), torch.from_numpy(w.astype(np.float64)), **options).numpy()
