"""Composites that no kernel template serves become plainer ops."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.dtypes import compute_dtype, f64, i32
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Node, Value, exchanged
from ..ops import functions as F
from ..ops.attention.forward import Attention
from ..ops.base import name_origin
from ..ops.matmul.contractions import Matmul
from ..ops.matmul.int_products import IntMatmul
from ..ops.rows.norms import Softmax
from ..ops.rows.reductions import Std, Var
from .base import Log, Pass


@dataclass(frozen=True)
class Decompose(Pass):
    """Before: any graph, everything recognized. After: no composite op without a template of its own (on the target) is left."""

    name: ClassVar[str] = "decompose"
    optional: ClassVar[bool] = False  # select has no kernel for what this removes
    target: TargetSpec | None = None

    def run(self, graph: Graph, log: Log) -> Graph:
        while any(n.op.decomposes(n.operands, self.target) for n in graph.nodes):
            graph = exchanged(graph, lambda n, new, env: self.parts(n, new, env, log))
        return graph

    def parts(self, n: Node, new: Graph, env: dict[Value, Value], log: Log) -> Any:
        if not n.op.decomposes(n.operands, self.target):
            return None
        log.hit(n.op.name)
        before, operands = len(new.nodes), [env[v] for v in n.operands]
        on_gpu = self.target is not None and self.target.kind == "cuda"
        if isinstance(n.op, IntMatmul) and on_gpu:
            made: Any = Matmul(transpose_b=n.op.transpose_b, dtype=i32)(*operands)  # tensor cores read quantized values as they lie
        elif isinstance(n.op, Std) or (isinstance(n.op, Var) and n.op.correction):  # norms take theirs over n, in f32
            x = operands[0]
            wide = compute_dtype(x.dtype) if on_gpu else f64  # squares leave the range of f32 long before their root does
            made = F.cast(n.op.decompose(F.cast(x, wide)), x.dtype)
        elif isinstance(n.op, Attention):
            made = in_products(n.op, *operands)
        else:
            made = n.op.decompose(*operands)
        name_origin(new.nodes[before:], n)
        return made


def in_products(op: Attention, q: Value, k: Value, v: Value, *rest: Value) -> Value:
    """Attention whose rows all see something: two products and a softmax. Heads that share keys are rows of one product."""
    offset = op.offset
    if rest or op.window is not None or (op.causal and not (isinstance(offset, int) and offset >= 0)):
        return op.decompose(q, k, v, *rest)
    (batch, heads, rows, depth), (_, shared, keys, _) = q.shape, k.shape
    k, v = F.cast(k, q.dtype), F.cast(v, q.dtype)
    stacked = (batch, shared, heads // shared * rows)
    s = F.matmul(F.reshape(q, (*stacked, depth)), k, transpose_b=True, alpha=op.scale)
    s = F.cast(F.reshape(s, (batch, heads, rows, keys)), compute_dtype(q.dtype))  # scores of 16-bit floats leave their product in f32
    if op.softcap is not None:
        s = F.mul(F.tanh(F.div(s, op.softcap)), op.softcap)
    seen = op._position_mask(q.node.graph, rows, keys)
    p = Softmax(axis=3)(s if seen is None else F.where(seen, s, -np.inf))
    return F.reshape(F.matmul(F.reshape(F.cast(p, q.dtype), (*stacked, keys)), v), (batch, heads, rows, v.shape[3]))
