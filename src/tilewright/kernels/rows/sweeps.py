"""Reductions of rows whose results go back along the same rows: backward passes of softmaxes, normalised rows, distances from a mean.

One program owns one row and sweeps it once per level: a reduction is one level above what it reads, and a last sweep writes what has the
rows' shape. Values are computed again in every sweep that needs them, from operands that the first sweep left in the cache; values of
one element a row are computed once. The order of a sum is that of `rows.py`. Tails are masked, no rows are a grid of no programs.
"""

from __future__ import annotations

from ...core.dims import product
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.graph import Node, Value
from ...ops.rows import reductions as red
from ...tile.builder import Ix, Tile
from ...tile.ir import identity
from ..launch import Launch
from ..region import Evaluator, Operand, Region, narrow
from ..template import Foreign, Reason, Template, region_bytes, region_flops
from .rows import COMBINE, REDUCTIONS, RowKernel, transposed


def _reductions(region: Region) -> list[Node]:
    return [n for n in region.body.nodes if type(n.op) in REDUCTIONS]


class RowSweeps(Template):
    """Serves regions that `Fuse.sweeps` makes: reductions over the same trailing axes, with their axes kept, and elementwise ops."""

    key = "row_sweeps"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in REDUCTIONS:
            return Foreign("no reduction")
        whole = node.operands[0].shape
        along = any(v.shape == whole != node.values[0].shape and region.depends_on_anchor(v) for v in region.body.outputs)
        return None if along or len(_reductions(region)) > 1 else Reason("nothing goes back along the rows")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return transposed(region, target, SweepKernel)


class SweepKernel(RowKernel):
    goes_back = True

    def __init__(self, region: Region, target: TargetSpec) -> None:
        super().__init__(region, target)
        self.known: dict[Value, Tile] = {}  # tiles of one element a row
        self.level: dict[Value, int] = {}
        for n in region.body.nodes:
            above = max((self.level[v] for v in n.operands), default=0)
            self.level.update((v, above + (type(n.op) in REDUCTIONS)) for v in n.values)

    def launch(self) -> Launch:
        reductions = _reductions(self.region)
        for level in range(1, 1 + max(self.level[n.value] for n in reductions)):
            self._reduce([n for n in reductions if self.level[n.value] == level])
            start = self._evaluator([0] * len(self.inner), None)
            short = (v for n in self.region.body.nodes for v in n.values if v.shape == self.node.value.shape)
            self.known |= {v: start(v) for v in short if self.level[v] <= level}
        wide = [i for i, v in enumerate(self.outputs) if v not in self.known]
        if wide:
            self.sweep([], lambda evaluate, at, left, carried: self._write(wide, evaluate, at, left))
        for i, v in enumerate(self.outputs):
            if i not in wide:
                x = narrow(self.b, self.b.broadcast(self.known[v], (1,)), self.results[i].type.dtype)
                self.b.store(self.outs[i], (*self.at, *([0] * len(self.inner))), x)
        return self.call.finish(product(self.outer), flops=region_flops(self.region), bytes_=region_bytes(self.region),
                                inplace=self.same if len(self.results) == 1 else [], streams=True)

    def _evaluator(self, at: list[Ix | int], left: Ix | int | None) -> Evaluator:
        def leaf(v: Value, o: Operand) -> Tile:
            return self._load(self.views[v], at, left)

        return Evaluator(self.b, self.region, leaf, self.known)

    def _write(self, wide: list[int], evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None) -> list[Tile]:
        tiles = [evaluate(self.outputs[i]) for i in wide]
        for i, x in zip(wide, tiles, strict=True):
            self.store(i, at, x, left)
        return []

    def _reduce(self, nodes: list[Node]) -> None:
        """The reductions of one level, in one sweep."""
        b = self.b
        fns = [REDUCTIONS[type(n.op)] for n in nodes]
        dtypes = [compute_dtype(n.operands[0].dtype) for n in nodes]
        start = [identity(fn, dtype) for fn, dtype in zip(fns, dtypes, strict=True)]

        def body(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            tiles = [b.broadcast(evaluate(n.operands[0]), (self.tile,)) for n in nodes]
            return [b.binary(COMBINE[fn], self.inside(left, x, other), c)
                    for fn, c, x, other in zip(fns, carried, tiles, start, strict=True)]

        parts = self.sweep([b.full((self.tile,), x, dtype) for x, dtype in zip(start, dtypes, strict=True)], body)
        for n, fn, dtype, part in zip(nodes, fns, dtypes, parts, strict=True):
            value = b.reduce(fn, part)
            self.known[n.value] = value / b.cast(self._count(), dtype) if isinstance(n.op, red.Mean) else value
