"""Casts, and the elementwise ops of one operand whose results are bools or bits.

Elementwise ops that look at a number's sign or bits: copysign, signbit, nextafter; the hypotenuse; common divisors of integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Traits, Values, register
from ..families import Binary, Unary, bf16, boolean, enter_ops, f16, f32, f64, i32, i64, u8
from ..special import vector_math as vm
from ..tiles import TileBuilder


@register
class LogicalNot(Unary):
    """True where x is False."""

    public, numpy = "logical_not", "logical_not"
    kinds = "b"
    samples = [S(boolean(3, 5)), S(boolean()), S(boolean(0))]
    errors = [E(i32(3), match="needs bool operands; cast first, got dtype=i32")]
    tile = "not"


@register
class BitwiseNot(Unary):
    """Every bit flipped; the logical not of bools."""

    public, numpy = "bitwise_not bitwise_invert invert", "bitwise_not"
    kinds = "iub"
    samples = [S(i32(3, 5), low=-9, high=9), S(boolean(4)), S(u8(3), low=0, high=200)]
    errors = [E(f32(3), match="needs integer or bool operands; cast first, got dtype=f32")]

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if x.dtype.is_bool:
            return t.unary("not", x)
        return t.binary("xor", x, t.full((), (1 << 8 * x.dtype.itemsize) - 1 if x.dtype.kind == "u" else -1, x.dtype))


enter_ops(Unary, __name__, {
    "IsNan": ("True where x is NaN.", {"public": "isnan", "complex": "rule", "numpy": "isnan", "tile": "isnan", "to_bool": True}),
    "IsInf": ("True where x is an infinity of either sign.", {"public": "isinf", "complex": "rule", "numpy": "isinf", "tile": "isinf",
                                                              "to_bool": True}),
})


@register
class Cast(Unary):
    """x in another dtype: to bool means `!= 0`, floats to integers truncate, f64 to small floats rounds through f32 as PyTorch does."""

    complex = "rule"
    dtype: DType
    errors = []
    samples = [S(f32(3, 5), dtype=dt.i32, low=-9, high=9), S(f64(7), dtype=dt.f32), S(f32(6), dtype=dt.bf16), S(f64(5), dtype=dt.f16),
               S(bf16(4), dtype=dt.f32), S(i64(2, 3), dtype=dt.f32, low=-9, high=9), S(f32(5), dtype=dt.bool_), S(i32(5), dtype=dt.bool_),
               S(boolean(2, 3), dtype=dt.f32), S(boolean(3), dtype=dt.i64), S(f16(3), dtype=dt.bf16),
               S(i64(4), dtype=dt.u8, low=0, high=200), S(f32(0), dtype=dt.f64), S(f32(3), dtype=dt.f32)]

    def infer(self, *types: TensorType) -> TensorType:
        x, = types
        return x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        if self.dtype.is_bool:
            return np.not_equal(x, 0)
        if self.dtype in dt.SMALL and x.dtype == np.float64:
            x = x.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            return x.astype(self.dtype.np)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        if self.dtype.is_bool and not x.dtype.is_bool:
            return t.cmp("ne", x, 0)
        if self.dtype in dt.SMALL and x.dtype is dt.f64:
            x = t.cast(x, dt.f32)
        return t.cast(x, self.dtype)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value | None:
        return F.cast(g, inputs[0].dtype if g.dtype is output.dtype else output.dtype)


@register
class Bitcast(Unary):
    """The bits of x, whose dtype is `source`, as another dtype of the same size. Small floats are rounded to their dtype first."""

    source: DType
    dtype: DType
    samples = [S(f32(3, 5), source=dt.f32, dtype=dt.i32), S(i32(4), source=dt.i32, dtype=dt.f32, low=1 << 29, high=1 << 30),
               S(f64(7), source=dt.f64, dtype=dt.i64), S(f16(5), source=dt.f16, dtype=dt.i16), S(bf16(2, 3), source=dt.bf16, dtype=dt.i16),
               S(u8(6), source=dt.u8, dtype=dt.i8, low=0, high=255), S(f32(0), source=dt.f32, dtype=dt.i32),
               S(f32(), source=dt.f32, dtype=dt.u32)]
    errors = [E(f32(3), source=dt.f32, dtype=dt.i64, match="needs a dtype of the operand's size, got dtype=i64"),
              E(f32(3), source=dt.f16, dtype=dt.i16, match="needs an operand of its source dtype, got source=f16"),
              E(boolean(3), source=dt.bool_, dtype=dt.u8, match="needs integer or float operands")]

    def infer(self, *types: TensorType) -> TensorType:
        x, = types
        require(x.dtype.kind in "iuf" and self.dtype.kind in "iuf", "needs integer or float operands and results", x=x, dtype=self.dtype)
        require(x.dtype is self.source, "needs an operand of its source dtype", source=self.source, x=x)
        require(x.dtype.itemsize == self.dtype.itemsize, "needs a dtype of the operand's size", dtype=self.dtype, x=x)
        return x.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        return np.ascontiguousarray(x, self.source.np).view(self.dtype.np).reshape(np.shape(x))

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return t.bitcast(t.cast(x, self.source), self.dtype)

    def derivative(self, x: Value, y: Value) -> None:
        return None


MIXED = [E(f32(3), f64(3), match="operands must have one dtype; cast first"), E(i32(3), i32(3), match="needs float operands; cast first")]


@register
class Signbit(Unary):
    """True where the sign is minus, also of -0."""

    public = "signbit"
    kinds = "fiu"
    to_bool = True
    samples = [S(f32(3, 5)), S(f64(7)), S(bf16(3)), S(i64(4), low=-3, high=3), S(u8(3), low=0, high=3)]
    errors = [E(boolean(3), match="needs float or integer operands; cast first, got dtype=bool")]

    def ref(self, x: Any) -> Any:
        return np.signbit(x) if x.dtype.kind == "f" else np.less(x, 0)

    def lower(self, t: TileBuilder, x: Any) -> Any:
        return vm.sign_bit(t, x) if x.dtype.is_float else t.cmp("lt", x, 0)


@register
class Copysign(Binary):
    """|x| with the sign of y."""

    public, aten, numpy = "copysign", "copysign.Tensor|Scalar", "copysign"
    samples = [S(f32(3, 5), f32(5)), S(f64(4), f64()), S(bf16(3), bf16(3))]
    errors = MIXED

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return vm.copy_sign(t, x, y)

    def on_bits(self, t: TileBuilder, *words: Any) -> Any:
        sign = 1 << (8 * words[0].dtype.itemsize - 1)
        return t.binary("or", t.binary("and", words[0], sign - 1), t.binary("and", words[1], sign))

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value | None:
        x = inputs[0]
        if i == 1:
            return None
        return F.where(F.equal(x, 0), 0, F.where(F.equal(F.greater(x, 0), F.greater(output, 0)), g, F.neg(g)))


@register
class Nextafter(Binary):
    """The next number from x towards y."""

    public, aten, numpy = "nextafter", "nextafter", "nextafter"
    samples = [S(f32(3, 5), f32(5)), S(f64(4), f64())]
    errors = [*MIXED, E(bf16(3), bf16(3), match="the next number of a small float is not supported yet")]

    def infer(self, *types: TensorType) -> TensorType:
        require(types[0].dtype not in dt.SMALL, "the next number of a small float is not supported yet", x=types[0])
        return super().infer(*types)

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        raw = vm.bits(t, x)
        inwards = t.binary("xor", t.cmp("gt", x, 0.0), t.cmp("gt", y, x))  # the size of x shrinks
        one = t.full((), 1, raw.dtype)
        moved = vm.floats(t, t.select(inwards, raw - one, raw + one))
        tiny = vm.copy_sign(t, vm.floats(t, one), y)
        y_ = t.select(t.cmp("eq", x, 0.0), tiny, moved)
        return t.select(t.unary("isnan", x), x, t.select(t.unary("isnan", y), y, t.select(t.cmp("eq", x, y), y, y_)))

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return 1.0, None


@register
class Hypot(Binary):
    """sqrt(x**2 + y**2) without overflow in between; infinite where either is."""

    public, aten = "hypot", "hypot"
    traits = Traits(elementwise=True, commutative=True)
    samples = [S(f32(3, 5), f32(5)), S(f64(4), f64()), S(bf16(3), bf16(3))]
    errors = MIXED

    def ref(self, x: Any, y: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.hypot(x, y)

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        infinite = t.binary("or", t.unary("isinf", x), t.unary("isinf", y))
        if vm.single(x):
            a, b = vm.wide(t, x), vm.wide(t, y)
            out = t.cast(t.unary("sqrt", a * a + b * b), dt.f32)
        else:
            a, b = t.unary("abs", x), t.unary("abs", y)
            large = t.binary("max", a, b)
            ratio = t.binary("min", a, b) / t.select(t.cmp("eq", large, 0.0), 1.0, large)
            out = large * t.unary("sqrt", ratio * ratio + 1.0)
        return t.select(infinite, float("inf"), out)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return F.mul(g, F.div(inputs[i], output))


class Divisor(Binary):
    kinds = "iu"
    traits = Traits(elementwise=True, commutative=True)
    samples = [S(i64(3, 5), i64(5), low=-40, high=40), S(i32(9), i32(9), low=-100, high=100), S(u8(7), u8(7), low=0, high=200)]
    errors = [E(f32(3), f32(3), match="needs integer operands; cast first"), E(i32(3), i64(3), match="operands must have one dtype")]

    @staticmethod
    def common(t: Any, x: Any, y: Any) -> Any:
        """Stein's algorithm: the difference of two odd numbers without its factors 2 takes the place of the larger one, four steps at a
        time while a pair needs more. A step halves the product of the two at least."""
        bits, signed = 8 * x.dtype.itemsize, x.dtype.kind == "i"
        wide, real = (dt.u64, dt.f64) if bits == 64 else (dt.u32, dt.f32)
        step, bias, last = (52, 1023, 63) if bits == 64 else (23, 127, 31)

        def twos(v: Any) -> Any:
            """How many factors 2 v has, by the exponent of its lowest bit; anything for 0."""
            low = t.bitcast(t.cast(t.bitcast(t.binary("and", v, 0 - v), dt.i64 if bits == 64 else dt.i32), real), wide)
            return t.binary("and", t.binary("shr", low, step) - bias, last)

        def odd(v: Any) -> Any:
            return t.binary("shr", v, twos(v))

        a, b = (t.cast(t.select(t.cmp("lt", v, 0), 0 - v, v) if signed else v, wide) for v in (x, y))
        if signed and bits < 32:  # the absolute value of the least integer is itself, which the cast extends by its sign
            a, b = (t.binary("and", v, (1 << bits) - 1) for v in (a, b))
        shape = t.broadcast_shape(a.shape, b.shape)
        a, b = t.broadcast(a, shape), t.broadcast(b, shape)
        shared = twos(t.binary("or", a, b))
        a, b = t.select(t.cmp("eq", a, 0), b, a), t.select(t.cmp("eq", b, 0), a, b)
        with t.loop(0, 2 * bits, 4, carried=(odd(a), odd(b))) as steps:
            left = t.select(t.cmp("ne", *steps.carried), t.full((), 4, dt.i32), 0)
            for axis in range(len(shape)):
                left = t.reduce("max", left, axis)
            with t.loop(0, t.to_index(left), 1, carried=steps.carried) as loop:
                p, q = loop.carried
                less = t.binary("min", p, q)
                rest = t.binary("max", p, q) - less
                loop.next(less, t.select(t.cmp("eq", rest, 0), less, odd(rest)))
            steps.next(*loop.results)
        return t.cast(t.binary("shl", steps.results[0], shared), x.dtype)


@register
class Gcd(Divisor):
    """The greatest common divisor; of 0 and x it is |x|."""

    public, aten, numpy = "gcd", "gcd", "gcd"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return self.common(t, x, y)


@register
class Lcm(Divisor):
    """The least common multiple; 0 where either is 0."""

    public, aten, numpy = "lcm", "lcm", "lcm"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        g = self.common(t, x, y)
        out = t.binary("floordiv", x, t.select(t.cmp("eq", g, 0), t.full((), 1, g.dtype), g)) * y
        return out if x.dtype.kind == "u" else t.select(t.cmp("lt", out, 0), 0 - out, out)
