"""Determinant and pseudo-inverse: ops of their own because their derivatives exist where those of their factorisations do not."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Traits, Values, register
from ..families import Composite, f32, f64, i32, values_of
from . import matrices as X
from .spectra import Svd
from .systems import SQUARE, Lu, dominant


@register
class Det(Composite):
    """The determinant, by LU. The derivative is that of the adjugate, also where one pivot is 0."""

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

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        return (F.mul(self._adjugate(inputs[0]), F.reshape(g, (*g.shape, 1, 1))),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t = tangents[0]
        assert t is not None
        rank = len(t.shape)
        return (F.sum_(F.mul(self._adjugate(inputs[0]), t), (rank - 2, rank - 1)),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return values_of(self(inputs[0]))


@register
class Pinv(Composite):
    """The pseudo-inverse, by singular values; those not above max(atol, rtol * the largest) count as 0. The derivative is that at constant
    rank and needs no singular vectors."""

    rtol: float = 1e-6
    atol: float = 0.0
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
        turned = np.where(kept, 1 / np.where(kept, s, 1), 0)
        return (np.swapaxes(vt, -1, -2) @ (turned[..., None] * np.swapaxes(u, -1, -2))).astype(a.dtype)

    def flops(self, a: TensorType) -> Dim:
        return Svd().flops(a)

    def decompose(self, a: Value) -> Value:
        if 0 in a.shape[-2:]:
            return F.full(a.node.graph, (*a.shape[:-2], a.shape[-1], a.shape[-2]), 0, a.dtype)
        s, u, vt = Svd()(a)
        limit = F.maximum(F.mul(F.max_(s, (len(s.shape) - 1,), keepdims=True), self.rtol), self.atol)
        kept = F.greater(s, limit)
        turned = F.where(kept, F.one("reciprocal", F.where(kept, s, 1)), 0)
        return F.matmul(vt, X.column_scaled(u, turned), transpose_a=True, transpose_b=True)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        a, p, g = inputs[0], outputs[0], cotangents[0]
        assert g is not None
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

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return values_of(self(inputs[0]))
