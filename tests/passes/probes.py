"""One or more instances of every rewrite rule's pattern, by pass and rule: see `kit.py`. A rule without a probe fails the suite."""
from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Value

from .kit import FLOATS, INTEGERS, Kit, Probe

INF = math.inf
FEW = (0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -0.5, 3.0, INF, -INF, math.nan)


def casts(k: Kit) -> list[Value]:
    x = k.x()
    return [o.Cast(dtype=d)(o.Cast(dtype=e)(x)) for d in (*FLOATS, dt.bool_) for e in FLOATS]


def integer_casts(k: Kit) -> list[Value]:
    x = k.x(dtype=k.dtype if k.dtype.is_int else dt.i8)
    return [o.Cast(dtype=d)(o.Cast(dtype=e)(x)) for d in (*FLOATS, *INTEGERS) for e in INTEGERS]


def with_numbers(*ops: Any) -> list[Probe]:
    """x op c and c op x, with numbers that are neutral, nearly so, or special."""
    return [lambda k, op=op, c=c, turn=turn: op()(*((k.c(c), k.x()) if turn else (k.x(), k.c(c))))
            for op in ops for c in (*FEW, 1e-5, 7.0, 64.0, 2.0**-30) for turn in (False, True)]


def by_place(k: Kit, n: int, start: int, size: int, *, column: bool = False) -> Value:
    """Scores by relative place, as Transformer-XL and Conformers shift them."""
    cut: Any = lambda v, starts, sizes: o.Slice(starts=starts, sizes=sizes, steps=(1, 1, 1))(v)
    x = k.x(k.b, n, 2 * n - 1)
    padded = o.Concat(axis=2)(k.x(k.b, n, 1), x) if column else o.Pad(lo=(0, 0, 1), hi=(0, 0, 0))(x)
    rows = cut(o.Reshape(shape=(k.b, 2 * n, n))(padded), (0, 1, 0), (k.b, 2 * n - 1, n))
    out: Value = cut(o.Reshape(shape=(k.b, n, 2 * n - 1))(rows), (0, 0, start), (k.b, n, size))
    return out


def pools(k: Kit) -> list[Value]:
    window: dict[str, Any] = {"kernel": (3,), "stride": (2,), "padding": ((1, 1),), "dilation": (1,)}
    x = k.x(k.b, 2, 7)
    return [o.MaxPool(**window)(x), *o.MaxPoolIndices(**window)(x), o.MaxPool(**window, ceil_mode=True)(x)]


SCALAR: dict[str, list[Probe]] = {
    "pool_with_indices": [pools],
    "cast_to_itself": [lambda k: o.Cast(dtype=k.dtype)(k.x())],
    "cast_of_cast": [casts, integer_casts],
    "add_zero": [*with_numbers(o.Add, o.Sub), lambda k: o.Add()(o.Exp()(k.x()), k.c(0.0)), lambda k: o.Add()(o.Square()(k.x()), k.c(0.0)),
                 lambda k: o.Add()(o.Abs()(k.x()), k.c(0.0)), lambda k: o.Add()(o.Softmax(axis=1)(k.x()), k.c(0.0)),
                 lambda k: o.Add()(o.Sum(axes=(1,))(o.Square()(k.x())), k.c(0.0)), lambda k: o.Add()(o.Var(axes=(0,))(k.x()), k.c(0.0))],
    "times_one": with_numbers(o.Mul, o.Div),
    "double_negation": [lambda k: o.Neg()(o.Neg()(k.x()))],
    "add_negative": [lambda k: o.Add()(k.x(), o.Neg()(k.x())), lambda k: o.Add()(o.Neg()(k.x()), k.x())],
    "subtract_negative": [lambda k: o.Sub()(k.x(), o.Neg()(k.x()))],
    "subtract_number": [*with_numbers(o.Sub), lambda k: o.Sub()(k.x(), k.c(np.iinfo(k.dtype.np).min if k.dtype.is_int else -0.0))],
    "divide_by_power_of_two": with_numbers(o.Div),
    "constant_on_the_right": with_numbers(o.Add, o.Mul, o.Maximum, o.Minimum),
    "small_power": [*with_numbers(o.Pow), *(lambda k, e=e: o.Pow()(o.Square()(k.x()), k.c(e)) for e in (0.5, -0.5, 1.5))],
    "times_itself": [lambda k: o.Mul()(x := k.x(), x)],
    "one_over": with_numbers(o.Div),
    "bits_of_bools": [lambda k, op=op: op()(k.x(), k.x()) for op in (o.BitwiseAnd, o.BitwiseOr, o.BitwiseXor)]
    + [lambda k: o.BitwiseNot()(k.x())],
    "logic_with_constant": [lambda k, op=op, c=c: op()(k.x(dtype=dt.bool_), k.c(c, dt.bool_))
                            for op in (o.LogicalAnd, o.LogicalOr) for c in (True, False)],
    "double_not": [lambda k: o.LogicalNot()(o.LogicalNot()(k.x(dtype=dt.bool_)))],
    "decided_where": [lambda k: o.Where()(k.c(True, dt.bool_), k.x(), k.x()), lambda k: o.Where()(k.c(False, dt.bool_), k.x(), k.x()),
                      lambda k: o.Where()(k.x(dtype=dt.bool_), y := k.x(), y), lambda k: o.Where()(k.c(True, dt.bool_), k.x(k.d), k.x())],
}


