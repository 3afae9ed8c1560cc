"""Padding with elements of the operand itself on a GPU, and back: a thread finds which elements its results are made of, along all axes at
once. What is cut by no end is copied; nothing is stored for an operand without elements."""

from __future__ import annotations

from functools import reduce

from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ops.index.pad_edges import PadEdges
from ....tile.builder import Tile
from ...conv.cuda.planes import Offset, Planes, States
from ...launch import Launch
from ...region import Region, narrow, widen
from ...template import Template

Tap = tuple[Tile, Tile]  # a place, and whether it is one


class CudaPadEdges(Template):
    key = "pad_edges"
    serves = (PadEdges,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, y = region.op(PadEdges), region.operands[0], region.results[0]
        planes = Planes("pad_edges", region, y.type.shape, y.layout)
        b, source, goal = planes.b, planes.view("x", x), planes.view("y", y, write=True)
        sizes = [planes.number(f"n{i}", d) for i, d in enumerate((y if op.back else x).type.shape)]
        before, after = ([planes.number(f"{name}{i}", d) for i, d in enumerate(ends)] for name, ends in (("lo", op.lo), ("hi", op.hi)))
        if not op.back:
            places = [_source(planes, op.mode, p - lo, n) if (lo_, hi_) != (0, 0) else p
                      for p, lo, n, lo_, hi_ in zip(planes.at, before, sizes, op.lo, op.hi, strict=True)]
            planes.put(goal, planes.get(source, places))
            return [planes.launch()]
        ways = [_copies(planes, op.mode, *axis) for axis in zip(planes.at, before, after, sizes, op.lo, op.hi, strict=True)]

        def visit(taps: list[Offset], states: States) -> States:
            found = [way[t] for way, t in zip(ways, taps, strict=True) if isinstance(t, int)]
            inside = reduce(lambda a, c: b.binary("and", a, c), (ok for _, ok in found))
            value = planes.get(source, [q for q, _ in found], inside)
            return [states[0] + b.select(inside, widen(b, value), 0)]

        total = planes.taps(op.spans(), [b.full((planes.width,), 0, compute_dtype(x.type.dtype))], visit)[0]
        planes.put(goal, narrow(b, total, y.type.dtype))
        return [planes.launch()]


def _source(planes: Planes, mode: str, q: Tile, n: Tile | int) -> Tile:
    """Which element stands at q, counted from the operand's first."""
    b = planes.b
    if mode == "edge":
        return b.binary("min", b.binary("max", q, 0), n - 1)
    if mode == "wrap":
        q = b.select(b.cmp("lt", q, 0), q + n, q)
        return b.select(b.cmp("ge", q, n), q - n, q)
    beyond = b.binary("max", q, -q) - (n - 1)
    return -b.binary("max", beyond, -beyond) + (n - 1)


def _copies(planes: Planes, mode: str, p: Tile, before: Tile | int, after: Tile | int, n: Tile | int, lo: int, hi: int) -> list[Tap]:
    """The elements of a padded axis that come back to p: its own, and those of the ends, if there are any; with `edge` from the first one
    on, as long as there are."""
    b = planes.b
    if mode == "edge":
        begin = b.select(b.cmp("eq", p, 0), 0, p + before)
        end = b.select(b.cmp("eq", p, n - 1), b.full((), 0, planes.kind) + before + n + after, p + before + 1)
        return [(q := begin + t, b.cmp("lt", q, end)) for t in range(1 + max(lo, hi))]
    taps = [(p + before, planes.here)]
    if lo and mode == "wrap":
        taps.append((p + before - n, b.cmp("ge", p, n - before)))
    elif lo:
        taps.append((-p + before, b.binary("and", b.cmp("ge", p, 1), b.cmp("le", p, before))))
    if hi and mode == "wrap":
        taps.append((p + before + n, b.cmp("lt", p, after)))
    elif hi:
        taps.append((-p + (n - 1) + (n - 1 + before), b.binary("and", b.cmp("le", p, n - 2), b.cmp("ge", p, n - 1 - after))))
    return taps
