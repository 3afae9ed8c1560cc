"""Type rules over symbolic sizes: what is an error for a number is the same error when a call brings that number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.errors import ShapeError
from tilewright.core.pytree import flatten
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.index.indexing import GatherAlongAxis, Pad, TopK
from tilewright.ops.rows.pooling import MaxPool
from tilewright.transform.trace import Leaf, trace

N = sym("N", 0, 99)
HERE = Path(__file__).name


def traced(fn: Callable[..., Any], *types: TensorType) -> Graph:
    leaves = [Leaf(t) for t in types]
    return trace(fn, flatten((tuple(leaves), {}))[1], leaves).graph


EXTREMES: dict[str, Callable[[Any], Any]] = {
    "max": lambda x: x.max(axis=-1), "min": lambda x: x.min(axis=-1), "arg_max": lambda x: tw.argmax(x, axis=-1),
    "arg_min": lambda x: tw.argmin(x, axis=-1), "log_sum_exp": lambda x: tw.logsumexp(x, axis=-1)}
WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda f: f, "vmap": tw.vmap, "grad": lambda f: tw.grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: tw.jvp(f, (x,), (x,))[1], "scan": lambda f: lambda x: tw.scan(lambda c, r: (c, f(r)), x.sum(), x)[1],
    "cond": lambda f: lambda x: tw.cond(x.sum() > 1, f, lambda x: f(x), x)}


@pytest.mark.parametrize(("op", "way"), [(op, way) for op in EXTREMES for way in WAYS if "arg" not in op or way not in ("grad", "jvp")])
def test_an_extreme_over_an_axis_that_turns_out_empty(op: str, way: str) -> None:
    session = tw.compile(traced(WAYS[way](EXTREMES[op]), TensorType(dt.f32, (3, N))))
    match = rf"{op}: has no value over an empty axis, got ax[ei]s=\(?\d.* for .*N\] with N = 0 .*{HERE}:\d+\)"
    for _ in range(2):  # the session stays usable
        with pytest.raises(ShapeError, match=match):
            session(np.zeros((3, 0), np.float32))
        session(np.zeros((3, 5), np.float32))


def test_the_line_is_the_line_of_the_extreme() -> None:
    def f(x: Any) -> Any:
        y = x * 2
        return y.max(axis=1)

    line = f.__code__.co_firstlineno + 2
    with pytest.raises(ShapeError, match=rf"\({HERE}:{line}\)"):
        tw.compile(traced(f, TensorType(dt.f32, (3, N))))(np.zeros((3, 0), np.float32))


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_a_module_with_dynamic_shapes(target: str, tmp_path: Path) -> None:
    class M(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.amax(1), torch.softmax(x, 1)

    session = tw.compile(M(), (torch.randn(3, 5),), dynamic={"x": {1: tw.Dim("n", 0, 100)}}, target=target)
    sessions = [session]
    if target == "cpu":
        session.save(tmp_path / "m.tw")
        sessions.append(tw.load(tmp_path / "m.tw"))
    for s in sessions:
        x = torch.randn(3, 7)
        torch.testing.assert_close(s(x)[0], x.amax(1))
        with pytest.raises(ShapeError, match=rf"max: has no value over an empty axis, got axes=\(1,\) .* n = 0 \(.*{HERE}:\d+"):
            s(torch.randn(3, 0))


def test_what_has_a_value_over_nothing_is_no_error() -> None:
    """A softmax takes a maximum too, but of no rows or over an empty row it is empty, not wrong."""
    session = tw.compile(traced(lambda x: (tw.softmax(x, axis=1), x.sum(axis=1), x.max(axis=0)), TensorType(dt.f32, (3, N))))
    softmax, total, top = session(np.zeros((3, 0), np.float32))
    assert softmax.shape == (3, 0) and top.shape == (0,)
    np.testing.assert_array_equal(total, np.zeros(3))


X, IDS = TensorType(dt.f32, (2, N)), TensorType(dt.i64, (2, 4))
OTHERS: dict[str, tuple[Any, tuple[TensorType, ...], str, int]] = {
    "top_k": (TopK(k=3, axis=1), (X,), "k must be in 0..N, got k=3", 2),
    "gather_along_axis": (GatherAlongAxis(axis=0), (X, IDS), "ids must not be longer than x on axis 1, got x=N, ids=4", 3),
    "max_pool": (MaxPool(kernel=(3,), stride=(1,), padding=((0, 0),), dilation=(1,)), (X,), "the kernel does not fit the padded input", 2),
    "pad": (Pad(lo=(0, 0), hi=(0, 9 - N)), (X,), "lo and hi must not be negative; use slice", 10)}


@pytest.mark.parametrize("op", OTHERS)
def test_every_other_rule_over_symbols(op: str) -> None:
    made, types, rule, wrong = OTHERS[op]
    g = Graph("rule")
    g.outputs = list(g.add(made, *(g.input(t, n) for t, n in zip(types, "xi", strict=False)), place="model.py:7").values)
    session = tw.compile(g)
    ids = [np.zeros((2, 4), np.int64)][: len(types) - 1]
    with pytest.raises(ShapeError) as e:
        session(np.ones((2, wrong), np.float32), *ids)
    assert str(e.value).startswith(f"{op}: {rule}") and str(e.value).endswith(f" with N = {wrong} (model.py:7)")
    session(np.ones((2, 5), np.float32), *ids)