def under_reshape(op: Any) -> Probe:
    return lambda k: o.Reshape(shape=(k.b * k.s, k.d))(op(k, k.x(k.b, k.s, k.d)))


VIEWS: dict[str, list[Probe]] = {
    "same_shape": [lambda k: o.Reshape(shape=(k.b, k.d))(k.x()), lambda k: o.Expand(shape=(k.b, k.d))(k.x())],
    "same_order": [lambda k: o.Transpose(perm=(0, 1))(k.x()), lambda k: o.Transpose(perm=(1, 0, 2))(k.x(1, k.s, k.d)),
                   lambda k: o.Transpose(perm=(2, 0, 1))(k.x(k.b, k.s, 1))],
    "whole_slice": [lambda k: o.Slice(starts=(0, 0), sizes=(k.b, k.d), steps=(1, 1))(k.x()),
                    lambda k: o.Slice(starts=(0, 0), sizes=(k.b, 1), steps=(1, 3))(k.x(k.b, 1))],
    "whole_split": [lambda k: o.Split(axis=1, sizes=(k.d,))(k.x())],
    "reshape_of_reshape": [lambda k: o.Reshape(shape=(k.d, k.b))(o.Reshape(shape=(k.b * k.d,))(k.x()))],
    "transpose_of_transpose": [lambda k: o.Transpose(perm=(1, 2, 0))(o.Transpose(perm=(0, 2, 1))(k.x(k.b, k.s, k.d)))],
    "ones_before_transpose": [
        lambda k: o.Reshape(shape=(1, k.d, k.b, 1, k.s))(o.Transpose(perm=(3, 1, 0, 2))(k.x(k.b, 1, k.s, k.d))),
        lambda k: o.Reshape(shape=(k.s, k.d, k.b))(o.Transpose(perm=(1, 2, 3, 0))(k.x(k.b, 1, k.s, k.d))),
        lambda k: o.Reshape(shape=(1, k.d, k.b))(o.Transpose(perm=(1, 0))(k.x())),
        lambda k: o.Reshape(shape=(k.b * k.d,))(o.Transpose(perm=(1, 0))(k.x()))],
    "transpose_between_reshapes": [
        lambda k, n=n: o.Reshape(shape=(n, k.b, k.d, k.s))(
            o.Transpose(perm=(0, 2, 1))(o.Reshape(shape=(n * k.b, k.s, k.d))(k.x(n, k.b, k.s, k.d)))) for n in (1, 5)] + [
        lambda k: o.Reshape(shape=(k.b, 4, k.s))(o.Transpose(perm=(0, 2, 1))(o.Reshape(shape=(2 * k.b, k.s, 2))(k.x(k.b, 2, k.s, 2)))),
        lambda k: o.Reshape(shape=(k.b, 3, k.s, 4))(
            o.Transpose(perm=(1, 0, 2))(o.Reshape(shape=(k.s, 3 * k.b, 4))(k.x(k.s, k.b, 12)))),
        lambda k: o.Reshape(shape=(k.b, 3, k.s, 4))(
            o.Transpose(perm=(1, 0, 2))(o.Reshape(shape=(k.s, 3 * k.b, 4))(k.x(1, k.s, k.b, 12)))),
        lambda k: o.Reshape(shape=(k.b, k.s, 0))(o.Transpose(perm=(1, 0))(o.Reshape(shape=(k.s * 0, k.b))(k.x(k.b, k.s, 0))))],
    "slice_of_slice": [lambda k: o.Slice(starts=(1,), sizes=(3,), steps=(2,))(o.Slice(starts=(2,), sizes=(8,), steps=(1,))(k.x(11))),
                       lambda k: o.Slice(starts=(1,), sizes=(2,), steps=(2,))(o.Slice(starts=(1,), sizes=(5,), steps=(2,))(k.x(11)))],
    "diagonals": [lambda k, n=n, kept=kept: by_place(k, n, *kept) for n in (2, 4) for kept in ((0, n), (1, n - 1), (0, n + 1))],
    "diagonals_behind_a_column": [lambda k, n=n, kept=kept: by_place(k, n, *kept, column=True)
                                  for n in (2, 4) for kept in ((0, n), (1, n - 1), (0, n + 1))],
    "expand_of_expand": [lambda k: o.Expand(shape=(k.b, k.s, k.d))(o.Expand(shape=(k.s, k.d))(k.x(k.d)))],
    "flip_of_flip": [lambda k: o.Flip(axes=(1,))(o.Flip(axes=(1,))(k.x())), lambda k: o.Flip(axes=(0,))(o.Flip(axes=(1,))(k.x()))],
    "keep_dims": [lambda k, op=op: o.Reshape(shape=(k.b, 1))(op(axes=(1,))(k.x()))
                  for op in (o.Sum, o.Mean, o.Max, o.Min, o.Prod, o.Any, o.All, o.Var, o.Std, o.LogSumExp)],
    "reduced_ones": [lambda k, op=op, kept=kept: op(axes=(0, 2), keepdims=kept)(k.x(1, k.b, 1, k.d))
                     for op, kept in ((o.Sum, False), (o.Mean, True), (o.Max, True), (o.Prod, False), (o.All, False))],
    "ones_before_elementwise": [lambda k: o.Reshape(shape=(k.d, 1, 1))(o.Tanh()(k.x(k.d))),
                                lambda k: o.Reshape(shape=(k.d, 1))(o.Mul()(k.x(k.d), k.x(k.d)))],
    "reshape_before_elementwise": [under_reshape(lambda k, x: o.Tanh()(x)), under_reshape(lambda k, x: o.Add()(x, k.x(k.d))),
                                   under_reshape(lambda k, x: o.Mul()(x, k.x(k.b, k.s, k.d))),
                                   lambda k: o.Reshape(shape=(k.b, 1, k.d))(o.Neg()(k.x()))],
    "reshape_before_norm": [under_reshape(lambda k, x: o.Softmax(axis=2)(x)), under_reshape(lambda k, x: o.RmsNorm(affine="none")(x)),
                            under_reshape(lambda k, x: o.LayerNorm(affine="none")(x))],
    "reshape_before_matmul": [lambda k: o.Reshape(shape=(k.b * k.s, 5))(o.Matmul()(k.x(k.b, k.s, k.d), k.weights(k.d, 5))),
                              lambda k: o.Reshape(shape=(3, k.b))(o.Matmul()(k.x(2, 3, 5), k.weights(5, k.b)))],
    "transpose_behind_matmul": [
        lambda k: o.Transpose(perm=(1, 0, 2))(o.Matmul()(o.Transpose(perm=(1, 0, 2))(k.x(k.b, k.s, k.d)), k.weights(k.d, 5))),
        lambda k: o.Reshape(shape=(k.s, k.b, 5, 2))(o.Matmul()(o.Transpose(perm=(1, 0, 2))(k.x(k.b, k.s, k.d)), k.weights(k.d, 10))),
        lambda k: o.Reshape(shape=(k.s * k.b, 5))(o.Matmul()(o.Transpose(perm=(1, 0, 2))(k.x(k.b, k.s, k.d)), k.weights(k.d, 5))),
        lambda k: o.Transpose(perm=(1, 0, 2))(o.Matmul()(
            o.Reshape(shape=(k.s, k.b, 6))(o.Transpose(perm=(2, 0, 1, 3))(k.x(k.b, 3, k.s, 2))), k.weights(6, 5)))],
    "transpose_behind_epilogue": [
        lambda k: o.Add()(o.Transpose(perm=(1, 0, 2))(o.Matmul()(k.x(k.b, k.s, k.d), k.weights(k.d, 5))), k.x(5)),
        lambda k: o.Neg()(o.Transpose(perm=(1, 0, 2))(o.Relu()(o.Matmul()(k.x(k.b, k.s, k.d), k.weights(k.d, 5))))),
        lambda k: o.Add()(o.Transpose(perm=(1, 0, 2))(o.Matmul()(k.x(k.b, k.s, k.d), k.weights(k.d, 5))), k.x(k.b, 5))],
    "broadcast_itself": [lambda k: o.Add()(k.x(k.b, k.d), o.Expand(shape=(k.b, k.d))(k.x(k.d))),
                         lambda k: o.Mul()(o.Reshape(shape=(1, k.d))(k.x(k.d)), k.x(k.b, k.d))],
    "expand_after_elementwise": [lambda k: o.Neg()(o.Expand(shape=(k.b, k.d))(k.x(k.d))),
                                 lambda k: o.Add()(o.Expand(shape=(k.b, k.d))(k.x(k.d)), o.Expand(shape=(k.b, k.d))(k.scalar()))],
    "rank_zero_scalar": [lambda k, c=c: o.Mul()(k.x(), k.c([[c]])) for c in FEW] + [lambda k: o.Add()(k.scalar(), k.c([2.0]))],
}


