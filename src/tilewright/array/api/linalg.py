"""Linear algebra of Arrays: the array API's extension. Factorisations run LAPACK through NumPy over the Array's memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError, ExecutionError
from ...transform.trace import Functions
from ..arrays import Array, shown
from . import contractions, shapes
from .base import Header, as_float, axes_of, give, header, numbers

public = FUNCTIONS = Functions({n: contractions.FUNCTIONS[n] for n in ("matmul", "tensordot", "vecdot", "outer", "cross", "trace")})
FUNCTIONS["matrix_transpose"] = shapes.FUNCTIONS["matrix_transpose"]


class EighResult(NamedTuple):
    """Eigenvalues in ascending order and eigenvectors in columns."""

    eigenvalues: Array
    eigenvectors: Array


class EigResult(NamedTuple):
    """Eigenvalues and eigenvectors in columns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """An orthonormal and an upper triangular factor."""

    Q: Array
    R: Array


class SVDResult(NamedTuple):
    """The singular value decomposition U S Vh."""

    U: Array
    S: Array
    Vh: Array


class SlogdetResult(NamedTuple):
    """The sign of a determinant and the logarithm of its magnitude."""

    sign: Array
    logabsdet: Array


def _matrix(x: Any, what: str, square: bool = False) -> Header:
    a = as_float(header(x, what))
    if a.ndim < 2 or (square and a.shape[-1] != a.shape[-2]):
        raise ArgumentError(f"{what}: needs {'square ' if square else ''}matrices in the last two axes, got {shown(a)}")
    if dt.dtype(a.dtype) in dt.SMALL:
        a = a.astype(np.float32)
    return a


