"""What `select` hands to the planner: buffers, and kernel launches over them, all sizes still symbolic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..core.dims import Dim
from ..tile.ir import Kernel

if TYPE_CHECKING:
    from ..ops.structure import ConstantData  # a loaded session runs without the op registry

BufferKind = Literal["input", "output", "const", "temp", "state"]  # a state is an input and an output at once: it may be written
Form = Literal["plain", "panels", "strips"]


@dataclass(eq=False)
class Buffer:
    """A storage root. Views of it are byte offsets in `Pointer`; the planner places only `temp` buffers."""

    name: str
    kind: BufferKind
    nbytes: Dim
    index: int = -1  # position among the session's inputs, outputs or constants

    def __repr__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(frozen=True)
class Pointer:
    """An argument word: the address of `buffer` plus `offset` bytes. `extent` bytes from there may be touched."""

    buffer: Buffer
    offset: Dim = 0
    extent: Dim = 0


@dataclass(frozen=True)
class Word:
    """An argument word: the value of a dim expression."""

    value: Dim


@dataclass(frozen=True)
class ErrorWord:
    """An argument word: the address of the instance's error block (4 words: code, launch, position, value)."""


Argument = Pointer | Word | ErrorWord


@dataclass(frozen=True)
class Variant:
    """Another way to run a launch, for shapes where `lo <= value <= hi`: same buffers, same bits, another kernel."""

    value: Dim
    lo: int
    hi: int
    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: Dim
    scratch: Dim = 0


@dataclass(eq=False)
class Launch:
    """One kernel over a grid of programs."""

    name: str
    kernel: Kernel
    arguments: tuple[Argument, ...]
    grid: Dim
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    inplace: tuple[tuple[Buffer, Buffer], ...] = ()  # (read, written): every program reads before it writes the same elements
    scratch: Dim = 0  # bytes per thread
    flops: Dim = 0
    bytes: Dim = 0
    serial: bool = False  # must run on one thread whatever its size
    note: str = ""  # shown in the report: an inserted copy and why, the template's choice
    variants: tuple[Variant, ...] = ()  # the first that fits the shape runs instead; chosen when the plan is instantiated

    @property
    def ways(self) -> list[Launch | Variant]:
        """All ways to run it: its own kernel, then its variants."""
        return [self, *self.variants]

    @property
    def kernels(self) -> list[Kernel]:
        return [w.kernel for w in self.ways]


@dataclass(frozen=True)
class Packed:
    """How a constant is re-laid out before the first run; tied users agree on one form.

    `panels`: a matrix [N, K] (or [K, N] when `transposed`) stored as [ceil(N/width), K, width], zero-filled.
    `strips`: a packed matrix in strips of `width` rows, see kernels/strips.py.
    """

    form: Form = "plain"
    width: int = 0
    transposed: bool = False
    format: str = ""  # of the packed matrix behind `strips`


@dataclass(eq=False)
class ConstBuffer:
    """A constant in the form the kernels read it."""

    data: ConstantData
    buffer: Buffer
    packed: Packed = Packed()


@dataclass
class Program:
    """Buffers and launches in execution order."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    constants: list[ConstBuffer] = field(default_factory=list)
    temps: list[Buffer] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
