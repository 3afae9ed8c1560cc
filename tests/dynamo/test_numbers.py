"""Python numbers in graphs of small floats: eager PyTorch keeps them in f32 and rounds results only; compiled graphs give the same bits."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

NUMBERS = (0.1, 1 / 3, 1.7, 3001)
OPS: dict[str, Callable[[torch.Tensor, Any], Any]] = {
    "mul": lambda x, s: x * s,
    "div": lambda x, s: x / s,
    "floor": lambda x, s: x // s,
    "trunc": lambda x, s: torch.div(x, s, rounding_mode="trunc"),
    "add": lambda x, s: x + s,
    "elu": lambda x, s: F.elu(x, s),
    "selu": lambda x, s: torch.selu(x),
    "celu": lambda x, s: torch.celu(x, s),
    "threshold": lambda x, s: F.threshold(x, s, s * 2),
    "leaky_relu": lambda x, s: F.leaky_relu(x, s),
    "compare": lambda x, s: x > s,
    "clamp": lambda x, s: x.clamp(-s, s),
    "fill": lambda x, s: x.masked_fill(x > 0, s),
    "by a scalar tensor": lambda x, s: x * torch.tensor(s, dtype=torch.float32),
    "by a double tensor": lambda x, s: x / torch.tensor(s, dtype=torch.float64),
    "lists": lambda x, s: torch._foreach_mul([x], s)[0],
    "by a size": lambda x, s: x / x.shape[0],
    "in a row of ops": lambda x, s: (x.neg() * s).neg(),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bits(dtype: torch.dtype) -> None:
    x = torch.randn(999).to(dtype)

    def everything(x: torch.Tensor) -> list[Any]:
        return [op(x, s) for op in OPS.values() for s in NUMBERS]

    compiled = torch.compile(everything, backend="tilewright", dynamic=False)(x)
    names = [(name, s) for name in OPS for s in NUMBERS]
    wrong = [name for name, got, want in zip(names, compiled, everything(x), strict=True) if not torch.equal(got, want)]
    assert not wrong


def test_a_row_of_ops_rounds_once() -> None:
    x = torch.randn(4096).bfloat16()
    got = torch.compile(lambda x: (x * 0.1) * 0.3 + x, backend="tilewright")(x)
    wide = x.double()
    error = (got.double() - (wide * 0.1 * 0.3 + wide)).abs() / wide.abs()
    assert float(error.max()) < 2.0**-8
