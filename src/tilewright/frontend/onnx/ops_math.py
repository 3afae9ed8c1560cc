"""Elementwise arithmetic, comparisons, logic and activations."""
from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import at_least, floordiv, maximum, product
from ...ir.graph import Value
from ...ops import formulas
from ...ops import functions as F
from .registry import Context, axis_of
from .tables import op, rows


def aligned(x: Value, y: Value, broadcast: int, axis: int | None) -> Value:
    """y as opsets before 7 broadcast it: its axes lie at `axis` of x, or at the end."""
    if not broadcast or axis is None or not y.shape:
        return y
    at = axis_of(axis, len(x.shape))
    return F.reshape(y, (*y.shape, *(1,) * (len(x.shape) - at - len(y.shape))))


def _binary(name: str) -> Any:
    def handler(c: Context, x: Value, y: Value, *, broadcast: int = 0, axis: int | None = None) -> Value:
        return F.one(name, x, aligned(x, y, broadcast, axis))

    return handler


for _onnx, _ours in (("Add", "add"), ("Sub", "sub"), ("Mul", "mul"), ("And", "logical_and"), ("Or", "logical_or"), ("Xor", "logical_xor"),
                     ("Equal", "equal"), ("Greater", "greater"), ("Less", "less"), ("GreaterOrEqual", "greater_equal"),
                     ("LessOrEqual", "less_equal"), ("BitwiseAnd", "bitwise_and"), ("BitwiseOr", "bitwise_or"),
                     ("BitwiseXor", "bitwise_xor")):
    op(_onnx)(_binary(_ours))


def _unary(name: str) -> Any:
    def handler(c: Context, x: Value) -> Value:
        return F.one(name, x)

    return handler


for _onnx, _ours in (("Acos", "acos"), ("Acosh", "acosh"), ("Asin", "asin"), ("Asinh", "asinh"), ("Atan", "atan"), ("Atanh", "atanh"),
                     ("Cos", "cos"), ("Cosh", "cosh"), ("Erf", "erf"), ("Exp", "exp"), ("Log", "log"),
                     ("Neg", "neg"), ("Not", "logical_not"), ("BitwiseNot", "bitwise_not"), ("Reciprocal", "reciprocal"),
                     ("Sigmoid", "sigmoid"), ("Sin", "sin"), ("Sinh", "sinh"), ("Sqrt", "sqrt"),
                     ("Tan", "tan"), ("Tanh", "tanh"), ("Mish", "mish"), ("HardSwish", "hardswish")):
    op(_onnx)(_unary(_ours))


@op("Abs", "Ceil", "Floor", "Round", "IsNaN")
def rounded(c: Context, x: Value) -> Value:
    name = {"IsNaN": "is_nan"}.get(c.node.op_type, c.node.op_type.lower())
    if name == "abs" and x.dtype.kind == "u":
        return x
    return F.one(name, x)


@op("Sign")
def sign(c: Context, x: Value) -> Value:
    """NaN stays NaN, as in NumPy; our op gives 0, as PyTorch does."""
    made = F.one("sign", x)
    return F.where(F.one("is_nan", x), x, made) if x.dtype.kind == "f" else made


@op("Softplus")
def softplus(c: Context, x: Value) -> Value:
    """log(1 + e^x) without a threshold: the standard's own formula is exact for every x."""
    return F.add(F.maximum(x, 0.0), F.log1p(F.exp(F.neg(F.abs_(x)))))


@op("Div")
def div(c: Context, x: Value, y: Value, *, broadcast: int = 0, axis: int | None = None) -> Value:
    y = aligned(x, y, broadcast, axis)
    if x.dtype.kind in "fc":
        return F.div(x, y)
    if x.dtype.kind == "u" or (_is_positive(c, x) and _is_positive(c, y)):
        return F.one("floor_divide", x, y)
    # Integers are truncated towards zero.
    whole = F.one("floor_divide", F.abs_(x), F.abs_(y))
    made = F.where(F.one("not_equal", F.less(x, 0), F.less(y, 0)), F.neg(whole), whole)
    a, b = c.known(x), c.known(y)
    if a is not None and b is not None and a.dtype == object and b.dtype != object and np.all(b > 0):
        wide = np.broadcast_arrays(a, b)
        if all(at_least(d + int(n) - 1, 0) for d, n in zip(wide[0].reshape(-1), wide[1].reshape(-1), strict=True)):  # to 0 from below
            sizes = [maximum(floordiv(d, int(n)), 0) for d, n in zip(wide[0].reshape(-1), wide[1].reshape(-1), strict=True)]
            c.contents.tell(made, np.array([*sizes, None], object)[:-1].reshape(wide[0].shape))
    return made


