"""Padding with elements of the operand itself. A program writes some rows of one matrix: the source row of each is found from its number,
the middle is copied, the ends are loads that run forwards, backwards or in place. Tails are masked; an empty operand stores nothing."""
from __future__ import annotations

from ...core.dims import Dim, ceildiv, product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.pad_edges import PadEdges as PadEdgesOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch
from ..loops import in_tiles
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Reason, Template, region_bytes

ELEMENTS = 16384  # elements of a program
WIDE = 4  # registers of a copy's inner loop


class PadEdgesTemplate(Template):
    key = "pad_edges"
    serves = (PadEdgesOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return Reason("elements are added back, as passes write it out") if region.op(PadEdgesOp).back else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, y = region.op(PadEdgesOp), region.given(region.node.operands[0]), region.results[0]
        new = max(0, 2 - x.type.ndim)  # rows of one matrix at least
        lo, hi = ([*(0,) * new, *d] for d in (op.lo, op.hi))
        source, goal = (Layout((*(1,) * new, *o.layout.shape), (*(0,) * new, *o.layout.strides), o.layout.offset) for o in (x, y))
        call = Call("pad_edges", region.name)
        b = call.b
        from_, to = call.view("x", x.type.dtype, x.buffer, source), call.view("y", y.type.dtype, y.buffer, goal, write=True)
        back = call.view("back", x.type.dtype, x.buffer, source.flip(len(source.shape) - 1)) if op.mode == "reflect" else from_
        sizes = [call.word(f"n{i}", d) for i, d in enumerate(source.shape)]
        before = [call.word(f"lo{i}", d) for i, d in enumerate(lo)]
        after = call.word("hi", hi[-1])
        out = [call.word(f"d{i}", d) for i, d in enumerate(goal.shape)]
        rows = max(1, ELEMENTS // goal.shape[-1]) if isinstance(goal.shape[-1], int) and goal.shape[-1] else 16
        chunks = b.ceildiv(out[-2], rows)
        lead = unravel(b, b.pid // chunks, out[:-2])
        origin = [_source(b, op.mode, i - p, n) for i, p, n in zip(lead, before, sizes, strict=False)]
        first = b.pid % chunks * rows
        lanes = target.vector_bits // 32
        with b.loop(first, b.minimum(first + rows, out[-2])) as row:
            start = [*origin, _source(b, op.mode, row.index - before[-2], sizes[-2])]
            goes = [*lead, row.index]
            self._copy(b, from_, [*start, 0], to, [*goes, before[-1]], sizes[-1], lanes)
            for length, place, forwards, backwards, edge in ((lo[-1], 0, sizes[-1] - before[-1], sizes[-1] - 1 - before[-1], 0),
                                                             (hi[-1], before[-1] + sizes[-1], 0, 1, sizes[-1] - 1)):
                if length == 0:
                    continue
                count = after if place else before[-1]
                with b.loop(0, count, lanes) as part:
                    limit, to_place = (b.minimum(count - part.index, lanes),), (*goes, part.index + place)
                    if op.mode == "edge":
                        found = b.broadcast(b.load(from_, (*start, edge), (1,)), (lanes,))
                    else:
                        at = part.index + (forwards if op.mode == "wrap" else backwards)
                        found = b.load(back, (*start, at), (lanes,), limit=limit)
                    b.store(to, to_place, found, limit=limit)
        grid: Dim = product(goal.shape[:-2]) * ceildiv(goal.shape[-2], rows)
        return [call.finish(grid, bytes_=region_bytes(region), streams=True)]

    @staticmethod
    def _copy(b: KernelBuilder, x: View, at: list[Ix | int], y: View, to: list[Ix | int], n: Ix, lanes: int) -> None:
        def piece(i: Ix, left: Ix | int | None, tile: int) -> list[Tile]:
            limit = None if left is None else (left,)
            b.store(y, (*to[:-1], to[-1] + i), b.load(x, (*at[:-1], i), (tile,), limit=limit), limit=limit)
            return []

        whole = n // (WIDE * lanes) * (WIDE * lanes)
        with b.loop(0, whole, WIDE * lanes) as part:
            piece(part.index, None, WIDE * lanes)
        in_tiles(b, whole, n, lanes, lambda i, left, _: piece(i, left, lanes))


def _source(b: KernelBuilder, mode: str, i: Ix | int, n: Ix) -> Ix | int:
    """Which element stands at i, counted from the operand's first."""
    if mode == "edge":
        return b.minimum(b.maximum(i, 0), n - 1)
    if mode == "wrap":
        return (i + n) % n
    i = b.maximum(i, 0 - i)
    return b.minimum(i, (n - 1) * 2 - i)
