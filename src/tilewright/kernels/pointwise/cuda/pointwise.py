"""Pointwise regions on a GPU: the shared loop nest with tiles as wide as a group of threads times 16 bytes.

One program computes one tile of the innermost axis; short rows get smaller groups, several to a block. The tail of a row is masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ....core.dims import Dim, bounds, ceildiv, product
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.base import Op
from ....ops.pointwise.activations import Gelu
from ....tile.builder import KernelBuilder, Tile
from ....tile.ir import SHORT
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...cuda.kernel import WARP
from ...launch import Launch
from ...region import Evaluator, Operand, Region, collapse, narrow
from ...sites import Checks, checked
from ...template import region_bytes, region_flops
from ..pointwise import Pointwise, _innermost, _layout, _pairs, leaves_of, unravel

# log2 of the normal distribution at -a: minimax on [0, 6], falling for ever after
# Shorter arithmetic on a GPU for results of 16 bits, where the full one would cost more than moving the numbers.
# GELU is x times the normal distribution, whose lower tail is 2^P(|x|) with a polynomial P: a relative error of 4e-5 down to -6, where the
# formula with erf has lost all digits to cancellation; half a unit of bf16 is 4e-3, of f16 5e-4 (which has no numbers below 6e-8).
# Infinities and NaN come out as they do there.
_TAIL = (-0.9999958276748657, -1.1512376070022583, -0.458515465259552, -0.05389075353741646, 0.008464887738227844,
         -0.0009173023863695562, 5.964222873444669e-05, -1.7240382703676005e-06)  # fmt: skip


class _Short:
    """A builder whose functions are the short ones, where there are."""

    def __init__(self, b: KernelBuilder) -> None:
        self.b = b

    def __getattr__(self, name: str) -> Any:
        return getattr(self.b, name)

    def unary(self, fn: str, x: Tile) -> Tile:
        return self.b.unary(fn, x, short=fn in SHORT and x.dtype is f32)

    def binary(self, fn: str, x: Tile, y: Tile) -> Tile:
        return self.b.binary(fn, x, y, short=fn in SHORT and x.dtype is f32)


class ShortEvaluator(Evaluator):
    def lower(self, op: Op, tiles: list[Tile]) -> Tile:
        x = tiles[0]
        if x.dtype is f32 and isinstance(op, Gelu) and op.approximate == "none":
            return x * self._normal(x)
        out: Tile = op.lower(_Short(self.b), *tiles)
        return out

    def _normal(self, x: Tile) -> Tile:
        b = self.b
        a = b.unary("abs", x)
        power = b.full(x.shape, _TAIL[-1], f32)
        for c in _TAIL[-2::-1]:
            power = b.fma(power, a, b.full(x.shape, c, f32))
        tail = b.unary("exp2", power, short=True)
        return b.select(b.cmp("gt", x, 0.0), 1.0 - tail, tail)


def evaluator(region: Region) -> type[Evaluator]:
    """The evaluator for a region's results."""
    return ShortEvaluator if all(r.type.dtype.name in ("bf16", "f16") for r in region.results) else Evaluator


BLOCK = 256  # threads
PIECES = 1  # accesses of 16 bytes of a thread and operand: two were 2 to 3 % slower, four 2 % (GELU and SiLU of bf16)
FULL = 0.75  # the least share of a group's threads that have a piece of the row; else groups are smaller
SHORT_ROW, MANY = 64, 1 << 20  # elements of a short row, and of all rows where there are many
LONG, NARROW = 24, 8  # operations of a long chain, and the bytes that a thread takes of each operand then
FILLED = 1 << 10  # threads that fill an SM
ROWS = (4, 2)  # short rows of a program whose operands are partly the same for all rows: those are loaded once
SINGLE = 4  # single elements of a program: what it computes to find its place is as much as what it does for one


