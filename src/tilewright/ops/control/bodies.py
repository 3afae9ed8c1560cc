"""Transforms of the graph that an op holds, for the rules of ops with a body (checkpoint, scan, cond, while).

Ops stand below `transform/`, so the transforms are not imported here: `transform/` enters them when it is loaded, and a rule only ever
runs because a transform called it.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.dims import Dim
from ...ir.graph import Graph, Value
from ..base import MaybeValues


class Transforms(Protocol):
    """What `transform/` offers to rules. A body is never changed: results are new graphs, or nodes appended to the target."""

    def pull_back(self, body: Graph, target: Graph, inputs: Sequence[Value], cotangents: MaybeValues,
                  wanted: Sequence[bool]) -> MaybeValues:
        """Append the body's forward and backward pass to `target`: a cotangent for each wanted input (None where it is zero)."""

    def split_vjp(self, body: Graph, wanted: Sequence[bool]) -> tuple[Graph, Graph]:
        """(forward, backward). forward: inputs -> outputs, then residuals. backward: residuals, then a cotangent of each float output ->
        a cotangent of each wanted input (zeros where nothing depends on it)."""

    def jvp_graph(self, body: Graph, active: Sequence[bool]) -> tuple[Graph, tuple[bool, ...]]:
        """(graph, moved). graph: inputs, then a tangent of each active input -> outputs, then a tangent of each moved output."""

    def batch_graph(self, body: Graph, batched: Sequence[bool], size: Dim,
                    force: Sequence[bool] | None = None) -> tuple[Graph, tuple[bool, ...]]:
        """(graph, out_batched): the body with an axis of `size` in front of the batched inputs and of the batched outputs. `force` names
        outputs that must be batched."""


class Slot:
    """Holds the transforms once `transform/` is loaded."""

    transforms: Transforms


def transforms() -> Transforms:
    return Slot.transforms
