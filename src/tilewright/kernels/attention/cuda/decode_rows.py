"""Rows that attention of one query appends to its caches: where each cache lies, which row goes there, and which update says so."""

from __future__ import annotations

from dataclasses import dataclass

from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.attention.forward import Rope as RopeOp
from ....ops.attention.q8_cache import Q8Blocks as Q8BlocksOp
from ....ops.state import UpdateSlice
from ....ops.views import Slice
from ...region import Operand, Region


@dataclass(frozen=True)
class Appended:
    """A cache that the region appends a row to: where it lies up to that row, the row (before its rope), and the update. Caches of scales
    follow those of codes."""

    cache: Operand
    row: Operand
    value: Value  # the row after its rope
    update: Node

    def window(self, result: Operand) -> Layout:
        """Where the row goes in a result."""
        op = self.update.op
        assert isinstance(op, UpdateSlice) and result.buffer is self.cache.buffer
        return result.layout.slice(op.axis, op.start, 1)


def appended(region: Region) -> list[Appended]:
    """The caches of keys and values where the region appends to them (see `passes/cache_attention.py`), else nothing."""
    assert region.anchor is not None
    found = []
    for v in region.anchor.operands[1:]:
        update = v.node.operands[0].node if isinstance(v.node.op, Slice) else None
        if update is None or not isinstance(update.op, UpdateSlice):
            return []
        old, new = update.operands
        new = new.node.operands[0] if isinstance(new.node.op, Q8BlocksOp) else new
        cache, row = region.operand(old), region.operand(new.node.operands[0] if isinstance(new.node.op, RopeOp) else new)
        assert cache is not None and row is not None
        layout = v.node.op.views(cache.layout)[0]
        assert layout is not None
        found.append(Appended(Operand(v.type, cache.buffer, layout), row, new, update))
    return found
