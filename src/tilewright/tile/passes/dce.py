"""Dead code elimination."""

from __future__ import annotations

from dataclasses import dataclass

from .. import tokens
from ..ir import Block, Instr, Kernel, Operand, Var
from .base import EFFECTS, TilePass, replaced


@dataclass(frozen=True)
class RemoveDead(TilePass):
    """Before: any kernel.  After: every instruction has an effect or feeds one; loops carry only what is used; unused loads are gone
    and their tokens forwarded; tokens that order nothing are dropped."""

    name = "dce"

    def run(self, kernel: Kernel) -> int:
        live, alive = _mark(kernel)
        sweep = _Sweep(live, alive)
        sweep.block(kernel.body)
        return sweep.removed + tokens.drop_dead(kernel)


def _mark(kernel: Kernel) -> tuple[set[Var], set[Instr]]:
    """Live values, and instructions that must stay."""
    makers: dict[Var, tuple[Instr, int]] = {}  # results: n >= 0; carried parameters: -1 - n (the counter is number 0)
    parents: dict[Instr, Instr] = {}
    work: list[Instr] = []

    def collect(block: Block, parent: Instr | None) -> None:
        for i in block.body:
            if parent is not None:
                parents[i] = parent
            for n, r in enumerate(i.results):
                makers[r] = (i, n)
            if i.op in EFFECTS:
                work.append(i)
            for b in i.blocks:
                for n, p in enumerate(b.params):
                    makers[p] = (i, -1 - n)
                collect(b, i)

    collect(kernel.body, None)
    live: set[Var] = set()
    alive: set[Instr] = set()
    values: list[Operand] = []

    def keep(i: Instr) -> None:
        while i not in alive:
            alive.add(i)
            values.extend(i.operands[:2] if i.op == "for" else i.operands)
            above = parents.get(i)
            if above is None:
                break
            i = above

    for i in work:
        keep(i)
    while values:
        v = values.pop()
        if not isinstance(v, Var) or v in live:
            continue
        live.add(v)
        maker = makers.get(v)
        if maker is None:
            continue
        i, n = maker
        keep(i)
        if i.op == "for" and n != -1:
            slot = n if n >= 0 else -n - 2
            values += [i.operands[2 + slot], i.blocks[0].yields[slot]]
            if n >= 0:
                values.append(i.blocks[0].params[1 + slot])
            else:
                values.append(i.results[slot])
    return live, alive


class _Sweep:
    def __init__(self, live: set[Var], alive: set[Instr]) -> None:
        self.live, self.alive, self.removed = live, alive, 0
        self.forward: dict[Var, Operand] = {}

    def block(self, block: Block) -> None:
        body = []
        for i in block.body:
            if self.forward and i.tokens:
                i.tokens = (
                    tuple(dict.fromkeys(replaced(self.forward, t) for t in i.tokens))
                    if not i.blocks
                    else tuple(replaced(self.forward, t) for t in i.tokens)
                )
            if i in self.alive or i.op == "join":  # joins go with drop_dead
                if i.blocks:
                    self.carried(i)
                    for b in i.blocks:
                        self.block(b)
                body.append(i)
                continue
            self.removed += 1
            if i.blocks:
                self.forward.update(zip(i.tokens_out, i.tokens, strict=True))
            elif i.tokens_out and len(i.tokens) == 1:
                self.forward[i.tokens_out[0]] = i.tokens[0]
            elif i.tokens_out:
                body.append(Instr("join", [], tokens=i.tokens, tokens_out=i.tokens_out))
        block.body = body
        if self.forward and block.token_yields:
            block.token_yields = tuple(replaced(self.forward, t) for t in block.token_yields)

    def carried(self, i: Instr) -> None:
        keep = [n for n, r in enumerate(i.results) if r in self.live]
        if len(keep) == len(i.results):
            return
        self.removed += len(i.results) - len(keep)
        block = i.blocks[0]
        i.operands = [*i.operands[:2], *(i.operands[2 + n] for n in keep)]
        i.results = [i.results[n] for n in keep]
        block.params = [block.params[0], *(block.params[1 + n] for n in keep)]
        block.yields = [block.yields[n] for n in keep]
