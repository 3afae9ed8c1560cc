"""The structural hash: blind to names and places, sharp for everything that changes the computation."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.graphs import small, symbolic
from tests.ir.structural_hash import structural_hash
from tilewright.core.dims import sym
from tilewright.core.errors import VerifyError
from tilewright.ir.graph import Graph
from tilewright.ops import Fused, Gelu, LeakyRelu
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.families import bf16, f16, f32


def test_equal_graphs_hash_equal_whatever_their_names() -> None:
    assert structural_hash(small()) == structural_hash(small("other"))
    assert structural_hash(symbolic()) == structural_hash(symbolic().clone()[0])
    placed = small()
    placed.nodes[-1].place, placed.name = "model.py:1", "renamed"
    assert structural_hash(placed) == structural_hash(small())


def with_data(value: float) -> Graph:
    g = Graph()
    g.outputs = [g.constant(np.full(20, value, np.float32))]
    return g


def swapped() -> Graph:
    return single(lambda g, v: F.sub(v[1], v[0]), f32(3), f32(3))


def one_range(hi: int) -> Graph:
    return single(lambda g, v: F.exp(v[0]), f32(sym("S", 1, hi)))


def region(scale: float) -> Graph:
    body = single(lambda g, v: F.mul(v[0], scale), f32(3))
    return single(lambda g, v: Fused(body=body)(*v), f32(3))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (small(), small(scale=3.0)),
        (with_data(1.0), with_data(2.0)),
        (swapped(), single(lambda g, v: F.sub(v[0], v[1]), f32(3), f32(3))),
        (one_range(8), one_range(9)),
        (region(1.0), region(2.0)),
        (single(lambda g, v: Gelu()(v[0]), f32(3)), single(lambda g, v: Gelu(approximate="tanh")(v[0]), f32(3))),
        (single(lambda g, v: F.exp(v[0]), f16(3)), single(lambda g, v: F.exp(v[0]), bf16(3))),
        (single(lambda g, v: LeakyRelu(slope=1.0)(v[0]), f32(3)), single(lambda g, v: LeakyRelu(slope=1)(v[0]), f32(3))),
        (single(lambda g, v: (v[0], v[1]), f32(3), f32(3)), single(lambda g, v: (v[1], v[0]), f32(3), f32(3))),
    ],
)
def test_what_computes_something_else_hashes_differently(a: Graph, b: Graph) -> None:
    assert structural_hash(a) != structural_hash(b)


def test_constants_of_one_content_hash_equal_and_types_count() -> None:
    assert structural_hash(with_data(1.0)) == structural_hash(with_data(1.0))
    g = Graph()
    g.outputs = [g.constant(np.full(20, 1.0, np.float32).view(np.int32))]
    assert structural_hash(g) != structural_hash(with_data(1.0))


def test_attributes_that_cannot_be_hashed_are_refused() -> None:
    g = single(lambda g, v: Gelu()(v[0]), f32(3))
    object.__setattr__(g.nodes[-1].op, "approximate", [1])
    with pytest.raises(VerifyError, match="cannot hash an attribute of type list"):
        structural_hash(g)
