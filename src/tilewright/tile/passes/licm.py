"""Loop-invariant code motion."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Block, Instr, Kernel, TileType, Var
from .base import MAY_TRAP, PURE, TilePass

_DIVISIONS = frozenset(("div", "rem", "floordiv"))


@dataclass(frozen=True)
class HoistInvariants(TilePass):
    """Before: any kernel.  After: a pure instruction in a loop depends on that loop. Nothing that can trap (a division whose divisor is
    no literal), no memory operation, and nothing out of an `if` moves: a loop may run zero times. Large tiles stay where they are
    when `max_bytes` is set: hoisting them costs registers."""

    name = "licm"
    max_bytes: int | None = None

    def run(self, kernel: Kernel) -> int:
        return self._block(kernel.body)

    def _block(self, block: Block) -> int:
        moved = 0
        body: list[Instr] = []
        for i in block.body:
            for b in i.blocks:
                moved += self._block(b)
            if i.op == "for":
                hoisted = self._hoist(i.blocks[0])
                moved += len(hoisted)
                body += hoisted
            body.append(i)
        block.body = body
        return moved

    def _hoist(self, block: Block) -> list[Instr]:
        inside: set[Var] = set(block.params)
        hoisted, stay = [], []
        for i in block.body:
            if i.op in PURE and not self._pinned(i) and inside.isdisjoint([o for o in i.operands if o.__class__ is Var]):
                hoisted.append(i)
            else:
                inside.update(i.results)
                stay.append(i)
        block.body = stay
        return hoisted

    def _pinned(self, i: Instr) -> bool:
        if i.op in MAY_TRAP:
            return not (isinstance(i.operands[1], int) and i.operands[1] > 0)
        t = i.results[0].type
        if not isinstance(t, TileType):
            return False
        return (i.op in _DIVISIONS and not t.dtype.is_float) or (self.max_bytes is not None and t.numel * t.dtype.itemsize > self.max_bytes)
