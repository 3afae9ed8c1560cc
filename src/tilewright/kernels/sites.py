"""What a region's kernels report in their error blocks, in the user's terms: what was called there, the line, the size of the axis."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.dims import Dim
from ..core.dtypes import i64
from ..core.places import split
from ..ir.graph import Node
from ..ops.index import counting, indexing, scatter
from ..ops.packed import products as quantized
from ..ops.packed import quant_dot
from ..ops.rows import losses
from ..tile.builder import Ix
from .call import Call, report
from .launch import Launch, Site
from .region import Evaluator, Region

DIVISION = 5  # code in the error block
LEAST = -(1 << 63)
ALONG = (indexing.Gather, indexing.GatherAlongAxis, scatter.ScatterRows, scatter.ScatterAlong)
EXPERTS = (quantized.QExperts, quantized.QExpertsBack, quant_dot.QExpertsDot)


def name_sites(launches: list[Launch], region: Region) -> list[Launch]:
    """The launches of a region, those that report errors with their sites."""
    found: tuple[Site, ...] | None = None
    for launch in launches:
        if launch.fails and not launch.sites:
            if found is None:
                nodes = checked(region) or [n for n in (region.anchor,) if n is not None]
                found = tuple(_site(n, region) for n in nodes)
            launch.sites = found
    return launches


def checked(region: Region) -> list[Node]:
    """The elementwise nodes of a region that check their operands, in order: a fault names one by its number."""
    return [n for n in region.body.nodes if n.op.faulty(n.operands)]


class Checks:
    """Checks of a pointwise kernel: no integer divisor is 0. One comparison a vector and a branch that is never taken."""

    def __init__(self, call: Call, region: Region, strides: list[Dim]) -> None:
        """`strides`: by how much the position in the (contiguous) result grows along each axis of the kernel."""
        self.b, self.nodes = call.b, checked(region)
        if self.nodes:
            self.error = call.error()
            self.strides = [s if isinstance(s, int) else call.word(f"p{i}", s) for i, s in enumerate(strides)]

    def __bool__(self) -> bool:
        return bool(self.nodes)

    def emit(self, evaluate: Evaluator, at: Sequence[Ix | int], tile: int, left: Ix | int | None) -> None:
        """Check the tile at these indices, of which only `left` elements count."""
        b = self.b
        for number, node in enumerate(self.nodes):
            x, y = (b.broadcast(evaluate(v), (tile,)) for v in node.operands)
            bad = b.cmp("eq", y, 0)
            if left is not None:
                bad = b.binary("and", bad, b.cmp("lt", b.iota((tile,), 0), b.from_index(left)))
            with b.if_(b.reshape(b.reduce("any", bad), ())):
                lane = b.iota((tile,), 0)
                first = b.reduce("min", b.select(bad, lane, tile))
                value = b.reduce("max", b.select(b.cmp("eq", lane, first), b.cast(x, i64), LEAST))
                position: Ix | int = b.to_index(b.reshape(first, ())) * self.strides[-1]
                for p, s in zip(at, self.strides, strict=True):
                    position = position + p * s
                report(b, self.error, DIVISION, position, b.reshape(value, ()), number)


def _site(node: Node, region: Region) -> Site:
    written, line = split(node.place or region.place)
    return Site(written or node.op.name, line, _size(node))


def _size(node: Node) -> Dim | None:
    """How many elements an index of this op may name, where that is one number."""
    op = node.op
    if isinstance(op, EXPERTS):
        return op.experts
    if isinstance(op, scatter.IndexOrder):
        return op.rows
    axis = op.axis if isinstance(op, ALONG) else 0 if isinstance(op, (quantized.QGather, counting.BagSum)) else None
    if isinstance(op, losses.SoftmaxCrossEntropy):
        axis = -1
    if isinstance(op, indexing.Index) and len(op.axes) == 1:
        axis = op.axes[0]
    return None if axis is None else node.operands[0].type.shape[axis]
