"""Ops that compute each output element from scattered operand elements: gathers with several indices, padding.

One program computes a block of output elements one after the other with rank-0 tiles, elementwise consumers included. Right at every
shape and layout, and not fast: ops on a hot path get a template of their own. Indices are checked like those of a gather.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.dims import Dim, bounds, ceildiv, minimum, product
from ...core.dtypes import bool_, compute_dtype
from ...core.target_spec import TargetSpec
from ...ops.index import indexing
from ...tile.builder import Ix, Tile, View
from ..call import Call
from ..index.gather import clamped_index
from ..launch import Launch
from ..matmul.tiling import Epilogue
from ..region import Region, widen
from ..template import Foreign, Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result
from .pointwise import unravel

BLOCK = 256  # elements a program computes
SECTOR = 32  # bytes that memory moves for one element

Position = list[Ix | int]


class Elements(Template):
    key = "elements"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in RULES:
            return Foreign("no element rule for it")
        return from_memory(region) or shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [ElementKernel(region, 1 if target.kind == "cuda" else BLOCK).launch()]


class ElementKernel:
    """One kernel under construction: `operands` are views of the anchor's operands, `sizes` words of their dims."""

    def __init__(self, region: Region, block: int = BLOCK) -> None:
        self.block = block
        self.region, self.node = region, region.node
        self.op: Any = region.node.op
        call = self.call = Call(self.op.name, region.name)
        self.b = call.b
        self.operands: list[View] = []
        for i, o in enumerate(region.places):
            self.operands.append(call.view(f"x{i}", o.type.dtype, o.buffer, o.layout))
        self.epilogue = Epilogue(call, region)
        self.error = call.error() if isinstance(self.op, (indexing.Index, indexing.GatherAlongAxis)) else None
        self.dims = [self._size(f"d{i}", d) for i, d in enumerate(self.node.values[0].shape)]
        self.sizes = [call.word(f"n{i}", d) for i, d in enumerate(self.node.operands[0].shape)]
        self.dtype = compute_dtype(self.node.operands[0].dtype)

    def _size(self, name: str, size: Dim) -> Ix | int:
        """A size that positions are divided by. Programs of one element divide by constants: that is most of their work."""
        return max(size, 1) if self.block == 1 and isinstance(size, int) else self.call.word(name, size)

    def launch(self) -> Launch:
        """A program goes along a part of the last axis, or along several rows where that is short: positions outside are found once."""
        b, shape = self.b, self.node.values[0].shape
        *lead, last = shape if shape else (1,)
        rows = product(lead)
        per = max(self.block // last, 1) if isinstance(last, int) and last else 1
        blocks = self._size("blocks", ceildiv(last, self.block))
        inner, count = self.dims[-1] if self.dims else 1, self.call.word("rows", rows)
        first, start = b.pid // blocks * per, b.pid % blocks * self.block
        with b.loop(first, b.minimum(first + per, count)) as row:
            outside = unravel(b, row.index, self.dims[:-1])
            with b.loop(start, b.minimum(start + self.block, inner)) as loop:
                self._element([*outside, loop.index] if self.dims else [], row.index * inner + loop.index)
        given = self.node.operands[0].type.nbytes
        moved = region_bytes(self.region) - given + minimum(given, SECTOR * product(shape))  # one element for each of the result
        grid = ceildiv(rows, per) * ceildiv(last, self.block)
        return self.call.finish(grid, flops=region_flops(self.region), bytes_=moved, note="element by element")

    def _element(self, at: Position, position: Ix | int) -> None:
        self.epilogue.store(at, RULES[type(self.op)](self, at, position), ())

    # --- pieces of rules ----------------------------------------------------------------------------------------------
    def load(self, at: Position) -> Tile:
        """The element of operand 0 at `at`, a position inside it; 0 where there is none because the operand is empty."""
        b, sizes = self.b, self.node.operands[0].shape
        if all(bounds(d)[0] > 0 for d in sizes):
            return widen(b, b.load(self.operands[0], at, ()))
        some: Ix | int = 1
        for n, d in zip(self.sizes, sizes, strict=True):
            if bounds(d)[0] <= 0:
                some = b.minimum(some, n)
        return widen(b, b.reshape(b.load(self.operands[0], at, (1,), limit=(some,)), ()))

    def index(self, view: View, at: Position, size: Ix, position: Ix | int) -> Ix | int:
        """A checked index: reported and clamped when outside 0..size-1."""
        b = self.b
        assert self.error is not None
        wanted = b.to_index(b.load(view, at, ()))
        return clamped_index(b, self.error, position, wanted, size)

    def inside(self, at: Position, axes: range) -> tuple[Tile, Position]:
        """Whether a position lies in operand 0 (along `axes`), and the position clamped into it."""
        b = self.b
        ok = b.full((), True, bool_)
        safe = list(at)
        for a in axes:
            ok = b.binary("and", ok, b.binary("and", b.compare("ge", at[a], 0), b.compare("lt", at[a], self.sizes[a])))
            safe[a] = b.maximum(0, b.minimum(at[a], self.sizes[a] - 1))
        return ok, safe


def _gather_along_axis(k: ElementKernel, at: Position, position: Ix | int) -> Tile:
    where = list(at)
    where[k.op.axis] = k.index(k.operands[1], at, k.sizes[k.op.axis], position)
    return k.load(where)


def _index(k: ElementKernel, at: Position, position: Ix | int) -> Tile:
    first, n = k.op.axes[0], len(k.op.axes)
    rank = len(at) - (k.node.operands[0].type.ndim - n)
    middle = at[first : first + rank]
    found = []
    for i, axis in enumerate(k.op.axes):
        shape = k.node.operands[1 + i].shape
        own: Position = [0 if d == 1 else m for d, m in zip(shape, middle[rank - len(shape) :], strict=True)]
        found.append(k.index(k.operands[1 + i], own, k.sizes[axis], position))
    return k.load([*at[:first], *found, *at[first + rank :]])


def _pad(k: ElementKernel, at: Position, position: Ix | int) -> Tile:
    shifted = [a - _dim(k, f"lo{i}", d) for i, (a, d) in enumerate(zip(at, k.op.lo, strict=True))]
    ok, safe = k.inside(shifted, range(len(at)))
    return k.b.select(ok, k.load(safe), k.op.value)


def _dim(k: ElementKernel, name: str, d: Dim) -> Ix | int:
    return d if isinstance(d, int) else k.call.word(name, d)


RULES: dict[type, Callable[[ElementKernel, Position, Ix | int], Tile]] = {
    indexing.GatherAlongAxis: _gather_along_axis,
    indexing.Index: _index,
    indexing.Pad: _pad,
}
