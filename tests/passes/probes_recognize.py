"""Instances of the patterns that recognition looks for, right and nearly right, and of the rules that come after it."""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.ir.graph import Value

from .kit import Kit, Probe
from .probes import CONCATS, CONV, INDEX, INF, MASKS, MATMUL, PATCHES, SCALAR, VIEWS, iota

EPS = (1e-5, 0.0, 1e-12)
K = math.sqrt(2 / math.pi)


def spread(k: Kit, x: Value, eps: float, axes: tuple[int, ...] = (1,)) -> Value:
    return o.Add()(o.Mean(axes=axes, keepdims=True)(o.Square()(x)), k.c(eps))


def rms(finish: Callable[[Value, Value], Value]) -> list[Probe]:
    return [lambda k, e=e: finish(x := k.x(), spread(k, x, e)) for e in EPS] + [
        lambda k: finish(x := k.x(k.b, k.s, k.d), spread(k, x, 1e-5, (1, 2))), lambda k: finish(x := k.x(k.d), spread(k, x, 1e-5, (0,)))]


def centred(k: Kit, x: Value) -> Value:
    return o.Sub()(x, o.Mean(axes=(1,), keepdims=True)(x))


def by_variance(k: Kit, eps: float) -> tuple[Value, Value]:
    x = k.x()
    return centred(k, x), o.Add()(o.Var(axes=(1,), keepdims=True, correction=0.0)(x), k.c(eps))


def in_f32(op: Any) -> Probe:
    return lambda k: o.Cast(dtype=k.dtype)(op(o.Cast(dtype=dt.f32 if k.dtype.itemsize < 4 else dt.f64)(k.x())))


def softmax(k: Kit, axis: int, *, divided: bool) -> Value:
    x = k.x()
    e = o.Exp()(o.Sub()(x, o.Max(axes=(axis,), keepdims=True)(x)))
    total = o.Sum(axes=(axis,), keepdims=True)(e)
    return o.Div()(e, total) if divided else o.Mul()(e, o.Reciprocal()(total))


NORMS: dict[str, list[Probe]] = {
    "rms_norm": rms(lambda x, s: o.Mul()(x, o.Rsqrt()(s))),
    "rms_norm_by_division": rms(lambda x, s: o.Div()(x, o.Sqrt()(s))),
    "rms_norm_by_reciprocal": rms(lambda x, s: o.Mul()(x, o.Reciprocal()(o.Sqrt()(s)))),
    "layer_norm": [lambda k, a=a: o.RmsNorm(eps=1e-5, affine=a)(centred(k, k.x()), *([k.x(k.d)] if a == "weight" else []))
                   for a in ("none", "weight")] + [
        lambda k: o.RmsNorm(eps=1e-5, affine="none")(o.Transpose(perm=(0, 2, 1))(centred(k, k.x(k.b, k.d, k.s))))],
    "layer_norm_of_variance": [lambda k, e=e: o.Mul()((v := by_variance(k, e))[0], o.Rsqrt()(v[1])) for e in EPS],
    "layer_norm_by_division": [lambda k, e=e: o.Div()((v := by_variance(k, e))[0], o.Sqrt()(v[1])) for e in EPS],
    "norm_in_narrow_type": [in_f32(o.RmsNorm(affine="none")), in_f32(o.LayerNorm(affine="none"))],
    "norm_weight": [lambda k, op=op: o.Mul()(op(affine="none")(k.x()), k.x(k.d)) for op in (o.RmsNorm, o.LayerNorm)],
    "norm_bias": [lambda k: o.Add()(o.LayerNorm(affine="weight")(k.x(), k.x(k.d)), k.x(k.d))],
    "weight_of_pixels": [lambda k, op=op: o.Mul()(o.Transpose(perm=(0, 2, 1))(op(affine="none")(k.x(k.b, k.s, k.d))), k.x(k.d, 1))
                         for op in (o.RmsNorm, o.LayerNorm)],
    "bias_of_pixels": [lambda k: o.Add()(o.Transpose(perm=(0, 2, 1))(o.LayerNorm(affine="weight")(k.x(k.b, k.s, k.d), k.x(k.d))),
                                         k.x(1, k.d, 1))],
    "softmax_by_division": [lambda k, a=a: softmax(k, a, divided=True) for a in (0, 1)],
    "softmax_by_reciprocal": [lambda k, a=a: softmax(k, a, divided=False) for a in (0, 1)],
}


