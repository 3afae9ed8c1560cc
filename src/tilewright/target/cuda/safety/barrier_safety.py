r"""Barrier safety of PTX text: can a thread leave, or go another way, before a barrier that others of its block still wait at?

A branch is harmless when all threads of a block take it together: its predicate comes from block-wide values only (parameters, block
numbers, constants, loads at such addresses), or the author says so with `.uni`. For every other branch, and every exit
under a predicate, the instructions that only a part of the threads may be executing are those between it and the point where the ways join
again (its immediate post-dominator). A block-wide barrier in there is a finding: a loop whose trip count differs between threads around a
barrier, a barrier under an `if`, an early exit. Exits and branches after the last barrier are not, and neither is `trap`, which ends the
whole launch.

A barrier of a cluster is missed by what differs between its blocks too (their numbers, their shared memory). One with a thread count
(`bar.sync 1, 128`) is passed by whole warps: a finding is what parts threads of one warp around it and, where the count is that of the
block (`.reqntid`), all that parts the block. A call of a function that waits at a barrier is a barrier, of one that exits an exit; a
function's parameters differ where some call gives it values that differ. `.warp` barriers and mbarriers are left alone.

>>> from ..ptx.text import KernelText
>>> k = KernelText("early", [])
>>> k.emit("mov.u32 %r1, %tid.x;"); k.emit("setp.gt.u32 %p1, %r1, 7;"); k.emit("@%p1 exit;"); k.emit("bar.sync 0;")
>>> print(*check(k.text()), sep="\n")
early: line 7: `@%p1 exit` lets threads leave before `bar.sync 0` (line 8)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..ptx.flow import Function, Op, parse

WARP = 32
UNKNOWN = 1 << 40  # blocks of a cluster
LOCAL = "%_local"  # all of a thread's own memory, as one register
CARRY = "%_carry"  # what `add.cc` leaves for `addc`
_SPECIAL = r"%(?:tid|laneid|warpid|lanemask\w*|clock\w*|globaltimer\w*|smid|elect)\b"
_THREAD = re.compile(_SPECIAL)
_LANE = re.compile(_SPECIAL.replace("|warpid", "").replace("|smid", ""))
_DIFFERENT = ("shfl", "vote", "redux", "activemask", "match", "elect", "atom", "mbarrier", "ldmatrix", "wmma", "mma", "wgmma",
              "tcgen05", "tex", "suld")  # fmt: skip
_OF_A_WARP = ("vote", "redux", "activemask")
_OF_A_BLOCK = re.compile(r"ld\.(?:\w+\.)*shared|getctarank")  # each block of a cluster has its own
_WITH_CARRY = ("addc", "subc", "madc")
_COMPARISON = re.compile(r"setp\.(lt|ge|lo|hs|le|gt|ls|hi)\.[us]\d+")
_CHANGES = re.compile(r"ld\.(?:volatile|relaxed|acquire|mmio)(?!.*\.shared)")  # others may write it meanwhile
_ANY_LOAD = re.compile(r"ld\.(?!global|shared|param|const)")
_ANY_STORE = re.compile(r"st\.(?!global|shared|param)")
_MEETS = ("bar", "barrier")  # bar.red gives every thread of the block the same value


class Numbers:
    """What numbers the threads (of a "block", "warp" or "cluster"), and of which number whole multiples are the same for all of them."""

    # Which registers of a PTX function may differ between threads that run it together: of a block, of a warp, or of a cluster's blocks.
    # They come from thread numbers, from what the hardware gives to a thread or a warp alone, from memory that is a thread's own or that
    # other blocks write meanwhile, from what such registers decide or address, and from being set where only a part of the threads runs and
    # read where all run again. Within a warp, integers of warps are the same: `%tid.x >> 5`, `%tid.x < 128`, a shuffle from one lane,
    # a vote (blocks of one axis, as everywhere where warps have numbers). Within a cluster integers of clusters are, where the kernel says
    # how many blocks one has: `%ctaid.x >> 1`.
    def __init__(self, f: Function, among: str) -> None:
        self.among = among
        self.name, self.unit, self.special = ("%tid.x", WARP, _LANE) if among == "warp" else ("", UNKNOWN, _THREAD)
        if among == "cluster":
            sizes = f.cluster or (UNKNOWN,) * 3
            self.name, self.unit = "%ctaid.x", sizes[0]
            axes = "".join(axis for axis, size in zip("xyz", sizes, strict=True) if size > 1)
            self.special = re.compile(rf"{_SPECIAL}|%cluster_cta(?:rank|id)\b" + (rf"|%ctaid(?:\.[{axes}]|(?!\.))" if axes else ""))
        self.whole = self._registers(f)

    def own(self, op: Op) -> bool:
        """Whether the instruction gives each of the threads something of its own, whatever it reads."""
        if self.among == "cluster" and _OF_A_BLOCK.match(op.opcode):
            return True
        return op.stem in _DIFFERENT or bool(self.special.search(op.operands))

    def _registers(self, f: Function) -> set[str]:
        """Registers that are the number plus whole multiples and never anything else."""
        made: dict[str, list[Op]] = {}
        for op in f.ops if self.name else ():
            for r in op.writes():
                made.setdefault(r, []).append(op)
        found: set[str] = set()
        for op in f.ops if self.name else ():
            to, *parts = (x.strip() for x in op.operands.split(","))
            if len(made.get(to, ())) != 1:
                continue
            moved = op.stem in ("mov", "cvt") and parts in ([self.name], *([r] for r in found))
            if moved or (op.stem in ("add", "sub") and len(parts) == 2 and parts[0] in found and self._multiple(parts[1])):
                found.add(to)
        return found

    def shared(self, op: Op) -> bool:
        """Whether a number becomes something that all have in common."""
        if not self.name:
            return False
        _, *parts = (x.strip() for x in op.operands.split(","))
        if len(parts) < 2 or (parts[0] not in self.whole and parts[0] != self.name):
            return False
        if op.stem in ("shr", "bfe"):
            number = _number(parts[1])
            return number is not None and (1 << number) % self.unit == 0
        if op.stem in ("div", "and"):
            return self._multiple(parts[1]) and (op.stem == "div" or self.unit & (self.unit - 1) == 0)
        compared = _COMPARISON.match(op.opcode)
        return compared is not None and self._multiple(parts[1], compared[1] in ("le", "gt", "ls", "hi"))

    def _multiple(self, text: str, more: int = 0) -> bool:
        number = _number(text)
        return number is not None and (number + more) % self.unit == 0


def _for_all_lanes(op: Op) -> bool:
    """Votes, and a shuffle that takes one lane's value (one of a part of the warp, where its fourth operand says so)."""
    if not re.match(r"shfl\.(?:sync\.)?idx", op.opcode):
        return op.stem in _OF_A_WARP or op.opcode.startswith("match.all")
    lane, last = (x.strip() for x in op.operands.split(",")[2:4])
    return lane.isdigit() and last in ("31", "0x1f")


