"""Matrix products as block programs: operands of any strides and batch axes, the region's elementwise consumers as epilogue.

16-bit floats (and, as tf32 where that is asked for, f32) go to the tensor cores, other f32 and f64 to multiply-adds. An element is one sum
over K in the order of its tiles. Rows that start at any element are copied without a launch of their own. K = 0 gives epilogue(0);
zero-sized results run no program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....core.dims import Dim, Shape, at_least, ceildiv, divisible, product
from ....core.dtypes import DType, bf16, compute_dtype, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, u8
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Matmul as MatmulOp
from ....tile.builder import Ix, Tile, View
from ...call import Call
from ...cuda.tiled import aligned, fitting, multiply_adds, tiled
from ...launch import Buffer, Launch
from ...pointwise.cuda.pointwise import evaluator
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, collapse, narrow
from ...template import Reason, Template, region_bytes, region_flops
from ..matmul import MatmulTemplate
from ..product import Problem
from ..tiling import leaves_of_epilogue

L2 = 5e6  # bytes a microsecond that blocks copy to shared memory
SUMS = 3e6  # bytes a microsecond of sums that are written and read again, most of them in L2
MUCH = 256  # how much of K a part must have
GROUP = 8  # tiles of rows that share columns of B in L2
ABREAST = 16  # parts whose sums a thread asks for at once
MOST_PARTS = 64  # the most parts of K, whose sums a thread adds one by one
SMALL = 500_000_000  # flops that the tensor cores spend less time on than a launch takes that copies an operand
LONG = 1 << 14  # rows of an operand whose copy into aligned rows costs more than unaligned loads

Edges = tuple[Ix | int | None, Ix | int | None]  # rows and columns that are left, where a tile may be cut


@dataclass(frozen=True)
class Config:
    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    producers: int = 0  # warps that only copy
    per_sm: int = 1  # blocks that share an SM
    parts: int = 1  # the parts of K, each a block's


def estimated(c: Config) -> tuple[float, ...]:
    return tuple(multiply_adds(c.rows, c.columns, c.warps, c.warps * n) for n in range(1, c.per_sm + 1))


# f32 by multiply-adds: (configuration, TFLOP/s of an H200 where one, two, … blocks share an SM), measured
HOPPER = (
    (Config(128, 128, 32, 8, 3, 4), (48.0,)),
    (Config(128, 64, 16, 4, 4, per_sm=3), (32.0, 39.0, 43.0)),
    (Config(64, 64, 16, 4, 4, per_sm=4), (22.0, 31.0, 36.0, 40.0)),
    (Config(64, 32, 32, 4, 3, per_sm=4), (20.0, 28.0, 32.0, 34.0)),
)
FEW = tuple(  # ... for few rows or columns, and for many small matrices, estimated
    (c, estimated(c))
    for c in (
        Config(32, 128, 32, 4, 3, per_sm=3),
        Config(16, 128, 32, 4, 4, per_sm=3),
        Config(16, 64, 32, 2, 4, per_sm=5),
        Config(128, 32, 32, 4, 3, per_sm=3),
        Config(128, 16, 32, 4, 4, per_sm=3),
        Config(32, 32, 32, 1, 2, per_sm=12),
        Config(16, 16, 16, 1, 2, per_sm=16),
    )
)
SIMT = ((Config(128, 128, 32, 8, 3), (45.0,)), *HOPPER[1:])
START = 1.0  # microseconds from a block's start to its first multiplication, and from its last to its end
ARRIVES = 0.5  # microseconds from a copy's start to its end


def fastest(choices: Sequence[tuple[Config, tuple[float, ...]]], m: int, n: int, k: int, batch: int, cores: int) -> Config:
    """The configuration whose waves of blocks are estimated to take the least time; the last wave may leave places on SMs free. Parts of K
    fill it, and cost a launch that adds their sums."""

    def time(choice: tuple[Config, tuple[float, ...]]) -> float:
        c, rates = choice
        waves, rest = divmod(-(-m // c.rows) * -(-n // c.columns) * batch * c.parts, cores * c.per_sm)
        last = -(-rest // cores)
        busy = waves * c.per_sm / rates[-1] + (last / rates[last - 1] if last else 0)
        added = 0.0 if c.parts == 1 else 3.0 + 8 * m * n * batch * c.parts / SUMS
        steps = -(-max(k, 1) // (c.depth * c.parts))
        waits = (START + steps * ARRIVES / (c.stages - 1)) * (waves + (last > 0))
        copied = 4 * (c.rows + c.columns) * c.depth * steps * (waves * c.per_sm * cores + rest) / L2
        return max(2 * c.rows * c.columns * steps * c.depth * busy * cores / 1e6 + START * waves, waits, copied) + added

    parts = [(replace(c, parts=s), rates) for c, rates in choices for s in (1, 2, 3, 4, 6, 8, 12) if s == 1 or k >= s * MUCH]
    return min(parts, key=time)[0]


def choose(m: Dim, n: Dim, batch: Dim, item: int, target: TargetSpec, *, k: Dim = 1, tf32: bool = False) -> Config:
    """The largest tile of which there are enough for the chip; of f32, what is fastest by the measured rates."""
    cores, known = target.cores, isinstance(m, int) and isinstance(n, int) and isinstance(batch, int)
    if item == 4 and not tf32 and isinstance(m, int) and isinstance(n, int) and isinstance(batch, int):
        return fastest((*(HOPPER if target.cpu == "sm_90a" else SIMT), *FEW), m, n, k if isinstance(k, int) else 1, batch, cores)
    depth = 128 // item
    narrow_ = 1 << (n - 1).bit_length() if isinstance(n, int) and n > 0 else 128
    for rows, columns, warps in ((128, 128, 8), (128, 64, 4), (64, 64, 4), (64, 32, 4)):
        columns = max(16, min(columns, narrow_))
        tiles = ceildiv(m, rows) * ceildiv(n, columns) * batch
        if (warps == 8 and columns < 64) or (rows > 64 and isinstance(m, int) and 2 * m <= rows):  # half of it would be empty
            continue
        if not isinstance(tiles, int) or tiles >= cores:
            break
    if known and (rows, columns) == (128, 128) and item == 2 and isinstance(tiles, int) and tiles >= 4 * cores:
        return Config(128, 128, depth, 4, 3, per_sm=2)
    stages = min(4 if item == 8 else 3, max(2, -(-k // depth))) if known and isinstance(k, int) and k > 1 else 4 if item == 8 else 3
    return Config(rows, columns, depth, warps, stages, per_sm=2 if warps == 4 else 1)


class TiledMatmul(Template):
    key = "tiled_matmul"
    serves = (MatmulOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        a, b = (v.dtype for v in node.operands)
        if sums_of(a, b, node.types[0].dtype) is None:
            return Reason(f"no units multiply {a} by {b} into {node.types[0].dtype}")
        return MatmulTemplate().matches(region, target)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return MatmulKernel(region, target).launches()


def sums_of(a: DType, b: DType, out: DType) -> DType | None:
    """The dtype of the sums of a product that block programs compute, or None."""
    if a in (f8e4m3, f8e5m2) and b in (f8e4m3, f8e5m2):
        return f32 if out in (f32, f16, bf16) else None
    if a in (i8, u8) and b is i8:
        return i32 if out is i32 else None
    return compute_dtype(a) if a is b is out and a in (bf16, f16, f32, f64) else None


def rounds(node: Node, target: TargetSpec) -> bool:
    """Whether a product rounds its f32 operands to tf32: those of recurrent layers do where convolutions do, as cuDNN's."""
    assert isinstance(node.op, MatmulOp)
    return node.operands[0].dtype is f32 and (target.has("tf32") or (node.op.recurrent and target.has("tf32-conv")))


