"""Distributions in random ops: each function appends to its key's graph. Traced functions (`tw.random`) and the PyTorch frontend share
them. A key is a u64 of rank 0; two draws with one key have the same bits."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Shape, at_most, product
from ...core.dtypes import DType, compute_dtype
from ...ir.graph import Value
from .. import functions as F
from ..base import REGISTRY
from .philox import DIGITS, DRAW, FOLD, SPLIT

WORD = 1 << 32


def positions(key: Value, shape: Shape) -> Value:
    """The counters of an array's elements, in 32 bits where they fit."""
    dtype = dt.u32 if at_most(product(shape), WORD) else dt.u64
    op: Any = REGISTRY["positions"]
    found: Value = key.node.graph.add(op(shape=tuple(shape), dtype=dtype)).value
    return found


def bits(key: Value, shape: Shape, dtype: DType = dt.u32, *, word: int = 0, stream: int = DRAW) -> Value:
    return F.one("random_bits", key, positions(key, shape), word=word, stream=stream, dtype=dtype)


def split(key: Value, count: Dim) -> Value:
    """u64[count]: keys that have nothing in common with each other or with `key`."""
    return bits(key, (count,), dt.u64, stream=SPLIT)


def fold_in(key: Value, data: Value) -> Value:
    """A key for `key` and a number: u64 of the number's shape."""
    return F.one("random_bits", key, F.cast(data, dt.u64), stream=FOLD, dtype=dt.u64)


def uniform(key: Value, shape: Shape, dtype: DType = dt.f32) -> Value:
    """[0, 1)."""
    return F.one("random_uniform", key, positions(key, shape), dtype=dtype)


def normal(key: Value, shape: Shape, dtype: DType = dt.f32) -> Value:
    """Mean 0, variance 1."""
    return F.one("random_normal", key, positions(key, shape), dtype=dtype)


def kept(key: Value, shape: Shape, p: float) -> Value:
    """bool: False with probability p, to 2^-32: what a dropout keeps."""
    limit = min(max(round(p * WORD), 0), WORD)
    if limit == WORD:
        return F.expand(F.scalar(key.node.graph, False, dt.bool_), shape)
    return F.greater_equal(bits(key, shape), limit)


def dropout(key: Value, x: Value, p: float, shape: Shape | None = None) -> Value:
    """x with elements (or parts, where `shape` broadcasts to x) set to 0 with probability p; the others grow by 1 / (1 - p)."""
    if p == 0:
        return x
    factor = 0.0 if p == 1 else 1 / (1 - p)
    return F.where(kept(key, x.shape if shape is None else shape, p), F.mul(x, factor), 0)


def bernoulli(key: Value, p: Value, shape: Shape) -> Value:
    """bool: True with probability p, a float array that broadcasts to `shape`."""
    wide = F.cast(p, compute_dtype(p.dtype))
    return F.less(uniform(key, shape, wide.dtype), wide)


def integers(key: Value, shape: Shape, span: int | Value) -> Value:
    """u64: a number of 0 … span - 1 (an int, or u64; 0 stands for 2^64). 64 random bits are shared out among the numbers, so that none is
    more likely than another by more than span / 2^64."""
    x = bits(key, shape, dt.u64)
    upper, lower = F.one("bitwise_right_shift", x, 32), F.one("bitwise_and", x, WORD - 1)

    def few() -> Value:
        """The upper half of x * span where span has at most 32 bits: no product or sum exceeds 64."""
        rest = F.one("bitwise_right_shift", F.mul(lower, span), 32)
        return F.one("bitwise_right_shift", F.add(F.mul(upper, span), rest), 32)

    if isinstance(span, int):
        return x if span == 0 else few() if span <= WORD else F.one("remainder", x, span)
    small = F.logical_and(F.less_equal(span, WORD), F.greater(span, 0))
    return F.where(F.equal(span, 0), x, F.where(small, few(), F.one("remainder", x, F.maximum(span, 1))))


def exponential(key: Value, shape: Shape, dtype: DType = dt.f32) -> Value:
    """Rate 1, above 0."""
    wide = compute_dtype(dtype)
    least = 2.0 ** -(DIGITS[wide.name] + 1)  # in place of -log(1)
    return F.cast(F.maximum(F.neg(F.log(F.sub(1, uniform(key, shape, wide)))), least), dtype)


def gumbel(key: Value, shape: Shape, dtype: DType = dt.f32) -> Value:
    """The standard Gumbel distribution: its largest of several has the distribution of `categorical`."""
    return F.cast(F.neg(F.log(exponential(key, shape, compute_dtype(dtype)))), dtype)


def categorical(key: Value, logits: Value, axis: int) -> Value:
    """i64: along `axis`, each index with the probability of softmax(logits)."""
    wide = F.cast(logits, compute_dtype(logits.dtype))
    return F.one("arg_max", F.add(wide, gumbel(key, logits.shape, wide.dtype)), axis=axis)


def permutation(key: Value, count: Dim, dtype: DType = dt.i64) -> Value:
    """The numbers 0 … count - 1 in a random order."""
    return F.one("arg_sort", F.cast(bits(key, (count,), dt.u64), dt.i64), axis=0, dtype=dtype)


def _checked(weights: Value, axis: int) -> Value:
    """i64[..., 1] of zeros, looked up in a table: a row that is no distribution asks for an entry behind it."""
    graph, total = weights.node.graph, F.sum_(weights, (axis,), keepdims=True)
    fine = F.logical_and(F.greater_equal(F.one("min", weights, axes=(axis,), keepdims=True), 0), F.greater(total, 0))
    fine = F.logical_and(fine, F.less(total, float("inf")))
    ids = F.where(fine, F.scalar(graph, 0, dt.i64), F.scalar(graph, 2, dt.i64))
    return F.gather(graph.constant(np.arange(2), "none"), ids)


def choices(key: Value, weights: Value, count: int, *, replacement: bool) -> Value:
    """i64[..., count]: indices of the last axis, each with a probability proportional to its weight (0: never). Rows of negative weights,
    of weights that are not finite and of zeros alone are reported."""
    wide = F.cast(weights, compute_dtype(weights.dtype))
    last = len(weights.shape) - 1
    checked = _checked(wide, last)
    if not replacement or count == 1:  # the winners of a race: with exponential clocks the first of all has the right distribution
        race = F.div(wide, exponential(key, weights.shape, wide.dtype))
        if count == 1:
            return F.add(F.reshape(F.one("arg_max", race, axis=last), (*weights.shape[:-1], 1)), checked)
        found = F.apply("top_k", race, k=count, axis=last)[1]
        assert isinstance(found, Value)
        return F.add(F.cast(found, dt.i64), checked)
    running = F.one("cum_sum", wide, axis=last)
    total = F.reshape(F.slice_(running, last, weights.shape[-1] - 1, 1), (*weights.shape[:-1], 1, 1))
    u = F.mul(F.reshape(uniform(key, (*weights.shape[:-1], count), wide.dtype), (*weights.shape[:-1], count, 1)), total)
    before = F.less_equal(F.reshape(running, (*weights.shape[:-1], 1, weights.shape[-1])), u)
    return F.add(F.sum_(F.cast(before, dt.i64), (last + 1,)), checked)
