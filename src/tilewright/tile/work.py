"""What one program of a kernel does, counted without running it: operations on vector registers, accesses, functions, dependent chains.

The walk evaluates indices with the launch's own words, so trip counts and strides are those of a real call; a loop's body is counted once,
in the middle of its range, and multiplied. Pure operations whose operands a loop does not change count outside of it, as the compiler moves
them there. Loops whose bounds depend on data, and calls of native functions, make the count `unknown`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..core.dtypes import i64
from .ir import Block, Instr, Kernel, Operand, TileType, Var, ViewType

FREE = frozenset(("full", "iota", "reshape", "extract", "bitcast", "broadcast", "subview", "alloc", "join", "prefetch", "from_index",
                  "to_index"))  # fmt: skip
MATH = frozenset(("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "tanh", "erf", "sigmoid", "pow", "div", "sqrt",
                  "rsqrt", "reciprocal"))  # fmt: skip
LATENCY = {"fma": 4, "mma": 4, "add": 4, "sub": 4, "mul": 4, "div": 14, "sqrt": 18, "load": 8, "gather": 20, "reduce": 20, "scan": 24,
           "cast": 4, "dot2": 6, "dot4": 5, "shuffle": 3, "pick": 3, "max": 3, "min": 3}  # cycles
LATENCY |= dict.fromkeys(MATH - LATENCY.keys(), 45) | dict.fromkeys(FREE, 1)
PAGE = 4096  # bytes
MANY = 8  # rows of a tile: as many lines as a set of a first-level cache holds
OTHER = 2  # cycles of other arithmetic
INDEX: dict[str, Callable[[int, int], int | None]] = {
    "index.add": lambda a, b: a + b, "index.sub": lambda a, b: a - b, "index.mul": lambda a, b: a * b, "index.min": min, "index.max": max,
    "index.floordiv": lambda a, b: a // b if b else None, "index.mod": lambda a, b: a % b if b else None,
    "index.shl": lambda a, b: a << b, "index.shr": lambda a, b: a >> b, "index.and": lambda a, b: a & b,
}  # fmt: skip
COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


@dataclass
class Work:
    """What one program does, on registers of `lanes` 32-bit elements; half a register counts as one operation, a single element too."""

    arithmetic: float = 0.0  # operations, functions and packed products not included
    elements: float = 0.0  # elements that they compute
    math: dict[tuple[str, str], float] = field(default_factory=dict)  # (function, dtype): elements through it; divisions and roots too
    math_registers: dict[tuple[str, str], float] = field(default_factory=dict)
    packed: dict[str, float] = field(default_factory=dict)  # "bf16", "i8": operations on registers of packed numbers
    tiles: dict[str, float] = field(default_factory=dict)  # the same in matrix tiles, as flops
    accesses: float = 0.0  # loads and stores of registers
    gathered: float = 0.0  # elements loaded or stored one by one
    colliding: float = 0.0  # the share of accesses to rows a multiple of the page size apart, which fall into few sets of a cache
    index: float = 0.0  # scalar operations on indices
    widened: float = 0.0  # elements cast from 16-bit floats
    chain: float = 0.0  # cycles that dependent steps of loops take at least
    bytes: float = 0.0  # through accesses to buffers, every time they are made
    unknown: bool = False

    def add(self, other: Work, times: float) -> None:
        for name in ("arithmetic", "elements", "accesses", "gathered", "colliding", "index", "widened", "chain", "bytes"):
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        for name in ("math", "math_registers", "packed", "tiles"):
            mine = getattr(self, name)
            for k, v in getattr(other, name).items():
                mine[k] = mine.get(k, 0.0) + times * v
        self.unknown |= other.unknown


def program_work(kernel: Kernel, words: Sequence[int | None], pid: int, lanes: int) -> Work:
    """The work of program `pid`. `words`: one for each argument word of the kernel, None for pointers."""
    return Walk(kernel, words, pid, lanes).total


def typical_work(kernel: Kernel, words: Sequence[int | None], grid: int, lanes: int) -> Work:
    """The mean over the programs of a launch: all of a few, else three that are spread over the grid."""
    at = range(grid) if grid <= 3 else (grid // 6, grid // 2, grid - 1 - grid // 6)
    total = Work()
    for pid in at:
        total.add(program_work(kernel, words, pid, lanes), 1 / len(at))
    return total


class Walk:
    def __init__(self, kernel: Kernel, words: Sequence[int | None], pid: int, lanes: int) -> None:
        self.lanes = lanes
        self.values: dict[Var, int] = {kernel.pid: pid}  # indices and conditions that are known
        self.strides: dict[Var, tuple[int | None, ...]] = {}
        self.level: dict[Var, int] = {}  # how many loops are open where a value changes
        self.scales = [1.0]  # how often each of the open loops' bodies runs, from the outside
        given = iter(words)
        for p in kernel.params:
            if isinstance(p.type, ViewType):
                next(given)
                self.strides[p] = tuple(next(given) if s is None else s for s in p.type.strides)
            elif (value := next(given)) is not None:
                self.values[p] = value
        self.total = Work()
        self.block(kernel.body)

    def value(self, x: Operand) -> int | None:
        return x if isinstance(x, int) else self.values.get(x)

    def block(self, block: Block) -> None:
        for instr in block.body:
            if instr.op == "for":
                self.loop(instr)
            elif instr.op == "if":
                self.branch(instr)
            else:
                self.leaf(instr)

    def loop(self, instr: Instr) -> None:
        body, step = instr.blocks[0], instr.attrs.get("step", 1)
        start, stop = self.value(instr.operands[0]), self.value(instr.operands[1])
        if start is None or stop is None:
            self.total.unknown = True
            start, stop = 0, step
        count = max(0, -(-(stop - start) // step))
        index, *carried = body.params
        depth = len(self.scales)
        for x in body.params:
            self.level[x] = depth
        if count:
            self.values[index] = start + (count - 1) // 2 * step
            self.scales.append(self.scales[-1] * count)
            self.block(body)
            self.total.chain += self.scales[-1] * _recurrence(body, carried)
            self.scales.pop()
        for x in instr.results:
            self.level[x] = depth - 1

    def branch(self, instr: Instr) -> None:
        """A condition that depends on data counts as true."""
        known = self.value(instr.operands[0])
        taken = instr.blocks[0] if known is None or known else instr.blocks[1] if len(instr.blocks) > 1 else None
        if taken is not None:
            self.block(taken)
            for x, y in zip(instr.results, taken.yields, strict=False):
                self.level[x] = self.level.get(y, 0) if isinstance(y, Var) else 0
                if (value := self.value(y)) is not None:
                    self.values[x] = value

    def leaf(self, instr: Instr) -> None:
        op, here = instr.op, len(self.scales) - 1
        moved = max((self.level.get(x, 0) for x in instr.operands if isinstance(x, Var)), default=0)
        memory = op in ("load", "store", "gather", "scatter", "atomic", "tile_dot", "call")
        level = here if memory else min(moved, here)
        for x in instr.results:
            self.level[x] = level
        scale = self.scales[level]
        if op in INDEX:
            a, b = (self.value(x) for x in instr.operands)
            found = None if a is None or b is None else INDEX[op](a, b)
            if found is not None:
                self.values[instr.results[0]] = found
            self.total.index += scale
        elif op == "index.cmp":
            a, b = (self.value(x) for x in instr.operands)
            if a is not None and b is not None:
                self.values[instr.results[0]] = int(COMPARE[instr.attrs["fn"]](a, b))
            self.total.index += scale
        elif op in ("and", "or", "not") and all(isinstance(x, Var) and x in self.values for x in instr.operands):
            a, *rest = (self.values[x] for x in instr.operands if isinstance(x, Var))
            self.values[instr.results[0]] = 1 - a if op == "not" else (a & rest[0] if op == "and" else a | rest[0])
        elif op == "subview":
            view = instr.operands[0]
            assert isinstance(view, Var)
            self.strides[instr.results[0]] = tuple(self._strides(view)[a] for a in instr.attrs["keep"])
        elif memory:
            self.memory(instr, scale)
        elif op not in FREE:
            self.arithmetic(instr, scale)

    def _strides(self, view: Var) -> tuple[int | None, ...]:
        assert isinstance(view.type, ViewType)
        return self.strides.get(view, view.type.strides)

    def registers(self, type_: TileType) -> float:
        last = type_.shape[-1] if type_.shape else 1
        rows = type_.numel // last if last else 0
        return rows * -(-last // self.lanes) * (max(1.0, type_.dtype.itemsize / 4) if last > 1 else 1.0)

    def memory(self, instr: Instr, scale: float) -> None:
        total, op = self.total, instr.op
        if op == "call":
            total.unknown = True
            return
        view = instr.operands[0]
        assert isinstance(view, Var) and isinstance(view.type, ViewType)
        if op == "tile_dot":
            kind, count = ("i8", 4) if view.type.dtype.is_int else ("bf16", 2)
            k = self.value(instr.operands[3])
            total.unknown |= k is None
            flops = 2.0 * instr.attrs["rows"] * instr.attrs["cols"] * (k or 0) * count
            total.tiles[kind] = total.tiles.get(kind, 0.0) + scale * flops
            return
        tile = instr.results[0].type if instr.results else next(x.type for x in reversed(instr.operands) if isinstance(x, Var))
        assert isinstance(tile, TileType)
        inside = self.limited(instr, tile, view.type.rank)
        if view.type.space == "global":
            total.bytes += scale * tile.dtype.itemsize * inside.numel
        last = tile.shape[-1] if tile.shape else 1
        if op == "atomic" or (op == "gather" and instr.attrs.get("run") is None):
            total.gathered += scale * inside.numel
            return
        axes = instr.attrs.get("axes")
        stride = 1 if not axes else self._strides(view)[axes[-1]]
        if stride in (0, 1, -1, None) or last == 1:
            total.accesses += scale * self.registers(inside)
            apart = self._strides(view)[axes[-2]] if axes and len(axes) > 1 and tile.shape[-2] >= MANY else None
            if view.type.space == "global" and apart and apart * tile.dtype.itemsize % PAGE == 0:
                total.colliding += scale * self.registers(inside)
        elif stride == 2 and op == "load":
            total.accesses += 3 * scale * self.registers(inside)
        else:
            total.gathered += scale * inside.numel

    def limited(self, instr: Instr, tile: TileType, rank: int) -> TileType:
        """The rows of a tile that are inside its limits: the others are skipped, a register that is half inside is not."""
        shape = list(tile.shape)
        for axis, x in zip(instr.attrs.get("limits") or (), instr.operands[1 + rank :], strict=False):
            known = self.value(x)
            if known is not None:
                shape[axis] = max(0, min(shape[axis], known))
        return TileType(tuple(shape), tile.dtype)

    def arithmetic(self, instr: Instr, scale: float) -> None:
        total, op, out = self.total, instr.op, instr.results[0].type
        first = instr.operands[0]
        assert isinstance(out, TileType) and isinstance(first, Var) and isinstance(first.type, TileType)
        source = first.type
        registers = self.registers(out)
        if op in MATH and out.dtype.is_float:
            key = op, out.dtype.name
            total.math[key] = total.math.get(key, 0.0) + scale * out.numel
            total.math_registers[key] = total.math_registers.get(key, 0.0) + scale * registers
            return
        if op in ("dot2", "dot4"):
            kind = "bf16" if op == "dot2" else "i8"
            total.packed[kind] = total.packed.get(kind, 0.0) + scale * registers
            return
        count, elements = registers, float(out.numel)
        if op == "mma":
            depth = source.shape[1]
            count, elements = registers * depth + (depth > 1) * source.numel, elements * depth
        elif op == "reduce":
            steps = (self.lanes.bit_length() - 1) * 2 if instr.attrs["axis"] == len(source.shape) - 1 and source.shape[-1] > 1 else 0
            count, elements = self.registers(source) + registers * steps, float(source.numel)
        elif op in ("scan", "transpose"):
            count = max(registers, self.registers(source)) * (self.lanes.bit_length() - 1) * (3 if op == "scan" else 1)
        elif op == "cast":
            if source.dtype.is_float and source.dtype.itemsize == 2 and out.dtype.itemsize > 2:
                total.widened += scale * source.numel
            count = max(registers, self.registers(source))
        elif op in ("floordiv", "rem", "div"):  # integers: one element at a time
            count = 3.0 * out.numel * (2 if out.dtype is i64 else 1)
        total.arithmetic += scale * count
        total.elements += scale * elements * max(1.0, out.dtype.itemsize / 4)


def _steps(instr: Instr) -> int:
    """Dependent steps inside an instruction: a product of tiles takes one for each k."""
    first = instr.operands[0] if instr.operands else 0
    return first.type.shape[1] if instr.op == "mma" and isinstance(first, Var) and isinstance(first.type, TileType) else 1


def _recurrence(body: Block, carried: Sequence[Var]) -> float:
    """Cycles from a carried value to its next one, along the longest path; 0 where no value depends on itself."""
    if not carried:
        return 0.0
    far: dict[Var, float] = dict.fromkeys(carried, 0.0)

    def walk(block: Block) -> None:
        for instr in block.body:
            before = [far[x] for x in instr.operands if isinstance(x, Var) and x in far]
            for inner in instr.blocks:
                if before:
                    far.update(dict.fromkeys(inner.params, max(before)))
                walk(inner)
            if before:
                far.update(dict.fromkeys(instr.results, max(before) + LATENCY.get(instr.op, OTHER) * _steps(instr)))

    walk(body)
    return max((far[y] for y in body.yields if isinstance(y, Var) and y in far), default=0.0)
