"""Rounding to whole numbers."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.graph import Value
from ..base import register
from .elementwise import FLOAT_ONLY, Primitive


@register
class Floor(Primitive):
    """Largest whole number not above x."""

    tile = "floor"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.floor(x)

    def derivative(self, x: Value, y: Value) -> None:
        return None


@register
class Ceil(Primitive):
    """Smallest whole number not below x."""

    tile = "ceil"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.ceil(x)

    def derivative(self, x: Value, y: Value) -> None:
        return None


@register
class Round(Primitive):
    """Nearest integer, halves to even."""

    tile = "round"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.rint(x)

    def derivative(self, x: Value, y: Value) -> None:
        return None


@register
class Trunc(Primitive):
    """x without its fraction."""

    tile = "trunc"
    errors = FLOAT_ONLY

    def ref(self, x: Any) -> Any:
        return np.trunc(x)

    def derivative(self, x: Value, y: Value) -> None:
        return None
