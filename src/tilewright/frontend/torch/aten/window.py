"""Windows read through constant tables of places: convolution and average pooling of integers (exact, wrapping), pools with a divisor of
their own, adaptive maximum pools with indices. A table names for every window and every place in it one element of the image, or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .... import ops as O
from ....core import dtypes as dt
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .elementwise import div_mode
from .registry import Context, aten

Array = np.ndarray[Any, Any]
NONE = -1


def spatial(x: Value, n: int, what: str) -> list[int]:
    sizes = [d for d in x.shape[-n:] if isinstance(d, int)]
    if len(sizes) != n:
        raise UnsupportedError(f"{what} needs static sizes, got {x.type}")
    return sizes


def combined(tables: Sequence[Array], sizes: Sequence[int]) -> Array:
    """Tables [places, windows] of each axis as one over the merged axes."""
    total = np.zeros((1, 1), np.int64)
    for table, size in zip(tables, sizes, strict=True):
        k, p = table.shape
        both = np.where((total[:, None, :, None] == NONE) | (table[None, :, None, :] == NONE), NONE,
                        total[:, None, :, None] * size + table[None, :, None, :])
        total = both.reshape(total.shape[0] * k, total.shape[1] * p)
    return total


def read(c: Context, x: Value, table: Array, fill: Any) -> Value:
    """x[n, c, pixels] as [n, c, places, windows]; `fill` where the table names no element."""
    n, channels, pixels = x.shape
    assert isinstance(pixels, int)
    if (table == NONE).any():
        extra = c.expand(c.scalar(fill, x.dtype), (n, channels, 1))
        x = c.emit(O.Concat(axis=2), x, extra)
        table = np.where(table == NONE, pixels, table)
    return c.emit(O.Gather(axis=2), x, c.constant(np.ascontiguousarray(table), "places"))


def flat(c: Context, x: Value, n: int) -> Value:
    """[n, c, pixels], with a batch axis where there was none."""
    lead = x.shape[:-n]
    pixels = int(np.prod(spatial(x, n, "a window")))
    return c.reshape(x, (*((1,) * (2 - len(lead))), *lead, pixels))


# --- convolution of integers ----------------------------------------------------------------------------------------------------------


def integer_conv(c: Context, x: Value, w: Value, stride: Sequence[int], padding: Sequence[tuple[int, int]], dilation: Sequence[int],
                 groups: int, transposed: bool, output_padding: Sequence[int]) -> Value:
    """A product of weights with windows, as integers wrap. x[n, c, ...] and w are as for Conv."""
    dims = len(w.shape) - 2
    sizes, kernel = spatial(x, dims, "convolution"), spatial(w, dims, "convolution")
    tables, outs = [], []
    for size, k, step, (lo, hi), far, more in zip(sizes, kernel, stride, padding, dilation, output_padding, strict=True):
        if transposed:
            out = (size - 1) * step - lo - hi + far * (k - 1) + more + 1
            at = np.arange(out)[None, :] + lo - far * np.arange(k)[:, None]
            ok, at = at % step == 0, at // step
        else:
            out = (size + lo + hi - far * (k - 1) - 1) // step + 1
            at = np.arange(out)[None, :] * step - lo + far * np.arange(k)[:, None]
            ok = np.ones_like(at, bool)
        tables.append(np.where(ok & (at >= 0) & (at < size), at, NONE))
        outs.append(out)
    table = combined(tables, sizes)
    places, windows = table.shape
    n, channels = x.shape[:2]
    assert isinstance(channels, int)
    image = read(c, flat(c, x, dims), table, 0)
    columns = c.reshape(image, (n, groups, channels // groups * places, windows))
    if transposed:  # [C, O/G, k] -> [G, O/G, C/G * k]
        out_channels = int(w.shape[1]) * groups
        weight = c.reshape(w, (groups, channels // groups, out_channels // groups, places))
        weight = c.transpose(weight, (0, 2, 1, 3))
    else:
        out_channels = int(w.shape[0])
        weight = w
    weight = c.reshape(weight, (1, groups, out_channels // groups, channels // groups * places))
    return c.reshape(c.emit(O.Matmul(), weight, columns), (n, out_channels, *outs))


# --- pools ----------------------------------------------------------------------------------------------------------------------------


def window_average(c: Context, x: Value, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], count_padding: bool,
                   divisor: int | None) -> Value:
    """Sums of windows divided by `divisor`, or by how many elements they hold; integers drop the fraction."""
    n = len(kernel)
    sizes, outs = spatial(x, n, "avg_pool"), [int(d) for d in c.shape[-n:]]
    tables, counts = [], np.ones(1, np.int64)
    for size, out, k, step, pad in zip(sizes, outs, kernel, stride, padding, strict=True):
        start = np.arange(out) * step - pad
        at = start[None, :] + np.arange(k)[:, None]
        tables.append(np.where((at >= 0) & (at < size), at, NONE))
        end = np.minimum(start + k, size + pad)
        held = end - start if count_padding else np.minimum(end, size) - np.maximum(start, 0)
        counts = (counts[:, None] * held[None, :]).reshape(-1)
    total = c.emit(O.Sum(axes=(2,), keepdims=False), read(c, flat(c, x, n), combined(tables, sizes), 0))
    by = c.constant((counts if divisor is None else np.full(1, divisor)).astype(x.dtype.np), "counts")
    return c.reshape(c.emit(O.Div(), total, by) if x.dtype.is_float else div_mode(c, total, by, rounding_mode="trunc"), c.shape)


def _adaptive_max(n: int) -> Any:
    def handler(c: Context, x: Value, output_size: Any) -> Any:
        shape, sizes = c.shape, spatial(x, n, "adaptive_max_pool")
        tables = []
        for size, out in zip(sizes, shape[-n:], strict=True):
            assert isinstance(out, int)
            starts = [o * size // out for o in range(out)]
            ends = [-((-(o + 1) * size) // out) for o in range(out)]
            width = max((e - s for s, e in zip(starts, ends, strict=True)), default=0)
            at = np.array(starts, np.int64)[None, :] + np.arange(width)[:, None]
            tables.append(np.where(at < np.array(ends, np.int64)[None, :], at, NONE))
        table = combined(tables, sizes)
        if not table.size:
            return c.expand(c.scalar(0, x.dtype), shape), c.expand(c.scalar(0, dt.i64), shape)
        image = flat(c, x, n)
        low = float("-inf") if x.dtype.is_float else -(1 << (8 * x.dtype.itemsize - 1))
        best = c.emit(O.ArgMax(axis=2, keepdims=True), read(c, image, table, low))
        numbers = c.constant(np.where(table == NONE, 0, table), "numbers")
        wide = c.expand(c.reshape(numbers, (1, 1, *table.shape)), (*image.shape[:2], *table.shape))
        found = c.emit(O.GatherAlongAxis(axis=2), wide, best)
        index = c.reshape(found, (*image.shape[:2], table.shape[1]))
        if x.dtype.is_float and not c.differentiable:  # without the places, which a derivative needs
            largest = c.emit(O.AdaptivePool(sizes=tuple(int(d) for d in shape[-n:]), kind="max"), x)
        else:
            largest = c.reshape(c.emit(O.GatherAlongAxis(axis=2), image, index), shape)
        return largest, c.reshape(index, shape)

    return handler


for _n in (1, 2, 3):
    aten(f"adaptive_max_pool{_n}d.default")(_adaptive_max(_n))
