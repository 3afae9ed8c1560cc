"""Finds composites that a model spells out in plain ops. The rules are in the `recognise_*` modules."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Graph
from ..ir.rewrite import Rule
from . import recognise_activations, recognise_attention, recognise_experts, recognise_norms, recognise_rope
from .base import Log, Pass, apply_rules
from .canonicalise import Canonicalise


@dataclass(frozen=True)
class Recognise(Pass):
    """Before: canonical graph, scalars absorbed into matmuls.
    After: GELU, SiLU, sigmoid, softmax, LayerNorm, RMSNorm, rope and attention (also with grouped heads) that were spelled out are single
    nodes; products with matrices that were looked up are grouped products. On a GPU, norms over channels that a convolution reads are norms
    of the last axis. Nothing is recognised whose inner values something else reads, where that would compute them twice."""

    name: ClassVar[str] = "recognise"
    pixels: bool = False  # values between convolutions lie channels last
    rules: ClassVar[tuple[Rule, ...]] = (*recognise_norms.RULES, *recognise_activations.RULES, *recognise_rope.RULES,
                                         *recognise_attention.RULES, *recognise_experts.RULES)

    def run(self, graph: Graph, log: Log) -> Graph:
        apply_rules(graph, [*self.rules, *Canonicalise.rules], log, self.pixels)  # what is made here leaves views and casts to merge
        return graph
