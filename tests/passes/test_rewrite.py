"""The rewrite engine: matching, fixpoints, and what it says about rules that misbehave."""
from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tilewright import ops as o
from tilewright.core.errors import CompileError
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.rewrite import Match, P, Such, Var, X, Y, rewrite, rule, sort_nodes
from tilewright.ir.verify import verify
from tilewright.ops.families import f32


@rule(P(o.Neg, P(o.Neg, X)))
def double_negation(x: Value) -> Value:
    return x


def chain(n: int) -> Graph:
    g = Graph()
    x = g.input(f32(3), "x")
    for _ in range(n):
        x = o.Neg()(x)
    g.outputs = [x]
    return g


@pytest.mark.parametrize("n", [0, 1, 2, 7, 8])
def test_fixpoint(n: int) -> None:
    g, hits = chain(n), Counter[str]()
    assert rewrite(g, [double_negation], hits) == (n > 1)
    verify(g)
    assert len(g.nodes) == 1 + n % 2
    assert hits["double_negation"] == n // 2
    line = np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(run(g, [line])[0], line * (-1) ** n)


def test_about_linear() -> None:
    def seconds(n: int) -> float:
        best = 9.0
        for _ in range(3):
            g = chain(n)
            start = time.process_time()  # not the clock: a busy machine is no failure
            rewrite(g, [double_negation])
            best = min(best, time.process_time() - start)
        return best

    assert seconds(4000) < 25 * seconds(500)  # eight times the nodes


def test_commutative_operands_match_in_either_order() -> None:
    @rule(P(o.Add, P(o.Exp, X), Y))
    def found(x: Value, y: Value) -> Value:
        out: Value = o.Sub()(x, y)
        return out

    for swap in (False, True):
        g = Graph()
        a, b = g.input(f32(2), "a"), g.input(f32(2), "b")
        e = o.Exp()(a)
        g.outputs = [o.Add()(b, e) if swap else o.Add()(e, b)]
        assert rewrite(g, [found])
        assert [n.op.name for n in g.nodes] == ["input", "input", "sub"]
        assert g.nodes[-1].operands == (a, b)


def test_same_variable_is_the_same_value() -> None:
    @rule(P(o.Mul, X, P(o.Sigmoid, X)))
    def silu(x: Value) -> Value:
        out: Value = o.Silu()(x)
        return out

    g = Graph()
    a, b = g.input(f32(2), "a"), g.input(f32(2), "b")
    g.outputs = [o.Mul()(a, o.Sigmoid()(b))]
    assert not rewrite(g, [silu])
    g.outputs = [o.Mul()(o.Sigmoid()(b), b)]
    assert rewrite(g, [silu])


def test_once_and_readers() -> None:
    @rule(P(o.Neg, P(o.Exp, X, once=True)))
    def alone(x: Value, m: Match) -> Value:
        assert m.readers(m.root.operands[0]) == 1
        return x

    g = Graph()
    x = g.input(f32(2), "x")
    e = o.Exp()(x)
    g.outputs = [o.Neg()(e), e]
    assert not rewrite(g, [alone])
    g.outputs = [g.outputs[0]]
    assert rewrite(g, [alone])


def test_refused_rule_leaves_nothing() -> None:
    @rule(P(o.Neg, X))
    def never(x: Value) -> None:
        o.Exp()(x)

    g = chain(2)
    assert not rewrite(g, [never])
    assert [n.op.name for n in g.nodes] == ["input", "neg", "neg"]


def test_endless_rewrite_names_its_rules() -> None:
    @rule(P(o.Add, X, Y))
    def one_way(x: Value, y: Value) -> Value:
        out: Value = o.Sub()(x, o.Neg()(y))
        return out

    @rule(P(o.Sub, X, P(o.Neg, Y)))
    def and_back(x: Value, y: Value) -> Value:
        out: Value = o.Add()(x, y)
        return out

    g = Graph()
    x = g.input(f32(2), "x")
    g.outputs = [o.Add()(x, x)]
    with pytest.raises(CompileError, match=r"rewrite: no fixpoint after \d+ applications, the last were (and_back one_way ?)+;"):
        rewrite(g, [one_way, and_back])


def test_another_type_or_an_op_that_cannot_be_made_is_no_match() -> None:
    @rule(P(o.Sum, X))
    def wrong(x: Value) -> Value:
        return x

    @rule(P(o.Sum, X))
    def refused(x: Value) -> Value:
        out: Value = o.Matmul()(o.Exp()(x), x)
        return out

    g = Graph()
    g.outputs = [o.Sum(axes=(0,))(g.input(f32(2), "x"))]
    assert not rewrite(g, [wrong, refused])
    assert [n.op.name for n in g.nodes] == ["input", "sum"]


def test_several_outputs() -> None:
    @rule(P(o.Split, X, name="split"))
    def as_slices(x: Value, split: Any) -> list[Value]:
        a, b = split.op.sizes
        return [o.Slice(starts=(0,), sizes=(a,), steps=(1,))(x), o.Slice(starts=(a,), sizes=(b,), steps=(1,))(x)]

    g = Graph()
    a, b = o.Split(axis=0, sizes=(2, 3))(g.input(f32(5), "x"))
    g.outputs = [o.Exp()(b), a]
    assert rewrite(g, [as_slices])
    verify(g)
    x = np.arange(5, dtype=np.float32)
    got = run(g, [x])
    np.testing.assert_array_equal(got[1], x[:2])
    np.testing.assert_allclose(got[0], np.exp(x[2:]), rtol=1e-6)


def test_such_pattern() -> None:
    wide = Such("v", lambda v: v.shape[0] > 3)

    @rule(P(o.Neg, wide))
    def only_wide(v: Value) -> Value:
        return v

    g = Graph()
    g.outputs = [o.Neg()(g.input(f32(5), "a")), o.Neg()(g.input(f32(2), "b"))]
    hits = Counter[str]()
    assert rewrite(g, [only_wide], hits)
    assert hits["only_wide"] == 1
    assert Var("x") == X


def test_sort_detects_a_cycle() -> None:
    g = Graph()
    x = g.input(f32(2), "x")
    a = o.Exp()(x)
    b = o.Neg()(a)
    a.node.operands = (b,)
    g.outputs = [b]
    with pytest.raises(CompileError, match="depends on its own result"):
        sort_nodes(g)
