"""Graphs that the tests of the graph services share."""

from __future__ import annotations

import numpy as np

from tilewright.core.dims import sym
from tilewright.core.dtypes import i64
from tilewright.ir.graph import Graph
from tilewright.ops import Fused, Split
from tilewright.ops import functions as F
from tilewright.ops.base import single
from tilewright.ops.families import f32


def small(name: str = "x", scale: float = 2.0) -> Graph:
    """relu(x * scale + w) with a constant big enough to be named in text."""
    g = Graph("small")
    x = g.input(f32(3, 5), name)
    w = g.constant(np.arange(15, dtype=np.float32).reshape(3, 5), "w")
    g.outputs = [F.relu(F.add(F.mul(x, scale), w))]
    return g


def symbolic() -> Graph:
    """Symbols in types and attributes, several outputs, places, a region, an odd name."""
    s = sym("S", 1, 64)
    t = sym("T")
    g = Graph("symbolic")
    x = g.input(f32(2, 2 * s + 1), "x")
    y = g.input(f32(t, 3), "layer.0/y")
    left, right = Split(axis=1, sizes=(s, s + 1))(x, place='model.py:4 "quoted"')
    ramp = F.iota(g, (s,), 0, i64, start=t // 2)
    n = F.cast(F.dim_value(g, s * t, i64), left.dtype)
    body = single(lambda b, v: F.tanh(F.add(v[0], 0.1)), f32(2, s))
    region = Fused(body=body)(left)
    g.outputs = [region, F.mul(F.cast(ramp, left.dtype), n), right, F.neg(y)]
    return g
