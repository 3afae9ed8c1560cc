"""The meaning of whole-number programs in NumPy: integers wrap, floats hold multiples of 1/16 that no order of sums rounds.

A result that a float dtype could not hold exactly, in whatever order it is computed, raises `Unfit`: the op is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.core import dtypes as dt

from .program import Unfit

Array = Any
GRID = 16.0
BITS = {"f64": 53}  # bits of sums; smaller floats are summed in f32
FUNCTIONS: dict[str, Callable[..., Any]] = {}


def known(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


class Exact:
    """The reference of `program.resolve`. `lenient` 1 and 2 stand for two ways to go on behind bad data: an index out of range names the
    nearest element or the one farthest from it, and 1 or 3 is divided by instead of 0."""

    def __init__(self, lenient: int = 0) -> None:
        self.lenient = lenient

    def function(self, name: str) -> Any:
        base, _, index = name.rstrip("]").partition("[")
        call = FUNCTIONS[base]

        @functools.wraps(call)
        def checked(*args: Any, **options: Any) -> Any:
            with np.errstate(all="ignore"):
                options = {**options, "lenient": self.lenient} if self.lenient and base.startswith("wild_") else options
                return np.asarray(call(*args, **options)[int(index)] if index else call(*args, **options))

        return checked

    def array(self, value: Any) -> Any:
        return value


def name_of(x: Array) -> str:
    return dt.dtype(x.dtype).name


def is_float(x: Array) -> bool:
    return dt.dtype(x.dtype).is_float


def wide(x: Array) -> Array:
    return x.astype(np.float64) if is_float(x) else x


def made(values: Array, dtype: Any) -> Array:
    """Values in a dtype that holds them exactly."""
    kind = dt.dtype(dtype)
    if not kind.is_float:
        return np.asarray(values).astype(kind.np)
    values = np.asarray(values, np.float64)
    out = values.astype(kind.np)
    finite = values[np.isfinite(values)]  # infinities and NaN come from infinities and NaN alone, in any order
    if (finite * GRID != np.floor(finite * GRID)).any() or not np.array_equal(out.astype(np.float64), values, equal_nan=True):
        raise Unfit
    return out


def summed(absolute: Array, dtype: Any) -> None:
    """Sums of these sizes are exact in any order."""
    bits = BITS.get(dt.dtype(dtype).name, 24)
    finite = absolute[np.isfinite(absolute)]
    if finite.size and float(finite.max()) * GRID > 2.0**bits:
        raise Unfit


RANK = {"b": 0, "u": 1, "i": 1, "f": 2}


def common(*operands: Any) -> dt.DType:
    """The array API's promotion; Python numbers take the dtype of the array they meet."""
    arrays = [dt.dtype(x.dtype) for x in operands if isinstance(x, np.ndarray)]
    out = arrays[0]
    for d in arrays[1:]:
        if RANK[d.kind] != RANK[out.kind]:
            out = max(out, d, key=lambda k: RANK[k.kind])
        elif out.is_float and d is not out:
            out = dt.f32 if d.itemsize == out.itemsize else max(out, d, key=lambda k: k.itemsize)
        elif not out.is_float:
            found = np.promote_types(out.np, d.np)
            if found.kind == "f":
                raise Unfit
            out = dt.dtype(found)
    for x in operands:
        kind = "b" if type(x) is bool else "i" if type(x) is int else "f" if type(x) is float else ""
        if kind and RANK[kind] > RANK[out.kind]:
            out = dt.i64 if kind == "i" else dt.f32
    return out


def meet(*operands: Any) -> tuple[list[Array], dt.DType]:
    """Operands in their common dtype; floats in f64."""
    dtype = common(*operands)
    cast = [made(wide(x) if isinstance(x, np.ndarray) else np.asarray(x), dtype) for x in operands]
    return [wide(x) for x in cast], dtype


