"""`tw.linalg`: NumPy's and the array API's linear algebra. Matrices are the last two axes of an array, leading axes are cases."""
from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.errors import ShapeError
from ...ops.linalg import factors as R
from ...ops.linalg import functions as L
from ...ops.linalg import matrices as X
from ...ops.linalg.factors import Geqrf, Qr
from ...ops.linalg.spectra import Eigh, Svd
from ...ops.linalg.systems import Lu
from ..promote import as_float, as_tracer, promote
from ..trace import Functions, Tracer, apply, built, user_place
from .complex import conj
from .contractions import matmul, outer, paired
from .elementwise import FUNCTIONS as ELEMENTWISE
from .reductions import axes_of, one_axis
from .shapes import reshape

public = FUNCTIONS = Functions()
RESULTS: dict[str, Any] = {name: namedtuple(f"{name.capitalize()}Result", fields) for name, fields in (
    ("eig", "eigenvalues eigenvectors"), ("eigh", "eigenvalues eigenvectors"), ("qr", "Q R"), ("slogdet", "sign logabsdet"),
    ("svd", "U S Vh"))}  # NumPy's names


def _floats(*operands: Any) -> list[Tracer]:
    return promote(*(as_float(x) for x in operands))


def _of_one(name: str, fn: Callable[..., Any], doc: str) -> Callable[[Any], Any]:
    def call(x: Any) -> Any:
        made = built(fn, as_float(x))
        return RESULTS[name](*made) if name in RESULTS else made

    call.__name__ = call.__qualname__ = name
    call.__code__ = call.__code__.replace(co_name=name)  # errors name what the user called
    call.__doc__ = doc
    return call


for _name, _fn in {"inv": L.inv, "det": L.det, "slogdet": L.slogdet, "matrix_exp": L.matrix_exp, "diagonal": X.diagonal,
                   "eig": L.eig, "eigvals": L.eigvals}.items():
    FUNCTIONS[_name] = _of_one(_name, _fn, _fn.__doc__ or "")
for _name, _op, _doc in (
    ("geqrf", Geqrf(), "(packed, tau): R above the diagonal, the vectors of the reflections below it, as LAPACK has them."),
    ("eigh", Eigh(), "(ascending eigenvalues, eigenvectors as columns) of symmetric matrices."),
    ("eigvalsh", Eigh(vectors=False), "Ascending eigenvalues of symmetric matrices."),
    ("svdvals", Svd(vectors=False), "Descending singular values."),
):
    FUNCTIONS[_name] = _of_one(_name, _op.__call__, _doc)


@public
def solve(a: Any, b: Any) -> Any:
    """x of a @ x = b, by LU with partial pivoting. b is a vector (rank 1) or matrices; a singular matrix is an error."""
    a, b = _floats(a, b)
    if b.ndim == 1:
        return reshape(built(L.solve, a, reshape(b, (-1, 1))), (*a.shape[:-2], b.shape[0]))
    return built(L.solve, a, b)


@public
def solve_triangular(a: Any, b: Any, *, lower: bool = True, transpose: bool = False, unit_diagonal: bool = False, left: bool = True) -> Any:
    """x of op(a) @ x = b (x @ op(a) = b with left=False) for a triangular a, of which the other triangle is not read."""
    a, b = _floats(a, b)
    if b.ndim == 1:
        return reshape(solve_triangular(a, reshape(b, (-1, 1)), lower=lower, transpose=transpose, unit_diagonal=unit_diagonal), (-1,))
    return built(X.solve_triangular if left else X.solve_from_right, a, b, upper=not lower, transpose=transpose, unit=unit_diagonal)


@public
def lu_factor(a: Any) -> tuple[Any, Any]:
    """(packed L and U, i32 pivots: step j exchanged rows j and pivots[j])."""
    lu, pivots, _ = apply(Lu(), as_float(a))
    return lu, pivots


@public
def lu(a: Any) -> tuple[Any, Any, Any]:
    """(P, L, U) with a = P @ L @ U."""
    x = as_float(a)
    packed, _, order = apply(Lu(), x)
    low, up = built(L.lu_unpacked, packed)
    return built(L.permutation, order, dtype=x.value.dtype), low, up


@public
def cholesky(a: Any, *, upper: bool = False) -> Any:
    """The lower L with L @ L.T = a (the upper U with U.T @ U = a). A matrix that is not positive definite is an error."""
    return built(L.cholesky, as_float(a), upper=upper)


@public
def cholesky_solve(b: Any, low: Any, *, upper: bool = False) -> Any:
    """x of (L @ L.T) @ x = b given L."""
    b, low = _floats(b, low)
    return built(L.cholesky_solve, b, low, upper=upper)


@public
def qr(a: Any, mode: str = "reduced") -> Any:
    """(Q, R) with a = Q @ R: "reduced" or "complete"; "r" gives R alone."""
    if mode not in ("reduced", "complete", "r"):
        raise ShapeError(f"qr: mode must be reduced, complete or r, got mode={mode!r} ({user_place()})")
    q, r = apply(Qr(complete=mode == "complete"), as_float(a))
    return r if mode == "r" else RESULTS["qr"](q, r)


@public
def householder_product(packed: Any, tau: Any) -> Any:
    """The first columns of the Q that packed reflections stand for."""
    return built(R.householder_product, *_floats(packed, tau))


@public
def ormqr(packed: Any, tau: Any, other: Any, *, left: bool = True, transpose: bool = False) -> Any:
    """Q @ other (other @ Q; with Q.T) for the Q that packed reflections stand for, without making it."""
    return built(R.reflected, *_floats(packed, tau, other), left=left, transpose=transpose)


