"""Which result takes the memory of which donated argument."""
from __future__ import annotations

from collections.abc import Sequence

from ..ir.graph import Graph


def pair_donated(graph: Graph, inputs: Sequence[int]) -> dict[int, int]:
    """Each donated input with the first output of its type that no earlier one took: of several, the n-th with the n-th."""
    free = list(range(len(graph.outputs)))
    found: dict[int, int] = {}
    for i in inputs:
        k = next((k for k in free if graph.outputs[k].type == graph.inputs[i].type), None)
        if k is not None:
            found[i] = k
            free.remove(k)
    return found
