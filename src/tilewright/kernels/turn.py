"""Turning a matrix: a copy of a left operand that is stored transposed, so that a product reads its rows without jumping.

One program turns a strip of rows, a square tile of registers at a time. Edges are masked; zero sizes run no program.
"""

from __future__ import annotations

from dataclasses import replace

from ..core.dims import at_least, ceildiv, product
from ..core.dtypes import f32, f64
from ..core.target_spec import TargetSpec
from ..ir.layout import Layout
from .call import Call
from .launch import Buffer, Launch
from .pointwise import unravel
from .product import Problem
from .region import Operand

SMALLEST = 32  # rows and columns below which jumping costs less than a copy


def wants_turning(p: Problem) -> bool:
    """The left operand's rows run across memory, its columns along it, and it is large."""
    if p.a.type.dtype not in (f32, f64) or p.a_view.strides[-1] == 1 or p.a_view.strides[-2] != 1:
        return False
    return all(at_least(d, SMALLEST) for d in (p.m, p.k, p.n))


def turn_launch(p: Problem, name: str, target: TargetSpec) -> tuple[Launch, Problem]:
    """A launch that copies the left operand into rows, and the product over that copy."""
    *lead, m, k = p.a_view.shape
    dtype = p.a.type.dtype
    layout = Layout.contiguous((*lead, m, k))
    buffer = Buffer(f"{name}.turned", "temp", product(layout.shape) * dtype.itemsize)
    call = Call("turn", f"{name}.turn")
    b = call.b
    source = call.view("a", dtype, p.a.buffer, p.a_view)
    rows = call.view("rows", dtype, buffer, layout, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
    mw, kw, strips = call.word("m", m), call.word("k", k), call.word("strips", ceildiv(m, _side(p, target)))
    side = _side(p, target)
    at = unravel(b, b.pid // strips, dims)
    first = b.pid % strips * side
    axes = (len(lead) + 1, len(lead))  # the tile's rows run along K, its columns along M, where memory is contiguous
    with b.loop(0, kw, side) as loop:
        limit = (kw - loop.index, mw - first)
        x = b.transpose(b.load(source, (*at, first, loop.index), (side, side), limit=limit, axes=axes))
        b.store(rows, (*at, first, loop.index), x, limit=limit[::-1])
    moved = 2 * p.a.type.nbytes
    launch = call.finish(product(lead) * ceildiv(m, side), bytes_=moved, note="a transposed left operand turned into rows")
    turned = Operand(p.a.type.with_shape(layout.shape), buffer, layout)
    return launch, replace(p, a=turned, a_view=layout)


def _side(p: Problem, target: TargetSpec) -> int:
    return target.vector_bits // (8 * p.a.type.dtype.itemsize)
