"""Householder's reflections themselves: a QR factorisation as LAPACK packs it, and products with the Q it stands for."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, register
from ..complex.rules import conj
from ..families import General, f32, f64, i32
from . import matrices as X
from .systems import dominant

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
