"""Random numbers with explicit keys, as in JAX: a function of the key and the shape alone. A key is a u64; `split` and `fold_in` make new
ones. Two draws with one key are dependent: give each draw a key of its own."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import ShapeError
from ...ops.random import draws
from ..promote import as_float, as_tracer
from ..trace import Functions, Tracer, built, dtype_given, python_type, user_place
from .elementwise import FUNCTIONS as ELEMENTWISE
from .indexing import FUNCTIONS as INDEXING
from .reductions import one_axis
from .shapes import FUNCTIONS as SHAPES
from .shapes import shape_of

public = FUNCTIONS = Functions()


def as_any(x: Any, dtype: DType) -> Any:
    """A tracer in dtype, with its operators (which other modules install)."""
    return as_tracer(x, dtype)


def _key(name: str, key: Any) -> Tracer:
    found = as_tracer(key)
    if found.value.dtype is not dt.u64 or found.shape:
        raise ShapeError(f"{name}: needs one key, a u64 of rank 0 as tw.random.key makes it, got {found.type} ({user_place()})")
    return found


def _floats(name: str, dtype: Any) -> DType:
    found = dtype_given(dtype)
    if not found.is_float or found.itemsize < 2:
        raise ShapeError(f"{name}: dtype must be f16, bf16, f32 or f64, got {found} ({user_place()})")
    return found


def _shape(name: str, shape: Any) -> tuple[Any, ...]:
    found = shape_of(shape)
    if any(isinstance(d, int) and d < 0 for d in found):
        raise ShapeError(f"{name}: sizes must not be negative, got shape={found} ({user_place()})")
    return found


def _rate(name: str, rate: Any) -> float:
    if isinstance(rate, bool) or not isinstance(rate, (int, float, np.floating)) or not 0 <= rate <= 1:
        raise ShapeError(f"{name}: rate must be a number of 0 … 1, got {rate!r} ({user_place()})")
    return float(rate)


@public
def key(seed: Any) -> Any:
    """The key of a seed, an integer."""
    if python_type(seed) is dt.i64:
        return as_tracer(np.asarray(int(seed) % (1 << 64), np.uint64))
    found = as_tracer(seed)
    if not found.value.dtype.is_int or found.shape:
        raise ShapeError(f"key: a seed is an integer, got {found.type} ({user_place()})")
    return as_tracer(found, dt.u64)


@public
def split(key: Any, num: Any = 2) -> Any:
    """u64 of shape `num` (an int or a shape): keys that have nothing in common with each other or with `key`."""
    shape = _shape("split", num)
    count = int(np.prod([int(n) for n in shape], dtype=np.int64))
    return SHAPES["reshape"](built(draws.split, _key("split", key), count=count), shape)


@public
def fold_in(key: Any, data: Any) -> Any:
    """The key for `key` and an integer (the number of a step or a layer)."""
    found = as_tracer(data)
    if not found.value.dtype.is_int or found.shape:
        raise ShapeError(f"fold_in: data is an integer, got {found.type} ({user_place()})")
    return built(draws.fold_in, _key("fold_in", key), found)


@public
def bits(key: Any, shape: Any = (), dtype: Any = "u32") -> Any:
    """Random bits: u32 or u64."""
    found = dtype_given(dtype)
    if found not in (dt.u32, dt.u64):
        raise ShapeError(f"bits: dtype must be u32 or u64, got {found} ({user_place()})")
    return built(draws.bits, _key("bits", key), shape=_shape("bits", shape), dtype=found)


@public
def uniform(key: Any, shape: Any = (), dtype: Any = "f32", minval: Any = 0.0, maxval: Any = 1.0) -> Any:
    """Uniform numbers of [minval, maxval), which may be arrays."""
    found = _floats("uniform", dtype)
    u = built(draws.uniform, _key("uniform", key), shape=_shape("uniform", shape), dtype=found)
    if python_type(minval) and python_type(maxval) and minval == 0 and maxval == 1:
        return u
    low, high = as_any(minval, found), as_any(maxval, found)
    return u * (high - low) + low


@public
def normal(key: Any, shape: Any = (), dtype: Any = "f32") -> Any:
    """Numbers of the normal distribution with mean 0 and variance 1."""
    return built(draws.normal, _key("normal", key), shape=_shape("normal", shape), dtype=_floats("normal", dtype))


@public
def exponential(key: Any, shape: Any = (), dtype: Any = "f32") -> Any:
    """Numbers of the exponential distribution with mean 1."""
    return built(draws.exponential, _key("exponential", key), shape=_shape("exponential", shape), dtype=_floats("exponential", dtype))


@public
def gumbel(key: Any, shape: Any = (), dtype: Any = "f32") -> Any:
    """Numbers of the standard Gumbel distribution."""
    return built(draws.gumbel, _key("gumbel", key), shape=_shape("gumbel", shape), dtype=_floats("gumbel", dtype))


@public
def randint(key: Any, shape: Any, minval: Any, maxval: Any, dtype: Any = "i64") -> Any:
    """Integers of minval … maxval - 1, which may be arrays; minval where there are none."""
    found, sizes = dtype_given(dtype), _shape("randint", shape)
    if not found.is_int:
        raise ShapeError(f"randint: dtype must be an integer dtype, got {found} ({user_place()})")
    given = _key("randint", key)
    if isinstance(minval, (int, np.integer)) and isinstance(maxval, (int, np.integer)):
        drawn = built(draws.integers, given, shape=sizes, span=max(int(maxval) - int(minval), 1))
        return as_any(drawn, found) + int(minval)
    low, high = (as_any(v, dt.i64) for v in (minval, maxval))
    span = as_tracer(ELEMENTWISE["maximum"](high - low, 1), dt.u64)
    drawn = built(lambda k, s: draws.integers(k, sizes, s), given, span)
    return as_tracer(as_any(drawn, dt.i64) + low, found)


@public
def bernoulli(key: Any, p: Any = 0.5, shape: Any = None) -> Any:
    """bool: True with probability p, a number or an array."""
    odds = as_float(p)
    return built(draws.bernoulli, _key("bernoulli", key), odds, shape=odds.shape if shape is None else _shape("bernoulli", shape))


@public
def permutation(key: Any, x: Any, axis: int = 0) -> Any:
    """The numbers 0 … x - 1 in a random order (x an int), or an array with its slices along an axis in one."""
    whole = isinstance(x, (int, np.integer)) and not isinstance(x, bool)
    found = None if whole else as_tracer(x)
    axis = 0 if found is None else one_axis("permutation", axis, found.ndim)
    count: Any = x if found is None else found.shape[axis]
    if found is None and count < 0:
        raise ShapeError(f"permutation: needs a count of 0 or more, got {count} ({user_place()})")
    order = built(draws.permutation, _key("permutation", key), count=count)
    return order if found is None else INDEXING["take"](found, order, axis=axis)


@public
def categorical(key: Any, logits: Any, axis: int = -1, shape: Any = None) -> Any:
    """i64: indices along `axis`, each with the probability of softmax(logits). `shape` (that of the logits without the axis, and further
    axes in front) asks for several draws."""
    scores = as_float(logits)
    at = one_axis("categorical", axis, scores.ndim)
    rest = (*scores.shape[:at], *scores.shape[at + 1 :])
    wanted = rest if shape is None else _shape("categorical", shape)
    lead = len(wanted) - len(rest)
    if lead < 0 or wanted[lead:] != rest:
        raise ShapeError(f"categorical: shape must end in {rest} for logits {scores.type}, got {wanted} ({user_place()})")
    if lead:
        scores = SHAPES["broadcast_to"](scores, (*wanted[:lead], *scores.shape))
    return built(draws.categorical, _key("categorical", key), scores, axis=at + lead)


@public
def dropout_mask(key: Any, rate: float, shape: Any) -> Any:
    """bool: False with probability `rate`."""
    return built(draws.kept, _key("dropout_mask", key), shape=_shape("dropout_mask", shape), p=_rate("dropout_mask", rate))


@public
def dropout(key: Any, x: Any, rate: float) -> Any:
    """x with elements set to 0 with probability `rate`; the others are divided by 1 - rate."""
    return built(lambda k, v: draws.dropout(k, v, _rate("dropout", rate)), _key("dropout", key), as_float(x))
