"""Values that are computed where a concatenation along the last axis wants them: no copies, and right whoever else reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright as tw


class Of(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *x: Any) -> Any:
        return self.fn(*x)


def both(x: Any, i: Any, j: Any) -> Any:
    return torch.cat([x[i], x[j]], -1) * 2


def read_again(x: Any, i: Any, j: Any) -> Any:
    rows = x[i]
    return torch.cat([rows, x[j].sin()], -1), rows * 3


def normed(x: Any, i: Any, j: Any) -> Any:
    rows = x[i]
    return torch.cat([rows, x[j]], -1), torch.softmax(rows, -1), rows.T @ rows


def shown(x: Any, i: Any, j: Any) -> Any:
    rows = x[i]
    return torch.cat([rows, rows, x[j] + 1], -1), rows


def nested(x: Any, i: Any, j: Any) -> Any:
    inner = torch.cat([x[i].cos(), x[j]], -1)
    return torch.cat([x[i] + 1, inner], -1)


def batched(x: Any, i: Any, j: Any) -> Any:
    return torch.cat([x.view(5, 4, 7).exp(), x.view(5, 4, 7)], -1)


@pytest.mark.parametrize(("fn", "copies"), [(both, 0), (read_again, 0), (normed, 1), (shown, None), (nested, None), (batched, 1)])
def test_columns(fn: Callable[..., Any], copies: int | None) -> None:
    x, i, j = torch.randn(20, 7), torch.randint(0, 20, (33,)), torch.randint(0, 20, (33,))
    session = tw.compile(Of(fn), (x, i, j))
    found, want = session(x, i, j), fn(x, i, j)
    for y, w in zip(*((v if isinstance(v, (list, tuple)) else [v]) for v in (found, want)), strict=True):
        torch.testing.assert_close(torch.as_tensor(y), w)
    if copies is not None:
        assert session.executable is not None
        assert sum("cat" in launch.name and "region" not in launch.name for launch in session.executable.launches) == copies
