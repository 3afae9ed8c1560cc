"""Consecutive launches of a decode step as one kernel: as many blocks as the chip holds at once go through all of them and meet in between.

A launch costs microseconds beyond its bytes, a meeting of all blocks about one, and while a block waits for the others it has already asked
for its next pieces of matrices, which nobody has to compute first (`target/cuda/joined.py`). What the launches are (kinds of kernels, each
once in the text) and what they work on is a table in memory, so the text of a model with many layers is that of one. Switched on by the
feature `joined` of a target (`TILEWRIGHT_JOIN`); everything else stays as it is, and so do all bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from ...core.errors import ConfigError
from ...core.target_spec import TargetSpec
from ...tile.ir import Kernel, TileType, Var, ViewType
from ..launch import Argument, Buffer, Launch, Word, roots
from .fragments import Fragments
from .kernel import WARP, BlockKernel, DecodeKernel, QDotKernel, SimtKernel

FEATURE = "joined"
CELL = 16  # bytes that a thread has of one access
SCRATCH = 30 << 10  # shared memory that is left for what the programs themselves need
BESIDE = 4 << 10  # and for what the warps remember of their lists, and the system takes of every block
THREADS = {"sm_120": 1536}  # of a multiprocessor where they are not 2048
SMALL = 1 << 20  # bytes of a launch that reads no matrix
END = (1 << 32) - 1  # programs of the record behind the last one: nobody is done with it
BARRIERS = 16  # of a block; the first is all threads
HEAD = 2  # words of a stage before its arguments: kind, programs
STOCK_HEAD = 3  # of a stage in the list of those that ask ahead: kind, programs, log2 of a program's threads


@dataclass(frozen=True)
class Joining:
    """How launches are joined. `depth` pieces of matrices are on their way in every thread (0: a kernel loads its own when it begins)."""

    blocks: int = 1  # of a multiprocessor
    threads: int = 512  # of a block
    depth: int = 3
    rows: int = 4  # of a matrix in one piece, at most
    barrier: str = "counter"  # or "flags": one word a block instead of one for all

    @property
    def text(self) -> str:
        return f"{FEATURE}:" + ",".join(f"{n}={getattr(self, n)}" for n in self.__dataclass_fields__)

    @staticmethod
    def parse(text: str) -> Joining:
        """`depth=2,barrier=flags`; an empty text is all defaults.

        >>> Joining.parse("depth=2,barrier=flags")
        Joining(blocks=1, threads=512, depth=2, rows=4, barrier='flags')
        """
        allowed = {"blocks": range(1, 5), "threads": (256, 512, 1024), "depth": (0, *range(2, 17)), "rows": (1, 2, 4, 8)}
        found: dict[str, int | str] = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition("=")
            if name == "barrier" and value in ("counter", "flags"):
                found[name] = value
            elif name in allowed and value.isdigit() and int(value) in allowed[name]:
                found[name] = int(value)
            else:
                valid = "; ".join(f"{n} {min(v)} to {max(v)}" for n, v in allowed.items())
                raise ConfigError(f"join: must be settings like depth=2,barrier=flags ({valid}; barrier counter or flags), got {part!r}")
        made = Joining(**found)  # type: ignore[arg-type]
        if made.blocks * made.threads > 2048:
            raise ConfigError(f"join: a multiprocessor has 2048 threads, got {made.blocks} blocks of {made.threads}")
        return made


def joining_of(target: TargetSpec) -> Joining | None:
    """How the target wants launches joined, if at all."""
    found = next((f for f in target.features if f.startswith(f"{FEATURE}:")), None)
    if found is None or target.kind != "cuda":
        return None
    how = Joining.parse(found.partition(":")[2])
    if how.blocks * how.threads > (most := THREADS.get(target.cpu, 2048)):
        raise ConfigError(f"join: a multiprocessor of {target.cpu} has {most} threads, got {how.blocks} blocks of {how.threads}")
    return how


@dataclass(eq=False)
class JoinedKernel(SimtKernel):
    """Stages one after another. Its argument words are a table in memory: where its second half begins, records of `record` words for the
    stages (kind, programs, then the words of the kind's kernel that differ), and records of those that ask ahead (`STOCK_HEAD` words and
    the kernel's that it needs for that). Each half ends with a kind that there is not."""

    kinds: tuple[Kernel, ...] = ()
    fixed: tuple[tuple[int | None, ...], ...] = ()  # of each kind: its argument words that are the same number in every launch
    cells: tuple[int, ...] = ()  # of each kind: accesses of a piece of its matrices; 0: it does not ask ahead
    record: int = HEAD
    stock: int = STOCK_HEAD  # words of a record of those that ask ahead
    depth: int = 0  # pieces on their way, as many as fit
    how: Joining = Joining()
    grid: int = 1
    members: tuple[Launch, ...] = ()  # for reports

    @property
    def block(self) -> int:
        return self.how.threads

    @property
    def slot(self) -> int:
        """Bytes of one piece of all threads."""
        return max(self.cells, default=0) * CELL * self.how.threads

    @property
    def sync_bytes(self) -> int:
        """Memory in which the blocks meet; zeros before the first launch."""
        return max(256, 4 * self.grid)


def threads_of(kernel: Kernel) -> int:
    """Threads of one program."""
    if isinstance(kernel, BlockKernel):
        return kernel.threads
    assert isinstance(kernel, (DecodeKernel, QDotKernel))
    return kernel.block


def unit_parts(f: Fragments, spread: bool) -> list[int]:
    """Words of every access that brings a thread's share of a unit, in the order of the target's `Unit`."""
    wide = 4 if f.low == 8 or f.blocks > 1 else 2

    def cut(words: int, most: int = 4) -> list[int]:
        return [min(most, words - i) for i in range(0, words, most)]

    codes = cut(f.blocks * f.low // 2, wide)
    return codes + cut(f.pairs) * f.planes + cut(f.row_scales // (16 if spread else 4)) * 2 + [1, 1] * f.super_scales


def cells_of(kernel: Kernel) -> int:
    """Accesses of a piece of the matrices: a program's rows, or of a packed matrix one unit; 0 where it must load them itself."""
    if isinstance(kernel, QDotKernel):
        parts = unit_parts(Fragments(kernel.format, kernel.k), kernel.spread)
        return len(parts) if kernel.x is not None and 3 not in parts else 0
    if not isinstance(kernel, BlockKernel) or not kernel.early or kernel.threads <= WARP:
        return 0
    cells = 0
    top = set(kernel.body.body)
    for i in kernel.walk():
        view = i.operands[0] if i.op in ("load", "gather") else None
        if not isinstance(view, Var) or view.name not in kernel.streamed:
            continue
        type_ = i.results[0].type
        assert isinstance(type_, TileType)
        if i not in top or i.op != "load" or type_.dtype.itemsize * kernel.vector != CELL:
            return 0
        cells += type_.numel // (kernel.threads * kernel.vector)
    return cells


def stock_words(kernel: Kernel) -> list[int]:
    """Which argument words say where the matrices lie; of packed ones also how many strips there are."""
    found, at = list[int](), 0
    for p in kernel.params:
        size = 1 + sum(s is None for s in p.type.strides) if isinstance(p.type, ViewType) else 1
        own = p in kernel.weights if isinstance(kernel, QDotKernel) else p.name in getattr(kernel, "streamed", ())
        if own and isinstance(p.type, ViewType):
            found += range(at, at + size)
        at += size
    return [*found, at] if isinstance(kernel, QDotKernel) else found


def joinable(launch: Launch, how: Joining) -> bool:
    k = launch.kernel
    if launch.variants or launch.serial or type(k) not in (BlockKernel, DecodeKernel, QDotKernel):
        return False
    if (isinstance(k, QDotKernel) and k.x is None) or threads_of(k) > how.threads:
        return False
    if WARP < threads_of(k) and BARRIERS <= how.threads // threads_of(k):
        return False  # programs side by side meet at barriers of their own
    if isinstance(k, BlockKernel) and not k.early and not (isinstance(launch.bytes, int) and launch.bytes <= SMALL):
        return False  # not a step of one row
    return not any(i.op == "atomic" or i.attrs.get("order") not in (None, "weak") for i in k.walk())


@dataclass(eq=False)
class _Run:
    """Launches that follow one another, as far as they can be joined."""

    launches: list[Launch] = field(default_factory=list)

    def takes(self, x: Launch, how: Joining) -> bool:
        sites = {y.sites for y in (*self.launches, x) if y.fails}
        return joinable(x, how) and len(sites) <= 1

    @property
    def worth(self) -> bool:
        return len(self.launches) > 1 and any(cells_of(x.kernel) or isinstance(x.kernel, QDotKernel) for x in self.launches)


def join(launches: Sequence[Launch], target: TargetSpec) -> list[Launch]:
    """The program with runs of launches joined, where the target says so."""
    how = joining_of(target)
    if how is None:
        return list(launches)
    out: list[Launch] = []
    written: set[Buffer] = set()
    run = _Run()
    for x in [*launches, None]:
        if x is not None and run.takes(x, how):
            run.launches.append(x)
            continue
        done = [_launch(run.launches, how, target, written)] if run.worth else run.launches
        run = _Run([x] if x is not None and joinable(x, how) else [])
        out += done + ([x] if x is not None and not run.launches else [])
        written |= {r for y in out for b in y.writes for r in roots(b)}
    return out


def _launch(launches: list[Launch], how: Joining, target: TargetSpec, written: set[Buffer]) -> Launch:
    kinds = list({x.kernel.name: x.kernel for x in launches}.values())
    number = {k.name: i for i, k in enumerate(kinds)}
    cells, depth = _room(kinds, how, target)
    fixed = [_same([x.arguments for x in launches if x.kernel.name == k.name]) for k in kinds]
    record = HEAD + max(f.count(None) for f in fixed)
    asking = [x for x in launches if cells[number[x.kernel.name]]]
    open_ = [[i for i in stock_words(k) if f[i] is None] for k, f in zip(kinds, fixed, strict=True)]
    stock = STOCK_HEAD + max((len(o) for o, c in zip(open_, cells, strict=True) if c), default=0)
    table: list[Argument] = [Word(8 * (1 + record * (len(launches) + 1)))]
    for x in launches:
        words = [a for a, f in zip(x.arguments, fixed[number[x.kernel.name]], strict=True) if f is None]
        table += _filled([Word(number[x.kernel.name]), Word(x.grid), *words], record)
    table += _filled([Word(len(kinds))], record)
    for x in asking:
        shift = threads_of(x.kernel).bit_length() - 1
        words = [x.arguments[i] for i in open_[number[x.kernel.name]]]
        table += _filled([Word(number[x.kernel.name]), Word(x.grid), Word(shift), *words], stock)
    table += _filled([Word(len(kinds)), Word(END), Word(0)], stock)
    grid = target.cores * how.blocks
    said = f"{[(k.name, *x) for k, *x in zip(kinds, cells, fixed, strict=True)]} {record} {stock} {depth} {how} {grid}"
    kernel = JoinedKernel(
        f"joined_{hashlib.sha256(said.encode()).hexdigest()[:16]}", kinds=tuple(kinds), fixed=tuple(fixed), cells=tuple(cells),
        record=record, stock=stock, depth=depth, how=how, grid=grid, members=tuple(launches), table=True)  # fmt: skip
    reads = list(dict.fromkeys(b for x in launches for b in x.reads))
    reads = [b for b in reads if all(r in written for r in roots(b) if r.kind == "temp")]  # the others begin to live here
    writes = tuple(dict.fromkeys(b for x in launches for b in x.writes))
    ahead = f"{depth} pieces of {kernel.slot >> 10} KB ahead" if depth else "nothing ahead"
    note = f"{len(launches)} launches of {len(kinds)} kinds in one kernel, {ahead} ({len(asking)} launches), {how.barrier}"
    errors = [x for x in launches if x.fails]
    return Launch(
        launches[0].name, kernel, tuple(table), grid, tuple(reads), writes, flops=sum((x.flops for x in launches), 0),
        bytes=sum((x.bytes for x in launches), 0), note=note, sites=errors[0].sites if errors else (),
    )  # fmt: skip


def _same(arguments: Sequence[Sequence[Argument]]) -> tuple[int | None, ...]:
    """Of every argument word its number, if all launches have the same."""
    found: list[int | None] = []
    for column in zip(*arguments, strict=True):
        values = {a.value if isinstance(a, Word) and isinstance(a.value, int) else None for a in column}
        found.append(values.pop() if len(values) == 1 else None)
    return tuple(found)


def _filled(words: list[Argument], size: int) -> list[Argument]:
    return words + [Word(0)] * (size - len(words))


def _room(kinds: Sequence[Kernel], how: Joining, target: TargetSpec) -> tuple[list[int], int]:
    """How many cells each kind asks ahead, and how many pieces are on their way: kinds with the largest pieces go without where not even
    two of theirs fit."""
    cells = [cells_of(k) if how.depth else 0 for k in kinds]
    room = target.l1d // how.blocks - SCRATCH - BESIDE
    while any(cells):
        fits = room // (max(cells) * CELL * how.threads)
        if fits >= 2:
            return cells, min(how.depth, fits)
        cells = [0 if c == max(cells) else c for c in cells]
    return cells, 0
