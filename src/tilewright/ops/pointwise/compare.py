"""Comparisons and logic: elementwise ops with a bool result. Any comparison with NaN is False, except NotEqual."""
from __future__ import annotations

from typing import Any, ClassVar

from ...core import dtypes as dt
from ..base import E, S
from ..families import BOTH, Binary, N, binary_samples, boolean, enter_ops, f32, f64, i32, i64
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


enter_ops(Compare, __name__, {
    "Equal": ("x == y.", {"public": "equal", "aten": "eq.Tensor|Scalar", "complex": "rule", "numpy": "equal", "tile": "eq",
                          "traits": BOTH}),
    "NotEqual": ("x != y; True for NaN.", {"public": "not_equal", "aten": "ne.Tensor|Scalar not_equal.Tensor|Scalar", "complex": "rule",
                 "numpy": "not_equal", "tile": "ne", "traits": BOTH}),
    "Less": ("x < y.", {"public": "less", "aten": "lt.Tensor|Scalar less.Tensor|Scalar", "numpy": "less", "tile": "lt"}),
    "LessEqual": ("x <= y.", {"public": "less_equal", "aten": "le.Tensor|Scalar less_equal.Tensor|Scalar", "numpy": "less_equal",
                  "tile": "le"}),
    "Greater": ("x > y.", {"public": "greater", "aten": "gt.Tensor|Scalar greater.Tensor|Scalar", "numpy": "greater", "tile": "gt"}),
    "GreaterEqual": ("x >= y.", {"public": "greater_equal", "aten": "ge.Tensor|Scalar greater_equal.Tensor|Scalar",
                     "numpy": "greater_equal", "tile": "ge"}),
})


class Logic(Binary):
    kinds = "b"
    traits = BOTH
    samples = [S(boolean(3, 5), boolean(5)), S(boolean(), boolean(4)), S(boolean(N, 2), boolean(2))]
    errors = [E(i32(3), i32(3), match="needs bool operands; cast first, got dtype=i32")]


enter_ops(Logic, __name__, {
    "LogicalAnd": ("Both.", {"public": "logical_and", "numpy": "logical_and", "tile": "and"}),
    "LogicalOr": ("Either.", {"public": "logical_or", "numpy": "logical_or", "tile": "or"}),
    "LogicalXor": ("Exactly one.", {"public": "logical_xor", "numpy": "logical_xor", "tile": "xor"}),
})
