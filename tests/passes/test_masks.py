"""Masks of attention: what follows from positions becomes attributes, what only looks like it stays."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import Dim, sym
from tilewright.ir.graph import Graph, Value
from tilewright.ops.families import boolean, f32

from .graphs import optimised

S, T = sym("S", 1, 32), sym("T", 1, 32)
NEVER = float("-inf")


def positions(g: Graph, q: Dim, k: Dim) -> tuple[Value, Value]:
    i = g.add(o.Iota(shape=(1, 1, q, 1), axis=2, dtype=dt.i64)).value
    return i, g.add(o.Iota(shape=(1, 1, 1, k), axis=3, dtype=dt.i64)).value


def number(g: Graph, v: float, dtype: Any = np.float32) -> Value:
    return g.constant(np.asarray(v, dtype))


def attend(make: Callable[[Graph, Dim, Dim], tuple[Value | None, Value | None]], q: Dim, k: Dim) -> o.Attention:
    """The attention op that the pipeline leaves; results are compared on the way."""
    g = Graph()
    x, y, z = g.input(f32(2, 2, q, 4), "q"), g.input(f32(2, 2, k, 4), "k"), g.input(f32(2, 2, k, 4), "v")
    mask, bias = make(g, q, k)
    op = o.Attention(scale=0.5, has_mask=mask is not None, has_bias=bias is not None)
    g.outputs = [op(x, y, z, *(v for v in (mask, bias) if v is not None))]
    for n in (1, 3, 8):
        new = optimised(g, S=n, T=n + 2)
    found = [n.op for n in new.nodes if isinstance(n.op, o.Attention)]
    assert len(found) == 1
    return found[0]


def facts(op: o.Attention) -> tuple[Any, ...]:
    return op.causal, op.offset, op.window, op.has_mask, op.has_bias


def causal(g: Graph, q: Dim, k: Dim) -> Value:
    i, j = positions(g, q, k)
    out: Value = o.LessEqual()(j, i)
    return out


def windowed(g: Graph, q: Dim, k: Dim) -> Value:
    i, j = positions(g, q, k)
    near = o.Greater()(j, o.Sub()(i, number(g, 3, np.int64)))
    out: Value = o.LogicalAnd()(near, o.LessEqual()(j, i))
    return out


def shifted(g: Graph, q: Dim, k: Dim) -> Value:
    """The last query sees the last key."""
    i, j = positions(g, q, k)
    gap = o.Sub()(g.add(o.DimValue(dim=k, dtype=dt.i64)).value, g.add(o.DimValue(dim=q, dtype=dt.i64)).value)
    out: Value = o.LessEqual()(j, o.Add()(i, gap))
    return out


@pytest.mark.parametrize("q, k", [(5, 5), (S, S), (1, 5), (S, T)])
def test_computed_masks(q: Dim, k: Dim) -> None:
    assert facts(attend(lambda g, q, k: (causal(g, q, k), None), q, k)) == (True, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (o.Expand(shape=(2, 2, q, k))(causal(g, q, k)), None), q, k)) == (True, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (shifted(g, q, k), None), q, k))[:2] == ((True, k - q) if q != 1 else (False, 0))


@pytest.mark.parametrize("n", [5, S])
def test_window(n: Dim) -> None:
    assert facts(attend(lambda g, q, k: (windowed(g, q, k), None), n, n)) == (True, 0, 3, False, False)


@pytest.mark.parametrize("n", [5, S])
@pytest.mark.parametrize("hidden", [NEVER, -3.4028234663852886e38, -1e9])
def test_biases_of_zero_and_minus_infinity(n: Dim, hidden: float) -> None:
    def bias(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        return None, o.Where()(causal(g, q, k), number(g, 0.0), number(g, hidden))

    def inverted(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        return None, o.Where()(o.LogicalNot()(causal(g, q, k)), number(g, hidden), number(g, 0.0))

    def product(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        """(1 - mask) * hidden, as older models write it."""
        seen = o.Cast(dtype=dt.f32)(causal(g, q, k))
        return None, o.Mul()(o.Sub()(number(g, 1.0), seen), number(g, hidden))

    far = hidden < -1e30  # a tenth of what f32 holds and more: no score is next to it
    for make in (bias, inverted, *([] if hidden == NEVER else [product])):
        assert facts(attend(make, n, n)) == (far, 0, None, False, not far)


def test_constant_masks() -> None:
    low = np.tril(np.ones((5, 5), bool))
    band = low & ~np.tril(low, -3)
    assert facts(attend(lambda g, q, k: (g.constant(low), None), 5, 5)) == (True, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (g.constant(np.broadcast_to(low, (2, 1, 5, 5))), None), 5, 5)) == (True, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (g.constant(band), None), 5, 5)) == (True, 0, 3, False, False)
    bias = np.where(low, 0, -np.inf).astype(np.float32)
    assert facts(attend(lambda g, q, k: (None, g.constant(bias)), 5, 5)) == (True, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (g.constant(np.ones((5, 7), bool)), None), 5, 7)) == (False, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (None, g.constant(np.zeros((5, 7), np.float32))), 5, 7)) == (False, 0, None, False, False)
    assert facts(attend(lambda g, q, k: (g.constant(np.tril(np.ones((3, 7), bool), 4)), None), 3, 7)) == (True, 4, None, False, False)


def test_a_slice_of_a_stored_mask() -> None:
    """The buffer of the longest length, cut to the call's: float ones and zeros, compared with zero."""
    def make(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        stored = g.constant(np.tril(np.ones((1, 1, 32, 32), np.float32)), "bias")
        cut = o.Slice(starts=(0,) * 4, sizes=(1, 1, q, k), steps=(1,) * 4)(stored)
        return None, o.Where()(o.Equal()(cut, number(g, 0.0)), number(g, NEVER), number(g, 0.0))

    assert facts(attend(make, S, S)) == (True, 0, None, False, False)


def test_what_is_given_stays() -> None:
    def given(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        return g.input(boolean(2, 1, 1, k), "mask"), None

    def both(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        return o.LogicalAnd()(causal(g, q, k), o.Expand(shape=(2, 1, q, k))(g.input(boolean(2, 1, 1, k), "mask"))), None

    def bias(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        return None, o.Where()(o.LogicalAnd()(causal(g, q, k), g.input(boolean(2, 1, 1, k), "mask")), number(g, 0.0), number(g, NEVER))

    assert facts(attend(given, S, S)) == (False, 0, None, True, False)
    assert facts(attend(both, S, S)) == (True, 0, None, True, False)
    assert facts(attend(bias, S, S)) == (True, 0, None, True, False)


def test_a_large_number_is_not_minus_infinity_where_rows_may_be_empty() -> None:
    def bias(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        return None, o.Where()(o.LogicalAnd()(causal(g, q, k), g.input(boolean(2, 1, 1, k), "mask")), number(g, 0.0), number(g, -1e9))

    assert facts(attend(bias, 5, 5)) == (False, 0, None, False, True)


def test_lookalikes_stay() -> None:
    def other_way(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        i, j = positions(g, q, k)
        return o.LessEqual()(i, j), None

    def doubled(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        i, j = positions(g, q, k)
        return o.LessEqual()(o.Mul()(j, number(g, 2, np.int64)), i), None

    def either(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        i, j = positions(g, q, k)
        return o.LogicalOr()(o.LessEqual()(j, i), o.Equal()(j, number(g, 4, np.int64))), None

    def small_bias(g: Graph, q: Dim, k: Dim) -> tuple[None, Value]:
        return None, o.Where()(causal(g, q, k), number(g, 0.0), number(g, -3.0))

    for make in (other_way, doubled, either):
        assert facts(attend(make, S, S)) == (False, 0, None, True, False)
    assert facts(attend(small_bias, S, S)) == (False, 0, None, False, True)
    almost = np.tril(np.ones((5, 5), bool))
    almost[3, 1] = False
    assert facts(attend(lambda g, q, k: (g.constant(almost), None), 5, 5)) == (False, 0, None, True, False)


def test_two_masks_of_a_call_stay_as_they_are() -> None:
    def both(g: Graph, q: Dim, k: Dim) -> tuple[Value, None]:
        return o.LogicalAnd()(g.input(boolean(1, 1, q, k), "a"), g.input(boolean(1, 1, 1, k), "b")), None

    assert facts(attend(both, 3, 5)) == (False, 0, None, True, False)