def writes(op: Op) -> list[str]:
    """Registers set, a thread's own memory and accumulators among them."""
    if op.opcode.startswith("st.local"):
        return [LOCAL]
    if op.opcode.startswith("wgmma.mma_async"):
        return re.findall(r"%\w+", op.operands.split("}")[0])
    return [*op.writes(), CARRY] if ".cc" in op.opcode else op.writes()


def reads(op: Op) -> list[str]:
    if op.stem in _WITH_CARRY:
        return [*op.reads(), CARRY]
    return [*op.reads(), LOCAL] if op.opcode.startswith("ld.local") else op.reads()


def divergent(f: Function, reached: set[int], region: Callable[[int], set[int]], splits: Callable[[Op, set[str]], bool], among: str,
              given: frozenset[str] = frozenset(), results: Callable[[Op], bool] = lambda op: True) -> set[str]:
    """Registers that may differ. `given` do at the start; `results`: whether what a call gives may differ."""
    differs: set[str] = set(given)
    parted: set[int] = set()  # branches already accounted for
    numbers = Numbers(f, among)
    aliased = any(op.opcode.startswith("cvta.local") for op in f.ops)  # a thread's own memory is reached by other addresses too
    changed = True
    while changed:
        changed = False
        for i, op in enumerate(f.ops):
            if i not in reached:
                continue
            written = writes(op)
            if aliased and _ANY_STORE.match(op.opcode):
                written = [LOCAL]
            if written and not set(written) <= differs and _differs(op, differs, numbers, results, aliased):
                differs.update(written)
                changed = True
            if i not in parted and splits(op, differs):
                parted.add(i)
                apart = region(i)
                inside = {r for j in apart if j < f.end for r in writes(f.ops[j])}
                outside = {r for j in reached - apart if j < f.end for r in reads(f.ops[j])}
                if i in apart:  # back to a loop's start on two ways: what it carries differs too
                    meet = [s for s in op.next if s not in apart]
                    if not meet:
                        outside |= {r for j in apart if j < f.end for r in reads(f.ops[j])}
                differs |= inside & outside
                changed = True
    return differs


