"""The generated function gives what walking the expressions gives."""
from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.core.dims import Dim, evaluate, floordiv, maximum, minimum, sym
from tilewright.plan.values import DimTable, dim_source

A, B = sym("A", 1, 1000), sym("lambda_", 0, 50)  # a name that is nearly a keyword
SYMBOLS = [s for d in (A, B) for s in d.symbols]


def grow(children: st.SearchStrategy[Dim]) -> st.SearchStrategy[Dim]:
    pair = st.tuples(children, children)
    return st.one_of(
        pair.map(lambda p: p[0] + p[1]),
        pair.map(lambda p: p[0] * p[1]),
        pair.map(lambda p: p[0] - p[1]),
        pair.map(lambda p: maximum(*p)),
        pair.map(lambda p: minimum(*p)),
        st.tuples(children, st.integers(1, 9)).map(lambda p: floordiv(*p)),
        st.tuples(children, children).map(lambda p: floordiv(p[0], maximum(p[1], 1))),
    )


dims = st.recursive(st.one_of(st.integers(-5, 9), st.just(A), st.just(B)), grow, max_leaves=8)


@settings(max_examples=120, deadline=None)
@given(st.lists(dims, max_size=6), st.integers(1, 1000), st.integers(0, 50))
def test_all_values_at_once(wanted: list[Dim], a: int, b: int) -> None:
    env = {"A": a, "lambda_": b}
    table = DimTable(SYMBOLS)
    slots = [table.add(d) for d in wanted]
    values = table.compile()(env)
    assert [values[k] for k in slots] == [evaluate(d, env) for d in wanted]
    for d in wanted:
        assert eval(dim_source(d, {"A": "a", "lambda_": "b"}), {"max": max, "min": min, "a": a, "b": b}) == evaluate(d, env)


def test_equal_dims_share_a_slot_and_names_stay_out_of_the_source() -> None:
    table = DimTable(SYMBOLS)
    assert table.add(A * 4 + 1) == table.add(1 + 4 * A)
    table.add(floordiv(A + 3, 4) * B)
    assert "lambda_" not in table.source()
    assert table.source().count("//") == 1
