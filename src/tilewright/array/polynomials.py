"""Products, linear systems and polynomials, whose highest coefficient comes first; written once over other functions, as those of
`anywhere.py`."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from ..transform.trace import Functions, tracing
from .anywhere import beside, kind, operand
from .arrays import Array, shown
from .composed import as_float, call, listed

public = FUNCTIONS = Functions()
LINALG = Functions()


@public
def matvec(x1: Any, x2: Any) -> Array:
    """Products of matrices and vectors, in the last axes; the others broadcast."""
    return (operand(x1) @ operand(x2)[..., None])[..., 0]  # type: ignore[no-any-return]


@public
def vecmat(x1: Any, x2: Any) -> Array:
    """Products of vectors, which are conjugated, and matrices, in the last axes; the others broadcast."""
    x1 = operand(x1)
    return ((call("conj", x1) if kind(x1) == "c" else x1)[..., None, :] @ operand(x2))[..., 0, :]  # type: ignore[no-any-return]


def _linear(name: str, *args: Any) -> Any:
    """A function of `tw.linalg`."""
    from . import linalg

    return getattr(linalg, name)(*args)


@public
def poly(x: Any) -> Array:
    """The polynomial with these roots, or the characteristic one of a matrix."""
    x = as_float(operand(x))
    roots_ = _linear("eigvals", x) if x.ndim == 2 else x
    made = call("ones_like", roots_[:1]) if roots_.shape[0] else beside(x, [1.0], x.dtype)
    for k in range(roots_.shape[0]):
        made = polyadd(call("append", made, call("zeros_like", made[:1])), -roots_[k] * made)
    return made if kind(x) == "c" or kind(made) != "c" or x.ndim < 2 else call("real", made)  # type: ignore[no-any-return]


@public
def polyadd(p: Any, q: Any) -> Array:
    """The sum of two polynomials."""
    a, b = (call("atleast_1d", operand(v)) for v in (p, q))
    n = max(a.shape[0], b.shape[0])
    return call("pad", a, ((n - a.shape[0], 0),)) + call("pad", b, ((n - b.shape[0], 0),))  # type: ignore[no-any-return]


@public
def polysub(p: Any, q: Any) -> Array:
    """The difference of two polynomials."""
    return polyadd(p, -call("atleast_1d", operand(q)))  # type: ignore[no-any-return]


@public
def polymul(p: Any, q: Any) -> Array:
    """The product of two polynomials."""
    return call("convolve", call("atleast_1d", operand(p)), call("atleast_1d", operand(q)))  # type: ignore[no-any-return]


@public
def polyder(p: Any, m: int = 1) -> Array:
    """The m-th derivative of a polynomial."""
    p = operand(p)
    for _ in range(m):
        p = p[:-1] * beside(p, np.arange(p.shape[0] - 1, 0, -1), p.dtype) if p.shape[0] else p
    return p  # type: ignore[no-any-return]


@public
def polyint(p: Any, m: int = 1, k: Any = None) -> Array:
    """The m-th antiderivative of a polynomial; `k` are the constants of integration, in order."""
    p = as_float(operand(p))
    constants = call("broadcast_to", operand(0.0 if k is None else k).reshape(-1), (m,))
    for i in range(m):
        p = call("append", p / beside(p, np.arange(p.shape[0], 0, -1), p.dtype), constants[i : i + 1].astype(p.dtype))
    return p  # type: ignore[no-any-return]


@public
def polydiv(p: Any, q: Any) -> tuple[Array, Array]:
    """(quotient, remainder) of two polynomials; in a trace the remainder keeps its leading zeros."""
    a, b = (call("atleast_1d", as_float(operand(v))) for v in (p, q))
    n, m = a.shape[0], b.shape[0]
    if n < m:
        return call("zeros_like", a[:1]), a
    made = []
    for _ in range(n - m + 1):
        made.append(a[:1] / b[0])
        a = call("concat", [a[1:m] - made[-1] * b[1:], a[m:]]) if n else a
    if not tracing():
        size = listed(abs(a))
        a = a[int(next((i for i, v in enumerate(size) if v > 1e-8), len(size) - 1)) :] if len(size) > 1 else a
    return call("concat", made), a if a.shape[0] else call("zeros_like", b[:1])


@public
def roots(p: Any) -> Array:
    """The roots of a polynomial, complex always. In a trace its first and last coefficients must not be 0."""
    p = as_float(operand(p))
    zeros = 0
    if not tracing():
        at = np.flatnonzero(listed(p != 0))
        if not len(at):
            return call("zeros_like", p[:0], dt.complex_of(dt.dtype(p.dtype)).np)  # type: ignore[no-any-return]
        zeros = p.shape[0] - 1 - int(at[-1])
        p = p[int(at[0]) : int(at[-1]) + 1]
    n = p.shape[0] - 1
    wanted = dt.complex_of(dt.dtype(p.dtype)).np
    if n < 1:
        return call("zeros_like", beside(p, np.zeros(zeros, wanted)))  # type: ignore[no-any-return]
    below = beside(p, np.eye(n - 1, n), p.dtype)
    found = _linear("eigvals", call("concat", [(-p[1:] / p[0])[None], below])).astype(wanted)
    return call("pad", found, ((0, zeros),)) if zeros else found  # type: ignore[no-any-return]


# ---- of `tw.linalg`

@LINALG
def tensorinv(x: Any, ind: int = 2) -> Array:
    """The inverse of x as a map from its axes from `ind` on to those before: `tensordot(tensorinv(x, ind), y, ind)` solves for it."""
    x = operand(x)
    before, behind = x.shape[:ind], x.shape[ind:]
    if ind < 1 or math.prod(before) != math.prod(behind):
        raise ArgumentError(f"tensorinv: the axes before and behind `ind` need the same number of elements, got {shown(x)} and ind={ind}")
    return _linear("inv", x.reshape(math.prod(before), -1)).reshape(*behind, *before)  # type: ignore[no-any-return]


@LINALG
def tensorsolve(x1: Any, x2: Any, axes: Sequence[int] | None = None) -> Array:
    """y with tensordot(x1, y, y.ndim) = x2; `axes` of x1 go to its end first."""
    a, b = operand(x1), operand(x2)
    if axes is not None:
        last = [k % a.ndim for k in axes]
        a = a.transpose([*(k for k in range(a.ndim) if k not in last), *last])
    shape = a.shape[b.ndim :]
    if math.prod(shape) != math.prod(b.shape):
        raise ArgumentError(f"tensorsolve: needs as many equations as unknowns, got {shown(a)} and {shown(b)}")
    return _linear("solve", a.reshape(-1, math.prod(shape)), b.reshape(-1)).reshape(shape)  # type: ignore[no-any-return]
