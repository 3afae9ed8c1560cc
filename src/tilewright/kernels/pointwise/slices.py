"""Slices of stacked values on targets whose wide accesses want aligned addresses.

Kernels judge alignment by a layout's strides and offset, and take its buffer's start for aligned. A slice starts a multiple of its loop's
step further on. Where a kernel that reads or writes slices whole could take accesses wider than that step allows, or where a body may see
parts of them, the stack gets a place of its own with steps of whole units.
"""

from __future__ import annotations

from dataclasses import fields
from math import gcd

from ...core.dims import Dim, divisible
from ...ir.graph import Graph
from ...ir.layout import Layout
from ...ops.matmul.contractions import Matmul
from ...ops.rows.norms import LayerNorm, RmsNorm, Softmax
from ...ops.views import Slice, Split
from ..launch import Buffer
from ..region import Operand

UNIT = 16  # bytes of the widest access


def even_steps(o: Operand, body: Graph) -> bool:
    """Whether every slice along the first axis lies as kernels of the body take it to lie."""
    item = o.type.dtype.itemsize
    if divisible(o.layout.strides[0] * item, UNIT):
        return True
    return sees_whole(body) and _as_wide(o.layout, max(1, UNIT // item))


def padded(o: Operand, name: str) -> Operand:
    """A new place for a stack, with slices at multiples of the widest access."""
    unit = max(1, UNIT // o.type.dtype.itemsize)
    inner = Layout.contiguous(o.type.shape[1:])
    size: Dim = 1
    for d in inner.shape:
        size = size * d
    step = (size + unit - 1) // unit * unit
    buffer = Buffer(name, "temp", o.type.shape[0] * step * o.type.dtype.itemsize)
    return Operand(o.type, buffer, Layout(o.type.shape, (step, *inner.strides)))


def sees_whole(body: Graph) -> bool:
    """No op of the body reads a part of an operand or writes a part of a result; ops not known for that count as such."""
    for node in body.nodes:
        op = node.op
        inside = [g for f in fields(op) if isinstance(g := getattr(op, f.name), Graph)]
        known = op.traits.elementwise or op.traits.source or op.traits.reduction or isinstance(op, (Matmul, Softmax, LayerNorm, RmsNorm))
        if not (inside or known or (op.traits.view and not isinstance(op, (Slice, Split)))) or not all(map(sees_whole, inside)):
            return False
    return True


def _as_wide(layout: Layout, unit: int) -> bool:
    """Whether the step is a multiple of every width that the slice's layout allows."""
    step, shape, strides = layout.strides[0], layout.shape[1:], layout.strides[1:]
    if Layout(shape, strides).is_contiguous and layout.is_contiguous:
        return True  # the step is the slice's size
    if not all(isinstance(d, int) for d in (step, *shape, *strides)):
        return False
    run, others = 1, 0  # elements in one piece from the start, and what all other strides are multiples of
    for stride, size in sorted((s, d) for s, d in zip(strides, shape, strict=True) if isinstance(s, int) and isinstance(d, int)):
        if size == 1 or stride == 0:
            continue
        if stride == run and not others:
            run *= size
        else:
            others = gcd(others, stride)
    width = gcd(others or run, unit)
    return divisible(step, width)
