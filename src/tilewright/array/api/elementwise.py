"""Elementwise functions of Arrays, by name: operands meet in one dtype and broadcast.

A native kernel serves what `machine.py` has one for; the rest runs NumPy's loops over the same memory, and is named in docs/arrays.md.
"""
from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import ArgumentError
from ...ops import REGISTRY
from ...transform.lib.elementwise import ON_FLOATS
from ...transform.trace import Functions
from .. import lazy, machine
from ..arrays import Array, shown
from . import loops
from .base import FLOAT, Header, as_float, give, header, numbers, weak_dtype, written

Fn = Callable[..., Any]
public = FUNCTIONS = Functions()
ALL, NUMERIC, REAL, FLOATS, INTEGERS, BITS = "buifc", "uifc", "uif", "fc", "ui", "bui"

# name -> (kinds of operands, whether integers become floats, dtype of the result: "" the operands' own)
UNARY: dict[str, tuple[str, bool, str]] = {
    **dict.fromkeys(("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "log", "log1p", "log10", "log2",
                     "sin", "sinh", "sqrt", "tan", "tanh", "reciprocal", "exp2", "rsqrt", "cbrt", "deg2rad", "rad2deg", "sinc", "i0"),
                    (ALL, True, "")),
    **dict.fromkeys(("ceil", "floor", "trunc", "round", "sign", "negative", "positive", "square", "conj"), (NUMERIC, False, "")),
    **dict.fromkeys(("isfinite", "isinf", "isnan"), (ALL, False, "b")), "signbit": ("buif", False, "b"),
    "logical_not": (ALL, False, "b"), "bitwise_invert": (BITS, False, ""),
    "abs": (NUMERIC, False, "real"), "real": (ALL, False, "real"), "imag": (ALL, False, "real"), "angle": (NUMERIC, True, "real"),
}
BINARY: dict[str, tuple[str, bool, str]] = {
    **dict.fromkeys(("add", "multiply", "subtract", "maximum", "minimum"), (ALL, False, "")),
    **dict.fromkeys(("gcd", "lcm"), (REAL, False, "")), **dict.fromkeys(("fmax", "fmin"), (ALL, False, "")),
    **dict.fromkeys(("pow", "floor_divide", "remainder", "fmod"), (NUMERIC, False, "")),
    "divide": (ALL, True, ""), "float_power": (NUMERIC, True, ""),
    **dict.fromkeys(("atan2", "copysign", "heaviside", "hypot", "logaddexp", "logaddexp2", "nextafter"), ("buif", True, "")),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor"), (BITS, False, "")),
    **dict.fromkeys(("bitwise_left_shift", "bitwise_right_shift"), (INTEGERS, False, "")),
    **dict.fromkeys(("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"), (ALL, False, "b")),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor"), (ALL, False, "b")),
}
ACTIVATIONS = [name for name in ON_FLOATS if name not in UNARY and name != "neg"]  # they have kernels only, no loops of NumPy's
ALIASES = {"conjugate": "conj", "fabs": "abs", "rint": "round", "fix": "trunc", "degrees": "rad2deg", "radians": "deg2rad"}
for _op in REGISTRY.values():  # the other names of ops, for the one that the tables above have
    _names = _op.public.split()
    ALIASES |= {_other: _name for _name in _names if _name in UNARY or _name in BINARY for _other in _names if _other != _name}


def result_dtype_of(rule: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.bool_) if rule == "b" else dt.real_of(dt.dtype(dtype)).np if rule == "real" else dtype


def _check(name: str, kinds: str, a: Header) -> None:
    kind = dt.dtype(a.dtype).kind
    if kind not in kinds:
        names = {"b": "bool", "u": "unsigned", "i": "signed", "f": "float", "c": "complex"}
        raise ArgumentError(f"{name}: the dtype must be {', '.join(names[k] for k in kinds)}, got {shown(a)}")


SCALES = {"deg2rad": math.pi / 180, "rad2deg": 180 / math.pi}


def compute1(name: str, x: Any) -> Header:
    kinds, floats, rule = UNARY[name]
    a = header(x, name)
    if floats:
        a = as_float(a)
    _check(name, kinds, a)
    dtype = result_dtype_of(rule, a.dtype)
    if name in SCALES and a.dtype.kind == "f":
        made = machine.elementwise("multiply", [a, np.array(SCALES[name], dtype)], dtype)
    else:
        made = machine.elementwise(name, [a], dtype)
    return loops.unary(name, a, dtype) if made is None else made


