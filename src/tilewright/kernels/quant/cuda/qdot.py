"""Products with packed matrices on the integer tensor cores: any number of rows, every format of integers.

The region is one product with its epilogue over values that lie in memory, or (see `passes/quantized_row.py`) of one row of f32: its RMS
norm, its rounding to values, and one or two products of it. N need not be a multiple of a panel; no rows: no blocks. Sums are exact in a
block of 32 columns and then f32 in an order that depends on K alone.
"""

from __future__ import annotations

from ....core.dims import Dim, Shape, ceildiv, divisible, product
from ....core.dtypes import f32, i8, i32, u8
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.packed.quant_dot import BLOCK, HALF, QuantizeRows
from ....ops.packed.quant_dot import QDot as QDotOp
from ....ops.packed.quant_product import QProduct
from ....ops.rows.norms import RmsNorm
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import QDotKernel, identified
from ...launch import Launch, Packed, Variant, Word
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...template import Foreign, Reason, Template, region_bytes, region_flops
from .fragments import ROWS, Fragments
from .small_floats import blocks_at_once

LONGEST = 16384  # columns of a row that a block rounds by itself: its quantized values are in shared memory
FIXED = ("const", "input")  # kinds of buffers that nothing in the program writes
MOST_PANELS = 16  # the most panels of a block
TILES = (1, 2)  # tiles of eight rows, in a block: their quantized values are in shared memory
MANY_UNITS = 32  # units of a row, from which on more warps share it


class CudaQDot(Template):
    key = "cuda_qdot"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        products = products_of(region)
        if not products:
            return Foreign("no product with a packed matrix")
        if region.tail is not None:
            return Reason("quantized values of the result are made by the next product")
        if any((w := region.operand(n.operands[3])) is None or w.data is None for n in products):
            return Reason("the packed matrix must be a constant")
        if row_strides(region, products[-1].types[0].shape) is None:
            return Reason("rows must lie along one axis")
        made = products[0].operands[0].node
        if isinstance(made.op, QuantizeRows):
            return None
        if len(products) > 1 or any(region.operand(v) is None for v in products[0].operands):
            return Reason("operands must come from memory")
        bad = [r for r in region.results if r.type.shape != products[0].values[0].shape]
        return Reason(f"outputs must have the shape of the product, got {bad[0].type}") if bad else None

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        found: dict[int, Packed] = {}
        for n in products_of(region):
            w = region.operand(n.operands[3])
            assert w is not None and isinstance(n.op, QDotOp)
            found[next(i for i, o in enumerate(region.operands) if o.data is w.data)] = Packed("fragments", ROWS, False, n.op.format)
        return found

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        first = products_of(region)[0]
        if isinstance(first.operands[0].node.op, QuantizeRows):
            return [_Product(region, target, 0).launch()]
        ways = [_Product(region, target, t).launch() for t in TILES]
        rows = product(first.types[0].shape[:-1])
        if isinstance(rows, int):
            return [next((w for w, t in zip(ways, TILES, strict=True) if rows <= 8 * t), ways[-1])]
        whole, *_ = reversed(ways)
        whole.variants = tuple(
            Variant(rows, 0, 8 * t, w.kernel, w.arguments, w.grid) for w, t in zip(ways[:-1], TILES, strict=False)
        )
        return [whole]


def products_of(region: Region) -> list[Node]:
    return [n for n in region.body.nodes if isinstance(n.op, QDotOp)]


def leaves_of(region: Region) -> dict[Value, Operand]:
    """What the epilogue reads from memory."""
    own = [n for n in region.body.nodes if isinstance(n.op, (QDotOp, QProduct, QuantizeRows, RmsNorm))]
    read = {v for n in region.body.nodes if n not in own for v in n.operands}
    return {v: o for v, o in region.leaves.items() if v in read}


def row_strides(region: Region, shape: Shape) -> list[Dim] | None:
    """The step between rows of the results and of what the epilogue reads, if rows lie along one axis; `shape` is the product's."""
    layouts = [o.layout.expand(shape) for o in (*region.results, *leaves_of(region).values())]
    sizes, strides = collapse(shape[:-1], [Layout(shape[:-1], lay.strides[:-1]) for lay in layouts])
    return [s[0] if s else 0 for s in strides] if len(sizes) <= 1 else None


def matrices(call: Call, region: Region, shape: Shape) -> tuple[list[View], dict[Value, View]]:
    """Results and what the epilogue of a product of this shape reads, as matrices [rows, n]."""
    leaves = leaves_of(region)
    found = row_strides(region, shape)
    assert found is not None
    layouts = [
        Layout((product(shape[:-1]), shape[-1]), (s, o.layout.expand(shape).strides[-1]), o.layout.offset)
        for o, s in zip([*region.results, *leaves.values()], found, strict=True)
    ]
    results = zip(region.results, layouts, strict=False)
    outs = [call.view(f"c{i}", o.type.dtype, o.buffer, lay, write=True) for i, (o, lay) in enumerate(results)]
    others = zip(leaves.items(), layouts[len(outs) :], strict=True)
    return outs, {v: call.view(f"e{i}", o.type.dtype, o.buffer, lay) for i, ((v, o), lay) in enumerate(others)}


