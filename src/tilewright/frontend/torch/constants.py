"""Parameters, buffers and lifted tensors as constants: large ones in torch's memory, a tied weight once.

A small one is copied, so that no later change of the module is seen (see `runtime/owners.py` for the large ones)."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Graph, Value
from ...ops.structure import ConstantData
from .tensors import storage_key, to_numpy

SHARED_BYTES = 256 << 10


class Constants:
    """The constants of one graph, by storage."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._made: dict[tuple[Any, ...], Value] = {}

    def value(self, tensor: Any, name: str) -> Value:
        key = storage_key(tensor, name)
        found = self._made.get(key)
        if found is None:
            array = to_numpy(tensor, name)
            data = ConstantData(array if array.nbytes >= SHARED_BYTES else array.copy(order="K"), name)
            found = self._made[key] = self._graph.constant(data, name=name.replace(".", "_"))  # `.` separates a node from its output index
        return found