def matmul(k: Kit, **attrs: Any) -> Value:
    return o.Matmul(**attrs)(k.x(k.b, k.s, k.d), k.x(k.d, 5))


def part(x: Value) -> Value:
    """All but the first two columns."""
    return o.Slice(starts=(0, 0, 2), sizes=(*x.shape[:2], 3), steps=(1, 1, 1))(x)


FACTORS = (0.5, -0.25, 3.0, 0.0, 1e-3, 1e5, 1e-30, 1e30, INF, math.nan)
MATMUL: dict[str, list[Probe]] = {
    "widened_operands": [lambda k, e=e, f=f: o.Matmul()(*(o.Cast(dtype=k.dtype)(x) for x in (k.x(k.b, k.d, dtype=e), k.x(k.d, 5, dtype=f))))
                         for e, f in ((dt.f8e4m3, dt.f8e4m3), (dt.f8e5m2, dt.f8e4m3), (dt.i8, dt.i8), (dt.u8, dt.i8))],
    "transposed_left": [lambda k: o.Matmul()(o.Transpose(perm=(1, 0))(k.x(k.d, k.b)), k.x(k.d, 5)),
                        lambda k: o.Matmul(transpose_a=True)(o.Transpose(perm=(0, 2, 1))(k.x(2, k.b, k.d)), k.x(k.d, 5))],
    "transposed_right": [lambda k: o.Matmul()(k.x(k.b, k.d), o.Transpose(perm=(1, 0))(k.x(5, k.d)))],
    "transposed_product": [lambda k, a=a, b=b: o.Transpose(perm=(0, 2, 1))(o.Matmul(transpose_a=a, transpose_b=b)(
        k.weights(*((k.d, 5) if a else (5, k.d))), k.x(k.b, *((k.s, k.d) if b else (k.d, k.s)))))
        for a in (False, True) for b in (False, True)],
    "scaled_result": [lambda k, op=op, c=c: op()(matmul(k), k.c(c)) for op in (o.Mul, o.Div) for c in FACTORS]
    + [lambda k: o.Mul()(matmul(k, alpha=0.5), k.c(4.0))],
    "scaled_view": [lambda k, op=op, c=c: op()(part(matmul(k)), k.c(c)) for op in (o.Mul, o.Div) for c in FACTORS]
    + [lambda k: o.Mul()(o.Transpose(perm=(2, 1, 0))(part(o.Reshape(shape=(k.s, k.b, 5))(matmul(k)))), k.c(-2.0))],
    "sum_of_products": [
        lambda k: o.Sum(axes=(3,))(o.Mul()(k.x(k.b, 4, 1, 5, tame=True), k.x(k.b, 1, 6, 5, tame=True))),
        lambda k: o.Sum(axes=(1,), keepdims=True)(o.Mul()(k.x(4, 5, k.b, 1, 1, tame=True), k.x(5, k.b, 3, 2, tame=True))),
        lambda k: o.Sum(axes=(0, 2))(o.Mul()(o.Expand(shape=(2, 4, 3, 5))(k.x(2, 4, 3, 1, tame=True)), k.x(2, 1, 3, 5, tame=True)))],
    "sum_of_two": [lambda k, keep=keep, shape=shape: o.Sum(axes=(1,), keepdims=keep)(k.x(*shape, tame=True))
                   for keep in (False, True) for shape in ((3, 2, 16), (2, 2, 4, 5))],
    "sum_of_two_products": [lambda k, other=other: o.Sum(axes=(1,))(o.Mul()(k.x(3, 2, 4, 5, tame=True), k.x(*other, tame=True)))
                            for other in ((3, 2, 4, 1), (2, 4, 5), (1, 1, 4, 5), (5,))],
    "scaled_left": [lambda k, op=op, c=c: o.Matmul()(op()(k.x(k.b, k.d), k.c(c)), k.x(k.d, 5)) for op in (o.Mul, o.Div) for c in FACTORS],
    "scaled_right": [lambda k, op=op, c=c: o.Matmul()(k.x(k.b, k.d), op()(k.x(k.d, 5), k.c(c))) for op in (o.Mul, o.Div) for c in FACTORS],
}


