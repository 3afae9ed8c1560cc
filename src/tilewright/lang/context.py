"""What is being built: the builder that records lines, the kernel's evaluator, and errors that name the user's line."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.errors import CompileError
from ..tile.builder import KernelBuilder
from ..tile.ir import INDEX, Block, Instr, Operand, Type, Var

if TYPE_CHECKING:
    from .evaluate import Evaluator


@dataclass(frozen=True)
class Place:
    """A line of a user's kernel."""

    file: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class KernelError(CompileError):
    """A kernel that cannot be built: what is wrong, in which kernel, at which line."""


@dataclass(frozen=True)
class Access:
    """What is checked about an access: the view's name, and for each axis its start, the axis's size, and how many elements from there on
    must be inside (0: the start must only not be negative)."""

    name: str
    starts: tuple[Operand, ...]
    sizes: tuple[Operand, ...]
    inside: tuple[int, ...]


class Recorder(KernelBuilder):
    """A builder that knows which line of the user's kernel each instruction comes from."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.place: Place | None = None
        self.places: dict[Instr, Place] = {}
        self.accesses: dict[Instr, list[Access]] = {}
        self.prints: dict[Instr, tuple[str, list[Any]]] = {}

    def _emit(self, op: str, operands: Sequence[Operand], types: Sequence[Type] = (), blocks: Sequence[Block] = (),
              **attrs: Any) -> list[Var]:
        out = super()._emit(op, operands, types, blocks, **attrs)
        if self.place is not None:
            self.places[self.last] = self.place
        return out

    @property
    def last(self) -> Instr:
        return self._blocks[-1].body[-1]

    def lifted_index(self, value: int) -> Any:
        """A constant as a value that loops can carry."""
        return self._wrap(self._emit("index.add", [value, 0], [INDEX])[0])


class _Stack(threading.local):
    def __init__(self) -> None:
        self.evaluators: list[Evaluator] = []


stack = _Stack()


def current(name: str = "this function") -> Evaluator:
    """The kernel that is being built."""
    if not stack.evaluators:
        raise CompileError(f"lang: {name} works inside a function decorated with @tw.kernel only")
    return stack.evaluators[-1]