class CudaPointwise(Pointwise):
    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        shape = region.results[0].type.shape
        leaves = leaves_of(region)
        operands = [region.operand(v) for v in leaves]
        layouts = [_layout(region, v).expand(shape) for v in leaves] + [r.layout for r in region.results]
        sizes, strides = collapse(shape, [*layouts, Layout.contiguous(shape)] if checked(region) else layouts)
        if not sizes:
            sizes, strides = [1], [[1] for _ in strides]
        sizes, strides = _innermost(sizes, strides, len(leaves))
        views = [Layout(tuple(sizes), tuple(s), lay.offset) for s, lay in zip(strides, layouts, strict=False)]
        in_memory = [(o.type.dtype.itemsize, views[i]) for i, o in enumerate(operands) if o is not None]
        in_memory += [(r.type.dtype.itemsize, views[len(leaves) + i]) for i, r in enumerate(region.results)]
        inner = sizes[-1]
        vector = vector_width([s for s, _ in in_memory], inner, [v for _, v in in_memory])
        if len(region.body.nodes) > LONG:
            vector = narrower(vector, max(s for s, _ in in_memory), product(sizes), target)
        threads, pieces = group(inner, vector)
        tile = threads * vector * pieces
        known = whole_sizes(sizes)
        rows = self.rows(sizes, views[: len(leaves)], tile, threads) if known and not checked(region) else 1
        call = Call("pointwise", region.name)
        b = call.b
        ins = {
            v: call.view(f"x{i}", o.type.dtype, o.buffer, views[i])
            for i, (v, o) in enumerate(zip(leaves, operands, strict=True))
            if o is not None
        }
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, views[len(leaves) + i], write=True) for i, r in enumerate(region.results)]
        dims = [d if known and isinstance(d, int) else call.word(f"d{i}", d) for i, d in enumerate(sizes)]
        ramps = {
            v: [call.word(f"r{i}_{k}", s) if not isinstance(s, int) else s for k, s in enumerate([layouts[i].offset, *strides[i]])]
            for i, (v, o) in enumerate(zip(leaves, operands, strict=True))
            if o is None
        }
        checks = Checks(call, region, strides[-1])
        tiles = b.ceildiv(dims[-1], tile)
        start = b.pid % tiles * tile if len(dims) > 1 and rows == 1 else b.pid * tile if rows == 1 else 0
        whole = isinstance(inner, int) and inner % tile == 0
        limit = None if whole else (dims[-1] - start,)
        same = {v: self.load(b, ins[v], [0] * (len(dims) - 1), start, tile, limit) for i, v in enumerate(leaves)
                if rows > 1 and v in ins and not any(views[i].strides[:-1])}
        found: list[list[Tile]] = []
        places: list[list[Any]] = []
        for row in range(rows):
            position = unravel(b, b.pid // tiles if rows == 1 else b.pid * rows + row, dims[:-1]) if len(dims) > 1 else []

            def leaf(v: Value, o: Operand, position: list[Any] = position) -> Tile:
                return same[v] if v in same else self.load(b, ins[v], position, start, tile, limit)

            def ramp(v: Value, position: list[Any] = position) -> Tile:
                value, *steps = ramps[v]
                for p, s in zip((*position, start), steps, strict=True):
                    value = value + p * s
                return b.iota((tile,), 0) * b.from_index(steps[-1]) + b.from_index(value)

            evaluate = evaluator(region)(b, region, leaf, ramp=ramp, checks=bool(checks))
            if checks:
                checks.emit(evaluate, (*position, start), tile, None if limit is None else limit[0])
            results = zip(region.body.outputs, region.results, strict=True)
            found.append([narrow(b, b.broadcast(evaluate(v), (tile,)), r.type.dtype) for v, r in results])
            places.append(position)
        for position, stored in zip(places, found, strict=True):  # all are computed first: one may lie on an operand of another
            for view, x in zip(outs, stored, strict=True):
                b.store(view, (*position, start), x, limit=limit)
        programs = product(sizes[:-1]) * ceildiv(inner, tile) if rows == 1 else product(sizes[:-1]) // rows
        launch = call.finish(programs, flops=region_flops(region), bytes_=region_bytes(region), inplace=_pairs(region, operands, layouts))
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads if threads <= 32 else 1, vector)
        return [launch]

    @staticmethod
    def load(b: KernelBuilder, view: Any, position: Sequence[Any], start: Any, tile: int, limit: Any) -> Tile:
        if view.type.strides[-1] == 0:  # one number for the whole row
            return b.load(view, (*position, 0), (1,))
        return b.load(view, (*position, start), (tile,), limit=limit)

    @staticmethod
    def rows(sizes: Sequence[Any], views: Sequence[Layout], tile: int, threads: int) -> int:
        """Short rows that a program computes: several where operands are the same for all of them."""
        count = prod(sizes[:-1])
        alike = sum(not any(v.strides[:-1]) and v.strides[-1] != 0 for v in views)
        if alike == 0 or sizes[-1] > tile or threads > WARP or prod(sizes) < MANY:
            return 1
        return next((n for n in ROWS if count % n == 0), 1)


def narrower(vector: int, itemsize: int, elements: Dim, target: TargetSpec) -> int:
    """Elements a thread takes side by side in a long chain of operations: fewer where the chip has threads to spare, or values would not
    stay in registers."""
    vector = min(vector, max(1, NARROW // itemsize))
    while vector > 1 and bounds(elements)[1] < vector * target.cores * FILLED:
        vector //= 2
    return vector


def whole_sizes(sizes: Sequence[Dim]) -> bool:
    """Whether a kernel knows its sizes: many short rows, whose places take longer to find than their elements to move."""
    known = [d for d in sizes if isinstance(d, int)]
    return len(known) == len(sizes) > 1 and known[-1] <= SHORT_ROW and prod(known) >= MANY


def group(inner: Dim, vector: int) -> tuple[int, int]:
    """Threads of a program and pieces per thread for rows of this length."""
    pieces = SINGLE if vector == 1 else PIECES
    if not isinstance(inner, int) or inner >= BLOCK * vector * pieces:
        return BLOCK, pieces
    threads = 1
    while threads < BLOCK and threads * vector < inner:
        threads *= 2
    if vector == 1 and WARP < threads < BLOCK:  # single elements of short rows: warps side by side, not a block for each row
        return WARP, threads // WARP
    used = -(-inner // vector)
    if vector > 1 and used < FULL * threads:  # several groups a row, the widest of which an eighth is idle at most
        threads = next(t for t in (16, 8, 4, 2, 1) if -(-used // t) * t * 8 <= used * 9)
    return threads, 1
