"""Random numbers: every op draws with a key of its own, made from the seed of the call (a hidden input, see `Context.key`). Distributions
are torch's; the numbers are not, since torch's depend on the device and on how its kernels share out the work."""

from __future__ import annotations

from collections.abc import Callable
from math import pi
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim
from ....core.dtypes import DType, compute_dtype
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from ....ops import functions as F
from ....ops.random import draws
from .registry import Context, aten, placed, rows

# --- tensors of random numbers ---------------------------------------------------------------------------------------------------------


def _float(c: Context, draw: Callable[..., Value]) -> Value:
    """Floats of the node's shape and dtype; complex ones have parts of half the variance."""
    if c.dtype.kind == "c":
        real = dt.real_of(c.dtype)
        half = 0.5**0.5 if draw is draws.normal else 1.0
        parts = [F.mul(draw(c.key(), c.shape, real), half) for _ in range(2)]
        return F.one("complex", *parts)
    return draw(c.key(), c.shape, c.dtype)


def _integers(c: Context, low: Any, high: Any) -> Value:
    if not isinstance(low, int) or not isinstance(high, int):
        raise UnsupportedError(f"random integers of {low} … {high} - 1 need static bounds")
    found = draws.integers(c.key(), c.shape, (high - low) % (1 << 64))
    whole = dt.i64 if c.dtype.is_float or c.dtype.is_bool else c.dtype  # bounds are integers, also of float tensors
    return c.cast(F.add(F.cast(found, whole), low) if low else F.cast(found, whole), c.dtype)


def _above(dtype: DType) -> int:
    """One more than the largest integer that `random_` gives: what the dtype holds exactly."""
    if dtype.is_float:
        return int(2 ** {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}[dtype.name]) + 1
    return 2 if dtype.is_bool else 1 << (8 * dtype.itemsize - (dtype.kind == "i"))


@aten("randperm.default", "randperm.generator")
@placed
def randperm(c: Context, n: Any, *_: Any, **__: Any) -> Value:
    found = draws.permutation(c.key(), c.shape[0], c.dtype if c.dtype.is_int else dt.i64)
    return c.cast(found, c.dtype)


# --- distributions ---------------------------------------------------------------------------------------------------------------------


def _wide(c: Context, draw: Callable[..., Value]) -> Value:
    """A draw in the dtype that arithmetic on the result's is done in."""
    return draw(c.key(), c.shape, compute_dtype(c.dtype))


@aten("normal.default", "normal_functional.default", "normal.float_float")
@placed
def normal(c: Context, x: Any, mean: float = 0.0, std: float = 1.0, *_: Any, **__: Any) -> Value:
    if not isinstance(x, Value):
        mean, std = x, mean
    return c.cast(F.add(F.mul(_wide(c, draws.normal), std), mean), c.dtype)


