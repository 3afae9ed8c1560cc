"""Products with packed matrices become integer products; matrices of small floats become ordinary ones."""
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import ops as o
from ..core.dims import bounds, product
from ..core.dtypes import bf16, f16, f32
from ..ir.graph import Graph, Node, Value, exchanged
from ..ir.types import TensorType
from ..ops.packed.quant_dot import FORMATS, GPU_FORMATS, GROUPED
from .base import Log, Pass

LANES = 16  # rows of a panel: a matrix of the stack must begin with one
FEW = 1  # rows up to which a GPU rounds activations to quantized values: of more, bf16 is faster
FLOATS = {"F32": f32, "F16": f16, "BF16": bf16}


@dataclass(frozen=True)
class LowerQuantized(Pass):
    """Before: any graph. After: a `q_matmul` by a constant in a format with an integer kernel (one of groups only where `rounded` allows
    it) is a `q_dot` of activations that are quantized once for all their readers, and a `q_experts` a `q_experts_dot`; one in F32, F16 or
    BF16 is a `matmul` that reads the file's numbers. On a GPU one of more than one row, or of a number not known to be one, is a
    `q_product` of activations in bf16."""

    name: ClassVar[str] = "lower-quantized"
    gpu: bool = False  # whose integer products know more formats

    def run(self, graph: Graph, log: Log) -> Graph:
        if not any(isinstance(n.op, (o.QMatmul, o.QExperts)) for n in graph.nodes):
            return graph
        quantized: dict[Value, tuple[Value, ...]] = {}

        def change(n: Node, new: Graph, env: dict[Value, Value]) -> Value | None:
            made = None
            if isinstance(n.op, o.QMatmul):
                made = self.lowered(n, new, env, quantized)
            elif isinstance(n.op, o.QExperts):
                made = self.experts(n, env, quantized)
            if made is not None:
                log.hit(made.op.name)
            return made

        return exchanged(graph, change)

    def lowered(self, n: Node, new: Graph, env: dict[Value, Value], quantized: dict[Value, tuple[Value, ...]]) -> Value | None:
        op, x, w = n.op, n.operands[0], n.operands[1]
        assert isinstance(op, o.QMatmul)
        if not isinstance(w.op, o.Constant) or len(x.shape) < 2:
            return None
        data = w.op.data
        if op.format in FLOATS:
            numbers = o.Seen(data, TensorType(FLOATS[op.format], (op.n, op.k)))
            return o.emit(o.Matmul(transpose_b=True), env[x], new.constant(numbers, data.name), name=n.name, place=n.place)
        if op.format not in (GPU_FORMATS if self.gpu else (*FORMATS, *(GROUPED if op.rounded else ()))):
            return None
        if self.gpu and bounds(product(x.shape[:-1]))[1] > FEW:
            if x not in quantized:
                quantized[x] = (o.Cast(dtype=bf16)(env[x], name=f"{n.name}_bf16", place=n.place),)
            return o.emit(o.QProduct(format=op.format, n=op.n, k=op.k), *quantized[x], env[w], name=n.name, place=n.place)
        if x not in quantized:
            quantized[x] = o.QuantizeRows()(env[x], name=f"{n.name}_codes", place=n.place)
        return o.emit(o.QDot(format=op.format, n=op.n, k=op.k), *quantized[x], env[w], name=n.name, place=n.place)

    @staticmethod
    def experts(n: Node, env: dict[Value, Value], quantized: dict[Value, tuple[Value, ...]]) -> Value | None:
        op, (x, w, ids) = n.op, n.operands[:3]
        assert isinstance(op, o.QExperts)
        if not isinstance(w.op, o.Constant) or op.format not in FORMATS or op.n % LANES:
            return None
        if x not in quantized:
            quantized[x] = o.QuantizeRows()(env[x], name=f"{n.name}_codes", place=n.place)
        dot = o.QExpertsDot(format=op.format, n=op.n, k=op.k, experts=op.experts)
        out: Value = dot(*quantized[x], env[w], env[ids], name=n.name, place=n.place)
        return out
