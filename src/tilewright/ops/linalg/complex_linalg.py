"""Linear algebra of complex matrices in real ones of twice the size: element x + iy becomes the block [[x, -y], [y, x]].

Sums, products and inverses of such matrices are the blocks of the complex ones. Lower triangular matrices with a real diagonal stay lower
triangular, and a factorisation that is unique (Cholesky; QR with a positive diagonal of R) is the blocks' too, so these need no arithmetic
of their own: four times the real work of the same factorisation's complex form at most, at the speed of the real kernels. Spectra and LU
are not among them: their blocks are not unique.
"""
from __future__ import annotations

from typing import Any

from ...core.errors import UnsupportedError
from ...ir.graph import Value
from .. import functions as F
from ..complex.parts import join, parts
from ..complex.rules import Pair, over, rule
from . import matrices as X
from .factors import Cholesky, Qr
from .systems import Solve, TriangularSolve


def blocks(z: Pair) -> Value:
    """[..., m, n] as [..., 2m, 2n]."""
    *lead, m, n = z[0].shape
    rank = len(lead)
    re, im = (F.reshape(p, (*lead, m, 1, n, 1)) for p in z)
    rows = [F.concat([re, F.neg(im)], rank + 3), F.concat([im, re], rank + 3)]
    return F.reshape(F.concat(rows, rank + 1), (*lead, 2 * m, 2 * n))


def from_blocks(x: Value) -> Value:
    """The complex matrix whose blocks x holds: the first column of each block."""
    *lead, m, n = x.shape
    rank = len(lead)
    first = F.slice_(F.reshape(x, (*lead, m // 2, 2, n // 2, 2)), rank + 3, 0, 1)
    return join(*(F.reshape(F.slice_(first, rank + 1, k, 1), (*lead, m // 2, n // 2)) for k in range(2)))


def stacked(z: Pair) -> Value:
    """Columns [..., n, k] as columns of numbers [..., 2n, k]."""
    *lead, n, k = z[0].shape
    return F.reshape(F.concat([F.reshape(p, (*lead, n, 1, k)) for p in z], len(lead) + 1), (*lead, 2 * n, k))


def unstacked(x: Value) -> Value:
    *lead, n, k = x.shape
    pairs = F.reshape(x, (*lead, n // 2, 2, k))
    return join(*(F.reshape(F.slice_(pairs, len(lead) + 1, i, 1), (*lead, n // 2, k)) for i in range(2)))


def _turned(z: Pair) -> Pair:
    return X.mt(z[0]), X.mt(z[1])


def system(op: Any, a: Value, b: Value) -> tuple[Value, Value]:
    """The real system of a complex one."""
    return blocks(_turned(parts(a)) if op.transpose else parts(a)), stacked(parts(b))


@rule
def solve(op: Any, a: Value, b: Value) -> Value:
    return unstacked(Solve()(*system(op, a, b)))


@rule
def triangular_solve(op: Any, a: Value, b: Value) -> Value:
    """With rows divided by the diagonal, what is left is the blocks of a triangular matrix of ones on the diagonal."""
    z, upper = parts(a), op.upper
    if op.transpose:
        z, upper = _turned(z), not upper
    strict = (X.triu(z[0], 1), X.triu(z[1], 1)) if upper else (X.tril(z[0], -1), X.tril(z[1], -1))
    side = parts(b)
    if not op.unit:
        d0, d1 = (X.diagonal(p) for p in z)
        column = F.reshape(d0, (*d0.shape, 1)), F.reshape(d1, (*d1.shape, 1))
        strict, side = over(strict, column), over(side, column)
    return unstacked(TriangularSolve(upper=upper, unit=True)(blocks(strict), stacked(side)))


@rule
def cholesky(op: Any, a: Value) -> Value:
    """The factor of the Hermitian part."""
    re, im = parts(a)
    half = F.mul(F.add(re, X.mt(re)), 0.5), F.mul(F.sub(im, X.mt(im)), 0.5)
    return from_blocks(Cholesky(check=op.check)(blocks(half)))


def qr(op: Any, a: Value) -> Any:
    """With a positive diagonal of R."""
    m, n = a.shape[-2:]
    if op.complete and m > n:
        raise UnsupportedError(f"qr: of complex matrices has no complete form of a tall one, got {a.type}; use the reduced form")
    q, r = Qr()(blocks(parts(a)))
    sign = F.one("stop_gradient", F.where(F.less(X.diagonal(r), 0), -1, F.full(r.node.graph, (), 1, r.dtype)))
    return from_blocks(X.column_scaled(q, sign)), from_blocks(X.row_scaled(r, sign))


rule(qr)
