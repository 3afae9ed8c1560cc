"""An executable: code addresses, packed constants and the plan of one program. Immutable; shared by every caller.

`instantiate` builds what one shape needs: argument blocks, the thunk array and the list of words that take input and output
addresses at each call. All values of one shape come from one generated function; the rest is a handful of NumPy gathers.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..build.code import Code
from ..build.packing import Array
from ..core.dims import Dim, Symbol, evaluate, symbols
from ..core.errors import ExecutionError, InputError, ShapeError, VerifyError
from ..core.natives import address as native_address
from ..core.records import dataclass
from ..ir.types import TensorType
from ..kernels.launch import Argument, ErrorWord, Launch, Native, Pointer, Program, Word
from ..plan.barriers import is_serial, nanoseconds
from ..plan.plan import Placement, Plan
from ..plan.values import DimTable
from .control import Controls, Moves, block_of
from .crash import Names
from .native.layout import (
    BARRIER,
    ERROR_WORDS,
    MOVING,
    SERIAL,
    THUNK_ARGS,
    THUNK_FLAGS,
    THUNK_GRID,
    THUNK_MOVES,
    THUNK_PIECE,
    THUNK_SHARE,
    THUNK_WORDS,
    WORK_BITS,
)

if TYPE_CHECKING:
    from ..core.needs import Need
    from ..tile.ir import Kernel

PIECE = 128 << 10  # bytes that a thunk walked from its end touches forwards at a time: much for the prefetcher, little of L2
SHARES = 128  # pieces of a launch, at most, that threads take from one another, each of some
SHARE_NS = 5000  # nanoseconds, beside which taking it costs nothing
SCRATCH_ALIGNMENT = 256  # no two threads' scratch share a cache line, nor a pair of lines


@dataclass(frozen=True)
class Interface:
    """Names and types of a program's inputs and outputs."""

    input_names: tuple[str, ...]
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    symbols: tuple[Symbol, ...]
    donated: tuple[tuple[int, int], ...] = ()  # (input, output that is its next value and takes its memory)
    called: tuple[str, ...] = ()  # symbols whose values the call gives
    windows: tuple[tuple[Dim, str], ...] = ()  # dims that must not be negative, and the op that would leave its operand otherwise
    needs: tuple[Need, ...] = ()  # what type rules ask of the symbols

    def check(self, env: Mapping[str, int]) -> None:
        """No type rule may be broken, and no slice or update leave its operand, for these values of the symbols."""
        for room, text, place in self.needs:
            if evaluate(room, env) < 0:
                raise ShapeError(f"{text} with {_shown(env)}" + (f" ({place})" if place else ""))
        for room, what in self.windows:
            if evaluate(room, env) < 0:
                raise InputError(f"session: {what} would leave its operand: {room} must not be negative, got {_shown(env)}")


@dataclass(eq=False)
class Instance:
    """A schedule for one shape, bound to an arena and an error block. Native code reads `thunks`, `words` and `patches`."""

    env: dict[str, int]
    placement: Placement
    arena: int  # address that the blocks were made for
    words: Array  # all argument blocks, one after another
    thunks: Array  # [launches, 8]
    patches: Array  # [patches, 3]: address of an argument word, number of the input or output, byte offset
    scratch: int  # bytes per thread
    serial: bool  # no launch uses a second thread
    nanoseconds: float  # rough estimate of the whole schedule on one thread
    values: Array  # every dim of the program, for reports
    temp_positions: Array
    ways: Array  # which of a launch's kernels runs, as numbers over all of them
    moves: Array  # how arguments change with the iterations of loops
    names: Array  # [thunks, 2]: text for each after a crash
    late: Late | None = None

    def rebase(self, arena: int) -> None:
        """Move to another arena."""
        self.words[self.temp_positions] += arena - self.arena
        if self.late is not None:
            self.late.base[self.late.in_arena] += arena - self.arena
        self.arena = arena


