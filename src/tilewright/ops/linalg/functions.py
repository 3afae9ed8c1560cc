"""Linear algebra made of the factorisations: inverse, determinant, least squares, norms, powers, exponential. Functions of graph values,
which traced code and the importers share; derivatives follow from the ops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.errors import ShapeError, require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Traits, Values, register, single
from ..complex.parts import join
from ..complex.rules import conj
from ..families import Composite, f32, f64, i32
from . import matrices as X
from .factors import Cholesky, Qr
from .spectra import Eig, Svd
from .systems import SQUARE, Lu, Solve, dominant, unit_lower


@register
class Det(Composite):
    """The determinant, by LU. The derivative is that of the adjugate, also where one pivot is 0."""

    cases = True
    traits = Traits(composite=True)
    samples = [S(f32(4, 4)), S(f64(3, 3)), S(f64(2, 5, 5), low=-1, high=1), S(f32(1, 1)), S(f32(0, 0)), S(f32(2, 0, 0)), S(f32(0, 2, 2))]
    errors = SQUARE

    def infer(self, a: TensorType) -> TensorType:
        X.require_matrix(a, square=True)
        return a.with_shape(a.shape[:-2])

    def ref(self, a: Any) -> Any:
        return np.asarray(np.linalg.det(a.astype(np.float64)), a.dtype)

    def flops(self, a: TensorType) -> Dim:
        n, _ = X.require_matrix(a)
        return product(a.shape[:-2]) * (2 * n**3 // 3)

    @staticmethod
    def factors(a: Value) -> tuple[Value, Value, Value]:
        """(packed LU, order of rows, sign of that order)."""
        lu, pivots, order = Lu()(a)
        exchanged = F.apply("not_equal", pivots, F.iota(a.node.graph, (a.shape[-1],), 0, dt.i32))
        odd = F.apply("bitwise_and", F.sum_(F.cast(exchanged, dt.i32), (len(pivots.shape) - 1,)), 1)
        return lu, order, F.sub(1.0, F.mul(F.cast(odd, a.dtype), 2.0))

    def decompose(self, a: Value) -> Value:
        lu, _, sign = self.factors(a)
        d = X.diagonal(lu)
        return F.mul(sign, F.one("prod", d, axes=(len(d.shape) - 1,)))

    def _adjugate(self, a: Value) -> Value:
        """det(a) * inverse(a).T; a pivot of 0 is nudged, which leaves the product finite."""
        lu, order, sign = self.factors(a)
        n = a.shape[-1]
        small = float(np.finfo(a.dtype.np).eps)
        bad = F.logical_and(X.on_diagonal(a.node.graph, n, n), F.equal(lu, 0))
        lu = F.where(bad, small, lu)
        d = X.diagonal(lu)
        total = F.mul(sign, F.one("prod", d, axes=(len(d.shape) - 1,)))
        inner = X.solve_triangular(lu, F.expand(X.eye(a, n), a.shape), upper=True, transpose=True)
        inner = X.permute_rows(X.solve_triangular(lu, inner, transpose=True, unit=True), order, inverse=True)
        return F.mul(inner, F.reshape(total, (*total.shape, 1, 1)))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return (F.mul(self._adjugate(inputs[0]), F.reshape(g, (*g.shape, 1, 1))),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t = tangents[0]
        assert t is not None
        rank = len(t.shape)
        return (F.sum_(F.mul(self._adjugate(inputs[0]), t), (rank - 2, rank - 1)),)


@register
class Pinv(Composite):
    """The pseudo-inverse, by singular values; those not above max(atol, rtol * the largest) count as 0. The derivative is that at constant
    rank and needs no singular vectors."""

    rtol: float = 1e-6
    atol: float = 0.0
    cases = True
    traits = Traits(composite=True)
    samples = [S(f32(3, 3), fit=dominant), S(f64(5, 3)), S(f64(2, 2, 4)), S(f32(3, 1)), S(f32(0, 3)), S(f32(2, 3, 0)), S(f32(0, 2, 2))]
    errors = [E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]

    def infer(self, a: TensorType) -> TensorType:
        m, n = X.require_matrix(a)
        return a.with_shape((*a.shape[:-2], n, m))

    def ref(self, a: Any) -> Any:
        if a.size == 0:
            return np.zeros((*a.shape[:-2], a.shape[-1], a.shape[-2]), a.dtype)
        u, s, vt = np.linalg.svd(a, full_matrices=False)
        kept = s > np.maximum(self.atol, self.rtol * s.max(-1, keepdims=True))
        moved = np.where(kept, 1 / np.where(kept, s, 1), 0)
        return (np.swapaxes(vt, -1, -2) @ (moved[..., None] * np.swapaxes(u, -1, -2))).astype(a.dtype)

    def flops(self, a: TensorType) -> Dim:
        return Svd().flops(a)

    def decompose(self, a: Value) -> Value:
        if 0 in a.shape[-2:]:
            return F.full(a.node.graph, (*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
        s, u, vt = Svd()(a)
        limit = F.maximum(F.mul(F.max_(s, (len(s.shape) - 1,), keepdims=True), self.rtol), self.atol)
        kept = F.greater(s, limit)
        moved = F.where(kept, F.one("reciprocal", F.where(kept, s, 1)), 0)
        return F.matmul(vt, X.column_scaled(u, moved), transpose_a=True, transpose_b=True)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        a, p = inputs[0], output
        gt, pt = X.mt(g), X.mt(p)
        if a.shape[-2] <= a.shape[-1]:
            k = F.matmul(gt, p)
            kp = F.matmul(k, pt)
            out = F.sub(kp, F.add(X.mt(F.matmul(p, k)), F.matmul(F.matmul(a, p), kp)))
            return (F.add(out, F.matmul(F.matmul(pt, p), F.sub(gt, F.matmul(k, a)))),)
        k = F.matmul(p, gt)
        pk = F.matmul(pt, k)
        out = F.sub(F.add(pk, F.matmul(F.sub(gt, F.matmul(a, k)), F.matmul(p, pt))), X.mt(F.matmul(k, p)))
        return (F.sub(out, F.matmul(F.matmul(pk, p), a)),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        a, p, t = inputs[0], outputs[0], tangents[0]
        assert t is not None
        tt, pt = X.mt(t), X.mt(p)
        rows = F.matmul(F.matmul(p, pt), F.sub(tt, F.matmul(F.matmul(tt, a), p)))
        columns = F.matmul(F.sub(tt, F.matmul(p, F.matmul(a, tt))), F.matmul(pt, p))
        return (F.sub(F.add(rows, columns), F.matmul(F.matmul(p, t), p)),)


SQUARINGS = 24  # matrix_exp squares this often at most: norms up to 2 ** 24


def solve(a: Value, b: Value) -> Value:
    """x of a @ x = b."""
    return F.emit(Solve(), a, b)


def inv(a: Value) -> Value:
    """The inverse; a singular matrix is an error."""
    require(len(a.shape) >= 2 and a.shape[-1] == a.shape[-2], "needs square matrices", x=a.type)
    return F.emit(Solve(), a, F.expand(X.eye(a, a.shape[-1]), a.shape))


def det(a: Value) -> Value:
    """The determinant."""
    return F.emit(Det(), a)


def slogdet(a: Value) -> tuple[Value, Value]:
    """The determinant's sign and the logarithm of its magnitude."""
    X.require_matrix(a.type, square=True)
    lu, _, sign = Det.factors(a)
    d = X.diagonal(lu)
    axis = (len(d.shape) - 1,)
    return F.mul(sign, F.one("prod", F.one("sign", d), axes=axis)), F.sum_(F.log(F.abs_(d)), axis)


