"""Elementwise ops of two and three operands: arithmetic, bits, selection. Integer arithmetic wraps."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ExecutionError, require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import (
    BOTH,
    Binary,
    Elementwise,
    N,
    binary_samples,
    boolean,
    broadcast_shapes,
    enter_ops,
    f32,
    f64,
    i32,
    i64,
    require_one_dtype,
    u8,
)
from ..structure import Constant
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


MIXED = [E(f32(3), f64(3), match="operands must have one dtype; cast first, got dtypes=f32, f64")]
APART = [E(f32(3), f32(4), match=r"shapes do not broadcast, got shapes=\[3\] \[4\]"),
         E(f32(N), f32(4), match=r"shapes do not broadcast, got shapes=\[N\] \[4\]")]


@register
class Add(Binary):
    """x + y; `or` for bools."""

    public, complex, numpy = "add", "parts", "add"
    kinds = "fiub"
    traits = BOTH
    samples = binary_samples(-3, 3, i32(4), i64(2, 3), boolean(5))
    errors = [*MIXED, *APART]

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return t.binary("or" if x.dtype.is_bool else "add", x, y)

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return 1.0, 1.0


@register
class Sub(Binary):
    """x - y."""

    public, complex, numpy = "sub subtract", "parts", "subtract"
    kinds = "fiu"
    samples = binary_samples(-3, 3, i32(4))
    errors = [*MIXED, E(boolean(3), boolean(3), match="needs float or integer operands")]
    tile = "sub"

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return 1.0, -1.0


@register
class Mul(Binary):
    """x * y; `and` for bools."""

    public, aten, complex, numpy = "mul multiply", "mul.Tensor|Scalar multiply.Tensor|Scalar", "rule", "multiply"
    kinds = "fiub"
    traits = BOTH
    samples = binary_samples(-3, 3, i32(4), boolean(5))
    errors = [*MIXED, *APART]

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return t.binary("and" if x.dtype.is_bool else "mul", x, y)

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return inputs[1], inputs[0]


@register
class Div(Binary):
    """x / y of floats, IEEE: x / 0 is an infinity or NaN."""

    public, aten, complex, numpy = "div divide true_divide", "div.Tensor|Scalar true_divide.Tensor divide.Tensor", "rule", "divide"
    samples = binary_samples((-3, 0.3), (3, 4))
    errors = [*MIXED, E(i32(3), i32(3), match="needs float operands; cast first")]
    tile = "div"

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return F.div(g, inputs[1]) if i == 0 else F.neg(F.div(F.mul(g, output), inputs[1]))


class Extreme(Binary):
    kinds = "fiub"
    samples = binary_samples(-3, 3, i32(4), boolean(5), u8(3))
    errors = [*MIXED, *APART]
    spelled: ClassVar[tuple[str, str]]  # the instruction for bools, and for numbers
    wins: ClassVar[str]

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return t.binary(self.spelled[not x.dtype.is_bool], x, y)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        """g where this input is the result, half of it where both are."""
        x, other = inputs[i], inputs[1 - i]
        return F.where(F.one(self.wins, x, other), g, F.where(F.equal(x, other), F.mul(g, 0.5), 0))


@register
class Maximum(Extreme):
    """The larger; NaN when either is NaN; of 0.0 and -0.0 either; `or` for bools."""

    public, aten, numpy = "maximum", "maximum max.other", "maximum"
    spelled, wins = ("or", "max"), "greater"


@register
class Minimum(Extreme):
    """The smaller; NaN when either is NaN; of 0.0 and -0.0 either; `and` for bools."""

    public, aten, numpy = "minimum", "minimum min.other", "minimum"
    spelled, wins = ("and", "min"), "less"


@register
class Pow(Binary):
    """x ** y, of floats as C's pow. Integers wrap; a negative exponent gives 0, or 1 and -1 of those bases."""

    public, complex = "pow power", "rule"
    kinds = "fiu"
    samples = [*binary_samples((0.1, -2), (3, 3)), S(i32(9), i32(9), low=-3, high=5), S(i64(2, 3), i64(), low=(-9, 0), high=(9, 9)),
               S(u8(5), u8(5), low=0, high=9)]
    errors = [*MIXED, E(boolean(3), boolean(3), match="needs float or integer operands; cast first")]

    def ref(self, x: Any, y: Any) -> Any:
        if x.dtype.kind not in "iu":
            out = np.power(x, y)  # which takes the square root where y is one 0.5
            flat = (y == 0.5) & ((x == 0) | np.isinf(x))
            return np.where(flat, np.abs(x), out).astype(out.dtype) if np.any(flat) else out
        whole = np.power(x, np.where(y < 0, 0, y).astype(y.dtype))
        inverse = np.where(x == 1, 1, np.where(x == -1, np.where(y % 2 == 0, 1, -1), 0)) if x.dtype.kind == "i" else 0
        return np.where(y < 0, inverse, whole).astype(x.dtype)

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return t.binary("pow", x, y) if x.dtype.is_float else self._whole(t, x, y)

    @staticmethod
    def _whole(t: Any, x: Any, y: Any) -> Any:
        """Squares of x for the bits of y."""
        shape = t.broadcast_shape(x.shape, y.shape)
        one = t.broadcast(t.full((), 1, x.dtype), shape)
        bits = 8 * x.dtype.itemsize - (x.dtype.kind == "i")
        with t.loop(0, bits, 1, carried=(one, t.broadcast(x, shape), t.broadcast(y, shape))) as loop:
            out, base, left = loop.carried
            odd = t.cmp("ne", t.binary("and", left, 1), 0)
            loop.next(t.select(odd, out * base, out), base * base, t.binary("shr", left, 1))
        out = loop.results[0]
        if x.dtype.kind == "u":
            return out
        odd = t.cmp("ne", t.binary("and", y, 1), 0)
        inverse = t.select(t.cmp("eq", x, 1), 1, t.select(t.cmp("eq", x, -1), t.select(odd, t.full((), -1, x.dtype), 1), 0))
        return t.select(t.cmp("lt", y, 0), inverse, out)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        x, y = inputs
        if i == 0:
            return F.where(F.equal(y, 0), 0, F.mul(g, F.mul(y, F.pow_(x, F.sub(y, 1)))))
        known = F.logical_and(F.equal(x, 0), F.greater_equal(y, 0))  # 0 ** y does not change with y, where log(0) is infinite
        return F.where(known, 0, F.mul(g, F.mul(output, F.log(F.where(known, 1, x)))))


