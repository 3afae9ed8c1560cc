"""Fourier transforms: torch's functions, and the three kernels that the others come down to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ....core.dims import Dim
from ....core.dtypes import real_of
from ....core.errors import ShapeError, UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.fourier import functions as T
from .registry import Context, aten, axis_of, rows


def _scale(normalization: int, n: Dim) -> float:
    """torch's codes: nothing, by the root of n, by n."""
    if not isinstance(n, int):
        raise UnsupportedError(f"a Fourier transform needs static sizes along its axes, got {n} elements")
    return (1.0, 1.0 / max(n, 1) ** 0.5, 1.0 / max(n, 1))[normalization]


@aten("_fft_c2c.default")
def c2c(c: Context, z: Value, dim: Sequence[int], normalization: int, forward: bool) -> Any:
    axes = [axis_of(d, len(z.shape)) for d in dim]
    return c.built(lambda: T.fft_c2c(z, axes, _scale(normalization, prod(z.shape[a] for a in axes)), inverse=not forward))


@aten("_fft_r2c.default")
def r2c(c: Context, x: Value, dim: Sequence[int], normalization: int, onesided: bool) -> Any:
    axes = [axis_of(d, len(x.shape)) for d in dim]
    scale = _scale(normalization, prod(x.shape[a] for a in axes))

    def build() -> Value:
        if not onesided:
            return T.fft_c2c(x if axes else F.cast(x, c.dtype), axes, scale, inverse=False)
        half = T.half_forward(x, axes[-1], scale)
        return T.fft_c2c(half, axes[:-1], 1.0, inverse=False) if axes[:-1] else half

    return c.built(build)


@aten("_fft_c2r.default")
def c2r(c: Context, z: Value, dim: Sequence[int], normalization: int, last_dim_size: int) -> Any:
    axes = [axis_of(d, len(z.shape)) for d in dim]
    scale = _scale(normalization, prod(z.shape[a] for a in axes[:-1]) * last_dim_size)

    def build() -> Value:
        inner = T.fft_c2c(z, axes[:-1], 1.0, inverse=True) if axes[:-1] else z
        return T.half_backward(T.resized(inner, axes[-1], last_dim_size // 2 + 1), last_dim_size, axes[-1], scale)

    return c.built(build)


# torch.fft's own functions: expanded by torch they would multiply by their scale in a pass of its own.
def _float(c: Context, x: Value) -> Value:
    return x if x.dtype.kind in "cf" else F.cast(x, real_of(c.dtype) if c.dtype.kind == "c" else c.dtype)


def _places(x: Value, s: Sequence[int] | None, dim: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Axes and the size along each; -1 keeps one."""
    rank = len(x.shape)
    if dim is None:
        dim = range(rank) if s is None else range(rank - len(s), rank)
    axes = [axis_of(d, rank) for d in dim]
    if len(set(axes)) != len(axes) or (s is not None and len(s) != len(axes)):
        raise ShapeError(f"fft: needs one size for each axis, and no axis twice, got s={s}, dim={tuple(dim)}")
    return axes, [x.shape[a] if s is None or s[i] == -1 else s[i] for i, a in enumerate(axes)]


def _complex_form(c: Context, x: Value, s: Any, dim: Any, norm: str | None, *, inverse: bool) -> Any:
    x = _float(c, x)
    axes, sizes = _places(x, s, dim)
    return c.built(lambda: T.spectrum(x if axes else F.cast(x, c.dtype), axes, sizes, norm, inverse=inverse))


def _to_half(c: Context, x: Value, s: Any, dim: Any, norm: str | None) -> Any:
    x = _float(c, x)
    return c.built(T.half_spectrum, x, *_places(x, s, dim), norm)


def _from_half(c: Context, x: Value, s: Any, dim: Any, norm: str | None) -> Any:
    x = _float(c, x)
    axes, sizes = _places(x, s, dim)
    if s is None or s[-1] == -1:
        sizes[-1] = 2 * (sizes[-1] - 1)
    return c.built(T.signal, x, axes, sizes, norm)


def _install(name: str, make: Callable[..., Any], **more: Any) -> None:
    @aten(f"fft_{name}.default")
    def one(c: Context, x: Value, n: int | None = None, dim: int = -1, norm: str | None = None) -> Any:
        return make(c, x, None if n is None else (n,), (dim,), norm, **more)

    for suffix, axes in (("2", (-2, -1)), ("n", None)):

        @aten(f"fft_{name}{suffix}.default")
        def many(c: Context, x: Value, s: Any = None, dim: Any = axes, norm: str | None = None) -> Any:
            return make(c, x, s, dim, norm, **more)


_install("fft", _complex_form, inverse=False)
_install("ifft", _complex_form, inverse=True)
_install("rfft", _to_half)
_install("irfft", _from_half)


def _frequencies(c: Context, n: int, d: float, *, half: bool) -> Value:
    steps = np.arange(n // 2 + 1) if half else np.fft.ifftshift(np.arange(n) - n // 2)
    return c.constant(steps.astype(c.dtype.np) * np.asarray(1 / (n * d), c.dtype.np), "frequencies")


rows({
    "fft_fftfreq.default": lambda c, n, d=1.0, **_: _frequencies(c, n, d, half=False),
    "fft_rfftfreq.default": lambda c, n, d=1.0, **_: _frequencies(c, n, d, half=True),
    "prims.fft_c2c.default": lambda c, z, *, dim, forward: c2c(c, z, dim, 0, forward),
    "prims.fft_r2c.default": lambda c, x, *, dim, onesided: r2c(c, x, dim, 0, onesided),
    "prims.fft_c2r.default": lambda c, z, *, dim, last_dim_size: c2r(c, z, dim, 0, last_dim_size),
})
