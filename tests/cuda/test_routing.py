"""Routing to experts and messages of graphs on the CUDA target: few launches, and PyTorch's results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import Emulated, graph
from tilewright.core.dtypes import bf16, f32, i32, i64
from tilewright.ir.graph import Value
from tilewright.ir.interp import run
from tilewright.kernels.sort.cuda.radix import RadixKernel
from tilewright.ops import functions as F
from tilewright.ops.index.from_end import below
from tilewright.runtime.cuda.report import describe_launches


def names(emulated: Emulated) -> list[str]:
    return [k.kernel.name.rsplit("_", 1)[0] if k.kernel is not None else k.name for k in emulated.program.launches]


@pytest.mark.parametrize(("tokens", "experts", "digits"), [(30, 5, 1), pytest.param(1100, 300, 2, marks=pytest.mark.slow)])
def test_a_sort_of_experts_looks_at_their_numbers_bits(tokens: int, experts: int, digits: int, rng: np.random.Generator) -> None:
    """Chosen experts in order, where each token went, and the ends of groups. Two launches order them, one has the ends."""

    def route(scores: Value) -> list[Value]:
        chosen = F.reshape(o.TopK(k=4, axis=1)(scores)[1], (4 * tokens,))
        values, order = o.Sort(axis=0)(chosen)
        back = o.Scatter()(F.full(scores.node.graph, (4 * tokens,), 0, i64), order, F.iota(scores.node.graph, (4 * tokens,), 0, i64))
        counts = F.scatter_add(F.full(scores.node.graph, (experts,), 0, i64), values, F.full(scores.node.graph, (4 * tokens,), 1, i64))
        return [values, order, back, counts, o.CumSum(axis=0)(F.cast(counts, i32))]

    scores = rng.permuted(np.tile(np.arange(experts, dtype=np.float32), (tokens, 1)), axis=1)
    emulated = Emulated(graph(route, (f32, scores.shape)))
    radix = [k.kernel for k in emulated.program.launches if isinstance(k.kernel, RadixKernel) and k.name.startswith("index_order")]
    assert sum(len(k.shifts) for k in radix if k.goal is not None) == digits
    assert not any("sort" in k.name for k in emulated.program.launches)
    values, order, back, counts, ends = emulated(scores)
    chosen = torch.from_numpy(scores).topk(4, -1).indices.reshape(-1)
    want, at = torch.sort(chosen, stable=True)
    assert np.array_equal(values, want) and np.array_equal(order, at) and np.array_equal(back, torch.argsort(at))
    assert np.array_equal(counts, torch.bincount(chosen, minlength=experts)) and np.array_equal(ends, np.cumsum(counts))


def test_a_permutation_is_inverted_by_writing_places(rng: np.random.Generator) -> None:
    """Rows written at one are read at its inverse; its own order is its inverse."""
    x, keys = rng.normal(size=(70, 9)).astype("f4"), rng.normal(size=70).astype("f4")
    order = np.argsort(keys)
    want = np.zeros_like(x)
    want[order] = x
    for fn, right in ((lambda x, keys: o.Scatter()(F.zeros(x), o.ArgSort(axis=0)(keys), x), want),
                      (lambda x, keys: o.ArgSort(axis=0, dtype=i32)(o.ArgSort(axis=0)(keys)), np.argsort(order))):
        emulated = Emulated(graph(fn, (f32, x.shape), (f32, keys.shape)))
        assert [n for n in names(emulated) if "scatter" in n] == ["scatter_set"]
        assert np.array_equal(emulated(x, keys)[0], right)


def test_many_groups_are_cut_into_blocks(rng: np.random.Generator) -> None:
    """More groups than a thread reads ends of at once, some of them empty."""
    x, w = rng.integers(-3, 4, (90, 8)).astype("f4"), rng.integers(-3, 4, (37, 8, 16)).astype("f4")
    ends = np.sort(rng.integers(0, 91, 37)).astype(np.int32)
    emulated = Emulated(graph(lambda *v: o.GroupedGemm()(*v), (f32, x.shape), (f32, w.shape), (i32, ends.shape)))
    own = np.searchsorted(ends, np.arange(90), side="right")
    want = np.stack([x[r] @ w[g] if g < 37 else np.zeros(16, "f4") for r, g in enumerate(own)])
    assert np.array_equal(emulated(x, w, ends)[0], want)


JOINS: dict[str, tuple[Any, Any]] = {"sum": (o.Sum, torch.sum), "mean": (o.Mean, torch.mean), "max": (o.Max, torch.amax)}


@pytest.mark.parametrize("join", JOINS)
@pytest.mark.parametrize(("dtype", "shape", "many"), [(bf16, (40, 72), (9, 4)), (f32, (40, 5), (3, 2, 11)), (f32, (40, 2, 3), (7, 3))])
def test_joined_neighbours_are_one_launch(join: str, dtype: Any, shape: tuple[int, ...], many: tuple[int, ...],
                                          rng: np.random.Generator) -> None:
    op, torch_op = JOINS[join]
    x, ids = rng.normal(size=shape).astype(dtype.np), rng.integers(0, 40, many)
    emulated = Emulated(graph(lambda t, i: op(axes=(len(many) - 1,))(F.gather(t, i, 0)), (dtype, shape), (i64, many)))
    assert names(emulated) == ["bag_sum"]
    want = torch_op(torch.from_numpy(x.astype("f4"))[torch.from_numpy(ids)], len(many) - 1).numpy()
    np.testing.assert_allclose(emulated(x, ids)[0].astype("f4"), want, rtol=8e-3 if dtype is bf16 else 1e-6, atol=1e-6)
    ids.reshape(-1)[7] = 40
    emulated(x, ids)
    assert emulated.errors.tolist()[::3] == [1, 40]


def test_relative_positions_are_known_places(rng: np.random.Generator) -> None:
    """Each row of scores reads its own places, which all heads share: whole rows of the result at a time."""
    places = np.clip(np.arange(12)[:, None] - np.arange(12) + 5, 0, 9)
    x = rng.normal(size=(3, 12, 10)).astype("f4")
    pick = lambda v: o.GatherAlongAxis(axis=2)(v, F.expand(v.node.graph.constant(places[None]), (3, 12, 12)))
    emulated = Emulated(graph(pick, (f32, x.shape)))
    assert names(emulated) == ["picked"]
    assert np.array_equal(emulated(x)[0], np.take_along_axis(x, np.broadcast_to(places, (3, 12, 12)), 2))


def test_what_integers_are_below() -> None:
    def check(x: Value) -> list[Value]:
        places = o.TopK(k=2, axis=1)(x)[1]
        known = [(places, 7), (F.reshape(places, (6,)), 7), (F.cast(places, i32), 7), (o.ArgSort(axis=0)(x), 3),
                 (o.Sort(axis=1)(places)[0], 7), (o.Sort(axis=1)(x)[1], 7), (F.minimum(places, 3), 4),
                 (F.iota(x.node.graph, (5,), 0, i64), 5), (o.Remainder()(places, F.scalar(x.node.graph, 4, i64)), 5),
                 (F.sub(places, 1), None), (o.Cast(dtype=i64)(x), None), (F.add(places, places), None)]
        assert [below(v) for v, _ in known] == [n for _, n in known]
        return [v for v, _ in known]

    g = graph(check, (f32, (3, 7)))
    for found, v in zip(run(g, [np.arange(21, dtype="f4").reshape(3, 7) % 5]), g.outputs, strict=True):
        assert below(v) is None or found.max() < below(v)


class Edges(nn.Module):
    """A message for each edge from the nodes at its ends, and from the edge itself."""

    def __init__(self, own: int) -> None:
        super().__init__()
        self.message = nn.Linear(2 * 24 + own, 16)

    def forward(self, x: Any, source: Any, target: Any, *edge: Any) -> Any:
        return torch.relu(self.message(torch.cat([x[source], *edge, x[target]], -1)))


@pytest.mark.parametrize("own", [0, 5])
def test_nodes_are_multiplied_before_edges_read_them(own: int) -> None:
    """A product of 20 nodes instead of one of 90 edges, whose columns come from 48 + own."""
    torch.manual_seed(0)
    args: tuple[Any, ...]
    model, args = Edges(own).eval(), (torch.randn(20, 24), torch.randint(0, 20, (90,)), torch.randint(0, 20, (90,)))
    args = (*args, torch.randn(90, own)) if own else args
    torch.testing.assert_close(tw.compile(model, args)(*args), model(*args), rtol=1e-5, atol=1e-5)
    session: Any = tw.compile(model, args, target="sm_90a")
    launches = describe_launches(session, {})[0]
    products = [x for x in launches if "mat" in x["kernel"]]
    assert products and all(x["flops"] <= 4 * 16 * max(20 * 24, 90 * own) for x in products)
