"""Layer norms of few long rows (a group norm of whole images), as two block programs over many blocks.

The first leaves count, mean and squared deviation of every tile of a row; in the second every program combines those of its row and
normalises a tile of it. Both compute what the region has in front of the norm; the second, what it has behind it. Rows may lie channels
last.
"""

from __future__ import annotations

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import bf16, f16, f32, i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.rows.norms import LayerNorm
from ....tile.builder import Tile, View
from ...call import Call
from ...cuda.tiled import aligned, tiled
from ...launch import Buffer, Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, collapse, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from .rows import CudaRows

LONG = 1 << 13  # elements of a row that one block is slow for
HELD = 1 << 15  # elements of a row that a block holds
TILE = 4096  # elements of a program
MOST = 2048  # tiles of a row
WARPS = 8


class LongNorm(Template):
    key = "long_norm"
    serves = (LayerNorm,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if any(region.operand(v) is None for v in node.operands[1:]) or node.operands[0].dtype not in (bf16, f16, f32):
            return Reason("needs f32 or 16-bit floats, and weights from memory")
        x = node.operands[0].shape
        lead = len(x) - region.op(LayerNorm).naxes
        rows, length = product(x[:lead]), product(x[lead:])
        if not isinstance(rows, int) or not isinstance(length, int) or not LONG < length <= TILE * MOST // 2:
            return Reason("long rows of known length")
        if not 0 < rows < 8 * target.cores:
            return Reason("there are rows enough for all blocks")
        bad = [r for r in region.results if r.type.shape != x]
        return Reason(f"outputs must have the shape of the norm, got {bad[0].type}") if bad else None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return _Norm(region).launches(target.cores) or CudaRows().build(region, target)


class _Norm:
    """Both kernels under construction."""

    def __init__(self, region: Region) -> None:
        node = region.node
        assert isinstance(node.op, LayerNorm)
        self.region, self.node, self.op = region, node, node.op
        self.shape = node.operands[0].shape
        self.batch = len(self.shape) - node.op.naxes
        self.sources = self._behind(node.operands[0])
        behind = leaves_of_epilogue(region, node.values[0])
        self.values = list(dict.fromkeys((*self.sources, *node.operands[1:], *behind)))
        self.lays = [*(r.layout for r in region.results), *(self.region.given(v).layout.expand(self.shape) for v in self.values)]
        self.length = product(self.shape[self.batch :])
        self.rows = product(self.shape[: self.batch])

    def _behind(self, v: Value) -> list[Value]:
        """The operands in memory that a value is computed from."""
        if self.region.operand(v) is not None:
            return [v]
        return list(dict.fromkeys(x for u in v.node.operands for x in self._behind(u)))

    def launches(self, cores: int) -> list[Launch] | None:
        """None where rows are no matrices in memory, or where all blocks have one that they hold."""
        whole = [x for v, x in zip(self.values, self.lays[len(self.region.results) :], strict=True) if 0 not in x.strides]
        first = whole[0] if whole else self.lays[0]
        if not all(isinstance(s, int) and isinstance(d, int) for s, d in zip(first.strides, self.shape, strict=True)):
            return None
        order = sorted(range(self.batch, len(self.shape)), key=lambda a: -bounds(first.strides[a])[1])
        inner, outer = tuple(self.shape[a] for a in order), self.shape[: self.batch]
        sizes, self.inside = collapse(inner, [Layout(inner, tuple(x.strides[a] for a in order)) for x in self.lays])
        self.lead, self.before = collapse(outer, [Layout(outer, x.strides[: self.batch]) for x in self.lays])
        if not 1 <= len(sizes) <= 2 or (len(sizes) == 1 and bounds(self.rows)[0] >= cores and bounds(self.length)[1] <= HELD):
            return None
        self.inner = [1, *sizes] if len(sizes) == 1 else sizes
        self.inside = [[0, *x] if len(sizes) == 1 else x for x in self.inside]
        columns = min(TILE, 1 << (bounds(self.inner[1])[1] - 1).bit_length())
        self.tile = (min(TILE // columns, 1 << (bounds(self.inner[0])[1] - 1).bit_length()), columns)
        self.down, self.across = (ceildiv(d, t) for d, t in zip(self.inner, self.tile, strict=True))
        self.parts = bounds(self.down * self.across)[1]
        if self.parts > MOST:
            return None
        self.found = Buffer(f"{self.region.name}.statistics", "temp", self.rows * self.parts * 12)
        return [self._statistics(), self._normalised()]

    def _frame(self, call: Call) -> None:
        """Where a program's tile lies, and its views."""
        b = self.b = call.b
        self.vectors: dict[str, int] = {}
        results = len(self.region.results)
        self.ins = {v: self._view(call, f"e{i}", self.region.given(v), results + i) for i, v in enumerate(self.values)}
        self.sizes = [call.word(f"n{i}", d) for i, d in enumerate(self.inner)]
        down, across = call.word("down", self.down), call.word("across", self.across)
        self.number, self.part = b.pid // (down * across), b.pid % (down * across)
        self.z = unravel(b, self.number, [call.word(f"d{i}", d) for i, d in enumerate(self.lead)])
        self.at = (self.part // across * self.tile[0], self.part % across * self.tile[1])
        self.limit = tuple(n - a for n, a in zip(self.sizes, self.at, strict=True))
        self.axes = (len(self.z), len(self.z) + 1)

    def _view(self, call: Call, name: str, o: Operand, which: int, *, write: bool = False) -> View:
        lay = Layout((*self.lead, *self.inner), (*self.before[which], *self.inside[which]), self.lays[which].offset)
        self.vectors[name] = aligned(lay, self.inner[1])
        return call.view(name, o.type.dtype, o.buffer, lay, write=write)

    def _partials(self, call: Call, *, write: bool = False) -> View:
        """[row, (count, mean, squared deviation), tile]."""
        return call.view("partials", f32, self.found, Layout.contiguous((self.rows, 3, self.parts)), write=write)

    def _leaf(self, v: Value, o: Operand) -> Tile:
        *_, sm, sn = self.ins[v].type.strides
        part = (1 if sm == 0 else self.tile[0], 1 if sn == 0 else self.tile[1])
        bound = tuple(w if p != 1 else None for w, p in zip(self.limit, part, strict=True))
        return self.b.load(self.ins[v], (*self.z, *self.at), part, limit=bound, axes=self.axes)

    def _statistics(self) -> Launch:
        call = Call("long_norm_statistics", f"{self.region.name}.statistics")
        self._frame(call)
        b, out = self.b, self._partials(call, write=True)
        x = b.broadcast(widen(b, Evaluator(b, self.region, self._leaf, {})(self.node.operands[0])), self.tile)
        row = b.cmp("lt", b.iota((self.tile[0], 1), 0, i32), b.from_index(self.limit[0], i32))
        column = b.cmp("lt", b.iota((1, self.tile[1]), 1, i32), b.from_index(self.limit[1], i32))
        inside = b.binary("and", row, column)
        height, width = (b.minimum(n, t) for n, t in zip(self.limit, self.tile, strict=True))
        count = b.cast(b.from_index(height * width), f32)

        def total(v: Tile) -> Tile:
            return b.reshape(b.reduce("sum", b.reduce("sum", b.select(inside, v, 0.0), 1), 0), ())

        mean = total(x) / count
        for i, v in enumerate((count, mean, total((x - mean) * (x - mean)))):
            b.store(out, (self.number, i, self.part), v, axes=())
        nbytes = sum((self.region.given(v).type.nbytes for v in self.sources), start=0)
        launch = call.finish(self.rows * self.parts, flops=4 * self.rows * self.length, bytes_=nbytes, note="statistics of tiles")
        return tiled(launch, warps=WARPS, vectors=self.vectors)

    def _normalised(self) -> Launch:
        call = Call("long_norm", self.region.name)
        self._frame(call)
        b = self.b
        outs = [self._view(call, f"y{i}", r, i, write=True) for i, r in enumerate(self.region.results)]
        partials, parts = self._partials(call), call.word("parts", self.parts)
        most = max(32, 1 << (self.parts - 1).bit_length())
        counts, means, away = (b.load(partials, (self.number, i, 0), (1, most), limit=(None, parts), axes=(0, 2)) for i in range(3))
        length = b.reduce("sum", counts, 1)
        mean = b.reduce("sum", means * counts, 1) / length
        spread = b.reduce("sum", away + counts * (means - mean) * (means - mean), 1) / length
        evaluate = Evaluator(b, self.region, self._leaf, {})
        made = (widen(b, evaluate(self.node.operands[0])) - mean) * b.unary("rsqrt", spread + self.op.eps)
        for i, v in enumerate(self.node.operands[1:]):
            factor = widen(b, self._leaf(v, self.region.given(v)))
            made = made * factor if i == 0 else made + factor
        evaluate = Evaluator(b, self.region, self._leaf, {self.node.values[0]: b.broadcast(made, self.tile)})
        for v, y in zip(self.region.body.outputs, outs, strict=True):
            value = narrow(b, b.broadcast(evaluate(v), self.tile), y.type.dtype)
            b.store(y, (*self.z, *self.at), value, limit=self.limit, axes=self.axes)
        grid: Dim = self.rows * self.parts
        launch = call.finish(grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note="tiles of long rows")
        return tiled(launch, warps=WARPS, vectors=self.vectors)
