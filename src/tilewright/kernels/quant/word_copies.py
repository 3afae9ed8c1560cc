"""Copies of operands that do not lie in whole words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...core.dims import Dim, ceildiv
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ..copies import copy_launch
from ..launch import Buffer, Launch
from ..region import Operand


def filled_copy(name: str, x: Operand, layout: Layout, axis: int, per: int, target: TargetSpec, order: Sequence[int]) -> tuple[Launch, Operand]:
    """A copy whose `axis` lies innermost and takes up whole words; what fills the last word is undefined, and must be multiplied by zeros.
    `order`: the axes from the outermost to the innermost one."""
    room: list[Dim] = [ceildiv(d, per) * per if i == axis else d for i, d in enumerate(layout.shape)]
    strides: list[Dim] = [0] * len(room)
    step: Dim = 1
    for i in reversed(order):
        strides[i] = step
        step = step * room[i]
    buffer = Buffer(f"{name}.words", "temp", step * x.type.dtype.itemsize)
    source = replace(x, type=x.type.with_shape(layout.shape), layout=layout)
    part = Operand(source.type, buffer, Layout(layout.shape, tuple(strides)))
    whole = Layout(tuple(room), tuple(strides))
    return copy_launch(f"{name}.words", source, part, target, "copy: laid out in words"), Operand(x.type.with_shape(whole.shape), buffer, whole)
