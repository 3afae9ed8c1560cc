"""Copies in the token graph: TMA into shared memory (mbarriers) and out of it (bulk groups), and `cp.async`."""

from __future__ import annotations

from ..ptx.flow import Op
from .replay import Segment
from .token_graph import MEMORY, Agent
from .token_state import State


class Copies(State):
    def _late(self, a: Agent, op: Op) -> None:
        if self.ordered and not a.late:
            self.graph.find("use", op, f"`{op.opcode}` reads memory that the kernel before may still write")

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
