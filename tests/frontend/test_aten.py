"""One row per ATen op (or spelling of it): the imported graph, run by the interpreter, equals torch eager on fresh inputs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from .check import check

T = torch.Tensor
Row = tuple[Callable[..., Any], tuple[Any, ...]]


def f(*shape: int) -> T:
    return torch.randn(shape)


def pos(*shape: int) -> T:
    return torch.rand(shape) + 0.1


def i(*shape: int, lo: int = -5, hi: int = 6) -> T:
    return torch.randint(lo, hi, shape)


def b(*shape: int) -> T:
    return torch.randint(0, 2, shape).bool()


UNARY: dict[str, Row] = {
    name: (fn, (pos(3, 5) if name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt", "reciprocal") else 2 * f(3, 5),))
    for name in (
        "neg",
        "sign",
        "exp",
        "log",
        "log1p",
        "expm1",
        "sqrt",
        "rsqrt",
        "sin",
        "cos",
        "tan",
        "tanh",
        "erf",
        "sigmoid",
        "reciprocal",
        "square",
        "abs",
        "floor",
        "ceil",
        "round",
        "trunc",
        "log2",
        "log10",
        "exp2",
        "frac",
        "positive",
        "isnan",
        "isinf",
        "isfinite",
        "relu",
        "logical_not",
    )
    for fn in [getattr(torch, name)]
}

ACTIVATION: dict[str, Row] = {
    "gelu": (F.gelu, (2 * f(4, 5),)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (2 * f(4, 5),)),
    "silu": (F.silu, (3 * f(4, 5),)),
    "mish": (F.mish, (3 * f(4, 5),)),
    "hardswish": (F.hardswish, (4 * f(4, 5),)),
    "hardsigmoid": (F.hardsigmoid, (4 * f(4, 5),)),
    "leaky": (lambda x: F.leaky_relu(x, 0.2), (f(4, 5),)),
    "elu": (lambda x: F.elu(x, 0.7), (f(4, 5),)),
    "selu": (F.selu, (f(4, 5),)),
    "celu": (lambda x: F.celu(x, 1.3), (f(4, 5),)),
    "relu6": (F.relu6, (8 * f(4, 5),)),
    "hardtanh": (lambda x: F.hardtanh(x, -0.5, 0.25), (f(4, 5),)),
    "softplus": (F.softplus, (10 * f(4, 5),)),
    "softplus beta": (lambda x: F.softplus(x, beta=2.0), (f(4, 5),)),
    "logsigmoid": (F.logsigmoid, (3 * f(4, 5),)),
    "glu": (lambda x: F.glu(x, 1), (f(4, 6),)),
    "prelu": (F.prelu, (f(2, 3, 4), torch.tensor([0.1, 0.2, 0.3]))),
    "softmax": (lambda x: torch.softmax(x, 1), (f(2, 3, 4),)),
    "softmax dtype": (lambda x: torch.softmax(x, -1, dtype=torch.float64), (f(2, 3),)),
    "softmax rank 0": (lambda x: torch.softmax(x, 0), (f(),)),
    "log_softmax": (lambda x: torch.log_softmax(x, -1), (f(2, 3, 4),)),
    "threshold": (lambda x: F.threshold(x, 0.1, 20.0), (f(3, 3),)),
    "softsign": (F.softsign, (f(3, 3),)),
    "tanhshrink": (F.tanhshrink, (f(3, 3),)),
    "relu int": (torch.relu, (i(5),)),
}

BINARY: dict[str, Row] = {
    "add": (lambda x, y: x + y, (f(3, 1), f(4))),
    "add alpha": (lambda x, y: torch.add(x, y, alpha=2), (f(3), f(3))),
    "add bool": (lambda x, y: x + y, (b(5), b(5))),
    "sub": (lambda x, y: x - y, (f(3, 1), f(4))),
    "rsub": (lambda x: 2 - x, (f(3),)),
    "sub alpha": (lambda x, y: torch.sub(x, y, alpha=0.5), (f(3), f(3))),
    "mul": (lambda x, y: x * y, (f(2, 3), f(3))),
    "div": (lambda x, y: x / y, (f(2, 3), pos(3))),
    "div int": (lambda x, y: x / y, (i(4), i(4, lo=1))),
    "div floor": (lambda x, y: torch.div(x, y, rounding_mode="floor"), (f(9), pos(9))),
    "div trunc": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (f(9), pos(9))),
    "div trunc int": (lambda x, y: torch.div(x, y, rounding_mode="trunc"), (i(20), i(20, lo=1))),
    "floor_divide": (lambda x, y: x // y, (i(20), i(20, lo=1))),
    "floor_divide scalar": (lambda x: x // 3, (i(20),)),
    "remainder": (lambda x: x % 3, (i(20),)),
    "remainder neg": (lambda x: x % -3, (i(20),)),
    "remainder f": (lambda x: x % 0.7, (f(9),)),
    "fmod": (lambda x: torch.fmod(x, 3), (i(20),)),
    "pow 2": (lambda x: x**2, (f(5),)),
    "pow 3": (lambda x: x**3, (f(5),)),
    "pow int": (lambda x: x**2, (i(5),)),
    "pow half": (lambda x: x**0.5, (pos(5),)),
    "pow -half": (lambda x: x**-0.5, (pos(5),)),
    "pow -1": (lambda x: x**-1.0, (pos(5),)),
    "pow 1.7": (lambda x: x**1.7, (pos(5),)),
    "pow scalar base": (lambda x: 2.0**x, (f(5),)),
    "pow tensor": (lambda x, y: x**y, (pos(5), f(5))),
    "int * float scalar": (lambda x: x * 2.5, (i(5),)),
    "f32 * int": (lambda x: x * 2, (f(5),)),
    "bf16 * float": (lambda x: x * 0.5, (f(5).bfloat16(),)),
    "f16 + f32": (lambda x, y: x + y, (f(5).half(), f(5))),
    "bool * float": (lambda x, y: x * y, (b(5), f(5))),
    "i32 + i64": (lambda x, y: x + y, (i(5).int(), i(5))),
    "u8 + i8": (lambda x, y: x + y, (i(5, lo=0).to(torch.uint8), i(5).to(torch.int8))),
    "f32 + rank-0 f64": (lambda x, y: x + y, (f(5), torch.tensor(2.0, dtype=torch.float64))),
    "int + rank-0 float": (lambda x, y: x + y, (i(5), torch.tensor(1.5))),
    "maximum": (torch.maximum, (f(5), f(5))),
    "minimum": (torch.minimum, (f(5), f(5))),
    "maximum nan": (torch.maximum, (torch.tensor([1.0, math.nan]), torch.tensor([math.nan, 2.0]))),
    "eq": (lambda x, y: x == y, (i(9), i(9))),
    "ne": (lambda x: x != 2, (i(9),)),
    "lt": (lambda x: x < 0.5, (i(9),)),
    "le": (lambda x: x <= 1, (i(9),)),
    "gt": (lambda x, y: x > y, (f(9), i(9))),
    "ge": (lambda x, y: x >= y, (f(9), f(9))),
    "and": (lambda x, y: x & y, (b(9), b(9))),
    "or": (lambda x, y: x | y, (i(9), i(9))),
    "xor": (lambda x, y: x ^ y, (b(9), b(9))),
    "and scalar": (lambda x: x & 3, (i(9),)),
    "logical_and": (torch.logical_and, (i(9), b(9))),
    "logical_or": (torch.logical_or, (f(9), b(9))),
    "logical_xor": (torch.logical_xor, (b(9), b(9))),
    "not": (lambda x: ~x, (b(9),)),
    "not int": (lambda x: ~x, (i(9),)),
    "where": (torch.where, (b(3, 1), f(4), f(3, 4))),
    "where scalar": (lambda c, x: torch.where(c, x, 0.0), (b(4), f(4))),
    "where scalars": (lambda c: torch.where(c, 1.0, 2.0), (b(4),)),
    "masked_fill": (lambda x, m: x.masked_fill(m, float("-inf")), (f(3, 4), b(4))),
    "clamp": (lambda x: x.clamp(-0.5, 0.5), (f(9),)),
    "clamp min": (lambda x: x.clamp(min=0.1), (f(9),)),
    "clamp_max": (lambda x: torch.clamp_max(x, 0.2), (f(9),)),
    "clamp tensor": (lambda x, y: torch.clamp(x, min=y), (f(9), f(9))),
    "clamp int by float": (lambda x: x.clamp(max=1.5), (i(9),)),
    "addcmul": (lambda x, y, z: torch.addcmul(x, y, z, value=0.5), (f(3), f(3), f(3))),
    "addcdiv": (lambda x, y, z: torch.addcdiv(x, y, z, value=0.5), (f(3), f(3), pos(3))),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.3), (f(3), f(3))),
    "lerp tensor": (torch.lerp, (f(3), f(3), pos(3))),
    "atan2-free hypot": (lambda x, y: (x * x + y * y).sqrt(), (f(3), f(3))),
    "round decimals": (lambda x: torch.round(x, decimals=2), (f(9),)),
    "nan_to_num": (lambda x: torch.nan_to_num(x, 1.0), (torch.tensor([1.0, math.nan]),)),
}

CAST: dict[str, Row] = {
    "to": (lambda x: x.to(torch.float64), (f(3),)),
    "to int": (lambda x: x.to(torch.int32), (3 * f(9),)),
    "to bool": (lambda x: x.bool(), (i(9),)),
    "half": (lambda x: x.half(), (f(3),)),
    "bfloat16": (lambda x: x.bfloat16(), (f(9),)),
    "type_as": (lambda x, y: x.type_as(y), (f(3), i(3))),
    "to other": (lambda x, y: x.to(y), (i(3), f(3))),
    "float": (lambda x: x.float(), (b(3),)),
    "clone": (lambda x: x.clone(), (f(3),)),
    "contiguous": (lambda x: x.t().contiguous(), (f(3, 4),)),
    "detach": (lambda x: x.detach(), (f(3),)),
    "dropout": (lambda x: F.dropout(x, 0.5, training=False), (f(3),)),
    "identity": (lambda x: x, (f(3),)),
}

ALL = {**{f"unary {k}": v for k, v in UNARY.items()}, **ACTIVATION, **BINARY, **CAST}


@pytest.mark.parametrize("name", ALL)
def test_elementwise(name: str) -> None:
    fn, args = ALL[name]
    check(fn, args)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["unary exp", "unary sqrt", "gelu", "silu", "softmax", "add", "mul", "div", "pow 2", "clamp", "where"])
def test_small_and_wide_floats(name: str, dtype: torch.dtype) -> None:
    fn, args = ALL[name]
    check(fn, tuple(a.to(dtype) if a.is_floating_point() else a for a in args))


def test_a_wrong_graph_is_noticed() -> None:
    """The table can fail: the graph of one function compared with another."""
    from tilewright.frontend.torch import import_torch

    from .check import assert_close, call

    x = f(3, 4)
    imported = import_torch(torch.sin, (x,))
    with pytest.raises(AssertionError):
        assert_close(call(imported, (x,)), torch.cos(x))
