"""`x.at[i].add(v)`: new Arrays in which some elements differ."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import refused
from .arrays import Array, index, plain, ready, shown, wrap


def given(value: Any) -> Any:
    """What an Array is written with, for NumPy's header."""
    if type(value) is Array:
        return ready(value)
    if isinstance(value, (int, float, complex, list, tuple)):
        return plain(value)
    from .api.base import header

    return header(value, "setitem")


def fitting(value: Any, dtype: np.dtype[Any]) -> Any:
    """What is assigned must not be of a higher kind: floats do not go into integers by themselves."""
    order = "buifc"
    if type(value) is int and dtype.kind == "b":  # mask[0] = 1
        return value != 0
    kind = np.asarray(value).dtype.kind
    mine = dtype.kind if dtype.kind != "V" else "f"
    if kind in order and (order.index(kind) > order.index(mine)) and not {kind, mine} <= {"u", "i"}:
        raise TypeError(f"setitem: cannot put {np.asarray(value).dtype} into {dtype}; use .astype first")
    return value


class At:
    """What `x.at` gives; see `Array.at`."""

    __slots__ = ("_key", "_x")

    def __init__(self, x: Array, key: Any = None) -> None:
        self._x, self._key = x, key

    def __getitem__(self, key: Any) -> At:
        return type(self)(self._x, index(key))

    def _changed(self, name: str, value: Any) -> Array:
        """`name` is the function of the old element and the value; without one the value takes the element's place."""
        made = ready(self._x).copy()
        value = fitting(given(value), made.dtype)
        try:
            if name:
                getattr(np, name).at(made, self._key, np.asarray(value, made.dtype))
            else:
                made[self._key] = value
        except (ValueError, IndexError, OverflowError) as e:
            raise refused("at", e, f"{shown(np.asarray(value))} for elements of {shown(made)}") from None
        return wrap(made)

    def set(self, value: Any) -> Array:
        return self._changed("", value)

    def get(self) -> Array:
        return self._x[self._key]

    def add(self, value: Any) -> Array:
        return self._changed("add", value)

    def subtract(self, value: Any) -> Array:
        return self._changed("subtract", value)

    def multiply(self, value: Any) -> Array:
        return self._changed("multiply", value)

    def divide(self, value: Any) -> Array:
        return self._changed("divide", value)

    def min(self, value: Any) -> Array:
        return self._changed("minimum", value)

    def max(self, value: Any) -> Array:
        return self._changed("maximum", value)
