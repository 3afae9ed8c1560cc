"""Launches that only move data: copies into slices of a larger buffer, fills. Concatenation and padding are made of them.

Transposing a matrix: a copy between layouts that run along different axes, so that neither side is read or written by jumping.

One program transposes a run of a strip of rows that is as wide as the source's cache lines, a square tile of registers at a time. Either
side may run backwards. Edges are masked; zero sizes run no program. Elements are moved as unsigned integers of their size, whatever they
mean.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.dims import Dim, at_least, ceildiv, divisible, product
from ...core.dtypes import u8, u16, u32, u64
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.index.indexing import Concat as ConcatOp
from ...ops.index.indexing import Pad as PadOp
from ...ops.pointwise.casts import Cast
from ...ops.views import Expand
from ..call import NEAR, Call
from ..launch import Buffer, Launch
from ..matmul.product import Problem
from ..region import Operand, Region, collapse
from ..template import Template
from .complex import as_real
from .pointwise import Pointwise, unravel

LINE = 64  # bytes
PAGE = 4096  # bytes: lines a multiple of it apart fall into the same few sets of a cache ...
NEIGHBOURS = 4  # ... which lose what was fetched beside them, unless that many lines are used together
MOVED = {1: u8, 2: u16, 4: u32, 8: u64}  # elements by their size
SMALLEST = 32  # rows and columns below which jumping costs less than a copy
RUN = 2048  # columns of a program
FEWEST = 6  # rows or columns of a copy whose other side is that long ...
INTERLEAVED = 4  # ... but for as many words that lie apart and are written side by side: single stores among such loads wait for each other


def wants_transpose(p: Problem) -> bool:
    """The left operand's rows run across memory, its columns along it, and it is large."""
    if p.a.type.dtype.itemsize not in MOVED or p.a_view.strides[-1] == 1 or p.a_view.strides[-2] != 1:
        return False
    return all(at_least(d, SMALLEST) for d in (p.m, p.k, p.n))


def transpose_launch(p: Problem, name: str, target: TargetSpec) -> tuple[Launch, Problem]:
    """A launch that copies the left operand into rows, and the product over that copy."""
    layout = Layout.contiguous(p.a_view.shape)
    transposed = Operand(p.a.type.with_shape(layout.shape), Buffer(f"{name}.transposed", "temp", p.a.type.nbytes), layout)
    source = replace(p.a, type=transposed.type, layout=p.a_view)
    launch = _transpose(f"{name}.transpose", source, transposed, target, "a transposed left operand transposed into rows")
    return launch, replace(p, a=transposed, a_view=layout)


def transposing_copy(name: str, source: Operand, result: Operand, target: TargetSpec, note: str = "") -> Launch | None:
    """A copy between layouts that run along different axes, or None where a plain copy does as well."""
    if any(o.type.dtype.itemsize not in MOVED for o in (source, result)) or target.kind != "cpu":
        return None
    shape = result.type.shape
    along = [next((i for i, (d, s) in enumerate(zip(shape, o.layout.strides, strict=True)) if s in (1, -1) and d != 1), None)
             for o in (source, result)]
    if along[0] is None or along[1] is None or along[0] == along[1] or source.layout.strides[along[1]] == 0:
        return None  # what is repeated along the result needs no transpose
    sides = [d if isinstance(d, int) else SMALLEST for d in (shape[along[0]], shape[along[1]])]  # sizes of a call are taken for large
    fewest = INTERLEAVED if result.type.dtype.itemsize == 4 else FEWEST
    if sides[0] < FEWEST or sides[1] < fewest or max(sides) < SMALLEST:
        return None
    order = (*(i for i in range(len(shape)) if i not in along), *(i for i in along if i is not None))
    transposed = tuple(shape[i] for i in order)
    columns, rows = (replace(o, type=o.type.with_shape(transposed), layout=o.layout.permute(order)) for o in (source, result))
    return _transpose(name, columns, rows, target, note)


