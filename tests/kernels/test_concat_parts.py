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


class Beside(torch.nn.Module):
    """A convolution's result beside a view of it, channels of pixels that lie channels last."""

    def __init__(self, view: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.view = torch.nn.Conv2d(3, 8, 3, padding=1), view

    def forward(self, x: Any) -> Any:
        y = self.conv(x)
        return torch.cat([self.view(y), y, self.view(y)], 1)


@pytest.mark.parametrize("view", [
    lambda y: y.flip(3), lambda y: y.transpose(2, 3), lambda y: y.flip(1), lambda y: y[:, 2:6], lambda y: y[:, :, :1].expand(-1, -1, 6, -1),
    lambda y: y, lambda y: y[:, :0]])
def test_views_of_what_is_computed_in_place(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module, x = Beside(view), torch.randn(2, 3, 6, 6)
    torch.testing.assert_close(tw.compile(module, (x,))(x), module(x))


@pytest.mark.parametrize("cut", [
    lambda y: y[1:], lambda y: y[:1], lambda y: y[:, :, 1:], lambda y: y[..., :-1], lambda y: y[:, :, 1:5, 1:]])
def test_some_pixels_of_what_is_computed(cut: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A part of the images or of the pixels has no room for the whole."""
    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 16, 3, padding=1)

        def forward(self, x: Any) -> Any:
            y = self.conv(x)
            return torch.cat([cut(y), cut(x)], 1), y.sum((2, 3))

    module, x = Cut(), torch.randn(2, 3, 6, 6)
    for found, want in zip(tw.compile(module, (x,))(x), module(x), strict=True):
        torch.testing.assert_close(found, want)
