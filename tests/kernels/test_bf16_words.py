"""Results in bf16, for every bf16 number: kernels that know their words cut them, or round without a look at NaN."""
from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw
from tests.kernels.test_few_launches import Of

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
