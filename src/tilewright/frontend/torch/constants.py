"""Parameters, buffers and lifted tensors as constants: memory shared with torch, a tied weight once."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Graph, Value
from ...ops.structure import ConstantData
from .tensors import storage_key, to_numpy


class Constants:
    """The constants of one graph, by storage."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[Any, ...], Value] = {}

    def value(self, tensor: Any, name: str) -> Value:
        key = storage_key(tensor, name)
        found = self._made.get(key)
        if found is None:
            data = ConstantData(to_numpy(tensor, name), name)
            found = self._made[key] = self._graph.constant(data, name=name.replace(".", "_"))  # `.` separates a node from its output index
        return found
