"""Gradients of lookups whose places are known: every element sums what read it, in one order, instead of being added to."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dtypes import compute_dtype
from ...ir.graph import Value
from .. import functions as F
from ..structure import Constant

MOST = 32  # readers of an element, and ...
SHARE = 4  # ... how many more elements may be read than are needed


def known(v: Value) -> Any:
    """The elements of a constant, or None."""
    return v.node.op.data.array if isinstance(v.node.op, Constant) else None


def summed_readers(g: Value, index: Any, weight: Any, size: int, axis: int) -> Value | None:
    """What out[…, o, …] += weight[t, o] * x[…, index[t, o], …] gives x[…, s, …] of g: None where elements have many readers. Elements that
    fewer read than others add zeros."""
    taps, out = index.shape
    pairs, at = np.unique(np.clip(index, 0, size - 1).astype(np.int64) * out + np.arange(out), return_inverse=True)
    shares = np.bincount(at.ravel(), None if weight is None else weight.astype(np.float64).ravel(), len(pairs))
    read, reader = pairs // max(out, 1), pairs % max(out, 1)
    counts = np.bincount(read, minlength=size)
    most = int(counts.max(initial=0))
    if not 0 < most <= MOST or most * size > SHARE * taps * out + MOST:
        return None
    number = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    places, parts, there = np.zeros((most, size), np.int64), np.ones((most, size)), np.zeros((most, size), np.bool_)
    places[number, read], parts[number, read], there[number, read] = reader, shares, True
    graph, wide = g.node.graph, compute_dtype(g.dtype)
    least, dtype = int(counts.min()), g.dtype
    g = g if most == 1 or least == most else F.cast(g, wide)

    def constant(x: Any, kind: Any) -> Value:
        return graph.constant(np.ascontiguousarray(x.astype(kind)), "taps")

    total: Value | None = None
    if least > 1:
        total = F.one("gather_sum", g, constant(places[:least], np.int64), constant(parts[:least], wide.np), axis=axis)
    along = tuple(size if a == axis else 1 for a in range(len(g.shape)))
    for t in range(0 if least == 1 else least, most):
        part = F.gather(g, constant(places[t], np.int64), axis)
        if np.any(parts[t] != 1):
            part = F.mul(F.cast(part, wide), constant(parts[t].reshape(along), wide.np))
        if t >= least:
            part = F.where(constant(there[t].reshape(along), np.bool_), part, 0)
        total = part if total is None else F.add(total, part)
    assert total is not None
    return F.cast(total, dtype)
