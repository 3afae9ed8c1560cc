"""Products with and lookups in matrices that stay in a GGUF block format.

The matrix is a constant u8[N, row bytes]: rows of packed blocks, as in the file. F16, BF16 and F32 are formats like the others, so a model
reads every weight the same way. Formats with a codebook take it as further constant operands (`codebooks`). References go through the
dequantizers of `quant`.

The other products with packed matrices: rows times a matrix itself, as the derivatives of `QMatmul` and `QExperts` to x are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...core.needs import require_room
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, Pulled, S, Traits, Values, register
from ..families import Contraction, General, N, f16, f32, i32, i64, require_kind, u8
from ..index.indexing import check_indices, require_ids
from ..quant import FORMATS, Book
from ..quant.iq_tables import grid, signs

QUANTIZED = NotSupported("rows of a packed table have no derivative with respect to their quantized values")
LEADING = NotSupported("it takes leading axes already; reshape the operand")


def row_bytes(name: str, k: int) -> int:
    """Bytes of a row of k elements."""
    return FORMATS[name].row_bytes(k)


def dequantize(name: str, rows: Any) -> Any:
    """u8[N, row bytes] -> f32[N, k]."""
    return FORMATS[name].dequantize(np.ascontiguousarray(rows))


def codebooks(name: str) -> tuple[Any, ...]:
    """Tables that the op takes as further operands: points f32[., 8 or 4], then sign patterns, of the IQ formats that have them."""
    book = FORMATS[name].table
    if not isinstance(book, Book):
        return ()
    return (grid(book.name), signs()) if book.patterns else (grid(book.name),)


def require_books(name: str, books: tuple[TensorType, ...]) -> None:
    want = [TensorType(dt.f32, table.shape) for table in codebooks(name)]
    require(list(books) == want, "{name} takes {count} codebooks", name=name, count=len(want), books=", ".join(map(str, books)) or "none")


def require_format(name: str, k: int) -> None:
    require(name in FORMATS, "format must be one of {known}", known=" ".join(FORMATS), format=name)
    block = FORMATS[name].elements
    require(k > 0 and k % block == 0, "k must be a multiple of {block}, the block of {name}", block=block, name=name, k=k)


def require_matrix(w: TensorType, name: str, k: int) -> None:
    require_format(name, k)
    require(w.dtype is dt.u8 and w.ndim == 2 and w.shape[1] == row_bytes(name, k), "the matrix must be u8[N,{row}]: rows of {k} in {name}",
            row=row_bytes(name, k), k=k, name=name, w=w)


class Packed(Contraction):
    """A product with a packed matrix of `n` rows of `k` elements, or with matrices of a stack of `experts` of them."""

    traits = Traits(contraction=True, linear=True)
    unsupported = {"batch": LEADING}
    format: str
    n: int
    k: int

    def require_weights(self, x: TensorType, w: TensorType, books: tuple[TensorType, ...], name: str) -> None:
        require_matrix(w, self.format, self.k)
        require_books(self.format, books)
        require_kind((x,), "f")
        require(x.dtype in (dt.f32, dt.f64), "{name} must be f32 or f64", name=name, x=x)


class Experts(Packed):
    """Row (s, t) of the result is a product with matrix ids[s, t] of the stack."""

    faults = True
    experts: int

    def require_stack(self, x: TensorType, w: TensorType, ids: TensorType, books: tuple[TensorType, ...], name: str) -> None:
        self.require_weights(x, w, books, name)
        require_ids(ids)
        require(w.shape[0] == self.n * self.experts, "the stack must have {rows} rows", rows=self.n * self.experts, w=w)

    def chosen(self, w: Any, ids: Any) -> Any:
        """The matrix of every row: f64[S, T, n, k]."""
        check_indices(self.name, ids, self.experts, 0)
        return dequantize(self.format, w).reshape(self.experts, self.n, self.k).astype(np.float64)[ids]


@register
class QMatmul(Packed):
    """x[..., k] times the transpose of a packed matrix of `n` rows: [..., n] in f32. `rounded`: x may be rounded to eight bits, also where
    that is not what a format is made for."""

    format: str
    n: int
    k: int
    rounded: bool = False
    samples = [S(f32(3, 32), u8(5, 34), format="Q8_0", n=5, k=32, low=(-2, 0), high=(2, 60)),
               S(f32(2, 1, 64), u8(3, 40), format="Q4_1", n=3, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(N, 64), u8(4, 36), format="Q4_0", n=4, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(64), u8(7, 128), format="F16", n=7, k=64, low=(-2, 0), high=(2, 60)),
               S(f32(3, 5), u8(2, 10), format="BF16", n=2, k=5, low=(-2, 0), high=(2, 60)),
               S(f32(2, 3), u8(4, 12), format="F32", n=4, k=3, low=(-2, 0), high=(2, 60))]
    errors = [E(f32(3, 32), u8(5, 34), format="Q9", n=5, k=32, match="format must be one of"),
              E(f32(3, 33), u8(5, 34), format="Q8_0", n=5, k=33, match="k must be a multiple of 32"),
              E(f32(3, 32), u8(5, 33), format="Q8_0", n=5, k=32, match=r"the matrix must be u8\[N,34\]"),
              E(f32(3, 64), u8(5, 34), format="Q8_0", n=5, k=32, match="the last dim of x must be k"),
              E(f32(3, 32), u8(5, 34), format="Q8_0", n=6, k=32, match="the matrix must have n rows"),
              E(i32(3, 32), u8(5, 34), format="Q8_0", n=5, k=32, match="needs float operands")]

    def infer(self, x: TensorType, w: TensorType, *books: TensorType) -> TensorType:
        self.require_weights(x, w, books, "x")
        require(x.ndim >= 1 and x.shape[-1] == self.k, "the last dim of x must be k", x=x, k=self.k)
        require(w.shape[0] == self.n, "the matrix must have n rows", w=w, n=self.n)
        return TensorType(x.dtype, (*x.shape[:-1], self.n))

    def ref(self, x: Any, w: Any, *books: Any) -> Any:
        return np.matmul(x.astype(np.float64), dequantize(self.format, w).T.astype(np.float64)).astype(x.dtype)

    def flops(self, x: TensorType, w: TensorType, *books: TensorType) -> Dim:
        return 2 * x.numel * self.n

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """The cotangent of x alone: a product with the matrix as it is packed. Quantized values have no derivative."""
        return F.one("qmatmul_back", g, *inputs[1:], format=self.format, n=self.n, k=self.k)


@register
class QGather(General):
    """Rows of a packed table by index: f32[*ids, k]."""

    work = 0
    faults = True
    format: str
    k: int
    unsupported = {"vjp": QUANTIZED, "jvp": QUANTIZED, "batch": LEADING}
    samples = [S(u8(5, 34), i64(3), format="Q8_0", k=32, low=(0, 0), high=(200, 4)),
               S(u8(4, 20), i32(2, 2), format="Q4_1", k=32, low=(0, 0), high=(200, 3)),
               S(u8(6, 8), i64(N), format="F16", k=4, low=(0, 0), high=(60, 5)),
               S(u8(3, 8), i64(), format="F32", k=2, low=(0, 0), high=(60, 2))]
    errors = [E(u8(5, 33), i64(3), format="Q8_0", k=32, match=r"the matrix must be u8\[N,34\]"),
              E(u8(5, 34), f32(3), format="Q8_0", k=32, match="indices must be integers"),
              E(f16(5, 34), i64(3), format="Q8_0", k=32, match="the matrix must be u8"),
              E(u8(0, 34), i64(3), format="Q8_0", k=32, match="the table must have rows")]

    def infer(self, table: TensorType, ids: TensorType, *books: TensorType) -> TensorType:
        require_matrix(table, self.format, self.k)
        require_books(self.format, books)
        require_ids(ids)
        require_room(table.shape[0] - 1, "the table must have rows", table=table)
        return TensorType(dt.f32, (*ids.shape, self.k))

    def ref(self, table: Any, ids: Any, *books: Any) -> Any:
        check_indices(self.name, ids, table.shape[0], 0)
        rows = dequantize(self.format, table[ids.reshape(-1)])
        return rows.reshape(*ids.shape, self.k)


@register
class QExperts(Experts):
    """Row (s, t) of x times the transpose of matrix ids[s, t] of a stack of packed matrices: f32[S, T, n]. x has shape [S, T, k], or
    [S, 1, k] when all T products of a token read the same row."""

    format: str
    n: int
    k: int
    experts: int
    samples = [S(f32(3, 1, 32), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, low=(-2, 0, 0), high=(2, 60, 3)),
               S(f32(N, 2, 32), u8(6, 20), i64(N, 2), format="Q4_1", n=3, k=32, experts=2, low=(-2, 0, 0), high=(2, 60, 1)),
               S(f32(2, 1, 5), u8(9, 10), i32(2, 1), format="BF16", n=3, k=5, experts=3, low=(-2, 0, 0), high=(2, 60, 2))]
    errors = [E(f32(3, 1, 32), u8(19, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, match="the stack must have 20 rows"),
              E(f32(3, 3, 32), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4,
                match=r"x must be f32\[S,T,32\] or f32\[S,1,32\]"),
              E(f32(3, 1, 32), u8(20, 34), f32(3, 2), format="Q8_0", n=5, k=32, experts=4, match="indices must be integers")]

    def infer(self, x: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> TensorType:
        self.require_stack(x, w, ids, books, "x")
        rows = x.ndim == 3 and ids.ndim == 2 and x.shape[0] == ids.shape[0] and x.shape[1] in (1, ids.shape[1])
        require(rows and x.shape[2] == self.k, "x must be f32[S,T,{k}] or f32[S,1,{k}] for ids [S,T]", k=self.k, x=x, ids=ids)
        return TensorType(x.dtype, (*ids.shape, self.n))

    def ref(self, x: Any, w: Any, ids: Any, *books: Any) -> Any:
        rows = np.broadcast_to(x, (*ids.shape, self.k)).astype(np.float64)
        return np.einsum("stk,stnk->stn", rows, self.chosen(w, ids)).astype(x.dtype)

    def flops(self, x: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> Dim:
        return 2 * ids.numel * self.n * self.k

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """The cotangent of x alone; where all products of a token read one row, the transform sums over them."""
        return F.one("qexperts_back", g, *inputs[1:], **self.attrs())


@register
class QMatmulBack(Packed):
    """g[..., n] times a packed matrix of n rows of k: [..., k] in f32. The matrix is unpacked a piece of a row at a time."""

    format: str
    n: int
    k: int
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
        self.require_weights(g, w, books, "g")
        require(w.shape[0] == self.n, "the matrix must have n rows", w=w, n=self.n)
        require(g.ndim >= 1 and g.shape[-1] == self.n, "the last dim of g must be n", g=g, n=self.n)
        return TensorType(g.dtype, (*g.shape[:-1], self.k))

    def ref(self, g: Any, w: Any, *books: Any) -> Any:
        return np.matmul(g.astype(np.float64), dequantize(self.format, w).astype(np.float64)).astype(g.dtype)

    def flops(self, g: TensorType, w: TensorType, *books: TensorType) -> Dim:
        return 2 * g.numel * self.k

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return F.emit(QMatmul(format=self.format, n=self.n, k=self.k), g, *inputs[1:])


@register
class QExpertsBack(Experts):
    """Row (s, t) of g[S,T,n] times matrix ids[s, t] of a stack of packed matrices: f32[S,T,k]. The derivative of `QExperts` to x."""

    format: str
    n: int
    k: int
    experts: int
    samples = [S(f32(3, 2, 5), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, low=(-2, 0, 0), high=(2, 60, 3)),
               S(f32(N, 2, 3), u8(6, 20), i64(N, 2), format="Q4_1", n=3, k=32, experts=2, low=(-2, 0, 0), high=(2, 60, 1)),
               S(f32(2, 1, 3), u8(9, 10), i32(2, 1), format="BF16", n=3, k=5, experts=3, low=(-2, 0, 0), high=(2, 60, 2))]
    errors = [E(f32(3, 2, 5), u8(19, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, match="the stack must have 20 rows"),
              E(f32(3, 2, 4), u8(20, 34), i64(3, 2), format="Q8_0", n=5, k=32, experts=4, match=r"g must be \[S,T,5\] for ids \[S,T\]"),
              E(f32(3, 2, 5), u8(20, 34), f32(3, 2), format="Q8_0", n=5, k=32, experts=4, match="indices must be integers")]

    def infer(self, g: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> TensorType:
        self.require_stack(g, w, ids, books, "g")
        ok = ids.ndim == 2 and g.shape == (*ids.shape, self.n)
        require(ok, "g must be [S,T,{n}] for ids [S,T]", n=self.n, g=g, ids=ids)
        return TensorType(g.dtype, (*ids.shape, self.k))

    def ref(self, g: Any, w: Any, ids: Any, *books: Any) -> Any:
        return np.einsum("stn,stnk->stk", g.astype(np.float64), self.chosen(w, ids)).astype(g.dtype)

    def flops(self, g: TensorType, w: TensorType, ids: TensorType, *books: TensorType) -> Dim:
        return 2 * g.numel * self.k

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return F.emit(QExperts(**self.attrs()), g, *inputs[1:])
