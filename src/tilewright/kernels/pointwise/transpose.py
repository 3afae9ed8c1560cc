"""Turning a matrix: a copy between layouts that run along different axes, so that neither side is read or written by jumping.

One program turns a strip of rows, a square tile of registers at a time. Edges are masked; zero sizes run no program.
"""

from __future__ import annotations

from dataclasses import replace

from ...core.dims import at_least, ceildiv, product
from ...core.dtypes import f32, f64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ..call import Call
from ..launch import Buffer, Launch
from ..matmul.product import Problem
from ..region import Operand
from .pointwise import unravel

SMALLEST = 32  # rows and columns below which jumping costs less than a copy


def wants_turning(p: Problem) -> bool:
    """The left operand's rows run across memory, its columns along it, and it is large."""
    if p.a.type.dtype not in (f32, f64) or p.a_view.strides[-1] == 1 or p.a_view.strides[-2] != 1:
        return False
    return all(at_least(d, SMALLEST) for d in (p.m, p.k, p.n))


def turn_launch(p: Problem, name: str, target: TargetSpec) -> tuple[Launch, Problem]:
    """A launch that copies the left operand into rows, and the product over that copy."""
    layout = Layout.contiguous(p.a_view.shape)
    turned = Operand(p.a.type.with_shape(layout.shape), Buffer(f"{name}.turned", "temp", p.a.type.nbytes), layout)
    source = replace(p.a, type=turned.type, layout=p.a_view)
    launch = _turn(f"{name}.turn", source, turned, target, "a transposed left operand turned into rows")
    return launch, replace(p, a=turned, a_view=layout)


def turning_copy(name: str, source: Operand, result: Operand, target: TargetSpec, note: str = "") -> Launch | None:
    """A copy between layouts that run along different axes, or None where a plain copy does as well."""
    if source.type.dtype not in (f32, f64) or source.type.dtype is not result.type.dtype or target.kind != "cpu":
        return None
    shape = result.type.shape
    along = [next((i for i, (d, s) in enumerate(zip(shape, o.layout.strides, strict=True)) if s == 1 and d != 1), None)
             for o in (source, result)]
    if None in along or along[0] == along[1] or not all(at_least(shape[i], SMALLEST) for i in along if i is not None):
        return None
    order = (*(i for i in range(len(shape)) if i not in along), *(i for i in along if i is not None))
    type_ = source.type.with_shape(tuple(shape[i] for i in order))
    columns, rows = (replace(o, type=type_, layout=o.layout.permute(order)) for o in (source, result))
    return _turn(name, columns, rows, target, note)


def _turn(name: str, source: Operand, result: Operand, target: TargetSpec, note: str) -> Launch:
    """Copy [..., M, K] that is contiguous along M to one that is contiguous along K."""
    *lead, m, k = source.layout.shape
    dtype = source.type.dtype
    side = target.vector_bits // (8 * dtype.itemsize)
    call = Call("turn", name)
    b = call.b
    columns = call.view("a", dtype, source.buffer, source.layout)
    rows = call.view("rows", dtype, result.buffer, result.layout, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
    mw, kw, strips = call.word("m", m), call.word("k", k), call.word("strips", ceildiv(m, side))
    at = unravel(b, b.pid // strips, dims)
    first = b.pid % strips * side
    axes = (len(lead) + 1, len(lead))  # the tile's rows run along K, its columns along M, where memory is contiguous
    with b.loop(0, kw, side) as loop:
        limit = (kw - loop.index, mw - first)
        x = b.transpose(b.load(columns, (*at, first, loop.index), (side, side), limit=limit, axes=axes))
        b.store(rows, (*at, first, loop.index), x, limit=limit[::-1])
    return call.finish(product(lead) * ceildiv(m, side), bytes_=2 * source.type.nbytes, note=note, streams=True)