def panels_of_a_block(panels: int, products: int, cores: int, at_once: int) -> int:
    """All blocks are there at once, four or so on an SM, each with as few panels as that allows."""
    return min(MOST_PANELS // products, max(1, -(-panels // (at_once * cores))))


class _Product:
    def __init__(self, region: Region, target: TargetSpec, tiles: int) -> None:
        self.region, self.tiles = region, tiles
        self.products = products_of(region)
        op = self.products[0].op
        assert isinstance(op, QDotOp)
        self.op, self.value = op, self.products[-1].values[0]
        self.f = Fragments(op.format, op.k)
        self.panels = -(-op.n // ROWS)
        at_once = blocks_at_once(op.format)
        self.per = 1 if tiles else panels_of_a_block(self.panels, len(self.products), target.cores, at_once)
        self.rows: Dim = product(self.value.shape[:-1])

    @property
    def warps(self) -> int:
        return 16 if self.f.units >= MANY_UNITS and not self.tiles else 8

    def place(self, v: Value) -> Operand:
        found = self.region.operand(v)
        assert found is not None
        return found

    def launch(self) -> Launch:
        region, op = self.region, self.op
        call = Call(f"qdot_{op.format.lower()}", region.name)
        b = call.b
        row, column = Var(INDEX, "row"), Var(INDEX, "column")
        accs = tuple(Var(TileType((1, ROWS), f32), f"acc{i}") for i in range(len(self.products)))
        r, c = Ix(b, row), Ix(b, column)
        outs, ins = self._matrices(call)
        limit = (self._rows_left(call, r), None if op.n % ROWS == 0 else op.n - c)
        known: dict[Value, Tile] = {n.values[0]: Tile(b, acc) for n, acc in zip(self.products, accs, strict=True)}

        def leaf(v: Value, o: Operand) -> Tile:
            sm, sn = ins[v].type.strides
            bound = (limit[0] if sm != 0 else None, limit[1] if sn != 0 else None)
            size = (1, 1 if sn == 0 else ROWS)
            return b.load(ins[v], (r, c), size, limit=bound if any(x is not None for x in bound) else None)

        evaluate = Evaluator(b, region, leaf, known)
        bounded = limit if any(x is not None for x in limit) else None
        for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
            b.store(view, (r, c), narrow(b, b.broadcast(evaluate(v), (1, ROWS)), result.type.dtype), limit=bounded)
        weights = tuple(self._weight(call, i, n) for i, n in enumerate(self.products))
        given = self._row(call) if not self.tiles else self._quantized(call)
        call._arguments += [Word(self.panels), Word(self.rows)]
        groups = -(-self.panels // self.per)
        grid = groups * ceildiv(self.rows, 8 * self.tiles) if self.tiles else groups
        what = f"{8 * self.tiles} rows" if self.tiles else f"one row, {self.per} panels"
        made = "norm, quantized values and " if "norm" in given else "quantized values and " if not self.tiles else ""
        unit = "f16" if op.format.startswith("F8") else "s8"
        many = f"{len(accs)} products" if len(accs) > 1 else "product"
        launch = call.finish(
            grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{made}{many}, {op.format} by mma.{unit}, {what}"
        )
        k = launch.kernel
        norm = self._norm()
        eps = norm.op.eps if norm is not None and isinstance(norm.op, RmsNorm) else 0.0
        launch.kernel = identified(QDotKernel(
            k.name, k.params, k.pid, k.body, accs=accs, row=row, column=column, weights=weights, format=op.format, k=op.k, per=self.per,
            tiles=self.tiles, warps=self.warps, eps=eps, x=given.get("x"), norm=given.get("norm"), quantized=given.get("quantized"),
            scales=given.get("scales"), sums=given.get("sums"),
            norm_early=norm is not None and self.place(norm.operands[1]).buffer.kind in FIXED))  # fmt: skip
        return launch

    def _rows_left(self, call: Call, r: Ix) -> Ix | int | None:
        return call.word("rows", self.rows) - r if self.tiles else None

    def _norm(self) -> Node | None:
        if self.tiles:
            return None
        node = self.products[0].operands[0].node.operands[0].node
        return node if isinstance(node.op, RmsNorm) else None

    def _matrices(self, call: Call) -> tuple[list[View], dict[Value, View]]:
        """Results and what the epilogue reads, as matrices [rows, n]."""
        return matrices(call, self.region, self.value.shape)

    def _weight(self, call: Call, i: int, n: Node) -> Var:
        o = self.place(n.operands[3])
        nbytes = self.panels * self.f.units * self.f.bytes
        return call.view(f"b{i}", u8, o.buffer, Layout((nbytes,), (1,))).var

    def _row(self, call: Call) -> dict[str, Var]:
        norm = self._norm()
        made = self.products[0].operands[0].node
        x = self.place(norm.operands[0] if norm is not None else made.operands[0])

        def row(name: str, o: Operand) -> Var:
            unit = o.layout.strides[-1] == 1 and divisible(o.layout.offset, 4)
            step = 1 if unit else o.layout.strides[-1]
            view = call.view(name, f32, o.buffer, Layout((self.op.k,), (step,), o.layout.offset))
            return view.var

        found = {"x": row("x", x)}
        if norm is not None:
            found["norm"] = row("w", self.place(norm.operands[1]))
        return found

    def _quantized(self, call: Call) -> dict[str, Var]:
        k = self.op.k
        found = {}
        kinds = (("quantized", i8, k), ("scales", f32, k // BLOCK), ("sums", i32, k // HALF))
        for (name, dtype, size), v in zip(kinds, self.products[0].operands[:3], strict=True):
            o = self.place(v)
            assert o.layout.is_contiguous
            found[name] = call.view(name, dtype, o.buffer, Layout((self.rows, size), (size, 1), o.layout.offset)).var
        return found
