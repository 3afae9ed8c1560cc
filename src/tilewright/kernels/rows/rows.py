"""Row kernels: norms, softmax and reductions over trailing axes (other axes are permuted to the end), with elementwise producers
and consumers fused, the rounding of a norm's result to values among them. One program owns one row and sweeps it once per statistic; a
row is never split, and the order of its sums depends on its length alone: `tile` lane-wise partial sums, then a halving tree.

A masked tail covers lengths that are no multiple of the tile. A region output that stands before the anchor (the sum of a
residual and its norm's input, for instance) is stored by the first sweep and read back by the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import Dim, bounds, product
from ...core.dtypes import compute_dtype
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.rows import norms
from ...ops.rows import reductions as red
from ...tile.builder import Ix, Tile, View
from ...tile.ir import identity
from ..call import Call
from ..launch import Buffer, Launch
from ..loops import in_tiles
from ..pointwise.copies import transposing_copy
from ..pointwise.pointwise import unravel
from ..quant.quantize import BLOCK, HALF, QuantizedViews, quantize_row
from ..region import Evaluator, Operand, Region, collapse, narrow
from ..template import Template, region_bytes, region_flops

REDUCTIONS: dict[type, str] = {
    red.Sum: "sum",
    red.Mean: "sum",
    red.Max: "max",
    red.Min: "min",
    red.Prod: "prod",
    red.Any_: "any",
    red.All: "all",
}
FEW = 16  # elements across memory that are reduced in registers
COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}
NORMS = (norms.LayerNorm, norms.RmsNorm)
SOFTMAXES = (norms.Softmax, norms.LogSoftmax)


def reduced_axes(region: Region) -> tuple[int, ...]:
    """Axes of the anchor's operand that a row runs over."""
    op, ndim = region.node.op, region.node.operands[0].type.ndim
    if isinstance(op, NORMS):
        return tuple(range(ndim - op.naxes, ndim))
    if isinstance(op, SOFTMAXES):
        return (op.axis % ndim,)
    axes: tuple[int, ...] = op.axes  # type: ignore[attr-defined]
    return tuple(a % ndim for a in axes)