def compute2(name: str, x1: Any, x2: Any) -> Header:
    kinds, floats, rule = BINARY[name]
    (a, b), dtype = numbers(x1, x2, what=name)
    if floats and dtype.kind in "biu":
        a, b, dtype = a.astype(FLOAT), b.astype(FLOAT), FLOAT
    _check(name, kinds, a)
    if a.shape != b.shape:
        check_broadcast(name, a, b)
    result = result_dtype_of(rule, dtype)
    made = machine.elementwise(name, [a, b], result)
    return loops.binary(name, a, b, result) if made is None else made


def compute_into(name: str, x1: Any, x2: Any, target: Array) -> Array | None:
    """compute2 in the memory of `target`, whose dtype and shape the result must have; None where that is not so."""
    memory = header(target)
    if not memory.flags.c_contiguous:
        return None
    kinds, floats, rule = BINARY[name]
    (a, b), dtype = numbers(x1, x2, what=name)
    fits = dtype == memory.dtype == result_dtype_of(rule, dtype) and dt.dtype(dtype).kind in kinds
    if not fits or (floats and dtype.kind in "biu") or check_broadcast(name, a, b) != memory.shape:
        return None
    if any(h is not memory and np.may_share_memory(h, memory) for h in (a, b)):
        return None
    return target if machine.elementwise(name, [a, b], dtype, out=memory) is not None else None


def on_numpy(name: str, args: tuple[Any, ...]) -> Header | None:
    """The function of NumPy arrays of one dtype, and numbers beside them, by the kernel of Arrays; None where it is not so simple."""
    kinds, floats, rule = (UNARY if len(args) == 1 else BINARY).get(name, ("", False, ""))
    arrays = [a for a in args if type(a) is np.ndarray]
    if not arrays or not kinds or len(args) > 2:
        return None
    dtype = arrays[0].dtype
    if any(a.dtype != dtype for a in arrays) or not dtype.isnative or dtype not in _KINDS:
        return None
    kind = _KINDS[dtype]
    if kind not in kinds or kind == "c" or (floats and kind in "biu"):
        return None
    operands = []
    for x in args:
        if type(x) is np.ndarray:
            operands.append(x)
        elif type(x) in (int, float) and kind in "iuf" and weak_dtype(x, dtype, name) == dtype:
            try:
                operands.append(np.array(x, dtype))
            except OverflowError:
                return None
        else:
            return None
    if len(operands) == 2 and operands[0].shape != operands[1].shape:
        try:
            np.broadcast_shapes(operands[0].shape, operands[1].shape)
        except ValueError:
            return None
    return machine.elementwise(name, operands, result_dtype_of(rule, dtype))


_KINDS = {d.np: d.kind for d in dt.ALL}


def _later1(name: str, x: Any) -> Array | None:
    """A lazy result; None where the dtype has to change first, or there is no kernel."""
    o = lazy.operand(x)
    kinds, floats, rule = UNARY[name]
    kind = dt.dtype(o.dtype).kind
    if kind not in kinds or (floats and kind in "biu"):
        return None
    return lazy.recorded(name, [o], result_dtype_of(rule, o.dtype))


def _later2(name: str, x1: Any, x2: Any) -> Array | None:
    kinds, floats, rule = BINARY[name]
    strong = [lazy.operand(x) for x in (x1, x2) if type(x) is Array]
    dtype = strong[0].dtype
    kind = dt.dtype(dtype).kind
    if kind not in kinds or (floats and kind in "biu") or any(s.dtype != dtype for s in strong):
        return None
    operands = []
    for x in (x1, x2):
        if type(x) is Array:
            operands.append(lazy.operand(x))
        elif type(x) in (bool, int, float) and weak_dtype(x, dtype, name) == dtype:
            operands.append(np.array(x, dtype))
        else:
            return None
    if operands[0].shape != operands[1].shape:
        check_broadcast(name, *operands)
    return lazy.recorded(name, operands, result_dtype_of(rule, dtype))


def check_broadcast(name: str, *arrays: Header) -> tuple[int, ...]:
    shapes = {a.shape for a in arrays} - {()}
    if len(shapes) < 2:
        return next(iter(shapes), ())
    try:
        return np.broadcast_shapes(*shapes)
    except (ValueError, RuntimeError):  # the second: more than 32 axes
        raise ArgumentError(f"{name}: the shapes do not broadcast, got {' and '.join(map(shown, arrays))}") from None


def _refuse_mask(name: str, where: Any) -> None:
    if where is not None:
        raise ArgumentError(f"{name}: `where` needs `out`, whose elements stay where the mask does not hold")


