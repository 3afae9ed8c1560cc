"""Elementwise functions and the operators of tracers. Most are made from the registry, by the public names of its ops."""
from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from ...core import dtypes as dt
from ...core.dims import Expr
from ...core.errors import ShapeError
from ...ops import REGISTRY, Cast, Expand, Where
from ...ops.families import Elementwise
from ...ops.pointwise.compare import Compare
from ..promote import as_float, as_tracer, common, dtype_of, promote
from ..trace import Functions, Tracer, apply, dtype_given, install, tracing, user_place

public = FUNCTIONS = Functions()


ALIASES = {"concatenate": "concat"}  # NumPy's names for functions that have another one here
ON_FLOATS: list[str] = []  # functions of one float operand


def _floats(x: Any, y: Any) -> list[Tracer]:
    dtype, weak = common(x, y)
    if dtype.kind in "fc":
        return promote(x, y)
    return [Tracer(v.trace, v.value, weak) for v in (as_tracer(x, dt.f32), as_tracer(y, dt.f32))]


def _unary(op: type[Elementwise]) -> Callable[..., Any]:
    """The attributes follow the operand."""
    kinds = op.kinds

    def call(x: Any, *attrs: Any, **options: Any) -> Any:
        kind = dtype_of(x)[0].kind
        if kind == "b" and op.name == "neg":
            raise ShapeError(f"neg: a bool has no negative; use ~x, or cast it first ({user_place()})")
        if kind not in kinds:
            x = as_float(x) if "f" in kinds else as_tracer(x, dt.bool_) if kinds == "b" else x
        x = as_tracer(x)
        out = apply(op(*attrs, **options), x)
        out.weak = x.weak
        return out

    return call


def answer(name: str, x: Any, y: Any) -> bool | None:
    """What a comparison gives for every element of integers beside a Python integer that their dtype does not hold; else None."""
    for number, other in ((x, y), (y, x)):
        if type(number) is int and hasattr(other, "dtype") and (held := dt.dtype(other.dtype)).kind in "iu":
            limits = np.iinfo(held.np)
            if not limits.min <= number <= limits.max:
                return bool(getattr(np, name)(*(n if n is number else 0 for n in (x, y))))
    return None


def _binary(op: type[Elementwise]) -> Callable[[Any, Any], Any]:
    def call(x: Any, y: Any) -> Any:
        if issubclass(op, Compare) and (same := answer(op.numpy, x, y)) is not None:
            return apply(Expand(shape=as_tracer(x if type(y) is int else y).shape), as_tracer(same))
        a, b = (as_tracer(v, dt.bool_) for v in (x, y)) if op.kinds == "b" else _floats(x, y) if op.kinds == "f" else promote(x, y)
        out = apply(op(), a, b)
        out.weak = a.weak and b.weak and not op.to_bool
        return out

    return call


def function_of(op: type[Elementwise]) -> Callable[..., Any]:
    """The function that appends an elementwise op of one or two operands."""
    made: Any = (_unary if op.arity == (1, 1) else _binary)(op)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    operands = [inspect.Parameter(n, kind, annotation="Any") for n in "xy"[: (op.arity or (0,))[0]]]
    attrs = [inspect.Parameter(f.name, kind, default=f.default, annotation=f.type) for f in dataclasses.fields(op)]
    made.__doc__, made.__name__ = op.__doc__, op.public.split()[0]
    made.__qualname__, made.__signature__ = made.__name__, inspect.Signature([*operands, *attrs], return_annotation="Any")
    return made  # type: ignore[no-any-return]


def enter_ops() -> None:
    """A function for every elementwise op that has a public name, and the other names of those and of the functions below."""
    for op in REGISTRY.values():
        if issubclass(op, Elementwise) and op.public:
            own, *others = op.public.split()
            ALIASES.update(dict.fromkeys(others, own))
            if own not in FUNCTIONS and op.arity in ((1, 1), (2, 2)):
                FUNCTIONS[own] = function_of(op)
                if op.arity == (1, 1) and "f" in op.kinds and not op.to_bool:
                    ON_FLOATS.append(own)


