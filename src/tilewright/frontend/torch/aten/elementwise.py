"""Elementwise arithmetic with torch's type promotion: functions of one operand, sums, products, quotients, powers, rounding."""

from __future__ import annotations

from typing import Any

from .... import ops as O
from ....core.dtypes import complex_of, f32, f64
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.complex import rules as C
from .registry import Context, Handler, aten, axis_of, exact, rows


@aten("conj.default", "_conj.default", "conj_physical.default", "_conj_physical.default",
      "prims.conj_physical.default", "prims.conj.default")
def conj(c: Context, z: Value) -> Any:
    if isinstance(z, (bool, int, float, complex)):  # a scalar of the graph
        return z.conjugate()
    return c.built(C.conj, z) if z.dtype.kind == "c" else z


def as_complex(c: Context, x: Value) -> Value:
    """x as it is where it is complex, else with an imaginary part of 0."""
    return x if x.dtype.kind == "c" else c.cast(x, complex_of(x.dtype))


rows({
    "real.default": lambda c, z: c.emit(O.Real(), z) if z.dtype.kind == "c" else z,
    "imag.default": lambda c, z: c.emit(O.Imag(), z),
    "complex.default": lambda c, re, im: c.emit(O.Complex(), c.expand(re, c.shape), c.expand(im, c.shape)),
    "polar.default": lambda c, size, angle: c.built(C.polar, c.expand(size, c.shape), c.expand(angle, c.shape)),
    "view_as_real.default": lambda c, z: c.emit(O.ViewAsReal(), z),
    "view_as_complex.default": lambda c, x: c.emit(O.ViewAsComplex(), x),
    "_neg_view.default": lambda c, z: c.emit(O.Neg(), z),
    "angle.default": lambda c, z: c.built(C.angle, z if z.dtype.kind in "fc" else F.cast(z, c.dtype)),
})


