"""A structural hash: equal for graphs that compute the same thing in the same order, whatever their names and places.

It sees ops, attributes, types, symbols with their ranges, operands, the order of nodes, inputs and outputs, and the bytes of constants.
"""
from __future__ import annotations

from typing import Any

from tilewright.core.dims import Expr
from tilewright.core.dtypes import DType
from tilewright.core.errors import VerifyError
from tilewright.core.hashing import blake2b
from tilewright.ir.graph import Graph, Value
from tilewright.ir.text import all_symbols
from tilewright.ir.types import TensorType


def structural_hash(graph: Graph) -> str:
    """32 hex digits."""
    hasher = blake2b(digest_size=16)
    for s in all_symbols(graph):
        hasher.update(f"dim {s.name} {s.lo} {s.hi}\n".encode())
    numbers: dict[Value, str] = {}
    for position, n in enumerate(graph.nodes):
        attrs = ",".join(f"{k}={_encode(v)}" for k, v in n.op.attrs().items())
        operands = ",".join(numbers[v] for v in n.operands)
        hasher.update(f"{n.op.name}{{{attrs}}}({operands}):{';'.join(map(str, n.types))}\n".encode())
        numbers.update({v: f"{position}.{v.index}" for v in n.values})
    ends = (",".join(numbers[v] for v in values) for values in (graph.inputs, graph.outputs))
    hasher.update("->".join(ends).encode())
    if graph.donated or graph.call_symbols:
        hasher.update(f"donated {sorted(graph.donated.items())} call {[s.name for s in graph.call_symbols]}".encode())
    return hasher.hexdigest()


def _encode(value: Any) -> str:
    """Text that differs for different attribute values, their Python types included."""
    if value is None or isinstance(value, (bool, int, Expr, DType, TensorType, str)):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, float):
        return f"float {value.hex()}"
    if isinstance(value, tuple):
        return f"({','.join(map(_encode, value))})"
    if isinstance(value, Graph):
        return f"graph {structural_hash(value)}"
    if hasattr(value, "digest"):
        return f"data {value.digest}"
    raise VerifyError(f"graph hash: cannot hash an attribute of type {type(value).__name__}: {value!r}")
