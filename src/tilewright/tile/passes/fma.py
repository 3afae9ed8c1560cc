"""FMA fusion."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Block, Instr, Kernel, Operand, TileType, Var
from .base import TilePass


@dataclass(frozen=True)
class FuseMultiplyAdd(TilePass):
    """Before: any kernel.  After: an `add` or `sub` whose operand is a `mul` of the same type, in the same block, with no other use, is one
    `fma` (with a `neg` for subtraction: a*b - c = fma(a, b, -c), c - a*b = fma(-a, b, c)).

    It changes rounding, so both instructions must allow it: by the attribute `contract`, or all of them with `everywhere`. Of two
    fitting operands the left one is fused. One pass over the kernel.
    """

    name = "fma"
    everywhere: bool = False

    def run(self, kernel: Kernel) -> int:
        uses: dict[Var, int] = {}
        _count(kernel.body, uses)
        return self._block(kernel.body, uses)

    def _block(self, block: Block, uses: dict[Var, int]) -> int:
        muls: dict[Var, Instr] = {}
        dead: set[Instr] = set()
        body: list[Instr] = []
        fused = 0
        for i in block.body:
            for b in i.blocks:
                fused += self._block(b, uses)
            if i.op == "mul" and self._allowed(i) and uses.get(i.results[0], 0) == 1:
                muls[i.results[0]] = i
            elif i.op in ("add", "sub") and muls and self._allowed(i):
                side = next((n for n in (0, 1) if i.operands[n] in muls and _same(i, i.operands[n])), None)
                if side is not None:
                    mul = muls.pop(i.operands[side])  # type: ignore[arg-type]
                    body += _fuse(i, mul, side)
                    dead.add(mul)
                    fused += 1
                    continue
            body.append(i)
        block.body = [i for i in body if i not in dead] if dead else body
        return fused

    def _allowed(self, i: Instr) -> bool:
        t = i.results[0].type
        return (self.everywhere or bool(i.attrs.get("contract"))) and isinstance(t, TileType) and t.dtype.is_float


def _same(i: Instr, x: Operand) -> bool:
    return isinstance(x, Var) and x.type == i.results[0].type


def _fuse(i: Instr, mul: Instr, side: int) -> list[Instr]:
    (a, b), c = mul.operands, i.operands[1 - side]
    if i.op == "add":
        return [Instr("fma", [a, b, c], {}, i.results)]
    negated = c if side == 0 else a
    assert isinstance(negated, Var)
    minus = Var(negated.type, "n")
    neg = Instr("neg", [negated], {}, [minus])
    return [neg, Instr("fma", [a, b, minus] if side == 0 else [minus, b, c], {}, i.results)]


def _count(block: Block, uses: dict[Var, int]) -> None:
    for i in block.body:
        for o in i.operands:
            if isinstance(o, Var):
                uses[o] = uses.get(o, 0) + 1
        for b in i.blocks:
            _count(b, uses)
    for o in block.yields:
        if isinstance(o, Var):
            uses[o] = uses.get(o, 0) + 1
