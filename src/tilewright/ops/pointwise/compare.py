"""Comparisons and logic: elementwise ops with a bool result. Any comparison with NaN is False, except NotEqual."""
from __future__ import annotations

from typing import Any, ClassVar

from ...core import dtypes as dt
from ..base import E, S, Traits, register
from ..families import Binary, N, binary_samples, boolean, f32, f64, i32, i64
from ..tiles import TileBuilder


class Compare(Binary):
    """x fn y, with the tile IR's name of the comparison."""

    kinds = "fiub"
    to_bool = True
    tile: ClassVar[str] = ""
    samples = [*binary_samples(-3, 3, boolean(6)), S(i32(9), i32(9), low=-2, high=2), S(i64(N, 1), i64(3), low=-2, high=2)]
    errors = [E(f32(3), f64(3), match="operands must have one dtype"), E(f32(3), f32(4), match="shapes do not broadcast")]

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        if x.dtype.is_bool:
            x, y = t.cast(x, dt.i32), t.cast(y, dt.i32)
        return t.cmp(type(self).tile, x, y)


@register
class Equal(Compare):
    """x == y."""

    public, aten, complex, numpy = "equal", "eq.Tensor|Scalar", "rule", "equal"
    tile = "eq"
    traits = Traits(elementwise=True, commutative=True)


@register
class NotEqual(Compare):
    """x != y; True for NaN."""

    public, aten, complex, numpy = "not_equal", "ne.Tensor|Scalar not_equal.Tensor|Scalar", "rule", "not_equal"
    tile = "ne"
    traits = Traits(elementwise=True, commutative=True)


@register
class Less(Compare):
    """x < y."""

    public, aten, numpy = "less", "lt.Tensor|Scalar less.Tensor|Scalar", "less"
    tile = "lt"


@register
class LessEqual(Compare):
    """x <= y."""

    public, aten, numpy = "less_equal", "le.Tensor|Scalar less_equal.Tensor|Scalar", "less_equal"
    tile = "le"


@register
class Greater(Compare):
    """x > y."""

    public, aten, numpy = "greater", "gt.Tensor|Scalar greater.Tensor|Scalar", "greater"
    tile = "gt"


@register
class GreaterEqual(Compare):
    """x >= y."""

    public, aten, numpy = "greater_equal", "ge.Tensor|Scalar greater_equal.Tensor|Scalar", "greater_equal"
    tile = "ge"


class Logic(Binary):
    kinds = "b"
    traits = Traits(elementwise=True, commutative=True)
    samples = [S(boolean(3, 5), boolean(5)), S(boolean(), boolean(4)), S(boolean(N, 2), boolean(2))]
    errors = [E(i32(3), i32(3), match="needs bool operands; cast first, got dtype=i32")]


@register
class LogicalAnd(Logic):
    """Both."""

    public, numpy = "logical_and", "logical_and"
    tile = "and"


@register
class LogicalOr(Logic):
    """Either."""

    public, numpy = "logical_or", "logical_or"
    tile = "or"


@register
class LogicalXor(Logic):
    """Exactly one."""

    public, numpy = "logical_xor", "logical_xor"
    tile = "xor"
