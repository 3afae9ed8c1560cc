"""Bits and shifts of integers as Python and torch spell them, amounts outside the width included; through generated code."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewright as tw

KINDS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]


def spellings(x: Any, y: Any) -> tuple[Any, ...]:
    z = x.clone()
    z <<= 1
    return (
        x << y, x >> y, x << 3, x >> 2, torch.bitwise_left_shift(x, y), torch.bitwise_right_shift(x, y), torch.bitwise_left_shift(5, y),
        torch.bitwise_right_shift(77, y), torch.bitwise_right_shift(x, 1), x & y, x | 3, x ^ y, ~x, torch.bitwise_not(y), z,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_spelling(kind: torch.dtype) -> None:
    info = torch.iinfo(kind)
    x = torch.randint(info.min, info.max, (37,), dtype=kind)
    x[:4] = torch.tensor([info.min, info.max, 0, 1], dtype=kind)
    y = torch.randint(-3 if info.min else 0, info.bits + 3, (37,), dtype=kind)
    session = tw.compile(spellings, (x, y))
    for k, (got, want) in enumerate(zip(session(x, y), spellings(x, y), strict=True)):
        assert got.dtype == want.dtype
        assert torch.equal(got, want), (k, x, y)
    plain = tw.compile(spellings, (x, y), target="reference")
    assert all(torch.equal(a, b) for a, b in zip(plain(x, y), spellings(x, y), strict=True))
