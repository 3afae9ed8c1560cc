"""The verifier accepts sound graphs and names what is wrong with each kind of broken one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ir.graphs import small, symbolic
from tests.ops.checks import Case, cases
from tilewright.core.dims import Expr, sym
from tilewright.core.dtypes import i64
from tilewright.core.errors import VerifyError
from tilewright.ir.graph import Graph
from tilewright.ir.verify import verify
from tilewright.ops import Fused, Reshape, Transpose
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.families import f32, f64


@pytest.mark.parametrize("graph", [small(), symbolic(), Graph("empty")])
def test_sound_graphs_pass(graph: Graph) -> None:
    verify(graph)


@pytest.mark.parametrize("case", [c for c in cases() if not c.values[0].env])
def test_samples_pass(case: Case) -> None:
    verify(case.graph())


def wrong_order(g: Graph) -> None:
    g.nodes[-1], g.nodes[-2] = g.nodes[-2], g.nodes[-1]


def wrong_type(g: Graph) -> None:
    g.nodes[-1].types = (f32(3, 6),)


def wrong_name(g: Graph) -> None:
    g.nodes[-1].name = "x"


def foreign_output(g: Graph) -> None:
    g.outputs = small().outputs


def foreign_operand(g: Graph) -> None:
    g.nodes[-1].operands = small().inputs[:1]  # type: ignore[assignment]


def dropped_operand(g: Graph) -> None:
    g.nodes[-2].operands = g.nodes[-2].operands[:1]


def rejected_operands(g: Graph) -> None:
    g.nodes[0].types = (f64(3, 5),)
    object.__setattr__(g.nodes[0].op, "type", f64(3, 5))


def foreign_node(g: Graph) -> None:
    g.nodes[-1].graph = small()


def lost_input(g: Graph) -> None:
    g.inputs = []


def input_that_is_none(g: Graph) -> None:
    g.inputs = [g.inputs[0], g.nodes[-1].value]


def odd_attribute(g: Graph) -> None:
    object.__setattr__(g.nodes[0].op, "type", np.float32(3))


def stolen_values(g: Graph) -> None:
    g.nodes[-1].values = small().nodes[-1].values


BREAKS: list[tuple[Callable[[Graph], None], str]] = [
    (wrong_order, "operand %add of %relu is not defined before it"),
    (wrong_type, r"%relu has type f32\[3,6\], but relu gives f32\[3,5\]"),
    (wrong_name, "the name %x is used twice"),
    (foreign_output, "output %relu is not a value of this graph"),
    (foreign_operand, "operand %x of %relu belongs to another graph"),
    (dropped_operand, "%add = add takes 2 operands, got 1"),
    (rejected_operands, "%mul = mul rejects its operands: operands must have one dtype"),
    (foreign_node, "%relu says it belongs to graph 'small'"),
    (lost_input, "the input ops and the list of inputs differ: %x against none"),
    (input_that_is_none, "input %relu is made by relu, not by input"),
    (odd_attribute, "attribute type of %x has the Python type float32"),
    (stolen_values, "the values of %relu are not its own"),
]


@pytest.mark.parametrize(("damage", "match"), BREAKS, ids=[b.__name__ for b, _ in BREAKS])
def test_a_broken_graph_is_named(damage: Callable[[Graph], None], match: str) -> None:
    g = small()
    damage(g)
    with pytest.raises(VerifyError, match=f"^small: .*({match})"):
        verify(g)


def test_a_region_has_one_anchor() -> None:
    body = single(lambda g, v: F.sum_(F.matmul(v[0], v[1]), (0,)), f32(2, 3), f32(3, 4))
    g = single(lambda g, v: Fused(body=body)(*v), f32(2, 3), f32(3, 4))
    with pytest.raises(VerifyError, match="a region has at most one anchor, got %matmul = matmul, %sum = sum"):
        verify(g)


def test_a_region_holds_no_region() -> None:
    inner = single(lambda g, v: F.exp(v[0]), f32(2))
    outer = single(lambda g, v: Fused(body=inner)(*v), f32(2))
    with pytest.raises(VerifyError, match="a region inside a region"):
        verify(single(lambda g, v: Fused(body=outer)(*v), f32(2)))


def test_a_body_is_verified_too() -> None:
    body = single(lambda g, v: F.exp(v[0]), f32(2))
    g = single(lambda g, v: Fused(body=body)(*v), f32(2))
    body.nodes[-1].op = Transpose(perm=(0, 1))
    with pytest.raises(VerifyError, match=r"^graph/%fused: %exp = transpose rejects its operands"):
        verify(g)


def test_a_symbol_has_one_range() -> None:
    g = Graph("g")
    g.outputs = [g.input(f32(sym("S", 1, 8)), "a"), g.input(f32(sym("S", 1, 9)), "b")]
    with pytest.raises(VerifyError, match=r"dim S has two ranges, 1\.\.8 and 1\.\.9"):
        verify(g)


def test_a_symbol_comes_from_an_input() -> None:
    g = Graph("g")
    g.outputs = [F.iota(g, (sym("S", 1, 8),), 0, i64)]
    with pytest.raises(VerifyError, match="dim S is used but appears in no input's shape"):
        verify(g)


def test_a_constant_expression_is_no_dim() -> None:
    g = single(lambda g, v: Reshape(shape=(6,))(v[0]), f32(2, 3))
    object.__setattr__(g.nodes[-1].op, "shape", (Expr((((), 6),)),))
    with pytest.raises(VerifyError, match="is a constant expression 6"):
        verify(g)
