"""What kernels built from register tiles share: cutting rows into tiles of nearly equal height, and writing a finished tile through the
elementwise consumers of its op."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import Dim
from ...ir.graph import Value
from ...ir.layout import Layout
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..region import Evaluator, Operand, Region, collapse, narrow, narrow_sum, widen

Limit = tuple[Ix | int, ...] | None


def leaves_of_epilogue(region: Region, product_value: Value, outputs: Sequence[Value] | None = None) -> list[Value]:
    """Leaves that the outputs (all of them, if none are named) read beside the product itself."""
    used: dict[Value, None] = {}

    def visit(v: Value) -> None:
        if v is product_value:
            return
        if region.operand(v) is not None:
            used[v] = None
            return
        for o in v.node.operands:
            visit(o)

    for out in region.body.outputs if outputs is None else outputs:
        visit(out)
    return list(used)


class Epilogue:
    """What the result of a region's anchor goes through on its way to memory: elementwise consumers, and stores to the region's results.
    The axes of all views stand as `arrange` puts those of the anchor's result."""

    def __init__(self, call: Call, region: Region, arrange: Callable[[Layout], Layout] = lambda layout: layout, *,
                 sums: bool = False) -> None:
        self.b, self.region, self.value = call.b, region, region.node.values[0]
        self.narrow = narrow_sum if sums else narrow
        read = {v: o for v in leaves_of_epilogue(region, self.value) if (o := region.operand(v)) is not None}
        self.ins = {v: call.view(f"e{i}", o.type.dtype, o.buffer, arrange(o.layout.expand(self.value.shape)))
                    for i, (v, o) in enumerate(read.items())}
        self.outs = [call.view(f"y{i}", r.type.dtype, r.buffer, arrange(r.layout), write=True) for i, r in enumerate(region.results)]

    def computed(self, at: Sequence[Ix | int], result: Tile, shape: tuple[int, ...], limit: Limit = None) -> list[Tile]:
        """The region's results from a tile of the anchor's, scalar or along the last axis, at a position."""
        b, along = self.b, len(shape) > 0

        def leaf(v: Value, o: Operand) -> Tile:
            view = self.ins[v]
            return b.load(view, at, (1,)) if along and view.type.strides[-1] == 0 else b.load(view, at, shape, limit=limit)

        evaluate = Evaluator(b, self.region, leaf, {self.value: widen(b, result)})
        return [b.broadcast(evaluate(v), shape) for v in self.region.body.outputs]

    def put(self, at: Sequence[Ix | int], tiles: Sequence[Tile], limit: Limit = None) -> None:
        for view, tile, r in zip(self.outs, tiles, self.region.results, strict=True):
            self.b.store(view, at, self.narrow(self.b, tile, r.type.dtype), limit=limit)

    def store(self, at: Sequence[Ix | int], result: Tile, shape: tuple[int, ...], limit: Limit = None) -> None:
        self.put(at, self.computed(at, result, shape, limit), limit)


class Rows:
    """The results of a region and what its epilogue reads, as rows whose leading axes are merged where all that a kernel walks together
    has no gap between them. `arrange` puts the axes of the anchor's result as the kernel sees them."""

    def __init__(self, region: Region, arrange: Callable[[Layout], Layout] = lambda layout: layout) -> None:
        self.region, value = region, region.node.values[0]
        self.read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
        expanded = [o.layout.expand(value.shape) for o in self.read.values()]
        self.layouts = [arrange(lay) for lay in (*(r.layout for r in region.results), *expanded)]

    def leading(self) -> list[Layout]:
        return [Layout(lay.shape[:-1], lay.strides[:-1]) for lay in self.layouts]

    def merged(self, *others: Layout) -> tuple[list[Dim], list[list[Dim]]]:
        """The merged leading axes (one at least), and their strides in `others`, then in every result and leaf."""
        every = [*others, *self.leading()]
        sizes, strides = collapse(others[0].shape, every)
        return (sizes, strides) if sizes else ([1], [[0] for _ in every])

    def views(self, call: Call, sizes: Sequence[Dim], strides: Sequence[Sequence[Dim]]) -> tuple[list[View], dict[Value, View]]:
        """Views of the results and of what the epilogue reads, with these leading axes."""
        lays = [Layout((*sizes, lay.shape[-1]), (*s, lay.strides[-1]), lay.offset) for lay, s in zip(self.layouts, strides, strict=True)]
        results = list(zip(self.region.results, lays, strict=False))
        outs = [call.view(f"c{i}", r.type.dtype, r.buffer, lay, write=True) for i, (r, lay) in enumerate(results)]
        leaves = zip(self.read.items(), lays[len(outs) :], strict=True)
        return outs, {v: call.view(f"e{i}", o.type.dtype, o.buffer, lay) for i, ((v, o), lay) in enumerate(leaves)}


def tile_heights(m: Dim, block: Dim, rows: int) -> list[int]:
    """Heights that can occur, so that a static M compiles only those."""
    if not (isinstance(m, int) and isinstance(block, int)):
        return list(range(rows, 0, -1))
    found: set[int] = set()
    for height in {min(block, m), m % block} - {0}:
        tiles = -(-height // rows)
        found |= {height // tiles, -(-height // tiles)}
    return sorted(found, reverse=True)


def for_each_tile(
    b: KernelBuilder, first: Ix | int, height: Ix | int, rows: int, heights: list[int], emit: Callable[[Ix | int, int], None]
) -> None:
    """Cut [first, first+height) into the fewest tiles of nearly equal height and emit a loop per height."""
    tiles = b.ceildiv(height, rows)
    small, extra = height // tiles, height % tiles

    def equals(x: Ix | int, n: int) -> Ix | int:
        return b.maximum(0, 1 - b.maximum(x - n, n - x))

    at = first
    for h in heights:
        count = equals(small + 1, h) * extra + equals(small, h) * (tiles - extra) if len(heights) > 1 else tiles
        end = at + count * h
        with b.loop(at, end, h) as loop:
            emit(loop.index, h)
        at = end


def write_tile(
    b: KernelBuilder,
    region: Region,
    value: Value,
    acc: Tile,
    ins: dict[Value, View],
    outs: list[View],
    at: tuple[Ix | int, ...],
    column: Ix | int,
    left: Ix | int | None,
) -> Tile:
    """Stores every output of the region but those of a tail; returns what the tail reads (without one, the last output). `left` elements
    of the second axis are inside."""
    rows, width = acc.shape
    axes = (len(at) - 1, len(at))

    def leaf(v: Value, o: Operand) -> Tile:
        view = ins[v]
        shape = tuple(1 if view.type.strides[axis] == 0 else d for axis, d in zip(axes, (rows, width), strict=True))
        return b.load(view, (*at, column), shape, limit=(None, left) if left is not None and shape[1] != 1 else None, axes=axes)

    evaluate = Evaluator(b, region, leaf, {value: acc})
    outputs = [v for v in region.body.outputs if v.node is not region.tail]
    tiles = [b.broadcast(evaluate(v), (rows, width)) for v in outputs]
    for view, x, r in zip(outs, tiles, region.results, strict=False):
        b.store(view, (*at, column), narrow_sum(b, x, r.type.dtype), limit=(None, left) if left is not None else None, axes=axes)
    return tiles[-1] if region.tail is None else b.broadcast(evaluate(region.tail.operands[0]), (rows, width))
