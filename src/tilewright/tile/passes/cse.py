"""Common subexpression elimination."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..ir import Block, Kernel, Operand, Var
from ..text import format_attr
from .base import PURE, TilePass, fold_index, replaced

_COMMUTES = frozenset(("index.add", "index.mul", "index.min", "index.max", "index.and"))


@dataclass(frozen=True)
class ReuseValues(TilePass):
    """Before: any kernel.  After: no pure instruction repeats one that dominates it, and index operations on literals are folded.

    Loads are not pure and stay. Attributes are compared as text: 0.0 and -0.0 differ.
    """

    name = "cse"

    def run(self, kernel: Kernel) -> int:
        state = _State()
        state.block(kernel.body)
        return state.removed


class _State:
    def __init__(self) -> None:
        self.known: dict[Any, Var] = {}
        self.same: dict[Var, Operand] = {}
        self.removed = 0

    def block(self, block: Block) -> None:
        known, same = self.known, self.same
        added: list[Any] = []
        body = []
        for i in block.body:
            if same:
                i.operands = [same.get(o, o) if o.__class__ is Var else o for o in i.operands]
            if i.op not in PURE:
                if i.tokens and same:
                    i.tokens = tuple([replaced(same, t) for t in i.tokens])
                for b in i.blocks:
                    self.block(b)
                body.append(i)
                continue
            op, result = i.op, i.results[0]
            operands: tuple[Operand, ...] = tuple(i.operands)
            if op.startswith("index.") and op != "index.cmp":
                folded = fold_index(op[6:], operands[0], operands[1])
                if folded is not None:
                    same[result] = folded
                    self.removed += 1
                    continue
                if op in _COMMUTES and _rank(operands[0]) > _rank(operands[1]):
                    operands = operands[::-1]
                key: Any = (op, operands)
            elif i.attrs:
                key = (op, operands, result.type, tuple([(k, format_attr(i.attrs[k])) for k in sorted(i.attrs)]))
            else:
                key = (op, operands, result.type)
            found = known.get(key)
            if found is None:
                known[key] = result
                added.append(key)
                body.append(i)
            else:
                same[result] = found
                self.removed += 1
        block.body = body
        if same:
            block.yields = [same.get(o, o) if o.__class__ is Var else o for o in block.yields]
        for key in added:
            del known[key]


def _rank(x: Operand) -> int:
    return id(x) if isinstance(x, Var) else -1