def _transpose(name: str, source: Operand, result: Operand, target: TargetSpec, note: str) -> Launch:
    """Copy [..., M, K] that is contiguous along M to one that is contiguous along K, converted where the dtypes differ."""
    *lead, m, k = source.layout.shape
    same = source.type.dtype is result.type.dtype
    dtype, made = (MOVED[o.type.dtype.itemsize] if same else o.type.dtype for o in (source, result))
    side = target.vector_bits // (8 * max(dtype.itemsize, made.itemsize, 4))
    apart = source.layout.strides[-1]
    collides = isinstance(apart, int) and apart * dtype.itemsize % PAGE == 0
    strip = max(side, LINE // dtype.itemsize) * (NEIGHBOURS if collides else 1)
    call = Call("transpose", name)
    b = call.b
    columns = call.view("a", dtype, source.buffer, source.layout)
    rows = call.view("rows", made, result.buffer, result.layout, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
    mw, kw, strips, runs = (call.word(n, d) for n, d in (("m", m), ("k", k), ("strips", ceildiv(m, strip)), ("runs", ceildiv(k, RUN))))
    at = unravel(b, b.pid // strips // runs, dims)
    first, start = b.pid % strips * strip, b.pid // strips % runs * RUN
    axes = (len(lead) + 1, len(lead))  # the tile's rows run along K, its columns along M, where memory is contiguous
    with b.loop(start, b.minimum(start + RUN, kw), side) as loop:
        for part in range(0, strip, side):
            limit = None if divisible(k, side) else kw - loop.index, None if divisible(m, strip) else mw - first - part
            x = b.transpose(b.load(columns, (*at, first + part, loop.index), (side, side), limit=limit, axes=axes))
            x = x if same else Cast(made).lower(b, x)
            b.store(rows, (*at, first + part, loop.index), x, limit=limit[::-1])
    grid = product(lead) * ceildiv(m, strip) * ceildiv(k, RUN)
    return call.finish(grid, bytes_=source.type.nbytes + result.type.nbytes, note=note, streams=True)


def pointwise_of(spec: TargetSpec) -> Pointwise:
    """The pointwise template of a kind of target."""
    if spec.kind == "cuda":
        from .cuda.pointwise import CudaPointwise

        return CudaPointwise()
    return Pointwise()


def copy_launch(name: str, source: Operand, target: Operand, spec: TargetSpec, note: str = "") -> Launch:
    """Copy `source` to `target` (same shape, any layouts); elements of another dtype are converted."""
    source, target = as_real(source), as_real(target)
    if spec.kind == "cuda":
        from .cuda.transpose import transposing_copy as transposing

        transposed = transposing(name, source, target, spec, note)
    else:
        transposed = transposing_copy(name, *_merged(source, target), spec, note)
    if transposed is not None:
        return transposed
    body = Graph("copy")
    x = body.input(source.type, "x")
    body.outputs = [x if source.type.dtype is target.type.dtype else Cast(target.type.dtype)(x)]
    (launch,) = pointwise_of(spec).build(Region(name, body, [source], [target]), spec)
    launch.note = note
    return launch


def _merged(source: Operand, target: Operand) -> tuple[Operand, Operand]:
    """Both ends of a copy with neighbouring axes merged: what is long enough to transpose may be two short axes."""
    sizes, strides = collapse(target.type.shape, [source.layout, target.layout])

    def end(o: Operand, steps: list[Dim]) -> Operand:
        return replace(o, type=o.type.with_shape(tuple(sizes)), layout=Layout(tuple(sizes), tuple(steps), o.layout.offset))

    return end(source, strides[0]), end(target, strides[1])


def fill_launch(name: str, value: float, target: Operand, spec: TargetSpec) -> Launch:
    body = Graph("fill")
    body.outputs = [Expand(shape=target.type.shape)(body.constant(np.asarray(value, target.type.dtype.np), "value"))]
    (launch,) = pointwise_of(spec).build(Region(name, body, [], [target]), spec)
    return launch


class ConcatTemplate(Template):
    """One copy per operand into its slice of the result. Some operands of one element along the last axis are copied together."""

    key = "concat"
    serves = (ConcatOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        axis, result = region.op(ConcatOp).axis, region.results[0]
        sources = [o for v in region.node.operands if (o := region.operand(v)) is not None]
        parts: list[Operand] = []
        start: Dim = 0
        for o in sources:
            size = o.type.shape[axis]
            parts.append(Operand(TensorType(o.type.dtype, o.type.shape), result.buffer, result.layout.slice(axis, start, size)))
            start = start + size
        if target.kind == "cpu" and len(parts) in NEAR and axis == len(result.type.shape) - 1 and result.type.dtype.kind != "c" \
                and all(o.type.shape[axis] == 1 for o in sources):
            body = Graph("transposes")
            body.outputs = [body.input(o.type, f"x{i}") for i, o in enumerate(sources)]
            return pointwise_of(target).build(Region(region.name, body, sources, parts), target)
        copies = [copy_launch(f"{region.name}.{i}", o, part, target) for i, (o, part) in enumerate(zip(sources, parts, strict=True))]
        return [replace(launch, apart=True) for launch in copies]


class PadTemplate(Template):
    """The value at the edges (everywhere, where there are more than two), then one copy into the middle."""

    key = "pad"
    serves = (PadOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, result = region.given(region.node.operands[0]), region.results[0]
        inner, edges = result.layout, list[Layout]()
        for axis, (start, size, whole) in enumerate(zip(region.op(PadOp).lo, x.type.shape, result.type.shape, strict=True)):
            inner = inner.slice(axis, start, size)
            for first, count in ((0, start), (start + size, whole - start - size)):
                edges += [result.layout.slice(axis, first, count)] if count != 0 else []
        around = [result.layout] if len(edges) > 2 else edges
        fills = [
            fill_launch(f"{region.name}.around", region.op(PadOp).value, Operand(result.type.with_shape(e.shape), result.buffer, e), target)
            for e in around
        ]
        return [*fills, copy_launch(region.name, x, Operand(x.type, result.buffer, inner), target)]
