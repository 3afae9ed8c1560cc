"""A product of few rows and what is computed from equal parts of its columns (the gates of a recurrent layer), as one block program.

A program owns a strip of columns of every gate and all rows: it computes the strip's product for each gate, then the elementwise rest on
the tiles in registers. Rows and columns past the end are masked.
"""

from __future__ import annotations

from ....core.dims import Dim, ceildiv
from ....core.dtypes import bf16, compute_dtype, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....ops.views import Split
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.tiled import aligned, fitting, tiled
from ...launch import Launch
from ...region import Evaluator, Leaf, Operand, Region, collapse, narrow
from ...template import Foreign, Reason, Template, region_bytes, region_flops
from ..tiling import leaves_of_epilogue
from .tiled import rounds

COLUMNS = 8  # columns of a gate that a program computes; twice as many where there are more programs than SMs
STAGES = 2
DEPTH = 128


class TiledGates(Template):
    key = "tiled_gates"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node, split = region.anchor, split_of(region)
        if node is None or not isinstance(node.op, MatmulOp) or split is None:
            return Foreign("no product whose result is split")
        if node.operands[0].dtype not in (bf16, f16, f32) or any(region.operand(v) is None for v in node.operands):
            return Reason("needs floats from memory")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [GatesKernel(region, target).launch()]


def split_of(region: Region) -> Node | None:
    """The split of the product's result inside a region (`passes/row_products.py` makes such regions)."""
    return next((n for n in region.body.nodes if isinstance(n.op, Split) and region.depends_on_anchor(n.values[0])), None)


