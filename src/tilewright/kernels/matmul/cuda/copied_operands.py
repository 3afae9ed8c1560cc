"""Operands copied by a launch of their own, because the kernel of a product cannot read them as they lie: the tensor cores read only 16-bit
floats either way round, and rows must begin at multiples of 16 bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....core.dims import Dim, ceildiv, divisible, product
from ....ir.layout import Layout
from ...call import Call
from ...cuda.kernel import TransposeKernel, forward, identified
from ...launch import Buffer, Launch, Word
from ...region import Operand, Region
from ..product import Problem

if TYPE_CHECKING:
    from .places import Places

SIDE = 64  # the side of a block's square


def contiguous_rows(
    name: str, o: Operand, offset: Dim, lead: tuple[tuple[Dim, ...], tuple[Dim, ...]], shape: tuple[Dim, Dim], strides: tuple[Dim, Dim],
) -> tuple[Launch, Operand, Dim]:  # fmt: skip
    """A copy of [*lead, rows, K] with K contiguous: the launch, the copy, and its rows' distance (whole pieces of 16 bytes). `lead` is
    sizes and strides of up to two axes."""
    (rows, k), item = shape, o.type.dtype.itemsize
    outer, inner = ((1,) * (2 - len(lead[0])) + lead[0], (0,) * (2 - len(lead[1])) + lead[1])
    batch = product(outer)
    unit = 16 // item
    step = ceildiv(k, unit) * unit
    buffer = Buffer(f"{name}.transposed", "temp", batch * rows * step * item)
    call = Call("transpose", f"{name}.transpose")
    source = call.view("x", o.type.dtype, o.buffer, Layout((*outer, rows, k), (*inner, *strides), offset))
    layout = Layout((*outer, rows, k), (outer[1] * rows * step, rows * step, step, 1))
    target = call.view("rows", o.type.dtype, buffer, layout, write=True)
    call._arguments += [Word(rows), Word(k), Word(ceildiv(rows, SIDE)), Word(ceildiv(k, SIDE)), Word(outer[1])]
    grid = batch * ceildiv(rows, SIDE) * ceildiv(k, SIDE)
    straight = strides[1] == 1
    why = "the matrix kernel wants rows at multiples of 16 bytes and one batch" if straight else "the matrix kernel wants rows along K"
    launch = call.finish(grid, bytes_=2 * batch * rows * k * item, note=f"copied: {why}")
    kernel = launch.kernel
    launch.kernel = identified(TransposeKernel(
        kernel.name, kernel.params, kernel.pid, kernel.body, source=source.var, target=target.var,
        item=item, straight=straight))  # fmt: skip
    return launch, replace(o, buffer=buffer, layout=Layout((batch, rows, k), (rows * step, step, 1)), data=None), step


def aligned_rows(strides: tuple[Dim, Dim, Dim], offset: Dim, unit: int) -> bool:
    """One of the two axes is contiguous and the other steps forward by whole 16-byte pieces of `unit` elements."""
    batch, row, column = strides
    if not (divisible(batch, unit) and divisible(offset, unit)) or not forward(*strides):
        return False
    return (column == 1 and divisible(row, unit) and row != 0) or (row == 1 and divisible(column, unit) and column != 0)


def contiguous_operands(
    region: Region, p: Problem, at: Places, *, either: bool
) -> tuple[list[Launch], Problem, Places]:
    """Operands in rows along K of whole pieces of 16 bytes (or, with `either`, in columns of them): as they lie, or copied."""
    launches: list[Launch] = []
    unit = 16 // p.a.type.dtype.itemsize
    if at.copy_a is not None or not aligned_rows(at.a, p.a_view.offset, unit) or not (either or at.a[2] == 1):
        c, whole = at.copy_a, at.repeated[0] or at.batch if at.a[0] != 0 else 1
        lead, rows, step = (((whole,), (at.a[0],)), at.m, at.a[1]) if c is None else ((c.sizes, c.strides), c.rows, c.step)
        launch, a, step = contiguous_rows(f"{region.name}.a", p.a, p.a_view.offset, lead, (rows, p.k), (step, at.a[2]))
        launches.append(launch)
        many = at.a[0] != 0 or c is not None
        p, at = replace(p, a=a, a_view=a.layout), replace(at, a=(step * at.m if many else 0, step, 1), copy_a=None)
    if at.copy_b is not None or not aligned_rows(at.b, p.b_view.offset, unit) or not (either or at.b[1] == 1):
        c, whole = at.copy_b, at.repeated[1] or at.batch if at.b[0] != 0 else 1
        lead = ((whole,), (at.b[0],)) if c is None else (c.sizes, c.strides)
        launch, b, step = contiguous_rows(f"{region.name}.b", p.b, p.b_view.offset, lead, (p.n, p.k), (at.b[2], at.b[1]))
        launches.append(launch)
        many = at.b[0] != 0 or c is not None
        p, at = replace(p, b=b, b_view=b.layout), replace(at, b=(step * p.n if many else 0, 1, step), copy_b=None)
    return launches, p, at
