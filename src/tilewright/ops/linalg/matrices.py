"""Matrices as graph values: triangles, diagonals, identity, products with transposes, and the type rule that linear algebra shares."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..families import broadcast_shapes, show_shape


def require_matrix(x: TensorType, *, square: bool = False, complex_: bool = False) -> tuple[int, int]:
    """x holds matrices of floats (or of complex numbers) in its last two axes, of a known size, which comes back."""
    right = x.dtype in (dt.f32, dt.f64) or (complex_ and x.dtype.kind == "c")
    require(right, "needs f32 or f64 matrices; cast first" if x.dtype.kind != "c" else "is not defined for complex matrices", dtype=x.dtype)
    require(x.ndim >= 2, "needs matrices (rank 2 or more)", x=x)
    m, n = x.shape[-2:]
    require(isinstance(m, int) and isinstance(n, int), "needs matrices of a known size", x=x)
    require(not square or m == n, "needs square matrices", x=x)
    assert isinstance(m, int) and isinstance(n, int)
    return m, n


def require_system(a: TensorType, b: TensorType) -> TensorType:
    """The type of x in a @ x = b."""
    n, _ = require_matrix(a, square=True, complex_=True)
    rows, _ = require_matrix(b, complex_=True)
    require(a.dtype is b.dtype, "operands must have one dtype; cast first", dtypes=f"{a.dtype}, {b.dtype}")
    require(rows == n, "the right side must have {n} rows", n=n, b=show_shape(b.shape))
    return TensorType(a.dtype, (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), *b.shape[-2:]))


def mt(x: Value) -> Value:
    """The transposed matrices."""
    n = len(x.shape)
    return F.transpose(x, (*range(n - 2), n - 1, n - 2))


def mask(graph: Graph, m: Dim, n: Dim, k: int) -> Value:
    """bool [m, n]: column <= row + k."""
    rows, columns = F.iota(graph, (m, 1), 0, dt.i32), F.iota(graph, (1, n), 1, dt.i32)
    return F.less_equal(columns, F.add(rows, k) if k else rows)


def tril(x: Value, k: int = 0) -> Value:
    """Zeros above the k-th diagonal."""
    return F.where(mask(x.node.graph, x.shape[-2], x.shape[-1], k), x, 0)


def triu(x: Value, k: int = 0) -> Value:
    """Zeros below the k-th diagonal."""
    return F.where(mask(x.node.graph, x.shape[-2], x.shape[-1], k - 1), 0, x)


def on_diagonal(graph: Graph, m: Dim, n: Dim) -> Value:
    """bool [m, n]: row == column."""
    return F.equal(F.iota(graph, (m, 1), 0, dt.i32), F.iota(graph, (1, n), 1, dt.i32))


def eye(like: Value, n: Dim) -> Value:
    """The identity [n, n] in the dtype of `like`."""
    return F.cast(on_diagonal(like.node.graph, n, n), like.dtype)


def diagonal(x: Value) -> Value:
    """The main diagonal [..., min(m, n)]."""
    m, n = x.shape[-2:]
    k = min(m, n)
    square = left(top(x, k), k)
    return F.sum_(F.where(on_diagonal(x.node.graph, k, k), square, 0), (len(x.shape) - 1,))


def diagonal_matrix(d: Value) -> Value:
    """[..., n] on the diagonals of matrices [..., n, n]."""
    n = d.shape[-1]
    return F.where(on_diagonal(d.node.graph, n, n), F.reshape(d, (*d.shape, 1)), 0)


def with_diagonal(x: Value, factor: float) -> Value:
    """Square matrices with the diagonal multiplied."""
    return F.where(on_diagonal(x.node.graph, x.shape[-1], x.shape[-1]), F.mul(x, factor), x)


def row_scaled(x: Value, d: Value) -> Value:
    """Row i times d[i]."""
    return F.mul(x, F.reshape(d, (*d.shape, 1)))


def column_scaled(x: Value, d: Value) -> Value:
    """Column j times d[j]."""
    return F.mul(x, F.reshape(d, (*d.shape[:-1], 1, d.shape[-1])))


def top(x: Value, k: Dim) -> Value:
    axis = len(x.shape) - 2
    return x if x.shape[axis] == k else F.slice_(x, axis, 0, k)


def bottom(x: Value, k: Dim) -> Value:
    """Rows from k on."""
    axis = len(x.shape) - 2
    return F.slice_(x, axis, k, x.shape[axis] - k)


def left(x: Value, k: Dim) -> Value:
    axis = len(x.shape) - 1
    return x if x.shape[axis] == k else F.slice_(x, axis, 0, k)


def right(x: Value, k: Dim) -> Value:
    """Columns from k on."""
    axis = len(x.shape) - 1
    return F.slice_(x, axis, k, x.shape[axis] - k)


def solve_triangular(a: Value, b: Value, *, upper: bool = False, transpose: bool = False, unit: bool = False) -> Value:
    """op(a)^-1 @ b."""
    return F.one("triangular_solve", a, b, upper=upper, transpose=transpose, unit=unit)


def solve_from_right(a: Value, b: Value, *, upper: bool = False, transpose: bool = False, unit: bool = False) -> Value:
    """b @ op(a)^-1."""
    return mt(solve_triangular(a, mt(b), upper=upper, transpose=not transpose, unit=unit))


def permute_rows(x: Value, order: Value, *, inverse: bool = False) -> Value:
    """Row i of the result is row order[i] of x; `inverse` undoes that. Leading axes broadcast."""
    if inverse:
        order = F.one("arg_sort", order, axis=len(order.shape) - 1, dtype=order.dtype)
    lead = broadcast_shapes(x.shape[:-2], order.shape[:-1])
    rows, columns = x.shape[-2:]
    ids = F.expand(F.reshape(order, (*order.shape, 1)), (*lead, rows, columns))
    return F.one("gather_along_axis", F.expand(x, (*lead, rows, columns)), ids, axis=len(lead))


def finite(x: Any) -> tuple[Any, Any]:
    """Matrices (a NumPy array) with zeros for those that hold NaN or infinity, and a factor for results of each: 1, NaN for those."""
    fine = np.isfinite(x).all((-2, -1))
    return np.where(fine[..., None, None], x, 0).astype(x.dtype), np.where(fine, 1, np.nan).astype(x.dtype)


def each_matrix(fn: Any, x: Any, *shapes: tuple[int, ...]) -> list[Any]:
    """Apply fn to every matrix of x (a NumPy array): stacked results of these shapes."""
    lead = x.shape[:-2]
    results = [np.zeros((*lead, *s), x.dtype) for s in shapes]
    for at in np.ndindex(*lead):
        for r, made in zip(results, fn(x[at]), strict=True):
            r[at] = made
    return results
