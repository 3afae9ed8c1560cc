"""Barrier safety of PTX text: can a thread leave, or go another way, before a barrier that others of its block still wait at?

A branch is harmless when all threads of a block take it together: its predicate comes from block-wide values only (parameters, block
numbers, constants, loads at such addresses), or the author says so with `.uni`. For every other branch, and every exit under a predicate,
the instructions that only a part of the threads may be executing are those between it and the point where the ways meet again (its
immediate post-dominator). A block-wide barrier in there is a finding: a loop whose trip count differs between threads
around a barrier, a barrier under an `if`, an early exit. Exits and branches after the last barrier are not.

Barriers with a thread count of their own (`bar.sync 1, 128`), `.warp` barriers and mbarriers are not block-wide and are left alone.

>>> from .ptx_text import KernelText
>>> k = KernelText("early", [])
>>> k.emit("mov.u32 %r1, %tid.x;"); k.emit("setp.gt.u32 %p1, %r1, 7;"); k.emit("@%p1 exit;"); k.emit("bar.sync 0;")
>>> print(*check(k.text()), sep="\\n")
early: line 7: `@%p1 exit` lets threads leave before `bar.sync 0` (line 8)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .ptx_flow import Function, Op, parse

_THREAD = re.compile(r"%(?:tid|laneid|warpid|lanemask\w*|clock\w*|globaltimer\w*|smid|elect)\b")
_DIFFERENT = (
    "shfl",
    "vote",
    "redux",
    "activemask",
    "match",
    "elect",
    "atom",
    "mbarrier",
    "ldmatrix",
    "wmma",
    "mma",
    "wgmma",
    "call",
    "tex",
    "suld",
)
_BLOCK_VALUE = ("bar", "barrier")  # bar.red gives every thread the same value


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
    return [x for f in parse(text) for x in check_function(f)]


def check_function(f: Function) -> list[Finding]:
    if not any(_is_barrier(op) for op in f.ops):
        return []
    reached = _reachable(f, [0])
    after = _post_dominators(f)
    differs = _divergent_registers(f, after, reached)
    found = []
    for i, op in enumerate(f.ops):
        if i not in reached:
            continue
        if _is_barrier(op) and op.guard in differs:
            found.append(Finding(f.name, op.line, op.text, "barrier", op.line, op.text.split(None, 1)[1]))
        if not _splits(op, differs):
            continue
        region = _region(f, i, after[i])
        inside = sorted(j for j in region if j < f.end and _is_barrier(f.ops[j]) and j in reached)
        if inside:
            first = f.ops[next((j for j in inside if j > i), inside[0])]
            found.append(Finding(f.name, op.line, op.text, _kind(f, i, region), first.line, first.text))
    return found


def _kind(f: Function, i: int, region: set[int]) -> str:
    op = f.ops[i]
    if op.leaves or any(_only_leaves(f, s) for s in op.next):
        return "exit"
    return "loop" if i in region else "branch"


def _only_leaves(f: Function, at: int) -> bool:
    """Whether control goes straight to an exit from here, with no work on the way."""
    seen: set[int] = set()
    while at < f.end and at not in seen:
        seen.add(at)
        op = f.ops[at]
        if op.leaves and not op.guard:
            return True
        if op.stem != "bra" or op.guard:
            return False
        at = op.next[0]
    return at == f.end


def _is_barrier(op: Op) -> bool:
    """A barrier of all threads of the block (or cluster)."""
    if op.stem not in ("bar", "barrier") or ".warp" in op.opcode or ".arrive" in op.opcode:
        return False
    if op.opcode.startswith("barrier.cluster"):
        return True
    operands = [x for x in op.operands.split(",") if x.strip()]
    reduction = ".red" in op.opcode
    return len(operands) == (3 if reduction else 1) or (not operands and not reduction)


def _splits(op: Op, differs: set[str]) -> bool:
    """Whether threads of a block may part here."""
    if op.uniform:
        return False
    if op.stem == "brx":
        return any(r in differs for r in op.reads())
    return bool(op.guard) and op.guard in differs and (op.stem == "bra" or op.leaves)


def _reachable(f: Function, starts: list[int], stop: int | None = None) -> set[int]:
    seen: set[int] = set()
    todo = [s for s in starts if s != stop]
    while todo:
        i = todo.pop()
        if i in seen:
            continue
        seen.add(i)
        if i < f.end:
            todo.extend(s for s in f.ops[i].next if s != stop)
    return seen


def _region(f: Function, i: int, meet: int) -> set[int]:
    """Instructions that some threads may execute while others have gone the other way."""
    return _reachable(f, f.ops[i].next, meet)


def _post_dominators(f: Function) -> list[int]:
    """The immediate post-dominator of every instruction; the end where no other exists (also for endless loops)."""
    end = f.end
    before: list[list[int]] = [[] for _ in range(end + 1)]
    for i, op in enumerate(f.ops):
        for s in op.next:
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
            ways = [s for s in f.ops[n].next if s in found]
            new = ways[0]
            for s in ways[1:]:
                new = meet(new, s)
            if found.get(n) != new:
                found[n] = new
                changed = True
    return [found.get(i, end) for i in range(end)]


def _divergent_registers(f: Function, after: list[int], reached: set[int]) -> set[str]:
    """Registers that may differ between threads of a block: from thread numbers, from what such registers decide or address, and those
    set where only a part of the threads runs and read where they have met again."""
    differs: set[str] = set()
    parted: set[int] = set()  # branches already accounted for
    changed = True
    while changed:
        changed = False
        for i, op in enumerate(f.ops):
            if i not in reached:
                continue
            written = op.writes()
            if written and not set(written) <= differs and _differs(op, differs):
                differs.update(written)
                changed = True
            if i not in parted and _splits(op, differs):
                parted.add(i)
                region = _region(f, i, after[i])
                inside = {r for j in region if j < f.end for r in f.ops[j].writes()}
                outside = {r for j in reached - region if j < f.end for r in f.ops[j].reads()}
                if i in region and after[i] not in op.next:  # back to the loop's start on two ways: what it carries differs too
                    outside |= {r for j in region if j < f.end for r in f.ops[j].reads()}
                new = (inside & outside) - differs
                differs |= new
                changed = True
    return differs


def _differs(op: Op, differs: set[str]) -> bool:
    if op.stem in _BLOCK_VALUE:
        return False
    if op.stem in _DIFFERENT or _THREAD.search(op.operands):
        return True
    return any(r in differs for r in op.reads())