def cholesky_solve(b: Value, low: Value, *, upper: bool = False) -> Value:
    """x of (L @ L.T) @ x = b given the factor L (or U of U.T @ U); complex factors are conjugated where they are transposed."""
    moved = conj(low) if low.dtype.kind == "c" else low
    inner = X.solve_triangular(moved if upper else low, b, upper=upper, transpose=upper)
    return X.solve_triangular(low if upper else moved, inner, upper=upper, transpose=not upper)


def lu_unpacked(lu: Value) -> tuple[Value, Value]:
    """L and U of packed factors."""
    k = min(lu.shape[-2:])
    return unit_lower(lu, k), X.triu(X.top(lu, k))


def permutation(order: Value, dtype: Any) -> Value:
    """The matrix P with a = P @ L @ U from the order of rows: column i has its one in row order[i]."""
    n = order.shape[-1]
    rows = F.iota(order.node.graph, (n, 1), 0, order.dtype)
    return F.cast(F.equal(F.reshape(order, (*order.shape[:-1], 1, n)), rows), dtype)


def order_of_pivots(pivots: Value, m: int) -> Value:
    """The order of m rows after the exchanges (pivots count from 0): permutations that are joined in pairs."""
    lead, k, graph = pivots.shape[:-1], pivots.shape[-1], pivots.node.graph
    assert isinstance(k, int)
    axis, places = len(lead), F.iota(graph, (m,), 0, pivots.dtype)
    if k == 0:
        return F.expand(places, (*lead, m))
    count = 1 << (k - 1).bit_length()
    steps = F.iota(graph, (count, 1), 0, pivots.dtype)
    if count > k:  # steps that exchange nothing
        pivots = F.concat([pivots, F.expand(F.iota(graph, (count - k,), 0, pivots.dtype, start=k), (*lead, count - k))], axis)
    there = F.reshape(pivots, (*lead, count, 1))
    order = F.where(F.equal(places, steps), there, F.where(F.equal(places, there), steps, places))
    while count > 1:
        count //= 2
        pairs = F.reshape(order, (*lead, count, 2, m))
        first, second = (F.reshape(F.slice_(pairs, axis + 1, i, 1), (*lead, count, m)) for i in (0, 1))
        order = F.one("gather_along_axis", first, second, axis=axis + 1)
    return F.reshape(order, (*lead, m))


