"""Sampling images and volumes at given places: grid_sample, and resizing with antialiasing
(sums of few weights, or products, an axis)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.dtypes import compute_dtype
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops.index.weighted import grid_sample
from ....ops.rows.resize import cubic_weight, growth, weighted
from .registry import Context, aten, placed
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


@placed
def _antialiased(c: Context, x: Value, align: bool, factors: Any, kernel: Any, width: int) -> Value:
    if x.dtype is dt.u8:
        return _antialiased_bytes(c, x, align, factors, kernel, width)
    sizes, outs = x.shape[-2:], static(c, x, 2, "interpolate")
    tables = _tables(x, sizes, outs, align, factors, kernel, width)
    for axis, _, _, table in sorted(zip((2, 3), sizes, outs, tables, strict=True), key=growth):
        x = weighted(x, table.T, axis)
    return x


def _antialiased_bytes(c: Context, x: Value, align: bool, factors: Any, kernel: Any, width: int) -> Value:
    """Columns, then rows, each with weights of 15 bits and rounded to bytes, as PyTorch (and Pillow) does it."""
    given = [*(factors or ()), None, None][:2]
    wide = c.cast(x, dt.i32)
    for axis, out, factor in reversed([*zip((-2, -1), static(c, x, 2, "interpolate"), given, strict=True)]):
        table = _weights(x.shape[axis], out, align, factor, kernel, width)
        bits = next((b for b in range(22) if int(0.5 + table.max(initial=0.0) * (2 << b)) >= 1 << 15), 22)
        whole = c.constant(np.trunc(table * (1 << bits) + np.copysign(0.5, table)).astype(np.int32), "weights")
        wide = c.emit(O.Matmul(), whole, wide) if axis == -2 else c.emit(O.Matmul(transpose_b=True), wide, whole)
        wide = c.emit(O.BitwiseRightShift(), c.emit(O.Add(), wide, c.scalar((1 << bits) >> 1, dt.i32)), c.scalar(bits, dt.i32))
        wide = c.emit(O.Minimum(), c.emit(O.Maximum(), wide, c.scalar(0, dt.i32)), c.scalar(255, dt.i32))
    return c.cast(wide, dt.u8)


def _tables(like: Value, sizes: Any, outs: Any, align: bool, factors: Any, kernel: Any, width: int) -> list[Any]:
    """The weights along rows and columns: [size of the result, size of the input]."""
    given, dtype = [*(factors or ()), None, None][:2], compute_dtype(like.dtype).np
    return [_weights(n, out, align, factor, kernel, width).astype(dtype) for n, out, factor in zip(sizes, outs, given, strict=True)]


for _name, _kernel, _width in (("bilinear", _triangle, 2), ("bicubic", partial(cubic_weight, slope=-0.5), 4)):

    @aten(f"_upsample_{_name}2d_aa.default")
    def plain(c: Context, x: Value, size: Any, align: bool, *factors: Any, kernel: Any = _kernel, width: int = _width) -> Value:
        return _antialiased(c, x, bool(align), factors, kernel, width)

    @aten(f"_upsample_{_name}2d_aa.vec")
    def vec(c: Context, x: Value, size: Any, align: bool, factors: Any = None, kernel: Any = _kernel, width: int = _width) -> Value:
        return _antialiased(c, x, bool(align), factors, kernel, width)

    @aten(f"_upsample_{_name}2d_aa_backward.default")
    @placed
    def backward(c: Context, g: Value, size: Any, shape: Any, align: bool, *factors: Any, kernel: Any = _kernel,
                 width: int = _width) -> Value:
        sizes = static(c, g, 2, "interpolate")
        tables = _tables(g, sizes, g.shape[-2:], bool(align), factors, kernel, width)
        for axis, _, _, table in sorted(zip((2, 3), g.shape[-2:], sizes, tables, strict=True), key=growth):
            g = weighted(g, table, axis)
        return g


# --- grid_sample ----------------------------------------------------------------------------------------------------------------------


@aten("grid_sampler_2d.default", "grid_sampler_3d.default", "cudnn_grid_sampler.default")
def grid_sampler(c: Context, x: Value, grid: Value, mode: int = 0, padding: int = 0, align: bool = True) -> Any:
    if mode == 2 and len(x.shape) == 5:
        raise UnsupportedError("grid_sample of volumes needs mode bilinear or nearest, got bicubic")
    names = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")
    return grid_sample(x, grid, mode=names[0][mode], padding=names[1][padding], align=bool(align))
