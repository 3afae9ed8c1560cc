"""Views and rearrangements. What can be a view is one."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.errors import ArgumentError
from ...transform.trace import Functions
from ..arrays import Array, wrap
from . import rows
from .base import Header, axes_of, common, give, header

public = FUNCTIONS = Functions()


def _joined(what: str, arrays: Sequence[Any]) -> list[list[Header]]:
    """The arrays of a sequence, in one dtype."""
    found = [header(a, what) for a in arrays]
    if not found:
        raise ArgumentError(f"{what}: needs at least one array")
    wanted = common(*(a.dtype for a in found))
    return [[a.astype(wanted, copy=False) for a in found]]


rows.enter(FUNCTIONS, {
    "reshape(x, /, shape: Any, *, copy: bool | None = None)":
        "The same elements in another shape; one size may be -1. A view where the strides allow it.",
    "permute_dims(x, /, axes: Sequence[int])": ("Axes in another order: a view.", np.transpose),
    "transpose(x, /, axes: Sequence[int] | None = None)": "Axes in another order, by default reversed: a view.",
    "matrix_transpose(x, /)": "The last two axes exchanged: a view.",
    "swapaxes(x, axis1: int, axis2: int)": "Two axes exchanged: a view.",
    "moveaxis(x, source: Any, destination: Any)": "Axes moved to other places, the others keep their order: a view.",
    "rollaxis(x, axis: int, start: int = 0)": "An axis moved before another: a view.",
    "expand_dims(x, /, axis: Any = 0)": "New axes of size 1: a view.",
    "squeeze(x, /, axis: Any = None)": "Without axes of size 1: a view.",
    "ravel(x, /)": ("All elements along one axis.", lambda a: a.reshape(-1)),
    "broadcast_to(x, /, shape: Any)": "x repeated along new axes and axes of size 1: a view.",
    "fliplr(x)": "Axis 1 reversed: a view.",
    "flipud(x)": "Axis 0 reversed: a view.",
    "rot90(x, k: int = 1, axes: tuple[int,int] = (0,1))": "A rotation by a right angle, k times, in the plane of two axes: a view.",
    "split(x, /, parts: Any, axis: int = 0) -> list[Array]": "Equal parts (an int) or parts that end at these indices: views.",
    "array_split(x, /, parts: Any, axis: int = 0) -> list[Array]": "As `split`; the parts need not be equal.",
    "roll(x, /, shift: Any, axis: Any = None)": "Elements shifted along axes; what leaves at one end comes in at the other.",
    "tile(x, repetitions: Any, /)": "x repeated as a whole along every axis.",
    "diagonal(x, /, offset: int = 0, axis1: int = 0, axis2: int = 1)": "The elements of a diagonal of two axes: a view.",
})
rows.enter(FUNCTIONS, {
    "concat(arrays: Sequence[Any], /, axis: int | None = 0)":
        ("Arrays one after the other along an axis; with axis None, all elements.", np.concatenate),
    "stack(arrays: Sequence[Any], /, axis: int = 0)": "Arrays side by side along a new axis.",
    **{f"{_name}(arrays: Sequence[Any], /)": f"Arrays together as NumPy's {_name} does it."
       for _name in ("hstack", "vstack", "dstack", "column_stack")},
}, _joined)


@public
def broadcast_arrays(*arrays: Any) -> tuple[Array, ...]:
    """Every array in the shape that they broadcast to: views."""
    found = [header(a, "broadcast_arrays") for a in arrays]
    shape = broadcast_shapes(*(a.shape for a in found))
    return tuple(wrap(np.broadcast_to(a, shape)) for a in found)


@public
def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that shapes broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise ArgumentError(f"broadcast_shapes: the shapes do not broadcast, got {' '.join(map(str, shapes))}") from None


@public
def flip(x: Any, /, axis: Any = None) -> Array:
    """Elements in reverse order along axes: a view."""
    a = header(x, "flip")
    axes = axes_of(axis, a.ndim, "flip")
    return wrap(a[tuple(slice(None, None, -1) if i in axes else slice(None) for i in range(a.ndim))])


@public
def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis: views."""
    a = header(x, "unstack")
    (k,) = axes_of(axis, a.ndim, "unstack")
    return tuple(give(np.moveaxis(a, k, 0)[i, ...]) for i in range(a.shape[k]))


@public
def repeat(x: Any, repeats: Any, axis: int | None = None) -> Array:
    """Every element (or slice along an axis) so many times."""
    a = header(x, "repeat")
    counts = header(repeats, "repeat") if not isinstance(repeats, int) else repeats
    return rows.attempt("repeat", np.repeat, a, counts, axis)  # type: ignore[no-any-return]


@public
def pad(x: Any, widths: Any, mode: Any = "constant", *, value: Any = 0, constant_values: Any = None, **options: Any) -> Array:
    """`widths`: one (before, after) an axis, or one pair for all. `mode` is one of NumPy's, or a number: that constant."""
    a = header(x, "pad")
    mode, value = (mode, value) if isinstance(mode, str) else ("constant", mode)
    if mode == "constant":
        options["constant_values"] = value if constant_values is None else constant_values
    return rows.attempt("pad", np.pad, a, widths, mode=mode, **options)  # type: ignore[no-any-return]


@public
def unfold(x: Any, axis: int, size: int, step: int = 1) -> Array:
    """Windows of `size` elements along an axis, `step` apart, on a new last axis: an overlapping view."""
    return wrap(header(x, "unfold")).unfold(axis, size, step)