def _safe_divisor(t: TileBuilder, y: Any) -> Any:
    """Integer division must not trap: 0 and (for signed types) -1 are replaced by 1 and handled apart."""
    bad = t.cmp("eq", y, 0)
    if y.dtype.kind == "i":
        bad = t.binary("or", bad, t.cmp("eq", y, -1))
    return t.select(bad, t.full((), 1, y.dtype), y)


class Division(Binary):
    """Division of numbers that may be integers: one by 0 is an ExecutionError, whoever reads the result. MIN // -1 wraps to MIN."""

    faults = True
    steps = True
    kinds = "fiu"
    samples = [*binary_samples((-9, 0.3), (9, 4)), S(i32(9), i32(9), low=(-9, 1), high=(9, 4)),
               S(i32(9), i32(9), low=(-9, -4), high=(9, -1)), S(i64(5), i64(), low=(-20, 2), high=(20, 7)),
               S(u8(5), u8(5), low=(0, 1), high=(9, 4))]
    errors = [*MIXED, E(boolean(3), boolean(3), match="needs float or integer operands")]

    def faulty(self, inputs: Values) -> bool:
        divisor = inputs[1]
        if not divisor.dtype.is_int:
            return False
        known = divisor.op.data.array if isinstance(divisor.op, Constant) and divisor.shape == () else None
        return known is None or int(known) == 0

    def ref(self, x: Any, y: Any) -> Any:
        if y.dtype.kind in "iu" and not np.all(y):
            x, y = np.broadcast_arrays(x, y)
            at = int(np.flatnonzero(y.reshape(-1) == 0)[0])
            raise ExecutionError(f"{self.name}: integers are not divided by 0, got {int(x.reshape(-1)[at])} and 0 at position {at}; "
                                 "use where(d == 0, 1, d) for the divisor d")
        return super().ref(x, y)


