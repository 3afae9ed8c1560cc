"""Fourier transforms of Arrays: the array API's extension, by NumPy's transforms over the Array's memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ..arrays import Array, shown, wrap
from .base import FLOAT, as_float, give, header, known

FUNCTIONS: dict[str, Callable[..., Any]] = {}


def _prepared(x: Any, what: str) -> Any:
    a = as_float(header(x, what))
    return a.astype(np.float32) if dt.dtype(a.dtype) in dt.SMALL else a


def _one(name: str) -> Callable[..., Any]:
    def call(x: Any, /, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        a = _prepared(x, name)
        try:
            return give(getattr(np.fft, name)(a, n=n, axis=axis, norm=norm))
        except (ValueError, IndexError) as e:
            raise ArgumentError(f"{name}: {e}, got {shown(a)} with n={n} axis={axis} norm={norm!r}") from None

    call.__name__, call.__doc__ = name, f"The transform {name} along an axis."
    return call


def _many(name: str) -> Callable[..., Any]:
    def call(x: Any, /, s: Any = None, axes: Any = None, norm: str = "backward") -> Array:
        a = _prepared(x, name)
        if s is not None and axes is None:
            axes = tuple(range(a.ndim - len(s), a.ndim))
        try:
            return give(getattr(np.fft, name)(a, s=s, axes=axes, norm=norm))
        except (ValueError, IndexError) as e:
            raise ArgumentError(f"{name}: {e}, got {shown(a)} with s={s} axes={axes} norm={norm!r}") from None

    call.__name__, call.__doc__ = name, f"The transform {name} along several axes."
    return call


for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    FUNCTIONS[_name] = _one(_name)
for _name in ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2"):
    FUNCTIONS[_name] = _many(_name)


def _frequencies(name: str) -> Callable[..., Any]:
    def call(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
        if device not in (None, "cpu"):
            return call(n, d, dtype=dtype).to(device)
        return wrap(np.asarray(getattr(np.fft, name)(n, d)).astype(FLOAT if dtype is None else known(dtype, name)))

    call.__name__, call.__doc__ = name, f"The sample frequencies of {'rfft' if name[0] == 'r' else 'fft'}."
    return call


def _shift(name: str) -> Callable[..., Any]:
    def call(x: Any, /, axes: Any = None) -> Array:
        return give(getattr(np.fft, name)(header(x, name), axes))

    call.__name__, call.__doc__ = name, "The zero frequency moved to the middle." if name == "fftshift" else "The opposite of fftshift."
    return call


for _name in ("fftfreq", "rfftfreq"):
    FUNCTIONS[_name] = _frequencies(_name)
for _name in ("fftshift", "ifftshift"):
    FUNCTIONS[_name] = _shift(_name)