class UnalignedMatmul(TiledMatmul):
    """Products of 16-bit floats whose long operand has rows that no tensor map describes, and small products of any such operand: read as
    they lie instead of copied first."""

    key = "unaligned_matmul"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        reason = super().matches(region, target)
        if reason is not None:
            return reason
        p = Problem.of(region)
        if p.a.type.dtype not in (bf16, f16):
            return Reason("16-bit floats only")
        odd = [v for v in (p.a_view, p.b_view) if not all(divisible(s, 8) for s in (v.offset, *v.strides) if s != 1)]
        long = at_least(product(p.a.type.shape[:-1]), LONG) and p.a_view.strides[-1] == 1 and p.a_view in odd
        work = region_flops(region)
        few = isinstance(work, int) and work <= SMALL
        return None if odd and (long or few) else Reason("rows are aligned, or what they are multiplied with costs more than their copy")


class Summed:
    """Sums [*lead, m, n] of a product under construction on their way to the region's results, with its elementwise consumers as epilogue.
    `ends`: results, then what the epilogue reads, as [*lead, m, n]."""

    region: Region
    node: Node
    dtype: DType
    wide: DType
    lead: list[Dim]
    m: Dim
    n: Dim
    leaves: list[Value]
    ends: list[Layout]
    config: Config
    alpha: float = 1.0
    extents: dict[str, Layout]

    def _begin(self, kind: str, name: str) -> None:
        self.call, self.vectors, self.extents = Call(kind, name), dict[str, int](), {}

    def operand(self, v: Value) -> Operand:
        found = self.region.operand(v)
        assert found is not None
        return found

    @property
    def nbytes(self) -> Dim:
        """Bytes of the operands."""
        first, second = (v.type.nbytes for v in self.node.operands)
        return first + second

    def view(self, name: str, dtype: DType, buffer: Buffer, layout: Layout, inner: Dim | None, *, write: bool = False) -> View:
        self.vectors[name] = aligned(layout, inner)
        return self.call.view(name, dtype, buffer, layout, write=write)

    def _results(self) -> None:
        """Views of the results, and of what the epilogue reads."""
        results, n = self.region.results, self.n
        ends = zip(results, self.ends, strict=False)
        self.outs = [self.view(f"c{i}", r.type.dtype, r.buffer, lay, n, write=True) for i, (r, lay) in enumerate(ends)]
        self.ins = {}
        for i, (v, lay) in enumerate(zip(self.leaves, self.ends[len(results) :], strict=True)):
            o = self.operand(v)
            self.ins[v] = self.view(f"e{i}", o.type.dtype, o.buffer, lay, n)

    def _added(self, buffer: Buffer, layout: Layout, name: str = "", tile: tuple[int, int] | None = None) -> Launch:
        """The sums of all parts of K, added in order, and the epilogue; `tile`: rows and columns of a program."""
        self._begin("matmul_sums", name or f"{self.region.name}.add")
        call, b = self.call, self.call.b
        parts, many = self.config.parts, self.config.parts > MOST_PARTS and tile is None
        height = 1 << (parts - 1).bit_length()  # the height of a tile that has all parts of some results
        rows, columns = tile or (1 if many else 8 if parts <= 8 else 2, max(8, 4096 // height) if many else 128)
        self.config = replace(self.config, rows=rows, columns=columns, warps=4 if many or rows * columns >= 512 else 1)
        c = self.config
        sums = self.view("sums", self.wide, buffer, layout, self.n)
        self._results()
        m, n = call.word("m", self.m), call.word("n", self.n)
        down, across = call.word("down", ceildiv(self.m, c.rows)), call.word("across", ceildiv(self.n, c.columns))
        z = unravel(b, b.pid // (down * across), [call.word(f"d{i}", d) for i, d in enumerate(self.lead)])
        row, column = b.pid % (down * across) // across * c.rows, b.pid % across * c.columns
        edges = (self._edge(self.m, c.rows, m - row), self._edge(self.n, c.columns, n - column))
        if many:
            axes, limit = (0, len(layout.shape) - 1), (None if parts == height else parts, edges[1])
            total = b.reduce("sum", b.load(sums, (0, *z, row, column), (height, c.columns), limit=limit, axes=axes), 0)
        else:
            total = b.load(sums, (0, *z, row, column), (c.rows, c.columns), limit=edges)
            for first in range(1, parts, ABREAST):
                some = range(first, min(parts, first + ABREAST))
                for x in [b.load(sums, (i, *z, row, column), (c.rows, c.columns), limit=edges) for i in some]:
                    total = total + x
        self._write(total * self.alpha if self.alpha != 1.0 else total, (*z, row, column), edges)
        grid = ceildiv(self.m, c.rows) * ceildiv(self.n, c.columns) * product(self.lead)
        moved = region_bytes(self.region) - self.nbytes
        launch = call.finish(grid, bytes_=product(layout.shape) * self.wide.itemsize + moved, note=f"sums of {parts} parts of K")
        return tiled(launch, warps=c.warps, vectors=self.vectors)

    @staticmethod
    def _edge(size: Dim, tile: int, left: Ix | int) -> Ix | int | None:
        return None if isinstance(size, int) and size % tile == 0 else left

    def _write(self, total: Tile, at: tuple[Ix | int, ...], edges: tuple[Ix | int | None, Ix | int | None]) -> None:
        b, c = self.call.b, self.config
        shape = (c.rows, c.columns)

        def leaf(v: Value, o: Operand) -> Tile:
            *_, sm, sn = self.ins[v].type.strides
            size = (1 if sm == 0 else shape[0], 1 if sn == 0 else shape[1])
            return b.load(self.ins[v], at, size, limit=tuple(x if s != 1 else None for x, s in zip(edges, size, strict=True)))

        evaluate = evaluator(self.region)(b, self.region, leaf, {self.node.values[0]: total})
        for view, v in zip(self.outs, self.region.body.outputs, strict=True):
            b.store(view, at, narrow(b, b.broadcast(evaluate(v), shape), view.type.dtype), limit=edges)


class Product(Summed, ABC):
    """A product [*lead, m, k] by [*lead, k, n] under construction, K perhaps in parts whose sums a second launch adds in order. Subclasses
    say how tiles of the operands are loaded."""

    k: Dim
    precision: str | None
    unit: str = "tensor cores"

    @abstractmethod
    def open(self) -> None:
        """Make views of the operands; those in `extents` may be copied by producer warps."""

    @abstractmethod
    def tiles(self, z: list[Ix | int], row: Ix | int, column: Ix | int, k: Ix, edges: Edges, deep: Ix | int | None) -> tuple[Tile, Tile]:
        """The operands' tiles of a step of K, [rows, depth] and [depth, columns]."""

    def launches(self) -> list[Launch]:
        if self.config.parts == 1:
            return [self._product(None)]
        shape: Shape = (self.config.parts, *self.lead, self.m, self.n)
        sums = Buffer(f"{self.region.name}.sums", "temp", product(shape) * self.wide.itemsize)
        return [self._product((sums, Layout.contiguous(shape))), self._added(sums, Layout.contiguous(shape))]

    def _product(self, sums: tuple[Buffer, Layout] | None) -> Launch:
        """The product with its epilogue, or the sums of parts of K as they are."""
        call, b, c = self.call, self.call.b, self.config
        self.open()
        if not sums:
            self._results()
        m, n, k = call.word("m", self.m), call.word("n", self.n), call.word("k", self.k)
        down, across = call.word("down", ceildiv(self.m, c.rows)), call.word("across", ceildiv(self.n, c.columns))
        area = down * across
        lead = [*([c.parts] if sums else []), *self.lead]
        z = unravel(b, b.pid // area, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        part = z[:1] if sums else []
        start: Ix | int = 0
        stop: Ix | int = k
        if part:
            deep = ceildiv(ceildiv(self.k, c.depth), c.parts) * c.depth
            each = deep if isinstance(deep, int) else call.word("each", deep)
            start, stop, z = part[0] * each, b.minimum(k, part[0] * each + each), z[1:]
        inside = b.pid % area
        group = across * GROUP  # some rows of tiles, column by column
        which, within = inside // group, inside % group
        height = b.minimum(down - which * GROUP, GROUP)
        row, column = (which * GROUP + within % height) * c.rows, within // height * c.columns
        edges = (self._edge(self.m, c.rows, m - row), self._edge(self.n, c.columns, n - column))
        zero = b.full((c.rows, c.columns), 0 if self.wide is i32 else 0.0, self.wide)
        with b.loop(start, stop, c.depth, [zero]) as loop:
            left, right = self.tiles(z, row, column, loop.index, edges, self._edge(self.k, c.depth, k - loop.index))
            loop.next(b.mma(left, right, loop.carried[0], **({"precision": self.precision} if self.precision else {})))
        total: Tile = loop.results[0]
        if sums:
            view = self.view("sums", self.wide, *sums, self.n, write=True)
            b.store(view, (*part, *z, row, column), total, limit=edges)
        else:
            self._write(total * self.alpha if self.alpha != 1.0 else total, (*z, row, column), edges)
        grid = ceildiv(self.m, c.rows) * ceildiv(self.n, c.columns) * product(lead)
        if c.producers and min(self.vectors[name] for name in self.extents) * self.dtype.itemsize < 16:
            c = replace(c, producers=0)  # elements one by one: all threads copy
        note = f"{self.unit} {c.rows}x{c.columns}x{c.depth}, {c.stages} stages{' of producer warps' if c.producers else ''}"
        note += f", K in {c.parts}" if sums else ""
        nbytes = self.nbytes + product(sums[1].shape) * 4 if sums else region_bytes(self.region)
        launch = call.finish(grid, flops=region_flops(self.region), bytes_=nbytes, note=note)
        return tiled(
            launch, warps=c.warps, stages=c.stages, per_sm=c.per_sm, vectors=self.vectors, producers=c.producers, extents=self.extents
        )


class MatmulKernel(Product):
    """One kernel under construction. `lead` are batch axes that do not merge with rows."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        node = region.anchor
        assert node is not None
        self.region, self.node = region, node
        p = self.p = Problem.of(region)
        self.n, self.k, self.alpha = p.n, p.k, p.alpha
        self.dtype, wide = p.a.type.dtype, sums_of(p.a.type.dtype, p.b.type.dtype, p.dtype)
        assert wide is not None
        self.wide: DType = wide
        self.widened = self.dtype in (f8e4m3, f8e5m2) and target.cpu == "sm_80"  # whose tensor cores do not take eight-bit floats
        self.precision = "tf32" if rounds(node, target) else None
        doubles = self.dtype is f64 and target.cpu in ("sm_80", "sm_90a")  # chips with tensor cores of f64
        unit = "multiply-adds" if self.dtype in (f32, f64) else "tensor cores"
        self.unit = "tf32" if self.precision else "f64 tensor cores" if doubles else unit
        out = region.results[0].type.shape
        self.leaves = leaves_of_epilogue(region, node.values[0])
        others = [self.operand(v).layout.expand(out) for v in self.leaves]
        a = p.a_view.expand((*out[:-2], p.m, p.k))
        b = p.b_view.expand((*out[:-2], p.k, p.n))
        results = [r.layout for r in region.results]
        self.lead, self.m, strides = self._merged(out, a, b, [*results, *others], p.batched)
        shape, few = (*self.lead, self.m), product(self.lead)
        self.left = Layout((*shape, p.k), (*strides[0], a.strides[-1]), p.a_view.offset)
        self.right = Layout((*self.lead, p.k, p.n), (*strides[1], *b.strides[-2:]), p.b_view.offset)
        self.ends = [Layout((*shape, p.n), (*s, x.strides[-1]), x.offset) for s, x in zip(strides[2:], [*results, *others], strict=True)]
        c = choose(self.m, p.n, few, self.dtype.itemsize, target, k=p.k, tf32=self.precision is not None)
        c = replace(c, stages=fitting(c.stages, (c.rows + c.columns) * c.depth * self.dtype.itemsize, target))
        self.config = c
        self._begin("matmul", region.name)

    def open(self) -> None:
        p = self.p
        self.left_view = self.view("a", p.a.type.dtype, p.a.buffer, self.left, None)
        self.right_view = self.view("b", p.b.type.dtype, p.b.buffer, self.right, None)
        self.extents = {"a": self.left, "b": self.right}

    def tiles(self, z: list[Ix | int], row: Ix | int, column: Ix | int, k: Ix, edges: Edges, deep: Ix | int | None) -> tuple[Tile, Tile]:
        b, c = self.call.b, self.config
        left = b.load(self.left_view, (*z, row, k), (c.rows, c.depth), limit=(edges[0], deep))
        right = b.load(self.right_view, (*z, k, column), (c.depth, c.columns), limit=(deep, edges[1]))
        return (b.cast(left, f16), b.cast(right, f16)) if self.widened else (left, right)

    @staticmethod
    def _merged(
        out: Shape, a: Layout, b: Layout, others: list[Layout], batched: bool
    ) -> tuple[list[Dim], Dim, list[tuple[Dim, ...]]]:
        """Batch axes that stay apart, rows, and the strides of both in A (with rows), B (without) and the others (with rows)."""
        if batched:
            lays = [Layout(out[:-2], x.strides[:-2]) for x in (a, b, *others)]
            sizes, strides = collapse(out[:-2], lays)
            rows = [a.strides[-2], None, *(x.strides[-2] for x in others)]
            return sizes, out[-2], [(*s, *([] if r is None else [r])) for s, r in zip(strides, rows, strict=True)]
        lays = [Layout(out[:-1], x.strides[:-1]) for x in (a, *others)]
        sizes, strides = collapse(out[:-1], lays)
        if not sizes:
            sizes, strides = [1], [[0] for _ in lays]
        order = sorted(range(len(sizes)), key=lambda i: sizes[i] if isinstance(sizes[i], int) else 1 << 30)  # the longest axis is the rows
        sizes, strides = [sizes[i] for i in order], [[s[i] for i in order] for s in strides]
        first, *rest = [tuple(s) for s in strides]
        return sizes[:-1], sizes[-1], [first, (0,) * (len(sizes) - 1), *rest]