def lstsq(a: Value, b: Value) -> Value:
    """The x that makes |a @ x - b| least, and of several the shortest, for an a of full rank."""
    m, n = X.require_matrix(a.type)
    if m >= n:
        q, r = Qr()(a)
        return X.solve_triangular(r, F.matmul(q, b, transpose_a=True), upper=True)
    q, r = Qr()(X.mt(a))
    return F.matmul(q, X.solve_triangular(r, b, upper=True, transpose=True))


def pinv(a: Value, rtol: float | Value | None = None, atol: float | Value = 0.0) -> Value:
    """The pseudo-inverse; singular values below max(atol, rtol * the largest) count as zero."""
    m, n = X.require_matrix(a.type)
    if (isinstance(rtol, Value) or isinstance(atol, Value)) and 0 not in (m, n):
        s = F.one("stop_gradient", Svd(vectors=False)(a))
        limits = [F.reshape(v, (*v.shape, 1)) if isinstance(v, Value) else v for v in (rtol or 0.0, atol)]
        limit = F.maximum(F.mul(F.max_(s, (len(s.shape) - 1,), keepdims=True), limits[0]), limits[1])
        return _pinv_above(a, limit)
    if rtol is None or isinstance(rtol, Value) or isinstance(atol, Value):
        rtol, atol = (0.0, atol) if isinstance(atol, float) and atol else (max(m, n) * float(np.finfo(a.dtype.np).eps), 0.0)
    return F.one("pinv", a, rtol=float(rtol), atol=float(atol))


def _pinv_above(a: Value, limit: Value) -> Value:
    """The pseudo-inverse with a limit that is computed."""
    s, u, vt = Svd()(a)
    kept = F.greater(s, limit)
    moved = F.where(kept, F.one("reciprocal", F.where(kept, s, 1)), 0)
    return F.matmul(vt, X.column_scaled(u, moved), transpose_a=True, transpose_b=True)


def matrix_rank(a: Value, rtol: float | None = None, atol: float = 0.0) -> Value:
    """How many singular values are not (relatively) zero, i64."""
    m, n = X.require_matrix(a.type)
    if rtol is None:
        rtol = 0.0 if atol else max(m, n) * float(np.finfo(a.dtype.np).eps)
    s = Svd(vectors=False)(a)
    axis = (len(s.shape) - 1,)
    limit = F.maximum(F.mul(F.max_(s, axis, keepdims=True), rtol), atol)
    return F.sum_(F.cast(F.greater(s, limit), dt.i64), axis)


def complete_basis(q: Value) -> Value:
    """Orthonormal columns [m, k] completed to [m, m]; the new ones have no derivative, they are any basis of the rest."""
    m, k = q.shape[-2:]
    if m == k:
        return q
    if k == 0:
        return F.expand(X.eye(q, m), (*q.shape[:-1], m))
    whole, _ = Qr(complete=True)(F.one("stop_gradient", q))
    return F.concat([q, F.one("stop_gradient", X.right(whole, k))], len(q.shape) - 1)


