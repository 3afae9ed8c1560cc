"""The other products with packed matrices: rows times a matrix itself, as the derivatives of `QMatmul` and `QExperts` to x are."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.types import TensorType
from ..base import E, MaybeValues, S, Traits, Values, register
from ..families import Contraction, N, f32, i32, i64, require_kind, u8
from ..index.indexing import check_indices, require_ids
from .products import LEADING, QExperts, QMatmul, dequantize, require_books, require_matrix


@register
class QMatmulBack(Contraction):
    """g[..., n] times a packed matrix of n rows of k: [..., k] in f32. The matrix is unpacked a piece of a row at a time."""

    format: str
    n: int
    k: int
    traits = Traits(contraction=True, linear=True)
    unsupported = {"batch": LEADING}
    samples = [S(f32(3, 5), u8(5, 34), format="Q8_0", n=5, k=32, low=(-2, 0), high=(2, 60)),
               S(f32(2, 1, 3), u8(3, 40), format="Q4_1", n=3, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(N, 4), u8(4, 36), format="Q4_0", n=4, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(7), u8(7, 128), format="F16", n=7, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(9, 2), u8(2, 10), format="BF16", n=2, k=5, low=(-2, 0), high=(2, 60)),
               S(f32(3, 2), u8(2, 680), format="Q8_0", n=2, k=640, low=(-2, 0), high=(2, 60))]
    errors = [E(f32(3, 5), u8(5, 33), format="Q8_0", n=5, k=32, match=r"the matrix must be u8\[N,34\]"),
              E(f32(3, 4), u8(5, 34), format="Q8_0", n=5, k=32, match="the last dim of g must be n"),
              E(f32(3, 5), u8(5, 34), format="Q8_0", n=6, k=32, match="the matrix must have n rows"),
              E(i32(3, 5), u8(5, 34), format="Q8_0", n=5, k=32, match="needs float operands")]

    def infer(self, g: TensorType, w: TensorType, *books: TensorType) -> TensorType:
        require_matrix(w, self.format, self.k)
        require_books(self.format, books)
        require_kind((g,), "f")
        require(g.dtype in (dt.f32, dt.f64), "g must be f32 or f64", g=g)
        require(w.shape[0] == self.n, "the matrix must have n rows", w=w, n=self.n)
        require(g.ndim >= 1 and g.shape[-1] == self.n, "the last dim of g must be n", g=g, n=self.n)
        return TensorType(g.dtype, (*g.shape[:-1], self.k))

    def ref(self, g: Any, w: Any, *books: Any) -> Any:
        return np.matmul(g.astype(np.float64), dequantize(self.format, w).astype(np.float64)).astype(g.dtype)

    def flops(self, g: TensorType, w: TensorType, *books: TensorType) -> Dim:
        return 2 * g.numel * self.k

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        return (QMatmul(format=self.format, n=self.n, k=self.k)(g, *inputs[1:]), *(None,) * (len(inputs) - 1))


@register
class QExpertsBack(Contraction):
    """Row (s, t) of g[S,T,n] times matrix ids[s, t] of a stack of packed matrices: f32[S,T,k]. The derivative of `QExperts` to x."""

    faults = True
    format: str
    n: int
    k: int
    experts: int
    traits = Traits(contraction=True, linear=True)
    unsupported = {"batch": LEADING}
    samples = [S(f32(3, 2, 5), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, low=(-2, 0, 0), high=(2, 60, 3)),
               S(f32(N, 2, 3), u8(6, 20), i64(N, 2), format="Q4_1", n=3, k=32, experts=2, low=(-2, 0, 0), high=(2, 60, 1)),
               S(f32(2, 1, 3), u8(9, 10), i32(2, 1), format="BF16", n=3, k=5, experts=3, low=(-2, 0, 0), high=(2, 60, 2))]
    errors = [E(f32(3, 2, 5), u8(19, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, match="the stack must have 20 rows"),
              E(f32(3, 2, 4), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, match=r"g must be \[S,T,5\] for ids \[S,T\]"),
              E(f32(3, 2, 5), u8(20, 34), f32(3, 2), format="Q8_0", n=5, k=32, experts=4, match="indices must be integers")]

    def infer(self, g: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> TensorType:
        require_matrix(w, self.format, self.k)
        require_books(self.format, books)
        require_ids(ids)
        require(w.shape[0] == self.n * self.experts, "the stack must have {rows} rows", rows=self.n * self.experts, w=w)
        ok = g.dtype in (dt.f32, dt.f64) and ids.ndim == 2 and g.shape == (*ids.shape, self.n)
        require(ok, "g must be [S,T,{n}] for ids [S,T]", n=self.n, g=g, ids=ids)
        return TensorType(g.dtype, (*ids.shape, self.k))

    def ref(self, g: Any, w: Any, ids: Any, *books: Any) -> Any:
        check_indices(self.name, ids, self.experts, 0)
        stack = dequantize(self.format, w).reshape(self.experts, self.n, self.k).astype(np.float64)
        return np.einsum("stn,stnk->stk", g.astype(np.float64), stack[ids]).astype(g.dtype)

    def flops(self, g: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> Dim:
        return 2 * g.numel * self.k

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        forward = QExperts(format=self.format, n=self.n, k=self.k, experts=self.experts)
        return (forward(g, *inputs[1:]), *(None,) * (len(inputs) - 1))
