"""Two real arrays become one complex one: a pointwise kernel that stores each part through a strided view of the result."""

from __future__ import annotations

from ..core.dtypes import real_of
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph
from ..ir.types import TensorType
from ..ops.complex import Complex as ComplexOp
from ..ops.complex import Imag, Real, ViewAsReal
from .launch import Launch
from .pointwise import Pointwise
from .region import Operand, Region
from .template import Reason, Template, alone


def part(o: Operand, op: Real | Imag) -> Operand:
    """The real or imaginary part of a complex operand."""
    layout = op.view(o.layout)
    assert layout is not None
    return Operand(TensorType(real_of(o.type.dtype), o.type.shape), o.buffer, layout)


def as_real(o: Operand) -> Operand:
    """A complex operand as floats, with an axis of 2 behind the others; any other operand itself."""
    if o.type.dtype.kind != "c":
        return o
    layout = ViewAsReal().view(o.layout)
    assert layout is not None
    return Operand(TensorType(real_of(o.type.dtype), (*o.type.shape, 2)), o.buffer, layout, o.data, o.packed)


class Complex(Template):
    key = "complex"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, ComplexOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        body = Graph("complex")
        body.outputs = [body.input(o.type, name) for o, name in zip(region.operands, ("re", "im"), strict=True)]
        result = region.results[0]
        return Pointwise().build(Region(region.name, body, region.operands, [part(result, Real()), part(result, Imag())]), target)
