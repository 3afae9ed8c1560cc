"""Eigenvalues of symmetric matrices and singular values. Vectors have a fixed sign: their element of largest magnitude is positive.

Eigenvalues and eigenvectors of square real matrices that need not be symmetric: complex numbers, as real and imaginary parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register
from ..complex.parts import join, parts
from ..complex.rules import conj
from ..families import General, f32, f64, i32, values_of
from . import matrices as X
from .systems import SQUARE, Solve


def signs(vectors: Any) -> Any:
    """The sign of the largest element of each column, [..., 1, n]."""
    if vectors.shape[-2] == 0:
        return np.ones((*vectors.shape[:-2], 1, vectors.shape[-1]), vectors.dtype)
    place = np.argmax(np.abs(vectors), axis=-2, keepdims=True)
    return np.where(np.take_along_axis(vectors, place, axis=-2) < 0, -1, 1).astype(vectors.dtype)


def spread(arrays: list[Any]) -> list[Any]:
    """A growing diagonal keeps eigenvalues (and singular values) apart."""
    a = arrays[0]
    m, n = a.shape[-2:]
    return [(0.3 * a + np.eye(m, n) * (2.0 + 1.5 * np.arange(n))).astype(a.dtype)]


def quotients(w: Value) -> Value:
    """1 / (w[j] - w[i]), 0 on the diagonal. Infinite where two are equal: the vectors have no derivative there."""
    n = w.shape[-1]
    difference = F.sub(F.reshape(w, (*w.shape[:-1], 1, n)), F.reshape(w, (*w.shape, 1)))
    same = X.on_diagonal(w.node.graph, n, n)
    return F.where(same, 0, F.div(F.full(w.node.graph, (), 1, w.dtype), F.where(same, 1, difference)))


def outside(q: Value, x: Value) -> Value:
    """The part of x that is orthogonal to the columns of q."""
    return F.sub(x, F.matmul(q, F.matmul(q, x, transpose_a=True)))


@register
class Eigh(General):
    """Eigenvalues, ascending, and orthonormal eigenvectors (columns) of the symmetric part of a, (a + a.T) / 2. Vectors of equal
    eigenvalues have no derivative. Without `vectors` only the values."""

    vectors: bool = True
    cases = True
    samples = [S(f32(5, 5), fit=spread), S(f64(3, 3), fit=spread), S(f64(2, 4, 4), fit=spread), S(f32(1, 1)), S(f32(0, 0)), S(f32(0, 3, 3)),
               S(f64(2, 2), fit=spread), S(f32(33, 33), vectors=False), S(f64(4, 4), vectors=False, fit=spread)]
    errors = SQUARE

    def infer(self, a: TensorType) -> TensorType | tuple[TensorType, ...]:
        X.require_matrix(a, square=True)
        w = a.with_shape(a.shape[:-1])
        return (w, a) if self.vectors else w

    def ref(self, a: Any) -> Any:
        w, v = np.linalg.eigh((a + np.swapaxes(a, -1, -2)) / 2)
        return (w.astype(a.dtype), (v * signs(v)).astype(a.dtype)) if self.vectors else w.astype(a.dtype)

    def flops(self, a: TensorType) -> Dim:
        n, _ = X.require_matrix(a)
        return product(a.shape[:-2]) * ((9 if self.vectors else 2) * n**3)

    def for_vjp(self) -> Eigh:
        return Eigh()

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        (w, v), (gw, gv) = outputs, cotangents
        inner = None
        if gv is not None:
            inner = F.mul(F.matmul(v, gv, transpose_a=True), quotients(w))
        if gw is not None:
            inner = X.diagonal_matrix(gw) if inner is None else F.add(inner, X.diagonal_matrix(gw))
        assert inner is not None
        out = F.matmul(F.matmul(v, inner), v, transpose_b=True)
        return (out if gv is None else F.mul(F.add(out, X.mt(out)), 0.5),)

    def push(self, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues] | None:
        """The values alone: their tangents need the vectors."""
        if self.vectors or tangents[0] is None:
            return None
        w, v = Eigh()(inputs[0])
        return (w,), (X.diagonal(self._turned(v, tangents[0])),)

    @staticmethod
    def _turned(v: Value, t: Value) -> Value:
        return F.matmul(F.matmul(v, F.mul(F.add(t, X.mt(t)), 0.5), transpose_a=True), v)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        w, v = outputs
        assert tangents[0] is not None
        inner = self._turned(v, tangents[0])
        return X.diagonal(inner), F.matmul(v, F.mul(inner, quotients(w)))


@register
class Svd(General):
    """a = U @ diag(s) @ V.T with s descending, U[m, k], V[n, k], k = min(m, n): (s, U, V.T), or s alone without `vectors`. U's columns
    have the fixed sign. Vectors of equal singular values, and of zero ones, have no derivative."""

    vectors: bool = True
    cases = True
    samples = [S(f32(5, 5), fit=spread), S(f64(6, 3), fit=spread), S(f64(2, 3, 5), fit=spread), S(f32(1, 1)), S(f32(3, 1)), S(f64(1, 4)),
               S(f32(0, 3, 3)), S(f32(3, 0)), S(f32(20, 33), vectors=False), S(f64(4, 3), vectors=False, fit=spread)]
    errors = [E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]

    def infer(self, a: TensorType) -> TensorType | tuple[TensorType, ...]:
        m, n = X.require_matrix(a)
        k, lead = min(m, n), a.shape[:-2]
        s = a.with_shape((*lead, k))
        return (s, a.with_shape((*lead, m, k)), a.with_shape((*lead, k, n))) if self.vectors else s

    def ref(self, a: Any) -> Any:
        if a.size == 0:
            k, lead = min(a.shape[-2:]), a.shape[:-2]
            shapes = ((*lead, k), (*lead, a.shape[-2], k), (*lead, k, a.shape[-1]))
            return tuple(np.zeros(s, a.dtype) for s in shapes) if self.vectors else np.zeros(shapes[0], a.dtype)
        a, fine = X.finite(a)
        u, s, vt = np.linalg.svd(a, full_matrices=False)
        sign = signs(u) * fine[..., None, None]
        out = s * fine[..., None], u * sign, vt * np.swapaxes(sign, -1, -2)
        return tuple(x.astype(a.dtype) for x in out) if self.vectors else out[0].astype(a.dtype)

    def flops(self, a: TensorType) -> Dim:
        m, n = X.require_matrix(a)
        return product(a.shape[:-2]) * (6 * m * n * min(m, n))

    def for_vjp(self) -> Svd:
        return Svd()

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        (s, u, vt), (gs, gu, gvt) = outputs, cotangents
        inner = None if gs is None else X.diagonal_matrix(gs)
        ratios = None if gu is None and gvt is None else quotients(F.square(s))
        for g, basis, from_left in ((gu, u, False), (None if gvt is None else X.mt(gvt), X.mt(vt), True)):
            if g is None:
                continue
            turned = F.matmul(basis, g, transpose_a=True)
            skew = F.mul(F.sub(turned, X.mt(turned)), ratios if ratios is not None else 0)
            part = X.row_scaled(skew, s) if from_left else X.column_scaled(skew, s)
            inner = part if inner is None else F.add(inner, part)
        assert inner is not None
        out = F.matmul(u, F.matmul(inner, vt))
        if gu is not None and u.shape[-2] > u.shape[-1]:
            out = F.add(out, F.matmul(outside(u, X.column_scaled(gu, F.one("reciprocal", s))), vt))
        if gvt is not None and vt.shape[-1] > vt.shape[-2]:
            rest = X.mt(outside(X.mt(vt), X.mt(X.row_scaled(gvt, F.one("reciprocal", s)))))
            out = F.add(out, F.matmul(u, rest))
        return (out,)

    def push(self, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues] | None:
        if self.vectors or tangents[0] is None:
            return None
        s, u, vt = Svd()(inputs[0])
        return (s,), (X.diagonal(F.matmul(F.matmul(u, tangents[0], transpose_a=True), vt, transpose_b=True)),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        (s, u, vt), t = outputs, tangents[0]
        assert t is not None
        tv = F.matmul(t, vt, transpose_b=True)
        inner = F.matmul(u, tv, transpose_a=True)
        turned, ratios = X.mt(inner), quotients(F.square(s))
        du = F.matmul(u, F.mul(F.add(X.column_scaled(inner, s), X.row_scaled(turned, s)), ratios))
        dv = F.matmul(vt, F.mul(F.add(X.row_scaled(inner, s), X.column_scaled(turned, s)), ratios), transpose_a=True)
        if u.shape[-2] > u.shape[-1]:
            du = F.add(du, outside(u, X.column_scaled(tv, F.one("reciprocal", s))))
        if vt.shape[-1] > vt.shape[-2]:
            tu = F.matmul(t, u, transpose_a=True)
            dv = F.add(dv, outside(X.mt(vt), X.column_scaled(tu, F.one("reciprocal", s))))
        return X.diagonal(inner), du, X.mt(dv)


def apart(arrays: list[Any]) -> list[Any]:
    """Matrices whose eigenvalues lie far apart, half of them in conjugate pairs."""
    a = arrays[0]
    n = a.shape[-1]
    base = np.diag(np.arange(n) * 4.0 - n)
    for i in range(0, n - 1, 4):
        base[i : i + 2, i : i + 2] = [[i * 4.0 - n, 3.0], [-2.0, i * 4.0 - n]]
    return [(a * 0.3 + base).astype(a.dtype)]


@register
class Eig(General):
    """a @ V = V @ diag(w) for a real matrix that need not be symmetric: (re w, im w, re V, im V), or the parts of w alone without
    `vectors`. Eigenvalues ascend by real part, then by imaginary part; columns of V have length 1 and a real positive element where they
    are largest. By reduction to Hessenberg form and shifted QR, in f64. Equal eigenvalues have no derivative."""

    vectors: bool = True
    cases = True
    samples = [S(f32(5, 5), fit=apart), S(f64(6, 6), fit=apart), S(f64(2, 3, 3), fit=apart), S(f32(1, 1)), S(f64(2, 2), fit=apart),
               S(f32(0, 0)), S(f32(0, 3, 3)), S(f32(17, 17), fit=apart, vectors=False), S(f64(3, 3), fit=apart, vectors=False)]
    errors = SQUARE

    def infer(self, a: TensorType) -> tuple[TensorType, ...]:
        X.require_matrix(a, square=True)
        w = a.with_shape(a.shape[:-1])
        return (w, w, a, a) if self.vectors else (w, w)

    def ref(self, a: Any) -> Any:
        n = a.shape[-1]
        lead = a.shape[:-2]
        w, v = np.zeros((*lead, n), complex), np.zeros((*lead, n, n), complex)
        a, fine = X.finite(a)
        for at in np.ndindex(*lead):
            own, vectors = np.linalg.eig(a[at].astype(np.float64))
            order = np.lexsort((own.imag, own.real))
            w[at], v[at] = own[order], turned(vectors[:, order])
        made = (w.real, w.imag, v.real, v.imag) if self.vectors else (w.real, w.imag)
        return tuple((x * fine.reshape(*lead, *(1,) * (x.ndim - len(lead)))).astype(a.dtype) for x in made)

    def flops(self, a: TensorType) -> Dim:
        n, _ = X.require_matrix(a)
        return product(a.shape[:-2]) * ((60 if self.vectors else 30) * n**3)

    def for_vjp(self) -> Eig:
        return Eig()

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        """inverse(V)^H (diag(gw) + conj(F) * (V^H g)) V^H with F[i, j] = 1 / (w[j] - w[i]); g is the cotangent of V as far as lengths
        and phases, which are fixed, leave it."""
        if inputs[0].shape[-1] == 0:
            return (F.zeros(inputs[0]),)
        w, v, real, imag = _complex(outputs)
        gw, gv = (join(*(F.zeros(o) if g is None else g for o, g in zip(outputs[i : i + 2], cotangents[i : i + 2], strict=True)))
                  if any(g is not None for g in cotangents[i : i + 2]) else None for i in (0, 2))
        inner = None
        if gv is not None:
            top, tall = _tallest(real, imag)
            s = F.sum_(F.sub(F.mul(parts(gv)[0], imag), F.mul(parts(gv)[1], real)), (len(real.shape) - 2,), keepdims=True)  # im(g^H v)
            g = join(parts(gv)[0], F.add(parts(gv)[1], F.mul(F.div(s, tall), top)))
            along = F.sum_(F.add(F.mul(parts(g)[0], real), F.mul(parts(g)[1], imag)), (len(real.shape) - 2,), keepdims=True)
            g = join(F.sub(parts(g)[0], F.mul(real, along)), F.sub(parts(g)[1], F.mul(imag, along)))
            inner = F.mul(F.matmul(X.mt(conj(v)), g), conj(_quotients(w)))
        if gw is not None:
            diagonal = join(*(X.diagonal_matrix(p) for p in parts(gw)))
            inner = diagonal if inner is None else F.add(inner, diagonal)
        assert inner is not None
        out: Value = Solve(transpose=True)(conj(v), F.matmul(inner, X.mt(conj(v))))
        return (parts(out)[0],)

    def push(self, inputs: Values, tangents: MaybeValues) -> tuple[Values, MaybeValues] | None:
        """The values alone: their tangents need the vectors."""
        if self.vectors or tangents[0] is None:
            return None
        outputs = values_of(Eig()(inputs[0]))
        return outputs[:2], Eig().jvp(inputs, outputs, tangents)[:2]

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        if inputs[0].shape[-1] == 0:
            return tuple(F.zeros(o) for o in outputs)
        w, v, real, imag = _complex(outputs)
        t = tangents[0]
        assert t is not None
        inner: Value = Solve()(v, F.matmul(join(t, F.zeros(t)), v))
        dw = [X.diagonal(p) for p in parts(inner)]
        dr, di = parts(F.matmul(v, F.mul(inner, _quotients(w))))
        axis = (len(real.shape) - 2,)
        along = F.sum_(F.add(F.mul(dr, real), F.mul(di, imag)), axis, keepdims=True)  # lengths stay 1
        dr, di = F.sub(dr, F.mul(real, along)), F.sub(di, F.mul(imag, along))
        top, tall = _tallest(real, imag)
        turn = F.div(F.sum_(F.mul(di, top), axis, keepdims=True), tall)  # the largest element stays real
        return (*dw, F.add(dr, F.mul(imag, turn)), F.sub(di, F.mul(real, turn)))


def turned(vectors: Any) -> Any:
    """Columns of length 1 with a real positive element where they are largest (the first of several)."""
    if vectors.size == 0:
        return vectors
    sizes = np.abs(vectors)
    place = np.argmax(np.round(sizes, 9), axis=-2, keepdims=True)
    top = np.take_along_axis(vectors, place, -2)
    return vectors * (np.abs(top) / top) / np.linalg.norm(vectors, axis=-2, keepdims=True)


def _complex(outputs: Values) -> tuple[Value, Value, Value, Value]:
    """w and V as complex numbers, and V's parts."""
    wr, wi, vr, vi = outputs
    return join(wr, wi), join(vr, vi), vr, vi


def _tallest(real: Value, imag: Value) -> tuple[Value, Value]:
    """Ones where the columns are largest, and the elements there."""
    rank, n = len(real.shape), real.shape[-1]
    place = F.one("arg_max", F.add(F.square(real), F.square(imag)), axis=rank - 2, keepdims=True, dtype=dt.i32)
    rows = F.iota(real.node.graph, (n, 1), 0, dt.i32)
    top = F.cast(F.equal(rows, place), real.dtype)
    return top, F.sum_(F.mul(top, real), (rank - 2,), keepdims=True)


def _quotients(w: Value) -> Value:
    """1 / (w[j] - w[i]), 0 on the diagonal."""
    re, im = parts(w)
    n = w.shape[-1]
    gaps = [F.sub(F.reshape(p, (*p.shape[:-1], 1, n)), F.reshape(p, (*p.shape, 1))) for p in (re, im)]
    none = X.on_diagonal(w.node.graph, n, n)
    inverse = F.one("reciprocal", join(F.where(none, 1, gaps[0]), gaps[1]))
    return join(*(F.where(none, 0, p) for p in parts(inverse)))
