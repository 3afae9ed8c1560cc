"""Elementwise ops that look at a number's sign or bits: copysign, signbit, nextafter; the hypotenuse; common divisors of integers."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...ir.graph import Value
from .. import functions as F
from ..base import E, S, Traits, Values, register
from ..families import Binary, Unary, bf16, boolean, f32, f64, i32, i64, u8
from ..special import vector_math as vm
from ..tiles import TileBuilder

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
    errors = MIXED

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