def _run(what: str, fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        with np.errstate(all="ignore"):
            return fn(*args, **options)
    except np.linalg.LinAlgError as e:
        raise ExecutionError(f"{what}: {e}") from None


@public
def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """The Cholesky factor of positive definite matrices."""
    return give(_run("cholesky", np.linalg.cholesky, _matrix(x, "cholesky", True), upper=upper))


@public
def det(x: Any, /) -> Array:
    """Determinants."""
    return give(_run("det", np.linalg.det, _matrix(x, "det", True)))


@public
def diagonal(x: Any, /, *, offset: int = 0) -> Array:
    """The diagonals of the last two axes: a view."""
    a = header(x, "diagonal")
    if a.ndim < 2:
        raise ArgumentError(f"diagonal: needs two axes or more, got {shown(a)}")
    return give(a.diagonal(offset, -2, -1))


@public
def eigh(x: Any, /) -> EighResult:
    """Eigenvalues and eigenvectors of symmetric or Hermitian matrices."""
    return EighResult(*map(give, _run("eigh", np.linalg.eigh, _matrix(x, "eigh", True))))


@public
def eigvalsh(x: Any, /) -> Array:
    """Eigenvalues of symmetric or Hermitian matrices."""
    return give(_run("eigvalsh", np.linalg.eigvalsh, _matrix(x, "eigvalsh", True)))


@public
def eig(x: Any, /) -> EigResult:
    """Eigenvalues and eigenvectors of square matrices, complex always."""
    a = _matrix(x, "eig", True)
    wanted = dt.complex_of(dt.dtype(a.dtype)).np
    values, vectors = _run("eig", np.linalg.eig, a)
    return EigResult(give(values.astype(wanted, copy=False)), give(vectors.astype(wanted, copy=False)))


@public
def eigvals(x: Any, /) -> Array:
    """Eigenvalues of square matrices, complex always."""
    a = _matrix(x, "eigvals", True)
    return give(_run("eigvals", np.linalg.eigvals, a).astype(dt.complex_of(dt.dtype(a.dtype)).np, copy=False))


@public
def inv(x: Any, /) -> Array:
    """Inverses of square matrices."""
    return give(_run("inv", np.linalg.inv, _matrix(x, "inv", True)))


@public
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:  # noqa: A002
    """A norm of the matrices in the last two axes."""
    return give(np.asarray(_run("matrix_norm", np.linalg.norm, _matrix(x, "matrix_norm"), ord, (-2, -1), keepdims)))


@public
def matrix_power(x: Any, n: int, /) -> Array:
    """A square matrix times itself, n times; negative powers are those of the inverse."""
    return give(_run("matrix_power", np.linalg.matrix_power, _matrix(x, "matrix_power", True), n))


@public
def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """How many singular values are above a tolerance."""
    a = _matrix(x, "matrix_rank")
    s = _run("matrix_rank", np.linalg.svd, a, compute_uv=False)
    if not s.shape[-1]:
        return give(np.zeros(a.shape[:-2], np.int64))
    bound = max(a.shape[-2:]) * np.finfo(s.dtype).eps if rtol is None else header(rtol)
    return give(np.count_nonzero(s > s.max(axis=-1, keepdims=True) * np.asarray(bound)[..., None], axis=-1))


@public
def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Pseudo-inverses."""
    a = _matrix(x, "pinv")
    bound = max(a.shape[-2:]) * np.finfo(a.dtype).eps if rtol is None else header(rtol)
    return give(_run("pinv", np.linalg.pinv, a, rcond=bound).astype(a.dtype, copy=False))


@public
def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal and triangular factors."""
    if mode not in ("reduced", "complete"):
        raise ArgumentError(f"qr: mode is 'reduced' or 'complete', got {mode!r}")
    return QRResult(*map(give, _run("qr", np.linalg.qr, _matrix(x, "qr"), mode)))


@public
def slogdet(x: Any, /) -> SlogdetResult:
    """The sign and the logarithm of the magnitude of determinants."""
    return SlogdetResult(*map(give, _run("slogdet", np.linalg.slogdet, _matrix(x, "slogdet", True))))


@public
def solve(x1: Any, x2: Any, /) -> Array:
    """The solution of x1 @ y = x2; an x2 of one axis is a vector."""
    (a, b), _ = numbers(_matrix(x1, "solve", True), as_float(header(x2, "solve")), what="solve")
    if b.shape[-1 if b.ndim == 1 else -2] != a.shape[-1]:
        raise ArgumentError(f"solve: the sizes differ, got {shown(a)} and {shown(b)}")
    if b.ndim == 1:
        return give(_run("solve", np.linalg.solve, a, b[:, None])[..., 0])
    return give(_run("solve", np.linalg.solve, a, b))


@public
def lstsq(x1: Any, x2: Any, /) -> tuple[Array, ...]:
    """The least squares solution, its residuals, the rank and the singular values."""
    (a, b), _ = numbers(_matrix(x1, "lstsq"), as_float(header(x2, "lstsq")), what="lstsq")
    return tuple(map(give, _run("lstsq", np.linalg.lstsq, a, b)))


@public
def svd(x: Any, /, *, full_matrices: bool = True) -> SVDResult:
    """The singular value decomposition."""
    return SVDResult(*map(give, _run("svd", np.linalg.svd, _matrix(x, "svd"), full_matrices)))


@public
def svdvals(x: Any, /) -> Array:
    """Singular values, in descending order."""
    return give(_run("svdvals", np.linalg.svd, _matrix(x, "svdvals"), compute_uv=False))


@public
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Array:  # noqa: A002
    """A norm of vectors along axes."""
    a = as_float(header(x, "vector_norm"))
    axes = axes_of(axis, a.ndim, "vector_norm")
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    flat = a.transpose(kept + axes).reshape(*(a.shape[i] for i in kept), -1)
    if not flat.shape[-1] and ord in (np.inf, -np.inf):
        raise ArgumentError(f"vector_norm: nothing has no largest element, got {shown(a)}")
    if ord == 0:
        made = np.count_nonzero(flat, axis=-1).astype(dt.real_of(dt.dtype(a.dtype)).np)
    else:
        made = _run("vector_norm", np.linalg.norm, flat, ord, -1)
    made = np.asarray(made, dt.real_of(dt.dtype(a.dtype)).np)
    return give(made.reshape([1 if i in axes else n for i, n in enumerate(a.shape)]) if keepdims else made)


@public
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Array:  # noqa: A002
    """NumPy's norm of vectors and matrices."""
    return give(np.asarray(_run("norm", np.linalg.norm, as_float(header(x, "norm")), ord, axis, keepdims)))


@public
def multi_dot(arrays: Any) -> Array:
    """A chain of products in the best order."""
    found, _ = numbers(*arrays, what="multi_dot")
    return give(np.linalg.multi_dot(found))