@public
def svd(a: Any, full_matrices: bool = True) -> Any:
    """(U, descending singular values, V.T); U and V.T are square unless `full_matrices` is False."""
    s, u, vt = apply(Svd(), as_float(a))
    if full_matrices:
        u, vt = built(L.complete_basis, u), built(lambda v: X.mt(L.complete_basis(X.mt(v))), vt)
    return RESULTS["svd"](u, s, vt)


@public
def pinv(a: Any, rtol: float | None = None) -> Any:
    """The pseudo-inverse; singular values up to rtol times the largest count as zero."""
    return built(L.pinv, as_float(a), rtol=rtol)


@public
def matrix_rank(a: Any, *, rtol: float | None = None) -> Any:
    """The number of singular values that are not (relatively) zero."""
    return built(L.matrix_rank, as_float(a), rtol=rtol)


@public
def lstsq(a: Any, b: Any) -> Any:
    """(x, residuals, rank, singular values) of the x that makes |a @ x - b| least, for an a of full rank."""
    a, b = _floats(a, b)
    m, n = a.shape[-2:]
    vector = b.ndim == 1
    x = built(L.lstsq, a, reshape(b, (-1, 1)) if vector else b)
    x = reshape(x, (*a.shape[:-2], n)) if vector else x
    apart = abs(matmul(a, x) - b)
    left = (apart * apart).sum(axis=0 if vector else -2, keepdims=vector) if m > n else reshape(x, (-1,))[:0]
    return x, left, matrix_rank(a), FUNCTIONS["svdvals"](a)


@public
def matrix_power(a: Any, n: int) -> Any:
    """The n-th power of square matrices; negative ones are powers of the inverse."""
    if isinstance(n, bool) or not isinstance(n, (int, np.integer)):
        raise ShapeError(f"matrix_power: the exponent must be an int, got {n!r} ({user_place()})")
    return built(L.matrix_power, as_tracer(a), n=n)


@public
def vector_norm(x: Any, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Any:  # noqa: A002 - NumPy's name
    """(sum of |x| ** ord) ** (1 / ord) over axes (all)."""
    x = as_float(x)
    return built(L.vector_norm, x, order=float(ord), axes=axes_of("vector_norm", axis, x.ndim), keepdims=keepdims)


@public
def matrix_norm(x: Any, keepdims: bool = False, ord: Any = "fro") -> Any:  # noqa: A002
    """The norm of matrices: "fro", "nuc", 1, -1, 2, -2, inf, -inf."""
    return built(L.matrix_norm, as_float(x), order=ord, keepdims=keepdims)


@public
def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:  # noqa: A002
    """NumPy's: a vector norm along one axis (or of all elements), a matrix norm over two."""
    x = as_float(x)
    if axis is None and ord is not None and x.ndim == 2:
        axis = (-2, -1)
    if isinstance(axis, (tuple, list)) and len(axis) == 2 and ord is not None:
        pair = tuple(one_axis("norm", a, x.ndim) for a in axis)
        return built(L.matrix_norm, x, order=ord, axes=pair, keepdims=keepdims)
    return vector_norm(x, axis, keepdims, 2 if ord is None else ord)


@public
def cond(a: Any, p: Any = None) -> Any:
    """norm(a) * norm(inverse of a); by default of the 2-norm."""
    return built(L.cond, as_float(a), order=p)


@public
def multi_dot(arrays: Sequence[Any]) -> Any:
    """The product of several matrices, in the order that takes the fewest operations."""
    if len(arrays) < 2:
        raise ShapeError(f"multi_dot: needs two arrays or more, got {len(arrays)} ({user_place()})")
    return built(lambda *v: L.multi_dot(v), *promote(*arrays))


@public
def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """Sums of products over the last axes of a and the first of b, or over pairs of axes."""
    x, y = promote(a, b)
    pairs = (range(x.ndim - axes, x.ndim), range(axes)) if isinstance(axes, int) else [(s,) if isinstance(s, int) else s for s in axes]
    return paired("tensordot", x, y, pairs)


@public
def cross(a: Any, b: Any, axis: int = -1) -> Any:
    """The vector product along an axis of size 3."""
    x, y = promote(a, b)
    return built(L.cross, x, y, axis=axis)


@public
def kron(a: Any, b: Any) -> Any:
    """Blocks of b scaled by the elements of a."""
    return built(L.kron, *promote(a, b))


@public
def vecdot(a: Any, b: Any, axis: int = -1) -> Any:
    """The sum of products along one axis; the others broadcast."""
    x, y = promote(a, b)
    return ELEMENTWISE["mul"](conj(x), y).sum(axis=axis)


@public
def trace(a: Any) -> Any:
    """The sum of the main diagonal."""
    return FUNCTIONS["diagonal"](a).sum(axis=-1)


@public
def vander(x: Any, n: int | None = None, increasing: bool = False) -> Any:
    """Powers of x: column j is x ** j (from the highest down unless increasing)."""
    x = as_tracer(x)
    count = x.shape[-1] if n is None else n
    from .creation import ones_like
    from .shapes import stack

    powers = [ones_like(x)]
    for _ in range(count - 1):
        powers.append(powers[-1] * x)
    return stack(powers[:count] if increasing else powers[:count][::-1], axis=-1)


@public
def matrix_transpose(a: Any) -> Any:
    """The last two axes exchanged."""
    return built(X.mt, as_tracer(a))


FUNCTIONS |= {"matmul": matmul, "outer": outer}
