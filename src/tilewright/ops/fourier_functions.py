"""Fourier transforms of graph values: complex and real forms along any axes, any length, three normalisations. Traced code and the
importers share these; derivatives follow from the ops."""
from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..core.dims import product
from ..core.errors import ShapeError
from ..ir.graph import Value
from . import functions as F
from .complex import Complex, ViewAsComplex, ViewAsReal, parts
from .fourier import LARGEST, Dft, DftColumns, factors, turns

COLUMNS = 4096  # transforms longer than this along another axis than the last one turn the array first
NORMS = ("backward", "ortho", "forward")


def scale_of(norm: str | None, n: int, *, inverse: bool) -> float:
    """What a transform over n elements in all is multiplied by."""
    name = norm or "backward"
    if name not in NORMS:
        raise ShapeError(f"fft: norm must be one of {', '.join(NORMS)}, got norm={norm!r}")
    if name == "ortho":
        return 1.0 / math.sqrt(max(n, 1))
    return 1.0 / max(n, 1) if (name == "backward") == inverse else 1.0


def pairs(z: Value) -> Value:
    """[…, 2]: real and imaginary parts."""
    if z.dtype.kind == "c":
        out: Value = ViewAsReal()(z)
        return out
    wide = F.reshape(z, (*z.shape, 1))
    return F.concat([wide, F.zeros(wide)], len(z.shape))


def joined(p: Value) -> Value:
    out: Value = ViewAsComplex()(p)
    return out


def last(x: Value, axis: int, count: int) -> Value:
    """Axis moved behind the others of the first `count`."""
    order = [i for i in range(count) if i != axis]
    return F.transpose(x, (*order, axis, *range(count, len(x.shape))))


def back(x: Value, axis: int, count: int) -> Value:
    """The reverse of `last`."""
    order = list(range(count - 1))
    order.insert(axis, count - 1)
    return F.transpose(x, (*order, *range(count, len(x.shape))))


def size_along(x: Value, axis: int) -> int:
    n = x.shape[axis]
    if not isinstance(n, int) or n < 1:
        raise ShapeError(f"fft: needs a known size of at least 1 along the axis, got {x.type}, axis={axis}")
    return n


def along(p: Value, axis: int, *, inverse: bool, scale: float = 1.0) -> Value:
    """The transform of pairs p[…, 2] along one of the other axes."""
    rank, n = len(p.shape) - 1, size_along(p, axis)
    lanes = product(p.shape[axis + 1 : rank])
    if axis == rank - 1 or lanes == 1:
        shape = p.shape
        out: Value = Dft(inverse, scale)(F.reshape(p, (*p.shape[: axis + 1], 2)) if axis != rank - 1 else p)
        return F.reshape(out, shape)
    if n <= COLUMNS and max(factors(n), default=1) <= LARGEST:
        table = p.node.graph.constant(turns(n, p.dtype), "turns")
        columns = F.reshape(p, (*p.shape[:axis], n, lanes, 2))
        return F.reshape(DftColumns(inverse, scale)(columns, table), p.shape)
    return back(Dft(inverse, scale)(last(p, axis, rank)), axis, rank)


def fft_c2c(z: Value, axes: Sequence[int], scale: float, *, inverse: bool) -> Value:
    """Complex in, complex out, over several axes; `scale` once for all."""
    if not axes:
        return z if scale == 1.0 else F.mul(z, F.cast(F.full(z.node.graph, (), scale, parts(z)[0].dtype), z.dtype))
    p = pairs(z)
    for i, axis in enumerate(sorted(axes, reverse=True)):
        p = along(p, axis, inverse=inverse, scale=scale if i == 0 else 1.0)
    return joined(p)


def half_forward(x: Value, axis: int, scale: float = 1.0) -> Value:
    """A real array's transform, the first n // 2 + 1 results: complex. An even length is one complex transform of half that length."""
    rank, n = len(x.shape), size_along(x, axis)
    x = last(x, axis, rank)
    lead = x.shape[:-1]
    if n % 2:
        full = Dft(False, scale)(pairs(x))
        return back(joined(F.slice_(full, rank - 1, 0, n // 2 + 1)), axis, rank)
    m = n // 2
    z = Dft(False, 0.5 * scale)(F.reshape(x, (*lead, m, 2)))
    around = F.concat([z, F.slice_(z, rank - 1, 0, 1)], rank - 1)
    other = F.flip(around, (rank - 1,))
    a, b, c, d = (F.reshape(F.slice_(v, rank, k, 1), (*lead, m + 1)) for v in (around, other) for k in range(2))
    angle = -2.0 * np.pi * np.arange(m + 1) / n
    cos, sin = (x.node.graph.constant(fn(angle).astype(x.dtype.np)) for fn in (np.cos, np.sin))
    u, v = F.add(b, d), F.sub(c, a)  # the odd elements' transform
    re = F.add(F.add(a, c), F.sub(F.mul(cos, u), F.mul(sin, v)))
    im = F.add(F.sub(b, d), F.add(F.mul(cos, v), F.mul(sin, u)))
    return back(Complex()(re, im), axis, rank)


def half_backward(z: Value, n: int, axis: int, scale: float = 1.0) -> Value:
    """The real array whose transform begins with z[…, n // 2 + 1]; imaginary parts that must be 0 are not read."""
    rank, m = len(z.shape), n // 2
    if z.shape[axis] != m + 1:
        raise ShapeError(f"irfft: needs {m + 1} elements along the axis for a result of {n}, got {z.type}, axis={axis}")
    re, im = (last(p, axis, rank) for p in parts(z))
    lead = re.shape[:-1]
    edge = np.ones(m + 1, re.dtype.np)
    edge[0] = 0
    if n % 2 == 0:
        edge[m] = 0
    im = F.mul(im, z.node.graph.constant(edge))
    at = rank - 1

    def pick(x: Value, start: int, count: int) -> Value:
        return F.slice_(x, at, start, count)

    if n % 2:
        whole_re = F.concat([re, F.flip(pick(re, 1, m), (at,))], at)
        whole_im = F.concat([im, F.neg(F.flip(pick(im, 1, m), (at,)))], at)
        made = Dft(True, scale)(F.concat([F.reshape(v, (*v.shape, 1)) for v in (whole_re, whole_im)], rank))
        return back(F.reshape(F.slice_(made, rank, 0, 1), (*lead, n)), axis, rank)
    a, b = pick(re, 0, m), pick(im, 0, m)
    c, d = F.flip(pick(re, 1, m), (at,)), F.flip(pick(im, 1, m), (at,))
    angle = 2.0 * np.pi * np.arange(m) / n
    cos, sin = (z.node.graph.constant(fn(angle).astype(re.dtype.np)) for fn in (np.cos, np.sin))
    u, v = F.sub(a, c), F.add(b, d)
    odd_re, odd_im = F.sub(F.mul(cos, u), F.mul(sin, v)), F.add(F.mul(cos, v), F.mul(sin, u))
    even_re, even_im = F.add(a, c), F.sub(b, d)
    both = [F.sub(even_re, odd_im), F.add(even_im, odd_re)]
    made = Dft(True, scale)(F.concat([F.reshape(p, (*p.shape, 1)) for p in both], rank))
    return back(F.reshape(made, (*lead, n)), axis, rank)


def resized(x: Value, axis: int, n: int) -> Value:
    """Cut, or filled with zeros behind."""
    have = x.shape[axis]
    if have == n:
        return x
    if isinstance(have, int) and have > n:
        return F.slice_(x, axis, 0, n)
    return F.pad(x, (0,) * len(x.shape), tuple(n - have if i == axis else 0 for i in range(len(x.shape))))
