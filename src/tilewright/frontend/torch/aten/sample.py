"""Sampling images and volumes at given places: grid_sample (PyTorch's decomposition where it is bicubic), and resizing with antialiasing
(two products with constant weights)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dtypes import compute_dtype
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.rows.resize import cubic_weight
from .registry import Context, aten
from .resize import static

Array = np.ndarray[Any, Any]


def _triangle(x: Array) -> Array:
    return np.maximum(1.0 - np.abs(x), 0.0)


def _weights(size: int, out: int, align: bool, factor: float | None, kernel: Any, width: int) -> Array:
    """[out, size]: how much each source element counts; the kernel is stretched where the image shrinks."""
    if align:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / out
    stretch = max(scale, 1.0)
    table = np.zeros((out, size))
    for i in range(out):
        center = scale * (i + 0.5)
        first = max(int(center - width / 2 * stretch + 0.5), 0)
        last = min(int(center + width / 2 * stretch + 0.5), size)
        row = kernel((np.arange(first, last) - center + 0.5) / stretch)
        table[i, first:last] = row / row.sum() if row.sum() else row
    return table


def _antialiased(c: Context, x: Value, align: bool, factors: Any, kernel: Any, width: int) -> Value:
    rows, columns = _tables(c, x, x.shape[-2:], static(c, x, 2, "interpolate"), align, factors, kernel, width)
    return c.emit(O.Matmul(), c.constant(rows, "weights"), c.emit(O.Matmul(transpose_b=True), x, c.constant(columns, "weights")))


def _tables(c: Context, like: Value, sizes: Any, outs: Any, align: bool, factors: Any, kernel: Any, width: int) -> list[Any]:
    """The weights along rows and columns, in the dtype of `like`: [size of the result, size of the input]."""
    given = [*(factors or ()), None, None][:2]
    return [_weights(n, out, align, factor, kernel, width).astype(like.dtype.np) for n, out, factor in zip(sizes, outs, given, strict=True)]


for _name, _kernel, _width in (("bilinear", _triangle, 2), ("bicubic", partial(cubic_weight, slope=-0.5), 4)):

    @aten(f"_upsample_{_name}2d_aa.default")
    def plain(c: Context, x: Value, size: Any, align: bool, *factors: Any, kernel: Any = _kernel, width: int = _width) -> Value:
        return _antialiased(c, x, bool(align), factors, kernel, width)

    @aten(f"_upsample_{_name}2d_aa.vec")
    def vec(c: Context, x: Value, size: Any, align: bool, factors: Any = None, kernel: Any = _kernel, width: int = _width) -> Value:
        return _antialiased(c, x, bool(align), factors, kernel, width)

    @aten(f"_upsample_{_name}2d_aa_backward.default")
    def backward(c: Context, g: Value, size: Any, shape: Any, align: bool, *factors: Any, kernel: Any = _kernel,
                 width: int = _width) -> Value:
        rows, columns = _tables(c, g, static(c, g, 2, "interpolate"), g.shape[-2:], bool(align), factors, kernel, width)
        return c.emit(O.Matmul(), c.constant(rows.T.copy(), "weights"), c.emit(O.Matmul(), g, c.constant(columns, "weights")))


# --- grid_sample ----------------------------------------------------------------------------------------------------------------------


def _clip(c: Context, x: Value, size: int) -> Value:
    return c.emit(O.Minimum(), c.emit(O.Maximum(), x, c.scalar(0.0, x.dtype)), c.scalar(float(size - 1), x.dtype))


def _reflected(c: Context, x: Value, size: int, align: bool) -> Value:
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    span = high - low
    if span == 0:
        return c.emit(O.Mul(), x, c.scalar(0.0, x.dtype))
    x = c.emit(O.Abs(), c.emit(O.Sub(), x, c.scalar(low, x.dtype)))
    turns = c.emit(O.Floor(), c.emit(O.Div(), x, c.scalar(span, x.dtype)))
    rest = c.emit(O.Sub(), x, c.emit(O.Mul(), turns, c.scalar(span, x.dtype)))
    odd = c.emit(O.NotEqual(), c.emit(O.Remainder(), turns, c.scalar(2.0, x.dtype)), c.scalar(0.0, x.dtype))
    rest = c.emit(O.Where(), odd, c.emit(O.Sub(), c.scalar(span, x.dtype), rest), rest)
    return c.emit(O.Add(), rest, c.scalar(low, x.dtype))


def _place(c: Context, x: Value, size: int, padding: int, align: bool) -> Value:
    """Coordinates -1..1 as places in 0..size-1, with what lies outside treated as asked."""
    one = c.emit(O.Add(), x, c.scalar(1.0, x.dtype))
    if align:
        x = c.emit(O.Mul(), one, c.scalar((size - 1) / 2, x.dtype))
    else:
        scaled = c.emit(O.Mul(), one, c.scalar(float(size), x.dtype))
        x = c.emit(O.Mul(), c.emit(O.Sub(), scaled, c.scalar(1.0, x.dtype)), c.scalar(0.5, x.dtype))
    if padding == 2:
        x = _reflected(c, x, size, align)
    return _clip(c, x, size) if padding else x


def _read(c: Context, image: Value, at: list[Value], sizes: list[int]) -> Value:
    """image[n, c, d*h*w] at whole-numbered places [n, p] a spatial axis; 0 outside."""
    inside, flat = None, None
    for x, size in zip(at, sizes, strict=True):
        low = c.emit(O.GreaterEqual(), x, c.scalar(0.0, x.dtype))
        ok = c.emit(O.LogicalAnd(), low, c.emit(O.Less(), x, c.scalar(float(size), x.dtype)))
        inside = ok if inside is None else c.emit(O.LogicalAnd(), inside, ok)
        number = c.cast(_clip(c, x, size), dt.i64)
        flat = number if flat is None else c.emit(O.Add(), c.emit(O.Mul(), flat, c.scalar(size, dt.i64)), number)
    assert flat is not None and inside is not None
    n, channels, _ = image.shape
    p = flat.shape[1]
    ids = c.expand(c.reshape(flat, (n, 1, p)), (n, channels, p))
    found = c.emit(O.GatherAlongAxis(axis=2), image, ids)
    return c.emit(O.Where(), c.reshape(inside, (n, 1, p)), found, c.scalar(0.0, image.dtype))


@aten("grid_sampler_2d.default", "grid_sampler_3d.default")
def grid_sampler(c: Context, x: Value, grid: Value, mode: int, padding: int, align: bool) -> Any:
    rank = len(x.shape) - 2
    sizes = [d for d in x.shape[2:] if isinstance(d, int)]
    known = len(sizes) == rank and all(isinstance(d, int) for d in grid.shape)
    if rank == 2 and (mode == 2 or not known):
        return NotImplemented
    if mode not in (0, 1):
        raise UnsupportedError(f"grid_sample of volumes needs mode bilinear or nearest, got mode {mode}")
    if not known:
        raise UnsupportedError(f"grid_sample needs static sizes, got {x.type} and {grid.type}")
    n, channels = x.shape[:2]
    p = grid.type.numel // (rank * n) if n else 0
    image = c.reshape(x, (n, channels, math.prod(sizes)))
    wide = compute_dtype(x.dtype)
    points = c.reshape(c.cast(grid, wide), (n, p, rank))
    # the last coordinate of the grid is the first axis of the volume
    at = [_place(c, c.reshape(c.slice(points, 2, rank - 1 - k, 1), (n, p)), sizes[k], padding, bool(align)) for k in range(rank)]
    if mode == 1:
        return c.reshape(_read(c, image, [c.emit(O.Round(), v) for v in at], sizes), c.shape)
    floors = [c.emit(O.Floor(), v) for v in at]
    shares = [c.emit(O.Sub(), v, f) for v, f in zip(at, floors, strict=True)]
    total = None
    for corner in range(1 << rank):
        bits = [(corner >> k) & 1 for k in range(rank)]
        spots = [c.emit(O.Add(), f, c.scalar(1.0, f.dtype)) if b else f for f, b in zip(floors, bits, strict=True)]
        weight = None
        for share, b in zip(shares, bits, strict=True):
            part = share if b else c.emit(O.Sub(), c.scalar(1.0, share.dtype), share)
            weight = part if weight is None else c.emit(O.Mul(), weight, part)
        assert weight is not None
        part = c.emit(O.Mul(), c.cast(_read(c, image, spots, sizes), wide), c.reshape(weight, (n, 1, p)))
        total = part if total is None else c.emit(O.Add(), total, part)
    assert total is not None
    return c.reshape(c.cast(total, c.dtype), c.shape)
