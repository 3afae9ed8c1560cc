"""What the rules of instructions check with: each raises `Broken`, and the caller knows the instruction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from .ir import INDEX, Instr, Operand, TileType, Var


class Broken(Exception):
    """A broken rule; the caller knows the instruction."""


def broken(rule: str) -> NoReturn:
    raise Broken(rule)


def need(ok: bool, rule: str) -> None:
    if not ok:
        raise Broken(rule)


def tile_type(x: Operand) -> TileType:
    t = x.type if isinstance(x, Var) else None
    if t.__class__ is not TileType:
        broken(f"needs a tile operand, got {x}")
    return t


def indices(xs: Sequence[Operand]) -> None:
    for x in xs:
        if x.__class__ is not int and (not isinstance(x, Var) or (x.type is not INDEX and x.type != INDEX)):
            broken(f"needs an index operand, got {x!r}")


def operand_count(i: Instr, n: int) -> None:
    if len(i.operands) != n:
        broken(f"takes {n} operand{'s' if n != 1 else ''}, got {len(i.operands)}")


def only_attrs(i: Instr, *allowed: str) -> None:
    for name in i.attrs:
        if name not in allowed:
            broken(f"has no attribute {name!r}" + (f"; it may have {', '.join(allowed)}" if allowed else ""))