def matrix_power(a: Value, n: int) -> Value:
    """a @ a @ …; a negative power is one of the inverse."""
    X.require_matrix(a.type, square=True)
    if n < 0:
        return matrix_power(inv(a), -n)
    if n == 0:
        return F.expand(X.eye(a, a.shape[-1]), a.shape)
    out: Value | None = None
    power = a
    while n:
        if n & 1:
            out = power if out is None else F.matmul(out, power)
        n >>= 1
        power = F.matmul(power, power) if n else power
    assert out is not None
    return out


def vector_norm(x: Value, order: float = 2.0, axes: Sequence[int] | None = None, *, keepdims: bool = False) -> Value:
    """(sum of |x| ** order) ** (1 / order) over axes; order 0 counts, infinite ones are the largest and smallest magnitude. At 0 the
    derivative of the 2-norm is 0."""
    over = tuple(range(len(x.shape))) if axes is None else tuple(axes)
    if x.dtype is not dt.compute_dtype(x.dtype):  # rounded once: squares of f16 are zero below 2e-4 and infinite above 255
        return F.cast(vector_norm(F.cast(x, dt.compute_dtype(x.dtype)), order, over, keepdims=keepdims), x.dtype)
    if order == 0:
        return F.sum_(F.cast(F.apply("not_equal", x, 0), x.dtype), over, keepdims=keepdims)
    size = F.abs_(x)
    if not over:
        return size
    if math.isinf(order):
        return F.one("max" if order > 0 else "min", size, axes=over, keepdims=keepdims)
    if order == 1:
        return F.sum_(size, over, keepdims=keepdims)
    total = F.sum_(F.square(x) if order == 2 else F.pow_(size, order), over, keepdims=keepdims)
    none = F.equal(total, 0)
    safe = F.where(none, 1, total)
    return F.where(none, 0 if order > 0 else math.inf, F.sqrt(safe) if order == 2 else F.pow_(safe, 1.0 / order))


def matrix_norm(x: Value, order: float | str = "fro", axes: tuple[int, int] = (-2, -1), *, keepdims: bool = False) -> Value:
    """The Frobenius ("fro"), nuclear ("nuc"), 1-, 2- or infinity-norm of matrices; negative orders are the smallest instead."""
    rank = len(x.shape)
    rows, columns = axes[0] % rank, axes[1] % rank
    if order == "fro":
        return vector_norm(x, 2.0, sorted((rows, columns)), keepdims=keepdims)
    lead = [i for i in range(rank) if i not in (rows, columns)]
    moved = F.transpose(x, (*lead, rows, columns))
    n = len(lead)
    if order in ("nuc", 2, -2):
        s = Svd(vectors=False)(moved)
        out = F.sum_(s, (n,)) if order == "nuc" else F.one("max" if order == 2 else "min", s, axes=(n,))
    elif order in (1, -1, math.inf, -math.inf):
        assert isinstance(order, (int, float))
        sums = F.sum_(F.abs_(moved), (n if abs(order) == 1 else n + 1,))
        out = F.one("max" if order > 0 else "min", sums, axes=(n,))
    else:
        raise ShapeError(f"matrix_norm: order must be fro, nuc, 1, -1, 2, -2, inf or -inf, got order={order}")
    return F.reshape(out, tuple(1 if i in (rows, columns) else d for i, d in enumerate(x.shape))) if keepdims else out


def cond(a: Value, order: float | str | None = None) -> Value:
    """How far from singular: norm(a) * norm(inverse of a)."""
    if order is None or order in (2, -2):
        s = Svd(vectors=False)(a)
        axis = (len(s.shape) - 1,)
        most, least = F.max_(s, axis), F.one("min", s, axes=axis)
        return F.div(least, most) if order == -2 else F.div(most, least)
    return F.mul(matrix_norm(a, order), matrix_norm(inv(a), order))


def matrix_exp(a: Value, terms: int = 16) -> Value:
    """exp(a) by scaling to a norm below 1/2, a Taylor polynomial in powers of the fourth power, and squaring, as often as the largest norm
    of a batch asks for."""
    n, _ = X.require_matrix(a.type, square=True)
    if n == 0 or 0 in a.shape:
        return a
    if a.dtype is dt.f32:  # squaring doubles relative errors
        return F.cast(matrix_exp(F.cast(a, dt.f64), 12), dt.f32)
    size = F.apply("stop_gradient", matrix_norm(a, 1, keepdims=True))
    times = F.maximum(F.one("ceil", F.add(F.div(F.log(F.maximum(size, 1e-30)), math.log(2.0)), 1.0)), 0)
    y = F.mul(a, F.exp(F.mul(times, -math.log(2.0))))
    square = F.matmul(y, y)
    powers = [X.eye(a, n), y, square, F.matmul(square, y)]
    fourth = F.matmul(square, square)
    out = F.mul(fourth, 1 / math.factorial(terms))
    for k in range(terms - 4, -1, -4):
        for i, power in enumerate(powers):
            out = F.add(out, F.mul(power, 1 / math.factorial(k + i)))
        out = F.matmul(out, fourth) if k else out
    return _squared(out, times)


