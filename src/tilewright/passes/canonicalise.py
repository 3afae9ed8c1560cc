"""One spelling for everything that later passes look for. The rules are in `view_rules` and `scalar_rules`."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph
from . import scalar_rules, view_rules
from .base import Log, Pass, apply_rules


@dataclass(frozen=True)
class Canonicalise(Pass):
    """Before: any valid graph.
    After: no view, cast or arithmetic op that changes nothing; no two neighbouring views of one kind; scalar constants have rank 0
    and stand on the right; leading axes are regrouped before a linear layer, not around each of its parts."""

    name: ClassVar[str] = "canonicalise"

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [*scalar_rules.RULES, *view_rules.RULES], log)
        return graph
