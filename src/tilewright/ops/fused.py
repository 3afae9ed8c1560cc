"""The region: a graph applied as one op. The fuse pass makes them, templates serve them whole."""
from __future__ import annotations

from typing import Any

from ..core.dims import Dim
from ..core.errors import UnsupportedError, require
from ..ir.graph import Graph, Value
from ..ir.types import TensorType
from . import functions as F
from . import pointwise  # noqa: F401  its samples are graphs of plain ops
from .base import E, Op, S, register, single
from .families import N, f32
from .matmul import contractions  # noqa: F401


@register
class Fused(Op):
    """Apply `body`: operands are its inputs, results its outputs."""

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
        want = tuple(v.type for v in self.body.inputs)
        require(types == want, "operand types must be those of the body's inputs ({want})", want=", ".join(map(str, want)),
                types=", ".join(map(str, types)))
        require(len(self.body.outputs) > 0, "the body needs at least one output")
        out = tuple(v.type for v in self.body.outputs)
        return out[0] if len(out) == 1 else out

    def ref(self, *arrays: Any) -> Any:
        from ..ir.interp import run

        out = run(self.body, arrays)
        return out[0] if len(out) == 1 else tuple(out)

    def decompose(self, *values: Value) -> Value | tuple[Value, ...]:
        env = dict(zip(self.body.inputs, values, strict=True))
        if not values:
            raise UnsupportedError("fused: a body without inputs has no graph to be inlined into; copy it with Graph.copy_into")
        self.body.copy_into(values[0].node.graph, env)
        out = tuple(env[v] for v in self.body.outputs)
        return out[0] if len(out) == 1 else out

    def flops(self, *types: TensorType) -> Dim:
        total: Dim = 0
        for n in self.body.nodes:
            total = total + n.op.flops(*(v.type for v in n.operands))
        return total

    def __str__(self) -> str:
        return f"fused{{{' '.join(n.op.name for n in self.body.nodes if n.operands)}}}"
