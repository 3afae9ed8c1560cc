"""An op that the package does not have, in one file: what CONTRIBUTING's recipe says is all it takes."""

from __future__ import annotations

from math import pi
from typing import Any

from tilewright.ir.graph import Value
from tilewright.ops.base import register
from tilewright.ops.families import Unary, unary_samples


@register
class ToRadians(Unary):
    """An angle in degrees as one in radians."""

    public, aten, numpy = "to_radians degrees_to_radians", "deg2rad", "deg2rad"
    samples = unary_samples(-360, 360)

    def lower(self, t: Any, x: Any) -> Any:
        return x * (pi / 180)

    def derivative(self, x: Value, y: Value) -> float:
        return pi / 180
