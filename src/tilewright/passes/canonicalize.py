"""One spelling for everything that later passes look for. The rules are in `view_rules` and `scalar_rules`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .. import ops as o
from ..ir.graph import Graph, Value
from ..ir.rewrite import Match, P, Rule, X, rule
from . import scalar_rules, view_rules
from .base import Log, Pass, apply_rules


@rule(P(o.MaxPool, X, name="pool"), changes="rounding")
def pool_with_indices(x: Value, pool: Any, m: Match) -> Value | None:
    """Maxima come from the pool that finds their places: of zeros of both signs the first, where a pool alone gives either."""
    for n in m.users(x):
        if isinstance(n.op, o.MaxPoolIndices) and m.readers(n.values[1]) and all(getattr(n.op, k) == v for k, v in vars(pool.op).items()):
            return n.values[0]
    return None


@dataclass(frozen=True)
class Canonicalize(Pass):
    """Before: any valid graph.
    After: no view, cast or arithmetic op that changes nothing; no two neighbouring views of one kind; scalar constants have rank 0
    and stand on the right; leading axes are regrouped before a linear layer, not around each of its parts;
    one max pool finds maxima and places;
    eigenvalues and singular values come without vectors that nobody reads."""

    name: ClassVar[str] = "canonicalize"
    rules: ClassVar[tuple[Rule, ...]] = (*scalar_rules.RULES, *view_rules.RULES, pool_with_indices)

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, self.rules, log)
        _values_alone(graph, log)
        return graph


def _values_alone(graph: Graph, log: Log) -> None:
    """The same values without vectors: in place, since nobody sees the outputs that go."""
    found = [n for n in graph.nodes if isinstance(n.op, (o.Eigh, o.Svd)) and n.op.vectors]
    if not found:
        return
    read = {v for n in graph.nodes for v in n.operands} | set(graph.outputs)
    for n in found:
        if not read.intersection(n.values[1:]):
            n.op, n.types, n.values = type(n.op)(vectors=False), n.types[:1], n.values[:1]  # type: ignore[call-arg]
            log.hit("values_alone")