def bend(k: Kit, x: Value, *, tanh: bool, scale: float = 1.0, one: float = 1.0, cubic: float = 0.044715) -> Value:
    """1 + erf(x / sqrt 2), or 1 + tanh of the polynomial; slightly off where asked."""
    if not tanh:
        return o.Add()(o.Erf()(o.Mul()(x, k.c(math.sqrt(0.5) * scale))), k.c(one))
    cube = o.Mul()(o.Mul()(o.Square()(x), x), k.c(cubic))
    return o.Add()(o.Tanh()(o.Mul()(o.Add()(x, cube), k.c(K * scale))), k.c(one))


def gelus(finish: Callable[[Kit, Value, Value, float], Value]) -> list[Probe]:
    kinds: list[dict[str, Any]] = [{"tanh": t} | more for t in (False, True)
                                   for more in ({}, {"scale": 1 + 1e-6}, {"scale": 1.0001}, {"one": 1.0000001}, {"cubic": 0.0447})]
    return [lambda k, o_=more, h=h: finish(k, x := k.x(), bend(k, x, **o_), h) for more in kinds for h in (0.5, 0.50001)] + [
        lambda k: finish(k, x := k.x(), o.Add()(o.Erf()(o.Mul()(o.Mul()(x, k.c(1e30)), k.c(math.sqrt(0.5) * 1e-30))), k.c(1.0)), 0.5),
        lambda k: finish(k, x := k.x(), o.Add()(o.Erf()(o.Div()(x, k.c(math.sqrt(2.0)))), k.c(1.0)), 0.5),
        lambda k: finish(k, x := k.x(), o.Add()(o.Erf()(o.Sub()(o.Mul()(x, k.c(1 + math.sqrt(0.5))), x)), k.c(1.0)), 0.5)]


def denominator(k: Kit, x: Value) -> Value:
    return o.Add()(o.Exp()(o.Neg()(x)), k.c(1.0))


ACTIVATIONS: dict[str, list[Probe]] = {
    "gelu_half_first": gelus(lambda k, x, w, h: o.Mul()(o.Mul()(x, k.c(h)), w)),
    "gelu_half_inside": gelus(lambda k, x, w, h: o.Mul()(x, o.Mul()(w, k.c(h)))),
    "gelu_half_last": gelus(lambda k, x, w, h: o.Mul()(o.Mul()(x, w), k.c(h))),
    "sigmoid": [lambda k: o.Reciprocal()(denominator(k, k.x())),
                lambda k: o.Reciprocal()(o.Add()(o.Exp()(o.Neg()(k.x())), k.c(1.0000001)))],
    "silu_by_division": [lambda k: o.Div()(x := k.x(), denominator(k, x))],
    "silu": [lambda k: o.Mul()(x := k.x(), o.Sigmoid()(x)), lambda k: o.Mul()(k.x(), o.Sigmoid()(k.x()))],
}


def table(k: Kit, *, uneven: Any = None) -> Value:
    """Angles whose two halves are equal, or differ in one number only."""
    a = np.array([[0.0, 0.3], [-0.0, 0.5], [1.0, -0.7]])[: k.s]
    both = np.concatenate([a, a], -1)
    if uneven is not None:
        both[0, 2] = uneven
    return k.c(both)


def rope(k: Kit, cos: Value, sin: Value, x: Value | None = None, sign: Any = o.Neg) -> Value:
    x = k.x(k.b, k.s, 4) if x is None else x
    a, b = o.Split(axis=len(x.shape) - 1, sizes=(2, 2))(x)
    return o.Add()(o.Mul()(x, cos), o.Mul()(o.Concat(axis=len(x.shape) - 1)(sign()(b), a), sin))


def regrouped_rope(k: Kit) -> Value:
    """The products regroup their rows before they are added; the row is a slice of a larger value along two axes."""
    x, start = k.x(k.b, k.s, 9), (1 if k.b > 1 else 0)
    rows, halves = [o.Slice(starts=(start, 0, at), sizes=(1, k.s, n), steps=(1, 1, 1))(x) for at, n in ((2, 4), (2, 2), (4, 2))], table(k)
    one = o.Mul()(o.Reshape(shape=(k.s, 4))(rows[0]), halves)
    two = o.Mul()(o.Reshape(shape=(k.s, 4))(o.Concat(axis=2)(o.Neg()(rows[2]), rows[1])), halves)
    return o.Add()(*(o.Reshape(shape=(1, 1, k.s, 4))(v) for v in (one, two)))


