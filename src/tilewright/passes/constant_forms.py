"""Recognises constants that follow their indices: aranges, triangular and banded masks, 0/-inf biases, one number everywhere.

Weights must never be read whole here, so a float constant is looked at only when its corners look like a mask.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from .forms import Choice, Form, Linear, where_all

Array = np.ndarray[Any, Any]
MAX_INTEGERS = 1 << 16
MAX_MASK = 1 << 24
LARGEST = 1 << 62  # of what a form's numbers reach: forms compute in i64


def constant_form(a: Array) -> Form | None:
    if a.size == 0:
        return None
    kind = "b" if a.dtype == np.bool_ else "i" if a.dtype.kind in "iu" else "f"
    if a.size == 1:
        value = a.reshape(()).item() if kind != "f" else float(a.reshape(()))
        if value != value:
            return None
        if kind == "i":
            return Linear(int(value), (0,) * a.ndim) if abs(value) <= LARGEST else None
        return Choice((), value, value)
    if kind == "i" and a.size <= MAX_INTEGERS:
        return _linear(a)
    if a.size > MAX_MASK or (kind == "f" and not _looks_like_mask(a)) or kind == "i":
        return None
    return _mask(a)


def _linear(a: Array) -> Linear | None:
    origin = (0,) * a.ndim
    const = int(a[origin])
    coeffs = tuple(int(a[origin[:k] + (1,) + origin[k + 1 :]]) - const if n > 1 else 0 for k, n in enumerate(a.shape))
    if abs(const) + sum(abs(c) * n for c, n in zip(coeffs, a.shape, strict=True)) > LARGEST:
        return None
    want = np.full((), const, dtype=np.int64)
    for k, (c, n) in enumerate(zip(coeffs, a.shape, strict=True)):
        want = want + (c * np.arange(n, dtype=np.int64)).reshape((n,) + (1,) * (a.ndim - 1 - k))
    return Linear(const, coeffs) if np.array_equal(np.broadcast_to(want, a.shape), a) else None


def _looks_like_mask(a: Array) -> bool:
    """Rank 2 or more, and the four corners of the last two axes and one inner element are 0, 1 or hugely negative."""
    if a.ndim < 2:
        return False
    first = a.reshape(-1, *a.shape[-2:])[0] if a.flags.c_contiguous else a[(0,) * (a.ndim - 2)]
    probes = [float(first[i, j]) for i in (0, -1) for j in (0, -1)] + [float(first[first.shape[0] // 2, first.shape[1] // 2])]
    return all(p in (0.0, 1.0) or p <= -1e8 for p in probes)


def _equal(a: Array, value: Any) -> Array:
    """Where a is the value; 0.0 is not -0.0."""
    found: Array = a == value if a.dtype == np.bool_ else (a == value) & (np.signbit(a) == np.signbit(value))
    return found


def _mask(a: Array) -> Choice | None:
    """One value everywhere, or one in a diagonal band of the last two axes and another elsewhere, the same in every plane."""
    corner = a[(0,) * a.ndim]
    same = _equal(a, corner)
    if bool(np.all(same)):
        return Choice((), _number(corner), _number(corner))
    plane = same[(0,) * max(a.ndim - 2, 0)]
    if a.ndim < 2 or not bool(np.all(same == plane)):
        return None
    rest = a[~same]
    if not bool(np.all(_equal(rest, rest[0]))):
        return None
    values = _number(corner), _number(rest[0])
    for inside, (yes, no) in ((plane, values), (~plane, values[::-1])):
        found = _band(inside)
        if found is not None:
            bounds = tuple(Linear(f.const, (0,) * (a.ndim - 2) + f.coeffs) for f in found)
            return Choice(where_all(bounds, tuple(a.shape)).bounds, yes, no)
    return None


def _band(m: Array) -> tuple[Linear, ...] | None:
    """Bounds of a boolean matrix that is true exactly where lo <= j - i <= hi (a side that reaches the edge has no bound)."""
    rows, cols = m.shape
    if not np.array_equal(m[1:, 1:], m[:-1, :-1]):
        return None  # not constant along diagonals
    diagonals = np.concatenate([m[:0:-1, 0], m[0]])  # j - i from -(rows-1) to cols-1
    true = np.nonzero(diagonals)[0]
    if not true.size or not np.all(diagonals[true[0] : true[-1] + 1]):
        return None
    low, high = int(true[0]) - (rows - 1), int(true[-1]) - (rows - 1)
    bounds = []
    if high < cols - 1:
        bounds.append(Linear(high, (1, -1)))  # i - j + high >= 0
    if low > -(rows - 1):
        bounds.append(Linear(-low, (-1, 1)))
    return tuple(bounds)


def _number(v: Any) -> float | bool:
    return bool(v) if isinstance(v, np.bool_) else float(v)
