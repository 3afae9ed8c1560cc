"""Shapes: reshape, transpose and their kin (views, which cost nothing), concatenation and padding."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core.dims import Expr, product
from ...core.errors import ShapeError
from ...ops import Concat, Expand, Flip, Gather, Pad, Reshape, Transpose
from ...ops import Split as SplitOp
from ..promote import as_tracer, promote
from ..trace import Functions, Tracer, apply, install, user_place
from .reductions import axes_of, one_axis

public = FUNCTIONS = Functions()


def shape_of(given: Any) -> tuple[Any, ...]:
    """A shape from a number or a sequence: sizes are ints (symbolic ones included)."""
    found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
    sizes = tuple(int(d) if isinstance(d, np.integer) else d for d in found)
    bad = next((d for d in sizes if not isinstance(d, (int, Expr, Tracer)) or isinstance(d, bool)), None)
    if bad is not None:
        raise ShapeError(f"shape: sizes must be ints, got {bad!r} in {given!r} ({user_place()})")
    return tuple(d.__index__() if isinstance(d, Tracer) else d for d in sizes)  # which explains itself


@public
def reshape(x: Any, shape: Any) -> Any:
    """The same elements under another shape; one dim may be -1."""
    x = as_tracer(x)
    wanted = shape_of(shape)
    if -1 in wanted:
        rest: Any = product([d for d in wanted if d != -1])
        if wanted.count(-1) > 1 or rest == 0 or (isinstance(x.size, int) and x.size % rest):
            raise ShapeError(f"reshape: cannot find the -1 of {wanted} for {x.type} ({user_place()})")
        wanted = tuple(x.size // rest if d == -1 else d for d in wanted)
    return x if wanted == x.shape else apply(Reshape(shape=wanted), x)


@public
def permute_dims(x: Any, axes: Sequence[int]) -> Any:
    """Axes in another order."""
    x = as_tracer(x)
    return apply(Transpose(perm=tuple(one_axis("permute_dims", a, x.ndim) for a in axes)), x)


@public
def transpose(x: Any, axes: Sequence[int] | None = None) -> Any:
    """Axes in another order, by default reversed."""
    x = as_tracer(x)
    return permute_dims(x, range(x.ndim)[::-1] if axes is None else axes)


@public
def swapaxes(x: Any, a: int, b: int) -> Any:
    """Two axes exchanged."""
    x = as_tracer(x)
    order = list(range(x.ndim))
    a, b = one_axis("swapaxes", a, x.ndim), one_axis("swapaxes", b, x.ndim)
    order[a], order[b] = order[b], order[a]
    return permute_dims(x, order)


@public
def moveaxis(x: Any, source: Any, destination: Any) -> Any:
    """Axes moved to other places; the others keep their order."""
    x = as_tracer(x)
    sources = [one_axis("moveaxis", a, x.ndim) for a in shape_of(source)]
    targets = [one_axis("moveaxis", a, x.ndim) for a in shape_of(destination)]
    order = [a for a in range(x.ndim) if a not in sources]
    for target, a in sorted(zip(targets, sources, strict=True)):
        order.insert(target, a)
    return permute_dims(x, order)


@public
def expand_dims(x: Any, axis: Any = 0) -> Any:
    """New axes of size 1."""
    x = as_tracer(x)
    axes = axes_of("expand_dims", axis, x.ndim + (len(axis) if isinstance(axis, (tuple, list)) else 1))
    shape = list(x.shape)
    for at in axes:
        shape.insert(at, 1)
    return apply(Reshape(shape=tuple(shape)), x)


@public
def squeeze(x: Any, axis: Any = None) -> Any:
    """Without axes of size 1."""
    x = as_tracer(x)
    axes = [i for i, d in enumerate(x.shape) if d == 1] if axis is None else axes_of("squeeze", axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: the axes must have size 1, got axis={axis} for {x.type} ({user_place()})")
    return reshape(x, tuple(d for i, d in enumerate(x.shape) if i not in axes))


@public
def ravel(x: Any) -> Any:
    """All elements along one axis."""
    return reshape(x, (-1,))


@public
def broadcast_to(x: Any, shape: Any) -> Any:
    """x repeated along new axes and axes of size 1."""
    x = as_tracer(x)
    return x if x.shape == shape_of(shape) else apply(Expand(shape=shape_of(shape)), x)


@public
def flip(x: Any, axis: Any = None) -> Any:
    """Elements in reverse order along axes."""
    x = as_tracer(x)
    return apply(Flip(axes=axes_of("flip", axis, x.ndim)), x)


@public
def concat(arrays: Sequence[Any], axis: int | None = 0) -> Any:
    """Arrays one after the other along an axis; with axis None, all elements."""
    if not arrays:
        raise ShapeError(f"concat: needs at least one array ({user_place()})")
    values = promote(*arrays)
    if axis is None:
        values, axis = [ravel(v) for v in values], 0
    return apply(Concat(axis=one_axis("concat", axis, values[0].ndim)), *values)


@public
def stack(arrays: Sequence[Any], axis: int = 0) -> Any:
    """Arrays side by side along a new axis."""
    return concat([expand_dims(x, axis) for x in promote(*arrays)], axis)


@public
def split(x: Any, parts: Any, axis: int = 0) -> Any:
    """Equal parts (an int) or parts that end at these indices (a sequence), as a list."""
    x = as_tracer(x)
    at = one_axis("split", axis, x.ndim)
    n = x.shape[at]
    if isinstance(parts, int):
        if n % parts:
            raise ShapeError(f"split: {parts} equal parts need a multiple of that size, got {n} on axis {axis} ({user_place()})")
        sizes = [n // parts] * parts
    else:
        ends = [0, *parts, n]
        sizes = [b - a for a, b in zip(ends, ends[1:], strict=False)]
    out = apply(SplitOp(axis=at, sizes=tuple(sizes)), x)
    return list(out) if isinstance(out, tuple) else [out]


@public
def pad(x: Any, widths: Any, mode: Any = "constant", *, value: float = 0.0, constant_values: float | None = None) -> Any:
    """`widths`: one (before, after) an axis, one pair for all, a number, or one of these by axis. `mode`: constant, edge, reflect,
    symmetric or wrap, or the constant itself."""
    x = as_tracer(x)
    mode, value = (mode, value) if isinstance(mode, str) else ("constant", mode)
    if isinstance(widths, dict):
        each = {k % x.ndim: (w, w) if isinstance(w, int) else w for k, w in widths.items()}
        widths = [each.get(k, (0, 0)) for k in range(x.ndim)]
    widths = (widths, widths) if isinstance(widths, int) else widths
    widths = widths[0] if len(widths) == 1 and x.ndim != 1 else widths
    pairs = [tuple(widths)] * x.ndim if widths and isinstance(widths[0], int) else [tuple(p) for p in widths]
    if len(pairs) != x.ndim or any(len(p) != 2 for p in pairs):
        raise ShapeError(f"pad: widths must be one (before, after) an axis of {x.type}, or one for all, got {widths} ({user_place()})")
    if mode in ("edge", "reflect", "symmetric", "wrap"):
        pads: Any = np.pad
        for axis, (pair, n) in enumerate(zip(pairs, x.shape, strict=True)):
            if pair != (0, 0):
                x = apply(Gather(axis=axis), x, as_tracer(pads(np.arange(n), pair, mode)))
        return x
    if mode != "constant":
        raise ShapeError(f"pad: the mode is constant, edge, reflect, symmetric or wrap, got {mode!r} ({user_place()})")
    value = value if constant_values is None else constant_values
    return apply(Pad(lo=tuple(p[0] for p in pairs), hi=tuple(p[1] for p in pairs), value=value), x)


def _method(fn: Callable[..., Any]) -> Callable[..., Any]:
    """x.reshape(2, 3) and x.reshape((2, 3)) are the same."""
    return lambda self, *shape: fn(self, shape[0] if len(shape) == 1 else shape)


def _transposed(self: Any, *axes: Any) -> Any:
    return transpose(self, axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or None)


def _swapped(self: Any) -> Any:
    return swapaxes(self, -1, -2)


install(reshape=_method(reshape), transpose=_transposed, T=property(transpose), mT=property(_swapped), swapaxes=swapaxes, squeeze=squeeze,
        ravel=ravel, flatten=ravel)
