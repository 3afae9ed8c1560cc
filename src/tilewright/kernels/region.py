"""A region as templates see it: a body of ops, operands with their layouts, and one anchor at most.

`Region.split` finds what surrounds the anchor: the elementwise producers of its operands (prologue) and the elementwise
consumers of its results (epilogue). `Evaluator` computes body values on tiles, loading leaves through a callback.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast

from ..core.dims import Dim, Shape
from ..core.dtypes import SMALL, DType, bf16, compute_dtype
from ..core.errors import CompileError
from ..ir.graph import Graph, Node, Value
from ..ir.layout import Layout
from ..ir.types import TensorType
from ..ops.base import Op
from ..ops.families import Elementwise
from ..ops.packed.quant_dot import QuantizeRows
from ..ops.pointwise.casts import Cast
from ..ops.sources import DimValue, Iota, Positions
from ..ops.structure import Constant, ConstantData
from ..tile.builder import KernelBuilder, Tile
from .launch import Buffer, Packed

O = TypeVar("O", bound=Op)
P = TypeVar("P", bound=Op)


@dataclass(frozen=True)
class Operand:
    """A value at the region's boundary: where it lies and how."""

    type: TensorType
    buffer: Buffer
    layout: Layout  # elements, relative to the buffer's start
    data: ConstantData | None = None
    packed: Packed = field(default_factory=Packed)


@dataclass(eq=False)
class Region:
    """What a template turns into launches."""

    name: str
    body: Graph
    operands: list[Operand]  # one per body input
    results: list[Operand]  # one per body output
    place: str = ""

    def __post_init__(self) -> None:
        self.leaves: dict[Value, Operand] = dict(zip(self.body.inputs, self.operands, strict=True))
        # a rope may stand before an attention; the attention is then the anchor
        anchors = [n for n in reversed(self.body.nodes) if n.op.traits.anchor]
        # rounding the anchor's result to quantized values may stand behind it
        self.tail = anchors[0] if len(anchors) > 1 and isinstance(anchors[0].op, QuantizeRows) else None
        self.anchor = next((n for n in anchors if n is not self.tail), None)

    @property
    def node(self) -> Node:
        """The anchor of a region that has one."""
        assert self.anchor is not None
        return self.anchor

    def op(self, kind: type[O], *others: type[P]) -> O | P:
        """The anchor's op, of a class that a template serves."""
        found, kinds = self.node.op, cast("tuple[type[O | P], ...]", (kind, *others))
        assert isinstance(found, kinds)
        return found

    @property
    def places(self) -> list[Operand]:
        """The operands of an anchor that a template has found to come from memory."""
        return [self.given(v) for v in self.node.operands]

    def given(self, value: Value) -> Operand:
        """The operand behind a body value that a template has found to have one."""
        found = self.operand(value)
        assert found is not None
        return found

    def operand(self, value: Value) -> Operand | None:
        """The operand behind a body value when it is an input, or a view of one inside the body."""
        if value in self.leaves:
            return self.leaves[value]
        node = value.node
        if not node.op.traits.view:
            return None
        base = self.operand(node.operands[0])
        if base is None:
            return None
        layout = node.op.views(base.layout)[value.index]
        if layout is None:
            raise CompileError(f"{node.op.name}: a reshape inside region {self.name} needs a copy ({self.place})")
        return Operand(value.type, base.buffer, layout, base.data, base.packed)

    def affine(self, value: Value) -> Layout | None:
        """Iotas, positions, dim values and views of them inside the body are affine in their indices: the layout whose address is the
        value."""
        op = value.node.op
        if isinstance(op, Iota):
            return Layout(value.shape, tuple(op.step if a == op.axis else 0 for a in range(len(value.shape))), op.start)
        if isinstance(op, Positions):
            return Layout.contiguous(value.shape)
        if isinstance(op, DimValue):
            return Layout((), (), op.dim)
        if not op.traits.view:
            return None
        base = self.affine(value.node.operands[0])
        return None if base is None else op.views(base)[value.index]

    def depends_on_anchor(self, value: Value) -> bool:
        if self.anchor is None:
            return False
        seen: set[Node] = set()
        stack = [value.node]
        while stack:
            n = stack.pop()
            if n is self.anchor:
                return True
            if n not in seen:
                seen.add(n)
                stack.extend(v.node for v in n.operands)
        return False


