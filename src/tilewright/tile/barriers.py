"""Barriers of a block of threads, derived from the token graph, for views in `shared` memory, and for those in `global` memory whose
accesses have tokens.

An access needs a barrier before it when a token path leads to it from an access to the same memory, one of the two writes, and no
barrier stands between them. Straight lines are handled, and loops; where the stages of a loop form a ring, accesses at index
`(i + c) mod S` (or at a literal index) of the leading axis are told apart. Accesses of shared memory in branches are rejected, not guessed;
where those of global memory stand there, each has its barrier after the accesses that its tokens name. Views of global memory are one
memory: two of them may be the same buffer. A release comes after a barrier of its own, an acquire before one.
On CPUs one program is one thread: nothing is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.errors import CompileError
from .ir import INDEX, Block, Instr, Kernel, Operand, Var, ViewType
from .text import instr_text
from .tokens import ACCESS, scratch_roots


@dataclass(frozen=True, eq=False)
class Barrier:
    """A block barrier before `block.body[position]`."""

    block: Block
    position: int
    before: Instr
    after: Instr  # the access it waits for


@dataclass(frozen=True)
class BarrierPlan:
    """The derived barriers, and how many one barrier after every such access would need."""

    barriers: tuple[Barrier, ...]
    naive: int


@dataclass(frozen=True)
class _Slot:
    """Index of the leading axis: a literal (`size` 0), or `(counter + at) mod size`."""

    at: int
    size: int = 0

    def shifted(self, step: int) -> _Slot:
        """The same place, seen one iteration later."""
        return self if not self.size else _Slot((self.at - step) % self.size, self.size)


@dataclass(frozen=True)
class _Access:
    bit: int
    instr: Instr
    root: Var
    write: bool
    slot: _Slot | None


def derive_barriers(kernel: Kernel, target_kind: str) -> BarrierPlan:
    """The block barriers that a target of kind "cpu" or "gpu" needs."""
    if target_kind not in ("cpu", "gpu"):
        raise CompileError(f"barriers: target_kind must be cpu or gpu, got {target_kind!r}")
    derive = _Derive(kernel)
    if target_kind == "cpu":
        return BarrierPlan((), 0)
    try:
        derive.block(kernel.body, None, 1)
    except CompileError:
        if not derive.ordered:
            raise
        ordered, derive = derive.ordered, _Derive(kernel, shared_only=True)
        derive.block(kernel.body, None, 1)
        derive.naive += len(ordered)
        derive.one_by_one(kernel.body, ordered)
    return BarrierPlan(tuple(derive.barriers.values()), derive.naive)


class _Derive:
    def __init__(self, kernel: Kernel, *, shared_only: bool = False) -> None:
        self.kernel = kernel
        scratch = scratch_roots(kernel)
        self.roots = {v: r for v, r in scratch.items() if isinstance(r.type, ViewType) and r.type.space == "shared"}
        everywhere = Var(INDEX, "global")
        tokens = () if shared_only else (i for i in kernel.walk() if i.op in ACCESS and (i.tokens or i.tokens_out))
        self.ordered = {i for i in tokens if i.operands[0] not in scratch}
        self.roots.update((i.operands[0], everywhere) for i in self.ordered)  # type: ignore[misc]
        self.defs = {r: i for i in kernel.walk() for r in i.results}
        self.barriers: dict[Instr, Barrier] = {}
        self.pending: list[_Access] = []
        self.reach: dict[Var, int] = {}  # token -> bits of the accesses it follows
        self.bits = 0
        self.naive = 0

    def counts(self, i: Instr) -> bool:
        """Whether an access may need a barrier: of shared memory, or of global memory with a token."""
        root = self.roots.get(i.operands[0]) if i.op in ACCESS else None  # type: ignore[arg-type]
        return root is not None and (isinstance(root.type, ViewType) or i in self.ordered)

    def one_by_one(self, block: Block, ordered: set[Instr]) -> None:
        """A barrier before each of these accesses that follows another by a token, but for a read that follows reads."""
        makers = {t: i for i in self.kernel.walk() if i in ordered for t in i.tokens_out}
        for position, i in enumerate(block.body):
            for b in i.blocks:
                self.one_by_one(b, ordered)
            if i not in ordered or i.attrs.get("order") in ("release", "acq_rel"):
                continue
            for t in i.tokens:
                made = makers.get(t, i)  # a join or a loop may have any
                if made is i or not (made.attrs.get("order") in ("acquire", "acq_rel") or {made.op, i.op} <= {"load", "gather"}):
                    self.barriers[i] = Barrier(block, position, i, made)

    def shared(self, block: Block) -> list[Instr]:
        """Such accesses anywhere in a block."""
        out = [i for i in block.body if self.counts(i)]
        for i in block.body:
            for b in i.blocks:
                out += self.shared(b)
        return out

    def reject(self, why: str, instr: Instr) -> None:
        raise CompileError(
            f"barriers: {why}; derivation handles straight lines and loops (in `{instr_text(self.kernel, instr)}`)"
        )

    def block(self, block: Block, counter: Var | None, count: int) -> None:
        """Simulate a block; `counter` is the loop it is the body of, `count` is 1 when its accesses add to the naive number."""
        for position, i in enumerate(block.body):
            if self.counts(i):
                self.naive += count
                self.access(block, position, i, counter)
            elif i.op == "join" or i.op in ACCESS:
                before = self.before(i)
                for t in i.tokens_out:
                    self.reach[t] = before
            elif i.blocks:
                inside = self.shared(i.blocks[0])
                if not inside:
                    for n, t in enumerate(i.tokens_out):
                        self.reach[t] = self.reach.get(i.tokens[n], 0)
                elif i.op == "if":
                    self.reject("a shared access stands in a branch", i)
                else:
                    self.loop(i, inside)

    def before(self, i: Instr) -> int:
        before = 0
        for t in i.tokens:
            before |= self.reach.get(t, 0)
        return before

    def access(self, block: Block, position: int, i: Instr, counter: Var | None) -> None:
        view = i.operands[0]
        assert isinstance(view, Var)
        root, write, slot = self.roots[view], i.op in ("store", "scatter", "atomic"), self.slot(i, counter)
        before, order = self.before(i), i.attrs.get("order")
        if i in self.barriers or order == "release":
            self.pending = []
        for p in self.pending:
            if p.root is root and (p.write or write) and before >> p.bit & 1 and not _disjoint(p.slot, slot):
                self.barriers[i] = Barrier(block, position, i, p.instr)
                self.pending = []
                break
        self.pending.append(_Access(self.bits, i, root, write, slot))
        for t in i.tokens_out:
            self.reach[t] = before | 1 << self.bits
        self.bits += 1
        if order == "acquire":
            self.pending = []

    def loop(self, i: Instr, inside: list[Instr]) -> None:
        block, counter, step = i.blocks[0], i.blocks[0].params[0], i.attrs.get("step", 1)
        inits = [self.reach.get(t, 0) for t in i.tokens]
        self.pending = [_unringed(p) for p in self.pending]  # stages are told apart by the counter of their own loop alone
        entry = list(self.pending)
        rounds = 2 + max((s.size for x in inside if (s := self.slot(x, counter)) is not None), default=0)
        carried = list(inits)
        for n in range(rounds):  # after as many rounds as the ring has stages, every pair of stages has met
            for t, r in zip(block.token_params, carried, strict=True):
                self.reach[t] = r
            self.block(block, counter, int(n == 0))
            carried = [a | self.reach.get(t, 0) for a, t in zip(carried, block.token_yields, strict=True)]
            self.pending = [
                _Access(p.bit, p.instr, p.root, p.write, None if p.slot is None else p.slot.shifted(step)) for p in self.pending
            ]
        for t, r in zip(i.tokens_out, carried, strict=True):
            self.reach[t] = r
        after = [_unringed(p) for p in self.pending]
        known = {p.bit for p in after}
        self.pending = [p for p in entry if p.bit not in known] + after  # the loop may run zero times

    def slot(self, i: Instr, counter: Var | None) -> _Slot | None:
        """Where on the leading axis of its allocation an access lies, when that is a ring stage or a literal."""
        view = i.operands[0]
        index: Operand | None = None
        axis_known = False
        while isinstance(view, Var) and view in self.defs and self.defs[view].op == "subview":
            d = self.defs[view]
            if 0 in d.attrs["keep"]:
                return None
            view, index, axis_known = d.operands[0], d.operands[1], True
        if view is not self.roots[i.operands[0]]:  # type: ignore[index]
            return None
        if not axis_known:
            index = i.operands[1] if len(i.operands) > 1 else None
            if 0 in i.attrs.get("axes", ()) or i.attrs.get("axis") == 0:
                return None
        if index is None:
            return None
        if not isinstance(index, Var):
            return _Slot(index)
        d2 = self.defs.get(index)
        if d2 is None or d2.op != "index.mod" or not isinstance(d2.operands[1], int) or counter is None:
            return None
        x, at = d2.operands[0], 0
        while isinstance(x, Var) and x is not counter:
            d3 = self.defs.get(x)
            if d3 is None or d3.op not in ("index.add", "index.sub") or not isinstance(d3.operands[1], int):
                return None
            at += d3.operands[1] if d3.op == "index.add" else -d3.operands[1]
            x = d3.operands[0]
        return _Slot(at % d2.operands[1], d2.operands[1]) if x is counter else None


def _unringed(p: _Access) -> _Access:
    """An access of which is not known in what stage of a ring it is."""
    return replace(p, slot=None) if p.slot is not None and p.slot.size else p


def _disjoint(a: _Slot | None, b: _Slot | None) -> bool:
    return a is not None and b is not None and a.size == b.size and a.at != b.at
