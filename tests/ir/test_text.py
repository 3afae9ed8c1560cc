"""Printer and parser: every op sample and whole graphs read back as they were printed; bad text is a ParseError that says where."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.ir.graphs import small, symbolic
from tests.ir.structural_hash import structural_hash
from tests.ops.checks import Case, cases
from tilewright.core.errors import ParseError, ShapeError, VerifyError
from tilewright.ir.graph import Graph
from tilewright.ir.interp import run
from tilewright.ir.parse import parse
from tilewright.ir.text import constants_of, to_text
from tilewright.ops import Gelu
from tilewright.ops.families import f32

GOLDEN = """\
graph symbolic[S=1..64, T=0..](%x, %"layer.0/y") {
  %x: f32[2,2*S+1] = input
  %"layer.0/y": f32[T,3] = input
  %split: (f32[2,S], f32[2,S+1]) = split{axis=1, sizes=(S, S+1)}(%x) at "model.py:4 \\"quoted\\""
  %iota: i64[S] = iota{shape=(S,), axis=0, dtype=i64, start=((T)//(2))}
  %dim_value: i64[] = dim_value{dim=S*T, dtype=i64}
  %cast: f32[] = cast{dtype=f32}(%dim_value)
  %fused: f32[2,S] = fused{body=graph graph(%x0) {
    %x0: f32[2,S] = input
    %c: f32[] = constant{data=f32[](0.1)}
    %add: f32[2,S] = add(%x0, %c)
    %tanh: f32[2,S] = tanh(%add)
    return %tanh
  }}(%split.0)
  %cast_1: f32[S] = cast{dtype=f32}(%iota)
  %mul: f32[S] = mul(%cast_1, %cast)
  %neg: f32[T,3] = neg(%"layer.0/y")
  return %fused, %mul, %split.1, %neg
}
"""


@pytest.mark.parametrize("case", [c for c in cases() if not c.values[0].env or c.values[0].env.get("N") != 0])
def test_every_sample_reads_back(case: Case) -> None:
    g = case.graph()
    text = to_text(g)
    again = parse(text, constants_of(g))
    assert to_text(again) == text
    assert structural_hash(again) == structural_hash(g)
    assert [n.op.attrs().keys() for n in again.nodes] == [n.op.attrs().keys() for n in g.nodes]


def test_golden() -> None:
    assert to_text(symbolic()) == GOLDEN
    assert to_text(parse(GOLDEN)) == GOLDEN


def test_a_parsed_graph_computes_the_same() -> None:
    rng = fresh_rng()
    x, y = rng.normal(size=(2, 7)).astype(np.float32), rng.normal(size=(5, 3)).astype(np.float32)
    for a, b in zip(run(symbolic(), [x, y]), run(parse(GOLDEN), [x, y]), strict=True):
        np.testing.assert_array_equal(a, b)


def test_big_constants_are_named_and_shared() -> None:
    g = Graph()
    data = np.arange(9, dtype=np.float32)
    first, second = g.constant(data, "w"), g.constant(data + 1, "w")
    again = g.constant(first.op.attrs()["data"], "w")
    g.outputs = [first, second, again]
    named = constants_of(g)
    assert list(named) == ["w", "w_1"]
    read = parse(to_text(g), {k: v.array for k, v in named.items()})
    datas = [v.op.attrs()["data"] for v in read.outputs]
    assert datas[0] is datas[2]
    np.testing.assert_array_equal(datas[1].array, data + 1)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64", "i8", "i64", "u64", "bool"])
def test_small_constants_are_exact(dtype: str) -> None:
    from tilewright.core.dtypes import dtype as find

    d = find(dtype)
    values: list[float] = [0, 1, 1] if d.is_bool else [0, 127, 3] if not d.is_float else [0.1, -np.inf, 1e-5, np.nan, -0.0, 1 / 3]
    g = Graph()
    array = np.array(values).astype(d.np)
    g.outputs = [g.constant(array)]
    (out,) = run(parse(to_text(g)), [])
    assert out.dtype == d.np
    assert out.tobytes() == array.tobytes()


HEAD = "graph g(%x) {\n  %x: f32[3] = input\n"


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "expected 'graph', got 'the end' \\(line 1\\)"),
        (HEAD + "  %y: f32[3] = expo(%x)\n return %y }", r"there is no op 'expo' \(line 3\)"),
        (HEAD + "  %y: f32[4] = exp(%x)\n return %y }", r"%y is declared f32\[4\], but exp gives f32\[3\] \(line 3\)"),
        (HEAD + "  %y: f32[3] = exp(%z)\n return %y }", "%z is not defined before it is used"),
        (HEAD + "  return %y }", "%y is not defined"),
        (HEAD + "  %x: f32[3] = exp(%x)\n return %x }", r"%x is defined twice \(line 3\)"),
        (HEAD + "  %y: f32[3] = exp{k=1}(%x)\n return %y }", r"exp cannot take the attributes \(k\)"),
        (HEAD + "  %y: f33[3] = exp(%x)\n return %y }", "'f33' is not a dtype"),
        (HEAD + "  %y: f32[Q] = exp(%x)\n return %y }", "'Q' is not a known symbol or value"),
        (HEAD + "  %c: f32[9] = constant{data=@c}\n return %c }", "no data was given for constant @c"),
        (HEAD + "  return %x } tail", "expected the end of the text, got 'tail'"),
        (HEAD + "  ;", r"cannot read ';' \(line 3\)"),
    ],
)
def test_bad_text_says_what_and_where(text: str, match: str) -> None:
    with pytest.raises(ParseError, match=match):
        parse(text)


def test_an_op_that_rejects_its_operands_says_so() -> None:
    with pytest.raises(ShapeError, match="add: shapes do not broadcast"):
        parse(HEAD + "  %y: f32[4] = input\n  %z: f32[4] = add(%x, %y)\n return %z }")


def test_attributes_that_text_cannot_hold_are_refused() -> None:
    g = Graph()
    g.outputs = [Gelu(approximate="none")(g.input(f32(3)))]
    object.__setattr__(g.outputs[0].op, "approximate", {"a": 1})
    with pytest.raises(VerifyError, match="cannot print an attribute of type dict"):
        to_text(g)


def test_text_of_a_graph_does_not_depend_on_when_it_is_printed() -> None:
    assert to_text(small()) == to_text(small())
