"""Fourier transforms of graph values: complex and real forms along any axes, any length, three normalisations. Traced code and the
importers share these; derivatives follow from the ops."""
from __future__ import annotations

import math
from collections.abc import Sequence

from ...core.dims import product
from ...core.errors import ShapeError
from ...ir.graph import Value
from .. import functions as F
from ..complex.parts import ViewAsComplex, ViewAsReal, parts
from ..complex.rules import conj
from .transforms import LARGEST, Dft, DftColumns, RealDft, RealDftBack, factors, twiddles, wide

COLUMNS = 4096  # transforms longer than this along another axis than the last one transpose the array first
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
        return F.emit(ViewAsReal(), z)
    return wide(z)


def joined(p: Value) -> Value:
    return F.emit(ViewAsComplex(), p)


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
        table = p.node.graph.constant(twiddles(n, p.dtype), "twiddles")
        columns = F.reshape(p, (*p.shape[:axis], n, lanes, 2))
        return F.reshape(DftColumns(inverse, scale)(columns, table), p.shape)
    return back(Dft(inverse, scale)(last(p, axis, rank)), axis, rank)


def fft_c2c(z: Value, axes: Sequence[int], scale: float, *, inverse: bool) -> Value:
    """Complex (or real) in, complex out, over several axes; `scale` once for all."""
    if not axes:
        return z if scale == 1.0 else F.mul(z, F.cast(F.full(z.node.graph, (), scale, parts(z)[0].dtype), z.dtype))
    first, *others = sorted(axes, reverse=True)
    if z.dtype.kind != "c" and not inverse and first == len(z.shape) - 1:
        size_along(z, first)
        p: Value = RealDft(scale, full=True)(z)
    else:
        p = along(pairs(z), first, inverse=inverse, scale=scale)
    for axis in others:
        p = along(p, axis, inverse=inverse)
    return joined(p)


def half_forward(x: Value, axis: int, scale: float = 1.0) -> Value:
    """A real array's transform, the first n // 2 + 1 results: complex."""
    rank, _ = len(x.shape), size_along(x, axis)
    made: Value = RealDft(scale)(last(x, axis, rank))
    return back(joined(made), axis, rank)


def half_backward(z: Value, n: int, axis: int, scale: float = 1.0) -> Value:
    """The real array whose transform begins with z[…, n // 2 + 1]; imaginary parts that must be 0 are not read."""
    rank = len(z.shape)
    if z.shape[axis] != n // 2 + 1:
        raise ShapeError(f"irfft: needs {n // 2 + 1} elements along the axis for a result of {n}, got {z.type}, axis={axis}")
    made: Value = RealDftBack(n, scale)(last(pairs(z), axis, rank))
    return back(made, axis, rank)


def resized(x: Value, axis: int, n: int) -> Value:
    """Cut, or filled with zeros behind."""
    have = x.shape[axis]
    if have == n:
        return x
    if isinstance(have, int) and have > n:
        return F.slice_(x, axis, 0, n)
    return F.pad(x, (0,) * len(x.shape), tuple(n - have if i == axis else 0 for i in range(len(x.shape))))


def _all_resized(x: Value, axes: Sequence[int], sizes: Sequence[int]) -> Value:
    for axis, n in zip(axes, sizes, strict=True):
        x = resized(x, axis, n)
    return x


def spectrum(z: Value, axes: Sequence[int], sizes: Sequence[int], norm: str | None, *, inverse: bool) -> Value:
    """`fftn` of an array cut or filled to these sizes."""
    return fft_c2c(_all_resized(z, axes, sizes), axes, scale_of(norm, math.prod(sizes), inverse=inverse), inverse=inverse)


def half_spectrum(x: Value, axes: Sequence[int], sizes: Sequence[int], norm: str | None, *, inverse: bool = False) -> Value:
    """`rfftn`: real in, half a complex spectrum out (its conjugate with `inverse`)."""
    half = half_forward(_all_resized(x, axes, sizes), axes[-1], scale_of(norm, math.prod(sizes), inverse=inverse))
    half = fft_c2c(half, axes[:-1], 1.0, inverse=False) if axes[:-1] else half
    return conj(half) if inverse else half


def signal(z: Value, axes: Sequence[int], sizes: Sequence[int], norm: str | None, *, inverse: bool = True) -> Value:
    """`irfftn`: half a complex spectrum in, real out (of its conjugate unless `inverse`)."""
    z = _all_resized(z if inverse else conj(z), axes, [*sizes[:-1], sizes[-1] // 2 + 1])
    z = fft_c2c(z, axes[:-1], 1.0, inverse=True) if axes[:-1] else z
    return half_backward(z, sizes[-1], axes[-1], scale_of(norm, math.prod(sizes), inverse=inverse))
