"""The region: a graph applied as one op. The fuse pass makes them, templates serve them whole."""
from __future__ import annotations

from ..core.errors import require
from ..ir.graph import Graph
from ..ir.types import TensorType
from . import functions as F
from . import pointwise  # noqa: F401  its samples are graphs of plain ops
from .base import E, S, register, single
from .families import Applied, N, f32
from .matmul import contractions  # noqa: F401


@register
class Fused(Applied):
    """Apply `body`, which a template serves whole."""

    body: Graph
    samples = [S(f32(3, 5), f32(5), body=single(lambda g, v: F.relu(F.add(v[0], v[1])), f32(3, 5), f32(5))),
               S(f32(N, 4), f32(4, 3), body=single(lambda g, v: F.gelu(F.matmul(v[0], v[1])), f32(N, 4), f32(4, 3))),
               S(f32(2, 6), body=single(lambda g, v: (F.exp(v[0]), F.mul(v[0], 2.0)), f32(2, 6)))]
    errors = [E(f32(3, 5), f32(4), body=single(lambda g, v: F.add(v[0], v[1]), f32(3, 5), f32(5)),
                match=r"operand types must be those of the body's inputs \(f32\[3,5\], f32\[5\]\)"),
              E(f32(3), body=single(lambda g, v: F.add(v[0], v[1]), f32(3), f32(3)),
                match="operand types must be those of the body's inputs"),
              E(body=single(lambda g, v: ()), match="the body needs at least one output")]

    def infer(self, *types: TensorType) -> TensorType | tuple[TensorType, ...]:
        require(len(self.body.outputs) > 0, "the body needs at least one output")
        return super().infer(*types)

    def __str__(self) -> str:
        return f"fused{{{' '.join(n.op.name for n in self.body.nodes if n.operands)}}}"
