"""Composites that no kernel template serves become plainer ops."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..core.dtypes import f32, i32
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from ..ops.attention.backward import AttentionBackward
from ..ops.attention.forward import Attention
from ..ops.attention.paged import PagedAttention
from ..ops.attention.saved import AttentionSaved
from ..ops.base import name_origin
from ..ops.matmul.contractions import Matmul
from ..ops.matmul.int_products import IntConv, IntMatmul
from ..ops.rows.losses import SoftmaxCrossEntropy
from ..ops.rows.norm_backward import NormBackward
from ..ops.rows.norms import Softmax
from .base import Log, Pass
from .save_log_sums import has_kernel

MOST_CLASSES = 1 << 15  # of a row that fits in a block's registers
WIDEST_HEAD = 256  # of an f32 attention with a kernel
MOST_SCORES = 1 << 31  # of an attention that are written to memory


@dataclass(frozen=True)
class Decompose(Pass):
    """Before: any graph, everything recognised. After: no composite op without a template of its own (on the target) is left."""

    name: ClassVar[str] = "decompose"
    optional: ClassVar[bool] = False  # select has no kernel for what this removes
    target: TargetSpec | None = None

    def run(self, graph: Graph, log: Log) -> Graph:
        while any(self.wanted(n) for n in graph.nodes):
            new, env = Graph(graph.name), dict[Value, Value]()
            for n in graph.nodes:
                if not self.wanted(n):
                    graph.copy_into(new, env, [n])
                    continue
                log.hit(n.op.name)
                before, new.place = len(new.nodes), n.place
                operands = [env[v] for v in n.operands]
                if isinstance(n.op, IntMatmul) and self.target is not None and self.target.kind == "cuda":
                    made: Any = Matmul(transpose_b=n.op.transpose_b, dtype=i32)(*operands)  # matrix units read codes as they lie
                elif isinstance(n.op, Attention):
                    made = in_products(n.op, *operands)
                else:
                    made = n.op.decompose(*operands)
                new.place = ""
                name_origin(new.nodes[before:], n)
                env.update(zip(n.values, made if isinstance(made, tuple) else (made,), strict=True))
            new.take_ends(graph, env)
            graph = new
        return graph

    def wanted(self, n: Node) -> bool:
        if isinstance(n.op, AttentionSaved) or (isinstance(n.op, AttentionBackward) and (n.op.saved or n.operands[0].dtype.itemsize == 2)):
            return not has_kernel(n, self.target)
        if type(n.op) in (Attention, AttentionBackward) and self.target is not None and self.target.kind == "cuda":
            return slow(n)
        if isinstance(n.op, NormBackward) and n.operands[0].dtype.itemsize == 2:
            return self.target is None or self.target.kind != "cuda"
        if isinstance(n.op, PagedAttention) and self.target is not None and self.target.kind == "cuda":
            return not pages_fit(n)
        if isinstance(n.op, SoftmaxCrossEntropy) and self.target is not None and self.target.kind == "cuda":
            return not row_fits(n.operands[0])
        if isinstance(n.op, IntConv) and (self.target is None or self.target.kind == "cpu"):
            return not n.op.direct(n.operands[0], n.operands[1])
        return n.op.traits.composite and n.op.template is None and not n.op.traits.elementwise


def slow(n: Node) -> bool:
    """Whether a GPU has only the shared kernel for this attention, where a thread computes whole rows: products on all threads and a
    softmax in between are faster by far, as long as there is room for the scores. (Over a cache, whose offset is a symbol, they would be
    other kernels at every call.)"""
    q, _, v = n.operands[:3]
    if type(n.op) is Attention and q.dtype is f32 and all(isinstance(x.shape[-1], int) and x.shape[-1] <= WIDEST_HEAD for x in (q, v)):
        return False  # one block program
    (batch, heads, rows, _), keys = n.operands[0].shape, n.operands[1].shape[2]
    assert isinstance(n.op, (Attention, AttentionBackward))
    pairs = batch * heads * rows * keys
    known = isinstance(n.op.offset, int) and not (isinstance(pairs, int) and pairs > MOST_SCORES)
    return n.operands[0].dtype.itemsize >= 4 and rows != 1 and known


def in_products(op: Attention, q: Value, k: Value, v: Value, *rest: Value) -> Value:
    """Attention whose rows all see something: two products and a softmax. Heads that share keys are rows of one product."""
    offset = op.offset
    if rest or op.window is not None or (op.causal and not (isinstance(offset, int) and offset >= 0)):
        return op.decompose(q, k, v, *rest)
    (batch, heads, rows, depth), (_, shared, keys, _) = q.shape, k.shape
    k, v = F.cast(k, q.dtype), F.cast(v, q.dtype)
    stacked = (batch, shared, heads // shared * rows)
    s = F.reshape(F.matmul(F.reshape(q, (*stacked, depth)), k, transpose_b=True, alpha=op.scale), (batch, heads, rows, keys))
    if op.softcap is not None:
        s = F.mul(F.tanh(F.div(s, op.softcap)), op.softcap)
    seen = op._position_mask(q.node.graph, rows, keys)
    p = Softmax(axis=3)(s if seen is None else F.where(seen, s, -np.inf))
    return F.reshape(F.matmul(F.reshape(p, (*stacked, keys)), v), (batch, heads, rows, v.shape[3]))


def row_fits(logits: Value) -> bool:
    """Whether one kernel of a GPU reads these rows once. It takes no elementwise producers with it, as the plainer ops' kernels do."""
    classes = logits.shape[-1]
    return isinstance(classes, int) and classes <= MOST_CLASSES and logits.dtype.itemsize <= 4 and not logits.op.traits.elementwise


def pages_fit(n: Node) -> bool:
    """Whether a GPU's decode kernel (`kernels/attention/cuda/paged.py`) reads pages of this shape: runs of eight keys lie in one page."""
    (_, _, page, d), kinds = n.operands[1].shape, {v.dtype.name for v in n.operands[:3]}
    known = isinstance(page, int) and isinstance(d, int) and page % 8 == 0 and 8 <= d <= 256 and d & (d - 1) == 0
    return known and kinds <= {"f32", "f16", "bf16"}