@public
def pow_(x: Any, y: Any) -> Any:
    """x ** y; integers stay integers (a negative Python exponent of theirs gives f32). Small whole Python exponents become products."""
    if type(y) is int and 0 <= y <= 4:
        x = as_tracer(x)
        if y == 0:
            from .creation import ones_like

            return ones_like(x)
        out = x
        for _ in range(y - 1):
            out = FUNCTIONS["mul"](out, x)
        return FUNCTIONS["square"](x) if y == 2 else out
    if type(y) is float and y in (0.5, -1.0):
        return FUNCTIONS["sqrt" if y == 0.5 else "reciprocal"](x)
    whole = common(x, y)[0].is_int and not (type(y) is int and y < 0)
    a, b = promote(x, y) if whole else _floats(x, y)
    out = apply(REGISTRY["pow"](), a, b)
    out.weak = a.weak and b.weak
    return out


def _with_special_cases(name: str, special: Callable[..., Any]) -> None:
    """The function of an op, where floats have special cases of the array API that the op, which is PyTorch's, has not."""
    op: Any = REGISTRY[name]
    plain = function_of(op)

    @functools.wraps(plain)
    def call(*operands: Any) -> Any:
        made = plain(*operands)
        if made.value.dtype.kind != "f":
            return made
        out = special(made, *operands)
        out.weak = made.weak
        return out

    FUNCTIONS[name] = call


def _modulus(made: Any, x: Any, y: Any) -> Any:
    """A zero has the sign of the divisor; adding 0 turns -0 into 0 and keeps the derivative, as copysign would not."""
    negative = FUNCTIONS["less"](y, 0)
    positive = FUNCTIONS["add"](where(negative, FUNCTIONS["neg"](made), made), 0.0)
    return where(negative, FUNCTIONS["neg"](positive), positive)


def _quotient(made: Any, x: Any, y: Any) -> Any:
    """Infinities, NaNs and the sign of zero are those of the true division; steps have no derivative."""
    true, finite = FUNCTIONS["div"](x, y), FUNCTIONS["isfinite"]
    whole = FUNCTIONS["logical_and"](finite(true), FUNCTIONS["logical_and"](finite(x), finite(y)))
    return FUNCTIONS["stop_gradient"](where(whole, FUNCTIONS["copysign"](made, true), true))


_nextafter = function_of(REGISTRY["nextafter"])  # type: ignore[arg-type]


@public
def nextafter(x: Any, y: Any) -> Any:
    """The next number from x towards y."""
    a, b = _floats(x, y)
    own = a.value.dtype
    if own not in dt.SMALL:
        return _nextafter(a, b)
    whole = dt.i16 if own.itemsize == 2 else dt.i8
    sign = np.iinfo(whole.np).min
    words = [apply(REGISTRY["bitcast"](source=own, dtype=whole), v) for v in (a, b)]  # type: ignore[call-arg]
    sizes = [FUNCTIONS["bitwise_and"](w, -1 - sign) for w in words]
    # As integers in the order of the numbers.
    i, j = (where(FUNCTIONS["less"](w, 0), FUNCTIONS["neg"](n), n) for w, n in zip(words, sizes, strict=True))
    moved = FUNCTIONS["add"](i, where(FUNCTIONS["greater"](j, i), 1, -1))
    below = where(FUNCTIONS["equal"](moved, 0), FUNCTIONS["less"](words[0], 0), FUNCTIONS["less"](moved, 0))
    bits = FUNCTIONS["bitwise_or"](FUNCTIONS["abs"](moved), where(below, sign, 0))
    made = apply(REGISTRY["bitcast"](source=whole, dtype=own), as_tracer(bits, whole))  # type: ignore[call-arg]
    made = where(FUNCTIONS["equal"](a, b), b, made)
    return where(FUNCTIONS["isnan"](a), a, where(FUNCTIONS["isnan"](b), b, made))


_round = function_of(REGISTRY["round"])  # type: ignore[arg-type]