def _unary(fn: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return lambda x: made(fn(wide(x)), x.dtype)


_UNARY: dict[str, Any] = {"neg": np.negative, "abs": np.abs, "sign": np.sign, "square": np.square, "floor": np.floor, "ceil": np.ceil,
                   "round": np.rint, "trunc": np.trunc, "relu": lambda x: np.maximum(x, 0), "bitwise_not": np.invert}  # fmt: skip
for _name, _fn in _UNARY.items():
    FUNCTIONS[_name] = _unary(_fn)


def _binary(fn: Callable[[Array, Array], Array], result: Any = None) -> Callable[[Any, Any], Array]:
    def call(x: Any, y: Any) -> Array:
        (a, b), dtype = meet(x, y)
        return made(fn(a, b), dtype if result is None else result)

    return call


for _name in ("add", "subtract", "multiply", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor"):
    FUNCTIONS[{"subtract": "sub", "multiply": "mul"}.get(_name, _name)] = _binary(getattr(np, _name))
for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    FUNCTIONS[_name] = _binary(getattr(np, _name), np.bool_)


def _divided(fn: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Array]:
    def call(x: Any, y: Any) -> Array:
        (a, b), dtype = meet(x, y)
        if (b == 0).any() or (dtype.kind == "i" and ((b == -1) & (a == np.iinfo(dtype.np).min)).any()):
            raise Unfit
        return made(fn(a, b), dtype)

    return call


def _floored(a: Array, b: Array) -> Array:
    """The array API's floor_divide: infinities divided stay infinite."""
    with np.errstate(all="ignore"):
        made = np.floor_divide(a, b)
        return made if made.dtype.kind != "f" else np.where(np.isfinite(a) & np.isfinite(b), made, a / b)


FUNCTIONS["floor_divide"], FUNCTIONS["remainder"] = _divided(_floored), _divided(np.remainder)


@known
def div(x: Any, y: Any) -> Array:
    (a, b), dtype = meet(x, y)
    if not dtype.is_float or (b == 0).any():
        raise Unfit
    return made(a / b, dtype)


def _shifted(fn: Callable[[Array, Array], Array]) -> Callable[[Any, Any], Array]:
    def call(x: Any, y: Any) -> Array:
        (a, b), dtype = meet(x, y)
        if ((b < 0) | (b >= 8 * dtype.itemsize)).any():
            raise Unfit
        return made(fn(a, b), dtype)

    return call


FUNCTIONS["bitwise_left_shift"], FUNCTIONS["bitwise_right_shift"] = _shifted(np.left_shift), _shifted(np.right_shift)


@known
def pow_(x: Any, y: Any) -> Array:
    (a, b), dtype = meet(x, y)
    if (b < 0).any():
        raise Unfit
    return made(np.power(a, b), dtype)


@known
def where(c: Array, x: Any, y: Any) -> Array:
    (a, b), dtype = meet(x, y)
    return made(np.where(c.astype(bool), a, b), dtype)


@known
def clip(x: Array, min: Any = None, max: Any = None) -> Array:  # noqa: A002
    x = x if min is None else FUNCTIONS["maximum"](x, min)
    return x if max is None else FUNCTIONS["minimum"](x, max)


def _logical(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda *xs: fn(*(np.asarray(x).astype(bool) for x in xs))


for _name in ("logical_and", "logical_or", "logical_xor", "logical_not"):
    FUNCTIONS[_name] = _logical(getattr(np, _name))


@known
def astype(x: Array, dtype: str) -> Array:
    kind = dt.dtype(dtype)
    values = wide(x)
    if is_float(x) and kind.is_int:
        info = np.iinfo(kind.np)
        values = np.trunc(values)
        if values.size and not (np.isfinite(values).all() and float(info.min) <= values.min() and values.max() < float(info.max)):
            raise Unfit
    return made(values != 0 if kind.is_bool else values, kind)


# ---- reductions


def _numbers(x: Array) -> Array:
    kind = dt.dtype(x.dtype).kind
    return x.astype(np.uint64 if kind == "u" else np.int64) if kind in "biu" else x


@known
def sum_(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    x = _numbers(x)
    if is_float(x):
        summed(np.sum(np.abs(wide(x)), axis=axis, keepdims=True), x.dtype)
    return made(np.sum(wide(x), axis=axis, keepdims=keepdims), x.dtype)


@known
def prod(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
    x = _numbers(x)
    if is_float(x):
        parts = np.prod(np.maximum(np.where(np.isfinite(wide(x)), np.abs(wide(x)), 1.0), 1.0), axis=axis, keepdims=True)
        if (wide(x) % 1 != 0)[np.isfinite(wide(x))].any() or (parts.size and parts.max() > 2.0**20):
            raise Unfit
    return made(np.prod(wide(x), axis=axis, keepdims=keepdims), x.dtype)


def _extreme(fn: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Array, axis: Any = None, keepdims: bool = False) -> Array:
        count = x.size if axis is None else np.prod([x.shape[a] for a in (axis if isinstance(axis, tuple) else (axis,))])
        if count == 0:
            raise Unfit
        return made(fn(wide(x), axis=axis, keepdims=keepdims), x.dtype)

    return call


FUNCTIONS["max"], FUNCTIONS["min"] = _extreme(np.max), _extreme(np.min)
FUNCTIONS["any"] = lambda x, axis=None, keepdims=False: np.any(x.astype(bool), axis=axis, keepdims=keepdims)
FUNCTIONS["all"] = lambda x, axis=None, keepdims=False: np.all(x.astype(bool), axis=axis, keepdims=keepdims)


def _arg(fn: Callable[..., Array]) -> Callable[..., Array]:
    def call(x: Array, axis: int | None = None, keepdims: bool = False, dtype: str = "i64") -> Array:
        if (x.size if axis is None else x.shape[axis]) == 0:
            raise Unfit
        return made(fn(wide(x), axis=axis, keepdims=keepdims and axis is not None), dtype)

    return call


FUNCTIONS["argmax"], FUNCTIONS["argmin"] = _arg(np.argmax), _arg(np.argmin)


def _running(fn: Callable[..., Array], first: int) -> Callable[..., Array]:
    def call(x: Array, axis: int = 0, *, exclusive: bool = False, reverse: bool = False) -> Array:
        x = _numbers(x)
        values = wide(x)
        if is_float(x):
            if first == 0:
                summed(np.sum(np.abs(values), axis=axis, keepdims=True), x.dtype)
            else:
                prod(x, axis)
        values = np.flip(values, axis) if reverse else values
        out = fn(values, axis=axis, dtype=values.dtype)
        if exclusive and out.shape[axis]:
            head = np.full_like(np.take(out, [0], axis), first)
            out = np.concatenate([head, np.take(out, range(out.shape[axis] - 1), axis)], axis)
        return made(np.flip(out, axis) if reverse else out, x.dtype)

    return call


FUNCTIONS["cumsum"], FUNCTIONS["cumprod"] = _running(np.cumsum, 0), _running(np.cumprod, 1)


@known
def matmul(a: Any, b: Any) -> Array:
    (x, y), dtype = meet(a, b)
    if dtype.is_float:
        summed(np.abs(x) @ np.abs(y), dtype)
    return made(x @ y, dtype)


@known
def einsum(equation: str, *operands: Any) -> Array:
    values, dtype = meet(*operands)
    if dtype.is_float and not all(np.isfinite(v).all() for v in values):  # an axis of one operand alone is summed first
        raise Unfit
    if dtype.is_float:
        summed(np.einsum(equation, *map(np.abs, values)), dtype)
    return made(np.einsum(equation, *values), dtype)


# ---- order


@known
def sort(x: Array, axis: int = -1, *, descending: bool = False) -> Array:
    out = np.sort(wide(x), axis=axis)
    return made(np.flip(out, axis) if descending else out, x.dtype)


@known
def argsort(x: Array, axis: int = -1, *, descending: bool = False, dtype: str = "i64") -> Array:
    """Stable in both directions: equal elements in the order they had."""
    if not descending:
        return made(np.argsort(wide(x), axis=axis, kind="stable"), dtype)
    back = np.argsort(np.flip(wide(x), axis), axis=axis, kind="stable")
    return made(np.flip(x.shape[axis] - 1 - back, axis), dtype)


@known
def top_k(x: Array, k: int, axis: int = -1, largest: bool = True, dtype: str = "i64") -> tuple[Array, Array]:
    order = np.take(argsort(x, axis, descending=largest), range(k), axis)
    return np.take_along_axis(x, order, axis), made(order, dtype)


# ---- shapes


@known
def split(x: Array, parts: Any, axis: int = 0) -> list[Array]:
    return list(np.split(x, parts, axis))


@known
def pad(x: Array, widths: Any, value: float = 0.0) -> Array:
    return np.pad(x, widths, constant_values=np.asarray(value).astype(x.dtype))


@known
def getitem(x: Array, key: Any) -> Array:
    return np.asarray(x[key])


@known
def concat(arrays: Any, axis: int = 0) -> Array:
    values, dtype = meet(*arrays)
    return made(np.concatenate(values, axis), dtype)


@known
def stack(arrays: Any, axis: int = 0) -> Array:
    values, dtype = meet(*arrays)
    return made(np.stack(values, axis), dtype)


@known
def one_hot(indices: Array, classes: int, dtype: str = "f32") -> Array:
    return made(indices[..., None] == np.arange(classes), dtype)


for _name in ("reshape", "transpose", "swapaxes", "moveaxis", "expand_dims", "squeeze", "ravel", "broadcast_to", "flip", "tril", "triu"):
    FUNCTIONS[_name] = getattr(np, _name)
FUNCTIONS["permute_dims"] = np.transpose
FUNCTIONS["zeros_like"], FUNCTIONS["ones_like"] = np.zeros_like, np.ones_like
