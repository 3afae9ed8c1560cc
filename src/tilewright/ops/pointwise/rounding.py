"""Rounding to integers."""
from __future__ import annotations

from ..base import register
from ..families import Unary


class Rounding(Unary):
    steps = True
    dydx = lambda x, y: None


@register
class Floor(Rounding):
    """Largest integer not above x."""

    public, numpy, tile = "floor", "floor", "floor"


@register
class Ceil(Rounding):
    """Smallest integer not below x."""

    public, numpy, tile = "ceil", "ceil", "ceil"


@register
class Round(Rounding):
    """Nearest integer, halves to even."""

    public, numpy, tile = "round", "rint", "round"


@register
class Trunc(Rounding):
    """x without its fraction."""

    public, numpy, tile = "trunc", "trunc", "trunc"
