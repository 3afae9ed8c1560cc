"""The last of NumPy's commonly used functions."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...transform.trace import Functions
from ..arrays import Array, wrap
from ..machine import tight
from . import files
from .base import give, header

public = FUNCTIONS = Functions()


@public
def copy(x: Any, /) -> Array:
    """x in memory of its own."""
    return wrap(header(x, "copy")).copy()


@public
def ascontiguousarray(x: Any, /) -> Array:
    """x with its elements in order in memory, copied only where they are not."""
    a = header(x, "ascontiguousarray")
    return wrap(a if a.flags.c_contiguous else tight(a))


@public
def shape(x: Any, /) -> tuple[int, ...]:
    """The shape."""
    return tuple(header(x, "shape").shape)


@public
def ndim(x: Any, /) -> int:
    """The number of axes."""
    return header(x, "ndim").ndim


@public
def size(x: Any, /) -> int:
    """The number of elements."""
    return header(x, "size").size


@public
def nan_to_num(x: Any, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Array:
    """NaN and infinities replaced by numbers."""
    return give(np.nan_to_num(header(x, "nan_to_num"), nan=nan, posinf=posinf, neginf=neginf))


@public
def vander(x: Any, n: int | None = None, increasing: bool = False) -> Array:
    """The Vandermonde matrix."""
    return give(np.vander(header(x, "vander"), n, increasing))


@public
def select(conditions: Any, choices: Any, default: Any = 0) -> Array:
    """Elements of the first choice whose condition holds."""
    return give(np.select([header(c) for c in conditions], [header(c) for c in choices], default))


@public
def apply_along_axis(fn: Callable[..., Any], axis: int, x: Any) -> Array:
    """fn of every vector along an axis."""
    return give(np.apply_along_axis(lambda v: header(fn(wrap(v))), axis, header(x)))


@public
def unravel_index(indices: Any, shape: Any) -> tuple[Array, ...]:
    """The indices of positions in a shape."""
    return tuple(give(np.asarray(i, np.int64)) for i in np.unravel_index(header(indices), shape))


@public
def ravel_multi_index(indices: Any, shape: Any) -> Array:
    """The positions of indices in a shape."""
    return give(np.asarray(np.ravel_multi_index(tuple(header(i) for i in indices), shape), np.int64))


@public
def polyval(p: Any, x: Any) -> Array:
    """A polynomial, its highest coefficient first, at x."""
    return give(np.polyval(header(p), header(x)))


@public
def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices of a lower triangle."""
    return tuple(map(give, np.tril_indices(n, k, m)))


@public
def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Array, ...]:
    """The indices of an upper triangle."""
    return tuple(map(give, np.triu_indices(n, k, m)))


public(files.save)
public(files.load_arrays)