def _differs(op: Op, differs: set[str], numbers: Numbers, results: Callable[[Op], bool], aliased: bool) -> bool:
    if op.stem in _MEETS:
        return numbers.among == "cluster" and any(r in differs for r in reads(op))
    guarded = bool(op.guard) and op.guard in differs
    if numbers.shared(op):
        return guarded
    if numbers.among == "warp" and _for_all_lanes(op):
        return guarded or op.operands.split(",")[-1].strip() in differs  # lanes that ask apart, each with its own mask
    if op.stem == "call":
        return guarded or results(op)
    if numbers.own(op) or _CHANGES.match(op.opcode):
        return True
    mine = aliased and LOCAL in differs and _ANY_LOAD.match(op.opcode)
    return bool(mine) or any(r in differs for r in reads(op))


def _number(text: str) -> int | None:
    return int(text, 0) if re.fullmatch(r"-?(?:[1-9]\d*|0x[0-9a-fA-F]+|0)", text) else None


@dataclass(frozen=True)
class Finding:
    """A way on which threads can miss a barrier."""

    function: str
    line: int
    text: str
    kind: str  # "exit", "branch", "loop" or "barrier"
    barrier_line: int
    barrier: str

    def __str__(self) -> str:
        what = {
            "exit": "lets threads leave before",
            "branch": "lets threads go around",
            "loop": "lets threads leave the loop around",
            "barrier": "keeps threads from",
        }[self.kind]
        return f"{self.function}: line {self.line}: `{self.text}` {what} `{self.barrier}` (line {self.barrier_line})"


def check(text: str) -> list[Finding]:
    """Every finding in a PTX module, in the order of its lines."""
    functions = parse(text)
    module = _Module(functions)
    return [x for f in functions for x in module.findings(f)]


AMONG = ("block", "cluster", "warp")  # threads that a barrier is for