class GatesKernel:
    """One kernel under construction."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        node, split = region.anchor, split_of(region)
        assert node is not None and split is not None and isinstance(node.op, MatmulOp)
        self.region, self.node, self.split, self.target = region, node, split, target
        self.alpha = node.op.alpha
        a, w = (self._operand(v) for v in node.operands)
        part = split.values[0].shape[-1]
        assert isinstance(part, int)
        self.part, self.gates, self.k = part, len(split.values), a.type.shape[-1]
        self.before = leaves_of_epilogue(region, node.values[0], [split.operands[0]])
        gates = set(split.values)
        self.after = [v for v in self._leaves(gates) if v not in self.before]
        shape, whole = split.values[0].shape, node.values[0].shape
        lays = [a.layout, *(r.layout for r in region.results)]
        lays += [self._operand(v).layout.expand(whole if v in self.before else shape) for v in (*self.before, *self.after)]
        sizes, strides = collapse(shape[:-1], [Layout(shape[:-1], x.strides[:-1]) for x in lays])
        assert len(sizes) <= 1  # the pass takes results with one axis of rows
        self.m: Dim = sizes[0] if sizes else 1
        rows = [s[0] if s else 0 for s in strides]
        self.dtype, self.wide = a.type.dtype, compute_dtype(a.type.dtype)
        self.call, self.vectors = Call("gates", region.name), dict[str, int]()
        inner = self.gates * part
        views = iter(zip(lays, rows, strict=True))
        self.a = self._view("a", a, next(views), self.k, None)
        self.w = self._view("w", w, (w.layout, w.layout.strides[0]), self.k, None)
        self.outs = [self._view(f"y{i}", r, next(views), part, part, write=True) for i, r in enumerate(region.results)]
        self.ins = {
            v: self._view(f"e{i}", self._operand(v), next(views), inner if v in self.before else part, part)
            for i, v in enumerate((*self.before, *self.after))
        }
        self.precision = "tf32" if rounds(node, target) else None
        self.units = self.precision is not None or self.dtype.itemsize == 2
        self.columns = COLUMNS if part <= COLUMNS * target.cores or not self.units else 2 * COLUMNS
        bound = self.m if isinstance(self.m, int) else 64
        self.rows = max(16, 1 << (bound - 1).bit_length())

    def _leaves(self, gates: set[Value]) -> list[Value]:
        found: dict[Value, None] = {}

        def visit(v: Value) -> None:
            if v in gates:
                return
            if self.region.operand(v) is not None:
                found[v] = None
                return
            for x in v.node.operands:
                visit(x)

        for v in self.region.body.outputs:
            visit(v)
        return list(found)

    def _operand(self, v: Value) -> Operand:
        found = self.region.operand(v)
        assert found is not None
        return found

    def _view(self, name: str, o: Operand, at: tuple[Layout, Dim], width: Dim, inner: Dim | None, *, write: bool = False) -> View:
        lay, row = at
        layout = Layout((self.m if name != "w" else self.gates * self.part, width), (row, lay.strides[-1]), lay.offset)
        self.vectors[name] = aligned(layout, inner)
        return self.call.view(name, o.type.dtype, o.buffer, layout, write=write)

    def launch(self) -> Launch:
        call, b = self.call, self.call.b
        depth, columns = DEPTH, self.columns
        how = {"precision": self.precision} if self.precision else {}
        m, k = call.word("m", self.m), call.word("k", self.k)
        column = b.pid * columns
        rows = None if self.m == self.rows else m
        across = None if self.part % columns == 0 else self.part - column
        edges = (rows, across)
        leaves = [self._leaf(gate * self.part + column, edges) for gate in range(self.gates)]
        last = self._leaf(column, edges)
        for v in self.before:  # what the gates need beside the product is in flight while that is computed
            for leaf in leaves:
                leaf(v, self._operand(v))
        for v in self.after:
            last(v, self._operand(v))
        zero = b.full((self.rows, columns), 0.0, self.wide)
        with b.loop(0, k, depth, [zero] * self.gates) as loop:
            deep = None if isinstance(self.k, int) and self.k % depth == 0 else k - loop.index
            left = b.load(self.a, (0, loop.index), (self.rows, depth), limit=(rows, deep))
            sums = []
            for gate, total in enumerate(loop.carried):
                matrix = b.load(self.w, (gate * self.part + column, loop.index), (columns, depth), limit=(across, deep))
                sums.append(b.mma(left, b.transpose(matrix), total, **how))
            loop.next(*sums)
        known: dict[Value, Tile] = {}
        for gate, (value, total) in enumerate(zip(self.split.values, loop.results, strict=True)):
            made = total * self.alpha if self.alpha != 1.0 else total
            evaluate = Evaluator(b, self.region, leaves[gate], {self.node.values[0]: made})
            known[value] = b.broadcast(evaluate(self.split.operands[0]), (self.rows, columns))
        evaluate = Evaluator(b, self.region, last, known)
        for view, v in zip(self.outs, self.region.body.outputs, strict=True):
            made = narrow(b, b.broadcast(evaluate(v), (self.rows, columns)), view.type.dtype)
            b.store(view, (0, column), made, limit=edges)
        note = f"{self.gates} gates, {self.rows}x{columns} of each{', tf32' if self.precision else ''}"
        launch = call.finish(ceildiv(self.part, columns), flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note)
        warps = self.rows // 16 if self.units else min(8, self.rows // 4)
        early = ("w",) if self._operand(self.node.operands[1]).data is not None else ()
        nbytes = (self.rows + self.gates * columns) * depth * self.dtype.itemsize
        return tiled(launch, warps=warps, stages=fitting(STAGES, nbytes, self.target), vectors=self.vectors, early=early)

    def _leaf(self, column: Ix | int, edges: tuple[Ix | int | None, Ix | int | None]) -> Leaf:
        b, columns = self.call.b, self.columns
        found: dict[Value, Tile] = {}

        def leaf(v: Value, o: Operand) -> Tile:
            if v not in found:
                sm, sn = self.ins[v].type.strides
                size = (1 if sm == 0 else self.rows, 1 if sn == 0 else columns)
                limit = tuple(x if s != 1 else None for x, s in zip(edges, size, strict=True))
                found[v] = b.load(self.ins[v], (0, column), size, limit=limit)
            return found[v]

        return leaf
