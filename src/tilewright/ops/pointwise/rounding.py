"""Rounding to integers."""
from __future__ import annotations

from ..base import register
from .elementwise import FLOAT_ONLY, Primitive


@register
class Floor(Primitive):
    """Largest whole number not above x."""

    public, numpy = "floor", "floor"
    tile = "floor"
    steps = True
    errors = FLOAT_ONLY
    dydx = lambda x, y: None


@register
class Ceil(Primitive):
    """Smallest whole number not below x."""

    public, numpy = "ceil", "ceil"
    tile = "ceil"
    steps = True
    errors = FLOAT_ONLY
    dydx = lambda x, y: None


@register
class Round(Primitive):
    """Nearest integer, halves to even."""

    public, numpy = "round", "rint"
    tile = "round"
    steps = True
    errors = FLOAT_ONLY
    dydx = lambda x, y: None


@register
class Trunc(Primitive):
    """x without its fraction."""

    public, numpy = "trunc", "trunc"
    tile = "trunc"
    steps = True
    errors = FLOAT_ONLY
    dydx = lambda x, y: None
