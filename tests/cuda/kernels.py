"""Graphs whose kernels the tests of the CUDA target assemble, analyse and pin: name -> (function of graph values, input types)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright.ops as o
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, bool_, f8e4m3, f8e5m2, f16, f32, f64, i8, i32, i64, u8
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops import functions as F
from tilewright.ops.attention.forward import Attention
from tilewright.ops.base import single
from tilewright.ops.rows.norms import LayerNorm, RmsNorm, Softmax

Types = tuple[tuple[DType, tuple[Any, ...]], ...]
S = sym("S", 1, 4096)


def linear(x: Any, w: Any, b: Any, r: Any) -> Any:
    return o.Add()(r, o.Gelu()(o.Add()(o.Matmul(transpose_b=True)(x, w), b)))


def attention(**kw: Any) -> Callable[..., Any]:
    return lambda *x: Attention(scale=0.125, **kw)(*x)


def forward_and_backward(q: Any, k: Any, v: Any, g: Any) -> Any:
    attrs: dict[str, Any] = {"scale": 0.125, "causal": True, "window": 100}
    return Attention(**attrs)(q, k, v), *o.AttentionBackward(**attrs)(q, k, v, g)


def backward_of_everything(*x: Any) -> Any:
    """With a soft cap, a mask and a bias that wants its cotangent; nobody asks for the result."""
    return o.AttentionBackward(scale=0.125, causal=True, softcap=5.0, has_mask=True, has_bias=True, with_scores=True)(*x)


def conv(x: Any, w: Any, b: Any, r: Any) -> Any:
    y = o.Conv(stride=(2, 2), padding=((1, 1), (1, 1)), dilation=(1, 1))(x, w)
    return o.Relu()(o.Add()(o.Add()(y, b), r))


def norm_of_sum(x: Any, r: Any, w: Any) -> tuple[Any, Any]:
    total = o.Add()(x, r)
    return total, RmsNorm(eps=1e-5, affine="weight")(total, w)


def loops(h: Any, x: Any) -> Any:
    """A scan over rows with a branch and a loop inside, all of them small."""
    def halve(g: Graph, v: Any) -> Any:
        return F.mul(v[0], 0.5)

    def step(g: Graph, v: Any) -> Any:
        new = F.tanh(F.add(v[0], v[1]))
        row, flag = TensorType(f32, (300,)), F.greater(F.sum_(new, (0,)), 0.0)
        (new,) = g.add(o.Cond(then=single(halve, row), other=single(lambda g, v: F.neg(v[0]), row)), flag, new).values
        test = single(lambda g, v: F.greater(F.max_(v[0], (0,)), 0.25), row)
        (new,) = g.add(o.While(test=test, body=single(halve, row), carries=1, max_iterations=9), new).values
        return new, F.sum_(new, (0,))

    body = single(step, TensorType(f32, (300,)), TensorType(f32, (300,)))
    return h.node.graph.add(o.Scan(body=body, carries=1, xs=1, length=5), h, x).values


CASES: dict[str, tuple[Callable[..., Any], Types]] = {
    "add_bf16": (lambda x, y: o.Add()(x, y), ((bf16, (64, 4096)), (bf16, (4096,)))),
    "gelu_odd": (lambda x: o.Gelu()(x), ((f32, (7, 33)),)),
    "sin": (lambda x: o.Sin()(x), ((f32, (1000,)),)),
    "softmax_short": (lambda x: Softmax(axis=1)(x), ((f32, (50, 60)),)),
    "softmax_long": (lambda x: Softmax(axis=1)(x), ((bf16, (8, 8192)),)),
    "softmax_dynamic": (lambda x: Softmax(axis=1)(x), ((f32, (8, S)),)),
    "layer_norm": (lambda x, w, b: LayerNorm(eps=1e-5, affine="both")(x, w, b), ((f16, (8, 1000)), (f16, (1000,)), (f16, (1000,)))),
    "rms_norm_of_sum": (norm_of_sum, ((bf16, (8, 4096)), (bf16, (8, 4096)), (bf16, (4096,)))),
    "gather": (lambda t, i: o.Gather(axis=0)(t, i), ((bf16, (100, 256)), (i64, (9,)))),
    "matmul_f32": (lambda a, b: o.Matmul()(a, b), ((f32, (40, 30)), (f32, (30, 50)))),
    "matmul_bf16": (lambda a, b: o.Matmul(transpose_b=True)(a, b), ((bf16, (64, 64)), (bf16, (64, 64)))),
    "matmul_large": (lambda a, b: o.Matmul()(a, b), ((bf16, (4096, 4096)), (bf16, (4096, 4096)))),
    "matmul_columns": (lambda a, b: o.Matmul()(a, b), ((bf16, (65, 64)), (bf16, (64, 72)))),
    "matmul_fp8_small": (lambda a, b: o.Matmul(transpose_b=True, dtype=bf16)(a, b), ((f8e4m3, (64, 256)), (f8e4m3, (64, 256)))),
    "matmul_fma": (lambda a, b: o.Matmul()(a, b), ((f32, (4096, 512)), (f32, (512, 4096)))),
    "matmul_f64": (lambda a, b: o.Matmul(transpose_b=True)(a, b), ((f64, (2048, 64)), (f64, (2048, 64)))),
    "matmul_odd": (lambda a, b: o.Matmul()(a, b), ((bf16, (65, 37)), (bf16, (37, 33)))),
    "matmul_fp8": (
        lambda a, b, s: o.Cast(dtype=bf16)(o.Mul()(o.Matmul(transpose_b=True, dtype=f32)(a, b), s)),
        ((f8e4m3, (8192, 8192)), (f8e5m2, (8192, 8192)), (f32, ())),
    ),
    "matmul_int8": (
        lambda a, b, s, z: o.Requantize(axis=1)(o.IntMatmul()(a, b), s, z),
        ((u8, (4096, 512)), (i8, (512, 4096)), (f32, (4096,)), (i32, (4096,))),
    ),
    "matmul_batched": (lambda a, b: o.Matmul(transpose_a=True)(a, b), ((f16, (5, 96, 200)), (f16, (5, 96, 136)))),
    "linear_rows_dynamic": (linear, ((bf16, (S, 256)), (bf16, (512, 256)), (bf16, (512,)), (bf16, (S, 512)))),
    "attention": (attention(), ((bf16, (1, 4, 300, 64)), (bf16, (1, 2, 333, 64)), (bf16, (1, 2, 333, 64)))),
    "attention_causal": (attention(causal=True), ((f16, (2, 4, S, 128)), (f16, (2, 4, S, 128)), (f16, (2, 4, S, 128)))),
    "gemv": (lambda x, w: o.Silu()(o.Matmul(transpose_b=True)(x, w)), ((bf16, (1, 4096)), (bf16, (4096, 4096)))),
    "matmul_thin": (
        lambda x, w, b: o.Add()(o.Matmul(transpose_b=True)(x, w), b),
        ((bf16, (16, 4096)), (bf16, (4096, 4096)), (bf16, (4096,))),
    ),
    "matmul_split": (lambda x, w: o.Matmul()(x, w), ((f16, (100, 4096)), (f16, (4096, 768)))),
    "attention_row": (attention(causal=True, offset=512), ((bf16, (1, 4, 1, 64)), (bf16, (1, 2, 513, 64)), (bf16, (1, 2, 513, 64)))),
    "attention_backward": (
        lambda *x: o.AttentionBackward(scale=0.125, causal=True)(*x),
        ((bf16, (1, 2, 300, 128)), (bf16, (1, 1, 300, 128)), (bf16, (1, 1, 300, 128)), (bf16, (1, 2, 300, 128))),
    ),
    "attention_bias": (
        lambda q, k, v, b: Attention(scale=0.2, has_bias=True)(q, k, v, b),
        ((bf16, (2, 4, 100, 32)), (bf16, (2, 4, 100, 32)), (bf16, (2, 4, 100, 32)), (bf16, (2, 1, 1, 100))),
    ),
    "conv": (conv, ((bf16, (2, 64, 30, 30)), (bf16, (64, 64, 3, 3)), (bf16, (64, 1, 1)), (bf16, (2, 64, 15, 15)))),
    "conv_groups": (
        lambda x, w: o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=8)(x, w),
        ((bf16, (2, 64, 30, 30)), (bf16, (64, 8, 3, 3))),
    ),
    "conv_channels": (
        lambda x, w: o.Conv(stride=(1, 1), padding=((1, 1),) * 2, dilation=(1, 1), groups=64)(x, w),
        ((bf16, (2, 64, 30, 30)), (bf16, (64, 1, 3, 3))),
    ),
    "conv_patch": (
        lambda x, w: o.Conv(stride=(1, 1, 1), padding=((1, 1),) * 3, dilation=(1, 1, 1))(x, w),
        ((bf16, (1, 64, 8, 16, 16)), (bf16, (64, 64, 3, 3, 3))),
    ),
    "conv_weights": (
        lambda x, g: o.WeightGradient(kernel=(3, 3), stride=(2, 2), padding=((1, 1),) * 2, dilation=(1, 1), groups=4)(x, g),
        ((bf16, (2, 64, 30, 30)), (bf16, (2, 128, 15, 15))),
    ),
    "conv_volume": (
        lambda x, w: o.Conv(stride=(1, 1, 1), padding=((1, 1),) * 3, dilation=(1, 1, 1), groups=2)(x, w),
        ((bf16, (8, 64, 16, 16, 16)), (bf16, (256, 32, 3, 3, 3))),
    ),
    "attention_training": (forward_and_backward, ((f16, (1, 2, 300, 64)),) * 4),
    "attention_backward_extras": (
        backward_of_everything,
        ((bf16, (1, 2, 300, 40)), *((bf16, (1, 1, 300, 40)),) * 2, (bool_, (300,)), (bf16, (2, 300, 300)), (bf16, (1, 2, 300, 40))),
    ),
    "attention_extras": (
        attention(causal=True, softcap=5.0, has_mask=True, has_bias=True),
        ((f16, (1, 2, 300, 128)),) * 3 + ((bool_, (300, 300)), (f16, (1, 2, 300, 300))),
    ),
    "loops": (loops, ((f32, (300,)), (f32, (5, 300)))),
    "attention_window": (attention(causal=True, window=100), ((bf16, (1, 2, 512, 128)),) * 3),
}
GOLDENS = {  # name -> chip
    "add_bf16": "sm_90a", "softmax_short": "sm_90a", "matmul_bf16": "sm_90a", "matmul_fp8_small": "sm_90a", "matmul_columns": "sm_80",
}  # fmt: skip


def case(name: str) -> Graph:
    fn, types = CASES[name]
    return graph(fn, *types, name=name)