def _is_positive(c: Context, x: Value) -> bool:
    found = c.known(x)
    if found is None:
        return False
    return all(at_least(d, 0) for d in found.reshape(-1)) if found.dtype == object else bool(np.all(found >= 0))


@op("Mod")
def mod(c: Context, x: Value, y: Value, *, fmod: int = 0) -> Value:
    if not fmod or x.dtype.kind == "u":
        return F.one("remainder", x, y)
    if x.dtype.is_int:
        left = F.one("remainder", F.abs_(x), F.abs_(y))
        return F.where(F.less(x, 0), F.neg(left), left)
    wide = F.cast(x, dt.f32) if x.dtype.itemsize < 4 else x
    left = F.one("remainder", F.abs_(wide), F.abs_(F.cast(y, wide.dtype)))
    return F.cast(F.one("copysign", left, wide), x.dtype)


@op("Pow")
def power(c: Context, x: Value, y: Value, *, broadcast: int = 0, axis: int | None = None) -> Value:
    y = aligned(x, y, broadcast, axis)
    if x.dtype is y.dtype:
        return F.pow_(x, y)
    if x.dtype.is_float:
        return F.pow_(x, F.cast(y, x.dtype))
    if y.dtype.is_float:
        return F.cast(F.pow_(F.cast(x, dt.f64), F.cast(y, dt.f64)), x.dtype)
    return F.pow_(x, F.cast(y, x.dtype))


def _many(name: str) -> Any:
    def handler(c: Context, *xs: Value) -> Value:
        return reduce(lambda a, b: F.one(name, a, b), xs) if len(xs) > 1 else xs[0]

    return handler


op("Max")(_many("maximum"))
op("Min")(_many("minimum"))
op("Sum")(_many("add"))


@op("BitShift")
def bit_shift(c: Context, x: Value, y: Value, *, direction: str) -> Value:
    return F.one("bitwise_left_shift" if direction == "LEFT" else "bitwise_right_shift", x, y)


