"""Linear algebra of Arrays: the array API's extension. Factorisations run LAPACK through NumPy over the Array's memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ...transform.trace import Functions
from ..arrays import Array, shown
from . import contractions, rows, shapes
from .base import Header, as_float, axes_of, give, header

public = FUNCTIONS = Functions({n: contractions.FUNCTIONS[n] for n in ("matmul", "tensordot", "vecdot", "outer", "cross")})
FUNCTIONS["matrix_transpose"] = shapes.FUNCTIONS["matrix_transpose"]


def _matrix(x: Any, what: str, square: bool = False) -> Header:
    a = as_float(header(x, what))
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        raise ArgumentError(f"{what}: needs {'square ' if square else ''}matrices in the last two axes, got {shown(a)}")
    if dt.dtype(a.dtype) in dt.SMALL:
        a = a.astype(np.float32)
    return a


def _complex(fn: Callable[..., Any]) -> Callable[[Header], Any]:
    """fn with complex results always."""
    def call(a: Header) -> Any:
        made, wanted = fn(a), dt.complex_of(dt.dtype(a.dtype)).np
        return type(made)(*(m.astype(wanted) for m in made)) if isinstance(made, tuple) else made.astype(wanted, copy=False)

    return call


def _tolerance(a: Header, rtol: Any) -> Any:
    return max(a.shape[-2:]) * np.finfo(a.dtype).eps if rtol is None else header(rtol)


def _matrix_rank(a: Header, rtol: Any) -> Any:
    s = np.linalg.svdvals(a)
    if not s.shape[-1]:
        return np.zeros(a.shape[:-2], np.int64)
    return np.count_nonzero(s > s.max(axis=-1, keepdims=True) * np.asarray(_tolerance(a, rtol))[..., None], axis=-1)


rows.enter(FUNCTIONS, {
    "cholesky(x, /, *, upper: bool = False)": ("The Cholesky factor of positive definite matrices.", np.linalg.cholesky),
    "det(x, /)": ("Determinants.", np.linalg.det),
    "eig(x, /) -> NamedTuple": ("Eigenvalues and eigenvectors in columns of square matrices, complex always.", _complex(np.linalg.eig)),
    "eigvals(x, /)": ("Eigenvalues of square matrices, complex always.", _complex(np.linalg.eigvals)),
    "eigh(x, /) -> NamedTuple": ("Eigenvalues, ascending, and eigenvectors in columns of symmetric or Hermitian matrices.", np.linalg.eigh),
    "eigvalsh(x, /)": ("Eigenvalues of symmetric or Hermitian matrices.", np.linalg.eigvalsh),
    "inv(x, /)": ("Inverses of square matrices.", np.linalg.inv),
    "matrix_power(x, n: int, /)":
        ("A square matrix times itself, n times; negative powers are those of the inverse.", np.linalg.matrix_power),
    "slogdet(x, /) -> NamedTuple": ("The sign and the logarithm of the magnitude of determinants.", np.linalg.slogdet),
}, lambda what, x: [_matrix(x, what, True)], silently=True)
rows.enter(FUNCTIONS, {
    "matrix_norm(x, /, *, keepdims: bool = False, ord: Any = 'fro')":
        ("A norm of the matrices in the last two axes.", np.linalg.matrix_norm),
    "matrix_rank(x, /, *, rtol: Any = None)": ("How many singular values are above a tolerance.", _matrix_rank),
    "pinv(x, /, *, rtol: Any = None)": ("Pseudo-inverses.", lambda a, rtol: np.linalg.pinv(a, _tolerance(a, rtol)).astype(a.dtype)),
    "svd(x, /, *, full_matrices: bool = True) -> NamedTuple": ("The singular value decomposition U S Vh.", np.linalg.svd),
    "svdvals(x, /)": ("Singular values, in descending order.", np.linalg.svdvals),
}, lambda what, x: [_matrix(x, what)], silently=True)
rows.enter(FUNCTIONS, {
    "diagonal(x, /, *, offset: int = 0)": ("The diagonals of the last two axes: a view.", np.linalg.diagonal),
    "norm(x, ord: Any = None, axis: Any = None, keepdims: bool = False)":
        ("NumPy's norm of vectors and matrices.", lambda a, *rest: np.linalg.norm(as_float(a), *rest)),
}, silently=True)


@public
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum along a diagonal of the last two axes."""
    return contractions.FUNCTIONS["trace"](x, offset, -2, -1, dtype)  # type: ignore[no-any-return]


@public
def qr(x: Any, /, *, mode: str = "reduced") -> NamedTuple:
    """Orthonormal and triangular factors."""
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ArgumentError(f"qr: mode is 'reduced', 'complete', 'r' or 'raw', got {mode!r}")
    return rows.attempt("qr", rows.silent(np.linalg.qr), _matrix(x, "qr"), mode)  # type: ignore[no-any-return]


@public
def lstsq(x1: Any, x2: Any, /, rcond: float | None = None) -> tuple[Array, ...]:
    """The least squares solution, its residuals, the rank and the singular values."""
    operands = rows.of_one_dtype("lstsq", _matrix(x1, "lstsq"), as_float(header(x2, "lstsq")))
    return rows.attempt("lstsq", rows.silent(np.linalg.lstsq), *operands, rcond)  # type: ignore[no-any-return]


@public
def multi_dot(arrays: Any) -> Array:
    """A chain of products in the best order."""
    return rows.attempt("multi_dot", np.linalg.multi_dot, rows.of_one_dtype("multi_dot", *arrays))  # type: ignore[no-any-return]


@public
def solve(x1: Any, x2: Any, /) -> Array:
    """The solution of x1 @ y = x2; an x2 of one axis is a vector."""
    a, b = rows.of_one_dtype("solve", _matrix(x1, "solve", True), as_float(header(x2, "solve")))
    if b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise ArgumentError(f"solve: the sizes differ, got {shown(a)} and {shown(b)}")
    made = rows.attempt("solve", rows.silent(np.linalg.solve), a, b[:, None] if b.ndim == 1 else b)
    return made[..., 0] if b.ndim == 1 else made  # type: ignore[no-any-return]


@public
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:  # noqa: A002
    """A norm of vectors along axes."""
    a = as_float(header(x, "vector_norm"))
    axes = axes_of(axis, a.ndim, "vector_norm")
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    flat = a.transpose(kept + axes).reshape(*(a.shape[i] for i in kept), -1)
    if not flat.shape[-1] and ord in (np.inf, -np.inf):
        raise ArgumentError(f"vector_norm: nothing has no largest element, got {shown(a)}")
    with np.errstate(all="ignore"):
        made = np.count_nonzero(flat, axis=-1) if ord == 0 else np.linalg.norm(flat, ord, -1)
    made = np.asarray(made, dt.real_of(dt.dtype(a.dtype)).np)
    return give(made.reshape([1 if i in axes else n for i, n in enumerate(a.shape)]) if keepdims else made)
