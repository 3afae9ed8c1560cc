"""What each pass does to a small graph, as text. `pytest --update-goldens` writes the files anew."""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.text import to_text
from tilewright.ops.families import boolean, f32, i64
from tilewright.passes.absorb_conv import AbsorbIntoConv
from tilewright.passes.absorb_masks import AbsorbMasks
from tilewright.passes.absorb_matmul import AbsorbIntoMatmul
from tilewright.passes.base import Pass
from tilewright.passes.canonicalize import Canonicalize
from tilewright.passes.cse import Cse, Dce
from tilewright.passes.fold_constants import FoldConstants, FoldTables
from tilewright.passes.fold_index import FoldIndex
from tilewright.passes.fuse import Fuse
from tilewright.passes.merge_matmuls import MergeMatmuls
from tilewright.passes.recognize import Recognize

from .graphs import apply, arrays_for, assert_same

S = sym("S", 1, 16)


def data(g: Graph, name: str, *shape: int) -> Value:
    return g.constant(np.linspace(0.5, 1.5, int(np.prod(shape)), dtype=np.float32).reshape(shape), name)


def num(g: Graph, v: float) -> Value:
    return g.constant(np.float32(v), "c")


def views(g: Graph) -> list[Value]:
    x = g.input(f32(1, S, 6), "x")
    flat = o.Reshape(shape=(S, 6))(x)
    y = o.Add()(o.Matmul()(flat, data(g, "w", 6, 4)), data(g, "b", 4))
    turned = o.Transpose(perm=(0, 2, 1))(o.Transpose(perm=(0, 2, 1))(x))
    cut = o.Slice(starts=(0, 0, 1), sizes=(1, S, 2), steps=(1, 1, 1))(o.Slice(starts=(0, 0, 2), sizes=(1, S, 3), steps=(1, 1, 1))(x))
    total = o.Reshape(shape=(1, S, 1))(o.Sum(axes=(2,))(x))
    return [o.Reshape(shape=(1, S, 4))(o.Relu()(y)), o.Mul()(turned, o.Expand(shape=(1, S, 6))(total)), cut]


def numbers(g: Graph) -> list[Value]:
    x = g.input(f32(3), "x")
    y = o.Add()(o.Mul()(num(g, 1.0), x), num(g, 0.0))
    z = o.Sub()(o.Div()(o.Neg()(o.Neg()(y)), num(g, 4.0)), num(g, 0.5))
    p = o.Pow()(z, num(g, 3.0))
    kept = o.Div()(p, num(g, 3.0))
    mask = o.LogicalAnd()(g.input(boolean(3), "m"), g.constant(np.array(True)))
    return [kept, o.Where()(mask, p, p), o.Cast(dtype=dt.f32)(o.Cast(dtype=dt.f64)(x))]


def matmuls(g: Graph) -> list[Value]:
    q, k = g.input(f32(2, S, 4), "q"), g.input(f32(2, S, 4), "k")
    scores = o.Div()(o.Matmul()(o.Mul()(q, num(g, 3.0)), o.Transpose(perm=(0, 2, 1))(k)), num(g, 6.0))
    return [scores, o.Matmul()(q, o.Transpose(perm=(1, 0))(data(g, "w", 5, 4)))]


def convolution(g: Graph) -> list[Value]:
    conv = o.Conv(stride=(1,), padding=((0, 0),), dilation=(1,))(g.input(f32(1, 2, 5), "x"), data(g, "w", 3, 2, 2))
    y = o.Add()(conv, data(g, "b", 3, 1))
    return [o.BatchNorm(affine="both")(y, data(g, "mean", 3), data(g, "var", 3), data(g, "scale", 3), data(g, "shift", 3))]


def constants(g: Graph) -> list[Value]:
    x = g.input(f32(4), "x")
    line = o.Cast(dtype=dt.f32)(g.add(o.Iota(shape=(4,), axis=0, dtype=dt.i64)).value)
    big = o.Expand(shape=(1 << 12, 1 << 12))(num(g, 2.0))
    weight = o.Transpose(perm=(1, 0))(g.constant(np.zeros((256, 256), np.float32), "large"))
    return [o.Add()(x, o.Exp()(o.Neg()(line))), big, weight]


def positions(g: Graph) -> list[Value]:
    ids = g.input(i64(1, S), "ids")
    place = o.Reshape(shape=(1, S))(o.Add()(g.add(o.Iota(shape=(S,), axis=0, dtype=dt.i64)).value, g.constant(np.int64(0))))
    early = o.Slice(starts=(0, 0), sizes=(1, 1), steps=(1, 1))(place)
    before = o.Concat(axis=1)(o.Sub()(early, g.constant(np.int64(1))), place)
    steps = o.Sub()(place, o.Slice(starts=(0, 0), sizes=(1, S), steps=(1, 1))(before))
    jumps = o.CumSum(axis=1)(o.Cast(dtype=dt.i64)(o.NotEqual()(steps, g.constant(np.int64(1)))))
    return [o.Gather()(data(g, "table", 16, 2), place), o.Equal()(jumps, g.constant(np.int64(0))), o.Add()(ids, jumps)]


