"""The tensor core in the token graph: what `wgmma` reads, the registers it uses, its groups.

A product belongs to a warpgroup: its first thread stands for the reads. A group has ended for one thread only when every warp of the
warpgroup has started it; what those warps had waited for until then is followed, too, but for their plain accesses.
"""

from __future__ import annotations

from .replay import Segment, wgmma_registers
from .token_graph import Agent
from .token_sizes import matrix_ranges
from .token_state import Group, State


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
            g.find("registers", op, "this product reads sums that are still under way")
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