Leaf = Callable[[Value, Operand], Tile]


class Evaluator:
    """Body values as tiles, each computed once per position. Small floats are widened when loaded and narrowed by `narrow`."""

    def __init__(self, b: KernelBuilder, region: Region, leaf: Leaf, known: dict[Value, Tile] | None = None,
                 ramp: Callable[[Value], Tile] | None = None, checks: bool = False) -> None:
        """`checks`: the template reports what `Op.faulty` nodes find (sites.py)."""
        self.b, self.region, self.leaf, self.ramp, self.checks = b, region, leaf, ramp, checks
        self.tiles: dict[Value, Tile] = dict(known or {})

    def __call__(self, value: Value) -> Tile:
        if value not in self.tiles:
            self.tiles[value] = self._compute(value)
        return self.tiles[value]

    def _compute(self, value: Value) -> Tile:
        op, b = value.node.op, self.b
        operand = self.region.operand(value)
        if operand is not None:
            return widen(b, self.leaf(value, operand))
        if self.ramp is not None and self.region.affine(value) is not None:
            return b.cast(self.ramp(value), compute_dtype(value.dtype))
        if isinstance(op, Constant):
            if op.data.array.size != 1:
                raise CompileError(f"region {self.region.name}: constant {op.data.name} inside a body must have one element")
            return b.full((), op.data.number, compute_dtype(value.dtype))
        if op.traits.view:  # a broadcast of something computed: shapes of tiles broadcast by themselves
            return self(value.node.operands[0])
        if not op.traits.elementwise:
            raise CompileError(f"{op.name}: cannot stand in the elementwise part of region {self.region.name}")
        if op.faulty(value.node.operands) and not self.checks:
            raise CompileError(f"{op.name}: the operands must be checked, which only pointwise regions do, not {self.region.name}")
        # Cast is the only elementwise op that changes between float widths; its target is a compute dtype here.
        tiles = [self.rounded(v) if jumps(op) else self(v) for v in value.node.operands]
        return b.cast(self.lower(op, tiles), compute_dtype(value.dtype))

    def rounded(self, value: Value) -> Tile:
        """A value as its dtype holds it: small floats are computed in a wider one."""
        tile = self(value)
        if value.dtype not in SMALL or self.region.operand(value) is not None or isinstance(value.node.op, Constant):
            return tile
        return widen(self.b, narrow(self.b, tile, value.dtype))

    def lower(self, op: Op, tiles: list[Tile]) -> Tile:
        """An elementwise op on tiles."""
        out: Tile = op.lower(self.b, *tiles)
        return out


def jumps(op: Op) -> bool:
    """Whether a rounding of an operand may change the result of an elementwise op by more than a rounding."""
    return (isinstance(op, Elementwise) and (op.steps or op.to_bool)) or (isinstance(op, Cast) and op.dtype.kind not in "fc")


def widen(b: KernelBuilder, x: Tile) -> Tile:
    return b.cast(x, compute_dtype(x.dtype))


def narrow(b: KernelBuilder, x: Tile, dtype: DType) -> Tile:
    return b.cast(x, dtype)


def narrow_sum(b: KernelBuilder, x: Tile, dtype: DType) -> Tile:
    """What is made of sums of products, in a result's dtype: numbers that bf16 has no normal form of may become zeros, which products of
    pairs take them for as well."""
    return b.cast(x, dtype, flush=dtype is bf16)


def collapse(shape: Shape, layouts: Sequence[Layout]) -> tuple[list[Dim], list[list[Dim]]]:
    """Merge neighbouring axes that every layout walks without a gap. Returns the sizes and, per layout, the strides."""
    sizes: list[Dim] = []
    strides: list[list[Dim]] = [[] for _ in layouts]
    for axis, d in enumerate(shape):
        if d == 1:
            continue
        here = [lay.strides[axis] for lay in layouts]
        if sizes and all(s[-1] == h * d for s, h in zip(strides, here, strict=True)):
            sizes[-1] = sizes[-1] * d
            for s, h in zip(strides, here, strict=True):
                s[-1] = h
        else:
            sizes.append(d)
            for s, h in zip(strides, here, strict=True):
                s.append(h)
    return sizes, strides
