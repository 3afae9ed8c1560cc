"""What NumPy makes of subscripts: `tw.r_`, `tw.c_`, `tw.mgrid`, `tw.ogrid`, `tw.s_`, `tw.index_exp`."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from .anywhere import operand
from .api.base import FLOAT, give
from .arrays import Array
from .composed import call


def _given(a: Any) -> Array:
    """A range's numbers; those with fractions in the default dtype."""
    return give(a.astype(FLOAT) if a.dtype == np.float64 else a)


class Joined:
    """`tw.r_[a, 0, 1:5]` and `tw.c_[a, b]`: arrays, numbers and ranges (with an imaginary step: so many points) one after the other, or as
    columns."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getitem__(self, key: Any) -> Array:
        parts: list[Any] = []
        for k in key if isinstance(key, tuple) else (key,):
            if isinstance(k, str):
                raise ArgumentError(f"{self._name}: directives are not supported, got {k!r}; use tw.concat or tw.stack")
            x = operand(_given(np.r_[k]) if isinstance(k, slice) else k)
            parts.append(x.reshape(*x.shape, *[1] * ((2 if self._name == "c_" else 1) - x.ndim)))
        return call("concat", parts, axis=-1 if self._name == "c_" else 0)  # type: ignore[no-any-return]


class Grid:
    """`tw.mgrid[0:2, 0:3]`: the coordinates of all points; those of `tw.ogrid` are to be broadcast."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def __getitem__(self, key: Any) -> Any:
        made = self._grid[key]
        return tuple(map(_given, made)) if isinstance(made, (list, tuple)) else _given(made)


r_, c_ = Joined("r_"), Joined("c_")
mgrid, ogrid = Grid(np.mgrid), Grid(np.ogrid)
s_, index_exp = np.s_, np.index_exp
