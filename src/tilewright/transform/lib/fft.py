"""`tw.fft`: NumPy's Fourier transforms. Any length; `n` cuts or fills with zeros; norm is "backward", "ortho" or "forward". f16 and bf16
are transformed in f32."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ShapeError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.fourier import functions as T
from ..promote import as_float, as_tracer
from ..trace import Functions, Tracer, built, user_place
from .complex import as_complex
from .reductions import one_axis

public = FUNCTIONS = Functions()


def _axes(name: str, x: Tracer, s: Sequence[int] | None, axes: Sequence[int] | None) -> tuple[list[int], list[int]]:
    """Axes and the size along each."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(x.ndim - len(s), x.ndim)
    found = [one_axis(name, a, x.ndim) for a in axes]
    sizes = [x.shape[a] for a in found] if s is None else list(s)
    if len(set(found)) != len(found) or len(sizes) != len(found):
        raise ShapeError(f"{name}: needs one size for each axis, and no axis twice, got s={s}, axes={tuple(axes)} ({user_place()})")
    return found, sizes


def _wide(x: Any) -> Tracer:
    """Numbers of 16 bits are transformed in f32."""
    found = as_float(x)
    return as_tracer(found, dt.f32) if found.value.dtype.itemsize < 4 else found


def _complex_form(name: str, x: Any, s: Any, axes: Any, norm: str | None, *, inverse: bool) -> Any:
    x = _wide(x) if axes is None or len(axes) else as_complex(_wide(x))  # a transform makes real numbers complex itself
    found, sizes = _axes(name, x, s, axes)
    return built(lambda z: T.spectrum(z, found, sizes, norm, inverse=inverse), x)


def _to_half(name: str, x: Any, s: Any, axes: Any, norm: str | None, *, inverse: bool = False) -> Any:
    """Real in, half a complex spectrum out (its conjugate with `inverse`)."""
    x = _wide(x)
    if x.value.dtype.kind == "c":
        raise ShapeError(f"{name}: needs real operands, got {x.type} ({user_place()})")
    found, sizes = _axes(name, x, s, axes)
    return built(lambda v: T.half_spectrum(v, found, sizes, norm, inverse=inverse), x)


def _from_half(name: str, x: Any, s: Any, axes: Any, norm: str | None, *, inverse: bool = True) -> Any:
    """Half a complex spectrum in, real out (of its conjugate unless `inverse`)."""
    x = as_complex(_wide(x))
    found, sizes = _axes(name, x, s, axes)
    if s is None:
        sizes = [*sizes[:-1], 2 * (sizes[-1] - 1)]
    return built(lambda z: T.signal(z, found, sizes, norm, inverse=inverse), x)


def _one(make: Callable[..., Any], name: str, *, inverse: bool, doc: str) -> None:
    def call(x: Any, n: int | None = None, axis: int = -1, norm: str | None = None) -> Any:
        return make(name, x, None if n is None else (n,), (axis,), norm, inverse=inverse)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    FUNCTIONS[name] = call


def _many(make: Callable[..., Any], name: str, default: tuple[int, ...] | None, *, inverse: bool, doc: str) -> None:
    def call(x: Any, s: Sequence[int] | None = None, axes: Sequence[int] | None = default, norm: str | None = None) -> Any:
        return make(name, x, s, axes, norm, inverse=inverse)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = doc
    FUNCTIONS[name] = call


_one(_complex_form, "fft", inverse=False, doc="The discrete Fourier transform along an axis.")
_one(_complex_form, "ifft", inverse=True, doc="The inverse transform along an axis.")
_one(_to_half, "rfft", inverse=False, doc="The transform of a real array: the n // 2 + 1 results that determine the others.")
_one(_from_half, "irfft", inverse=True, doc="The real array of n elements whose `rfft` this is.")
_one(_from_half, "hfft", inverse=False, doc="The real transform of a signal that is its own conjugate reversed, given its first half.")
_one(_to_half, "ihfft", inverse=True, doc="The inverse of `hfft`.")
for _suffix, _default in (("2", (-2, -1)), ("n", None)):
    _kind = "two axes" if _suffix == "2" else "several axes"
    _many(_complex_form, f"fft{_suffix}", _default, inverse=False, doc=f"The transform over {_kind}.")
    _many(_complex_form, f"ifft{_suffix}", _default, inverse=True, doc=f"The inverse transform over {_kind}.")
    _many(_to_half, f"rfft{_suffix}", _default, inverse=False, doc=f"The transform of a real array over {_kind}; the last one is halved.")
    _many(_from_half, f"irfft{_suffix}", _default, inverse=True, doc=f"The inverse of `rfft{_suffix}`.")


@public
def fftfreq(n: int, d: float = 1.0) -> Any:
    """The frequencies of the results of `fft`."""
    return as_tracer(np.fft.fftfreq(n, d).astype(np.float32))


@public
def rfftfreq(n: int, d: float = 1.0) -> Any:
    """The frequencies of the results of `rfft`."""
    return as_tracer(np.fft.rfftfreq(n, d).astype(np.float32))


def _shifted(x: Any, axes: Any, *, forward: bool) -> Any:
    x = as_tracer(x)
    wanted = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes

    def build(v: Value) -> Value:
        for a in (one_axis("fftshift", i, x.ndim) for i in wanted):
            n = v.shape[a]
            cut = n - n // 2 if forward else n // 2
            v = F.concat([F.slice_(v, a, cut, n - cut), F.slice_(v, a, 0, cut)], a)
        return v

    return built(build, x)


@public
def fftshift(x: Any, axes: Any = None) -> Any:
    """The zero frequency moved to the middle."""
    return _shifted(x, axes, forward=True)


@public
def ifftshift(x: Any, axes: Any = None) -> Any:
    """The reverse of `fftshift`."""
    return _shifted(x, axes, forward=False)
