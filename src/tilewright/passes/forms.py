"""What is known about an integer or mask tensor in terms of its own indices, for any length of its axes.

`Linear`: element = const + sum(coeffs[k] * index k). `Choice`: element = `yes` where every bound (a Linear) is >= 0, else `no`;
without bounds it is the same number everywhere. Both are exact; what does not fit has no form (None).
An axis of size 1 always has coefficient 0, so equal forms compare equal.
"""
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..core.dims import Dim, Shape, bounds
from ..core.exact import same

Number = float | int | bool


@dataclass(frozen=True)
class Linear:
    const: Dim
    coeffs: tuple[Dim, ...]

    @property
    def is_uniform(self) -> bool:
        return all(c == 0 for c in self.coeffs)

    def __add__(self, other: Linear) -> Linear:
        a, b = align(self, other)
        return Linear(a.const + b.const, tuple(x + y for x, y in zip(a.coeffs, b.coeffs, strict=True)))

    def scaled(self, k: Dim) -> Linear:
        return Linear(self.const * k, tuple(c * k for c in self.coeffs))

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    def shifted(self, k: Dim) -> Linear:
        return Linear(self.const + k, self.coeffs)

    def range(self, shape: Shape) -> tuple[int, int] | None:
        """Inclusive bounds of every element, given the shape that `coeffs` index (aligned at the last axis)."""
        low = high = self.const
        for c, n in zip(reversed(self.coeffs), reversed(shape), strict=False):
            if not isinstance(c, int):
                return None
            low, high = low + min(c, 0) * (n - 1), high + max(c, 0) * (n - 1)
        return bounds(low)[0], bounds(high)[1]


@dataclass(frozen=True)
class Choice:
    bounds: tuple[Linear, ...]
    yes: Number
    no: Number

    @property
    def is_uniform(self) -> bool:
        return not self.bounds

    def map(self, fn: Callable[[Number], Number]) -> Choice | None:
        yes, no = fn(self.yes), fn(self.no)
        if math.isnan(yes) or math.isnan(no):
            return None
        return Choice((), yes, yes) if same(yes, no) else Choice(self.bounds, yes, no)


Form = Linear | Choice


def align(a: Linear, b: Linear) -> tuple[Linear, Linear]:
    """Both with the longer one's rank (NumPy broadcasting)."""
    n = max(len(a.coeffs), len(b.coeffs))
    return (Linear(a.const, (0,) * (n - len(a.coeffs)) + a.coeffs), Linear(b.const, (0,) * (n - len(b.coeffs)) + b.coeffs))


def normal(form: Linear, shape: Shape) -> Linear:
    """`form` with coefficient 0 on axes of size 1 and one coefficient per axis of `shape`."""
    lead = len(shape) - len(form.coeffs)
    coeffs = (0,) * lead + form.coeffs
    return Linear(form.const, tuple(0 if n == 1 else c for c, n in zip(coeffs, shape, strict=True)))


def number(form: Form | None) -> Number | None:
    """The one number that every element is, if it is known now."""
    if isinstance(form, Linear):
        return form.const if form.is_uniform and isinstance(form.const, int) else None
    return form.yes if form is not None and form.is_uniform else None


def conjunction(form: Form | None) -> tuple[Linear, ...] | bool | None:
    """A boolean form as bounds that must all hold, or True / False when it is so everywhere, or None."""
    value = number(form)
    if value is not None:
        return bool(value)
    if not isinstance(form, Choice):
        return None
    if form.yes and not form.no:
        return form.bounds
    if form.no and not form.yes and len(form.bounds) == 1:
        return (form.bounds[0].scaled(-1).shifted(-1),)  # not (b >= 0)  is  -b - 1 >= 0
    return None


def where_all(found: tuple[Linear, ...] | bool, shape: Shape) -> Choice:
    """True where all bounds hold; bounds that always hold go, one that never holds decides."""
    if isinstance(found, bool):
        return Choice((), found, found)
    kept: list[Linear] = []
    for b in dict.fromkeys(normal(b, shape) for b in found):
        known = b.range(shape)
        if known is not None and known[0] >= 0:
            continue
        if known is not None and known[1] < 0:
            return Choice((), False, False)
        kept.append(b)
    return Choice(tuple(kept), True, False) if kept else Choice((), True, True)
