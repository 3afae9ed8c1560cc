"""Fourier transforms of Arrays: the array API's extension, by NumPy's transforms over the Array's memory."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...transform.trace import Functions
from ..arrays import Array, wrap
from . import rows
from .base import FLOAT, as_float, header, known

FUNCTIONS = Functions()


def _prepared(x: Any, what: str) -> Any:
    a = as_float(header(x, what))
    return a.astype(np.float32) if dt.dtype(a.dtype) in dt.SMALL else a


def _over_axes(fn: Callable[..., Any]) -> Callable[..., Any]:
    """fn, whose sizes alone are those of the last axes."""
    return lambda a, s, axes, norm: fn(a, s, range(a.ndim - len(s), a.ndim) if s is not None and axes is None else axes, norm)


rows.enter(FUNCTIONS, {
    **{f"{_name}(x, /, n: int | None = None, axis: int = -1, norm: str = 'backward')":
        (f"The transform {_name} along an axis.", getattr(np.fft, _name)) for _name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"{_name}(x, /, s: Any = None, axes: Any = None, norm: str = 'backward')":
        (f"The transform {_name} along several axes.", _over_axes(getattr(np.fft, _name)))
       for _name in ("fftn", "ifftn", "rfftn", "irfftn", "fft2", "ifft2", "rfft2", "irfft2")},
}, lambda what, x: [_prepared(x, what)])
rows.enter(FUNCTIONS, {
    "fftshift(x, /, axes: Any = None)": ("The zero frequency moved to the middle.", np.fft.fftshift),
    "ifftshift(x, /, axes: Any = None)": ("The opposite of fftshift.", np.fft.ifftshift),
})


def _frequencies(name: str) -> Callable[..., Any]:
    def call(n: int, /, d: float = 1.0, *, dtype: Any = None, device: Any = None) -> Array:
        if device not in (None, "cpu"):
            return call(n, d, dtype=dtype).to(device)
        return wrap(np.asarray(getattr(np.fft, name)(n, d)).astype(FLOAT if dtype is None else known(dtype, name)))

    call.__name__, call.__doc__ = name, f"The sample frequencies of {'rfft' if name[0] == 'r' else 'fft'}."
    return call


for _name in ("fftfreq", "rfftfreq"):
    FUNCTIONS[_name] = _frequencies(_name)
