"""Fourier transforms: torch's three kernels, which all of torch.fft comes down to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...ir.graph import Value
from ...ops import fourier_functions as T
from ...ops import functions as F
from .registry import Context, aten, axis_of


def _placed(c: Context, fn: Callable[[], Any]) -> Any:
    before, c.graph.place = c.graph.place, c.place
    try:
        return fn()
    finally:
        c.graph.place = before


def _scale(normalization: int, n: int) -> float:
    """torch's codes: nothing, by the root of n, by n."""
    return (1.0, 1.0 / max(n, 1) ** 0.5, 1.0 / max(n, 1))[normalization]


def _size(shape: Sequence[Any], axes: Sequence[int]) -> int:
    n = 1
    for a in axes:
        n *= shape[a]
    return n


@aten("_fft_c2c.default")
def c2c(c: Context, z: Value, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    axes = [axis_of(d, len(z.shape)) for d in dim]
    return _placed(c, lambda: T.fft_c2c(z, axes, _scale(normalization, _size(z.shape, axes)), inverse=not forward))


@aten("_fft_r2c.default")
def r2c(c: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    axes = [axis_of(d, len(x.shape)) for d in dim]
    scale = _scale(normalization, _size(x.shape, axes))

    def build() -> Value:
        if not onesided:
            return T.fft_c2c(F.cast(x, c.dtype), axes, scale, inverse=False)
        half = T.half_forward(x, axes[-1], scale)
        return T.fft_c2c(half, axes[:-1], 1.0, inverse=False) if axes[:-1] else half

    return _placed(c, build)


@aten("_fft_c2r.default")
def c2r(c: Context, z: Value, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    axes = [axis_of(d, len(z.shape)) for d in dim]
    scale = _scale(normalization, _size(z.shape, axes[:-1]) * last_dim_size)

    def build() -> Value:
        inner = T.fft_c2c(z, axes[:-1], 1.0, inverse=True) if axes[:-1] else z
        return T.half_backward(T.resized(inner, axes[-1], last_dim_size // 2 + 1), last_dim_size, axes[-1], scale)

    return _placed(c, build)


@aten("prims.fft_c2c.default")
def prim_c2c(c: Context, z: Value, *, dim: Sequence[int], forward: bool) -> Any:
    return c2c(c, z, dim, 0, forward)


@aten("prims.fft_r2c.default")
def prim_r2c(c: Context, x: Value, *, dim: Sequence[int], onesided: bool) -> Any:
    return r2c(c, x, dim, 0, onesided)


@aten("prims.fft_c2r.default")
def prim_c2r(c: Context, z: Value, *, dim: Sequence[int], last_dim_size: int) -> Any:
    return c2r(c, z, dim, 0, last_dim_size)