def tables(g: Graph) -> list[Value]:
    x = g.input(f32(S, 3), "x")
    place = g.add(o.Iota(shape=(S, 1), axis=0, dtype=dt.f32)).value
    return [o.Mul()(x, o.Cos()(o.Mul()(place, data(g, "frequencies", 3))))]


def masked(g: Graph) -> list[Value]:
    q, k, v = (g.input(f32(1, 2, S, 4), n) for n in "qkv")
    i, j = (g.add(o.Iota(shape=(S, 1) if a == 0 else (1, S), axis=a, dtype=dt.i64)).value for a in (0, 1))
    given = g.input(boolean(1, 1, 1, S), "mask")
    return [o.Attention(scale=0.5, has_mask=True)(q, k, v, o.LogicalAnd()(o.LessEqual()(j, i), given))]


def spelled(g: Graph) -> list[Value]:
    x = g.input(f32(2, 3, S, 4), "x")
    p = o.Softmax(axis=3)(o.Matmul(transpose_b=True, alpha=0.5)(x, x))
    y = o.Matmul()(p, x)
    mean = o.Mean(axes=(3,), keepdims=True)(o.Square()(y))
    z = o.Mul()(o.Mul()(y, o.Rsqrt()(o.Add()(mean, num(g, 1e-6)))), data(g, "w", 4))
    return [o.Mul()(z, o.Sigmoid()(z))]


def repeated(g: Graph) -> list[Value]:
    x, y = g.input(f32(3), "x"), g.input(f32(3), "y")
    o.Neg()(o.Neg()(x))  # nobody reads it
    return [o.Add()(o.Exp()(x), y), o.Add()(y, o.Exp()(x)), o.Add()(x, num(g, 2.0)), o.Mul()(x, num(g, 2.0))]


def linears(g: Graph) -> list[Value]:
    x = g.input(f32(2, S, 4), "x")
    parts = [o.Add()(o.Matmul(transpose_b=True)(x, data(g, f"w{n}", n, 4)), data(g, f"b{n}", n)) for n in (4, 2, 6)]
    gate = o.Silu()(o.Matmul(transpose_b=True)(x, data(g, "gate", 4, 4)))
    return [o.Reshape(shape=(2, S, p.shape[-1] // 2, 2))(p) for p in parts] + [gate]


def regions(g: Graph) -> list[Value]:
    x, r = g.input(f32(S, 4), "x"), g.input(f32(S, 4), "r")
    s = o.Add()(o.Add()(o.Matmul()(x, data(g, "w", 4, 4)), data(g, "b", 4)), r)
    n = o.LayerNorm(affine="both")(s, data(g, "scale", 4), data(g, "shift", 4))
    t = o.Add()(x, r)
    m = o.LayerNorm()(t)
    e = o.Mul()(o.Exp()(x), num(g, 2.0))
    return [o.Relu()(n), s, m, t, o.Sum(axes=(1,))(o.Square()(r)), o.Add()(e, r), e]


CASES: dict[str, tuple[Callable[[Graph], list[Value]], tuple[Pass, ...]]] = {
    "canonicalize-views": (views, (Canonicalize(),)),
    "canonicalize-numbers": (numbers, (Canonicalize(),)),
    "absorb-into-matmul": (matmuls, (AbsorbIntoMatmul(),)),
    "absorb-into-conv": (convolution, (AbsorbIntoConv(),)),
    "fold-constants": (constants, (FoldConstants(),)),
    "fold-index": (positions, (FoldIndex(),)),
    "fold-tables": (tables, (FoldTables(),)),
    "absorb-masks": (masked, (AbsorbMasks(),)),
    "recognize": (spelled, (Recognize(),)),
    "cse": (repeated, (Cse(),)),
    "merge-matmuls": (linears, (MergeMatmuls(),)),
    "fuse": (regions, (Fuse(),)),
    "dce": (repeated, (Dce(),)),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden: Callable[[str, str], None]) -> None:
    build, passes = CASES[name]
    g = Graph("g")
    g.outputs = build(g)
    result, _ = apply(g, *passes)
    inputs = arrays_for(g, S=5)
    assert_same(run(result, inputs), run(g, inputs))
    golden(f"{name}.txt", to_text(result))
