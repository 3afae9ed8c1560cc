"""Random graphs mean the same before and after the pipeline, whole or without one pass; a wrong rule is noticed."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.errors import ConfigError
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.rewrite import P, Rule, X, Y, rule
from tilewright.ops.families import boolean, f32
from tilewright.passes.base import Log
from tilewright.passes.canonicalize import Canonicalize
from tilewright.passes.fuse import Fuse
from tilewright.passes.pipeline import optional_passes, run_pipeline

from .graphs import arrays_for, assert_same, names, optimised

S = sym("S", 1, 8)
UNARY = [o.Neg, o.Tanh, o.Sigmoid, o.Relu, o.Silu, o.Square, o.Gelu, o.Abs, o.Sin]
BINARY = [o.Add, o.Sub, o.Mul, o.Maximum, o.Minimum]
WIDTH = 4
KINDS = ["unary", "binary", "number", "matmul", "norm", "reduce", "view", "shape", "softmax", "where", "cast", "attend", "divide"]


def number(g: Graph, draw: Any) -> Value:
    return g.constant(np.float32(draw(st.sampled_from([0.0, 1.0, -1.0, 2.0, 0.5, 3.0, 0.044715]))))


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Up to 18 ops on values of [2,S,4], [2,S,1], [4] and so on."""
    g = Graph()
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    pool: list[Value] = [g.input(f32(2, S, WIDTH), "x"), g.input(f32(2, S, WIDTH), "y"), g.input(f32(1, S, 1), "z")]
    mask = g.input(boolean(S, 1), "m")

    def weight(*shape: int) -> Value:
        return g.constant(rng.standard_normal(shape).astype(np.float32))

    def full() -> Value:
        return draw(st.sampled_from([v for v in pool if v.shape == (2, S, WIDTH)]))

    for _ in range(draw(st.integers(3, 18))):
        kind = draw(st.sampled_from(KINDS))
        x = draw(st.sampled_from(pool))
        new: Value
        if kind == "unary":
            new = draw(st.sampled_from(UNARY))()(x)
        elif kind == "binary":
            new = draw(st.sampled_from(BINARY))()(full(), x if len(x.shape) <= 3 and x.shape[-1] in (1, WIDTH) else full())
        elif kind == "number":
            a, c = x, number(g, draw)
            new = draw(st.sampled_from(BINARY))()(*((a, c) if draw(st.booleans()) else (c, a)))
        elif kind == "divide":
            new = o.Div()(x, g.constant(np.float32(draw(st.sampled_from([1.0, 2.0, 3.0, -8.0])))))
        elif kind == "matmul":
            new = o.Add()(o.Matmul(transpose_b=draw(st.booleans()))(full(), weight(WIDTH, WIDTH)), weight(WIDTH))
        elif kind == "norm":
            new = draw(st.sampled_from([o.LayerNorm(affine="weight"), o.RmsNorm(affine="weight")]))(full(), weight(WIDTH))
        elif kind == "softmax":
            new = o.Softmax(axis=draw(st.sampled_from([1, 2])))(full())
        elif kind == "reduce":
            new = draw(st.sampled_from([o.Mean, o.Max, o.Sum]))(axes=(2,), keepdims=True)(full())
        elif kind == "where":
            new = o.Where()(o.LogicalNot()(o.LogicalNot()(mask)), full(), number(g, draw))
        elif kind == "cast":
            new = o.Cast(dtype=dt.f32)(o.Cast(dtype=dt.f64)(x))
        elif kind == "attend":
            q, k, v = (o.Transpose(perm=(0, 2, 1, 3))(o.Reshape(shape=(2, S, 2, 2))(full())) for _ in range(3))
            p = o.Softmax(axis=3)(o.Mul()(o.Matmul()(q, o.Transpose(perm=(0, 1, 3, 2))(k)), g.constant(np.float32(0.5))))
            new = o.Reshape(shape=(2, S, WIDTH))(o.Transpose(perm=(0, 2, 1, 3))(o.Matmul()(p, v)))
        elif kind == "shape":
            flat = o.Reshape(shape=(2 * S, WIDTH))(full())
            done = [o.Relu()(flat), o.Matmul()(flat, weight(WIDTH, WIDTH)), o.Add()(flat, weight(WIDTH))]
            new = o.Reshape(shape=(2, S, WIDTH))(draw(st.sampled_from(done)))
        else:
            a = full()
            turned = o.Transpose(perm=(0, 2, 1))(a)
            halves = o.Split(axis=2, sizes=(1, 3))(a)
            new = draw(st.sampled_from([
                o.Transpose(perm=(0, 2, 1))(turned), o.Concat(axis=2)(halves[1], halves[0]), o.Expand(shape=(2, S, WIDTH))(halves[0]),
                o.Flip(axes=(2,))(o.Flip(axes=(2,))(a)), o.Slice(starts=(0, 0, 0), sizes=(2, S, 1), steps=(1, 1, 1))(a)]))
        pool.append(new)
    chosen = draw(st.lists(st.sampled_from(pool[3:]), min_size=1, max_size=4))
    g.outputs = [pool[-1], *chosen]
    return g