@aten("elu.default")
@exact
def elu(c: Context, x: Value, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    if input_scale != 1:
        return NotImplemented
    out = c.emit(O.Elu(alpha=float(alpha)), x)
    return out if scale == 1 else c.emit(O.Mul(), out, c.scalar(float(scale), x.dtype))


@aten("glu.default")
def glu(c: Context, x: Value, dim: int = -1) -> Value:
    axis = axis_of(dim, len(x.shape))
    half = x.shape[axis] // 2
    a, b = c.slice(x, axis, 0, half), c.slice(x, axis, half, half)
    return c.emit(O.Mul(), a, c.emit(O.Sigmoid(), b))


@aten("prelu.default", "_prelu_kernel.default")
def prelu(c: Context, x: Value, weight: Value) -> Value:
    if len(weight.shape) == 1 and len(x.shape) > 1 and weight.shape[0] != 1:
        weight = c.reshape(weight, (weight.shape[0], *[1] * (len(x.shape) - 2)))
    if not x.shape:
        weight = c.reshape(weight, ())
    return c.emit(O.Where(), c.emit(O.Greater(), x, c.scalar(0.0, x.dtype)), x, c.emit(O.Mul(), x, weight))


@aten("_safe_softmax.default")
def safe_softmax(c: Context, x: Value, dim: int, dtype: Any = None) -> Value:
    """softmax with zeros for rows that are -inf throughout; they are replaced before, so that no NaN comes into derivatives."""
    x = c.cast(x, c.dtype)
    if not x.shape:
        return c.reshape(safe_softmax(c, c.reshape(x, (1,)), 0), ())
    axis = axis_of(dim, len(x.shape))
    none = c.emit(O.Equal(), c.emit(O.Max(axes=(axis,), keepdims=True), x), c.scalar(-float("inf"), x.dtype))
    out = c.emit(O.Softmax(axis=axis), c.emit(O.Where(), none, c.scalar(0.0, x.dtype), x))
    return c.emit(O.Where(), none, c.scalar(0.0, x.dtype), out)


def _on_axis(c: Context, op: Any, x: Value, dim: int) -> Value:
    x = c.cast(x, c.dtype)
    if not x.shape:
        return c.reshape(c.emit(op(axis=0), c.reshape(x, (1,))), ())
    return c.emit(op(axis=axis_of(dim, len(x.shape))), x)


rows({
    "relu.default":
        lambda c, x: c.emit(O.Relu() if x.dtype.is_float else O.Maximum(), x, *([] if x.dtype.is_float else [c.scalar(0, x.dtype)])),
    "gelu.default": lambda c, x, *, approximate='none': c.emit(O.Gelu(approximate=approximate), x),
    "leaky_relu.default": lambda c, x, negative_slope=0.01: c.emit(O.LeakyRelu(slope=float(negative_slope)), x),
    "softplus.default":
        lambda c, x, beta=1.0, threshold=20.0: c.emit(O.Softplus(), x) if beta == 1 and threshold == 20 else NotImplemented,
    "log_sigmoid.default": lambda c, x: c.emit(O.Neg(), c.emit(O.Softplus(), c.emit(O.Neg(), x))),
    "softmax.int _softmax.default special_softmax.int": lambda c, x, dim, *_, **__: _on_axis(c, O.Softmax, x, dim),
    "log_softmax.int _log_softmax.default special_log_softmax.int": lambda c, x, dim, *_, **__: _on_axis(c, O.LogSoftmax, x, dim),
})


def _rounding(op: Any) -> Handler:
    def handler(c: Context, x: Value) -> Value:
        return c.emit(op(), x) if x.dtype.is_float else x

    return handler


def rounded(c: Context, x: Value) -> Value:
    """Half to even; integers are what they are."""
    return c.emit(O.Round(), x) if x.dtype.is_float else x


aten("round.default")(rounded)
for _name, _op in {"floor": O.Floor, "ceil": O.Ceil, "trunc": O.Trunc, "fix": O.Trunc}.items():
    aten(f"{_name}.default")(_rounding(_op))


@aten("round.decimals")
@exact
def round_decimals(c: Context, x: Value, *, decimals: int = 0) -> Value:
    scale = c.scalar(float(10.0 ** abs(decimals)), x.dtype)
    up, down = (O.Mul(), O.Div()) if decimals >= 0 else (O.Div(), O.Mul())
    return c.emit(down, rounded(c, c.emit(up, x, scale)), scale)


def _one_of(better: Any) -> Handler:
    """The better of two numbers; a NaN loses. The first wins a tie, and takes the whole derivative, as in torch."""

    def handler(c: Context, a: Any, b: Any) -> Value:
        x, y = c.value(a, c.dtype), c.value(b, c.dtype)
        first = c.emit(better(), x, y)
        if c.dtype.is_float:
            first = c.emit(O.LogicalOr(), first, c.emit(O.IsNan(), y))
        return c.emit(O.Where(), first, x, y)

    return handler


aten("fmax.default")(_one_of(O.GreaterEqual))
aten("fmin.default")(_one_of(O.LessEqual))


@aten("div.Tensor_mode", "div.Scalar_mode", "divide.Tensor_mode", "divide.Scalar_mode")
@exact
def div_mode(c: Context, a: Any, b: Any, *, rounding_mode: str | None = None) -> Value:
    dtype = c.dtype
    if rounding_mode == "trunc" and dtype.is_float:  # the quotient is cut before it is rounded to a small float
        wide = f64 if dtype is f64 else f32
        return c.cast(c.emit(O.Trunc(), c.emit(O.Div(), c.value(a, wide), c.value(b, wide))), dtype)
    x, y = c.value(a, dtype), c.value(b, dtype)
    if rounding_mode == "floor":
        return c.emit(O.FloorDivide(), x, y)
    if rounding_mode is None:
        return c.emit(O.Div(), x, y)
    down = c.emit(O.FloorDivide(), x, y)
    return c.emit(O.Add(), down, c.emit(O.Cast(dtype=c.dtype), _rounded_down(c, x, y, c.emit(O.Sub(), x, c.emit(O.Mul(), down, y)))))


def _rounded_down(c: Context, x: Value, y: Value, rest: Value) -> Value:
    """Whether an integer quotient was rounded away from zero: there is a rest, and the signs differ."""
    zero = c.scalar(0, c.dtype)
    signs = c.emit(O.NotEqual(), c.emit(O.Less(), x, zero), c.emit(O.Less(), y, zero))
    return c.emit(O.LogicalAnd(), signs, c.emit(O.NotEqual(), rest, zero))


@aten("fmod.Tensor", "fmod.Scalar")
def fmod(c: Context, a: Any, b: Any) -> Value:
    x, y = c.value(a, c.dtype), c.value(b, c.dtype)
    if not c.dtype.is_float:
        rest = c.emit(O.Remainder(), x, y)
        return c.emit(O.Where(), _rounded_down(c, x, y, rest), c.emit(O.Sub(), rest, y), rest)
    size = c.emit(O.Abs(), x)
    rest = c.emit(O.Remainder(), size, c.emit(O.Abs(), y))
    # What is smaller than y is its own rest; -0.0, whose sign a product would lose, among it.
    return c.emit(O.Where(), c.emit(O.Equal(), rest, size), x, c.emit(O.Mul(), c.emit(O.Sign(), x), rest))


def _scaled(c: Context, x: Value, alpha: Any) -> Value:
    return x if isinstance(alpha, (int, float)) and alpha == 1 else c.emit(O.Mul(), x, c.scalar(alpha, x.dtype))


@aten("add.Tensor", "add.Scalar")
def add(c: Context, a: Any, b: Any, alpha: Any = 1) -> Value:
    if c.dtype.is_bool:
        return c.emit(O.LogicalOr(), c.value(a, c.dtype), c.value(b, c.dtype))
    if isinstance(b, (int, float)) and not isinstance(b, bool) and b == 0 and isinstance(a, Value) and a.dtype.is_int:
        return c.cast(a, c.dtype)  # `arange(S) + 0`: keep positions plain
    return c.emit(O.Add(), c.value(a, c.dtype), _scaled(c, c.value(b, c.dtype), alpha))


@aten("addcmul.default")
@exact
def addcmul(c: Context, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    x, a, b = (c.cast(v, c.dtype) for v in (x, a, b))
    return c.emit(O.Add(), x, c.emit(O.Mul(), _scaled(c, a, value), b))


@aten("addcdiv.default")
@exact
def addcdiv(c: Context, x: Value, a: Value, b: Value, *, value: Any = 1) -> Value:
    x, a, b = (c.cast(v, c.dtype) for v in (x, a, b))
    return c.emit(O.Add(), x, c.emit(O.Div(), _scaled(c, a, value), b))


@aten("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")
def power(c: Context, a: Any, b: Any) -> Value:
    """Small constant exponents are spelled out, as torch's own CPU kernel does."""
    dtype = c.dtype
    if isinstance(b, (int, float)) and not isinstance(b, bool) and isinstance(a, Value):
        if dtype.is_int and b < 0:
            raise UnsupportedError("integers to negative integer powers are not allowed")
        x = c.cast(a, dtype)
        if b == 1:
            return x
        if b == 2:
            return c.emit(O.Square(), x)
        if b == 3:
            return c.emit(O.Mul(), c.emit(O.Square(), x), x)
        if dtype.kind == "c" and b == -2:
            return c.emit(O.Reciprocal(), c.emit(O.Square(), x))
        if (dtype.is_float or dtype.kind == "c") and b in (0.5, -0.5, -1.0):
            return c.emit({0.5: O.Sqrt, -0.5: O.Rsqrt, -1.0: O.Reciprocal}[float(b)](), x)
    return c.emit(O.Pow(), c.value(a, dtype), c.value(b, dtype))


@aten("lerp.Scalar", "lerp.Tensor")
@exact
def lerp(c: Context, a: Value, b: Value, weight: Any) -> Value:
    """From the nearer of the two ends, as torch does it."""
    step, w = c.emit(O.Sub(), b, a), c.value(weight, c.dtype)
    early = c.emit(O.Add(), a, c.emit(O.Mul(), w, step))
    if isinstance(weight, (int, float)):
        rest = c.scalar(1 - weight, c.dtype)
        return early if abs(weight) < 0.5 else c.emit(O.Sub(), b, c.emit(O.Mul(), step, rest))
    late = c.emit(O.Sub(), b, c.emit(O.Mul(), step, c.emit(O.Sub(), c.scalar(1.0, c.dtype), w)))
    far = c.emit(O.Abs(), w)
    return c.emit(O.Where(), c.emit(O.Less(), far, c.scalar(0.5, far.dtype)), early, late)


rows({
    "frac.default": lambda c, x: c.emit(O.Sub(), x, c.emit(O.Trunc(), x)),
    "positive.default": lambda c, x: x,
    "sub.Tensor sub.Scalar subtract.Tensor":
        lambda c, a, b, alpha=1: c.emit(O.Sub(), c.value(a, c.dtype), _scaled(c, c.value(b, c.dtype), alpha)),
    "rsub.Tensor rsub.Scalar": lambda c, a, b, alpha=1: c.emit(O.Sub(), c.value(b, c.dtype), _scaled(c, c.value(a, c.dtype), alpha)),
    "selu.default": lambda c, x: elu(c, x, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946),
})
