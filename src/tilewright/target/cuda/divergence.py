"""Which registers of a PTX function may differ between threads that run it together: of a block, of a warp, or of a cluster's blocks.

They come from thread numbers, from what the hardware gives to a thread or a warp alone, from memory that is a thread's own or that other
blocks write meanwhile, from what such registers decide or address, and from being set where only a part of the threads runs and read where
they have met again. Within a warp, whole numbers of warps are the same: `%tid.x >> 5`, `%tid.x < 128`, a shuffle from one lane, a vote
(blocks of one axis, as everywhere where warps have numbers).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .ptx_flow import Function, Op

WARP = 32
LOCAL = "%_local"  # all of a thread's own memory, as one register
_SPECIAL = r"%(?:tid|laneid|warpid|lanemask\w*|clock\w*|globaltimer\w*|smid|elect)\b"
_THREAD = re.compile(_SPECIAL)
_LANE = re.compile(_SPECIAL.replace("|warpid", "").replace("|smid", ""))
_RANK = re.compile(_SPECIAL[:-2].replace("tid|", "tid|cluster_ctarank|cluster_ctaid|") + r"\b")
_DIFFERENT = ("shfl", "vote", "redux", "activemask", "match", "elect", "atom", "mbarrier", "ldmatrix", "wmma", "mma", "wgmma",
              "tcgen05", "tex", "suld")  # fmt: skip
_OF_A_WARP = ("vote", "redux", "activemask", "match")
_COMPARISON = re.compile(r"setp\.(lt|ge|lo|hs|le|gt|ls|hi)\.[us]\d+")
_CHANGES = re.compile(r"ld\.(?:volatile|relaxed|acquire|mmio)(?!.*\.shared)")  # others may write it meanwhile
_ANY_LOAD = re.compile(r"ld\.(?!global|shared|param|const)")
_ANY_STORE = re.compile(r"st\.(?!global|shared|param)")
_MEETS = ("bar", "barrier")  # bar.red gives every thread the same value


def own(op: Op, among: str) -> bool:
    """Whether the instruction gives each of the threads (of a "block", "warp" or "cluster") something of its own, whatever it reads."""
    if among == "warp":
        return not _for_all_lanes(op) and (op.stem in _DIFFERENT or bool(_LANE.search(op.operands)))
    return op.stem in _DIFFERENT or bool((_RANK if among == "cluster" else _THREAD).search(op.operands))


def _for_all_lanes(op: Op) -> bool:
    """Votes, and a shuffle that takes one lane's value."""
    return op.stem in _OF_A_WARP or bool(re.match(r"shfl\.(?:sync\.)?idx", op.opcode) and op.operands.split(",")[2].strip().isdigit())


def writes(op: Op) -> list[str]:
    """Registers set, a thread's own memory and accumulators among them."""
    if op.opcode.startswith("st.local"):
        return [LOCAL]
    if op.opcode.startswith("wgmma.mma_async"):
        return re.findall(r"%\w+", op.operands.split("}")[0])
    return op.writes()


def reads(op: Op) -> list[str]:
    return [*op.reads(), LOCAL] if op.opcode.startswith("ld.local") else op.reads()


def divergent(
    f: Function, reached: set[int], region: Callable[[int], set[int]], splits: Callable[[Op, set[str]], bool],
    among: str, given: frozenset[str] = frozenset(), results: Callable[[Op], bool] = lambda op: True,
) -> set[str]:  # fmt: skip
    """Registers that may differ. `given` do at the start; `results`: whether what a call gives may differ."""
    differs: set[str] = set(given)
    parted: set[int] = set()  # branches already accounted for
    whole = _thread_numbers(f) if among == "warp" else set()
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
            if written and not set(written) <= differs and _differs(op, differs, among, whole, results, aliased):
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


def _differs(op: Op, differs: set[str], among: str, whole: set[str], results: Callable[[Op], bool], aliased: bool) -> bool:
    if op.stem in _MEETS:
        return False
    guarded = bool(op.guard) and op.guard in differs
    if among == "warp" and (_for_all_lanes(op) or _of_whole_warps(op, whole)):
        return guarded
    if op.stem == "call":
        return guarded or results(op)
    if own(op, among) or _CHANGES.match(op.opcode):
        return True
    mine = aliased and LOCAL in differs and _ANY_LOAD.match(op.opcode)
    return bool(mine) or any(r in differs for r in reads(op))


def _thread_numbers(f: Function) -> set[str]:
    """Registers that are `%tid.x` plus a multiple of a warp's threads and never anything else."""
    made: dict[str, list[Op]] = {}
    for op in f.ops:
        for r in op.writes():
            made.setdefault(r, []).append(op)
    found: set[str] = set()
    for op in f.ops:
        to, *parts = (x.strip() for x in op.operands.split(","))
        if len(made.get(to, ())) != 1:
            continue
        moved = op.stem in ("mov", "cvt") and parts in (["%tid.x"], *([r] for r in found))
        if moved or (op.stem in ("add", "sub") and len(parts) == 2 and parts[0] in found and _number(parts[1]) % WARP == 0):
            found.add(to)
    return found


def _of_whole_warps(op: Op, whole: set[str]) -> bool:
    """Whether a thread's number becomes something that all threads of a warp share."""
    _, *parts = (x.strip() for x in op.operands.split(","))
    if len(parts) < 2 or (parts[0] not in whole and parts[0] != "%tid.x"):
        return False
    number = _number(parts[1])
    if op.stem in ("shr", "bfe"):
        return number >= 5
    if op.stem in ("div", "and"):
        return number % WARP == 0
    compared = _COMPARISON.match(op.opcode)
    return compared is not None and (number + (compared[1] in ("le", "gt", "ls", "hi"))) % WARP == 0


def _number(text: str) -> int:
    """1, which is no multiple of anything here, where it is no number."""
    return int(text, 0) if re.fullmatch(r"-?(?:[1-9]\d*|0x[0-9a-fA-F]+|0)", text) else 1
