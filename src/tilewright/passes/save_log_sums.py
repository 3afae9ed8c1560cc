"""Where a graph holds an attention and its reverse pass, the forward kernel keeps the log-sums of its rows for the reverse one."""
from __future__ import annotations

from typing import Any, ClassVar

from ..core.dims import at_least
from ..ir.graph import Graph, Node, Value
from ..ops.attention import Attention
from ..ops.attention_backward import AttentionBackward
from ..ops.attention_saved import AttentionSaved
from .base import Log, Pass

MATRIX_UNITS = "sm_90a"  # the chip with kernels for this in 16-bit floats
HEAD_SIZES = (64, 128)


def has_kernel(n: Node, target: Any) -> bool:
    """Whether the target has a kernel for this node as it is: a window's log-sums must have been saved."""
    return fits(n, target) and not (isinstance(n.op, AttentionBackward) and n.op.window is not None and not n.op.saved)


def fits(n: Node, target: Any) -> bool:
    """Whether the target's matrix units serve this attention with its log-sums, or its reverse pass given them."""
    if target is None or target.cpu != MATRIX_UNITS:
        return False
    q, k, v = n.operands[:3]
    plain = not (getattr(n.op, "has_mask", False) or getattr(n.op, "has_bias", False) or getattr(n.op, "with_scores", False))
    plain = plain and getattr(n.op, "softcap", None) is None
    sizes = q.shape[-1] in HEAD_SIZES and q.shape[-1] == v.shape[-1] and at_least(k.shape[2], 1)
    return plain and q.dtype.itemsize == 2 and q.dtype is k.dtype is v.dtype and bool(sizes)


class SaveLogSums(Pass):
    """Before: a graph with everything recognised. After: an `attention` whose reverse pass stands behind it is an
    `attention_saved`, and the reverse pass reads its result and log-sums. Only where the target has kernels for both."""

    name: ClassVar[str] = "save-log-sums"
    optional: ClassVar[bool] = False  # runs for one target only

    def __init__(self, target: Any = None) -> None:
        self.target = target

    def run(self, graph: Graph, log: Log) -> Graph:
        found: dict[tuple[Any, ...], Node] = {}
        pairs: dict[Node, Node] = {}  # reverse pass -> attention
        for n in graph.nodes:
            if type(n.op) is Attention and fits(n, self.target):
                found.setdefault((n.operands, _key(n.op)), n)
            elif isinstance(n.op, AttentionBackward) and not n.op.saved and fits(n, self.target):
                forward = found.get((n.operands[:3], _key(n.op.forward)))
                if forward is not None:
                    pairs[n] = forward
        if not pairs:
            return graph
        new, env, sums = Graph(graph.name), dict[Value, Value](), dict[Node, Value]()
        for n in graph.nodes:
            if n in pairs.values():
                made = new.add(AttentionSaved(**_attrs(n.op)), *(env[v] for v in n.operands), name=n.name, place=n.place)
                env[n.value], sums[n] = made.values
            elif n in pairs:
                forward = pairs[n]
                op = AttentionBackward(**{**n.op.attrs(), "saved": True})
                operands = (*n.operands[:3], forward.value)
                made = new.add(op, *(env[v] for v in operands), sums[forward], env[n.operands[-1]], name=n.name, place=n.place)
                env.update(zip(n.values, made.values, strict=True))
                log.hit("attention")
            else:
                graph.copy_into(new, env, [n])
        new.take_ends(graph, env)
        return new


def _attrs(op: Any) -> dict[str, Any]:
    return {name: getattr(op, name) for name in ("scale", "causal", "offset", "window")}


def _key(op: Attention) -> tuple[Any, ...]:
    return tuple(_attrs(op).values())