def turned(k: Kit, a: Value, b: Value, c: Value, s: Value) -> tuple[Value, Value]:
    return o.Sub()(o.Mul()(a, c), o.Mul()(b, s)), o.Add()(o.Mul()(b, c), o.Mul()(a, s))


def halves(k: Kit) -> Value:
    x = k.x(k.b, k.s, 4)
    return o.Concat(axis=2)(*turned(k, *o.Split(axis=2, sizes=(2, 2))(x), k.x(k.s, 2), k.x(k.s, 2)))  # type: ignore[call-arg]


def pairs(k: Kit) -> Value:
    x = k.x(k.b, k.s, 4)
    lanes = [o.Slice(starts=(0, 0, i), sizes=(k.b, k.s, 2), steps=(1, 1, 2))(x) for i in (0, 1)]
    two = [o.Reshape(shape=(k.b, k.s, 2, 1))(v) for v in turned(k, *lanes, k.x(k.s, 2), k.x(k.s, 2))]  # type: ignore[call-arg]
    return o.Reshape(shape=(k.b, k.s, 4))(o.Concat(axis=3)(*two))


def partial(k: Kit) -> Value:
    x = k.x(k.b, k.s, 7)
    a, rest = o.Split(axis=2, sizes=(4, 3))(x)
    return o.Concat(axis=2)(o.Rope()(a, k.x(k.s, 2), k.x(k.s, 2)), rest)


def scalars(k: Kit) -> Value:
    """s * c + concat(a, a) * b, where s is a number."""
    a = k.x(2)
    return o.Add()(o.Mul()(k.scalar(), k.x(4)), o.Mul()(o.Concat(axis=0)(a, a), k.x(4)))


ROPE: dict[str, list[Probe]] = {
    "rope": [lambda k: rope(k, table(k), table(k)), *(lambda k, u=u: rope(k, table(k), table(k, uneven=u)) for u in (-0.0, 0.1)),
             lambda k: rope(k, table(k), table(k), sign=o.Relu), scalars, lambda k: rope(k, k.c(table_row()), k.c(table_row()), k.x(4)),
             regrouped_rope, lambda k: rope(k, o.Concat(axis=1)(c := k.x(k.s, 2), c), o.Concat(axis=1)(s := k.x(k.s, 2), s))],
    "partial_rope": [partial],
    "rope_of_halves": [halves, lambda k: o.Concat(axis=0)(*turned(k, k.scalar(), k.scalar(), k.x(3), k.x(3)))],
    "rope_of_pairs": [pairs],
}


def table_row() -> Any:
    return np.array([0.3, -0.5, 0.3, -0.5])


def attention(change: Callable[[Kit, Value], Value] = lambda k, s: s, *, rank: int = 4, cast: Any = None, heads: int | None = None,
              guard: float | None = None) -> Probe:
    def build(k: Kit) -> Value:
        lead, shared = (1, k.b)[4 - rank :], (1, heads or k.b)[4 - rank :]
        q, keys, v = k.x(*lead, k.s, k.d), k.x(*shared, k.s + 1, k.d), k.x(*shared, k.s + 1, k.d)
        s = change(k, o.Matmul(transpose_b=True)(q, keys))
        p = o.Softmax(axis=len(s.shape) - 1)(s if cast is None else o.Cast(dtype=cast)(s))
        p = p if guard is None else o.Where()(o.IsNan()(p), k.c(guard, p.dtype), p)
        out: Value = o.Matmul()(p if p.dtype is k.dtype else o.Cast(dtype=k.dtype)(p), v)
        return out

    return build


def windows(k: Kit) -> Value:
    """Two images of three windows, which share a mask, and a bias for heads."""
    q, keys, v = (k.x(6, k.b, n, k.d) for n in (k.s, k.s + 1, k.s + 1))
    s = o.Add()(o.Matmul(transpose_b=True)(q, keys), k.x(k.b, k.s, k.s + 1))
    s = o.Add()(o.Reshape(shape=(2, 3, *s.shape[1:]))(s), k.x(1, 3, 1, k.s, k.s + 1))
    out: Value = o.Matmul()(o.Softmax(axis=3)(o.Reshape(shape=(6, *s.shape[2:]))(s)), v)
    return out


