"""One thread of a PTX kernel as Python: its integers and branches are computed, its arithmetic is left out, and what touches shared memory
or orders anything is handed out as events. `token_graph` runs a few threads of a block side by side this way.

Only what addresses, predicates and counts of events depend on is computed (a backward slice), so a kernel of thousands of instructions
becomes some hundred lines of Python, compiled once. A warp's vote on its data falls now one way, now the other. An integer instruction
that is not known here is an error, not a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ....core.errors import CompileError
from ..ptx.flow import Function, Op

_SHAPE = re.compile(r"m64n(\d+)k(\d+)")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[a-z]+(\d+)$")
LINE = 128  # bytes of a swizzled row
ROWS = 8  # whose pieces change places among each other


def width(op: Op) -> int:
    """Bytes that one thread's address stands for; 0 where there is none."""
    if op.stem in ("ldmatrix", "stmatrix"):
        return 16
    found = _WIDTH.search(op.opcode) if op.stem in ("ld", "st", "atom", "red") else None
    if found is None:
        return 0
    return int(found[1] or 1) * int(found[2]) // 8


def matrix_ranges(op: Op, descriptors: tuple[int, ...], rows: int) -> list[tuple[int, int]]:
    """(first byte, bytes) of what a `wgmma` reads from shared memory; the left operand has `rows` rows that matter. A range whose start
    breaks the swizzle's rule is given as (minus its start, 0)."""
    shape = _SHAPE.search(op.opcode)
    assert shape is not None, op.text
    n, deep = int(shape[1]), int(shape[2])
    flags = [x.strip() for x in op.operands.split("}")[-1].split(",")]
    transposed = [x == "1" for x in flags[flags.index(next(x for x in flags if x.startswith("%p"))) + 3 :]]  # after both signs
    if len(descriptors) == 1:
        sides = [(descriptors[0], n, bool(transposed and transposed[-1]))]
    else:
        sides = [(descriptors[0], rows, bool(transposed and transposed[0])), (descriptors[1], n, bool(transposed and transposed[-1]))]
    found = []
    for d, wide, across in sides:
        start, leading, stride = (d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4
        if not across:  # rows along K: the offset inside a row of 128 bytes chooses the step of K
            first, eights = start // LINE * LINE, -(-wide // ROWS)
            if stride % (ROWS * LINE):  # lines of an image: the swizzle goes by the address
                found += [(first + i * stride, ROWS * LINE) for i in range(eights)]
            else:
                found.append((-start, 0) if start % (ROWS * LINE) >= LINE else (first, eights * stride))
        else:  # rows along M or N: blocks of 64 columns
            if start % (ROWS * LINE):
                found.append((-start, 0))
                continue
            found += [(start + block * leading, deep * LINE) for block in range(-(-wide // 64))]
    return found


_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_REGISTER = re.compile(r"%[a-z]+\d+")
_PASSED = re.compile(r"shared\.([ub](?:32|64))$")  # accesses of shared memory by which threads tell each other a number
_SPECIAL = {"%tid.x": "T.tid", "%ctaid.x": "T.ctaid", "%nctaid.x": "T.nctaid", "%cluster_ctarank": "T.rank", "%laneid": "(T.tid & 31)"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_BINARY = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<", "div": "//", "rem": "%"}
Step = Callable[[list[Any], Any], tuple[int, Any]]


@dataclass(eq=False)
class Segment:
    """A run of instructions up to the next event or branch. `touched` are the registers of `wgmma` that it reads or writes, as bits."""

    step: Step
    op: Op  # its last instruction
    event: bool = False
    index: int = -1  # the index of the event
    result: int = -1  # register that the event sets, when somebody needs it
    width: int = 0  # bytes of a plain access
    touched: int = 0
    written: int = 0
    first: int = 0  # its instructions
    end: int = 0


@dataclass(eq=False)
class Replay:
    """A kernel's segments, by number, and how many registers they use."""

    function: Function
    segments: list[Segment]
    registers: int
    matrix: dict[str, int] = field(default_factory=dict)  # bit of every register that a wgmma reads or writes


def is_event(op: Op) -> bool:
    """Whether an instruction touches shared memory, starts or ends something asynchronous, or orders threads."""
    name = op.opcode
    if op.stem in ("ld", "st", "atom", "red"):
        return ".shared" in name or ".acquire" in name or ".release" in name or name.startswith("atom.global")
    if op.stem in ("mbarrier", "wgmma", "bar", "barrier", "fence", "ldmatrix", "stmatrix"):
        return True
    return (op.stem == "cp" and ".prefetch" not in name) or name == "griddepcontrol.wait"


def brackets(op: Op) -> list[str]:
    return _BRACKET.findall(op.operands)


def wgmma_registers(op: Op) -> tuple[list[str], list[str]]:
    """(accumulators, registers of the left operand) of a `wgmma.mma_async`."""
    lists = re.findall(r"\{([^}]*)\}", op.operands)
    parts = [[x.strip() for x in s.split(",")] for s in lists]
    return parts[0], parts[1] if len(parts) > 1 else []


def _wanted(op: Op) -> list[str]:
    """The operands of an event that its meaning depends on, as text, in order."""
    name = op.opcode
    if op.stem == "wgmma":
        return [x for x in op.operands.split("}")[-1].split(",") if "%rd" in x] if "mma_async" in name else []
    if name.startswith("mbarrier.try_wait"):
        return [brackets(op)[0], op.operands.rsplit(",", 1)[1]]
    if name.startswith(("mbarrier.init", "mbarrier.arrive.expect_tx")):
        return [brackets(op)[-1], op.operands.rsplit(",", 1)[1]]
    if name.startswith("cp.async.bulk.tensor") and "bulk_group" in name:  # [map, {…}], [source]
        return [brackets(op)[0].split(",")[0], brackets(op)[1]]
    if name.startswith("cp.async.bulk.tensor"):  # [target], [map, {…}], [barrier]
        places = brackets(op)
        return [places[0], places[1].split(",")[0], places[2], *re.findall(r"\],\s*(%h\d+)\s*$", op.operands)]
    if name.startswith(("cp.async.bulk.shared", "cp.async.bulk.global", "cp.reduce")):
        places = brackets(op)
        return [*places[:2], re.findall(r"\],\s*([%\w]+)", op.operands)[0], *places[2:]]
    if name.startswith("st.async"):  # [target], registers, [barrier]
        return brackets(op)
    if op.stem in ("bar", "barrier") and "cluster" not in name and ".warp" not in name:
        return [x for x in op.operands.split(",") if x.strip()]
    if op.stem in ("ld", "st", "atom", "red", "ldmatrix", "stmatrix", "mbarrier") or name.startswith("cp.async.c"):
        return brackets(op)[:1] + ([op.operands.rsplit(",", 1)[1]] if op.stem == "st" and (_PASSED.search(name) or _told(op)) else [])
    return []


def _told(op: Op) -> bool:
    """A store of a number by which blocks tell each other something, or one that tells a barrier."""
    return op.opcode.startswith("st.async") or (op.opcode.startswith("st.release") and ".shared" not in op.opcode)


class _Compiler:
    def __init__(self, f: Function) -> None:
        self.f = f
        self.events = {op for op in f.ops if is_event(op)}
        self.sets: dict[str, list[Op]] = {}
        for op in f.ops:
            for r in self._writes(op):
                self.sets.setdefault(r, []).append(op)
        self.numbers: dict[str, int] = {}
        self.passed: set[str] = set()  # values of these types go through shared memory: plain stores of them are needed
        self.matrix: dict[str, int] = {}

    def _writes(self, op: Op) -> list[str]:
        if op not in self.events:
            return op.writes()
        reads = op.opcode.startswith(("mbarrier.try", "mbarrier.test", "ldmatrix", "ld.", "atom"))
        return op.writes() if reads else []

    def _slice(self) -> None:
        """Number every register that events and branches depend on."""
        todo: list[str] = []
        for op in self.f.ops:
            if op in self.events:
                wanted = _wanted(op)
                todo += [r for x in (wanted[:1] if op.stem == "st" and not _told(op) else wanted) for r in _REGISTER.findall(x)]
            if op.guard and (op in self.events or op.stem == "bra" or op.leaves):
                todo.append(op.guard)
        while todo:
            r = todo.pop()
            if r in self.numbers:
                continue
            self.numbers[r] = len(self.numbers)
            for op in self.sets.get(r, ()):
                if op.guard:
                    todo.append(op.guard)
                if op not in self.events and op.stem != "vote":
                    todo += _REGISTER.findall(op.operands)
                elif op.stem == "ld" and (kind := _PASSED.search(op.opcode)) is not None and kind[1] not in self.passed:
                    self.passed.add(kind[1])
                    for s in self.f.ops:
                        if s.stem == "st" and s in self.events and self._passes(s):
                            todo += [x for w in _wanted(s)[1:] for x in _REGISTER.findall(w)]

    def _passes(self, op: Op) -> bool:
        kind = _PASSED.search(op.opcode)
        return _told(op) or (kind is not None and kind[1] in self.passed)

    def value(self, text: str) -> str:
        """A Python expression of an operand: a register, a number, a special register, `register+number`, or a symbol."""
        text = text.strip()
        if "+" in text:
            base, _, offset = text.partition("+")
            return f"{self.value(base)} + {int(offset)}"
        if text in _SPECIAL:
            return _SPECIAL[text]
        if text in self.numbers:
            return f"R[{self.numbers[text]}]"
        if re.fullmatch(r"-?\d+", text):
            return text
        if re.fullmatch(r"[A-Za-z_]\w*", text):
            return f"T.symbols[{text!r}]"
        raise CompileError(f"tokens: operand {text!r} is not known")

    def _plain(self, op: Op) -> str:
        """An integer instruction as one assignment. Registers hold unsigned numbers of their width."""
        parts = op.opcode.split(".")
        stem, kind = parts[0], parts[-1]
        xs = [x.strip() for x in op.operands.split(",")]
        if stem == "vote":  # the vote of data that are not computed: now one way, now the other
            return f"R[{self.numbers[xs[0]]}] = T.vote()"
        bits = 1 if kind == "pred" else int(re.findall(r"\d*$", kind)[0] or 0)
        signed = kind.startswith("s")
        mask = (1 << bits) - 1
        out, ins = xs[0], [] if stem == "ld" else [self.value(x) for x in xs[1:]]

        def s(x: str) -> str:
            return f"(({x} & {mask} ^ {1 << bits - 1}) - {1 << bits - 1})" if signed else f"({x} & {mask})"

        if op.opcode == "ld.global.u64" and all(s.opcode.startswith("ld.param") for s in self.sets.get(brackets(op)[0], ())):
            text = self.value(brackets(op)[0])  # an argument that lies in memory: its word is the value
        elif op.opcode.startswith("ld.param"):
            text = f"T.words[{int(brackets(op)[0][1:])}]"
        elif stem in ("mov", "cvta", "mapa"):
            text = f"{ins[0]} & {mask}" if stem != "mapa" else f"({ins[0]} & 0xFFFFFF) | ({ins[1]} + 1) << 24"
        elif stem == "cvt":
            wide, narrow = int(re.findall(r"\d+", parts[-2])[0]), int(re.findall(r"\d+", parts[-1])[0])
            inner = f"({ins[0]} & {(1 << narrow) - 1})"
            if parts[-1].startswith("s"):
                inner = f"({inner} ^ {1 << narrow - 1}) - {1 << narrow - 1}"
            text = f"({inner}) & {(1 << wide) - 1}"
        elif stem == "setp" and len(parts) == 3:
            text = f"{s(ins[0])} {_COMPARE[parts[1]]} {s(ins[1])}"
        elif stem == "selp":
            text = f"{ins[0]} if {ins[2]} else {ins[1]}"
        elif stem == "not" and kind == "pred":
            text = f"not {ins[0]}"
        elif stem in ("and", "or", "xor") and kind == "pred":
            text = f"{ins[0]} {_BINARY[stem]} {ins[1]}"
        elif stem in ("min", "max"):
            text = f"{stem}({s(ins[0])}, {s(ins[1])}) & {mask}"
        elif stem in ("mul", "mad"):
            wide = "wide" in parts
            text = f"{s(ins[0])} * {s(ins[1])}" + (f" >> {bits}" if "hi" in parts else "") + (f" + {ins[2]}" if stem == "mad" else "")
            text = f"({text}) & {(1 << 2 * bits) - 1 if wide else mask}"
        elif stem in ("div", "rem") and not signed:
            text = f"{s(ins[0])} {_BINARY[stem]} {s(ins[1])}"
        elif stem == "shr":
            text = f"({s(ins[0])} >> {ins[1]}) & {mask}"
        elif stem == "bfe":
            text = f"({ins[0]} >> {ins[1]}) & ((1 << {ins[2]}) - 1)"
        elif stem in ("add", "sub", "and", "or", "xor", "shl"):
            text = f"({ins[0]} {_BINARY[stem]} {ins[1]}) & {mask}"
        else:
            raise CompileError(f"tokens: `{op.text}` (line {op.line}) decides an address or a branch, and its meaning is not known")
        guard = self._guard(op)
        return f"{'if ' + guard + ': ' if guard else ''}R[{self.numbers[out]}] = {text}"

    def _guard(self, op: Op) -> str:
        return "" if not op.guard else ("not " if op.text.startswith("@!") else "") + self.value(op.guard)

    def build(self) -> Replay:
        f = self.f
        self._slice()
        for op in f.ops:
            if op.opcode.startswith("wgmma.mma_async"):
                for regs in wgmma_registers(op):
                    for r in regs:
                        self.matrix.setdefault(r, 1 << len(self.matrix))
        starts = {0, *(i for i in f.labels.values())}
        for i, op in enumerate(f.ops):
            if op in self.events or op.stem == "bra" or op.leaves:
                starts.add(i + 1)
        order = sorted(x for x in starts if x < f.end)
        number = {at: n for n, at in enumerate(order)}
        number[f.end] = -1
        lines, segments = [], []
        for n, at in enumerate(order):
            end = order[n + 1] if n + 1 < len(order) else f.end
            body = [f"def s{n}(R, T):"]
            last = f.ops[end - 1]
            special = last in self.events or last.stem == "bra" or last.leaves
            for op in f.ops[at : end - 1 if special else end]:
                written = self._writes(op)
                if any(r in self.numbers for r in written):
                    body.append("  " + self._plain(op))
            guard = self._guard(last) if special else ""
            found = Segment(_never, last, first=at, end=end)
            if last.stem == "bra":
                ways = [number[x] for x in last.next]
                body.append(f"  return ({ways[0]} if {guard} else {ways[1]}), None" if guard else f"  return {ways[0]}, None")
            elif last.leaves:
                body.append(f"  return (-1 if {guard} else {number[end]}), None" if guard else "  return -1, None")
            elif special:
                wanted = _wanted(last)
                if last.stem == "st" and not self._passes(last):
                    wanted = wanted[:1]
                args = f"({', '.join(self.value(x) for x in wanted)}{',' if wanted else ''})"
                body.append(f"  return {number[end]}, {args + ' if ' + guard + ' else None' if guard else args}")
                found.event, found.index, found.width = True, end - 1, width(last)
                results = [r for r in self._writes(last) if r in self.numbers]
                found.result = self.numbers[results[0]] if results else -1
            else:
                body.append(f"  return {number[end]}, None")
            for op in f.ops[at:end] if self.matrix else ():
                if op.stem != "wgmma":
                    for r in _REGISTER.findall(op.operands):
                        found.touched |= self.matrix.get(r, 0)
                    for r in op.writes():
                        found.written |= self.matrix.get(r, 0)
            lines += body
            segments.append(found)
        space: dict[str, Any] = {}
        exec("\n".join(lines), space)  # what is run is made here, from numbers and names of registers
        for n, segment in enumerate(segments):
            segment.step = space[f"s{n}"]
        return Replay(f, segments, len(self.numbers), self.matrix)


def _never(registers: list[Any], thread: Any) -> tuple[int, Any]:
    raise AssertionError("a segment without code")


def compile_function(f: Function) -> Replay:
    return _Compiler(f).build()
