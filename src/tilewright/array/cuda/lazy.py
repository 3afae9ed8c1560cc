"""Lazy functions of Arrays on a GPU: an expression of elementwise functions that runs as one kernel."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from .. import lazy
from ..arrays import Array
from . import placed as P
from .elementwise import result_dtype, run
from .placed import Header, Placed


class DeviceExpression(lazy.Expression):
    """An expression whose leaves are `Placed`."""

    __slots__ = ()
    device = "cuda"

    def value(self) -> Header:
        raise P.refused(self)

    def _memory(self) -> None:
        return None

    def _compute(self, text: str, leaves: list[Any]) -> Any:
        made = run(text, leaves)
        if made is None:
            raise ArgumentError(f"lazy: no kernel for {text}; read the values of a part of it first")
        return made if made.shape == self.shape else Placed(np.broadcast_to(made.header, self.shape), made.stream)


def operand(x: Array) -> Any:
    """The expression of a lazy Array while it has not run, else its place."""
    node = x._node
    return node if isinstance(node, DeviceExpression) and node.header is None else P.of(x)


def recorded(name: str, operands: list[Any]) -> Array | None:
    """The Array of an expression; None where the function has no kernel of its own and must run at once."""
    types = tuple(dt.dtype(o.dtype) for o in operands)
    dtype = result_dtype(name, types)
    if dtype is None:
        return None
    shape = np.broadcast_shapes(*(o.shape for o in operands))
    for k, o in enumerate(operands):
        if isinstance(o, DeviceExpression) and (o.size >= lazy.LIMIT or o.is_wasteful()):
            operands[k] = o.result()
    made: Array = object.__new__(Array)
    made._node = DeviceExpression(name, operands, shape, dtype.np)
    return made
