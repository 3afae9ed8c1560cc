"""Rounding to integers: floor, ceil, trunc, and round half to even. One instruction from SSE4.1 on; before, a few that call no library."""
from __future__ import annotations

from .base import V


def _nearest(x: V) -> V:
    """Half to even by adding and taking away the number whose last place is 1, with the sign of x (keeps -0; large x and NaN stay)."""
    big = 2.0**52 if x.is_double else 2.0**23
    a = x.abs()
    return (a < big).choose(((a + big) - big).sign_of(x), x)


def round_even(x: V) -> V:
    return x.overloaded("llvm.roundeven") if x.f.features.has_sse41 else _nearest(x)


def floor(x: V) -> V:
    if x.f.features.has_sse41:
        return x.overloaded("llvm.floor")
    n = _nearest(x)
    return (n > x).choose(n - 1.0, n).sign_of(x)


def ceil(x: V) -> V:
    if x.f.features.has_sse41:
        return x.overloaded("llvm.ceil")
    n = _nearest(x)
    return (n < x).choose(n + 1.0, n).sign_of(x)


def trunc(x: V) -> V:
    if x.f.features.has_sse41:
        return x.overloaded("llvm.trunc")
    a = x.abs()
    n = _nearest(a)
    return (n > a).choose(n - 1.0, n).sign_of(x)


FUNCTIONS = {"round": round_even, "floor": floor, "ceil": ceil, "trunc": trunc}