@dataclass(eq=False)
class Late:
    """What depends on symbols that change from call to call (the length of a state): rewritten before a run instead of building a
    schedule for every value."""

    values: Callable[[Mapping[str, int]], list[int]]
    words: Array  # argument words ...
    source: Array  # ... the numbers of their dims ...
    base: Array  # ... and the addresses to add
    in_arena: Array  # which of those addresses lie in the arena
    patches: Array  # rows of the patch table, and the numbers of their offsets
    offsets: Array
    grids: Array  # thunks, and the numbers of their grids
    sizes: Array
    kept: Array  # the numbers of what was laid out for the schedule (memory, programs) ...
    most: Array  # ... and the values that it was laid out for
    bound: tuple[int, ...] = ()

    def bind(self, instance: Instance, key: tuple[int, ...], env: Mapping[str, int]) -> bool:
        """Whether these values fit: what a slice leaves of a tensor is larger where the symbol is smaller."""
        if key == self.bound:
            return True
        values = np.array(self.values(env), np.int64)
        if (values[self.kept] > self.most).any():
            return False
        instance.words[self.words] = values[self.source] + self.base
        instance.patches[self.patches, 2] = values[self.offsets]
        instance.thunks[self.grids, THUNK_GRID] = values[self.sizes]
        instance.env, self.bound = dict(env), key
        return True


class Executable:
    """Everything about a program that does not depend on a shape or a caller, on every device."""

    error_launches: list[int]  # those that may fill an error block
    rebinds: bool  # one schedule serves all values of the call's symbols

    def __init__(self, program: Program, interface: Interface, constants: Sequence[int], plan: Plan | None = None) -> None:
        """`constants`: how many bytes each has in the form that kernels read."""
        check_ends(program, interface, constants)
        self.program, self.interface = program, interface
        self.plan = Plan(program, interface.symbols) if plan is None else plan

    @property
    def launches(self) -> list[Launch]:
        return self.program.launches

    def kernels(self) -> list[Kernel]:
        return [k for x in self.launches for k in x.kernels]

    def place(self, env: Mapping[str, int]) -> Placement:
        return self.plan.place(env)

    def arena_bytes(self, env: Mapping[str, int]) -> int:
        return self.place(env).size


