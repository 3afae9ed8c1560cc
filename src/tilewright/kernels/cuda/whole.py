"""Small loops and branches as one kernel: one block goes through all their launches and steps, with a barrier between two launches.

A launch of its own takes some microseconds, and a predicate that the host reads several times that; a block that has little to do needs
neither. What counts as little is an estimate (`BYTES`, `FLOPS` of a launch), more where the host would wait otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.dims import Dim
from ...tile.ir import Kernel, ViewType, alloc_bytes
from ..launch import (
    CARRIED,
    Alternating,
    Argument,
    Branch,
    Buffer,
    Item,
    Launch,
    Loop,
    Pointer,
    Sliding,
    Word,
    flatten,
    parts,
    roots,
    touched,
)
from .kernel import WARP, BlockKernel

BYTES, FLOPS = 96 << 10, 128 << 10  # bytes and flops of one launch
WAITED = 4  # times as much where a predicate would be read by the host
THREADS = 512  # threads of the block, at most
WORDS = 512  # words of arguments: 4 KB are what a kernel may have
SHARED = 48 << 10  # bytes of shared memory that a kernel may declare
REDUCED = 4 << 10  # those of the bytes that sums over the warps of a program take


@dataclass(frozen=True)
class Fixed:
    """An argument word."""

    word: int


@dataclass(frozen=True)
class Slid:
    """An address that goes forward with a loop's steps, by as many bytes as a word says."""

    base: Place
    step: int
    loop: int


@dataclass(frozen=True)
class Picked:
    """One address in even steps of a loop, another in odd ones."""

    even: Place
    odd: Place
    loop: int


Place = Fixed | Slid | Picked


@dataclass(frozen=True)
class Call:
    """All programs of a kernel."""

    kernel: BlockKernel
    words: tuple[Place, ...]
    grid: int  # the word that has the number of programs


@dataclass(frozen=True)
class Repeat:
    loop: int
    count: int | None  # the word that has it
    predicate: Place | None
    test: tuple[Piece, ...]
    body: tuple[Piece, ...]


@dataclass(frozen=True)
class Choose:
    predicate: Place
    then: tuple[Piece, ...]
    other: tuple[Piece, ...]


Piece = Call | Repeat | Choose


def scratch_bytes(kernel: BlockKernel) -> int:
    """Shared memory of one program."""
    if kernel.threads == 1:
        return 0
    made = [(i, i.results[0].type) for i in kernel.walk() if i.op == "alloc"]
    return sum(alloc_bytes(i) for i, type_ in made if isinstance(type_, ViewType) and type_.space == "shared")


