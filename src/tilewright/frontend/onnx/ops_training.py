"""Optimizer steps and gradients of ai.onnx.preview.training."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core.errors import UnsupportedError
from ...ir.graph import Graph, Value, subgraph
from ...ops import functions as F
from ...transform.vjp import dependents, pull_back
from .registry import Context
from .tables import TRAINING, op


def _groups(tensors: tuple[Value, ...], kinds: int) -> list[tuple[Value, ...]]:
    """X1 X2 … G1 G2 … V1 V2 … as (X1, G1, V1), (X2, G2, V2), …"""
    n = len(tensors) // kinds
    return [tuple(tensors[k * n + i] for k in range(kinds)) for i in range(n)]


def _results(rows: Sequence[tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(v for column in zip(*rows, strict=True) for v in column)


@op("Adagrad", domain=TRAINING)
def adagrad(c: Context, rate: Value, count: Value, *tensors: Value, decay_factor: float = 0.0, epsilon: float = 0.0,
            norm_coefficient: float = 0.0) -> Any:
    rows = []
    for x, g, h in _groups(tensors, 3):
        r = F.div(F.cast(rate, x.dtype), F.add(F.mul(F.cast(count, x.dtype), decay_factor), 1.0))
        g = F.add(F.mul(x, norm_coefficient), g)
        h = F.add(h, F.square(g))
        rows.append((F.sub(x, F.div(F.mul(r, g), F.add(F.sqrt(h), epsilon))), h))
    return _results(rows)


@op("Adam", domain=TRAINING)
def adam(c: Context, rate: Value, count: Value, *tensors: Value, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 0.0,
         norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0) -> Any:
    rows = []
    for x, g, v, h in _groups(tensors, 4):
        r, t = F.cast(rate, x.dtype), F.cast(count, x.dtype)
        g = F.add(F.mul(x, norm_coefficient), g)
        v = F.add(F.mul(v, alpha), F.mul(g, 1 - alpha))
        h = F.add(F.mul(h, beta), F.mul(F.square(g), 1 - beta))
        a, b = (F.sub(1.0, F.pow_(c.scalar(k, x.dtype), t)) for k in (alpha, beta))
        adjusted = F.where(F.greater(t, 0.0), F.div(F.mul(r, F.sqrt(b)), a), r)
        new = F.sub(x, F.div(F.mul(adjusted, v), F.add(F.sqrt(h), epsilon)))
        rows.append((F.mul(new, 1 - norm_coefficient_post), v, h))
    return _results(rows)


@op("Momentum", domain=TRAINING)
def momentum(c: Context, rate: Value, count: Value, *tensors: Value, alpha: float, beta: float, mode: str,
             norm_coefficient: float) -> Any:
    rows = []
    for x, g, v in _groups(tensors, 3):
        r = F.cast(rate, x.dtype)
        g = F.add(F.mul(x, norm_coefficient), g)
        first = F.equal(count, 0)
        share = F.where(first, c.scalar(1.0, x.dtype), c.scalar(beta, x.dtype))
        v = F.add(F.mul(v, alpha), F.mul(g, share))
        step = F.add(g, F.mul(v, alpha)) if mode == "nesterov" else v
        rows.append((F.sub(x, F.mul(r, step)), v))
    return _results(rows)


@op("Gradient", domain=TRAINING)
def gradient(c: Context, *inputs: Value, xs: Any, y: str, zs: Any = ()) -> Any:
    """Derivatives of a value of this graph with respect to earlier ones: the graph between them is differentiated."""
    scope = c.scope
    assert scope is not None
    names = c.node.frame.names
    wanted, target = [scope.get(names.get(n, n)) for n in xs], scope.get(names.get(y, y))
    if not isinstance(target, Value):
        raise UnsupportedError("Gradient of what is no tensor")
    between = dependents(c.graph, wanted)
    nodes = [n for n in subgraph([target]) if n in between and not any(v in wanted for v in n.values)]
    made = set(nodes)
    outer = list(dict.fromkeys([*wanted, *(v for n in nodes for v in n.operands if v.node not in made)]))
    body = Graph("between")
    env = {v: body.input(v.type, "x") for v in outer}
    c.graph.copy_into(body, env, nodes)
    body.outputs = [env[target]]
    found = pull_back(body, c.graph, outer, (c.full(target.shape, 1.0, target.dtype),), [v in wanted for v in outer])
    grads = dict(zip(outer, found, strict=True))
    return tuple(F.zeros(v) if grads[v] is None else grads[v] for v in wanted)
