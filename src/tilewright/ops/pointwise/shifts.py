"""Shifts of integers. An amount below 0 or beyond the width shifts everything out, as in NumPy and PyTorch; targets leave it undefined."""
from __future__ import annotations

from typing import Any

from ..base import E, S, register
from ..families import Binary, N, boolean, f32, i32, i64, u8
from ..tiles import TileBuilder


class Shift(Binary):
    kinds = "iu"
    samples = [S(i32(3, 5), i32(5), low=(-99, -3), high=(99, 40)), S(i64(N), i64(1), low=(-99, 0), high=(99, 70)),
               S(u8(3), u8(3), low=(0, 0), high=(255, 12)), S(i32(4), i32(), low=(-99, 1), high=(99, 3)), S(i64(0), i64(0))]
    errors = [E(f32(3), f32(3), match="needs integer operands; cast first"), E(i32(3), i64(3), match="operands must have one dtype"),
              E(boolean(3), boolean(3), match="needs integer operands; cast first")]


def _inside(t: TileBuilder, y: Any) -> Any:
    """Whether the amount is one of 0 … width - 1."""
    below = t.cmp("lt", y, 8 * y.dtype.itemsize)
    return below if y.dtype.kind == "u" else t.binary("and", below, t.cmp("ge", y, 0))


@register
class BitwiseLeftShift(Shift):
    """x * 2**y, the highest bits dropped; 0 where y is outside 0 … width - 1."""

    public = "bitwise_left_shift left_shift"
    aten = "bitwise_left_shift.Tensor|Tensor_Scalar|Scalar_Tensor __lshift__.Tensor|Scalar __ilshift__.Tensor|Scalar"
    numpy = "left_shift"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        good, none = _inside(t, y), t.full((), 0, y.dtype)
        return t.select(good, t.binary("shl", x, t.select(good, y, none)), none)


@register
class BitwiseRightShift(Shift):
    """floor(x / 2**y); where y is outside 0 … width - 1 what is left is the sign: -1 or 0."""

    public = "bitwise_right_shift right_shift"
    aten = "bitwise_right_shift.Tensor|Tensor_Scalar|Scalar_Tensor __rshift__.Tensor|Scalar __irshift__.Tensor|Scalar"
    numpy = "right_shift"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        good, most = _inside(t, y), t.full((), 8 * y.dtype.itemsize - 1, y.dtype)
        shifted = t.binary("shr", x, t.select(good, y, most))
        return shifted if y.dtype.kind == "i" else t.select(good, shifted, t.full((), 0, y.dtype))
