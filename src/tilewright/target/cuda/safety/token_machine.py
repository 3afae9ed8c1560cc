"""Runs threads of a kernel (`replay`) side by side and builds their token graph: barriers of every kind, copies, `wgmma` groups.

One run stands for all: threads decide nothing by time, and every wait is checked to see the same phase of its barrier whatever the
schedule. A wait must know that the phase before the one it waits for has ended (else it could pass a round early), an arrival too, and the
phase after may end only when the wait is over (else it could be missed).
"""

from __future__ import annotations

from collections.abc import Callable

from ..ptx.flow import Op
from .replay import Segment
from .token_barriers import Barriers
from .token_copies import Copies
from .token_graph import Agent, TokenGraph
from .token_products import Products

LIMIT = 400_000  # steps of one thread
Handler = Callable[[Agent, Segment, tuple[int, ...]], bool]


class Machine(Products, Copies, Barriers):
    def run(self) -> TokenGraph:
        self.handlers = [self._handler(s.op) if s.event else None for s in self.replay.segments]
        moved = True
        while moved and self.alive:
            moved = False
            for a in self.agents:
                if a.name in self.alive and self._advance(a):
                    moved = True
        stuck = [a for a in self.agents if a.name in self.alive]
        if stuck:
            self._report_stuck(stuck)
        return self.graph

    def _advance(self, a: Agent) -> bool:
        moved = False
        segments, handlers, matrix = self.replay.segments, self.handlers, bool(self.replay.matrix) and a.leads
        while a.pc >= 0:
            if a.waiting is None:
                at = a.pc
                segment = segments[at]
                after, args = segment.step(a.registers, a)
                if matrix and segment.touched:
                    self._touch(a, segment)
                a.steps += 1
                if a.steps > LIMIT:
                    return moved
                if args is None or not segment.event:
                    a.pc, moved = after, True
                    continue
                if segment.index in self.dropped:
                    if segment.result >= 0:
                        a.registers[segment.result] = True
                    a.pc, moved = after, True
                    continue
                a.waiting = (segment, after, args, handlers[at])
            segment, after, args, handler = a.waiting
            if not handler(a, segment, args):
                return moved
            a.waiting, a.pc, moved = None, after, True
        self._leave(a)
        return True

    def _leave(self, a: Agent) -> None:
        g = self.graph
        self.alive.discard(a.name)
        op = self.replay.function.ops[-1]
        if any(read for group in (*a.copies, a.open_copies) for read, _ in group):
            g.find("exit", op, f"{a.name} leaves while a copy still reads its shared memory")
        if any(a.pieces) or a.open_pieces:
            g.find("exit", op, f"{a.name} leaves while copies into shared memory are under way")
        if a.products or a.flying:
            g.find("exit", op, f"{a.name} leaves while products are under way")
        block = [x for x in self.agents if x.block == a.block]
        if not any(x.name in self.alive for x in block):
            known = 0
            for x in block:
                known |= x.reach
            for token, by in self.foreign.get(a.block, ()):
                if not known & token:
                    g.find("exit", by, f"block {a.block} of the cluster may have left when `{by.opcode}` touches its memory")
        for m in list(self.barriers_of.items()):
            self._complete(*m)

    def _report_stuck(self, stuck: list[Agent]) -> None:
        """Nobody goes on: print who waits for what. Waits in a circle are a cycle of the token graph."""
        g = self.graph
        first = next((a for a in stuck if a.waiting is not None), None)
        if first is None or any(a.steps > LIMIT for a in stuck):
            g.find("stuck", self.replay.function.ops[0], "a thread does not come to an end")
            return
        said = []
        for a in stuck:
            op, args = a.waiting[0].op, a.waiting[2]
            what = f"{a.name} waits at line {op.line} (`{op.opcode}`)"
            if op.opcode.startswith("mbarrier") and (b := self.barriers.get(self._place(a, args[0]))) is not None:
                what += f" for phase {len(b.done)}: {b.pending} of {b.count} arrivals, {b.bytes} bytes under way"
            said.append(what)
        g.find("stuck", first.waiting[0].op, "a cycle: nobody goes on: " + "; ".join(said))

    def _handler(self, op: Op) -> Handler:
        name = op.opcode
        for stem, handler in _HANDLERS:
            if name.startswith(stem) and (stem != "cp.async.bulk." or "bulk_group" in name):
                return getattr(self, handler)  # type: ignore[no-any-return]
        if op.stem in ("ld", "st", "atom", "red"):
            if ".shared" not in name:
                return self.counter
            return self.load if op.stem == "ld" else self.store
        return self.fetch


_HANDLERS = (
    ("wgmma.mma_async", "mma"), ("wgmma.fence", "mma_fence"), ("wgmma.commit", "mma_commit"), ("wgmma.wait", "mma_wait"),
    ("mbarrier.init", "init"), ("mbarrier.arrive", "arrive"), ("mbarrier.try_wait", "wait"), ("mbarrier.test_wait", "wait"),
    ("cp.async.bulk.commit", "send_commit"), ("cp.async.bulk.wait", "send_wait"), ("cp.reduce", "send"), ("cp.async.bulk.", "send"),
    ("cp.async.commit", "piece_commit"), ("cp.async.wait", "piece_wait"), ("cp.async.c", "piece"), ("ldmatrix", "load"),
    ("stmatrix", "store"), ("st.async", "tell"), ("fence", "fence"), ("bar", "meet"), ("griddepcontrol", "begin"),
)  # fmt: skip
