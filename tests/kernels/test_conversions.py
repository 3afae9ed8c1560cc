"""Conversions: bf16 results of every bf16 number, where kernels that know their words cut them or round without a look at NaN; floats
to integers of every width."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.kernels.test_few_launches import Of
from tilewright import ops as o
from tilewright.core.dtypes import dtype
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType

from .harness import run_graph

BITS: dict[str, Any] = {
    "neg": lambda x, y: -x, "copysign of abs": lambda x, y: torch.copysign(x.abs(), y), "where": lambda x, y: torch.where(x > y, x, -y),
    "floor": lambda x, y: x.floor(), "clamp": lambda x, y: x.clamp(-1.1, 2.25), "mul": torch.mul, "neg of mul": lambda x, y: -(x * y),
    "sqrt": lambda x, y: x.sqrt(), "max in f32": lambda x, y: torch.maximum(x.float(), y.float() * 1.001).to(torch.bfloat16),
}


@pytest.mark.parametrize("name", BITS)
def test_every_bf16_number_is_rounded_as_pytorch_rounds_it(name: str) -> None:
    x = torch.arange(1 << 16).to(torch.int32).to(torch.int16).view(torch.bfloat16)
    y = x[torch.randperm(1 << 16)]
    got, want = tw.compile(Of(BITS[name]), (x, y), threads=1)(x, y), BITS[name](x, y)
    assert torch.all((got.view(torch.int16) == want.view(torch.int16)) | (got.isnan() & want.isnan()))


@pytest.mark.parametrize("fn", [lambda x: x.to(torch.bfloat16), lambda x: torch.where(x > 0, x, -x).to(torch.bfloat16)])
def test_nan_of_f32_stays_nan_in_bf16(fn: Any) -> None:
    words = torch.tensor([0x7F800001, 0x7FFFFFFF, -1, 0x7F80FFFF, 0x7FFF8000, -0x7FFFFF]).to(torch.int32)
    x = words.repeat(20).view(torch.float32)
    assert tw.compile(Of(fn), (x,), threads=1)(x).isnan().all()


@pytest.mark.parametrize("kind", ["f4", "f8", "f2"])
def test_floats_become_the_nearest_integers_of_any_width(kind: str) -> None:
    """Toward zero; ends of the range where they lie beyond it, 0 for NaN."""
    edges = [0.0, 0.99, -1.5, 127.9, 128.1, -129.0, 255.5, 32768.0, 65536.0, 2.0**31 - 1, 2.0**31, -(2.0**31) - 1,
             9223372036854774784.0, 2.0**63, -(2.0**63), -1e19, 1e30, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        x = np.array(edges * 3, kind)
    g = Graph("casts")
    v = g.input(TensorType(dtype({"f2": "f16", "f4": "f32", "f8": "f64"}[kind]), x.shape), "x")
    names = ["i8", "u8", "i16", "u16", "i32", "i64"]
    g.outputs = [o.Cast(dtype=dtype(name))(v) for name in names]
    for name, got in zip(names, run_graph(g, [x])[0], strict=True):
        info = np.iinfo(got.dtype)
        want = [0 if a != a else info.max if a > info.max else info.min if a < info.min else int(a) for a in x.astype("f8").tolist()]
        np.testing.assert_array_equal(got, np.array(want, got.dtype), name)
