"""Triangular systems, LU and linear systems. Matrices are the last two axes, leading axes are cases of their own."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.errors import ExecutionError
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Op, Pulled, S, Values, register
from ..families import Composite, General, aligned, c64, c128, f32, f64, i32, values_of
from . import matrices as X

SQUARE = [E(f32(3, 4), match="needs square matrices"), E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]


def dominant(arrays: list[Any]) -> list[Any]:
    """Matrices with a heavy diagonal: far from singular."""
    a = arrays[0]
    return [(a + 3.0 * a.shape[-1] ** 0.5 * np.eye(*a.shape[-2:])).astype(a.dtype), *arrays[1:]]


def turned(arrays: list[Any]) -> list[Any]:
    """Matrices whose heavy entries stand on the other diagonal: every step exchanges rows, and no pivot is small or like another."""
    a = arrays[0]
    return [(a + 3.0 * a.shape[-1] ** 0.5 * np.eye(*a.shape[-2:])[::-1]).astype(a.dtype), *arrays[1:]]


class System(Op):
    """x of op(a) @ x = b, where op may transpose. The derivative is the implicit function's: the cotangent of b solves the transposed
    system."""

    complex = "rule"
    transpose: bool

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        return X.require_system(a, b)

    def read(self, a: Value) -> Value:
        """The elements of a that count, zeros elsewhere."""
        return a

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        (a, _), x, op = inputs, output, cast(Any, self)
        gb: Value = replace(op, transpose=not self.transpose)(a, g)
        outer = F.matmul(x, gb, transpose_b=True) if self.transpose else F.matmul(gb, x, transpose_b=True)
        return (self.read(F.neg(outer)) if wanted[0] else None, gb if wanted[1] else None)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        ta, tb = tangents
        side = tb
        if ta is not None:
            moved = F.neg(F.matmul(self.read(ta), outputs[0], transpose_a=self.transpose))
            side = moved if tb is None else F.add(moved, tb)
        assert side is not None
        return values_of(self(inputs[0], side))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return values_of(self(*aligned(inputs, batched)))


@register
class TriangularSolve(System, General):
    """x of op(a) @ x = b, where a is lower (or upper) triangular (the other triangle is not read) and op may transpose; with `unit` its
    diagonal counts as ones. A zero on the diagonal gives infinities and NaN."""

    upper: bool = False
    transpose: bool = False
    unit: bool = False
    samples = [S(f32(5, 5), f32(5, 3), fit=dominant), S(f64(4, 4), f64(4, 1), upper=True, fit=dominant),
               S(f32(2, 7, 7), f32(2, 7, 5), transpose=True, fit=dominant),
               S(f32(3, 3), f32(2, 3, 4), upper=True, transpose=True, fit=dominant),
               S(f64(2, 1, 5, 5), f64(3, 5, 2), unit=True, low=-0.5, high=0.5),
               S(f32(1, 1), f32(1, 1), fit=dominant), S(f32(0, 0), f32(0, 3)), S(f32(4, 4), f32(4, 0)), S(f32(0, 3, 3), f32(0, 3, 2)),
               S(f32(37, 37), f32(37, 70), fit=dominant), S(f32(37, 37), f32(37, 19), upper=True, fit=dominant),
               S(c64(3, 3), c64(3, 2), fit=dominant), S(c128(2, 4, 4), c128(4, 1), upper=True, transpose=True, fit=dominant)]
    errors = [E(f32(3, 4), f32(3, 1), match="needs square matrices"), E(f32(3, 3), f32(4, 1), match="the right side must have 3 rows"),
              E(f32(3, 3), f64(3, 1), match="operands must have one dtype"), E(i32(3, 3), i32(3, 1), match="needs f32 or f64 matrices")]

    def ref(self, a: Any, b: Any) -> Any:
        a = np.swapaxes(a, -1, -2) if self.transpose else a
        n = a.shape[-1]
        lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        x = np.array(np.broadcast_to(b, (*lead, *b.shape[-2:])))
        order = range(n) if self.upper == self.transpose else range(n - 1, -1, -1)
        done: list[int] = []
        for i in order:
            row = x[..., i, :] - np.einsum("...k,...kj->...j", a[..., i, done], x[..., done, :])
            x[..., i, :] = row if self.unit else row / a[..., i, i, None]
            done.append(i)
        return x

    def flops(self, a: TensorType, b: TensorType) -> Dim:
        return X.require_system(a, b).numel * a.shape[-1]

    def read(self, a: Value) -> Value:
        strict = int(self.unit)
        return X.triu(a, strict) if self.upper else X.tril(a, -strict)


def factor(a: Any, check: bool) -> tuple[Any, Any, Any]:
    """LU of one matrix, by rows, with the largest pivot of each column."""
    a = np.array(a)
    m, n = a.shape
    pivots, order = np.arange(min(m, n), dtype=np.int32), np.arange(m, dtype=np.int32)
    for j in range(min(m, n)):
        p = j + int(np.argmax(np.abs(a[j:, j])))
        pivots[j] = p
        a[[j, p]], order[[j, p]] = a[[p, j]], order[[p, j]]
        if a[j, j] == 0:
            if check:
                raise ExecutionError(f"lu: the matrix is singular, pivot {j} is 0")
            continue
        a[j + 1 :, j] /= a[j, j]
        a[j + 1 :, j + 1 :] -= np.outer(a[j + 1 :, j], a[j, j + 1 :])
    return a, pivots, order


@register
class Lu(General):
    """a[order] = L @ U with partial pivoting: L (below the diagonal; its own is ones) and U in one matrix, i32 pivots (step j exchanged
    rows j and pivots[j]) and the i32 order of rows. With `check` a pivot of 0 is an error. Not differentiable where a pivot is 0."""

    faults = True
    check: bool = False
    cases = True
    samples = [S(f32(5, 5), fit=turned), S(f64(3, 3)), S(f32(2, 4, 4), check=True, fit=dominant), S(f32(7, 4)), S(f64(3, 6)), S(f32(1, 1)),
               S(f32(0, 0)), S(f32(0, 3, 3)), S(f32(0, 3, 5)), S(f32(3, 0)), S(f32(52, 52), fit=dominant), S(f64(50, 70), fit=turned)]
    errors = [E(f32(3), match="needs matrices"), E(i32(3, 3), match="needs f32 or f64 matrices")]

    def infer(self, a: TensorType) -> tuple[TensorType, TensorType, TensorType]:
        m, n = X.require_matrix(a)
        lead = a.shape[:-2]
        return a, TensorType(dt.i32, (*lead, min(m, n))), TensorType(dt.i32, (*lead, m))

    def ref(self, a: Any) -> Any:
        m, n = a.shape[-2:]
        lu, pivots, order = X.each_matrix(lambda x: factor(x, self.check), a, (m, n), (min(m, n),), (m,))
        return lu, pivots.astype(np.int32), order.astype(np.int32)

    def flops(self, a: TensorType) -> Dim:
        m, n = X.require_matrix(a)
        k = min(m, n)
        return product(a.shape[:-2]) * int(2 * m * n * k - (m + n) * k * k + 2 * k**3 // 3)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g, lu = cotangents[0], outputs[0]
        if g is None:
            return (None,)
        m, n = lu.shape[-2:]
        k = min(m, n)
        core = X.left(X.top(lu, k), k)
        gl, gu = X.tril(X.left(g, k), -1), X.triu(X.top(g, k))
        lower, upper = unit_lower(lu, k), X.triu(X.top(lu, k))
        below = F.matmul(X.top(lower, k), X.top(gl, k), transpose_a=True)
        above = F.matmul(X.left(gu, k), X.left(upper, k), transpose_b=True)
        if n > k:
            below = F.sub(below, F.matmul(X.right(gu, k), X.right(upper, k), transpose_b=True))
        if m > k:
            above = F.sub(above, F.matmul(X.bottom(lower, k), X.bottom(gl, k), transpose_a=True))
        inner = X.solve_from_right(core, F.add(X.tril(below, -1), X.triu(above)), upper=True, transpose=True)
        inner = X.solve_triangular(core, inner, transpose=True, unit=True)
        if n > k:
            inner = F.concat([inner, X.solve_triangular(core, X.right(gu, k), transpose=True, unit=True)], len(lu.shape) - 1)
        if m > k:
            inner = F.concat([inner, X.solve_from_right(core, X.bottom(gl, k), upper=True, transpose=True)], len(lu.shape) - 2)
        return (X.permute_rows(inner, outputs[2], inverse=True),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        lu, t = outputs[0], tangents[0]
        assert t is not None
        m, n = lu.shape[-2:]
        k = min(m, n)
        moved = X.permute_rows(t, outputs[2])
        core = X.left(X.top(lu, k), k)
        lower, upper = unit_lower(lu, k), X.triu(X.top(lu, k))
        inner = X.solve_triangular(core, X.left(X.top(moved, k), k), unit=True)
        inner = X.solve_from_right(core, inner, upper=True)
        low, high = X.tril(inner, -1), X.triu(inner)
        dl = F.matmul(X.top(lower, k), low)
        du = F.matmul(high, X.left(upper, k))
        out = F.add(dl, du)  # L's part is strictly below, U's on and above the diagonal
        if n > k:
            side = F.sub(X.solve_triangular(core, X.right(X.top(moved, k), k), unit=True), F.matmul(low, X.right(upper, k)))
            out = F.concat([out, side], len(lu.shape) - 1)
        if m > k:
            side = F.sub(X.solve_from_right(core, X.bottom(moved, k), upper=True), F.matmul(X.bottom(lower, k), high))
            out = F.concat([out, side], len(lu.shape) - 2)
        return out, None, None


def unit_lower(lu: Value, k: Dim) -> Value:
    """L [m, k] of a packed factorisation."""
    part = X.left(lu, k)
    return F.where(X.on_diagonal(lu.node.graph, part.shape[-2], k), 1, X.tril(part, -1))


def lu_solve(lu: Value, order: Value, b: Value, *, transpose: bool = False) -> Value:
    """x of a @ x = b (a.T @ x = b) from a's packed factors and the order of its rows."""
    if not transpose:
        return X.solve_triangular(lu, X.solve_triangular(lu, X.permute_rows(b, order), unit=True), upper=True)
    inner = X.solve_triangular(lu, b, upper=True, transpose=True)
    return X.permute_rows(X.solve_triangular(lu, inner, transpose=True, unit=True), order, inverse=True)


