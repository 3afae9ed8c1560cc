"""Control flow as Python loops over PyTorch tensors; a body runs node by node through the oracles of its ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def run_body(graph: Any, tensors: Sequence[Any]) -> list[Any]:
    from tests.ops.oracle import ORACLES, to_torch

    env: dict[Any, Any] = dict(zip(graph.inputs, tensors, strict=True))
    for n in graph.nodes:
        if n.values[0] in env:
            continue
        if n.op.name == "constant":
            out: Any = to_torch(n.op.data.array)
        else:
            out = ORACLES[n.op.name](n.op.attrs(), *(env[v] for v in n.operands))
        env.update(zip(n.values, out if isinstance(out, tuple) else (out,), strict=True))
    return [env[v] for v in graph.outputs]


def scan(a: dict[str, Any], *x: Any) -> Any:
    n, m = a["carries"], a["xs"]
    carries, xs, captured = list(x[:n]), x[n : n + m], x[n + m :]
    rows: list[list[Any]] = [[] for _ in a["body"].outputs[n:]]
    steps = range(a["length"])
    for i in reversed(steps) if a.get("reverse", False) else steps:
        out = run_body(a["body"], [*carries, *(t[i] for t in xs), *captured])
        carries = out[:n]
        for row, y in zip(rows, out[n:], strict=True):
            row.append(y)
    ys = []
    for row, v in zip(rows, a["body"].outputs[n:], strict=True):
        row = row[::-1] if a.get("reverse", False) else row
        ys.append(torch.stack(row) if row else torch.empty((0, *v.shape), dtype=_dtype(v)))
    return (*carries, *ys) if len(carries) + len(ys) > 1 else (*carries, *ys)[0]


def _dtype(v: Any) -> Any:
    from tests.ops.oracle import DTYPES

    return DTYPES[v.dtype.name]


def cond(a: dict[str, Any], p: Any, *x: Any) -> Any:
    out = run_body(a["then"] if bool(p) else a["other"], x)
    return tuple(out) if len(out) > 1 else out[0]


def while_(a: dict[str, Any], *x: Any) -> Any:
    carries, captured, left = list(x[: a["carries"]]), x[a["carries"] :], a.get("max_iterations")
    while left != 0 and bool(run_body(a["test"], [*carries, *captured])[0]):
        carries = run_body(a["body"], [*carries, *captured])
        left = None if left is None else left - 1
    return tuple(carries) if len(carries) > 1 else carries[0]


CONTROL = {"scan": scan, "cond": cond, "while": while_}
