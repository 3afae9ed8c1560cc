"""Views and rearrangements. What can be a view is one."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.errors import ArgumentError, AxisError
from ...transform.trace import Functions
from ..arrays import Array, shown, wrap
from .base import Header, axes_of, common, give, header

public = FUNCTIONS = Functions()


def _headers(arrays: Sequence[Any], what: str) -> list[Header]:
    found = [header(a, what) for a in arrays]
    if not found:
        raise ArgumentError(f"{what}: needs at least one array")
    wanted = common(*(a.dtype for a in found))
    return [a.astype(wanted, copy=False) for a in found]


def _try(what: str, fn: Callable[[], Any], *arrays: Header) -> Array:
    try:
        return give(fn())
    except IndexError as e:
        raise AxisError(f"{what}: {e}, got {' '.join(map(shown, arrays))}") from None
    except (ValueError, TypeError) as e:
        raise ArgumentError(f"{what}: {e}, got {' '.join(map(shown, arrays))}") from None


@public
def reshape(x: Any, /, shape: Any, *, copy: bool | None = None) -> Array:
    """The same elements in another shape; one size may be -1. A view where the strides allow it."""
    a = header(x, "reshape")
    return _try("reshape", lambda: np.reshape(a, shape, copy=copy), a)


@public
def permute_dims(x: Any, /, axes: Sequence[int]) -> Array:
    """Axes in another order: a view."""
    a = header(x, "permute_dims")
    return _try("permute_dims", lambda: a.transpose(tuple(axes)), a)


@public
def transpose(x: Any, /, axes: Sequence[int] | None = None) -> Array:
    """Axes in another order, by default reversed: a view."""
    a = header(x, "transpose")
    return _try("transpose", lambda: a.transpose(axes), a)


@public
def matrix_transpose(x: Any, /) -> Array:
    """The last two axes exchanged: a view."""
    a = header(x, "matrix_transpose")
    if a.ndim < 2:
        raise ArgumentError(f"matrix_transpose: needs two axes or more, got {shown(a)}")
    return wrap(a.swapaxes(-1, -2))


@public
def swapaxes(x: Any, a: int, b: int) -> Array:
    """Two axes exchanged: a view."""
    h = header(x, "swapaxes")
    return _try("swapaxes", lambda: h.swapaxes(a, b), h)


@public
def moveaxis(x: Any, source: Any, destination: Any, /) -> Array:
    """Axes moved to other places, the others keep their order: a view."""
    a = header(x, "moveaxis")
    return _try("moveaxis", lambda: np.moveaxis(a, source, destination), a)


@public
def rollaxis(x: Any, axis: int, start: int = 0) -> Array:
    """An axis moved before another: a view."""
    a = header(x, "rollaxis")
    return _try("rollaxis", lambda: np.rollaxis(a, axis, start), a)


@public
def expand_dims(x: Any, /, axis: Any = 0) -> Array:
    """New axes of size 1: a view."""
    a = header(x, "expand_dims")
    return _try("expand_dims", lambda: np.expand_dims(a, axis), a)


@public
def squeeze(x: Any, /, axis: Any = None) -> Array:
    """Without axes of size 1: a view."""
    a = header(x, "squeeze")
    return _try("squeeze", lambda: a.squeeze(axis), a)


@public
def ravel(x: Any, /) -> Array:
    """All elements along one axis."""
    return give(header(x, "ravel").reshape(-1))


@public
def broadcast_to(x: Any, /, shape: Any) -> Array:
    """x repeated along new axes and axes of size 1: a view."""
    a = header(x, "broadcast_to")
    return _try("broadcast_to", lambda: np.broadcast_to(a, shape), a)


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
def fliplr(x: Any) -> Array:
    """Axis 1 reversed: a view."""
    return flip(x, axis=1)  # type: ignore[no-any-return]


@public
def flipud(x: Any) -> Array:
    """Axis 0 reversed: a view."""
    return flip(x, axis=0)  # type: ignore[no-any-return]


@public
def rot90(x: Any, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Array:
    """A quarter turn, k times, in the plane of two axes: a view."""
    a = header(x, "rot90")
    return _try("rot90", lambda: np.rot90(a, k, axes), a)


@public
def concat(arrays: Sequence[Any], /, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis; with axis None, all elements."""
    found = _headers(arrays, "concat")
    return _try("concat", lambda: np.concatenate(found, axis=axis), *found)