@register
class Solve(System, Composite):
    """x of a @ x = b (of a.T @ x = b with `transpose`) by LU with partial pivoting; a singular matrix is an error. The backward pass
    has the factors of the forward pass: equal factorisations of one matrix are one node."""

    faults = True
    transpose: bool = False
    samples = [S(f32(5, 5), f32(5, 3), fit=dominant), S(f64(4, 4), f64(4, 1), fit=dominant), S(f32(2, 7, 7), f32(2, 7, 5), fit=dominant),
               S(f32(3, 3), f32(2, 3, 4), transpose=True, fit=dominant), S(f32(1, 1), f32(1, 2), fit=dominant), S(f32(0, 0), f32(0, 2)),
               S(f64(4, 3, 3), f64(3, 2), fit=dominant), S(f32(0, 3, 3), f32(0, 3, 1)), S(f32(50, 50), f32(50, 3), fit=dominant),
               S(c64(4, 4), c64(4, 3), fit=dominant), S(c128(2, 3, 3), c128(3, 1), transpose=True, fit=dominant)]
    errors = [E(f32(3, 4), f32(3, 1), match="needs square matrices"), E(f32(3, 3), f32(4, 1), match="the right side must have 3 rows")]

    def ref(self, a: Any, b: Any) -> Any:
        a = np.swapaxes(a, -1, -2) if self.transpose else a
        try:
            return np.linalg.solve(a, b)
        except np.linalg.LinAlgError:
            raise ExecutionError("solve: the matrix is singular") from None

    def flops(self, a: TensorType, b: TensorType) -> Dim:
        n, _ = X.require_matrix(a, complex_=True)
        return product(a.shape[:-2]) * (2 * n**3 // 3) + 2 * X.require_system(a, b).numel * n

    def decompose(self, a: Value, b: Value) -> Value:
        if a.dtype.kind == "c":
            from .complex_linalg import system, unstacked

            return unstacked(Solve().decompose(*system(self, a, b)))
        lu, _, order = a.node.graph.add(Lu(check=True), a, name="solve").values
        return lu_solve(lu, order, b, transpose=self.transpose)
