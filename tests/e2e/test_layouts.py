"""Kernels that run across memory: copies that turn a matrix, softmax and norms of columns, gathers along the last axis. Against PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw
from tilewright.kernels.conv.channels_last import channels_last_layouts


class Calls(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def check(fn: Callable[..., Any], *args: Any) -> tw.Session:
    session = tw.compile(Calls(fn), args)
    torch.testing.assert_close(session(*args), fn(*args), equal_nan=True)
    return session


def notes(session: tw.Session) -> str:
    assert session.executable is not None
    return " ".join(f"{launch.name}:{launch.kernel.name}:{launch.note}" for launch in session.executable.launches)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("shape", "perm"), [
    ((70, 45), (1, 0)), ((3, 50, 33), (0, 2, 1)), ((40, 3, 37), (2, 1, 0)), ((2, 35, 4, 41), (3, 0, 2, 1)), ((31, 64), (1, 0)),
    ((33, 32, 1), (2, 1, 0)), ((64, 1024), (1, 0)), ((2, 1024, 96), (0, 2, 1))])
def test_copies_between_orders_of_axes(shape: tuple[int, ...], perm: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.randn(shape, dtype=dtype)
    x.view(-1)[7] = float("nan")
    check(lambda x: x.permute(perm).contiguous(), x)


@pytest.mark.parametrize("fn", [torch.softmax, torch.log_softmax])
@pytest.mark.parametrize(("shape", "dim"), [((130, 70), 0), ((5, 66, 40), 1), ((64, 3, 50), 0), ((20, 64), 0)])
def test_softmax_of_columns(fn: Callable[..., Any], shape: tuple[int, ...], dim: int) -> None:
    x = torch.randn(shape) * 5
    x.select(dim, 1).fill_(float("-inf"))
    check(lambda x: fn(x, dim), x)


@pytest.mark.parametrize(("channels", "tokens", "turns"), [(33, 50, True), (70, 32, True), (20, 64, True), (3, 64, False)])
def test_norms_of_columns(channels: int, tokens: int, turns: bool) -> None:
    """Channels first, normalized over channels: alone, behind a sum with rows, and for a result that lies as the operand does."""
    x, y, w = torch.randn(2, channels, tokens), torch.randn(2, tokens, channels), torch.randn(channels)
    for fn, args in ((lambda x, w: F.layer_norm(x.mT, (channels,), w, w), (x, w)),
                     (lambda x, y, w: F.layer_norm(x.mT + y, (channels,), w), (x, y, w)),
                     (lambda x, w: F.rms_norm(x.mT, (channels,), w).mT.contiguous() + 1.0, (x, w))):  # fmt: skip
        assert ("columns transposed into rows" in notes(check(fn, *args))) is turns


@pytest.mark.parametrize("rows", [1, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bfloat16])
def test_gathers_along_the_last_axis(rows: int, dtype: torch.dtype) -> None:
    x = (torch.randn(rows, 37) * 9).to(dtype)
    ids = torch.randint(0, 37, (rows, 70))
    check(lambda x, i: torch.gather(x, 1, i), x, ids)
    check(lambda x, i: torch.gather(x, 1, i), x, ids[: rows // 2 + 1])
    check(lambda x, i: x[:, i] + x[:, :1], x, ids[0])
    check(lambda x, i: (x[:, i] * i.to(x.dtype), x[:, i]), x, ids[0])


def test_an_index_outside_is_named_and_the_next_call_works() -> None:
    x, ids = torch.randn(5, 37), torch.randint(0, 37, (5, 70))
    session = check(lambda x, i: torch.gather(x, 1, i), x, ids)
    for wrong in (37, -1):
        bad = ids.clone()
        bad[3, 69] = wrong
        with pytest.raises(tw.ExecutionError, match=f"got {wrong} at position 279"):
            session(x, bad)
    torch.testing.assert_close(session(x, ids), torch.gather(x, 1, ids))


@pytest.mark.parametrize("align", [False, True])
def test_linear_resize(align: bool) -> None:
    check(lambda x: F.interpolate(x, size=(37, 50), mode="bilinear", align_corners=align), torch.randn(2, 3, 21, 33))


def test_results_lie_as_operands_that_agree_where_readers_turn_them_back() -> None:
    """As chunked scans write decays: a product of two that are turned alike, read turned back by a matmul. Nothing is copied."""
    q, k, p, v = (torch.rand(16, *s, dtype=torch.float64) for s in ((64, 8), (8, 64), (64, 64), (64, 8)))
    session = check(lambda q, k, p, v: ((q @ k).permute(1, 2, 0) * p.exp().permute(1, 2, 0)).permute(2, 0, 1) @ v, q, k, p, v)
    assert "another axis" not in notes(session)
    check(lambda q, k, p: (q @ k).permute(1, 2, 0) * p.exp().permute(1, 2, 0), q, k, p)  # a result that the caller sees
    check(lambda q, k, p: ((q @ k).permute(1, 2, 0) * p.exp().permute(1, 2, 0))[1:].permute(2, 0, 1).sum(1), q, k, p)


def test_what_is_stretched_along_pixels_does_not_say_how_they_lie() -> None:
    mask, a = torch.ones(64, 64).triu() > 0, torch.randn(1, 64, 16)
    session = check(lambda a: torch.where(mask, 0.0, (a * 2).reshape(1, 64, 1, 16, 1).permute(0, 3, 2, 1, 4)).cumsum(3), a)
    assert not channels_last_layouts(session.model.graph, session.model.target)