@op("IsInf")
def is_inf(c: Context, x: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    found = F.one("is_inf", x)
    if not detect_negative:
        found = F.logical_and(found, F.greater(x, 0.0))
    if not detect_positive:
        found = F.logical_and(found, F.less(x, 0.0))
    return found


@op("Clip")
def clip(c: Context, x: Value, min: Any = None, max: Any = None) -> Value:  # noqa: A002
    low, high = (F.reshape(v, ()) if isinstance(v, Value) else v for v in (min, max))
    x = x if low is None else F.maximum(low, x)  # x where it equals a bound: of zeros of both signs the second operand is the result
    return x if high is None else F.minimum(high, x)


@op("PRelu")
def prelu(c: Context, x: Value, slope: Value) -> Value:
    if c.version < 7 and len(slope.shape) == 1 and len(x.shape) > 1:
        slope = F.reshape(slope, (slope.shape[0], *(1,) * (len(x.shape) - 2)))
    return F.where(F.less(x, 0), F.mul(x, slope), x)


@op("Shrink")
def shrink(c: Context, x: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    wide = x if x.dtype.kind in "f" else F.cast(x, dt.f64)
    low = F.where(F.less(wide, -lambd), F.add(wide, bias), 0.0)
    return F.cast(F.where(F.greater(wide, lambd), F.sub(wide, bias), low), x.dtype)


@op("Softmax", "LogSoftmax", since=13)
def softmax(c: Context, x: Value, *, axis: int = -1) -> Value:
    name = "softmax" if c.node.op_type == "Softmax" else "log_softmax"
    if x.shape:
        return F.one(name, x, axis=axis_of(axis, len(x.shape)))
    return F.add(F.mul(x, 0.0), 1.0 if name == "softmax" else 0.0)


def flattened(x: Value, axis: int) -> Value:
    """x as a matrix: axes before `axis`, and the others."""

    return F.reshape(x, (product(x.shape[:axis]), product(x.shape[axis:])))


@op("Softmax", "LogSoftmax", until=12)
def softmax1(c: Context, x: Value, *, axis: int = 1) -> Value:
    name = "softmax" if c.node.op_type == "Softmax" else "log_softmax"
    at = axis % max(len(x.shape), 1) if axis < 0 else axis
    if at == len(x.shape) - 1:
        return F.one(name, x, axis=at)
    return F.reshape(F.one(name, flattened(x, at), axis=1), x.shape)


@op("Hardmax")
def hardmax(c: Context, x: Value, *, axis: int | None = None) -> Value:
    at = axis_of((1 if c.version < 13 else -1) if axis is None else axis, len(x.shape))
    rows = flattened(x, at) if c.version < 13 else x
    at = 1 if c.version < 13 else at
    best = O.ArgMax(axis=at, keepdims=True)(rows)
    places = F.iota(c.graph, tuple(d if a == at else 1 for a, d in enumerate(rows.shape)), at, dt.i64)
    return F.reshape(F.cast(F.equal(best, places), x.dtype), x.shape)


@op("CumSum", "CumProd")
def cumulative(c: Context, x: Value, axis: Value, *, exclusive: int = 0, reverse: int = 0) -> Value:
    at = axis_of(int(c.scalar_of(axis, "the axis")), len(x.shape))
    name = "cum_sum" if c.node.op_type == "CumSum" else "cum_prod"
    return F.one(name, x, axis=at, exclusive=bool(exclusive), reverse=bool(reverse))


@op("Einsum")
def einsum(c: Context, *xs: Value, equation: str) -> Value:
    from ...transform.lib.contractions import einsum as traced
    from .lib import traced_call

    terms, arrow, out = _spelled_out(equation.replace(" ", ""), [len(x.shape) for x in xs]).partition("->")
    pairs = [_diagonals(c, t, x) for t, x in zip(terms.split(","), xs, strict=True)]
    text = ",".join(t for t, _ in pairs) + arrow + out
    if not arrow and text != terms:  # letters that stood twice are summed: they must not be among the results
        text += "->" + "".join(sorted({ch for ch in terms if ch.isalpha() and terms.count(ch) == 1}))
    made: Value = traced_call(c, lambda *vs: traced(text, *vs), *(x for _, x in pairs))
    return made


def _spelled_out(equation: str, ranks: list[int]) -> str:
    """The equation with letters in place of its dots."""
    if "..." not in equation:
        return equation
    terms, arrow, out = equation.partition("->")
    spare = [ch for ch in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" if ch not in equation]
    parts = terms.split(",")
    counts = [rank - len(t.replace("...", "")) if "..." in t else 0 for t, rank in zip(parts, ranks, strict=True)]
    letters = "".join(spare[: max(counts)])
    made = [t.replace("...", letters[len(letters) - n :]) for t, n in zip(parts, counts, strict=True)]
    if not arrow:
        out = "..." + "".join(sorted({ch for ch in terms if ch.isalpha() and terms.count(ch) == 1}))
    return ",".join(made) + "->" + out.replace("...", letters)


def _diagonals(c: Context, term: str, x: Value) -> tuple[str, Value]:
    """A term without letters that stand twice: those axes are one, the diagonal."""
    for ch in sorted({ch for ch in term if ch.isalpha() and term.count(ch) > 1}):
        while term.count(ch) > 1:
            rank = len(x.shape)
            at = [i for i, k in enumerate(term) if k == ch][:2]
            rest = [a for a in range(rank) if a not in at]
            steps = F.iota(c.graph, (x.shape[at[0]],), 0, dt.i64)
            x = O.Index(axes=(rank - 2, rank - 1))(F.transpose(x, (*rest, *at)), steps, steps)
            first = term.index(ch)
            term = term[:first] + term[first + 1 :]
            second = term.index(ch)
            term = term[:second] + term[second + 1 :] + ch
    return term, x


@op("Scale", "Affine", until=6)
def affine(c: Context, x: Value, *, scale: float = 1.0, alpha: float = 1.0, beta: float = 0.0) -> Value:
    return F.add(F.mul(x, scale * alpha), beta)


rows({
    "Mean": lambda c, *xs: F.div(reduce(F.add, xs), float(len(xs))),
    "Where": lambda c, condition, x, y: F.where(condition, x, y),
    "Relu": lambda c, x: F.relu(x) if x.dtype.is_float else F.maximum(x, 0),
    "Elu": lambda c, x, *, alpha=1.0: F.one("elu", x, alpha=alpha),
    "Celu": lambda c, x, *, alpha=1.0: formulas.celu(x, alpha),
    "Selu": lambda c, x, *, alpha=1.6732632423543772, gamma=1.0507009873554805:
        F.mul(F.one("elu", x, alpha=alpha), gamma),
    "LeakyRelu": lambda c, x, *, alpha=0.01: F.one("leaky_relu", x, slope=alpha),
    "HardSigmoid": lambda c, x, *, alpha=0.2, beta=0.5: F.minimum(F.maximum(F.add(F.mul(x, alpha), beta), 0.0), 1.0),
    "Softsign": lambda c, x: formulas.softsign(x),
    "ThresholdedRelu": lambda c, x, *, alpha=1.0: F.where(F.greater(x, alpha), x, 0.0),
    "Swish": lambda c, x, *, alpha=1.0: F.silu(x) if alpha == 1.0 else F.mul(x, F.sigmoid(F.mul(x, alpha))),
    "Gelu": lambda c, x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Det": lambda c, x: F.one("det", x),
})
