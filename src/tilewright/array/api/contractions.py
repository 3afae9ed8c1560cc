"""Products of matrices and vectors."""
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ...transform.lib.contractions import spelled
from ...transform.trace import Functions
from ..arrays import Array, plain, shown
from . import rows
from .base import FLOAT, Header, give, header, known, numbers, written

public = FUNCTIONS = Functions()


def product(fn: Callable[..., Any], *arrays: Any, **options: Any) -> Header:
    """NumPy's product of headers, and arguments behind them; small floats are multiplied in f32."""
    dtype = arrays[0].dtype
    if dt.dtype(dtype) in dt.SMALL:
        wide = [a.astype(np.float32) if isinstance(a, np.ndarray) else a for a in arrays]
        return np.asarray(fn(*wide, **options)).astype(dtype)
    with np.errstate(all="ignore"):
        return np.asarray(fn(*arrays, **options))


def _float_like(fn: Callable[..., Any]) -> Callable[..., Header]:
    """fn with a result in the dtype of the first operand, or the default float dtype where that is none of floats."""
    return lambda a, *rest, **options: np.asarray(fn(a, *rest, **options), a.dtype if a.dtype.kind in "fc" else FLOAT)


_numpy: Any = np
rows.enter(FUNCTIONS, {
    "vecdot(x1, x2, /, *, axis: int = -1)": ("The dot product of vectors along an axis; the first is conjugated.",
                                             partial(product, _numpy.vecdot)),
    "tensordot(x1, x2, /, axes: Any = 2)": ("The sum of products over pairs of axes.", partial(product, np.tensordot)),
    "dot(x1, x2, /)": ("NumPy's dot: the last axis of one with the second last of the other.", partial(product, np.dot)),
    "outer(x1, x2, /)": "Every product of an element of one vector with an element of the other; other arrays are vectors of all elements.",
    "inner(x1, x2, /)": ("The sum of products over the last axes.", partial(product, np.inner)),
    "vdot(x1, x2, /)": "The sum of products of all elements, the first ones conjugated.",
    "kron(x1, x2, /)": "The Kronecker product.",
    "convolve(x1, x2, mode: str = 'full')": "The discrete convolution of two vectors.",
    "correlate(x1, x2, mode: str = 'valid')": "The cross-correlation of two vectors.",
    "cross(x1, x2, /, *, axis: int = -1)": ("The cross product of vectors of three elements along an axis.", np.linalg.cross),
}, rows.of_one_dtype)
rows.enter(FUNCTIONS, {
    "cov(x, y=None, *, rowvar: bool = True, bias: bool = False, ddof: int | None = None, fweights=None, aweights=None)":
        ("The covariance matrix of variables in rows; `fweights` count observations, `aweights` weigh them.",
         _float_like(lambda a, y, f, w, rowvar, bias, ddof: np.cov(a, y, rowvar, bias, ddof, f, w))),
    "corrcoef(x, y=None, *, rowvar: bool = True)": ("The correlation coefficients of variables in rows.", _float_like(np.corrcoef)),
    "trapezoid(y, x=None, dx: float = 1.0, axis: int = -1)": ("The integral by the trapezoidal rule.", _float_like(_numpy.trapezoid)),
})


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
def einsum(equation: Any, /, *operands: Any, out: Any = None) -> Any:
    """Sums of products as an equation says: `einsum("ij,jk->ik", a, b)`, or `einsum(a, [0, 1], b, [1, 2], [0, 2])`."""
    equation, operands = spelled(equation, operands)
    if not isinstance(equation, str):
        raise ArgumentError(f"einsum: the equation comes first, got a {type(equation).__name__}")
    arrays, _ = numbers(*operands, what="einsum")
    try:
        return written(out, give(product(lambda *a: np.einsum(equation, *a, optimize=len(a) > 2), *arrays)))
    except ValueError as e:
        raise ArgumentError(f"einsum: {e}, got {equation!r} for {' '.join(map(shown, arrays))}") from None


@public
def trace(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Array:
    """The sum along a diagonal of two axes."""
    from .reductions import summed

    a = header(x, "trace")
    wanted = summed(a.dtype) if dtype is None else known(dtype, "trace")
    return give(np.asarray(np.trace(a, offset, axis1, axis2, dtype=wanted)))


@public
def gradient(x: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """Differences of neighbours in the middle of each element; at the ends of one (`edge_order` 1) or two neighbours."""
    order: Any = edge_order
    made = np.gradient(header(x, "gradient"), *plain(varargs), axis=axis, edge_order=order)
    return [give(m) for m in made] if isinstance(made, (list, tuple)) else give(made)