@public
def round_(x: Any, decimals: int = 0) -> Any:
    """Every element rounded to an integer, halves to the even one; or to so many decimals."""
    if not decimals or (decimals > 0 and dtype_of(x)[0].kind in "biu"):
        return _round(x)
    if abs(decimals) > 308:
        raise ShapeError(f"round: decimals must be in -308..308, as many as f64 has, got {decimals} ({user_place()})")
    scale: Any = 10 ** abs(decimals)
    x = as_tracer(x)
    own = x.value.dtype
    wide = as_float(x)
    made = FUNCTIONS["div"](_round(FUNCTIONS["mul"](wide, scale)), scale) if decimals > 0 else \
        FUNCTIONS["mul"](_round(FUNCTIONS["div"](wide, scale)), scale)
    return made if own is made.value.dtype else astype(made, own)


@public
def where(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y."""
    a, b = promote(x, y)
    return apply(Where(), as_tracer(condition, dt.bool_), a, b)


@public
def clip(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - NumPy's names
    """x, not below min and not above max; x where it equals a bound (-0.0 is no less than 0.0)."""
    x = as_tracer(x)
    if min is not None:
        x = FUNCTIONS["maximum"](min, x)  # the second operand is the result where both are zeros
    return x if max is None else FUNCTIONS["minimum"](max, x)


@public
def isfinite(x: Any) -> Any:
    """Neither infinite nor NaN."""
    size: Any = FUNCTIONS["abs"](as_float(x))
    own = size.value.dtype
    return FUNCTIONS["less"](size if own not in dt.SMALL or own is dt.f16 or own is dt.bf16 else astype(size, dt.f32), float("inf"))


@public
def astype(x: Any, dtype: Any, *, saturate: bool = False) -> Any:
    """x in another dtype. With `saturate` numbers beyond a float dtype's largest become that one (infinities, too), not inf or NaN."""
    x = as_tracer(x)
    wanted = dtype_given(dtype)
    if x.value.dtype.kind == "c" and wanted.kind != "c":
        raise ShapeError(f"astype: a {x.value.dtype} array is not cast to {wanted}; use tw.real, tw.imag or tw.abs ({user_place()})")
    if saturate and wanted.is_float and x.value.dtype.is_float and x.value.dtype is not wanted:
        top = float(ml_dtypes.finfo(wanted.np).max)  # type: ignore[no-untyped-call]
        x = FUNCTIONS["minimum"](FUNCTIONS["maximum"](x, -top), top)
    return Tracer(x.trace, x.value) if x.value.dtype is wanted else apply(Cast(dtype=wanted), x)


_with_special_cases("sign", lambda made, x: where(FUNCTIONS["isnan"](x), FUNCTIONS["stop_gradient"](x), made))
_with_special_cases("remainder", _modulus)
_with_special_cases("floor_divide", _quotient)
ON_FLOATS.append("sign")
enter_ops()


def _reflected(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: fn(y, x)


def _operator(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Gives way where the other operand is no array."""

    def method(self: Any, *others: Any) -> Any:
        from ..trace import is_array

        return fn(self, *others) if all(is_array(o) for o in others) else NotImplemented

    return method


OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
             "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor", "lshift": "bitwise_left_shift",
             "rshift": "bitwise_right_shift"}
COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
for _sign, _name in OPERATORS.items():
    install(**{f"__{_sign}__": _operator(FUNCTIONS[_name]), f"__r{_sign}__": _operator(_reflected(FUNCTIONS[_name]))})
for _sign, _name in {**COMPARISONS, "neg": "neg", "abs": "abs", "invert": "bitwise_not"}.items():
    install(**{f"__{_sign}__": _operator(FUNCTIONS[_name])})
install(__divmod__=_operator(lambda x, y: (FUNCTIONS["floor_divide"](x, y), FUNCTIONS["remainder"](x, y))),
        __rdivmod__=_operator(lambda y, x: (FUNCTIONS["floor_divide"](x, y), FUNCTIONS["remainder"](x, y))))
install(__pos__=lambda self: self, astype=astype, clip=clip)


def _beyond(self: Expr, operator: str, other: Any) -> Any:
    """A dynamic size among numbers and arrays is a traced number."""
    if isinstance(other, Tracer) or not tracing():
        return NotImplemented  # a tracer has the reflected operator
    return getattr(as_tracer(self), operator)(other)


Expr.beyond = _beyond  # type: ignore[method-assign]
