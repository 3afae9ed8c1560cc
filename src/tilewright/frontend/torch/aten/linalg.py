"""Linear algebra: systems, factorisations, spectra, norms. A singular matrix is an error of the run, so `info` outputs are zeros."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dtypes import DType
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.complex import rules as C
from ....ops.linalg import factors as R
from ....ops.linalg import functions as L
from ....ops.linalg import matrices as X
from ....ops.linalg import systems as S
from ....ops.linalg.factors import Geqrf, Qr
from ....ops.linalg.spectra import Eigh, Svd
from ....ops.linalg.systems import Lu, Solve
from .registry import Context, aten, axis_of, rows


def _zeros(c: Context, index: int) -> Value:
    """Output `index` of the node as zeros."""
    shape = c.symbols.shape(c.meta[index].shape)
    from ..tensors import dtype_of

    return c.expand(c.scalar(0, dtype_of(c.meta[index].dtype)), shape)


def _columns(a: Value, b: Value, out_rank: int) -> tuple[Value, bool]:
    """The right side as matrices; a batch of vectors [..., n] gets a column axis, as torch decides it."""
    vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    return (F.reshape(b, (*b.shape, 1)) if vector else b), vector


@aten("_linalg_solve_ex.default")
def solve_ex(c: Context, a: Value, b: Value, *, left: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    def build() -> tuple[Any, Any, Any]:
        side, vector = _columns(a, b, len(c.shape))
        if left:
            out: Value = Solve()(a, side)
        else:
            out = X.mt(Solve(transpose=True)(a, X.mt(side)))
        out = F.reshape(out, out.shape[:-1]) if vector else out
        if a.dtype.kind == "c":
            from ..convert import Missing

            return out, Missing("the LU factors of complex matrices are not supported"), Missing("pivots of complex matrices")
        lu, pivots, _ = Lu(check=True)(a)  # the factorisation that the solution has, too
        return out, lu, F.add(pivots, 1)

    out, lu, pivots = c.built(build)
    return out, lu, pivots, _zeros(c, 3)


def _determined(c: Context, a: Value, function: Callable[[Value], Any]) -> tuple[Value, ...]:
    """A function of a determinant, and the factors that torch keeps for its derivative: those of the transposed matrix where a is
    contiguous, which has the same determinant; pivots count from 1."""
    a = X.mt(a) if a.dtype.kind != "c" and c.args[0].is_contiguous() else a
    found = function(a)
    lu, pivots, _ = Lu()(a)
    return *(found if isinstance(found, tuple) else (found,)), lu, F.add(pivots, 1)


def _pivoting(pivot: bool) -> None:
    if not pivot:
        raise UnsupportedError("an LU factorisation without pivoting is not supported")


@aten("linalg_lu_factor_ex.default")
def lu_factor_ex(c: Context, a: Value, *, pivot: bool = True, check_errors: bool = False) -> tuple[Value, ...]:
    _pivoting(pivot)
    lu, pivots, _ = c.emit_all(Lu(), a)
    return lu, c.built(F.add, pivots, 1), _zeros(c, 2)


@aten("linalg_lu.default")
def lu(c: Context, a: Value, *, pivot: bool = True) -> tuple[Value, ...]:
    _pivoting(pivot)
    packed, _, order = c.emit_all(Lu(), a)
    low, up = c.built(L.lu_unpacked, packed)
    return c.built(L.permutation, order, a.dtype), low, up


@aten("lu_unpack.default")
def lu_unpack(c: Context, packed: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True) -> tuple[Value, ...]:
    low, up = c.built(L.lu_unpacked, packed) if unpack_data else (_zeros(c, 1), _zeros(c, 2))
    if not unpack_pivots:
        return _zeros(c, 0), low, up
    order = c.built(lambda: L.order_of_pivots(F.sub(pivots, 1), packed.shape[-2]))
    return c.built(L.permutation, order, packed.dtype), low, up


@aten("linalg_lu_solve.default")
def lu_solve(c: Context, packed: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False) -> Any:
    def build() -> Value:
        order = L.order_of_pivots(F.sub(pivots, 1), packed.shape[-1])
        signed = adjoint and packed.dtype.kind == "c"  # the solution for the transposed matrix, between two conjugations
        side = C.conj(b) if signed else b
        out = S.lu_solve(packed, order, side, transpose=adjoint) if left else X.mt(
            S.lu_solve(packed, order, X.mt(side), transpose=not adjoint))
        return C.conj(out) if signed else out

    return c.built(build)


@aten("linalg_qr.default")
def qr(c: Context, a: Value, mode: str = "reduced") -> tuple[Value, ...]:
    q, r = c.emit_all(Qr(complete=mode == "complete"), a)
    return (_zeros(c, 0) if mode == "r" else q), r


def _symmetric(a: Value, upper: bool) -> Value:
    """The symmetric matrix that one triangle says; derivatives pass as if all of a had been read, as torch's do."""
    half = X.triu(a) if upper else X.tril(a)
    other = X.mt(X.triu(a, 1) if upper else X.tril(a, -1))
    return F.add(a, F.one("stop_gradient", F.sub(F.add(half, other), a)))


@aten("_linalg_eigh.default")
def eigh(c: Context, a: Value, UPLO: str = "L", compute_v: bool = True) -> tuple[Value, ...]:
    x = c.built(_symmetric, a, UPLO.upper() == "U")
    if not compute_v:
        return c.emit(Eigh(vectors=False), x), _zeros(c, 1)
    return c.emit_all(Eigh(), x)


