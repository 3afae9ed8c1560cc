"""Random numbers. With a seed every run gives the same ones; without, each call draws anew."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import dtypes as dt
from ...core.dims import Dim
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.random import draws
from .registry import Context, elem_number, op


def _normal(c: Context, shape: Sequence[Dim], e: Any, mean: float, scale: float, seed: Any) -> Value:
    return F.add(F.mul(draws.normal(c.key(seed), tuple(shape), e.held), scale), mean)


def _uniform(c: Context, shape: Sequence[Dim], e: Any, low: float, high: float, seed: Any) -> Value:
    return F.add(F.mul(draws.uniform(c.key(seed), tuple(shape), e.held), high - low), low)


@op("RandomNormal")
def random_normal(c: Context, *, shape: Any, dtype: int = 1, mean: float = 0.0, scale: float = 1.0, seed: float | None = None) -> Value:
    return _normal(c, shape, elem_number(dtype), mean, scale, seed)


@op("RandomUniform")
def random_uniform(c: Context, *, shape: Any, dtype: int = 1, low: float = 0.0, high: float = 1.0, seed: float | None = None) -> Value:
    return _uniform(c, shape, elem_number(dtype), low, high, seed)


def _like(c: Context, x: Value, dtype: int | None) -> Any:
    return elem_number(dtype) if dtype is not None else c.elem(x)


@op("RandomNormalLike")
def random_normal_like(c: Context, x: Value, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0,
                       seed: float | None = None) -> Value:
    return _normal(c, x.shape, _like(c, x, dtype), mean, scale, seed)


@op("RandomUniformLike")
def random_uniform_like(c: Context, x: Value, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0,
                        seed: float | None = None) -> Value:
    return _uniform(c, x.shape, _like(c, x, dtype), low, high, seed)


@op("Bernoulli")
def bernoulli(c: Context, x: Value, *, dtype: int | None = None, seed: float | None = None) -> Value:
    return F.cast(draws.bernoulli(c.key(seed), x, x.shape), _like(c, x, dtype).held)


@op("Multinomial")
def multinomial(c: Context, x: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    batch, classes = x.shape
    wide = F.reshape(F.cast(x, dt.f32), (batch, 1, classes))
    found = draws.categorical(c.key(seed), F.expand(wide, (batch, sample_size, classes)), 2)
    return F.cast(found, elem_number(dtype).held)