class CpuExecutable(Executable):
    """An executable whose schedules are tables that native code walks through."""

    def __init__(self, program: Program, interface: Interface, code: Code, constants: Sequence[Array], plan: Plan | None = None) -> None:
        super().__init__(program, interface, [c.nbytes for c in constants], plan)
        self.code, self.constants = code, list(constants)
        self._temp_index = {b: i for i, b in enumerate(self.plan.temps)}
        self._layout()

    def _layout(self) -> None:
        """Where every argument word gets its value from, as index arrays."""
        table = DimTable(self.interface.symbols)
        address = {c.buffer: s.ctypes.data for c, s in zip(self.program.constants, self.constants, strict=True)}
        slot = {b: i for i, b in enumerate([*self.program.inputs, *self.program.outputs])}
        source: list[int] = []
        temps: list[tuple[int, int]] = []  # (word, temp)
        consts: list[tuple[int, int]] = []  # (word, address)
        external: list[tuple[int, int]] = []  # (word, number among inputs and outputs)
        errors: list[tuple[int, int]] = []  # (word, error block)
        starts: list[int] = []
        self.error_launches = []
        ways = [(step, way) for step, launch in enumerate(self.launches) for way in launch.ways]
        schedule = self.plan.schedule
        self._controls = None if schedule is None else Controls(schedule, table)
        given = [(*way.arguments, *(bounds(way.arguments) if self.code.checked else ())) for _, way in ways]
        blocks = [block_of(self.launches[step].name, words) for (step, _), words in zip(ways, given, strict=True)]
        tests = [] if self._controls is None else self._controls.predicates
        self._moves = Moves([*blocks, *(b for _, b in tests)], table)
        for step, block in [*zip((step for step, _ in ways), blocks, strict=True), *((-1, b) for _, b in tests)]:
            starts.append(len(source))
            for argument in block.words:
                word = len(source)
                if isinstance(argument, ErrorWord):
                    if not self.error_launches or self.error_launches[-1] != step:
                        self.error_launches.append(step)
                    errors.append((word, len(self.error_launches) - 1))
                    source.append(table.add(0))
                elif isinstance(argument, Pointer):
                    b = argument.buffer
                    source.append(table.add(argument.offset))
                    if b in self._temp_index:
                        temps.append((word, self._temp_index[b]))
                    elif b in address:
                        consts.append((word, address[b]))
                    elif b in slot:
                        external.append((word, slot[b]))
                    else:
                        name = self.launches[step].name if step >= 0 else "a predicate"
                        raise VerifyError(f"executable: launch {step} ({name}) points to {b.name}, which the program does not list")
                elif isinstance(argument, Native):
                    consts.append((word, native_address(argument.name)))
                    source.append(table.add(0))
                else:
                    source.append(table.add(argument.value))
        self._source = np.array(source, np.int64)
        self._temp_words, self._temp_buffers = _columns(temps)
        self._const_words, self._const_addresses = _columns(consts)
        self._io_words, self._io_slots = _columns(external)
        self._error_words, self._error_blocks = _columns(errors)
        self._starts = np.array(starts, np.int64)
        self._functions = np.array([self.code.address(s) for s in self.code.symbols], np.int64)
        self._grid = np.array([table.add(way.grid) for _, way in ways], np.int64)
        self._flops = np.array([table.add(launch.flops) for launch in self.launches], np.int64)
        self._bytes = np.array([table.add(launch.bytes) for launch in self.launches], np.int64)
        self._scratch = np.array([table.add(way.scratch) for _, way in ways], np.int64)
        self._first = np.cumsum([0, *(1 + len(launch.variants) for launch in self.launches)])[: len(self.launches)].astype(np.int64)
        self._guards = [(k, [(table.add(v.value), v.lo, v.hi) for v in x.variants]) for k, x in enumerate(self.launches) if x.variants]
        self._streams = np.array([launch.streams for launch in self.launches], bool)
        self._shared = np.array([launch.shared for launch in self.launches], bool)
        self._always_serial = np.array([launch.serial for launch in self.launches], bool)
        labels = [f"launch {step} ({self.launches[step].name}), kernel {s}" for (step, _), s in zip(ways, self.code.symbols, strict=True)]
        self._names = Names(labels)
        self._values = table.compile()
        self._table = table
        self._late_dims()

    def _late_dims(self) -> None:
        """Which words, patches and grids depend on symbols that the call gives; none where a choice of kernels does."""
        called = set(self.interface.called)
        late = [any(s.name in called for s in symbols(d)) for d in self._table.dims]
        fixed = [g[0] for _, guards in self._guards for g in guards] + self._moves.dims
        fixed += [] if self._controls is None else self._controls.dims
        self.rebinds = bool(called) and not any(late[k] for k in fixed)
        if not self.rebinds:
            return
        table = DimTable(self.interface.symbols)
        number = np.array([table.add(d) if is_late else -1 for d, is_late in zip(self._table.dims, late, strict=True)], np.int64)
        sized = {table.add(b.nbytes) for b in self.plan.temps if any(s.name in called for s in symbols(b.nbytes))}
        self._late_kept = np.array(sorted(sized | {k for k in number[[*self._scratch, *self._grid]].tolist() if k >= 0}), np.int64)
        self._late_number, self._late_values = number, table.compile()
        self._late_words = np.flatnonzero(number[self._source] >= 0)
        self._late_patches = np.flatnonzero(number[self._source[self._io_words]] >= 0)

    def instantiate(self, env: Mapping[str, int], arena: int, errors: int) -> Instance:
        """The schedule for these symbol values, over the arena and the error blocks at these addresses."""
        placement = self.place(env)
        try:
            values = np.array(self._values(env), np.int64)
        except OverflowError:
            at = f" with sizes {dict(env)}" if env else ""
            raise ExecutionError(f"session: a size, step or offset of the program is beyond 64 bits{at}"
                                 "; look for a stride, dilation or slice of that magnitude in the model") from None
        words = values[self._source]
        words[self._temp_words] += np.array(placement.vector, np.int64)[self._temp_buffers] + arena
        words[self._const_words] += self._const_addresses
        words[self._error_words] = errors + 8 * ERROR_WORDS * self._error_blocks
        base = words.ctypes.data
        patches = np.empty((len(self._io_words), 3), np.int64)
        patches[:, 0], patches[:, 1], patches[:, 2] = base + 8 * self._io_words, self._io_slots, words[self._io_words]
        ways = self._ways(values)
        grid = values[self._grid[ways]]
        flops, moved = values[self._flops], values[self._bytes]
        serial = self._always_serial | is_serial(grid, flops, moved)
        alone = tuple(serial.tolist())
        rows = self.rows
        if self._controls is None:
            thunks = np.zeros((len(self.launches), THUNK_WORDS), np.int64)
        else:
            thunks = self._controls.thunks(values, alone)
            tests = self._starts[len(self._functions) :]
            thunks[[r for r, _ in self._controls.predicates], THUNK_ARGS] = base + 8 * tests
            flops, moved = flops * values[self._controls.times], moved * values[self._controls.times]
        thunks[rows, 0], thunks[rows, 1], thunks[rows, 2] = self._functions[ways], base + 8 * self._starts[ways], grid
        thunks[rows, THUNK_FLAGS] = SERIAL * serial
        thunks[rows, THUNK_PIECE] = self._streams * _pieces(grid, values[self._bytes])
        shares = np.clip(nanoseconds(values[self._flops], values[self._bytes]) // SHARE_NS, 1, SHARES).astype(np.int64)
        thunks[rows, THUNK_SHARE] = (self._shared & ~serial & (grid < 1 << WORK_BITS)) * np.maximum(1, -(-grid // shares))
        thunks[:, THUNK_FLAGS] |= BARRIER * np.array(placement.sync(alone), bool)
        moves = self._moved(thunks, ways, values)
        scratch = -(-int(values[self._scratch[ways]].max(initial=0)) // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT
        work = float(nanoseconds(flops, moved).sum())
        made = Instance(dict(env), placement, arena, words, thunks, patches, scratch, all(alone), work, values, self._temp_words, ways,
                        moves, self._names.table(len(thunks), rows, ways))
        if self.rebinds:
            made.late = self._late(made)
        return made

    def _moved(self, thunks: Array, ways: Array, values: Array) -> Array:
        """The table of moves, and its places in the thunks."""
        moves = self._moves.table(values)
        if not self._moves:
            return moves
        assert self._controls is not None
        tests = [r for r, _ in self._controls.predicates]
        starts = np.concatenate([self._moves.used[ways], self._moves.used[len(self._functions) :]])
        for r, start in zip([*self._controls.rows.tolist(), *tests], starts.tolist(), strict=True):
            if start >= 0:
                thunks[r, THUNK_FLAGS] |= MOVING
                thunks[r, THUNK_MOVES] = moves.ctypes.data + 8 * start
        return moves

    def start_of(self, way: int) -> int:
        """The first argument word of a kernel, counted over all ways of all launches."""
        return int(self._starts[way])

    @property
    def rows(self) -> Any:
        """The thunk of each launch."""
        return slice(None) if self._controls is None else self._controls.rows

    def check(self, env: Mapping[str, int]) -> None:
        self.interface.check(env)

    def _late(self, made: Instance) -> Late:
        number, words = self._late_number, self._late_words
        source = self._source[words]
        grid = self._grid[made.ways]
        launches = np.flatnonzero(number[grid] >= 0)
        rows = np.arange(len(self.launches))[launches] if self._controls is None else self._controls.rows[launches]
        base = made.words[words] - made.values[source]
        offsets = number[self._source[self._io_words[self._late_patches]]]
        in_arena = np.isin(words, self._temp_words)
        most = np.array(self._late_values(made.env), np.int64)[self._late_kept]
        return Late(self._late_values, words, number[source], base, in_arena, self._late_patches, offsets, rows, number[grid[launches]],
                    self._late_kept, most)

    def _ways(self, values: Array) -> Array:
        """For each launch, which of its kernels runs: the first variant whose guard holds, else its own."""
        if not self._guards:
            return self._first
        ways = self._first.copy()
        for k, guards in self._guards:
            for n, (value, lo, hi) in enumerate(guards):
                if lo <= values[value] <= hi:
                    ways[k] += 1 + n
                    break
        return ways

    def kernel(self, symbol: str) -> Kernel:
        """The tile IR of a kernel by the name of its code; a loaded session reads it from the text in its file."""
        from ..tile.parse import parse

        return parse(self.code.tiles[symbol])

    def costs(self, instance: Instance) -> list[dict[str, Any]]:
        """What every launch does at this shape, for reports and profiles."""
        rows = []
        thunks = instance.thunks[self.rows]
        times = np.ones(len(self.launches), np.int64) if self._controls is None else instance.values[self._controls.times]
        for k, launch in enumerate(self.launches):
            flags, often = int(thunks[k, THUNK_FLAGS]), int(times[k])
            symbol = self.code.symbols[int(instance.ways[k])]
            rows.append({"launch": k, "name": launch.name, "kernel": symbol, "grid": int(thunks[k, 2]),
                         "flops": int(instance.values[self._flops[k]]) * often, "bytes": int(instance.values[self._bytes[k]]) * often,
                         "serial": bool(flags & SERIAL), "barrier": bool(flags & BARRIER), "note": launch.note,
                         "times": often})
        return rows


def check_ends(program: Program, interface: Interface, constants: Sequence[int]) -> None:
    """What callers hand in and get back, and what the constants hold, must have the sizes that the program's kernels count on."""
    ends = (("input", program.inputs, [t.nbytes for t in interface.inputs]),
            ("output", program.outputs, [t.nbytes for t in interface.outputs]),
            ("constant", [c.buffer for c in program.constants], constants))
    for what, buffers, sizes in ends:
        if len(buffers) != len(sizes):
            raise VerifyError(f"executable: the program has {len(buffers)} {what}s, got {len(sizes)}")
        for b, size in zip(buffers, sizes, strict=True):
            if b.nbytes != size:
                raise VerifyError(f"executable: {what} {b.name} must have {b.nbytes} bytes, got {size}")


def bounds(arguments: Sequence[Argument]) -> list[Argument]:
    """The further arguments of a kernel that checks its accesses: where the buffer of each view begins and ends, and an error block."""
    found: list[Argument] = []
    for a in arguments:
        if isinstance(a, Pointer):
            found += [Pointer(a.buffer), Pointer(a.buffer, a.buffer.nbytes)]
        elif isinstance(a, ErrorWord):  # it is no buffer of the program's
            found += [Word(0), Word((1 << 63) - 1)]
    return [*found, ErrorWord()]


def _shown(env: Mapping[str, int]) -> str:
    return ", ".join(f"{k} = {v}" for k, v in env.items())


def _pieces(grid: Array, moved: Array) -> Array:
    """How many programs touch PIECE bytes."""
    count: Array = np.maximum(1, PIECE * grid // np.maximum(moved, 1))
    return count


def _columns(pairs: Sequence[tuple[int, int]]) -> tuple[Array, Array]:
    both = np.array(pairs, np.int64).reshape(-1, 2)
    return both[:, 0].copy(), both[:, 1].copy()
