"""What the steps of a loop do alike is joined, and stays as it is where it would not be the same, or would not pay."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.core.dtypes import f32
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.types import TensorType
from tilewright.passes.base import Log
from tilewright.passes.join_steps import JoinSteps


def joined(graph: Graph) -> tuple[Graph, list[str]]:
    log = Log()
    with log.entered("join-steps"):
        after = JoinSteps().run(graph.clone()[0], log)
    return after, sorted(log.hits.get("join-steps", {}))


def names(graph: Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def padded(graph: Graph, at: list[tuple[int, int]], step: int = 1, value: float = 0.0) -> list[Value]:
    """Inputs of [2, n] in zeros [2, 8], from these places on."""
    made = []
    for i, (start, n) in enumerate(at):
        x = graph.input(TensorType(f32, (2, n)), f"x{i}")
        zeros = o.Expand(shape=(2, 8))(graph.constant(np.float32(value), "zero"))
        made.append(o.UpdateSlice(axis=1, start=start, step=step)(zeros, x))
    return made


def added(graph: Graph, values: list[Value]) -> None:
    total = values[0]
    for v in values[1:]:
        total = o.Add()(total, v)
    graph.outputs = [total]


PLACES = [([(0, 4), (4, 4)], 1), ([(5, 3), (0, 2)], 1), ([(0, 4), (1, 4)], 2), ([(2, 2), (0, 2), (1, 2)], 3), ([(0, 3), (0, 3), (4, 2)], 1)]


@pytest.mark.parametrize(("at", "step"), PLACES, ids=str)
def test_values_in_zeros_keep_every_bit(at: list[tuple[int, int]], step: int) -> None:
    graph = Graph()
    added(graph, padded(graph, at, step))
    after, hits = joined(graph)
    assert hits == ["join_pieces"]
    assert "update_slice" not in names(after)
    rng = fresh_rng()
    inputs = [rng.choice(np.array([0.0, -0.0, np.nan, np.inf, -np.inf, 1.0, -2.5], np.float32), v.shape) for v in graph.inputs]
    (want,), (got,) = run(graph, inputs), run(after, inputs)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got[~np.isnan(got)]), np.signbit(want[~np.isnan(want)]))


def test_what_meets_and_what_is_not_zero_stays() -> None:
    for at, value in (([(0, 4), (3, 4)], 0.0), ([(0, 4), (4, 4)], -0.0), ([(0, 4), (4, 4)], 1.0)):
        graph = Graph()
        added(graph, padded(graph, at, value=value))
        assert joined(graph)[1] == []


def test_products_and_slices_that_do_not_pay_stay() -> None:
    """Long rows, too few products, results with other readers, slices of which a half is used."""
    def products(k: int, count: int, read: bool) -> Graph:
        graph = Graph()
        x = [graph.input(TensorType(f32, (k, 16)), f"x{i}") for i in range(2 * count)]
        made = [o.Matmul(transpose_a=True)(*x[2 * i : 2 * i + 2]) for i in range(count)]
        added(graph, made)
        graph.outputs += made if read else []
        return graph

    assert joined(products(8, 4, False))[1] == ["join_products"]
    assert not any(joined(g)[1] for g in (products(12, 4, False), products(8, 3, False), products(8, 4, True)))
    graph = Graph()
    x, w = graph.input(TensorType(f32, (2, 9, 4)), "x"), graph.input(TensorType(f32, (4, 5)), "w")
    graph.outputs = [o.Matmul()(o.Slice(starts=(0, t, 0), sizes=(2, 1, 4), steps=(1, 1, 1))(x), w) for t in range(4)]
    assert joined(graph)[1] == []


class Loop(torch.nn.Module):
    """A cell over the steps of a sequence, as people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = torch.nn.GRUCell(8, 16), torch.nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.new_zeros(x.shape[0], 16)
        return torch.stack([self.out(h := self.cell(x[:, t], h)) for t in range(x.shape[1])], 1)


def test_the_gradients_of_a_loop_take_one_product_a_matrix() -> None:
    """And the launches of a step do not grow with the number of steps."""
    torch.manual_seed(3)
    net = Loop()
    launches: list[int] = []
    for steps in (6, 12):
        x = torch.randn(5, steps, 8, requires_grad=True)
        fast: Any = torch.compile(net, backend="tilewright")
        for call in (fast, net):
            net.zero_grad()
            x.grad = None
            call(x).square().sum().backward()
            grads = [x.grad, *(p.grad for p in net.parameters())]
            if call is fast:
                got = [g.clone() for g in grads if g is not None]
        for a, b in zip(got, grads, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-5)
        found = tw.explain(net, x, train=True)
        launches.append(next(p.kernels for p in found.parts if p.kind == "backward"))
    assert launches[1] < 2 * launches[0]