CONCATS: dict[str, list[Probe]] = {
    "narrow_before_concat": [lambda k, to=to: o.Cast(dtype=to)(o.Concat(axis=1)(k.x(k.b, k.d), k.x(k.b, 3))) for to in (dt.bf16, dt.f16)]
    + [lambda k: o.Add()(*(o.Cast(dtype=dt.f16)(x) for x in [o.Concat(axis=0)(k.x(), o.Reshape(shape=(2, k.d))(k.x(k.d, 2)))] * 2))],
}


def norm(k: Kit, var: Any, eps: float, *affine: Any) -> Value:
    kind = ("none", "weight", "both")[len(affine)]
    return o.BatchNorm(eps=eps, affine=kind)(k.x(k.b, 3, k.s), k.c([0.5, -2.0, 100.0]), k.c(var), *(k.c(a) for a in affine))


def conv(k: Kit) -> Value:
    return o.Conv(stride=(1,), padding=((1, 1),), dilation=(1,))(k.x(k.b, 2, k.s + 1), k.weights(3, 2, 3))


def column(k: Kit, *numbers: float) -> Value:
    return k.c(np.array(numbers)[:, None])


def padded(k: Kit, value: float, lo: tuple[int, ...], hi: tuple[int, ...]) -> Value:
    x = o.Pad(lo=lo, hi=hi, value=value)(k.x(2, 2, 5))
    return o.Conv(stride=(2,), padding=((0, 1),), dilation=(1,))(x, k.c(np.ones((3, x.shape[1], 2))))