def _squared(x: Value, times: Value) -> Value:
    """Every matrix squared as often as its number says."""
    from ..control.flow import While

    def body(graph: Any, v: Sequence[Value]) -> tuple[Value, Value]:
        return F.where(F.less(v[1], v[2]), F.matmul(v[0], v[0]), v[0]), F.add(v[1], 1.0)

    most = F.one("max", times, axes=tuple(range(len(times.shape))))
    count = F.full(x.node.graph, (), 0.0, x.dtype)
    carried = x, count, times, most
    types = [v.type for v in carried]
    loop = While(test=single(lambda graph, v: F.less(v[1], v[3]), *types), body=single(body, *types), carries=2, max_iterations=SQUARINGS)
    out: Value = loop(*carried)[0]
    return out


def multi_dot(values: Sequence[Value]) -> Value:
    """The product of several matrices (the first and last may be vectors), in the order that takes the fewest operations."""
    first, last = len(values[0].shape) == 1, len(values[-1].shape) == 1
    chain = list(values)
    if first:
        chain[0] = F.reshape(chain[0], (1, *chain[0].shape))
    if last:
        chain[-1] = F.reshape(chain[-1], (*chain[-1].shape, 1))
    out = _chain(chain)
    shape = (() if first else out.shape[:1]) + (() if last else out.shape[1:])
    return F.reshape(out, shape)


def _chain(values: Sequence[Value]) -> Value:
    dims = [values[0].shape[0], *(v.shape[1] for v in values)]
    best: dict[tuple[int, int], tuple[int, int]] = {(i, i): (0, i) for i in range(len(values))}
    for length in range(1, len(values)):
        for i in range(len(values) - length):
            j = i + length
            best[i, j] = min((best[i, k][0] + best[k + 1, j][0] + dims[i] * dims[k + 1] * dims[j + 1], k) for k in range(i, j))

    def build(i: int, j: int) -> Value:
        k = best[i, j][1]
        return values[i] if i == j else F.matmul(build(i, k), build(k + 1, j))

    return build(0, len(values) - 1)


def cross(a: Value, b: Value, axis: int = -1) -> Value:
    """The vector product along an axis of size 3."""
    rank = len(a.shape)
    at = axis % rank
    if a.shape[at] != 3 or b.shape[axis % len(b.shape)] != 3:
        raise ShapeError(f"cross: needs vectors of 3 elements along the axis, got {a.type} and {b.type}")

    def product(i: int, k: int) -> Value:
        return F.mul(F.slice_(a, at, i, 1), F.slice_(b, axis % len(b.shape), k, 1))

    return F.concat([F.sub(product(i, k), product(k, i)) for i, k in ((1, 2), (2, 0), (0, 1))], at)


def kron(a: Value, b: Value) -> Value:
    """All products of elements, blocks of b scaled by the elements of a."""
    rank = max(len(a.shape), len(b.shape))
    a, b = (F.reshape(v, (*(1,) * (rank - len(v.shape)), *v.shape)) for v in (a, b))
    wide = F.mul(F.reshape(a, tuple(d for n in a.shape for d in (n, 1))), F.reshape(b, tuple(d for n in b.shape for d in (1, n))))
    return F.reshape(wide, tuple(x * y for x, y in zip(a.shape, b.shape, strict=True)))


def eig(a: Value) -> tuple[Value, Value]:
    """(eigenvalues, eigenvectors as columns), complex."""
    wr, wi, vr, vi = Eig()(a)
    return join(wr, wi), join(vr, vi)


def eigvals(a: Value) -> Value:
    """Eigenvalues, complex."""
    return join(*Eig(vectors=False)(a))


def cholesky(a: Value, *, upper: bool = False) -> Value:
    low: Value = Cholesky()(a)
    return adjoint(low) if upper else low


def adjoint(a: Value) -> Value:
    """Transposed, and conjugated where complex."""
    return X.mt(conj(a) if a.dtype.kind == "c" else a)
