"""Comparisons and logic: elementwise ops with a bool result. Any comparison with NaN is False, except NotEqual."""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ..base import E, S, Traits, register
from ..families import Binary, N, binary_samples, boolean, f32, f64, i32, i64


class Compare(Binary):
    """x fn y, with the tile IR's name of the comparison."""

    kinds = "fiub"
    to_bool = True
    tile: ClassVar[str] = ""
    samples = [*binary_samples(-3, 3, boolean(6)), S(i32(9), i32(9), low=-2, high=2), S(i64(N, 1), i64(3), low=-2, high=2)]
    errors = [E(f32(3), f64(3), match="operands must have one dtype"), E(f32(3), f32(4), match="shapes do not broadcast")]

    def lower(self, t: Any, x: Any, y: Any) -> Any:
        if x.dtype.is_bool:
            x, y = t.cast(x, dt.i32), t.cast(y, dt.i32)
        return t.cmp(type(self).tile, x, y)


@register
class Equal(Compare):
    """x == y."""

    tile = "eq"
    traits = Traits(elementwise=True, commutative=True)

    def ref(self, x: Any, y: Any) -> Any:
        return np.equal(x, y)


@register
class NotEqual(Compare):
    """x != y; True for NaN."""

    tile = "ne"
    traits = Traits(elementwise=True, commutative=True)

    def ref(self, x: Any, y: Any) -> Any:
        return np.not_equal(x, y)


@register
class Less(Compare):
    """x < y."""

    tile = "lt"

    def ref(self, x: Any, y: Any) -> Any:
        return np.less(x, y)


@register
class LessEqual(Compare):
    """x <= y."""

    tile = "le"

    def ref(self, x: Any, y: Any) -> Any:
        return np.less_equal(x, y)


@register
class Greater(Compare):
    """x > y."""

    tile = "gt"

    def ref(self, x: Any, y: Any) -> Any:
        return np.greater(x, y)


@register
class GreaterEqual(Compare):
    """x >= y."""

    tile = "ge"

    def ref(self, x: Any, y: Any) -> Any:
        return np.greater_equal(x, y)


class Logic(Binary):
    kinds = "b"
    traits = Traits(elementwise=True, commutative=True)
    samples = [S(boolean(3, 5), boolean(5)), S(boolean(), boolean(4)), S(boolean(N, 2), boolean(2))]
    errors = [E(i32(3), i32(3), match="needs bool operands; cast first, got dtype=i32")]


@register
class LogicalAnd(Logic):
    """Both."""

    def ref(self, x: Any, y: Any) -> Any:
        return np.logical_and(x, y)

    def lower(self, t: Any, x: Any, y: Any) -> Any:
        return t.binary("and", x, y)


@register
class LogicalOr(Logic):
    """Either."""

    def ref(self, x: Any, y: Any) -> Any:
        return np.logical_or(x, y)

    def lower(self, t: Any, x: Any, y: Any) -> Any:
        return t.binary("or", x, y)


@register
class LogicalXor(Logic):
    """Exactly one."""

    def ref(self, x: Any, y: Any) -> Any:
        return np.logical_xor(x, y)

    def lower(self, t: Any, x: Any, y: Any) -> Any:
        return t.binary("xor", x, y)
