"""Where a graph holds an attention and its backward pass, the forward kernel keeps the logsumexp of its rows for the backward one."""
from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from ..core.exact import fields_key
from ..ir.graph import Graph, Node, Value, exchanged
from ..ops.attention.backward import AttentionBackward, AttentionSaved, fits
from ..ops.attention.forward import Attention
from .base import Log, Pass


class SaveLogSumExp(Pass):
    """Before: a graph with everything recognized. After: an `attention` whose backward pass follows it is an
    `attention_saved`, and the backward pass reads its result and logsumexp; a backward pass that needs them and has no attention before it
    gets one. Only where the target has kernels for both."""

    name: ClassVar[str] = "save-logsumexp"

    def __init__(self, target: Any = None) -> None:
        self.target = target

    def run(self, graph: Graph, log: Log) -> Graph:
        found: dict[tuple[Any, ...], Node] = {}
        pairs: dict[Node, Node | None] = {}  # backward pass -> attention, or none but one is needed
        for n in graph.nodes:
            if type(n.op) is Attention and fits(n.operands, self.target):
                found.setdefault((n.operands, _key(n.op)), n)
            elif isinstance(n.op, AttentionBackward) and not n.op.saved and fits(n.operands, self.target):
                forward = found.get((n.operands[:-1], _key(n.op.forward)))
                if forward is not None or not n.op.swept(n.operands, self.target):
                    pairs[n] = forward
        if not pairs:
            return graph
        sums, forwards = dict[Node, tuple[Value, ...]](), set(pairs.values())

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | Sequence[Value] | None:
            operands = [env[v] for v in n.operands]
            if n in forwards and isinstance(n.op, Attention):
                sums[n] = _saved(new, n.op, operands, n)
                return sums[n][0]
            if n not in pairs or not isinstance(n.op, AttentionBackward):
                return None
            before = pairs[n]
            saved = sums[before] if before is not None else _saved(new, n.op.forward, operands[:-1], n)
            op = AttentionBackward(**{**n.op.attrs(), "saved": True})
            log.hit("attention")
            return new.add(op, *operands[:-1], *saved, operands[-1], name=n.name, place=n.place).values

        return exchanged(graph, change)


def _saved(new: Graph, op: Attention, operands: list[Value], n: Node) -> tuple[Value, ...]:
    attrs = {k: v for k, v in op.attrs().items() if k != "hidden"}  # -inf, as in every attention with a backward pass
    return tuple(new.add(AttentionSaved(**attrs), *operands, name=n.name, place=n.place).values)


def _key(op: Attention) -> Hashable:
    """The backward pass of a row that sees nothing is zero, whatever the row gives."""
    return fields_key(dataclasses.replace(op, empty="zeros"))
