"""Lazy Arrays: in `with tw.lazy():` elementwise functions build expressions, which run as one kernel when a value is read.

An expression is a tree of nodes over headers. The kernel of a tree is made once ever for its structure and dtypes, like that of a single
function, and serves every shape. Whatever is not elementwise reads its operands and so computes them.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from ..runtime import eager_host as H
from . import machine
from .arrays import Array, Node

Header = np.ndarray[Any, Any]
_served: dict[Any, bool] = {}  # whether there is a kernel, by function and dtypes
LIMIT = 48  # functions of one expression


class Expression(Node):
    """A function of headers and other expressions that has not run yet."""

    __slots__ = ("dtype", "header", "name", "operands", "shape", "size", "uses")

    def __init__(self, name: str, operands: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.operands, self.shape, self.dtype = name, operands, shape, dtype
        self.header: Header | None = None
        self.uses = 0
        self.size = 1
        for o in operands:
            if isinstance(o, Expression):
                o.uses += 1
                self.size += o.size

    def value(self) -> Header:
        if self.header is None:
            self.header = self._run()
            self.operands = []
        return self.header

    def _run(self) -> Header:
        leaves: list[Header] = []
        places: dict[int, int] = {}

        def text(node: Any, top: bool) -> str:
            if isinstance(node, Expression):
                if node.header is None and not top and node.uses > 1:
                    node.value()  # several expressions read it
                if node.header is None:
                    return f"{node.name}({','.join(text(o, False) for o in node.operands)})"
                node = node.header
            if id(node) not in places:
                places[id(node)] = len(leaves)
                leaves.append(node)
            return f"i{places[id(node)]}"

        found = text(self, True)
        while len(leaves) > H.MAX_OPERANDS:  # the largest part first
            part = max((o for o in self.operands if isinstance(o, Expression) and o.header is None), key=lambda o: o.size)
            part.value()
            leaves, places = [], {}
            found = text(self, True)
        made = machine.elementwise(found, leaves, self.dtype, shape=self.shape)
        if made is None:
            raise ArgumentError(f"lazy: no kernel for {found}; read the values of a part of it first")
        return made


def is_on() -> bool:
    native = machine.machine()
    return native is not None and bool(native.state[H.MODE])


def set_mode(mode: str) -> None:
    """"lazy": elementwise functions of Arrays wait until a value is read, and run together; "eager": they run at once."""
    if mode not in ("lazy", "eager"):
        raise ArgumentError(f"set_mode: the modes are 'lazy' and 'eager', got {mode!r}")
    from . import functions  # noqa: F401  the operators stand in front of a mode

    native = machine.machine()
    if native is not None:  # without native code there is nothing to fuse
        native.state[H.MODE] = int(mode == "lazy")


@contextmanager
def lazy() -> Iterator[None]:
    """`with tw.lazy():` elementwise functions of Arrays run together when a value is read, as one kernel without results in between."""
    before = is_on()
    set_mode("lazy")
    try:
        yield
    finally:
        set_mode("lazy" if before else "eager")


def operand(x: Any) -> Any:
    """An operand that stays an expression while it is one."""
    if type(x) is Array:
        try:
            return x._a
        except AttributeError:
            node = x._node
            return node if node.header is None else node.header
    return x


def recorded(name: str, operands: list[Any], dtype: np.dtype[Any]) -> Array | None:
    """The Array of an expression, or None where there is no kernel for it and it must run at once."""
    key = (name, dtype, *(o.dtype for o in operands))
    if key not in _served:
        _served[key] = bool(machine.kernel(name, tuple(dt.dtype(o.dtype) for o in operands), dt.dtype(dtype)))
    if not _served[key]:
        return None
    shape = operands[0].shape
    if any(o.shape != shape for o in operands):
        shape = np.broadcast_shapes(*(o.shape for o in operands))
    if len(shape) > H.AXES:
        return None
    for k, o in enumerate(operands):
        if isinstance(o, Expression) and o.size >= LIMIT:
            operands[k] = o.value()
    made: Array = object.__new__(Array)
    made._node = Expression(name, operands, shape, np.dtype(dtype))
    return made