def values_in_columns(k: Kit) -> Value:
    """v @ p.T, values as [d, keys]: how images attend that keep their channels first."""
    p = o.Softmax(axis=2)(o.Matmul(transpose_b=True)(k.x(k.b, k.s, k.d), k.x(k.b, k.s + 1, k.d)))
    out: Value = o.Matmul(transpose_b=True)(k.x(k.b, 5, k.s + 1), p)
    return out


def where(low: float, *, row: bool = False) -> Callable[[Kit, Value], Value]:
    def change(k: Kit, s: Value) -> Value:
        mask = np.ones((k.s, k.s + 1), bool)
        mask[:1] = False  # a row that sees nothing
        return o.Where()(k.c(mask, dt.bool_) if not row else k.x(k.s, k.s + 1, dtype=dt.bool_), s, k.c(low, s.dtype))

    return change


def plus(low: float) -> Callable[[Kit, Value], Value]:
    return lambda k, s: o.Add()(s, k.c(np.where(np.arange(k.s)[:, None] == 0, low, np.linspace(-1, 1, k.s + 1)), s.dtype))


def capped(cap: float, by: float) -> Callable[[Kit, Value], Value]:
    return lambda k, s: o.Mul()(o.Tanh()(o.Mul()(s, k.c(by))), k.c(cap))


LOW = -3.4028234663852886e38
SCORES: list[Callable[[Kit, Value], Value]] = [
    *(where(low, row=row) for low in (-INF, -1e9, -1e30, -65504.0, LOW, 0.0, 5.0, INF, math.nan) for row in (False, True)),
    *(plus(low) for low in (-INF, -1e9, -1e30, LOW, INF, math.nan)),
    *(capped(*c) for c in ((3.0, 0.5), (-3.0, 0.5), (3.0, -0.25), (1e30, 1e-30), (0.0, 1.0), (INF, 1.0))),
    *(lambda k, s, c=c: o.Mul()(s, k.c(c)) for c in (0.5, -0.5, 1e-30, 0.0, INF)), lambda k, s: o.Div()(s, k.c(1e-40)),
    *(lambda k, s, low=low: plus(1.0)(k, where(low)(k, s)) for low in (-INF, -1e9, LOW)), lambda k, s: where(-INF)(k, plus(1.0)(k, s)),
    lambda k, s: o.Add()(where(-INF)(k, s), k.x(k.s, k.s + 1)), lambda k, s: where(-1e9)(k, where(-5.0)(k, s)),
    lambda k, s: where(-INF)(k, o.Mul()(s, k.c(0.5))), lambda k, s: o.Mul()(where(-5.0)(k, s), k.c(2.0)),
]


def grouped(k: Kit) -> Value:
    apart = [o.Reshape(shape=(1, 2, 1, k.s, k.d))(k.x(1, 2, k.s, k.d)) for _ in range(2)]
    keys = [o.Reshape(shape=(1, 4, k.s, k.d))(o.Expand(shape=(1, 2, 2, k.s, k.d))(x)) for x in apart]
    return o.Attention(scale=0.5)(k.x(1, 4, k.s, k.d), *keys)


def scaled(c: float, at: int, op: Any = o.Mul) -> Probe:
    def build(k: Kit) -> Value:
        qkv = [k.x(1, k.b, k.s, k.d) for _ in range(3)]
        qkv[at] = op()(qkv[at], k.c(c))
        out: Value = o.Attention(scale=0.5)(*qkv)
        return out

    return build


