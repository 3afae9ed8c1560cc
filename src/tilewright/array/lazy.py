"""Lazy Arrays: in `with tw.lazy():` elementwise functions build expressions, which run as one kernel when a value is read.

An expression is a tree of nodes over headers. The kernel of a tree is made once ever for its structure and dtypes, like that of a single
function, and serves every shape. Whatever is not elementwise reads its operands and so computes them.
"""
from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from ..runtime import eager_host as H
from . import machine
from .arrays import Array, Node, has_own_memory

Header = np.ndarray[Any, Any]
_served: dict[Any, bool] = {}  # whether there is a kernel, by function and dtypes
LIMIT = 48  # functions of one expression
HELD = 1 << 16  # bytes of an operand from which it matters who holds it
_refs = sys.getrefcount


class Expression(Node):
    """A function of headers and other expressions that has not run yet."""

    __slots__ = ("dtype", "header", "name", "operands", "shape", "size", "uses")

    def __init__(self, name: str, operands: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.operands, self.shape, self.dtype = name, operands, shape, dtype
        self.header: Any = None
        self.uses = 0
        self.size = 1
        for o in operands:
            if isinstance(o, Expression):
                o.uses += 1
                self.size += o.size

    def value(self) -> Header:
        found: Header = self.result()
        return found

    def result(self) -> Any:
        """What `header` holds from the first call on: a header, or where the result lies on a GPU."""
        if self.header is None:
            self.header = self._run()
            self.operands = []
        return self.header

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def _unheld(self, more: int = 0) -> list[Header]:
        """Large headers among the leaves that only this expression holds, and `more` lists of the caller's."""
        found: dict[int, Header] = {}
        counts: dict[int, int] = {}
        todo: list[Expression] = [self]
        while todo:
            for o in todo.pop().operands:
                if not isinstance(o, Expression):
                    found[id(o)], counts[id(o)] = o, counts.get(id(o), 0) + 1
                elif o.header is None:
                    todo.append(o)
        del o
        return [found[k] for k, n in counts.items() if found[k].nbytes >= HELD and _refs(found[k]) == n + 2 + more]

    def _memory(self) -> Header | None:
        """The memory of one of the leaves that nobody will read again, where the result fits it."""
        fit = [a for a in self._unheld(1) if a.shape == self.shape and a.dtype == self.dtype and a.flags.c_contiguous and has_own_memory(a)]
        return fit[0] if fit else None

    def is_wasteful(self) -> bool:
        """Whether it keeps more memory alive than its result would take."""
        return self.nbytes >= HELD and sum(a.nbytes for a in self._unheld()) > self.nbytes

    def _run(self) -> Any:
        while True:
            leaves: list[Any] = []
            found = self._text(leaves, {}, top=True)
            if len(leaves) <= H.MAX_OPERANDS:
                break
            k = max((k for k, o in enumerate(self.operands) if isinstance(o, Expression)), key=lambda k: self.operands[k].size)
            leaves.clear()
            self.operands[k] = self.operands[k].result()  # the largest part first
        return self._compute(found, leaves)

    def _compute(self, found: str, leaves: list[Any]) -> Any:
        made = machine.elementwise(found, leaves, self.dtype, self._memory(), self.shape)
        if made is None:  # the compiler made something else of it, x - x for example: its parts one by one, each of which has a kernel
            leaves = [o.result() if isinstance(o, Expression) else o for o in self.operands]
            made = machine.elementwise(self.name, leaves, self.dtype, shape=self.shape)
        if made is None:
            raise ArgumentError(f"lazy: no kernel for {found}; read the values of a part of it first")
        return made

    def _text(self, leaves: list[Header], places: dict[int, int], *, top: bool = False) -> str:
        """The expression in functions and operands i0, i1, ..., which are appended to `leaves`."""
        if self.header is None and not top and self.uses > 1:
            self.result()  # several expressions read it
        if self.header is not None:
            return _placed(self.header, leaves, places)
        inner = (o._text(leaves, places) if isinstance(o, Expression) else _placed(o, leaves, places) for o in self.operands)
        return f"{self.name}({','.join(inner)})"


def _placed(header: Header, leaves: list[Header], places: dict[int, int]) -> str:
    if id(header) not in places:
        places[id(header)] = len(leaves)
        leaves.append(header)
    return f"i{places[id(header)]}"


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
            return node if type(node) is Expression and node.header is None else node.value()
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
        if isinstance(o, Expression) and (o.size >= LIMIT or o.is_wasteful()):
            operands[k] = o.result()
    made: Array = object.__new__(Array)
    made._node = Expression(name, operands, shape, np.dtype(dtype))
    return made