@aten("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
@placed
def normal_tensor(c: Context, mean: Any, std: Any = 1.0, *_: Any, **__: Any) -> Value:
    wide = compute_dtype(c.dtype)
    return c.cast(F.add(F.mul(_wide(c, draws.normal), c.value(std, wide)), c.value(mean, wide)), c.dtype)


@aten("cauchy.default")
@placed
def cauchy(c: Context, x: Value, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Value:
    angle = F.mul(F.sub(_wide(c, draws.uniform), 0.5), pi)
    return c.cast(F.add(F.mul(F.one("tan", angle), sigma), median), c.dtype)


@aten("geometric.default")
@placed
def geometric(c: Context, x: Value, p: float, **_: Any) -> Value:
    """Attempts up to the first success: exponential times, rounded up."""
    from math import log1p

    wide = c.dtype if c.dtype in (dt.f32, dt.f64) else dt.f32
    if p >= 1:
        return c.expand(c.scalar(1, c.dtype), c.shape)
    return c.cast(F.maximum(F.one("ceil", F.div(draws.exponential(c.key(), c.shape, wide), -log1p(-p))), 1), c.dtype)


@aten("multinomial.default")
@placed
def multinomial(c: Context, weights: Value, count: int, replacement: bool = False, **_: Any) -> Value:
    if not isinstance(count, int):
        raise UnsupportedError("multinomial needs a static number of samples")
    return draws.choices(c.key(), weights, count, replacement=bool(replacement))


# --- dropout ---------------------------------------------------------------------------------------------------------------------------


@aten("native_dropout.default")
@placed
def native_dropout(c: Context, x: Value, p: float, train: bool | None) -> tuple[Value, Value]:
    if train is False or p == 0:
        return x, c.expand(c.scalar(True, dt.bool_), x.shape)
    mask = draws.kept(c.key(), x.shape, p)
    return F.where(mask, F.mul(x, 0.0 if p == 1 else 1 / (1 - p)), 0), mask


def _features(x: Value) -> tuple[Dim, ...]:
    """One number for each feature map [N, C, ...]."""
    return (*x.shape[:2], *(1,) * (len(x.shape) - 2))


def _alpha(c: Context, x: Value, p: float, shape: tuple[Dim, ...]) -> Value:
    """Dropout that keeps mean 0 and variance 1: what is dropped takes the lowest value of SELU, then all is scaled."""
    low = -1.7580993408473766
    if p == 1:
        return F.mul(x, 0.0)
    scale = 1.0 / float((low * low * p + 1) * (1 - p)) ** 0.5
    mask = draws.kept(c.key(), shape, p)
    return F.add(F.where(mask, F.mul(x, scale), low * scale), -low * scale * p)


@placed
def random_slopes(c: Context, x: Value, lower: float, upper: float) -> tuple[Value, Value]:
    """A leaky ReLU in training: each element has a slope of its own. The result, and the slopes (1 where x is positive)."""
    drawn = F.cast(F.add(F.mul(draws.uniform(c.key(), x.shape, compute_dtype(x.dtype)), upper - lower), lower), x.dtype)
    slope: Value = c.emit(O.Where(), F.less_equal(x, 0), drawn, c.scalar(1, x.dtype))
    return F.mul(x, slope), slope


rows({
    "rand.default rand_like.default rand.names rand.generator rand_like.generator": lambda c, *_, **__: _float(c, draws.uniform),
    "randn.default randn_like.default randn.names randn.generator randn_like.generator": lambda c, *_, **__: _float(c, draws.normal),
    "randint.default randint.generator": lambda c, high, *_, **__: _integers(c, 0, high),
    "randint.low randint.low_generator": lambda c, low, high, *_, **__: _integers(c, low, high),
    "randint_like.default": lambda c, x, high, **__: _integers(c, 0, high),
    "randint_like.low_dtype random.from": lambda c, x, low, high, **__: _integers(c, low, _above(c.dtype) if high is None else high),
    "random.to": lambda c, x, high, **__: _integers(c, 0, high),
    "uniform.default": lambda c, x, low=0.0, high=1.0, **_: c.cast(F.add(F.mul(_wide(c, draws.uniform), high - low), low), c.dtype),
    "log_normal.default": lambda c, x, mean=1.0, std=2.0, **_: c.cast(F.exp(F.add(F.mul(_wide(c, draws.normal), std), mean)), c.dtype),
    "exponential.default": lambda c, x, rate=1.0, **_: c.cast(F.div(_wide(c, draws.exponential), rate), c.dtype),
    "bernoulli.default": lambda c, p, **_: c.cast(draws.bernoulli(c.key(), p, c.shape), c.dtype),
    "bernoulli.p bernoulli.float": lambda c, x, p=0.5, **_: c.cast(F.logical_not(draws.kept(c.key(), c.shape, p)), c.dtype),
    "bernoulli.Tensor":
        lambda c, x, p, **_: c.cast(draws.bernoulli(c.key(), p if p.dtype.is_float else c.cast(p, dt.f32), c.shape), c.dtype),
    "feature_dropout.default": lambda c, x, p, train: draws.dropout(c.key(), x, p, _features(x)) if train and p != 0 else x,
    "alpha_dropout.default": lambda c, x, p, train: _alpha(c, x, p, x.shape) if train and p != 0 else x,
    "feature_alpha_dropout.default": lambda c, x, p, train: _alpha(c, x, p, _features(x)) if train and p != 0 else x,
    "random.default": lambda c, x, **__: _integers(c, 0, _above(c.dtype)),
    "dropout.default": lambda c, x, p, train: draws.dropout(c.key(), x, p) if train and p != 0 else x,
}, place=True)