@register
class Remainder(Division):
    """x - floor(x / y) * y: the sign is the divisor's. Integers modulo 0 are an error."""

    public, aten, numpy = "remainder mod", "remainder.Tensor|Scalar|Scalar_Tensor", "remainder"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        return t.binary("rem", x, y if y.dtype.is_float else _safe_divisor(t, y))

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return g if i == 0 else F.neg(F.mul(g, F.apply("floor_divide", *inputs)))


@register
class FloorDivide(Division):
    """floor(x / y). Integers divided by 0 are an error."""

    public, aten, numpy = "floor_divide", "floor_divide.default|Scalar", "floor_divide"

    def lower(self, t: TileBuilder, x: Any, y: Any) -> Any:
        if y.dtype.is_float:
            return self._lower_float(t, x, y)
        quotient = t.binary("floordiv", x, _safe_divisor(t, y))
        if y.dtype.kind == "i":
            quotient = t.select(t.cmp("eq", y, -1), 0 - x, quotient)
        return t.select(t.cmp("eq", y, 0), t.full((), 0, y.dtype), quotient)

    @staticmethod
    def _lower_float(t: TileBuilder, x: Any, y: Any) -> Any:
        """As C's fmod gives it: floor(x / y) alone is off by one where the quotient rounds up to an integer."""
        magnitude = t.binary("rem", t.unary("abs", x), t.unary("abs", y))
        rest = t.select(t.cmp("lt", x, 0), t.unary("neg", magnitude), magnitude)
        quotient = (x - rest) / y
        other_sign = t.binary("xor", t.cmp("lt", y, 0), t.cmp("lt", rest, 0))
        quotient = t.select(t.binary("and", other_sign, t.cmp("ne", rest, 0)), quotient - 1.0, quotient)
        whole = t.unary("floor", quotient)
        whole = t.select(t.cmp("gt", quotient - whole, 0.5), whole + 1.0, whole)
        return t.select(t.cmp("eq", y, 0), x / y, whole)

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return None, None


class Bits(Binary):
    kinds = "iub"
    traits = BOTH
    samples = [S(i32(3, 5), i32(5), low=-9, high=9), S(boolean(4), boolean(4)), S(u8(3), u8(3), low=0, high=200),
               S(i64(N), i64(1), low=-9, high=9)]
    errors = [E(f32(3), f32(3), match="needs integer or bool operands; cast first"),
              E(i32(3), i64(3), match="operands must have one dtype")]


enter_ops(Bits, __name__, {
    "BitwiseAnd": ("Bits set in both.", {"public": "bitwise_and", "numpy": "bitwise_and", "tile": "and"}),
    "BitwiseOr": ("Bits set in either.", {"public": "bitwise_or", "numpy": "bitwise_or", "tile": "or"}),
    "BitwiseXor": ("Bits set in exactly one.", {"public": "bitwise_xor", "numpy": "bitwise_xor", "tile": "xor"}),
})


@register
class Where(Elementwise):
    """a where the condition holds, else b."""

    public, complex = "where", "parts"
    arity = (3, 3)
    samples = [S(boolean(3, 5), f32(3, 5), f32(3, 5)), S(boolean(5), f32(3, 1), f32()), S(boolean(), i64(4), i64(4)),
               S(boolean(N, 1), f32(N, 3), f32(3)), S(boolean(4), boolean(4), boolean()), S(boolean(0), f32(0), f32(1)),
               S(boolean(2), TensorType(dt.bf16, (2,)), TensorType(dt.bf16, ()))]
    errors = [E(f32(3), f32(3), f32(3), match="the condition must be bool, got condition=f32"),
              E(boolean(3), f32(3), f64(3), match="operands must have one dtype"),
              E(boolean(3), f32(4), f32(4), match="shapes do not broadcast")]

    def infer(self, *types: TensorType) -> TensorType:
        c, a, b = types
        require(c.dtype.is_bool, "the condition must be bool", condition=c.dtype)
        return TensorType(require_one_dtype((a, b)), broadcast_shapes(c.shape, a.shape, b.shape))

    def ref(self, c: Any, a: Any, b: Any) -> Any:
        return np.where(c, a, b)

    def lower(self, t: TileBuilder, c: Any, a: Any, b: Any) -> Any:
        return t.select(c, a, b)

    def scaled(self, i: int, g: Value, inputs: Values, output: Value) -> Value:
        return F.where(inputs[0], g, 0) if i == 1 else F.where(inputs[0], 0, g)
