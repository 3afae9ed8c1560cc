"""Products of matrices and vectors."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ...transform.trace import Functions
from ..arrays import Array, shown
from .base import FLOAT, Header, give, header, known, numbers, written

public = FUNCTIONS = Functions()


def product(fn: Callable[..., Any], *arrays: Header) -> Header:
    """NumPy's product; small floats are multiplied in f32."""
    dtype = arrays[0].dtype
    if dt.dtype(dtype) in dt.SMALL:
        return np.asarray(fn(*(a.astype(np.float32) for a in arrays))).astype(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(fn(*arrays))


@public
def matmul(x1: Any, x2: Any, /, *, out: Any = None) -> Any:
    """The product of matrices in the last two axes; the other axes broadcast."""
    (a, b), _ = numbers(header(x1, "matmul"), header(x2, "matmul"), what="matmul")
    if not a.ndim or not b.ndim:
        raise ArgumentError(f"matmul: needs operands with axes, got {shown(a)} @ {shown(b)}; use *")
    inner = b.shape[-2] if b.ndim > 1 else b.shape[0]
    if a.shape[-1] != inner:
        hint = "; did you mean b.T?" if b.ndim == 2 and b.shape[-1] == a.shape[-1] else ""
        raise ArgumentError(f"matmul: inner sizes differ, got {shown(a)} @ {shown(b)}: {a.shape[-1]} != {inner}{hint}")
    try:
        return written(out, give(product(np.matmul, a, b)))
    except ValueError as e:
        raise ArgumentError(f"matmul: {e}, got {shown(a)} @ {shown(b)}") from None


@public
def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The dot product of vectors along an axis; the first is conjugated."""
    (a, b), _ = numbers(x1, x2, what="vecdot")
    if not -min(a.ndim, b.ndim) <= axis < 0 and not (a.ndim == b.ndim and 0 <= axis < a.ndim):
        raise ArgumentError(f"vecdot: axis must name an axis of both from the end, got {axis} for {shown(a)} and {shown(b)}")
    if a.shape[axis] != b.shape[axis]:
        raise ArgumentError(f"vecdot: the sizes along the axis differ, got {shown(a)} and {shown(b)}")
    numpy: Any = np
    return give(product(lambda p, q: numpy.vecdot(p, q, axis=axis), a, b))


@public
def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Array:
    """The sum of products over pairs of axes."""
    (a, b), _ = numbers(x1, x2, what="tensordot")
    try:
        return give(product(lambda p, q: np.tensordot(p, q, axes), a, b))
    except ValueError as e:
        raise ArgumentError(f"tensordot: {e}, got {shown(a)} and {shown(b)} with axes={axes}") from None


@public
def dot(x1: Any, x2: Any, /) -> Array:
    """NumPy's dot: the last axis of one with the second last of the other."""
    (a, b), _ = numbers(x1, x2, what="dot")
    try:
        return give(product(np.dot, a, b))
    except ValueError as e:
        raise ArgumentError(f"dot: {e}, got {shown(a)} and {shown(b)}") from None


@public
def outer(x1: Any, x2: Any, /) -> Array:
    """Every product of an element of one with an element of the other."""
    (a, b), _ = numbers(x1, x2, what="outer")
    if a.ndim != 1 or b.ndim != 1:
        raise ArgumentError(f"outer: needs two vectors, got {shown(a)} and {shown(b)}")
    return give(np.multiply(a[:, None], b[None, :]))


@public
def inner(x1: Any, x2: Any, /) -> Array:
    """The sum of products over the last axes."""
    (a, b), _ = numbers(x1, x2, what="inner")
    return give(product(np.inner, a, b))


@public
def kron(x1: Any, x2: Any, /) -> Array:
    """The Kronecker product."""
    (a, b), _ = numbers(x1, x2, what="kron")
    return give(np.kron(a, b))


@public
def einsum(equation: str, /, *operands: Any, out: Any = None) -> Any:
    """Sums of products as an equation says: `einsum("ij,jk->ik", a, b)`."""
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: the equation comes first, got a {type(equation).__name__}")
    arrays, _ = numbers(*operands, what="einsum")
    try:
        return written(out, give(product(lambda *a: np.einsum(equation, *a, optimize=len(a) > 2), *arrays)))
    except ValueError as e:
        raise ArgumentError(f"einsum: {e}, got {equation!r} for {' '.join(map(shown, arrays))}") from None


@public
def cov(x: Any, y: Any = None, *, rowvar: bool = True, ddof: int | None = None) -> Array:
    """The covariance matrix of variables in rows."""
    a = header(x, "cov")
    return give(np.asarray(np.cov(a, None if y is None else header(y), rowvar, ddof=ddof), a.dtype if a.dtype.kind in "fc" else FLOAT))


@public
def corrcoef(x: Any, y: Any = None, *, rowvar: bool = True) -> Array:
    """The correlation coefficients of variables in rows."""
    a = header(x, "corrcoef")
    return give(np.asarray(np.corrcoef(a, None if y is None else header(y), rowvar), a.dtype if a.dtype.kind in "fc" else FLOAT))


@public
def convolve(x1: Any, x2: Any, mode: str = "full") -> Array:
    """The discrete convolution of two vectors."""
    (a, b), _ = numbers(x1, x2, what="convolve")
    numpy: Any = np
    return give(numpy.convolve(a, b, mode))


@public
def correlate(x1: Any, x2: Any, mode: str = "valid") -> Array:
    """The cross-correlation of two vectors."""
    (a, b), _ = numbers(x1, x2, what="correlate")
    numpy: Any = np
    return give(numpy.correlate(a, b, mode))


@public
def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum along the diagonal of the last two axes."""
    from .reductions import summed

    a = header(x, "trace")
    wanted = summed(a.dtype) if dtype is None else known(dtype, "trace")
    return give(np.asarray(np.trace(a, offset, -2, -1, dtype=wanted)))


@public
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Array:
    """The cross product of vectors of three elements along an axis."""
    (a, b), _ = numbers(x1, x2, what="cross")
    if a.shape[axis] != 3 or b.shape[axis] != 3:
        raise ArgumentError(f"cross: the axis must have 3 elements, got {shown(a)} and {shown(b)}")
    return give(np.cross(a, b, axis=axis))


@public
def trapezoid(y: Any, x: Any = None, dx: float = 1.0, axis: int = -1) -> Array:
    """The integral by the trapezoidal rule."""
    a = header(y, "trapezoid")
    return give(np.asarray(np.trapezoid(a, None if x is None else header(x), dx, axis), a.dtype if a.dtype.kind in "fc" else FLOAT))


@public
def gradient(x: Any, *varargs: Any, axis: Any = None) -> Any:
    """Differences of neighbours in the middle of each element."""
    made = np.gradient(header(x, "gradient"), *varargs, axis=axis)
    return [give(m) for m in made] if isinstance(made, (list, tuple)) else give(made)
