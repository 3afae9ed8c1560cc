"""Affine forms of index values in a loop: `coefficient * counter + rest`, the rest made of values from outside the loop."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import INDEX, Block, Instr, Operand, Var
from .base import Emitter


@dataclass(frozen=True)
class Affine:
    """Sum of coefficient * value, and a constant. No coefficient is zero."""

    terms: tuple[tuple[Var, int], ...]
    constant: int = 0

    def plus(self, other: Affine | int, factor: int = 1) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + factor * other)
        terms = dict(self.terms)
        for v, c in other.terms:
            terms[v] = terms.get(v, 0) + factor * c
        return Affine(tuple((v, c) for v, c in terms.items() if c), self.constant + factor * other.constant)

    def times(self, factor: int) -> Affine:
        return Affine(tuple((v, c * factor) for v, c in self.terms) if factor else (), self.constant * factor)

    def coefficient(self, v: Var) -> int:
        return next((c for w, c in self.terms if w is v), 0)

    def without(self, v: Var) -> Affine:
        return Affine(tuple((w, c) for w, c in self.terms if w is not v), self.constant)

    def emit(self, e: Emitter) -> Operand:
        """Instructions that compute the value."""
        out: Operand = self.constant
        for v, c in self.terms:
            if c == -1:
                out = e.index("sub", out, v)
            else:
                out = e.index("add", out, e.index("mul", v, c))
        return out


class Forms:
    """Affine forms of the index values inside one loop, on demand."""

    def __init__(self, block: Block) -> None:
        self.counter = block.params[0]
        self.makers: dict[Var, Instr | None] = dict.fromkeys(block.params)
        self._collect(block)
        self.known: dict[Var, Affine | None] = {}

    def _collect(self, block: Block) -> None:
        for i in block.body:
            for r in i.results:
                self.makers[r] = i
            for b in i.blocks:
                self.makers.update(dict.fromkeys(b.params))
                self._collect(b)

    def of(self, x: Operand) -> Affine | None:
        """The form of x, or None when it is not affine in the counter."""
        if not isinstance(x, Var):
            return Affine((), x)
        if x is self.counter or x not in self.makers:
            return Affine(((x, 1),))
        if x not in self.known:
            self.known[x] = self._derive(self.makers[x])
        return self.known[x]

    def _derive(self, i: Instr | None) -> Affine | None:
        if i is None or i.op not in ("index.add", "index.sub", "index.mul") or i.results[0].type != INDEX:
            return None
        a, b = self.of(i.operands[0]), self.of(i.operands[1])
        if a is None or b is None:
            return None
        if i.op == "index.mul":
            return a.times(b.constant) if not b.terms else b.times(a.constant) if not a.terms else None
        return a.plus(b, 1 if i.op == "index.add" else -1)

    def bounds(self, x: Operand, at_least: int) -> list[Operand]:
        """Values that must all be >= at_least for x to be: x itself, or what an `index.min` with a large enough literal leaves."""
        maker = self.makers.get(x) if isinstance(x, Var) else None
        if maker is None or maker.op != "index.min":
            return [x]
        out: list[Operand] = []
        for o in maker.operands:
            if not (isinstance(o, int) and o >= at_least):
                out += self.bounds(o, at_least)
        return out
