"""Which registers of a PTX function may differ between threads that run it together: of a block, of a warp, or of a cluster's blocks.

They come from thread numbers, from what the hardware gives to a thread or a warp alone, from memory that is a thread's own or that other
blocks write meanwhile, from what such registers decide or address, and from being set where only a part of the threads runs and read where
they have met again. Within a warp, integers of warps are the same: `%tid.x >> 5`, `%tid.x < 128`, a shuffle from one lane, a vote
(blocks of one axis, as everywhere where warps have numbers). Within a cluster integers of clusters are, where the kernel says how
many blocks one has: `%ctaid.x >> 1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ..ptx.flow import Function, Op

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
