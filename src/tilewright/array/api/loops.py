"""NumPy's loops for elementwise functions, with the array API's special cases where NumPy's own differ."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops import REGISTRY

Header = np.ndarray[Any, Any]
NAMES = {name: op.numpy for op in REGISTRY.values() for name in op.public.split() if op.numpy} | {"conj": "conjugate", "pow": "power"}


def unary(name: str, a: Header, dtype: np.dtype[Any]) -> Header:
    with np.errstate(all="ignore"):
        special = SPECIAL1.get(name)
        found = special(a) if special is not None else getattr(np, NAMES.get(name, name))(a)
    return np.asarray(found, dtype)


def binary(name: str, a: Header, b: Header, dtype: np.dtype[Any]) -> Header:
    with np.errstate(all="ignore"):
        special = SPECIAL2.get(name)
        found = special(a, b) if special is not None else getattr(np, NAMES.get(name, name))(a, b)
    return np.asarray(found, dtype)


def _whole(fn: Callable[[Header], Header]) -> Callable[[Header], Header]:
    """Integers are rounded already; complex numbers by their parts."""
    def call(a: Header) -> Header:
        if a.dtype.kind in "biu":
            return a.copy()
        if a.dtype.kind == "c":
            made = np.empty_like(a)
            made.real, made.imag = fn(a.real), fn(a.imag)
            return made
        return fn(a)
    return call


def _reciprocal(a: Header) -> Header:
    return np.divide(a.dtype.type(1), a) if a.dtype.kind == "c" else np.reciprocal(a)


def _floor_divide(a: Header, b: Header) -> Header:
    """Quotients of floats have the infinities, NaNs and zeros of a true division; a finite number by an infinity is a zero of its sign."""
    if a.dtype.kind in "iu":
        _refuse_zero("floor_divide", b)
        return np.floor_divide(a, b)
    made, true = np.floor_divide(a, b), np.divide(a, b)
    made = np.where(~np.isfinite(true) | ~np.isfinite(a) | ~np.isfinite(b), true, made)
    return np.where(made == 0, np.copysign(made, true), made)


def _expm1(a: Header) -> Header:
    """For complex numbers exp(x) - 1 with C's special values (+0 of -0 + 0j), and without cancellation near 0."""
    if a.dtype.kind != "c":
        return np.expm1(a)
    plain, e = np.expm1(a), np.exp(a)
    made = np.where(np.isfinite(a), plain, e - 1)
    zero = a.imag == 0
    real = np.where(np.isneginf(a.real), -1, np.where(zero, np.expm1(a.real) + 0, made.real))
    imag = np.where(zero, a.imag, np.where(np.isneginf(a.real), e.imag, made.imag))
    out = np.empty_like(a)
    out.real, out.imag = real, imag
    return out


def _tanh(a: Header) -> Header:
    """For complex numbers far to the right: 1 and a zero of the sign of the imaginary part."""
    made = np.tanh(a)
    if a.dtype.kind == "c":
        made = np.array(made)
        far = np.isinf(a.real) & np.isfinite(a.imag)
        if far.any():
            made.real[far] = np.copysign(1, a.real[far])
            made.imag[far] = np.copysign(0, a.imag[far])
    return made


def _remainder(a: Header, b: Header) -> Header:
    if a.dtype.kind in "iu":
        _refuse_zero("remainder", b)
    return np.remainder(a, b)


def _refuse_zero(name: str, b: Header) -> None:
    if b.size and not b.all():
        from ...core.errors import ExecutionError

        raise ExecutionError(f"{name}: division of integers by zero; use floats, or tw.where to keep zeros out")


def _pow(a: Header, b: Header) -> Header:
    if a.dtype.kind in "iu":
        if a.dtype.kind == "i" and b.size and (b < 0).any():
            from ...core.errors import ArgumentError

            raise ArgumentError("pow: an integer to a negative power is no integer; cast to a float dtype")
    return np.power(a, b)


SPECIAL1: dict[str, Callable[[Header], Header]] = {
    "ceil": _whole(np.ceil), "floor": _whole(np.floor), "trunc": _whole(np.trunc), "round": _whole(np.rint),
    "expm1": _expm1, "tanh": _tanh, "reciprocal": _reciprocal, "rsqrt": lambda a: np.reciprocal(np.sqrt(a)),
    "abs": lambda a: np.asarray(np.abs(a)), "positive": lambda a: a.copy(),
    "signbit": lambda a: np.signbit(a) if a.dtype.kind != "i" else a < 0,
    "isfinite": lambda a: np.isfinite(a) if a.dtype.kind not in "biu" else np.ones(a.shape, np.bool_),
    "isinf": lambda a: np.isinf(a) if a.dtype.kind not in "biu" else np.zeros(a.shape, np.bool_),
    "isnan": lambda a: np.isnan(a) if a.dtype.kind not in "biu" else np.zeros(a.shape, np.bool_),
}
SPECIAL2: dict[str, Callable[[Header, Header], Header]] = {
    "floor_divide": _floor_divide, "remainder": _remainder, "pow": _pow,
    "subtract": lambda a, b: np.subtract(a, b) if a.dtype.kind != "b" else np.logical_xor(a, b),
}
