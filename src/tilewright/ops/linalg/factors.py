"""Cholesky and QR factorisations. Matrices are the last two axes.

Householder's reflections themselves: a QR factorisation as LAPACK packs it, and products with the Q it stands for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.errors import ExecutionError, UnsupportedError, require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, NotSupported, Pulled, S, Values, register
from ..complex.rules import conj
from ..families import General, c64, c128, f32, f64, i32
from . import matrices as X
from .systems import SQUARE, dominant


def positive(arrays: list[Any]) -> list[Any]:
    """a @ a.T (conjugated) with a heavier diagonal: positive definite."""
    a = arrays[0]
    return [(a @ np.conj(np.swapaxes(a, -1, -2)) + 2.0 * np.eye(a.shape[-1])).astype(a.dtype)]


@register
class Cholesky(General):
    """The lower triangular L with L @ L.T = a, for the symmetric part of a, (a + a.T) / 2, which must be positive definite: with `check`
    it is an error where it is not, otherwise L holds NaN. Of complex matrices transposes are conjugated."""

    cases = True
    complex = "rule"
    faults = True
    check: bool = True
    samples = [S(f32(5, 5), fit=positive), S(f64(3, 3), fit=positive), S(f32(2, 4, 4), fit=positive), S(f32(1, 1), low=1, high=2),
               S(f32(0, 0)), S(f32(0, 3, 3)), S(f32(70, 70), fit=positive), S(f64(2, 1, 5, 5), fit=positive, check=False),
               S(c64(4, 4), fit=positive), S(c128(2, 3, 3), fit=positive)]
    errors = SQUARE

    def infer(self, a: TensorType) -> TensorType:
        X.require_matrix(a, square=True, complex_=True)
        return a

    def ref(self, a: Any) -> Any:
        try:
            return np.linalg.cholesky((a + np.conj(np.swapaxes(a, -1, -2))) / 2).astype(a.dtype)
        except np.linalg.LinAlgError:
            if self.check:
                raise ExecutionError("cholesky: the matrix is not positive definite") from None
            return np.full_like(a, np.nan)

    def flops(self, a: TensorType) -> Dim:
        n, _ = X.require_matrix(a, complex_=True)
        return product(a.shape[:-2]) * (n**3 // 3)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        low = output
        inner = X.with_diagonal(X.tril(F.matmul(low, g, transpose_a=True)), 0.5)
        inner = X.solve_from_right(low, X.solve_triangular(low, inner, transpose=True))
        return (F.mul(F.add(inner, X.mt(inner)), 0.5),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t, low = tangents[0], outputs[0]
        assert t is not None
        t = F.mul(F.add(t, X.mt(t)), 0.5)
        inner = X.solve_from_right(low, X.solve_triangular(low, t), transpose=True)
        return (F.matmul(low, X.with_diagonal(X.tril(inner), 0.5)),)


@register
class Qr(General):
    """a = Q @ R with orthonormal columns in Q[m, k] and an upper triangular R[k, n], k = min(m, n); `complete`: Q[m, m] and R[m, n]. By
    Householder reflections, signs as LAPACK's (of complex matrices R has a positive diagonal). The complete form of a tall matrix has no
    derivative (its last columns are not unique), nor has a matrix whose first k columns are linearly dependent."""

    cases = True
    complex = "rule"
    complete: bool = False
    samples = [S(f32(5, 5), fit=dominant), S(f64(7, 3)), S(f32(2, 4, 6), fit=dominant), S(f32(1, 1)), S(f32(3, 1)), S(f32(1, 3)),
               S(f32(0, 3, 2)), S(f32(3, 0)), S(f64(4, 4), complete=True, fit=dominant), S(f64(3, 5), complete=True, fit=dominant),
               S(f32(40, 33)), S(c64(4, 3)), S(c128(2, 3, 5), fit=dominant)]
    errors = [E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        m, n = X.require_matrix(a, complex_=True)
        k = m if self.complete else min(m, n)
        return a.with_shape((*a.shape[:-2], m, k)), a.with_shape((*a.shape[:-2], k, n))

    def ref(self, a: Any) -> Any:
        m, n = a.shape[-2:]
        k = m if self.complete else min(m, n)
        mode: Any = "complete" if self.complete else "reduced"
        q, r = X.each_matrix(lambda x: np.linalg.qr(x, mode), a, (m, k), (k, n))
        if np.iscomplexobj(r):
            d = np.einsum("...ii->...i", r[..., : min(m, n), : min(m, n)])
            turn = np.where(d == 0, 1, d / np.where(d == 0, 1, np.abs(d)))
            q, r = q * turn[..., None, :], r * np.conj(turn)[..., None]
        return q, r

    def flops(self, a: TensorType) -> Dim:
        m, n = X.require_matrix(a, complex_=True)
        return product(a.shape[:-2]) * (4 * m * n * min(m, n))

    def _differentiable(self, a: Value) -> None:
        m, n = a.shape[-2:]
        if self.complete and m > n > 0:
            raise UnsupportedError(f"qr: the complete form of a tall matrix has no derivative, got {a.type}; use the reduced form")

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        (a,), (q, r), (gq, gr) = inputs, outputs, cotangents
        self._differentiable(a)
        if 0 in a.shape[-2:]:
            return (F.zeros(a),)
        k = q.shape[-1]
        head = X.left(r, k)
        wide = r.shape[-1] > k
        tail = None if gr is None or not wide else X.right(gr, k)
        if tail is not None:  # the columns behind: Q.T @ them are columns of R
            more = F.matmul(X.right(a, k), tail, transpose_b=True)
            gq = more if gq is None else F.add(gq, more)
        middle = None if gr is None else F.matmul(X.left(gr, k), head, transpose_b=True)
        if gq is not None:
            part = F.matmul(q, gq, transpose_a=True)
            middle = F.neg(part) if middle is None else F.sub(middle, part)
        assert middle is not None
        kept = X.triu(middle)
        total = F.matmul(q, X.with_diagonal(F.add(kept, X.mt(kept)), 0.5))
        total = total if gq is None else F.add(gq, total)
        out = X.solve_from_right(head, total, upper=True, transpose=True)
        if wide:
            behind = F.matmul(q, tail) if tail is not None else F.full(a.node.graph, (*a.shape[:-1], a.shape[-1] - k), 0, a.dtype)
            out = F.concat([out, behind], len(a.shape) - 1)
        return (out,)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        (a,), (q, r), t = inputs, outputs, tangents[0]
        assert t is not None
        self._differentiable(a)
        if 0 in a.shape[-2:]:
            return F.zeros(q), F.zeros(r)
        k = q.shape[-1]
        head = X.left(r, k)
        moved = X.solve_from_right(head, X.left(t, k), upper=True)
        inner = F.matmul(q, moved, transpose_a=True)
        low = X.tril(inner, -1)
        core = F.sub(inner, F.sub(low, X.mt(low)))  # what is left is upper triangular
        dq = F.sub(moved, F.matmul(q, core))
        dr = F.matmul(core, head)
        if r.shape[-1] > k:
            side = F.add(F.matmul(dq, X.right(a, k), transpose_a=True), F.matmul(q, X.right(t, k), transpose_a=True))
            dr = F.concat([dr, side], len(a.shape) - 1)
        return dq, dr


NOT_UNIQUE = NotSupported("reflections are not a function of the matrix that one differentiates; use qr")


@register
class Geqrf(General):
    """R on and above the diagonal of [m, n], below it the vectors v (1 at the diagonal) of reflections I - tau v v.T, and tau [k],
    k = min(m, n); Q is the product of the reflections. Signs as LAPACK's."""

    unsupported = {"vjp": NOT_UNIQUE, "jvp": NOT_UNIQUE}
    cases = True
    samples = [S(f32(5, 5), fit=dominant), S(f64(7, 3)), S(f32(2, 4, 6), fit=dominant), S(f32(1, 1)), S(f64(1, 3)), S(f32(3, 1)),
               S(f32(0, 3, 2)), S(f32(3, 0)), S(f32(40, 33))]
    errors = [E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType]:
        m, n = X.require_matrix(a)
        return a, a.with_shape((*a.shape[:-2], min(m, n)))

    def ref(self, a: Any) -> Any:
        m, n = a.shape[-2:]

        def one(x: Any) -> tuple[Any, Any]:
            packed, tau = np.linalg.qr(x, "raw")
            return np.swapaxes(packed, -1, -2), tau

        return tuple(X.each_matrix(one, a, (m, n), (min(m, n),)))

    def flops(self, a: TensorType) -> Dim:
        m, n = X.require_matrix(a)
        return product(a.shape[:-2]) * (2 * m * n * min(m, n))


