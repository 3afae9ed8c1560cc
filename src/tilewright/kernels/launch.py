"""What `select` hands to the planner: buffers, and kernel launches over them, all sizes still symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ..core.dims import Dim
from ..core.records import dataclass, field

if TYPE_CHECKING:
    from ..ops.structure import ConstantData  # a loaded session runs without the op registry
    from ..tile.ir import Kernel, Var

# A state is an input and an output at once: it may be written. A window is another buffer's memory, seen from inside a loop.
BufferKind = Literal["input", "output", "const", "temp", "state", "window"]
CARRIED = "copy: a loop overwrites its carries"  # the note of a launch that fills a loop's first carry
CLAIMED = 1 << 62  # in an error block's first word: somebody fills it
Form = Literal["plain", "panels", "quantized panels", "fragments", "taps", "folded", "filters", "words"]


@dataclass(eq=False)
class Buffer:
    """A storage root. Views of it are byte offsets in `Pointer`; the planner places only `temp` buffers."""

    name: str
    kind: BufferKind
    nbytes: Dim
    index: int = -1  # position among the session's inputs, outputs or constants

    def __repr__(self) -> str:
        return f"{self.kind}:{self.name}"


@dataclass(eq=False, repr=False)
class Sliding(Buffer):
    """`base` from `offset` on, moved by `step` bytes in every iteration of the loop: one slice of a stacked value."""

    base: Buffer = field(kw_only=True)
    offset: Dim = field(kw_only=True)
    step: Dim = field(kw_only=True)
    loop: Loop = field(kw_only=True)


@dataclass(eq=False, repr=False)
class Alternating(Buffer):
    """`even` in the loop's iterations 0, 2, 4, ..., `odd` in the others: a carried value whose next value lies elsewhere. After the loop
    it goes by the number of iterations. Both are the same buffer where the next value is computed in place."""

    even: Buffer = field(kw_only=True)
    odd: Buffer = field(kw_only=True)
    loop: Loop = field(kw_only=True)


def roots(buffer: Buffer) -> tuple[Buffer, ...]:
    """The buffers that hold the memory of a window, or the buffer itself."""
    if isinstance(buffer, Sliding):
        return roots(buffer.base)
    if isinstance(buffer, Alternating):
        return tuple(dict.fromkeys((*roots(buffer.even), *roots(buffer.odd))))
    return (buffer,)


@dataclass(frozen=True)
class Pointer:
    """An argument word: the address of `buffer` plus `offset` bytes. `extent` bytes from there may be touched, with 0 any of the buffer."""

    buffer: Buffer
    offset: Dim = 0
    extent: Dim = 0


@dataclass(frozen=True)
class Word:
    """An argument word: the value of a dim expression."""

    value: Dim


@dataclass(frozen=True)
class ErrorWord:
    """An argument word: the address of the instance's error block (4 words: code, site, position, value). The code may have the bit
    CLAIMED beside it. Launches that run side by side have a block each, and as many sites each."""

    turn: int = 0


@dataclass(frozen=True)
class Native:
    """An argument word: the address of a native function by name (`core/natives.py`), looked up where the program is loaded."""

    name: str


Argument = Pointer | Word | ErrorWord | Native


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


@dataclass(frozen=True)
class Site:
    """What a fault in the error block is reported as: what the user wrote and where, and how many elements an index may name."""

    op: str
    place: str = ""
    size: Dim | None = None


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
    streams: bool = False  # programs share nothing and lie along memory in order: may be walked from the end (runtime/native/walker.py)
    shared: bool = False  # programs are long: a thread that is done takes over some of another's (runtime/native/walker.py)
    variants: tuple[Variant, ...] = ()  # the first that fits the shape runs instead; chosen when the plan is instantiated
    sites: tuple[Site, ...] = ()  # places of a kernel that reports errors: word 1 of the block is the number of one of them
    apart: bool = False  # no other launch writes what it writes of a buffer: parts of a concatenation
    on_host: bool = False  # it has no code: the host computes it for a GPU (kernels/cuda/host.py)
    long_rows: tuple[Var, ...] = ()  # views that a kernel which streams writes in long rows (kernels/past_caches.py)

    @property
    def ways(self) -> list[Launch | Variant]:
        """All ways to run it: its own kernel, then its variants."""
        return [self, *self.variants]

    @property
    def fails(self) -> bool:
        """It may find bad data and fill an error block."""
        return any(isinstance(a, ErrorWord) for way in self.ways for a in way.arguments)

    @property
    def error_blocks(self) -> int:
        return 1 + max((a.turn for a in self.arguments if isinstance(a, ErrorWord)), default=-1)

    @property
    def kernels(self) -> list[Kernel]:
        return [w.kernel for w in self.ways]


@dataclass(eq=False, repr=False)
class Loop:
    """Runs `body` again and again: `count` times (None: any number), and only while `predicate`, which `test` computes, is true."""

    name: str
    depth: int  # loops around this one
    count: Dim | None
    body: list[Item] = field(default_factory=list)
    test: list[Item] = field(default_factory=list)
    predicate: Pointer | None = None
    carried: list[Buffer] = field(default_factory=list)  # temps that hold something from one iteration to the next


@dataclass(eq=False, repr=False)
class Branch:
    """Runs `then` where the byte at `predicate` is not 0, else `other`."""

    name: str
    predicate: Pointer
    then: list[Item] = field(default_factory=list)
    other: list[Item] = field(default_factory=list)


Item = Launch | Loop | Branch


def parts(item: Loop | Branch) -> tuple[list[Item], list[Item]]:
    return (item.test, item.body) if isinstance(item, Loop) else (item.then, item.other)


def touched(item: Item) -> list[Buffer]:
    """Every buffer that an item reads or writes, predicates included."""
    if isinstance(item, Launch):
        return [*item.reads, *item.writes]
    own = [item.predicate.buffer] if item.predicate is not None else []
    return own + [b for part in parts(item) for x in part for b in touched(x)]


def flatten(block: list[Item]) -> list[Launch]:
    """The launches of a block in order, those of inner blocks included."""
    out: list[Launch] = []
    for item in block:
        if isinstance(item, Launch):
            out.append(item)
        else:
            for part in parts(item):
                out += flatten(part)
    return out


@dataclass(frozen=True)
class Packed:
    """How a constant is re-laid out before the first run; tied users agree on one form.

    `panels`: a matrix [N, K] (or [K, N] when `transposed`) stored as [ceil(N/width), K, width], zero-filled; those of a stack of matrices
    [G, N, K] follow one another.
    `panels`: a packed matrix in panels of `width` rows, see kernels/quant/panels.py. `fragments`: the same for GPUs, see
    kernels/quant/cuda/fragments.py.
    `taps`: weights [O, C, taps…] stored as [O, taps…, C] ([taps…, C, O] when `transposed`), C filled up with zeros to a multiple of
    `width`.
    `folded`: weights [O, C, (D,) R, S] of few channels stored as [O, ceil(R/width), S filled up to a multiple of `groups`, width,
    words/width for C D], zero-filled.
    `filters`: weights [O, C/groups, taps…] (`transposed`: [C, O/groups, taps…], with reversed taps) stored as panels
    [groups, ceil(O/groups/width), K…, width], zero-filled; K is the window's axes in the order of kernels/conv/direct.py. With `words` > 1
    channels are innermost in K and that many of them stand side by side: [groups, panels, taps…, ceil(C/words), width, words].
    `words`: a matrix as panels whose K is interleaved: [ceil(N/width), ceil(K/words), width, words], zero-filled.
    """

    form: Form = "plain"
    width: int = 0
    transposed: bool = False
    format: str = ""  # the format of the packed matrix behind `panels`
    groups: int = 1  # groups of the convolution behind `filters`, taps of a step behind `folded`
    words: int = 1  # elements of K that stand side by side


FEW = 8  # channels of a group below which the taps of a convolution, not its channels, are innermost in K


def filter_sizes(shape: Sequence[Dim], packed: Packed) -> tuple[Dim, Dim, tuple[int, ...]]:
    """Sizes of weights in the form `filters`: channels and results of a group, and the axes of [channels, taps…] in the order of K."""
    first, second, *taps = shape
    channels, results = (first // packed.groups, second) if packed.transposed else (second, first // packed.groups)
    return channels, results, window_order(channels, len(taps), packed.words)


def window_order(channels: Dim, taps: int, words: int = 1) -> tuple[int, ...]:
    """Axes of a window [channels, taps…] in the order in which convolutions walk it. Channels in words are innermost."""
    few = isinstance(channels, int) and channels < FEW and words == 1
    return tuple(range(taps + 1)) if few else (*range(1, taps + 1), 0)


@dataclass(eq=False)
class ConstBuffer:
    """A constant in the form the kernels read it."""

    data: ConstantData
    buffer: Buffer
    packed: Packed = Packed()


@dataclass
class Program:
    """Buffers and launches in execution order. `block` says how loops and branches hold the launches; empty: a straight line."""

    inputs: list[Buffer] = field(default_factory=list)
    outputs: list[Buffer] = field(default_factory=list)
    constants: list[ConstBuffer] = field(default_factory=list)
    temps: list[Buffer] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    block: list[Item] = field(default_factory=list)
