"""Attention of one query row per sequence over a cache that lies in pages: sequences of different lengths share one pool."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import Composite, N, bf16, f32, i32, i64
from ..index.indexing import Gather, check_indices, require_ids
from ..sources import Iota
from .forward import Attention

CACHE = NotSupported("a cache that is decoded from has no derivative; attend to gathered pages")
LEADING = NotSupported("sequences are a batch already; join the axes")


@register
class PagedAttention(Composite):
    """q[B,H,1,D] over keys and values [pages,Hkv,page,D]: position p of sequence b lies in page table[b, p / page], at p % page; it sees
    its first lengths[b] positions (none: zeros). Every entry of the table, used or not, must name a page."""

    faults = True
    scale: float
    softcap: float | None = None
    unsupported = {"vjp": CACHE, "jvp": CACHE, "batch": LEADING}
    samples = [S(f32(2, 4, 1, 8), f32(5, 2, 16, 8), f32(5, 2, 16, 8), i32(2, 3), i32(2), scale=0.4, low=(-2, -2, -2, 0, 0),
                 high=(2, 2, 2, 4, 48)),
               S(f32(N, 2, 1, 4), bf16(3, 2, 8, 4), bf16(3, 2, 8, 4), i64(N, 2), i64(N), scale=0.5, softcap=2.0, low=(-2, -2, -2, 0, 0),
                 high=(2, 2, 2, 2, 16))]
    errors = [E(f32(2, 4, 2, 8), f32(5, 2, 16, 8), f32(5, 2, 16, 8), i32(2, 3), i32(2), scale=1.0, match="one query row a sequence"),
              E(f32(2, 4, 1, 8), f32(5, 2, 16, 8), f32(5, 2, 16, 8), i32(3, 3), i32(2), scale=1.0, match="a row of the table and a length"),
              E(f32(2, 4, 1, 8), f32(5, 2, 16, 8), f32(5, 2, 16, 8), f32(2, 3), i32(2), scale=1.0, match="indices must be integers"),
              E(f32(2, 3, 1, 8), f32(5, 2, 16, 8), f32(5, 2, 16, 8), i32(2, 3), i32(2), scale=1.0,
                match="query heads must be a multiple of key heads")]

    def infer(self, q: TensorType, k: TensorType, v: TensorType, table: TensorType, lengths: TensorType) -> TensorType:
        for ids in (table, lengths):
            require_ids(ids)
        require(q.ndim == 4 and q.shape[2] == 1, "needs one query row a sequence: q[B,H,1,D]", q=q)
        require(k.ndim == 4 and k.shape == v.shape, "k and v must be pages [pages,Hkv,page,D]", k=k, v=v)
        ok = table.ndim == 2 and lengths.ndim == 1 and table.shape[0] == lengths.shape[0] == q.shape[0]
        require(ok, "needs a row of the table and a length for every sequence", q=q, table=table, lengths=lengths)
        keys = k.with_shape((q.shape[0], k.shape[1], table.shape[1] * k.shape[2], k.shape[3]))
        return Attention(scale=self.scale, softcap=self.softcap).infer(q, keys, keys.with_dtype(v.dtype))

    def ref(self, q: Any, k: Any, v: Any, table: Any, lengths: Any) -> Any:
        check_indices(self.name, table, k.shape[0], 0)
        (b, pages), (_, heads, page, d) = table.shape, k.shape
        keys, values = (x[table].swapaxes(1, 2).reshape(b, heads, pages * page, d) for x in (k, v))
        seen = np.arange(pages * page) < lengths[:, None]
        return Attention(scale=self.scale, softcap=self.softcap, has_mask=True).ref(q, keys, values, seen[:, None, None])

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """A GPU's decode kernel (`kernels/attention/cuda/paged.py`) reads pages in which runs of eight keys lie side by side."""
        (_, _, page, d), kinds = operands[1].shape, {v.dtype.name for v in operands[:3]}
        known = isinstance(page, int) and isinstance(d, int) and page % 8 == 0 and 8 <= d <= 256 and d & (d - 1) == 0
        return not (target is not None and target.kind == "cuda" and known and kinds <= {"f32", "f16", "bf16"})

    def decompose(self, q: Value, k: Value, v: Value, table: Value, lengths: Value) -> Value:
        (b, pages), (_, heads, page, d) = table.shape, k.shape
        keys, values = (
            F.reshape(F.transpose(Gather(axis=0)(x, table), (0, 2, 1, 3, 4)), (b, heads, pages * page, d)) for x in (k, v)
        )
        place = q.node.graph.add(Iota(shape=(1, pages * page), axis=1, dtype=lengths.dtype)).value
        seen = F.reshape(F.less(place, F.reshape(lengths, (b, 1))), (b, 1, 1, pages * page))
        return F.emit(Attention(scale=self.scale, softcap=self.softcap, has_mask=True), q, keys, values, seen)

    def flops(self, q: TensorType, k: TensorType, v: TensorType, table: TensorType, lengths: TensorType) -> Dim:
        return 4 * q.numel * table.shape[1] * k.shape[2]