class _Module:
    """What the functions of a module do to one another's barriers, and which of their parameters differ."""

    def __init__(self, functions: list[Function]) -> None:
        self.named = {f.name: f for f in functions}
        calls = {f.name: [op for op in f.ops if op.stem == "call"] for f in functions}
        self.waits = {a: self._spread(calls, partial(_has_barrier, a)) for a in AMONG}
        self.quits = self._spread(calls, lambda f: not f.entry and any(op.stem == "exit" for op in f.ops))
        called = {op.callee for ops in calls.values() for op in ops}
        unknown = {f.name for f in functions if not f.entry and f.name not in called}  # they may be given anything
        self.flows = {f.name: _Flow(f, self) for f in functions}
        self.given: dict[tuple[str, str], frozenset[str]] = {}
        self.results: dict[tuple[str, str], bool] = {}  # whether what a function gives may differ
        for among in AMONG:
            self.results |= {(among, f.name): True for f in functions}
            for _ in range(3):  # what is found with too many differences is never too few
                self.given |= {(among, f.name): frozenset(f.takes) if f.name in unknown else frozenset() for f in functions}
                self._pass_on(among, [f for f in functions if calls[f.name]], calls)
                new = {(among, f.name): bool({*f.gives} & self.flows[f.name].differs(among)) for f in functions if f.gives}
                if not new or new.items() <= self.results.items():
                    break
                self.results |= new

    def _spread(self, calls: dict[str, list[Op]], has: Callable[[Function], bool]) -> set[str]:
        """Functions that have something, or call one that has; an unknown address may be any of them."""
        found = {n for n, f in self.named.items() if has(f)}
        while more := {n for n, ops in calls.items() if n not in found and any(op.callee in found for op in ops)}:
            found |= more
        return found

    def _pass_on(self, among: str, todo: list[Function], calls: dict[str, list[Op]]) -> None:
        """Note which parameters differ in some call."""
        while todo:
            f = todo.pop()
            differs = self.flows[f.name].differs(among)
            for op in calls[f.name]:
                callee = self.named.get(op.callee)
                if callee is None:
                    continue
                values = op.operands[op.operands.index(op.callee) + len(op.callee) :]
                arguments = [x.strip() for x in values.strip(" ,()\t\n").split(",")]
                before = self.given[among, callee.name]
                new = before | {p for p, x in zip(callee.takes, arguments, strict=False) if x in differs}
                self.given[among, callee.name] = new
                if new != before and callee not in todo:
                    todo.append(callee)

    def findings(self, f: Function) -> list[Finding]:
        found: dict[int, Finding] = {}
        flow = self.flows[f.name]
        for among in AMONG:
            barriers = [i for i in sorted(flow.reached) if i < f.end and self.barrier(f.ops[i], f, among)]
            for x in flow.findings(barriers, among) if barriers else ():
                found.setdefault(x.line, x)
        return [found[line] for line in sorted(found)]

    def barrier(self, op: Op, f: Function, among: str) -> bool:
        """Whether this is a barrier of these threads, or in the function that is called (an unknown one may be any)."""
        if op.stem != "call":
            return _barrier(op, f) == among
        return op.callee in self.waits[among] or (op.callee.startswith("%") and bool(self.waits[among] - {f.name}))


