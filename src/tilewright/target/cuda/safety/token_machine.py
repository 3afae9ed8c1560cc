"""Runs threads of a kernel (`replay`) side by side and builds their token graph: barriers of every kind, copies, `wgmma` groups.

One run stands for all: threads decide nothing by time, and every wait is checked to see the same phase of its barrier whatever the
schedule. A wait must know that the phase before the one it waits for has ended (else it could pass a round early), an arrival too, and the
phase after may end only when the wait is over (else it could be missed).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..ptx.flow import Op
from .replay import Segment, matrix_ranges, wgmma_registers
from .token_graph import MEMORY, Agent, TokenGraph
from .token_state import Group, MBarrier, State, ThreadBarrier


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

    def synchronize(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
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


class Copies(State):
    def _late(self, a: Agent, op: Op) -> None:
        if self.ordered and not a.late:
            self.graph.find("use", op, f"`{op.opcode}` reads memory that the previous kernel may still write")

    def fetch(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        """TMA writes a box, or a run of bytes, into shared memory and tells a barrier."""
        op = segment.op
        self._late(a, op)
        if "tensor" in op.opcode:
            target, map_, bar = args[:3]
            size = self.launch.boxes[map_ - a.symbols["map0"] >> 7]
        else:
            target, _, size, bar = args
        ranks = [r for r in range(16) if args[3] >> r & 1] if "multicast" in op.opcode else [None]
        g = self.graph
        for rank in ranks:
            there, here = (target, bar) if rank is None else (target | (rank + 1) << 24, bar | (rank + 1) << 24)
            space, lo = self._place(a, there)
            b = self._barrier(a, op, here, apart=True)
            token = g.access(a, op, space, lo, size, write=True, apart=True, pending=True)
            if space != a.block:
                self.foreign.setdefault(space, []).append((token, op))
            if b is None:
                continue
            self._known(a, op, b, len(b.done) - 1, "copies")
            b.bytes -= size
            b.reach |= token | (a.reach & ~g.plain)
            b.seen |= token | (a.seen & ~g.plain)
            self._turn(b, op)
        return True

    def send(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        """TMA reads shared memory; what it writes is followed only where it is known by address."""
        op = segment.op
        if "tensor" in op.opcode:
            map_, source = args
            size, written = self.launch.boxes[map_ - a.symbols["map0"] >> 7], 0
        else:
            target, source, size = args[:3]
            written = self.graph.access(a, op, MEMORY, target, size, write=True, apart=True, pending=True)
        space, lo = self._place(a, source)
        a.open_copies.append((self.graph.access(a, op, space, lo, size, write=False, apart=True, pending=True), written))
        return True

    def send_commit(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        a.copies.append(a.open_copies)
        a.open_copies = []
        return True

    def send_wait(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        read_only, left = ".read" in op.opcode, int(op.operands)
        for i in range(len(a.copies) - left):
            tokens = 0
            for read, written in a.copies[i]:
                tokens |= read if read_only else read | written
            self.graph.learn(a, op, tokens, 0)
            a.copies[i] = [(0, written) for _, written in a.copies[i]] if read_only else []
        while a.copies and not a.copies[0]:
            a.copies.pop(0)
        return True

    def tell(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        """`st.async`: registers into shared memory of a block of the cluster, whose barrier counts the bytes."""
        op, g = segment.op, self.graph
        space, lo = self._place(a, args[0])
        b = self._barrier(a, op, args[1], apart=True)
        token = g.access(a, op, space, lo, segment.width, write=True, pending=True)
        if space != a.block:
            self.foreign.setdefault(space, []).append((token, op))
        if b is not None:
            self._known(a, op, b, len(b.done) - 1, "stores")
            b.bytes -= segment.width * a.weight
            b.reach |= token | (a.reach & ~g.plain)
            b.seen |= token | (a.seen & ~g.plain)
            self._turn(b, op)
        return True

    def piece(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        """16 bytes (or 4, or 8) by `cp.async`."""
        op = segment.op
        self._late(a, op)
        space, lo, size = self._piece(a, args[0], int(op.operands.rsplit("]", 1)[1].split(",")[1]))
        a.open_pieces |= self.graph.access(a, op, space, lo, size, write=True, pending=True)
        return True

    def piece_commit(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        a.pieces.append(a.open_pieces)
        a.open_pieces = 0
        return True

    def piece_wait(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        left = int(op.operands)
        while len(a.pieces) > left:
            self.graph.learn(a, op, a.pieces.pop(0), 0)
        return True


# The tensor core in the token graph: what `wgmma` reads, the registers it uses, its groups.
# A product belongs to a warpgroup: its first thread stands for the reads. A group has ended for one thread only when every warp of the
# warpgroup has started it; what those warps had waited for until then is followed, too, but for their plain accesses.
class Products(State):
    def _touch(self, a: Agent, segment: Segment) -> None:
        touched = segment.touched
        a.unfenced |= touched
        writes, reads = a.in_group
        for w, r in a.flying:
            writes, reads = writes | w, reads | r
        if touched & writes or segment.written & reads:
            bits = self.replay.matrix
            for op in self.replay.function.ops[segment.first : segment.end]:
                if op.stem == "wgmma":
                    continue
                bad = next((r for r in (*op.writes(), *op.reads()) if bits.get(r, 0) & writes), None)
                bad = bad or next((r for r in op.writes() if bits.get(r, 0) & reads), None)
                if bad is not None:
                    self.graph.find("registers", op, f"`{op.text}` touches {bad} while the tensor core still uses it")
                    return

    def mma(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        if not a.leads:
            return True
        g = self.graph
        key = (op.line, args)
        if key not in self.ranges:
            self.ranges[key] = matrix_ranges(op, args, self.launch.rows)
        for lo, size in self.ranges[key]:
            if lo < 0:
                g.find("use", op, f"a swizzled matrix begins at {-lo}, which is no multiple of 1024 bytes")
                continue
            a.products |= g.access(a, op, *self._piece(a, lo, size), write=False, apart=True, pending=True)
        masks = self.masks.get(op.line)
        if masks is None:
            bits = self.replay.matrix
            masks = self.masks[op.line] = tuple(sum(bits[r] for r in regs) for regs in wgmma_registers(op))
        if (masks[0] | masks[1]) & a.unfenced:
            g.find("registers", op, "registers of this product were touched after the last `wgmma.fence`")
        if masks[1] & (a.in_group[0] | _either(a.flying, 0)):
            g.find("registers", op, "this product reads sums that are still in flight")
        a.in_group = (a.in_group[0] | masks[0], a.in_group[1] | masks[1])
        return True

    def mma_fence(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        a.unfenced = 0
        return True

    def mma_commit(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        groups = self.groups.setdefault((a.block, a.tid >> 7), [])
        if len(groups) == a.committed:
            groups.append(Group())
        group = groups[a.committed]
        group.came += 1
        group.tokens |= a.products
        group.reach |= a.reach & ~self.graph.plain
        a.committed, a.products = a.committed + 1, 0
        a.flying.append(a.in_group)
        a.in_group = (0, 0)
        return True

    def mma_wait(self, a: Agent, segment: Segment, args: tuple[int, ...]) -> bool:
        op = segment.op
        left = int(op.operands)
        groups = self.groups.get((a.block, a.tid >> 7), [])
        until = max(a.ended, a.committed - left)
        members = sum(x.block == a.block and x.tid >> 7 == a.tid >> 7 and x.name in self.alive for x in self.agents)
        if any(group.came < members for group in groups[a.ended : until]):
            return False
        for group in groups[a.ended : until]:
            self.graph.learn(a, op, group.reach | group.tokens, group.tokens)
        del a.flying[: until - a.ended]
        a.ended = until
        return True


def _either(pairs: list[tuple[int, int]], which: int) -> int:
    found = 0
    for pair in pairs:
        found |= pair[which]
    return found


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
            g.find("exit", op, f"{a.name} leaves while copies into shared memory are in flight")
        if a.products or a.flying:
            g.find("exit", op, f"{a.name} leaves while products are in flight")
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
                what += f" for phase {len(b.done)}: {b.pending} of {b.count} arrivals, {b.bytes} bytes in flight"
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
    ("stmatrix", "store"), ("st.async", "tell"), ("fence", "fence"), ("bar", "synchronize"), ("griddepcontrol", "begin"),
)  # fmt: skip