def _unary(name: str) -> Fn:
    def call(x: Any, /, *, out: Any = None, where: Any = None) -> Any:
        _refuse_mask(name, where)
        if lazy.is_on() and type(x) is Array:
            made = _later1(name, x)
            if made is not None:
                return written(out, made)
        return written(out, give(compute1(name, x)))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name} of every element."
    return call


def _binary(name: str) -> Fn:
    def call(x1: Any, x2: Any, /, *, out: Any = None, where: Any = None) -> Any:
        _refuse_mask(name, where)
        if lazy.is_on() and (type(x1) is Array or type(x2) is Array):
            made = _later2(name, x1, x2)
            if made is not None:
                return written(out, made)
        return written(out, give(compute2(name, x1, x2)))

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"{name} of every pair of elements of operands that broadcast."
    return call


def activation(name: str, compiled: Fn) -> Fn:
    """A function with a kernel of its own for one float Array; other arguments go to its compiled form."""
    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and type(args[0]) is Array:
            o = lazy.operand(args[0])
            if dt.dtype(o.dtype).kind == "f":
                if lazy.is_on():
                    later = lazy.recorded(name, [o], o.dtype)
                    if later is not None:
                        return later
                made = machine.elementwise(name, [header(args[0])], o.dtype)
                if made is not None:
                    return give(made)
        return compiled(*args, **kwargs)

    return call


for _name in UNARY:
    FUNCTIONS[_name] = _unary(_name)
for _name in BINARY:
    FUNCTIONS[_name] = _binary(_name)
SIGNATURES = {1: "x, /, *, out=None, where=None", 2: "x1, x2, /, *, out=None, where=None"}


@public
def round_(x: Any, /, decimals: int = 0, *, out: Any = None) -> Any:
    """Every element rounded to an integer, halves to the even one; or to so many decimals."""
    if decimals:
        return written(out, give(np.round(header(x, "round"), decimals)))
    return written(out, give(compute1("round", x)))


@public
def clip(x: Any, /, min: Any = None, max: Any = None, *, out: Any = None) -> Any:  # noqa: A002  the standard's names
    """Every element within bounds, which may be arrays; an element that equals a bound stays (-0.0 is no less than 0.0)."""
    a = header(x, "clip")
    if min is None and max is None:
        return written(out, give(a.copy()))
    if a.dtype.kind == "b":
        a = a.astype(numbers(a, *(b for b in (min, max) if b is not None), what="clip")[1])
    low, high = _bound(a, min, -math.inf), _bound(a, max, math.inf)
    check_broadcast("clip", a, *(b for b in (low, high) if b is not None))
    return written(out, give(a.clip(low, high)))


def _bound(a: Any, bound: Any, open_: float) -> Any:
    """A bound of `clip` in the dtype of a. NumPy's clip by one bound is its maximum or minimum, which may take the bound's zero: an open
    end is the dtype's own."""
    if bound is None and a.dtype.kind in "fiu":
        bound = open_
    if isinstance(bound, (int, float)):
        if a.dtype.kind in "iu":
            if bound != bound:
                raise ArgumentError(f"clip: a bound of {a.dtype} numbers must be a number, got {bound}")
            info = np.iinfo(a.dtype)
            bound = info.min if bound < info.min else info.max if bound > info.max else bound
        return np.array(bound, a.dtype)
    return None if bound is None else header(bound, "clip").astype(a.dtype)


@public
def where(condition: Any, x1: Any = None, x2: Any = None, /) -> Any:
    """Elements of x1 where the condition holds, else of x2; with the condition alone, the indices where it holds."""
    c = header(condition, "where")
    if x1 is None and x2 is None:
        return tuple(map(give, np.nonzero(c)))
    (a, b), _ = numbers(x1, x2, what="where")
    check_broadcast("where", c, a, b)
    c = c.astype(np.bool_, copy=False)
    made = machine.elementwise("where", [c, a, b], a.dtype)
    return give(np.where(c, a, b) if made is None else made)


@public
def isclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Array:
    """|a - b| <= atol + rtol * |b|, element by element."""
    (x, y), _ = numbers(a, b, what="isclose")
    return give(np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=equal_nan))


@public
def allclose(a: Any, b: Any, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    """Whether all elements are close."""
    return bool(isclose(a, b, rtol, atol, equal_nan).__array__().all())


@public
def array_equal(a: Any, b: Any, equal_nan: bool = False) -> bool:
    """Whether shapes and all elements are equal."""
    return bool(np.array_equal(header(a), header(b), equal_nan=equal_nan))


@public
def divmod_(x1: Any, x2: Any, /) -> tuple[Array, Array]:
    """(floor_divide, remainder)."""
    return give(compute2("floor_divide", x1, x2)), give(compute2("remainder", x1, x2))