def halved(found: list[Tile], parts: int, join: Callable[[Tile, Tile], Tile]) -> Tile:
    """The halving tree over `parts` partial results, of which only the first are there: the others would be identities."""
    while (parts := parts // 2):
        found = [join(x, found[i + parts]) if i + parts < len(found) else x for i, x in enumerate(found[:parts])]
    return found[0]


class Rows(Template):
    key = "rows"
    serves = (*NORMS, *SOFTMAXES, *REDUCTIONS)
    fuses = True

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if isinstance(region.node.op, (*NORMS, *SOFTMAXES)) and region.tail is None:
            return transposed(region, target, RowKernel)
        return [RowKernel(region, target).launch()]


def transposed(region: Region, target: TargetSpec, kernel: type[RowKernel]) -> list[Launch]:
    """A kernel of rows. Columns that lie across memory are transposed into rows first, and back where a result does: sweeps along memory
    instead of jumps."""
    axes, shape = reduced_axes(region), region.node.operands[0].shape
    if len(axes) != 1:
        return [kernel(region, target).launch()]
    axis = axes[0]
    if kernel is RowKernel and target.kind == "cpu" and lies_across(region, axis):
        from .columns import ColumnKernel

        return [ColumnKernel(region, target).launch()]

    def in_rows(o: Operand, name: str) -> Operand:
        order = (*(i for i in range(o.type.ndim) if i != axis), axis)
        back = tuple(order.index(i) for i in range(o.type.ndim))
        layout = Layout.contiguous(tuple(o.type.shape[i] for i in order)).permute(back)
        return Operand(o.type, Buffer(f"{region.name}.{name}", "temp", o.type.nbytes), layout)

    def copies(found: Sequence[Operand], name: str, *, back: bool) -> tuple[list[Operand], list[Launch]]:
        operands, launches = list(found), list[Launch]()
        for i, o in enumerate(found):
            if o.type.shape != shape:
                continue
            rows, which = in_rows(o, f"{name}{i or ''}"), str(i or "")
            copy = (transposing_copy(f"{region.name}.back{which}", rows, o, target, "rows transposed into columns") if back
                    else transposing_copy(f"{region.name}.transpose{which}", o, rows, target, "columns transposed into rows"))
            if copy is not None:
                operands[i], launches = rows, [*launches, copy]
        return operands, launches

    (sources, before), (made, after) = copies(region.operands, "transposed", back=False), copies(region.results, "rows", back=True)
    inner = Region(region.name, region.body, sources, made, region.place) if before or after else region
    return [*before, kernel(inner, target).launch(), *after]


def lies_across(region: Region, axis: int) -> bool:
    """Everything of the operand's shape runs along one axis of memory, which is not the reduced one."""
    shape = region.node.operands[0].shape
    along = {next((a for a, (d, s) in enumerate(zip(shape, o.layout.strides, strict=True)) if s == 1 and d != 1), axis)
             for o in (*region.operands, *region.results) if o.type.shape == shape}
    return len(along) == 1 and along != {axis}


class RowKernel:
    """One kernel under construction."""

    resident = False  # the whole row is one tile: nothing needs to be kept in memory between sweeps
    goes_back = False  # a reduction's result goes back along the row

    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.region, self.node = region, region.node
        self.call = Call(self.node.op.name, region.name)
        self.b = self.call.b
        self.reduces = isinstance(self.node.op, tuple(REDUCTIONS)) and not self.goes_back
        kept_outputs = [i for i, v in enumerate(region.body.outputs) if v.node is not region.tail]  # those of a tail come last
        self.outputs, self.results = [region.body.outputs[i] for i in kept_outputs], [region.results[i] for i in kept_outputs]
        self.quantized = region.results[len(self.results) :]
        self.dtype = compute_dtype(self.node.operands[0].dtype)
        shape = self.node.operands[0].shape
        axes = self.row_axes()
        kept = self.kept_axes(axes)
        self.order = (*kept, *axes)
        self.shape = shape
        self.kept_shape = tuple(shape[i] for i in kept)
        self.row_shape = tuple(shape[i] for i in axes)
        self.length: Dim = product(self.row_shape)
        self.tile = self.tile_width(target)
        self._bind_views()

    def row_axes(self) -> tuple[int, ...]:
        """The axes of a row, in the order in which the first thing of its shape lies."""
        axes, shape = reduced_axes(self.region), self.node.operands[0].shape
        whole = (o.layout.strides for o in (*self.region.operands, *self.region.results) if o.type.shape == shape)
        steps = next(whole, ())
        return axes if not steps else tuple(sorted(axes, key=lambda a: -bounds(steps[a])[0]))

    def kept_axes(self, axes: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(i for i in range(len(self.node.operands[0].shape)) if i not in axes)

    def tile_width(self, target: TargetSpec) -> int:
        """Elements of a row that are in registers at once."""
        lanes = target.vector_bits // 32
        return lanes * 4 if not isinstance(self.length, int) or self.length >= lanes * 4 else lanes

    def _bind_views(self) -> None:
        """Views of all leaves and results over [kept axes merged…, row axes merged…]."""
        self.full, self.reduced = self._leaves()
        leaves = [*self.full, *self.reduced]
        operands = [self.region.operand(v) for v in leaves]
        layouts = [self._ordered(o, reduced=v in self.reduced) for v, o in zip(leaves, operands, strict=True) if o is not None]
        before = {v for v in self.outputs if not self.region.depends_on_anchor(v)}
        results = [
            self._ordered(r, reduced=self.reduces and v not in before)
            for v, r in zip(self.outputs, self.results, strict=True)
        ]
        every = [*layouts, *results]
        n_kept = len(self.kept_shape)
        along = [*every, *(r.layout for r in self.quantized)]
        outer, outer_strides = collapse(self.kept_shape, [Layout(self.kept_shape, lay.strides[:n_kept]) for lay in along])
        inner, inner_strides = collapse(self.row_shape, [Layout(self.row_shape, lay.strides[n_kept:]) for lay in every])
        if not inner:
            inner, inner_strides = [1], [[1] for _ in every]
        views = [Layout((*outer, *inner), (*a, *c), lay.offset) for lay, a, c in zip(every, outer_strides, inner_strides, strict=False)]
        call = self.call
        self.views: dict[Value, View] = {}
        for i, (v, o) in enumerate(zip(leaves, operands, strict=True)):
            assert o is not None
            self.views[v] = call.view(f"x{i}", o.type.dtype, o.buffer, views[i])
        self.outs = [
            call.view(f"y{i}", r.type.dtype, r.buffer, views[len(leaves) + i], write=True) for i, r in enumerate(self.results)
        ]
        if self.quantized:
            assert isinstance(self.length, int)
            rows = [Layout((*outer, r.layout.shape[-1]), (*a, r.layout.strides[-1]), r.layout.offset)
                    for r, a in zip(self.quantized, outer_strides[len(every) :], strict=True)]
            self.quantized_out = QuantizedViews(*(call.view(f"q{i}", r.type.dtype, r.buffer, lay, write=True)
                                     for i, (r, lay) in enumerate(zip(self.quantized, rows, strict=True))))
            self.row = self.b.scratch(self.dtype, (self.length,))
        self.before = before
        self.outer = outer
        self.grid: Dim = product(outer)
        self.at = self.place([call.word(f"d{i}", d) for i, d in enumerate(outer)])
        self.inner = [call.word(f"n{i}", d) for i, d in enumerate(inner)]
        self.same = [
            (o.buffer, r.buffer)
            for o, lay in zip(operands, views, strict=False)
            for r, rl in zip(self.results, views[len(leaves) :], strict=True)
            if o is not None and lay == rl and o.type.dtype is r.type.dtype
        ]

    def place(self, dims: list[Ix]) -> list[Ix | int]:
        """Where a program's row lies along the kept axes."""
        return unravel(self.b, self.b.pid, dims)

    def _leaves(self) -> tuple[dict[Value, None], dict[Value, None]]:
        """Leaves read at full shape, and leaves read at the reduced shape (in the epilogue of a reduction)."""
        full: dict[Value, None] = {}
        reduced: dict[Value, None] = {}

        def visit(v: Value, into: dict[Value, None]) -> None:
            if v.node is self.node:
                for o in v.node.operands:
                    visit(o, full)
            elif self.region.operand(v) is not None:
                into[v] = None
            else:
                for o in v.node.operands:
                    visit(o, into)

        for out in [*self.outputs, *(self.region.tail.operands if self.region.tail is not None else ())]:
            visit(out, reduced if self.reduces and self.region.depends_on_anchor(out) else full)
        return full, {v: None for v in reduced if v not in full}

    def _ordered(self, o: Operand, *, reduced: bool) -> Layout:
        """The operand's layout over (kept, row) axes; a reduced operand has stride 0 along the row."""
        if not reduced:
            return o.layout.expand(self.shape).permute(self.order)
        axes = reduced_axes(self.region)
        lay = o.layout
        out_shape = self.node.values[0].shape
        lay = lay.expand(out_shape) if lay.shape != out_shape else lay
        if len(out_shape) == len(self.shape):  # keepdims
            strides = [lay.strides[i] for i in range(len(self.shape)) if i not in axes]
        else:
            strides = list(lay.strides)
        return Layout((*self.kept_shape, *self.row_shape), (*strides, *([0] * len(self.row_shape))), lay.offset)

    # --- sweeping a row -----------------------------------------------------------------------------------------------
    def sweep(self, carried: Sequence[Tile],
              body: Callable[[Evaluator, list[Ix | int], Ix | int | None, list[Tile]], list[Tile]]) -> list[Tile]:
        """Run body over the row: whole tiles, then a masked tail; nested loops when the row axes do not merge."""
        return self._nest([], list(carried), body)

    def _nest(self, prefix: list[Ix | int], carried: list[Tile], body: Callable[..., list[Tile]]) -> list[Tile]:
        b = self.b
        if len(prefix) < len(self.inner) - 1:
            with b.loop(0, self.inner[len(prefix)], 1, carried) as loop:
                loop.next(*self._nest([*prefix, loop.index], list(loop.carried), body))
            return list(loop.results)

        def part(i: Ix, left: Ix | int | None, values: list[Tile]) -> list[Tile]:
            at = [*prefix, i]
            return body(self._evaluator(at, left), at, left, values)

        return in_tiles(b, 0, self.inner[-1], self.tile, part, carried)

    def _evaluator(self, at: list[Ix | int], left: Ix | int | None) -> Evaluator:
        def leaf(v: Value, o: Operand) -> Tile:
            return self._load(self.views[v], at, left)

        return Evaluator(self.b, self.region, leaf)

    def _load(self, view: View, at: list[Ix | int], left: Ix | int | None) -> Tile:
        if view.type.strides[-1] == 0:
            return self.b.load(view, (*self.at, *at), (1,))
        return self.b.load(view, (*self.at, *at), (self.tile,), limit=None if left is None else (left,))

    def inside(self, left: Ix | int | None, x: Tile, other: float) -> Tile:
        """x with lanes past the end replaced by `other`."""
        if left is None:
            return x
        lane = self.b.iota((self.tile,), 0)
        return self.b.select(self.b.cmp("lt", lane, self.b.from_index(left)), x, other)

    def store(self, i: int, at: list[Ix | int], x: Tile, left: Ix | int | None) -> None:
        r = self.results[i]
        self.b.store(
            self.outs[i],
            (*self.at, *at),
            narrow(self.b, self.b.broadcast(x, (self.tile,)), r.type.dtype),
            limit=None if left is None else (left,),
        )

    def source(self, evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, first: bool) -> Tile:
        """The anchor's operand at a position. The first sweep stores outputs that stand before the anchor; later ones read them back."""
        for i, v in enumerate(self.outputs):
            if v not in self.before:
                continue
            if first:
                self.store(i, at, evaluate(v), left)
            elif compute_dtype(v.dtype) is v.dtype:
                evaluate.tiles.setdefault(v, self._load(self.outs[i], at, left))
        return self.b.broadcast(evaluate(self.node.operands[0]), (self.tile,))

    def total(self, fn: str, value: Callable[[Tile], Tile], other: float, *, first: bool = False) -> Tile:
        """Reduce value(x) over the row to one element of shape (1,)."""
        return self.fold(fn, lambda evaluate, at, left: value(self.source(evaluate, at, left, first)), other)

    def fold(self, fn: str, value: Callable[[Evaluator, list[Ix | int], Ix | int | None], Tile], other: float) -> Tile:
        """Reduce what `value` makes of every tile of the row."""
        b = self.b

        def body(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            x = value(evaluate, at, left)  # first: what a maximum asks about NaN stays off the chain of results
            return [b.binary(COMBINE[fn], self.inside(left, x, other), carried[0])]

        return b.reduce(fn, self.sweep([b.full((self.tile,), other, self.dtype)], body)[0])

    # --- the kernels --------------------------------------------------------------------------------------------------
    def launch(self) -> Launch:
        op = self.node.op
        if self.reduces:
            self._reduction()
        elif isinstance(op, SOFTMAXES):
            self._softmax(log=isinstance(op, norms.LogSoftmax))
        elif isinstance(op, norms.LayerNorm):
            self._layer_norm(op.eps)
        else:
            assert isinstance(op, norms.RmsNorm)
            self._rms_norm(op.eps)
        pairs = [] if len(self.results) > 1 or self.reduces else self.same
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), inplace=pairs, streams=True)

    def _finish(self, value: Callable[[Tile, Evaluator], Tile], *, first: bool = False) -> None:
        """The last sweep: the anchor's result from its operand, then the epilogue and the stores."""

        def body(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
            x = self.source(evaluate, at, left, first)
            evaluate.tiles[self.node.values[0]] = value(x, evaluate)
            for i, v in enumerate(self.outputs):
                if v not in self.before:
                    self.store(i, at, evaluate(v), left)
            if self.quantized:
                assert self.region.tail is not None
                y = self.b.broadcast(evaluate(self.region.tail.operands[0]), (self.tile,))
                self.b.store(self.row, (at[-1],), y, limit=None if left is None else (left,))
            return []

        self.sweep([], body)
        if self.quantized:
            quantize_row(self.b, self.quantized_out, self.at, self.inner[-1] // BLOCK, lambda at: self.b.load(self.row, (at,), (HALF,)))

    def _scale(self, evaluate: Evaluator, y: Tile) -> Tile:
        """Weight and bias of a norm."""
        operands = self.node.operands[1:]
        if operands:
            y = y * evaluate(operands[0])
        return y + evaluate(operands[1]) if len(operands) > 1 else y

    def _layer_norm(self, eps: float) -> None:
        b = self.b
        count = self._count()
        mean = self.total("sum", lambda x: x, 0.0, first=True) / count
        variance = self.total("sum", lambda x: (x - mean) * (x - mean), 0.0) / count
        rstd = b.unary("reciprocal", b.unary("sqrt", variance + eps))
        self._finish(lambda x, evaluate: self._scale(evaluate, (x - mean) * rstd))

    def _rms_norm(self, eps: float) -> None:
        b = self.b
        mean = self.total("sum", lambda x: x * x, 0.0, first=True) / self._count()
        rstd = b.unary("reciprocal", b.unary("sqrt", mean + eps))
        self._finish(lambda x, evaluate: self._scale(evaluate, x * rstd))

    def _softmax(self, *, log: bool) -> None:
        b = self.b
        top = self.total("max", lambda x: x, float("-inf"), first=True)
        # Keep exp(x - max) in the result's own memory between the sweeps when it has the right dtype and nothing follows.
        alone = self.outputs == [self.node.values[0]] and self.results[0].type.dtype is self.dtype
        keep = not log and not self.resident and alone

        def power(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None) -> Tile:
            e = b.unary("exp", self.source(evaluate, at, left, first=False) - top)
            if keep:
                self.store(0, at, e, left)
            return e

        total = self.fold("sum", power, 0.0)
        if log:
            log_total = b.unary("log", total)
            self._finish(lambda x, evaluate: (x - top) - log_total)  # top + log_total would lose the digits of the logarithm
            return
        inverse = b.unary("reciprocal", total)

        def divide(e: Tile) -> Tile:
            y = e * inverse  # one Newton step makes it as exact as a division, at a fraction of its cost
            return b.fma(b.fma(-y, b.broadcast(total, e.shape), e), inverse, y)

        if keep:

            def again(evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, carried: list[Tile]) -> list[Tile]:
                self.store(0, at, divide(self._load(self.outs[0], at, left)), left)
                return []

            self.sweep([], again)
        else:
            self._finish(lambda x, evaluate: divide(b.unary("exp", x - top)))

    def _count(self) -> Tile:
        n: Ix | int = self.inner[0]
        for d in self.inner[1:]:
            n = n * d
        return self.b.from_index(n, self.dtype)

    def _reduction(self) -> None:
        b = self.b
        fn = REDUCTIONS[type(self.node.op)]
        value = self.total(fn, lambda x: x, identity(fn, self.dtype), first=True)
        if isinstance(self.node.op, red.Mean):
            value = value / self._count()
        at: list[Ix | int] = [0] * len(self.inner)

        def leaf(v: Value, o: Operand) -> Tile:
            return b.load(self.views[v], (*self.at, *at), (1,))

        evaluate = Evaluator(b, self.region, leaf, {self.node.values[0]: value})
        for i, (v, r) in enumerate(zip(self.outputs, self.results, strict=True)):
            if v not in self.before:
                b.store(self.outs[i], (*self.at, *at), narrow(b, b.broadcast(evaluate(v), (1,)), r.type.dtype))
