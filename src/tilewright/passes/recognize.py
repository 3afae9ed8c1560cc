"""Finds composites that a model spells out in plain ops. The rules are in the `recognize_*` modules."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph
from ..ir.rewrite import Rule
from . import recognize_activations, recognize_attention, recognize_experts, recognize_norms, recognize_rope
from .base import Log, Pass, apply_rules
from .canonicalize import Canonicalize


@dataclass(frozen=True)
class Recognize(Pass):
    """Before: canonical graph, scalars absorbed into matmuls.
    After: GELU, SiLU, sigmoid, softmax, LayerNorm, RMSNorm, rope and attention (also with grouped heads) that were spelled out are single
    nodes; products with matrices that were looked up are grouped products. On a GPU, norms over channels that a convolution reads are norms
    of the last axis. Nothing is recognized whose inner values something else reads, where that would compute them twice."""

    name: ClassVar[str] = "recognize"
    pixels: bool = False  # values between convolutions lie channels last
    rules: ClassVar[tuple[Rule, ...]] = (*recognize_norms.RULES, *recognize_activations.RULES, *recognize_rope.RULES,
                                         *recognize_attention.RULES, *recognize_experts.RULES)

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [*self.rules, *Canonicalize.rules], log, self.pixels)  # what is made here leaves views and casts to merge
        return graph
