"""What a GPU wants to know about the accesses of a kernel: how many elements at a time they may move.

A view's rows start at multiples of some number of elements, and its accesses at multiples of another along them; the smaller one counts.
Positions are multiples of what their index arithmetic shows: products, sums, and counters of loops.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

from ..ir.layout import Layout
from ..kernels.cuda.tiled import aligned
from ..tile.ir import Block, Instr, Kernel, Operand, Var, ViewType

MOST = 16


def vectors_of(kernel: Kernel, layouts: Mapping[str, Layout]) -> dict[str, int]:
    """By name of a view, parameters and those made of them, a power of two that all its accesses keep to."""
    factors: dict[Var, int] = {}
    roots: dict[Var, str] = {p: p.name for p in kernel.params if isinstance(p.type, ViewType)}
    found = {n: aligned(lay, lay.shape[-1] if lay.shape else None, MOST) for n, lay in layouts.items()}

    def factor(x: Operand) -> int:
        """A number that x is a multiple of; 0: x is 0."""
        return abs(x) if isinstance(x, int) else factors.get(x, 1)

    def visit(block: Block) -> None:
        for i in block.body:
            if i.op.startswith("index.") and i.op != "index.cmp":
                factors[i.results[0]] = _factor(i.op[6:], *(factor(x) for x in i.operands))
            elif i.op == "subview" and i.operands[0] in roots:
                roots[i.results[0]] = roots[i.operands[0]]
            elif i.op in ("load", "store") and i.operands[0] in roots:
                _account(i, factor, found, roots)
            elif i.op == "for":
                factors[i.blocks[0].params[0]] = gcd(factor(i.operands[0]), i.attrs["step"])
            for b in i.blocks:
                visit(b)

    visit(kernel.body)
    return {v.name: found[n] for v, n in roots.items() if n in found}


def _account(i: Instr, factor: Callable[[Operand], int], found: dict[str, int], roots: Mapping[Var, str]) -> None:
    view = i.operands[0]
    assert isinstance(view, Var) and isinstance(view.type, ViewType)
    unit = next((a for a, s in enumerate(view.type.strides) if s == 1), None)
    if unit is None:
        return
    start = factor(i.operands[1 + unit])
    while start % found[roots[view]]:
        found[roots[view]] //= 2


def _factor(fn: str, a: int, b: int) -> int:
    if fn == "mul":
        return a * b
    return gcd(a, b) if fn in ("add", "sub", "min", "max", "mod") else 1