LIMIT = 2e-3
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def tame(g: Graph, n: int) -> bool:
    """Squares of squares leave the range in which f32 rounding can be compared, and norms of differences that cancel make results of
    rounding: inputs that are moved by a few units of the last place must move the results by a fraction of the limit."""
    inputs, rng = arrays_for(g, 1, S=n), np.random.default_rng(1)
    moved = [a * (1 + 3e-7 * rng.choice([-1, 1], a.shape)).astype(a.dtype) if a.dtype.kind == "f" else a for a in inputs]
    for a, b in zip(run(g, inputs), run(g, moved), strict=True):
        size = np.abs(a).max(initial=0)
        if not (size < 1e4 and np.abs(a - b).max(initial=0) <= 0.1 * LIMIT * max(1.0, size)):
            return False
    return True


@SETTINGS
@given(graphs(), st.sampled_from(["", *optional_passes()]), st.integers(1, 5))
def test_pipeline_keeps_meaning(g: Graph, disabled: str, n: int) -> None:
    assume(tame(g, n))
    result = optimised(g, [disabled] if disabled else [], seed=1, tolerance=LIMIT, S=n)
    assert [v.type for v in result.outputs] == [v.type for v in g.outputs]


@SETTINGS
@given(graphs())
def test_fusing_changes_no_bit(g: Graph) -> None:
    """Fusion only groups: the interpreter gives the very same bits."""
    inputs = arrays_for(g, 2, S=3)
    copy, _ = g.clone()
    fused = Fuse().run(copy, Log())
    for a, b in zip(run(fused, inputs), run(g, inputs), strict=True):
        np.testing.assert_array_equal(a, b)


@rule(P(o.Sub, X, Y))
def swapped_operands(x: Value, y: Value) -> Value | None:
    """Deliberately wrong."""
    out: Value = o.Add()(x, o.Neg()(o.Neg()(y)))
    return out


@rule(P(o.Transpose, P(o.Transpose, X, name="inner"), name="outer"))
def wrong_order(x: Value, inner: Any, outer: Any) -> Value | None:
    """Deliberately wrong: composes the permutations the other way round."""
    perm = tuple(outer.op.perm[p] for p in inner.op.perm)
    out: Value = o.Transpose(perm=perm)(x)
    return out if out.type == outer.types[0] else None


@pytest.mark.parametrize("mutant", [swapped_operands, wrong_order], ids=lambda r: r.name)
def test_a_wrong_rule_is_noticed(mutant: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    g = Graph()
    x, y = g.input(f32(3, 3, 3), "x"), g.input(f32(3, 3, 3), "y")
    turned = o.Transpose(perm=(0, 2, 1))(o.Transpose(perm=(1, 2, 0))(x))
    g.outputs = [o.Sub()(turned, y)]
    optimised(g)
    monkeypatch.setattr(Canonicalize, "rules", (mutant, *Canonicalize.rules))
    with pytest.raises(AssertionError, match="Not equal to tolerance"):
        optimised(g)


def test_unknown_and_required_passes() -> None:
    g = Graph()
    g.outputs = [o.Neg()(g.input(f32(2), "x"))]
    with pytest.raises(ConfigError, match="passes: 'fusee' cannot be disabled, the optional passes are canonicalize cse simplify-control"):
        run_pipeline(g, disable=["fusee"])
    with pytest.raises(ConfigError, match="'decompose' cannot be disabled"):
        run_pipeline(g, disable=["decompose"])
    with pytest.raises(ConfigError, match="'row-products' cannot be disabled"):
        run_pipeline(g, disable=["row-products"])  # a GPU's


def test_log_and_callback() -> None:
    g = Graph()
    x = g.input(f32(2), "x")
    g.outputs = [o.Neg()(o.Neg()(o.Neg()(x)))]
    log, seen = Log(keep_dumps=True), []
    run_pipeline(g, log=log, on_pass=lambda name, graph: seen.append((name, len(graph.nodes))))
    assert log.hits["canonicalize"]["double_negation"] == 1
    assert seen[:2] == [("lower-complex", 4), ("canonicalize", 2)]
    assert list(log.dumps)[1] == "01-canonicalize"
    assert "double_negation:1" in str(log)
    assert len(g.nodes) == 4  # the given graph stays
    assert_same(run(g, [np.ones(2, np.float32)]), [np.full(2, -1, np.float32)])


def test_gate_prologue_is_a_switch() -> None:
    g = Graph()
    a, b = g.input(f32(3, 4), "a"), g.input(f32(3, 4), "b")
    w = g.constant(np.ones((4, 2), np.float32))
    g.outputs = [o.Matmul()(o.Mul()(o.Silu()(a), b), w)]
    plain, gated = (Fuse(gate_prologue=on).run(g.clone()[0], Log()) for on in (False, True))
    assert names(plain) == ["silu+mul", "matmul"]
    assert names(gated) == ["silu+mul+matmul"]
    inputs = arrays_for(g)
    assert_same(run(gated, inputs), run(plain, inputs))
