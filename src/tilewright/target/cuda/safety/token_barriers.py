"""Barriers, fences and plain accesses in the token graph."""

from __future__ import annotations

from typing import Any

from .replay import Segment
from .token_graph import MEMORY, Agent
from .token_state import MBarrier, State, ThreadBarrier


class Barriers(State):
    def init(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        token = self.graph.token()
        self.graph.plain |= token
        a.reach |= token
        self.inits |= token
        self.barriers[self._place(a, args[0])] = MBarrier(args[1], token)
        return True

    def arrive(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        b = self._barrier(a, op, args[0])
        if b is None:
            return True
        self._known(a, op, b, len(b.done) - 1, "arrives")
        narrow = args[0] >> 24 and ".cluster." not in op.opcode.replace("shared::cluster", "")
        carried = a.reach & ~self.graph.plain if narrow else a.reach  # beyond the block only what is no plain access is passed on
        b.pending += a.weight
        b.bytes += args[1] if len(args) > 1 else 0
        b.reach |= carried
        b.seen |= a.seen & carried
        if b.pending > b.count:
            self.graph.find("phase", op, f"{b.pending} threads arrive at a barrier of {b.count}")
        self._turn(b, op)
        return True

    def wait(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        b = self.barriers.get(self._place(a, args[0]))
        if b is None:
            self._barrier(a, op, args[0])
            a.registers[segment.result] = True
            return True
        phase = len(b.done) - 1
        if phase % 2 != args[1] % 2:
            return False
        self._barrier(a, op, args[0])
        self._known(a, op, b, phase - 1, "waits")
        token = self.graph.token()
        if phase >= 0:
            self.graph.learn(a, op, b.done[phase][1], b.done[phase][2])
        a.reach |= token
        b.watched[phase] = b.watched.get(phase, 0) | token
        a.registers[segment.result] = True
        return True

    # --- plain accesses, fences, barriers of threads --------------------------------------------------------------------
    def load(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        space, lo, size = self._piece(a, args[0], segment.width)
        token = self.graph.access(a, op, space, lo, size, write=False)
        if space != a.block:
            self.foreign.setdefault(space, []).append((token, op))
        if segment.result >= 0:
            a.registers[segment.result] = self.memory.get((space, lo), 0)
        return True

    def store(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        space, lo, size = self._piece(a, args[0], segment.width)
        self.graph.access(a, op, space, lo, size, write=True)
        if len(args) > 1:
            self.memory[space, lo] = args[1]
        return True

    def counter(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        """A word of memory that blocks tell each other something by."""
        op = segment.op
        key, name = (MEMORY, args[0]), op.opcode
        old = self.memory.get(key, 0)
        if name.startswith("ld"):
            if a.polled == (op.line, args[0], old):
                return False
            a.polled = (op.line, args[0], old)
        if ".release" in name or ".acq_rel" in name:
            reach, seen = self.places.get(args[0], (0, 0))
            self.places[args[0]] = (reach | a.reach, seen | a.seen)
        if ".acquire" in name or ".acq_rel" in name:
            self.graph.learn(a, op, *self.places.get(args[0], (0, 0)))
        if op.stem in ("atom", "red"):
            self.memory[key] = old + int(op.operands.rsplit(",", 1)[1])
        elif op.stem == "st" and len(args) > 1:
            self.memory[key] = args[1]
        if segment.result >= 0:
            a.registers[segment.result] = old
        return True

    def fence(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        if op.opcode.startswith("fence.proxy.async"):
            self.graph.learn(a, op, 0, a.reach, fence=True)
        elif op.opcode.startswith("fence.mbarrier_init"):
            self.graph.learn(a, op, 0, a.reach & self.inits, fence=True)
        return True

    def begin(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        a.late = True
        return True

    def meet(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        if ".warp" in op.opcode:
            key: Any = (a.block, "warp", a.tid >> 5)
        elif op.stem == "barrier":
            key = (a.block - a.rank, "cluster", 0)
        else:
            key = (a.block, args[0], args[1] if len(args) > 1 else 0)
        m = self.barriers_of.setdefault(key, ThreadBarrier())
        cluster = op.opcode.startswith("barrier.cluster")
        at = a.cluster_at if cluster else a.at
        if ".wait" in op.opcode or at is not None:
            if at is None or len(m.done) <= at:
                return False
            self.graph.learn(a, op, *m.done[at][1:])
            if cluster:
                a.cluster_at = None
            else:
                a.at = None
            return True
        if (m.done and not a.reach & m.done[-1][0]) or a.name in m.came:
            self.graph.find("phase", op, f"{a.name} arrives at `{op.text}` again, and does not know that the round before has ended")
        m.came.add(a.name)
        m.weight += a.weight
        m.reach |= a.reach
        m.seen |= a.seen
        generation = len(m.done)
        self._complete(key, m)
        if ".arrive" in op.opcode:
            if cluster:
                a.cluster_at = generation
            return True
        if len(m.done) > generation:
            self.graph.learn(a, op, *m.done[generation][1:])
            return True
        a.at = generation
        return False

    def _complete(self, key: Any, m: ThreadBarrier) -> None:
        block, which, count = key
        if which == "warp":
            full = m.came >= {x.name for x in self.agents if x.block == block and x.tid >> 5 == count and x.name in self.alive}
        elif which == "cluster":
            full = m.came >= {x.name for x in self.agents if x.block - x.rank == block and x.name in self.alive}
        elif count:
            full = m.weight >= count
        else:
            full = m.came >= {x.name for x in self.agents if x.block == block and x.name in self.alive}
        if full and m.came:
            token = self.graph.token()
            m.done.append((token, m.reach | token, m.seen | token))
            m.came, m.weight, m.reach, m.seen = set(), 0, 0, 0
