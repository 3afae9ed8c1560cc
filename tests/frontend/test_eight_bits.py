"""torch's products of eight-bit numbers: scaled floats and integers, against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright as tw
from tilewright.core.errors import TilewrightError

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


class Call(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


@pytest.mark.parametrize("rows", [False, True], ids=["one scale", "a scale a row"])
def test_scaled_products(rows: bool) -> None:
    m, n, k = 18, 32, 48
    a, b = torch.randn(m, k).to(E4), torch.randn(n, k).to(E5 if not rows else E4)
    sa, sb = (torch.rand(m, 1), torch.rand(1, n)) if rows else (torch.rand(()), torch.rand(()))
    bias = torch.randn(n).bfloat16()
    fn = lambda a, b, sa, sb, bias: torch._scaled_mm(a, b.t(), sa, sb, bias=bias, out_dtype=torch.bfloat16)
    got = tw.compile(Call(fn), (a, b, sa, sb, bias))(a, b, sa, sb, bias)
    want = (a.double() @ b.double().T) * sa.double() * sb.double() + bias.double()
    assert got.dtype == torch.bfloat16 and (got.double() - want).norm() <= 4e-3 * want.norm()


def test_eight_bit_results_of_scaled_products_are_refused() -> None:
    a, one = torch.randn(16, 32).to(E4), torch.ones(())
    with pytest.raises(TilewrightError, match="_scaled_mm: the result must be f32, f16 or bf16"):
        tw.compile(Call(lambda a, s: torch._scaled_mm(a, a.t(), s, s, out_dtype=E4)), (a, one))


def test_products_of_whole_numbers() -> None:
    a, b = (torch.randint(-128, 128, (n, 40), dtype=torch.int8) for n in (17, 24))
    got = tw.compile(Call(lambda a, b: torch._int_mm(a, b.t())), (a, b))(a, b)
    assert torch.equal(got, (a.long() @ b.long().T).int())