class _Flow:
    """The ways through one function."""

    def __init__(self, f: Function, module: _Module) -> None:
        self.f, self.module = f, module
        self.ways = [self._ways(op) for op in f.ops]
        self.reached = self._reachable([0])
        self.after = _post_dominators(f.end, self.ways)

    def _ways(self, op: Op) -> list[int]:
        if op.stem == "trap":
            return [x for x in op.next if x != self.f.end]
        return [self.f.end, *op.next] if op.stem == "call" and op.callee in self.module.quits else op.next

    def splits(self, op: Op, differs: set[str]) -> bool:
        """Whether threads may part here."""
        if op.stem == "call":
            return op.callee in self.module.quits
        if op.uniform or op.stem == "trap":
            return False
        if op.stem == "brx":
            return any(r in differs for r in op.reads())
        return bool(op.guard) and op.guard in differs and (op.stem == "bra" or op.leaves)

    def differs(self, among: str) -> set[str]:
        results = self.module.results
        given = self.module.given[among, self.f.name]
        return divergent(self.f, self.reached, self.region, self.splits, among, given, lambda op: results.get((among, op.callee), True))

    def region(self, i: int) -> set[int]:
        """Instructions that some threads may execute while others have gone the other way."""
        return self._reachable(self.ways[i], self.after[i])

    def _reachable(self, starts: list[int], stop: int | None = None) -> set[int]:
        seen: set[int] = set()
        todo = [s for s in starts if s != stop]
        while todo:
            i = todo.pop()
            if i in seen:
                continue
            seen.add(i)
            if i < self.f.end:
                todo.extend(s for s in self.ways[i] if s != stop)
        return seen

    def findings(self, barriers: list[int], among: str) -> list[Finding]:
        f, found = self.f, []
        differs = self.differs(among)
        for i in sorted(self.reached - {f.end}):
            op = f.ops[i]
            if i in barriers and op.guard in differs:
                found.append(Finding(f.name, op.line, op.text, "barrier", op.line, op.text.split(None, 1)[1]))
            if not self.splits(op, differs):
                continue
            region = self.region(i)
            inside = [j for j in barriers if j in region]
            if inside:
                first = f.ops[next((j for j in inside if j > i), inside[0])]
                found.append(Finding(f.name, op.line, op.text, self._kind(i, region), first.line, first.text))
        return found

    def _kind(self, i: int, region: set[int]) -> str:
        op = self.f.ops[i]
        if op.leaves or op.stem == "call" or any(self._only_leaves(s) for s in self.ways[i]):
            return "exit"
        return "loop" if i in region else "branch"

    def _only_leaves(self, at: int) -> bool:
        """Whether control goes straight to an exit from here, with no work on the way."""
        seen: set[int] = set()
        while at < self.f.end and at not in seen:
            seen.add(at)
            op = self.f.ops[at]
            if op.leaves and not op.guard:
                return op.stem != "trap"
            if op.stem != "bra" or op.guard:
                return False
            at = op.next[0]
        return at == self.f.end


def _has_barrier(among: str, f: Function) -> bool:
    return any(_barrier(op, f) == among for op in f.ops)


def _barrier(op: Op, f: Function) -> str:
    """Whose barrier an instruction is: of all threads of the "block", of a "cluster"'s, of whole warps ("warp"), or of nobody ("")."""
    if op.stem not in ("bar", "barrier") or ".warp" in op.opcode:
        return ""
    if op.opcode.startswith("barrier.cluster"):
        return "cluster"
    if ".arrive" in op.opcode:
        return ""
    operands = [x.strip() for x in op.operands.split(",") if x.strip()]
    reduction = ".red" in op.opcode
    if len(operands) == (3 if reduction else 1) or (not operands and not reduction):
        return "block"
    if operands[2 if reduction else 1] == str(f.threads):
        return "block"
    return "warp" if op.stem == "bar" or ".aligned" in op.opcode else ""


def _post_dominators(end: int, ways: list[list[int]]) -> list[int]:
    """The immediate post-dominator of every instruction; the end where no other exists (also for endless loops)."""
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for i, to in enumerate(ways):
        for s in to:
            before[s].append(i)
    order: list[int] = []  # reverse post-order of the reversed graph, from the end
    seen = {end}
    stack: list[tuple[int, int]] = [(end, 0)]
    while stack:
        node, k = stack.pop()
        if k < len(before[node]):
            stack.append((node, k + 1))
            p = before[node][k]
            if p not in seen:
                seen.add(p)
                stack.append((p, 0))
        else:
            order.append(node)
    order.reverse()
    number = {n: k for k, n in enumerate(order)}
    found: dict[int, int] = {end: end}

    def meet(a: int, b: int) -> int:
        while a != b:
            while number[a] > number[b]:
                a = found[a]
            while number[b] > number[a]:
                b = found[b]
        return a

    changed = True
    while changed:
        changed = False
        for n in order[1:]:
            to = [s for s in ways[n] if s in found]
            new = to[0]
            for s in to[1:]:
                new = meet(new, s)
            if found.get(n) != new:
                found[n] = new
                changed = True
    return [found.get(i, end) for i in range(end)]