ATTENTION: dict[str, list[Probe]] = {
    "attention": [attention(), attention(rank=3), attention(rank=2), *(attention(c) for c in SCORES),
                  *(attention(cast=d) for d in (dt.f16, dt.f32, dt.f64)), attention(heads=1), attention(lambda k, s: o.Add()(s, k.c(0.0))),
                  *(attention(lambda k, s, c=c: o.Mul()(o.Add()(s, k.x(k.s, k.s + 1)), k.c(c))) for c in (0.5, -0.25, 1e-30)), windows],
    "values_in_columns": [values_in_columns],
    "guarded_attention": [attention(c, guard=g, heads=h) for c in (where(-INF), plus(-INF)) for g, h in ((0.0, None), (1.0, 1), (0.0, 1))],
    "mask_under_bias": [attention(lambda k, s, x=x: plus(1.0)(k, where(x)(k, s))) for x in (LOW, -1e9, -1.7e308, -65504.0, -INF)]
    + [attention(lambda k, s, x=x: o.Add()(where(LOW)(k, s), k.c(np.where(np.arange(k.s + 1) < 2, x, 0.0)))) for x in (LOW, -INF)],
    "grouped_heads": [grouped],
    "scaled_view": MATMUL["scaled_view"],
    "scaled_query": [scaled(c, at, op) for c in (0.5, -0.25, 0.0, 1e-30, 1e30, INF) for at in (0, 1) for op in (o.Mul, o.Div)],
}
EXPERTS: dict[str, list[Probe]] = {
    "product_with_chosen_matrices": [
        lambda k: o.Matmul()(k.x(3, 1, k.d), o.Gather(axis=0)(k.x(2, k.d, 5), k.c([0, 1, 1], dt.i64))),
        lambda k: o.Matmul()(o.Gather(axis=0)(k.x(2, 5, k.d), k.c([0, 1, 1], dt.i64)), k.x(3, k.d, 1)),
    ],
    "product_of_chosen_rows": [
        lambda k: o.Matmul()(o.Gather(axis=0)(k.x(2, 5), k.c([0, 1, 1, 0], dt.i64)), k.x(5, 3)),
        lambda k: o.Matmul(transpose_b=True)(o.Concat(axis=1)(o.Gather(axis=0)(k.x(2, 3), k.c([0, 1, 1, 0], dt.i64)), k.x(4, 1),
                                                              o.Gather(axis=0)(k.x(1, 2), k.c([0, 0, 0, 0], dt.i64))), k.x(4, 6)),
    ],
}
N = sym("N", 1, 8)


def positions(k: Kit) -> Value:
    return k.graph.add(o.Iota(shape=(N,), axis=0, dtype=dt.i64)).value


def with_length(k: Kit, v: Value) -> Value:
    """A graph of a length that only an input shows."""
    k.tame.append(True)
    line = k.graph.input(v.type.with_dtype(k.dtype).with_shape((N,)), "length")
    return o.Add()(o.Cast(dtype=k.dtype)(v), line) if k.dtype.is_float else o.Add()(v, o.Cast(dtype=dt.i64)(line))


def cut(k: Kit) -> Value:
    """The beginning of a stored table."""
    return o.Slice(starts=(0,), sizes=(N,), steps=(1,))(k.c([0.0, -0.0, 1.0, -INF, INF, math.nan, 2.0, -3.0]))


TABLES: dict[str, list[Probe]] = {
    "iota_table": [lambda k: o.Cast(dtype=k.dtype)(iota(k, 5)), lambda k: with_length(k, positions(k))],
    "reshaped_table": [lambda k: with_length(k, o.Reshape(shape=(N,))(o.Reshape(shape=(1, N))(cut(k))))],
    "table_arithmetic": [lambda k, op=op: with_length(k, op()(cut(k))) for op in (o.Neg, o.Exp, o.Sqrt, o.Sin, o.Reciprocal)],
}
FUSE: dict[str, list[Probe]] = {
    "reshape_after_epilogue": [lambda k: o.Tanh()(o.Reshape(shape=(k.b * k.s, 5))(o.Matmul()(k.x(k.b, k.s, k.d), k.x(k.d, 5)))),
                               lambda k: o.Add()(o.Reshape(shape=(k.b * k.s, 5))(o.Matmul()(k.x(k.b, k.s, k.d), k.x(k.d, 5))), k.x(5))],
    "reshape_of_reshape": VIEWS["reshape_of_reshape"],
    "gather_before_cast": [lambda k, e=e: o.GatherAlongAxis(axis=1)(o.Cast(dtype=e)(k.x(k.b, 6)), k.c(np.full((k.b, 2), 3), dt.i64))
                           for e in (dt.f32, dt.f64)],
    "gather_before_elementwise": [lambda k, op=op: o.Gather(axis=1)(op(k, k.x(k.b, 6)), k.c([[3, 0, 4]], dt.i64)) for op in (
        lambda k, x: o.Exp()(x), lambda k, x: o.Cast(dtype=dt.f64)(x), lambda k, x: o.Mul()(x, k.c(3.0)),
        lambda k, x: o.Sub()(k.c(1.0), x))],
}
PROBES: dict[str, dict[str, list[Probe]]] = {
    "canonicalize": SCALAR | VIEWS, "absorb-into-matmul": MATMUL, "absorb-into-conv": CONV, "patch-products": PATCHES,
    "fold-index": INDEX, "absorb-masks": MASKS, "recognize": NORMS | ACTIVATIONS | ROPE | ATTENTION | EXPERTS, "fold-tables": TABLES,
    "narrow-concats": CONCATS, "fuse": FUSE}
