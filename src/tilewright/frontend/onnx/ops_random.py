"""Random numbers. With a seed every run gives the same ones; without, each call draws anew."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...core import dtypes as dt
from ...core.dims import Dim
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.random import draws
from .registry import Context, elem_number
from .tables import op, rows


def _normal(c: Context, shape: Sequence[Dim], e: Any, mean: float, scale: float, seed: Any) -> Value:
    return F.add(F.mul(draws.normal(c.key(seed), tuple(shape), e.held), scale), mean)


def _uniform(c: Context, shape: Sequence[Dim], e: Any, low: float, high: float, seed: Any) -> Value:
    return F.add(F.mul(draws.uniform(c.key(seed), tuple(shape), e.held), high - low), low)


def _like(c: Context, x: Value, dtype: int | None) -> Any:
    return elem_number(dtype) if dtype is not None else c.elem(x)


@op("Multinomial")
def multinomial(c: Context, x: Value, *, dtype: int = 6, sample_size: int = 1, seed: float | None = None) -> Value:
    batch, classes = x.shape
    wide = F.reshape(F.cast(x, dt.f32), (batch, 1, classes))
    found = draws.categorical(c.key(seed), F.expand(wide, (batch, sample_size, classes)), 2)
    return F.cast(found, elem_number(dtype).held)


rows({
    "RandomNormal": lambda c, *, shape, dtype=1, mean=0.0, scale=1.0, seed=None: _normal(c, shape, elem_number(dtype), mean, scale, seed),
    "RandomUniform": lambda c, *, shape, dtype=1, low=0.0, high=1.0, seed=None: _uniform(c, shape, elem_number(dtype), low, high, seed),
    "RandomNormalLike":
        lambda c, x, *, dtype=None, mean=0.0, scale=1.0, seed=None: _normal(c, x.shape, _like(c, x, dtype), mean, scale, seed),
    "RandomUniformLike":
        lambda c, x, *, dtype=None, low=0.0, high=1.0, seed=None: _uniform(c, x.shape, _like(c, x, dtype), low, high, seed),
    "Bernoulli": lambda c, x, *, dtype=None, seed=None: F.cast(draws.bernoulli(c.key(seed), x, x.shape), _like(c, x, dtype).held),
})
