"""sin, cos and tan of f32, computed in f64 without a low part: a result is off by hardly more than its last rounding.

sin and cos take multiples of pi away, so that one polynomial serves all quadrants; tan takes multiples of pi/2 away and is a quotient of
two short polynomials. All parts of a value share one test for lanes of 2^20 and beyond: those are computed again by a cold function.
"""
from __future__ import annotations

import math

from ..llvm_text import mangle
from .base import V, by_cold_function, is_beyond, repaired
from .trig import _COS_SHORT, _HALF_PI, _LIMIT, _MAGIC, vector_function

_PI = (2 * _HALF_PI[0], 2 * (_HALF_PI[1] + _HALF_PI[2]))
_SIN = (0.9999999999787177, -0.16666666608528985, 0.008333330709889427, -0.00019840831493027943, 2.752390386572465e-06,
        -2.3867165717306044e-08)  # sin(x) / x in x^2 for |x| <= pi/2: 2^-35
# tan(x) / x = above / below in x^2 for |x| <= pi/4: 2^-35
_ABOVE = (1.000000000022203, -0.1113616931918174, 0.0010751721345090839)
_BELOW = (1.0, -0.4446950248563811, 0.015973493744022276)


def _wide(x: V) -> V:
    return x.cast("fpext", "double")


def _narrow(x: V) -> V:
    return x.cast("fptrunc", "float")


def _sine(r: V, coefficients: tuple[float, ...] = _SIN) -> V:
    return r * (r * r).poly(coefficients)


def sin(x: V) -> V:
    d = _wide(x)
    t = d.fma(1.0 / math.pi, _MAGIC)
    n = t - _MAGIC
    y = _sine(n.fma(-_PI[1], n.fma(-_PI[0], d)))
    return _repaired("sin", x, _narrow((y.ints() ^ (t.ints() << 63)).floats()))


def cos(x: V) -> V:
    """-+sin of what is left of x after n + 1/2 times pi."""
    d = _wide(x)
    t = d.fma(1.0 / math.pi, -0.5) + _MAGIC
    n = (t - _MAGIC) + 0.5
    y = _sine(n.fma(-_PI[1], n.fma(-_PI[0], d)), tuple(-c for c in _SIN))
    return _repaired("cos", x, _narrow((y.ints() ^ (t.ints() << 63)).floats()))


def _turned(odd: V, r: V) -> V:
    """tan(r), or -1 / tan(r) where odd."""
    z = r * r
    s, c = r * z.poly(_ABOVE), z.poly(_BELOW)
    return odd.choose(-c, s) / odd.choose(s, c)


def tan(x: V) -> V:
    d = _wide(x)
    t = d.fma(2.0 / math.pi, _MAGIC)
    n = t - _MAGIC
    r = n.fma(-_PI[1] / 2, n.fma(-_PI[0] / 2, d))
    return _repaired("tan", x, _narrow(_turned((t.ints() & 1).eq(1), r)))


def _of_reduced(fn: str, k: V, r: V) -> V:
    """The function of k pi/2 + r."""
    if fn == "tan":
        return _turned((k & 1).eq(1), r)
    if fn == "cos":
        k = k + 1
    y = (k & 1).eq(1).choose((r * r).poly(_COS_SHORT), _sine(r))
    return (y.ints() ^ ((k & 2) << 62)).floats()


def _repaired(fn: str, x: V, y: V) -> V:
    """y with the lanes replaced where x is huge or not finite, if there are any."""
    return repaired(is_beyond(x, _LIMIT), y,
                    lambda: by_cold_function(f"tw.reduce_huge.{fn}.{mangle(x.ty)}", x, lambda z: _of_every_size(fn, z)))


def _of_every_size(fn: str, x: V) -> V:
    d = _wide(x)
    out = f"{{ {d.ints().ty}, {d.ty}, {d.ty} }}"
    packed = x.f.value(f"call {out} @{vector_function(x.f, d.ty)}({d.ty} {d.parts[0]})")
    k, r = (V(x.f, t, (x.f.value(f"extractvalue {out} {packed}, {i}"),)) for i, t in enumerate((d.ints().ty, d.ty)))
    return _narrow(_of_reduced(fn, k, r))


FUNCTIONS = {"sin": sin, "cos": cos, "tan": tan}
