"""Launches that only move data: copies into slices of a larger buffer, fills. Concatenation and padding are made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...core.dims import Dim, at_least
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.index.indexing import Concat as ConcatOp
from ...ops.index.indexing import Pad as PadOp
from ...ops.pointwise.casts import Cast
from ...ops.views import Expand
from ..call import NEAR
from ..launch import Buffer, Launch
from ..region import Operand, Region, collapse
from ..template import Template
from .complex import as_real
from .pointwise import Pointwise
from .transpose import transposing_copy


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


def forwards(region: Region, spec: TargetSpec) -> tuple[list[Launch], Region]:
    """The region with operands that are not flipped, and the launches that copy those that were."""
    launches, operands = list[Launch](), list[Operand]()
    for i, o in enumerate(region.operands):
        if not all(at_least(s, 0) for s in o.layout.strides):
            there = Operand(o.type, Buffer(f"{region.name}.in{i}", "temp", o.type.nbytes), Layout.contiguous(o.type.shape))
            launches.append(copy_launch(f"{region.name}.in{i}", o, there, spec, "a flipped operand"))
            o = there
        operands.append(o)
    return launches, replace(region, operands=operands)


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
        return [copy_launch(f"{region.name}.{i}", o, part, target) for i, (o, part) in enumerate(zip(sources, parts, strict=True))]


class PadTemplate(Template):
    """The value at the edges (everywhere, where there are more than two), then one copy into the middle."""

    key = "pad"
    serves = (PadOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, result = region.operand(region.node.operands[0]), region.results[0]
        assert x is not None
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