@public
def stack(arrays: Sequence[Any], /, axis: int = 0) -> Array:
    """Arrays side by side along a new axis."""
    found = _headers(arrays, "stack")
    return _try("stack", lambda: np.stack(found, axis=axis), *found)


def _stack_like(name: str, fn: Callable[..., Header]) -> Callable[..., Any]:
    def call(arrays: Sequence[Any], /) -> Array:
        found = _headers(arrays, name)
        return _try(name, lambda: fn(found), *found)

    call.__name__, call.__doc__ = name, f"Arrays together as NumPy's {name} does it."
    return call


for _name, _fn in (("hstack", np.hstack), ("vstack", np.vstack), ("dstack", np.dstack), ("column_stack", np.column_stack)):
    FUNCTIONS[_name] = _stack_like(_name, _fn)


@public
def unstack(x: Any, /, axis: int = 0) -> tuple[Array, ...]:
    """The slices along an axis: views."""
    a = header(x, "unstack")
    (k,) = axes_of(axis, a.ndim, "unstack")
    return tuple(give(np.moveaxis(a, k, 0)[i, ...]) for i in range(a.shape[k]))


@public
def split(x: Any, /, parts: Any, axis: int = 0) -> list[Array]:
    """Equal parts (an int) or parts that end at these indices: views."""
    a = header(x, "split")
    try:
        return [wrap(p) for p in np.split(a, parts, axis)]
    except ValueError as e:
        raise ArgumentError(f"split: {e}, got {shown(a)} in {parts} along axis {axis}") from None


@public
def array_split(x: Any, /, parts: Any, axis: int = 0) -> list[Array]:
    """As `split`; the parts need not be equal."""
    return [wrap(p) for p in np.array_split(header(x, "array_split"), parts, axis)]


@public
def roll(x: Any, /, shift: Any, *, axis: Any = None) -> Array:
    """Elements shifted along axes; what leaves at one end comes in at the other."""
    a = header(x, "roll")
    return _try("roll", lambda: np.roll(a, shift, axis), a)


@public
def tile(x: Any, repetitions: Any, /) -> Array:
    """x repeated as a whole along every axis."""
    return give(np.tile(header(x, "tile"), repetitions))


@public
def repeat(x: Any, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Every element (or slice along an axis) so many times."""
    a = header(x, "repeat")
    counts = header(repeats, "repeat") if not isinstance(repeats, int) else repeats
    return _try("repeat", lambda: np.repeat(a, counts, axis), a)


@public
def pad(x: Any, widths: Any, value: Any = 0, *, mode: str = "constant", constant_values: Any = None, **options: Any) -> Array:
    """`widths`: one (before, after) an axis, or one pair for all. `mode` is one of NumPy's."""
    a = header(x, "pad")
    if mode == "constant":
        options["constant_values"] = value if constant_values is None else constant_values
    return _try("pad", lambda: np.pad(a, widths, mode=mode, **options), a)  # type: ignore[call-overload]


@public
def atleast_1d(x: Any, /) -> Array:
    """x with at least one axis: a view."""
    return give(np.atleast_1d(header(x)))


@public
def atleast_2d(x: Any, /) -> Array:
    """x with at least two axes: a view."""
    return give(np.atleast_2d(header(x)))


@public
def atleast_3d(x: Any, /) -> Array:
    """x with at least three axes: a view."""
    return give(np.atleast_3d(header(x)))


@public
def diagonal(x: Any, /, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
    """The elements of a diagonal of two axes: a view."""
    return give(header(x, "diagonal").diagonal(offset, axis1, axis2))


@public
def unfold(x: Any, axis: int, size: int, step: int = 1) -> Array:
    """Windows of `size` elements along an axis, `step` apart, on a new last axis: an overlapping view."""
    return wrap(header(x, "unfold")).unfold(axis, size, step)