def reflected(packed: Value, tau: Value, other: Value, *, left: bool = True, transpose: bool = False) -> Value:
    """Q @ other, other @ Q, or the same with Q.T, for the product Q of reflections, without making Q."""
    count, axis = tau.shape[-1], len(packed.shape) - 1
    fits = isinstance(count, int) and packed.shape[:-2] == tau.shape[:-1]
    require(fits, "ormqr: needs packed[..., m, n] and tau[..., k]", packed=packed.type, tau=tau.type)
    rows = F.iota(packed.node.graph, (packed.shape[-2], 1), 0, dt.i32)
    out = other
    for k in range(count) if left == transpose else range(count - 1, -1, -1):
        x = F.slice_(packed, axis, k, 1)
        x = F.where(F.less(rows, k), 0, F.where(F.equal(rows, k), 1, x))
        t = F.reshape(F.slice_(tau, len(tau.shape) - 1, k, 1), (*tau.shape[:-1], 1, 1))
        across = x
        if x.dtype.kind == "c":
            across, t = conj(x), conj(t) if transpose else t
        if left:
            out = F.sub(out, F.mul(t, F.mul(x, F.matmul(across, out, transpose_a=True))))
        else:
            out = F.sub(out, F.mul(t, F.matmul(F.matmul(out, x), across, transpose_b=True)))
    return out


def householder_product(packed: Value, tau: Value) -> Value:
    """The first n columns of Q [m, n]."""
    m, n = packed.shape[-2:]
    start = F.expand(F.cast(X.on_diagonal(packed.node.graph, m, n), packed.dtype), packed.shape)
    return reflected(packed, tau, start)