def cut(k: Kit, start: int, end: int, *, stride: int = 1, step: int = 1, bias: bool = False) -> Value:
    y = o.Conv(stride=(stride,), padding=((2, 3),), dilation=(1,))(k.x(2, 2, 8), k.weights(3, 2, 3))
    y = o.Add()(y, column(k, 1.0, -1.0, INF)) if bias else y
    return o.Slice(starts=(0, 0, start), sizes=(2, 3, (int(y.shape[2]) - start - end) // step), steps=(1, 1, step))(y)


def patches(k: Kit) -> Value:
    return o.Conv(stride=(8,), padding=((0, 0),), dilation=(1,))(k.x(k.b, 2, 16 + k.s), k.weights(16, 2, 8))


def patch_gradient(k: Kit) -> Value:
    op = o.WeightGradient(kernel=(8,), stride=(8,), dilation=(1,), padding=((0, 0),))
    return op(k.x(k.b, 2, 16 + k.s, tame=True), k.x(k.b, 16, 2, tame=True))  # products of two large numbers overflow in any order


PATCHES: dict[str, list[Probe]] = {
    "convolved_patches": [patches], "biased_patches": [lambda k: o.Add()(patches(k), column(k, *(0.5 * i for i in range(16))))],
    "gradient_of_patches": [patch_gradient],
}  # fmt: skip
CONV: dict[str, list[Probe]] = {
    "cut_conv": [lambda k: cut(k, 0, 3), lambda k: cut(k, 2, 1), lambda k: cut(k, 1, 1, stride=2), lambda k: cut(k, 3, 0),
                 lambda k: cut(k, 0, 4), lambda k: cut(k, 0, 1, step=2), lambda k: cut(k, 0, 2, stride=2)],
    "cut_conv_bias": [lambda k: cut(k, 0, 3, bias=True), lambda k: cut(k, 2, 0, bias=True), lambda k: cut(k, 3, 0, bias=True)],
    "padded_conv": [lambda k: padded(k, 0.0, (0, 0, 1), (0, 0, 2)), lambda k: padded(k, 1.0, (0, 0, 1), (0, 0, 2)),
                    lambda k: padded(k, -0.0, (0, 0, 1), (0, 0, 2)), lambda k: padded(k, 0.0, (0, 1, 1), (0, 0, 2))],
    "batch_norm": [lambda k: norm(k, [1.0, 0.3, 2.0], 1e-3), lambda k: norm(k, [1.0, 0.0, 2.0], 0.0),
                   lambda k: norm(k, [1.0, INF, 2.0], 1e-3),
                   lambda k: norm(k, [1.0, 0.3, 2.0], 1e-3, [0.5, 0.0, -1.0]),
                   lambda k: norm(k, [1.0, 0.3, 2.0], 1e-3, [0.5, 2.0, -1.0], [0.0, -0.0, 3.0])],
    "scaled_conv": [lambda k: o.Mul()(conv(k), column(k, 0.5, -2.0, 3.0)), lambda k: o.Mul()(conv(k), column(k, 0.0, 1e-30, 3.0)),
                    lambda k: o.Mul()(conv(k), column(k, INF, 1.0, 3.0))],
    "scaled_conv_bias": [lambda k: o.Mul()(o.Add()(conv(k), column(k, 1.0, -1.0, 0.0)), column(k, 0.5, -2.0, 3.0)),
                         lambda k: o.Mul()(o.Add()(conv(k), column(k, INF, -1.0, 0.0)), column(k, 0.0, -2.0, 3.0))],
    "two_conv_biases": [lambda k: o.Add()(o.Add()(conv(k), column(k, 1.0, -1.0, 0.0)), column(k, 0.5, -2.0, 3.0)),
                        lambda k: o.Add()(o.Add()(conv(k), column(k, INF, -1.0, 0.0)), column(k, -INF, -2.0, 3.0))],
}


def iota(k: Kit, n: int, dtype: Any = dt.i64, **more: Any) -> Value:
    return k.graph.add(o.Iota(shape=(n,), axis=0, dtype=dtype, **more)).value


INDEX: dict[str, list[Probe]] = {
    "index_expression": [
        lambda k: o.Cast(dtype=k.dtype)(iota(k, k.s)), lambda k: o.Cast(dtype=k.dtype)(o.Less()(iota(k, k.s), k.c(9, dt.i64))),
        lambda k: o.Cast(dtype=dt.f64)(o.Mul()(o.Cast(dtype=k.dtype)(iota(k, k.s)), k.c(-1.0))),
        lambda k: o.Cast(dtype=dt.f64)(o.Neg()(o.Cast(dtype=k.dtype)(iota(k, k.s)))),
        lambda k: o.Cast(dtype=dt.f64)(o.Where()(k.c(np.tri(4, dtype=bool), dt.bool_), k.c(0.0), k.c(-0.0))),
        lambda k: o.Cast(dtype=dt.f64)(k.c(np.where(np.tri(4), 0.0, -0.0))), lambda k: o.Equal()(o.Add()(k.c(0.1), k.c(0.2)), k.c(0.3)),
        lambda k: o.Cast(dtype=dt.f64)(o.Concat(axis=0)(k.c([0.0]), k.c([-0.0]))),
        lambda k: o.All(axes=(0,))(o.Expand(shape=(k.b, k.d))(k.c(False, dt.bool_))), lambda k: o.Sub()(iota(k, k.s), iota(k, k.s)),
        lambda k: o.Any(axes=(1,))(o.Expand(shape=(k.b, k.d))(k.c(True, dt.bool_))), lambda k: o.Add()(iota(k, k.s, k.dtype), k.c(120)),
        lambda k: o.Less()(o.Expand(shape=(k.b,))(k.c(math.nan)), k.c(1.0))],
    "uniform_constant": [lambda k: o.Neg()(k.c(np.full((3, 4), 1))), lambda k: k.c(np.full((2, 3), 7)), lambda k: k.c(np.zeros((2, 0)))],
    "gather_of_range": [lambda k: o.Gather(axis=0)(k.x(k.s + 2, k.d), iota(k, k.s, start=1)),
                        lambda k: o.Gather(axis=1)(k.x(k.b, 9), k.c(np.arange(1, 9, 2), dt.i64)),
                        lambda k: o.Gather(axis=0)(k.x(4, k.d), k.c([2, 2], dt.i64))],
    "index_of_ranges": [lambda k: o.Index(axes=(0, 1))(k.x(5, 6), k.c(np.arange(3)[:, None], dt.i64), k.c(np.arange(4), dt.i64))],
    "product_of_looked_up_rows": [
        lambda k: o.Matmul()(o.Gather(axis=0)(k.x(2, 8), k.c([[1, 0, 1], [0, 0, 1]], dt.i64)), k.x(8, 3)),
        lambda k: o.Matmul(transpose_b=True, alpha=0.5)(o.Concat(axis=1)(
            o.Gather(axis=0)(k.x(2, 8), k.c([1, 0, 0, 1, 0], dt.i64)), o.Gather(axis=0)(k.x(1, 4), k.c([0] * 5, dt.i64))), k.x(2, 12))],
    "gather_along_range": [lambda k: o.GatherAlongAxis(axis=1)(k.x(k.b, 6), k.c(np.broadcast_to(np.arange(4), (k.b, 4)), dt.i64))],
}


def attend(k: Kit, mask: Any = None, bias: Any = None, **attrs: Any) -> Value:
    """An attention whose keys may be hidden: what they hold is not looked at, and they are finite here."""
    q, kv = k.x(1, k.b, k.s, k.d, tame=True), (1, k.b, k.s + 2, k.d)
    extras = [v(k) if callable(v) else v for v in (mask, bias) if v is not None]
    op = o.Attention(scale=0.5, has_mask=mask is not None, has_bias=bias is not None, **attrs)
    return op(q, k.x(*kv, tame=True), k.x(*kv, tame=True), *extras)


def causal(k: Kit, offset: int = 2) -> Any:
    return np.arange(k.s + 2)[None] <= np.arange(k.s)[:, None] + offset


def given(k: Kit) -> Value:
    return k.x(k.s, k.s + 2, dtype=dt.bool_)


LOWS = (-INF, -3.4028234663852886e38, -65504.0, -1e9, -1e30, -5.0)
MASKS: dict[str, list[Probe]] = {
    "positional_mask": [
        *(lambda k, f=f: attend(k, lambda k: k.c(causal(k, f), dt.bool_)) for f in (2, 0, -1)),
        *(lambda k, low=low, f=f: attend(k, None, lambda k: k.c(np.where(causal(k, f), 0.0, low))) for low in LOWS for f in (2, -1)),
        *(lambda k, low=low, f=f: attend(k, lambda k: k.c(causal(k, f), dt.bool_), hidden=low) for low in LOWS for f in (2, -1)),
        *(lambda k, e=e: attend(k, lambda k: k.c(causal(k, -1), dt.bool_), empty=e) for e in ("zeros", "nan")),
        *(lambda k, low=low: attend(k, given, lambda k: k.c(np.where(causal(k), 0.0, -INF)), hidden=low) for low in LOWS),
        lambda k: attend(k, None, lambda k: o.Where()(given(k), k.c(0.0), k.c(-INF))),
        lambda k: attend(k, lambda k: k.c(np.ones((k.s, k.s + 2)), dt.bool_)), lambda k: attend(k, None, lambda k: k.c(np.zeros((k.s, 1)))),
    ],
    "unexpanded_mask": [lambda k: attend(k, lambda k: o.Expand(shape=(1, k.b, k.s, k.s + 2))(k.x(k.s + 2, dtype=dt.bool_)))],
}
