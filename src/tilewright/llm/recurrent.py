"""The recurrent parts of layers as graphs: Mamba's selective scan, Mamba-2's state space, Qwen3-Next's gated delta net.

Each keeps two arrays between calls: the last inputs of a causal convolution, f32[1, taps - 1, channels], and the memory of its scan, f32.
Rows may belong to several sequences (`Rows`): matrix products take them side by side, convolution and scan go sequence by sequence.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from .. import ops as o
from ..core import dtypes as dt
from ..core.dims import Dim
from ..ir.graph import Value
from ..ir.types import TensorType

if TYPE_CHECKING:
    from .decoder import Decoder

NAMES = ("conv", "memory")  # how the names of the arrays begin
L2_EPS = 1e-6


def is_recurrent(name: str) -> bool:
    """Whether a cache of this name is rewritten by every call."""
    return name.startswith(NAMES)


def new_state(d: Decoder, suffix: str) -> tuple[Value, Value]:
    r = d.config.recurrence
    assert r is not None
    shapes = (1, r.taps - 1, r.channels), (1, *r.memory)
    conv, memory = (d.graph.input(TensorType(dt.f32, shape), name + suffix) for name, shape in zip(NAMES, shapes, strict=True))
    return conv, memory


@dataclass
class Rows:
    """The rows of one layer, by sequence: `count` of each, with its convolution and memory before this call (and, in the end, after)."""

    count: Dim
    states: list[tuple[Value, Value]]

    def each(self, values: list[Value], make: Callable[[int, list[Value]], Value]) -> Value:
        """`make(sequence, its rows of the values)`, put together again."""
        if len(self.states) == 1:
            return make(0, values)
        return o.concat([make(i, [o.slice_(v, 0, i, 1) for v in values]) for i in range(len(self.states))], 0)


def mix(d: Decoder, i: int, h: Value, rows: Rows, last: bool) -> Value:
    """What the recurrence of layer i makes of h [rows, width]; with `last`, of its last row alone. The states in `rows` are renewed."""
    r = d.config.recurrence
    assert r is not None
    name = f"blk.{i}."
    make = {"mamba": _mamba, "mamba2": _mamba2, "delta": _delta}[r.kind]
    y = make(d, i, h, rows)
    y = o.slice_(y, 0, rows.count - 1, 1) if last else y
    return d.linear(name + "ssm_out", y, d.config.width)


def _mamba(d: Decoder, i: int, h: Value, rows: Rows) -> Value:
    r, name = d.config.recurrence, f"blk.{i}."
    assert r is not None
    x, z = o.split(d.linear(name + "ssm_in", h, 2 * r.inner), 1, (r.inner, r.inner))
    x = convolve(d, i, x, rows)
    steps, b, c = o.split(d.linear(name + "ssm_x", x, r.rank + 2 * r.state), 1, (r.rank, r.state, r.state))
    steps = o.softplus(d.linear(name + "ssm_dt", steps, r.inner))
    a, skip = d.numbers(name + "ssm_a", r.inner, r.state), d.numbers(name + "ssm_d", r.inner)

    def scan(lane: int, parts: list[Value]) -> Value:
        x, steps, b, c, z = (o.reshape(v, (1, *v.shape)) for v in parts)
        conv, memory = rows.states[lane]
        y, memory = o.SelectiveScan(gated=True)(x, steps, a, b, c, skip, z, memory, name=f"scan{i}")
        rows.states[lane] = conv, memory
        return o.reshape(y, y.shape[1:])

    return rows.each([x, steps, b, c, z], scan)


def _mamba2(d: Decoder, i: int, h: Value, rows: Rows) -> Value:
    r, name, c = d.config.recurrence, f"blk.{i}.", d.config
    assert r is not None
    sizes = (r.inner, r.channels, r.heads)
    mixed = d.linear(name + "ssm_in", h, sum(sizes))
    if any(s != 1.0 for s in r.in_scales):
        keys = r.groups * r.state
        parts = zip(r.in_scales, (r.inner, r.inner, keys, keys, r.heads), strict=True)
        factors = np.concatenate([np.full(n, s, np.float32) for s, n in parts])
        mixed = o.mul(mixed, d.graph.constant(factors, name + "ssm_in_scales"))
    z, x, steps = o.split(mixed, 1, sizes)
    x, k, q = o.split(convolve(d, i, x, rows), 1, (r.inner, r.groups * r.state, r.groups * r.state))
    steps = o.softplus(o.add(steps, d.numbers(name + "ssm_dt.bias", r.heads)))
    steps = steps if r.steps[0] <= 0 else o.maximum(steps, r.steps[0])
    steps = steps if r.steps[1] == inf else o.minimum(steps, r.steps[1])
    decay = o.mul(steps, d.numbers(name + "ssm_a", r.heads))
    y = _scan(d, i, rows, (q, k, x, decay, steps), 1.0, delta=False)
    by_head = (x.shape[0], r.heads, r.inner // r.heads)
    skip = o.mul(o.reshape(x, by_head), d.numbers(name + "ssm_d", r.heads, 1))
    y = o.add(y, o.reshape(skip, x.shape))
    if not r.norm_groups:
        return o.mul(y, o.silu(z))
    weight = d.numbers(name + "ssm_norm.weight", r.inner)
    y = o.mul(y, o.silu(z)) if r.gate_first else y
    parts_shape = (x.shape[0], r.norm_groups, r.inner // r.norm_groups)
    if r.norm_groups == 1:
        y = o.RmsNorm(eps=c.norm_eps, affine="weight")(y, weight)
    else:
        y = o.mul(o.reshape(o.RmsNorm(eps=c.norm_eps, affine="none")(o.reshape(y, parts_shape)), x.shape), weight)
    return y if r.gate_first else o.mul(y, o.silu(z))


def _delta(d: Decoder, i: int, h: Value, rows: Rows) -> Value:
    r, name, c = d.config.recurrence, f"blk.{i}.", d.config
    assert r is not None
    keys, size, share = r.groups * r.state, r.inner // r.heads, r.heads // r.groups
    mixed, z = d.linear(name + "attn_qkv", h, 2 * keys + r.inner), d.linear(name + "attn_gate", h, r.inner)
    both = o.reshape(d.linear(name + "ssm_ba", h, 2 * r.heads), (h.shape[0], r.groups, 2 * share))  # rates and steps of a group
    rate, steps = (o.reshape(v, (h.shape[0], r.heads)) for v in o.split(both, 2, (share, share)))
    q, k, v = o.split(convolve(d, i, mixed, rows), 1, (keys, keys, r.inner))
    q, k = (_unit(x, r.groups, r.state) for x in (q, k))
    decay = o.mul(o.softplus(o.add(steps, d.numbers(name + "ssm_dt.bias", r.heads))), d.numbers(name + "ssm_a", r.heads))
    y = _scan(d, i, rows, (q, k, v, decay, o.sigmoid(rate)), r.state**-0.5, delta=True)
    y = o.RmsNorm(eps=c.norm_eps, affine="weight")(o.reshape(y, (h.shape[0], r.heads, size)), d.numbers(name + "ssm_norm.weight", size))
    return o.mul(o.reshape(y, (h.shape[0], r.inner)), o.silu(z))


def _unit(x: Value, groups: int, size: int) -> Value:
    """Every group's row with length 1."""
    parts = o.reshape(x, (x.shape[0], groups, size))
    length = o.rsqrt(o.add(o.sum_(o.square(parts), (2,), keepdims=True), L2_EPS))
    return o.reshape(o.mul(parts, length), x.shape)


