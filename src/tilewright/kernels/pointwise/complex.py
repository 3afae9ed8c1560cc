"""Two real arrays become one complex one: a pointwise kernel that stores each part through a strided view of the result."""

from __future__ import annotations

from ...core.dtypes import real_of
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from ...ops.complex.parts import Complex as ComplexOp
from ...ops.complex.parts import Imag, Real, ViewAsReal
from ...ops.fused import Fused
from ..launch import Launch
from ..region import Operand, Region
from ..template import Template
from .pointwise import Pointwise


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


def computed_in_place(graph: Graph) -> dict[Value, tuple[Value, Real | Imag]]:
    """Parts that pointwise kernels can store in the complex array they are made for: part -> (array, which part)."""
    users, found = graph.users(), dict[Value, tuple[Value, Real | Imag]]()

    def pointwise(v: Value) -> bool:
        body = v.node.op.body.nodes if isinstance(v.node.op, Fused) else [v.node]
        alone = len(users[v]) == 1 and v not in graph.outputs and not v.node.op.traits.view
        return alone and not any(n.op.traits.anchor for n in body) and any(n.op.traits.elementwise for n in body)

    for n in graph.nodes:
        if isinstance(n.op, ComplexOp) and n.operands[0] is not n.operands[1] and all(map(pointwise, n.operands)):
            found.update(zip(n.operands, ((n.value, Real()), (n.value, Imag())), strict=True))
    return found


class ComplexTemplate(Template):
    key = "complex"
    serves = (ComplexOp,)

    def __init__(self, pointwise: Pointwise | None = None) -> None:
        self.pointwise = pointwise or Pointwise()  # the pointwise template of the target

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        body = Graph("complex")
        body.outputs = [body.input(o.type, name) for o, name in zip(region.operands, ("re", "im"), strict=True)]
        result = region.results[0]
        return self.pointwise.build(Region(region.name, body, region.operands, [part(result, Real()), part(result, Imag())]), target)
