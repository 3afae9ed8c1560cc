"""Eigenvalues and eigenvectors of square real matrices that need not be symmetric: complex numbers, as real and imaginary parts."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import MaybeValues, S, Values, register
from ..complex.parts import join, parts
from ..complex.rules import conj
from ..families import General, f32, f64, values_of
from . import matrices as X
from .systems import SQUARE, Solve


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
