"""Index forms are exact: evaluated at every index they give what the interpreter computes."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import evaluate, sym
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.ops.families import f32
from tilewright.passes.analyze import Forms, constant_form
from tilewright.passes.fold_constants import FoldTables
from tilewright.passes.fold_index import FoldIndex
from tilewright.passes.forms import Choice, Form, Linear

from .graphs import apply, assert_same, names

S = sym("S", 1, 12)


def evaluated(form: Form, shape: tuple[int, ...], env: dict[str, int]) -> Any:
    def line(f: Linear) -> Any:
        total: Any = np.full(shape, evaluate(f.const, env), np.int64)
        for k, c in enumerate(reversed(f.coeffs)):
            axis = len(shape) - 1 - k
            index = np.arange(shape[axis]).reshape((-1,) + (1,) * k)
            total = total + evaluate(c, env) * index
        return total

    if isinstance(form, Linear):
        return line(form)
    inside = np.ones(shape, bool)
    for b in form.bounds:
        inside &= line(b) >= 0
    return np.where(inside, form.yes, form.no)


@st.composite
def index_graphs(draw: st.DrawFn) -> Graph:
    """Random arithmetic, comparisons and views on iotas of a symbolic length."""
    g = Graph()
    g.input(f32(S), "x")
    rows = g.add(o.Iota(shape=(S, 1), axis=0, dtype=dt.i64, start=draw(st.integers(-2, 2)))).value
    cols = g.add(o.Iota(shape=(1, S), axis=1, dtype=dt.i64, step=draw(st.sampled_from([1, 2, -1])))).value
    ints: list[Value] = [rows, cols, g.add(o.DimValue(dim=S, dtype=dt.i64)).value, g.constant(np.int64(draw(st.integers(-3, 3))))]
    bools: list[Value] = []
    for _ in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["arith", "compare", "logic", "view", "where", "cast"]))
        if kind == "arith":
            ints.append(draw(st.sampled_from([o.Add, o.Sub, o.Mul, o.Maximum]))()(draw(st.sampled_from(ints)), draw(st.sampled_from(ints))))
        elif kind == "compare":
            op = draw(st.sampled_from([o.Less, o.LessEqual, o.Equal, o.NotEqual, o.Greater, o.GreaterEqual]))
            bools.append(op()(draw(st.sampled_from(ints)), draw(st.sampled_from(ints))))
        elif kind == "logic" and bools:
            bools.append(draw(st.sampled_from([o.LogicalAnd, o.LogicalOr]))()(draw(st.sampled_from(bools)), draw(st.sampled_from(bools))))
            bools.append(o.LogicalNot()(draw(st.sampled_from(bools))))
        elif kind == "where" and bools:
            a, b = (g.constant(np.float32(v)) for v in draw(st.sampled_from([(0.0, -np.inf), (1.0, 0.0), (2.0, 3.0)])))
            where = o.Where()(draw(st.sampled_from(bools)), a, b)
            bools.append(o.Equal()(where, a))
        elif kind == "cast" and bools:
            ints.append(o.Cast(dtype=dt.i64)(draw(st.sampled_from(bools))))
        elif kind == "view":
            pool = draw(st.sampled_from([ints, bools] if bools else [ints]))
            v = draw(st.sampled_from(pool))
            if len(v.shape) == 2:
                views = [o.Transpose(perm=(1, 0)), o.Expand(shape=(S, S)), o.Flip(axes=(0,)), o.Reshape(shape=(1, *v.shape)),
                         o.CumSum(axis=1)]
                chosen = draw(st.sampled_from(views[: 4 if v.dtype.is_bool else 5]))
                pool.append(chosen(v) if not isinstance(chosen, o.Expand) or all(d in (1, S) for d in v.shape) else v)
    g.outputs = [*ints, *bools]
    return g


@settings(max_examples=120, deadline=None)
@given(index_graphs(), st.integers(1, 5))
def test_forms_are_exact(g: Graph, n: int) -> None:
    forms = Forms(g)
    for v, want in zip(g.outputs, run(g, [np.zeros(n, np.float32)]), strict=True):
        form = forms.of(v)
        if form is not None:
            np.testing.assert_array_equal(evaluated(form, want.shape, {"S": n}).astype(want.dtype), want, err_msg=f"{v} {form}")


@settings(max_examples=60, deadline=None)
@given(index_graphs(), st.integers(1, 5))
def test_folding_keeps_values(g: Graph, n: int) -> None:
    x = [np.zeros(n, np.float32)]
    want = run(g, x)
    for folded in (apply(g, FoldIndex())[0], apply(g, FoldIndex(), FoldTables())[0]):
        assert_same(run(folded, x), want)


LOW = np.tril(np.ones((4, 4), bool))
CONSTANTS: list[tuple[Any, Form | None]] = [
    (np.arange(5), Linear(0, (1,))),
    (3 - 2 * np.arange(12).reshape(3, 4), Linear(3, (-8, -2))),
    (np.zeros((2, 3), np.int32), Linear(0, (0, 0))),
    (np.array([0, 1, 3]), None),
    (LOW, Choice((Linear(0, (1, -1)),), True, False)),
    (np.ones((2, 2), bool), Choice((), True, True)),
    (LOW[None, None].astype(np.float32), Choice((Linear(0, (0, 0, 1, -1)),), 1.0, 0.0)),
    (np.random.default_rng(0).standard_normal((4, 4)), None),
    (np.triu(np.full((3, 3), -np.inf), 1), Choice((Linear(0, (1, -1)),), 0.0, -np.inf)),
    (np.eye(3, dtype=bool)[[0, 2, 1]], None),
    (np.stack([LOW, np.ones((4, 4), bool)]), None),
    (np.float32(2.5), Choice((), 2.5, 2.5)),
    (np.zeros((0, 3)), None),
    (np.float32(np.nan), None),
    (LOW & ~np.tril(LOW, -2), Choice((Linear(0, (1, -1)), Linear(1, (-1, 1))), True, False)),
    (np.tril(np.ones((2, 5), bool), 3), Choice((Linear(3, (1, -1)),), True, False)),
    (np.array([[0.0, 1.0], [0.5, 1.0]]), None),
    (np.array([2**64 - 4, 2**64 - 3], np.uint64), None),
    (np.array([[2**64 - 1]], np.uint64), None),
    (np.array([-(2**63), 2**63 - 1, 0]), None),
    (np.array(-(2**63)), None),
]


@pytest.mark.parametrize("array, kind", CONSTANTS)
def test_constant_forms(array: Any, kind: Form | None) -> None:
    got = constant_form(np.asarray(array))
    assert got == kind


def test_narrow_integers_that_wrap_have_no_form() -> None:
    g = Graph()
    g.input(f32(S), "x")
    line = g.add(o.Iota(shape=(200,), axis=0, dtype=dt.u8)).value
    twice = o.Mul()(line, g.constant(np.uint8(2)))
    minus = o.Sub()(g.add(o.Iota(shape=(4,), axis=0, dtype=dt.u8)).value, g.constant(np.uint8(1)))
    g.outputs = [twice, minus]
    forms = Forms(g)
    assert forms.of(line) == Linear(0, (1,))
    assert forms.of(twice) is None
    assert forms.of(minus) is None


def test_gathers_of_positions_are_views() -> None:
    g = Graph()
    x = g.input(f32(1, S), "x")
    table = g.constant(np.random.default_rng(0).standard_normal((12, 3)).astype(np.float32), "table")
    ids = g.add(o.Iota(shape=(1, S), axis=1, dtype=dt.i64)).value
    zero = o.Sub()(ids, ids)
    pair = o.Index(axes=(0, 1))(x, g.add(o.Iota(shape=(1, 1, 1, 1), axis=0, dtype=dt.i64)).value, o.Reshape(shape=(1, 1, 1, S))(ids))
    g.outputs = [o.Gather()(table, ids), o.Gather()(table, zero), pair, o.GatherAlongAxis(axis=1)(x, ids)]
    folded, log = apply(g, FoldIndex())
    assert names(folded) == []
    assert log.hits["fold-index"]["gather_of_range"] == 2
    assert_same(run(folded, [np.ones((1, 5), np.float32)]), run(g, [np.ones((1, 5), np.float32)]))


WINDOWS: list[tuple[tuple[int, ...], int, list[Any]]] = [
    ((2, 3, 8, 9), 2, [np.arange(3)[:, None, None, None] + 2 * np.arange(3)[:, None, None], np.arange(2)[:, None] * 3 + np.arange(6)]),
    ((2, 136, 1), 1, [np.arange(9)[:, None, None] + np.arange(128)[:, None], np.zeros((1, 1), np.int64)]),
    ((20, 3), 0, [4 * np.arange(4)[:, None] + np.arange(8)]),  # frames of a signal
    ((3, 4), 0, [np.arange(3), np.arange(3)]),  # a diagonal
    ((3, 4), 0, [np.arange(3), 3 - np.arange(3)]),  # the other one: one step downwards, two along
]


@pytest.mark.parametrize("shape, first, ids", WINDOWS)
def test_windows_that_overlap_are_views(shape: tuple[int, ...], first: int, ids: list[Any]) -> None:
    g = Graph()
    x = g.input(f32(*shape), "x")
    known = [g.constant(np.asarray(i, np.int64)) for i in ids]
    g.outputs = [o.Index(axes=tuple(range(first, first + len(ids))))(x, *known)]
    g.outputs += [o.Gather(axis=first)(x, known[0])] if len(ids) == 1 else []
    folded, _ = apply(g, FoldIndex())
    assert names(folded) == [] and any(isinstance(n.op, o.Strided) for n in folded.nodes)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    assert_same(run(folded, [values]), [values[(slice(None),) * first + tuple(ids)]] * len(g.outputs))


@pytest.mark.parametrize("ids", [np.arange(5)[:, None] + np.arange(5), 8 - np.arange(3)[:, None] - np.arange(3),
                                 np.arange(3)[:, None] + np.arange(3) - 1])
def test_windows_that_leave_their_axis_or_go_down_stay(ids: Any) -> None:
    g = Graph()
    g.outputs = [o.Gather()(g.input(f32(8), "x"), g.constant(ids))]
    assert names(apply(g, FoldIndex())[0]) == ["gather"]


def test_a_gather_that_may_fail_stays() -> None:
    long = sym("S", 1, 13)  # one more than the table has rows
    g = Graph()
    g.input(f32(long), "x")
    table = g.constant(np.zeros((12, 3), np.float32), "table")
    g.outputs = [o.Gather()(table, g.add(o.Iota(shape=(long,), axis=0, dtype=dt.i64)).value)]
    assert names(apply(g, FoldIndex())[0]) == ["gather"]


def test_tables_are_computed_once_for_the_longest() -> None:
    g = Graph()
    g.input(f32(S), "x")
    place = o.Cast(dtype=dt.f32)(o.Reshape(shape=(S, 1))(g.add(o.Iota(shape=(S,), axis=0, dtype=dt.i64)).value))
    g.outputs = [o.Cos()(o.Mul()(place, g.constant(np.array([0.5, 0.25, 0.125], np.float32), "frequencies")))]
    folded, _ = apply(g, FoldIndex(), FoldTables())
    assert names(folded) == []
    assert folded.outputs[0].node.operands[0].shape == (12, 3)
    for n in (1, 5, 12):
        assert_same(run(folded, [np.zeros(n, np.float32)]), run(g, [np.zeros(n, np.float32)]))
    unfolded, _ = apply(g, FoldIndex(), FoldTables(limit=100))
    assert "cos" in names(unfolded)


def test_rows_of_many_edges_are_multiplied_once() -> None:
    """Scores of a graph's edges: two products of nodes instead of one of edges, where every node has two edges or more, results are
    shorter than rows, and sums are of 32 bits."""
    def edges(count: int, columns: int, dtype: dt.DType, *, joined: bool = True) -> tuple[Graph, list[str]]:
        g = Graph()
        h, w = g.input(TensorType(dtype, (6, 8)), "h"), g.input(TensorType(dtype, (columns, 16 if joined else 8)), "w")
        ends = [o.Gather(axis=0)(h, g.input(TensorType(dt.i64, (count,)), name)) for name in ("source", "target")[: 1 + joined]]
        g.outputs = [o.Matmul(transpose_b=True)(o.Concat(axis=1)(*ends) if joined else ends[0], w)]
        return g, names(apply(g, FoldIndex())[0])

    g, found = edges(12, 2, dt.f32)
    assert found == ["matmul", "gather", "matmul", "gather", "add"]
    assert edges(12, 2, dt.bf16, joined=False)[1] == ["matmul", "gather"]
    for stays in (edges(11, 2, dt.f32), edges(12, 5, dt.f32), edges(12, 2, dt.bf16)):
        assert stays[1] == ["gather", "gather", "concat", "matmul"]
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((2, 16)).astype(np.float32),
              rng.integers(0, 6, 12), rng.integers(0, 6, 12)]
    np.testing.assert_allclose(run(apply(g, FoldIndex())[0], values)[0], run(g, values)[0], rtol=1e-5, atol=1e-5)