def together(kernel: BlockKernel, block: int) -> int:
    """Programs that a block of threads runs at a time: those of several warps one by one, others as threads and shared memory allow."""
    if kernel.threads > WARP:
        return 1
    each = scratch_bytes(kernel)
    return min(block // kernel.threads, SHARED // each) if each else block // kernel.threads


@dataclass(eq=False)
class WholeKernel(Kernel):
    """Loops and branches over the programs of other kernels, on one block. Arguments are words only."""

    pieces: tuple[Piece, ...] = ()
    items: tuple[Item, ...] = ()  # what it was made of, for reports
    words: int = 0
    block: int = WARP


@dataclass(eq=False)
class _Maker:
    arguments: dict[Argument, int] = field(default_factory=dict)
    loops: dict[Loop, int] = field(default_factory=dict)

    def word(self, a: Argument) -> int:
        return self.arguments.setdefault(a, len(self.arguments))

    def place(self, a: Argument) -> Place:
        b = a.buffer if isinstance(a, Pointer) else None
        if isinstance(a, Pointer) and isinstance(b, Sliding) and b.loop in self.loops:
            return Slid(self.place(Pointer(b.base, a.offset + b.offset, a.extent)), self.word(Word(b.step)), self.loops[b.loop])
        if isinstance(a, Pointer) and isinstance(b, Alternating) and b.loop in self.loops:
            even, odd = (self.place(Pointer(x, a.offset, a.extent)) for x in (b.even, b.odd))
            return even if b.even is b.odd else Picked(even, odd, self.loops[b.loop])
        return Fixed(self.word(a))

    def pieces(self, items: Sequence[Item]) -> tuple[Piece, ...]:
        return tuple(self._piece(x) for x in items)

    def _piece(self, item: Item) -> Piece:
        if isinstance(item, Launch):
            assert isinstance(item.kernel, BlockKernel)
            return Call(item.kernel, tuple(self.place(a) for a in item.arguments), self.word(Word(item.grid)))
        if isinstance(item, Branch):
            chosen = self.place(item.predicate)
            return Choose(chosen, self.pieces(item.then), self.pieces(item.other))
        number = self.loops.setdefault(item, len(self.loops))
        count = None if item.count is None else self.word(Word(item.count))
        test = self.pieces(item.test)
        predicate = None if item.predicate is None else self.place(item.predicate)
        return Repeat(number, count, predicate, test, self.pieces(item.body))


def small_loops(block: Sequence[Item]) -> list[Item]:
    """A program in which loops and branches that are small are launches; of the others, those inside."""
    return _one_block(block, set(), any(x.fails for x in flatten(list(block))))


def _one_block(block: Sequence[Item], written: set[Buffer], fails: bool) -> list[Item]:
    """`written` has been before; `fails`: some kernel may find bad data, after which a loop may have no end. The host ends it then."""
    out: list[Item] = []
    rest = list(block)
    while rest:
        item = rest.pop(0)
        items: list[Item] = [item]
        while rest and isinstance(rest[0], Launch) and isinstance(item, Loop) and _sees(rest[0], item):  # the last carries' place
            items.append(rest.pop(0))
        if isinstance(item, Launch):
            out.append(item)
        elif not _fits(items) or (fails and _endless(items)):
            written |= set(item.carried) if isinstance(item, Loop) else set()
            for part in parts(item):
                part[:] = _one_block(part, written, fails)
            out += items
        else:
            while out and isinstance(first := out[-1], Launch) and _sets_up(first, items) and _fits([first, *items]):  # the first carries
                items.insert(0, out.pop())
                written -= set(first.writes)
            out.append(_launch(item.name, items, written))
        written |= {r for x in flatten(items) for b in x.writes for r in roots(b)}
    return out


def _sees(launch: Launch, loop: Loop) -> bool:
    def follows(b: Buffer) -> bool:
        if isinstance(b, Sliding):
            return b.loop is loop or follows(b.base)
        return isinstance(b, Alternating) and (b.loop is loop or follows(b.even) or follows(b.odd))

    return any(isinstance(a, Pointer) and follows(a.buffer) for a in launch.arguments)


def _sets_up(launch: Launch, items: Sequence[Item]) -> bool:
    """A copy of a first carry."""
    used = {r for x in items for b in touched(x) for r in roots(b)}
    return launch.note == CARRIED and all(b in used for b in launch.writes)


def _waits(items: Sequence[Item]) -> bool:
    return any(not isinstance(x, Launch) and (x.predicate is not None or any(_waits(p) for p in parts(x))) for x in items)


def _endless(items: Sequence[Item]) -> bool:
    return any(isinstance(x, Loop) and x.count is None for x in _controls(items))


def _fits(items: Sequence[Item]) -> bool:
    launches, times = flatten(list(items)), WAITED if _waits(items) else 1
    if not launches:
        return False
    kernels = [x.kernel for x in launches]
    if any(type(k) is not BlockKernel or k.threads > THREADS for k in kernels):
        return False
    if any(isinstance(k, BlockKernel) and scratch_bytes(k) > SHARED - REDUCED for k in kernels):
        return False
    if len({x.sites for x in launches if x.fails}) > 1:
        return False
    for x in launches:
        if x.variants or not all(isinstance(d, int) for d in (x.grid, x.bytes, x.flops)):
            return False
        if any(isinstance(d, int) and d > times * most for d, most in ((x.bytes, BYTES), (x.flops, FLOPS))):
            return False
        if any(i.op == "atomic" or i.attrs.get("order") not in (None, "weak") for i in x.kernel.walk()):  # programs that wait for others
            return False
    maker = _Maker()
    maker.pieces(items)
    return len(maker.arguments) <= WORDS


def _threads(launches: Sequence[Launch]) -> int:
    """Threads of the block: as many as a program takes, or as the most programs of a warp or less keep busy."""
    busy = WARP
    for x in launches:
        assert isinstance(x.kernel, BlockKernel) and isinstance(x.grid, int)
        busy = max(busy, x.kernel.threads * (x.grid if x.kernel.threads <= WARP else 1))
    return min(THREADS, -(-busy // WARP) * WARP)


def _launch(name: str, items: Sequence[Item], written: set[Buffer]) -> Launch:
    launches = flatten(list(items))
    threads = _threads(launches)
    maker = _Maker()
    pieces = maker.pieces(items)
    text = f"{_shape(pieces)} {threads}"
    kernel = WholeKernel(f"whole_{hashlib.sha256(text.encode()).hexdigest()[:16]}", pieces=pieces, items=tuple(items),
                         words=len(maker.arguments), block=threads)  # fmt: skip
    inner = set(maker.loops)

    def outside(buffers: Sequence[Buffer]) -> list[Buffer]:
        return list(dict.fromkeys(b for x in buffers for b in (roots(x) if _inside(x, inner) else (x,))))

    errors = [x for x in launches if x.fails]
    predicates = [x.predicate.buffer for x in _controls(items) if x.predicate is not None]
    reads = outside([b for x in launches for b in x.reads] + predicates)
    reads = [b for b in reads if all(r in written for r in roots(b) if r.kind == "temp")]  # the others begin to live here
    return Launch(
        name, kernel, tuple(maker.arguments), 1, tuple(reads), tuple(outside([b for x in launches for b in x.writes])),
        flops=_total(items, "flops"), bytes=_total(items, "bytes"), sites=errors[0].sites if errors else (),
        note=f"{len(launches)} kernels of one block, which loops and branches inside",
    )  # fmt: skip


def _inside(b: Buffer, loops: set[Loop]) -> bool:
    if isinstance(b, Sliding):
        return b.loop in loops or _inside(b.base, loops)
    return isinstance(b, Alternating) and (b.loop in loops or _inside(b.even, loops) or _inside(b.odd, loops))


def _controls(items: Sequence[Item]) -> list[Loop | Branch]:
    return [y for x in items if not isinstance(x, Launch) for y in (x, *(z for p in parts(x) for z in _controls(p)))]


def _total(items: Sequence[Item], what: str) -> Dim:
    """Work of all steps whose number is known, of one where it is not; of both ways of a branch."""
    total: Dim = 0
    for x in items:
        if isinstance(x, Launch):
            total = total + getattr(x, what)
            continue
        count: Dim = x.count if isinstance(x, Loop) and x.count is not None and x.predicate is None else 1
        for part in parts(x):
            total = total + _total(part, what) * count
    return total


def _shape(pieces: Sequence[Piece]) -> str:
    """Text that is the same for the same code."""
    said = []
    for p in pieces:
        if isinstance(p, Call):
            said.append(f"{p.kernel.name}/{p.kernel.threads}/{p.kernel.vector}{p.words}{p.grid}")
        elif isinstance(p, Repeat):
            said.append(f"loop{p.loop} {p.count} {p.predicate} [{_shape(p.test)}] [{_shape(p.body)}]")
        else:
            said.append(f"if {p.predicate} [{_shape(p.then)}] [{_shape(p.other)}]")
    return "; ".join(said)


def shown(items: Sequence[Item], depth: int = 0) -> list[str]:
    """Launches, loops and branches as lines."""
    lines, tab = [], "  " * depth
    for x in items:
        if isinstance(x, Launch):
            lines.append(f"{tab}{x.name}: {x.grid} programs of {x.kernel.name}")
        elif isinstance(x, Branch):
            lines += [f"{tab}if {x.predicate.buffer.name} ({x.name}):", *shown(x.then, depth + 1)]
            lines += [f"{tab}else:", *shown(x.other, depth + 1)]
        elif x.predicate is not None:
            limit = "" if x.count is None else f", at most {x.count} times"
            lines += [f"{tab}again{limit} ({x.name}):", *shown(x.test, depth + 1), f"{tab}  while {x.predicate.buffer.name}:"]
            lines += shown(x.body, depth + 2)
        else:
            lines += [f"{tab}{x.count} times ({x.name}):", *shown(x.body, depth + 1)]
    return lines