@aten("_linalg_svd.default")
def svd(c: Context, a: Value, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None) -> tuple[Value, ...]:
    if not compute_uv:
        return _zeros(c, 0), c.emit(Svd(vectors=False), a), _zeros(c, 2)
    s, u, vt = c.emit_all(Svd(), a)
    if full_matrices:
        u, vt = c.built(L.complete_basis, u), c.built(lambda: X.mt(L.complete_basis(X.mt(vt))))
    return u, s, vt


def _number(x: Any, dtype: DType) -> float | Value | None:
    """A Python number, where x is one or a constant tensor of one element, or a tensor."""
    if x is None or isinstance(x, (int, float)):
        return None if x is None else float(x)
    assert isinstance(x, Value)
    if isinstance(x.op, O.Constant) and x.op.data.array.size == 1:
        return float(x.op.data.array.reshape(-1)[0])
    return F.cast(x, dtype)


@aten("linalg_pinv.atol_rtol_tensor", "linalg_pinv.atol_rtol_float")
def pinv(c: Context, a: Value, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Any:
    x = c.built(_symmetric, a, False) if hermitian else a
    return c.built(L.pinv, x, _number(rtol, a.dtype), _number(atol, a.dtype) or 0.0)


@aten("linalg_lstsq.default")
def lstsq(c: Context, a: Value, b: Value, rcond: float | None = None, *, driver: str | None = None) -> tuple[Value, ...]:
    side, vector = _columns(a, b, len(c.shape))
    out = c.built(L.lstsq, a, side)
    m, n = a.shape[-2:]

    def residuals() -> Value:
        return F.sum_(F.square(F.sub(F.matmul(a, out), side)), (len(side.shape) - 2,))

    wanted = c.symbols.shape(c.meta[1].shape)
    rest = c.reshape(c.built(residuals), wanted) if m > n and 0 not in wanted else _zeros(c, 1)
    rank = c.expand(c.scalar(min(m, n), dt.i64), c.symbols.shape(c.meta[2].shape))
    return (c.reshape(out, out.shape[:-1]) if vector else out), rest, rank, _zeros(c, 3)


@aten("linalg_cross.default")
def cross(c: Context, a: Value, b: Value, *, dim: int = -1) -> Any:
    shape = np.broadcast_shapes(a.shape, b.shape)
    return c.built(lambda: L.cross(F.expand(a, shape), F.expand(b, shape), axis_of(dim, len(shape))))


@aten("_linalg_check_errors.default")
def check_errors(c: Context, info: Value, api_name: str, *, is_matrix: bool) -> Any:
    """The run reports errors itself."""
    return ()


@aten("linalg_matrix_norm.default", "linalg_matrix_norm.str_ord")
def matrix_norm(c: Context, x: Value, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, *, dtype: Any = None) -> Any:  # noqa: A002
    order = ord if isinstance(ord, str) else float(ord)
    if not isinstance(order, str) and not math.isinf(order):
        order = int(order)
    if x.dtype.kind == "c":
        if order in ("nuc", 2, -2):
            raise UnsupportedError(f"the norm {order!r} of complex matrices")
        x = c.emit(O.Abs(), x)
    return c.built(L.matrix_norm, c.cast(x, c.dtype), order, tuple(dim), keepdims=keepdim)


rows({
    "_linalg_det.default": lambda c, a: c.built(_determined, c, a, L.det),
    "_linalg_slogdet.default": lambda c, a: c.built(_determined, c, a, L.slogdet),
    "linalg_inv_ex.default": lambda c, a, *, check_errors=False: (c.built(L.inv, a), _zeros(c, 1)),
    "linalg_cholesky_ex.default": lambda c, a, *, upper=False, check_errors=False: (c.built(L.cholesky, a, upper=upper), _zeros(c, 1)),
    "cholesky.default": lambda c, a, upper=False: c.built(L.cholesky, a, upper=upper),
    "cholesky_solve.default _cholesky_solve_helper.default": lambda c, b, low, upper=False: c.built(L.cholesky_solve, b, low, upper=upper),
    "cholesky_inverse.default":
        lambda c, low, upper=False: c.built(lambda: L.cholesky_solve(F.expand(X.eye(low, low.shape[-1]), low.shape), low, upper=upper)),
    "geqrf.default": lambda c, a: c.emit_all(Geqrf(), a),
    "linalg_householder_product.default orgqr.default": lambda c, v, tau: c.built(R.householder_product, v, tau),
    "ormqr.default":
        lambda c, v, tau, other, left=True, transpose=False: c.built(R.reflected, v, tau, other, left=left, transpose=transpose),
    "linalg_eigvals.default _linalg_eigvals.default": lambda c, a: c.built(L.eigvals, a),
    "linalg_pinv.default": lambda c, a, rcond, hermitian=False: pinv(c, a, rtol=rcond, hermitian=hermitian),
    "linalg_matrix_exp.default matrix_exp.default": lambda c, a: c.built(L.matrix_exp, a),
    "linalg_solve_triangular.default": lambda c, a, b, *, upper, left=True, unitriangular=False:
        c.built(X.solve_triangular if left else X.solve_from_right, a, c.cast(b, a.dtype), upper=upper, unit=unitriangular),
    "triangular_solve.default": lambda c, b, a, upper=True, transpose=False, unitriangular=False:
        (c.built(X.solve_triangular, a, b, upper=upper, transpose=transpose, unit=unitriangular), a),
    "linalg_eig.default": lambda c, a: c.built(L.eig, a),
})