def _scan(d: Decoder, i: int, rows: Rows, values: tuple[Value, ...], scale: float, *, delta: bool) -> Value:
    """The gated (delta) rule over rows of queries, keys, values, decays and rates, with the heads side by side."""
    r = d.config.recurrence
    assert r is not None

    def heads(x: Value, count: int) -> Value:
        size = x.shape[1]
        assert isinstance(size, int)
        return o.transpose(o.reshape(x, (1, x.shape[0], count, size // count)), (0, 2, 1, 3))

    def scan(lane: int, parts: list[Value]) -> Value:
        q, k, v, g, rate = parts
        conv, memory = rows.states[lane]
        flat = [o.transpose(o.reshape(x, (1, *x.shape)), (0, 2, 1)) for x in (g, rate)]
        op = o.GatedDeltaRule(scale=scale, delta=delta)
        y, memory = op(heads(q, r.groups), heads(k, r.groups), heads(v, r.heads), *flat, memory, name=f"scan{i}")
        rows.states[lane] = conv, memory
        return o.reshape(o.transpose(y, (0, 2, 1, 3)), v.shape)

    return rows.each(list(values), scan)


def convolve(d: Decoder, i: int, x: Value, rows: Rows) -> Value:
    """The causal convolution of every channel, then SiLU."""
    r, name = d.config.recurrence, f"blk.{i}.ssm_conv1d"
    assert r is not None
    weight = d.graph.constant(np.ascontiguousarray(d.weights.numbers(name + ".weight", r.channels, r.taps).T), name)
    bias = d.numbers(name + ".bias", r.channels) if name + ".bias" in d.weights else d.graph.constant(np.zeros(r.channels, np.float32))

    def one(lane: int, parts: list[Value]) -> Value:
        conv, memory = rows.states[lane]
        y, conv = o.CausalConv()(o.reshape(parts[0], (1, *parts[0].shape)), weight, bias, conv, name=f"conv{i}")
        rows.states[lane] = conv, memory
        return o.reshape(y, y.shape[1:])

    return rows.each([x], one)
