"""Ops that were many launches or index arrays and are one mechanism now: their results beside PyTorch at odd sizes, and their launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tilewright as tw

aten = torch.ops.aten
R = torch.randn


class Of(torch.nn.Module):
    def __init__(self, fn: Callable[..., Any]) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def backward(g: Any, x: Any, w: Any, stride: int, padding: int, dilation: int) -> Any:
    spread = [padding] * 2, [dilation] * 2
    return aten.convolution_backward(g, x, w, None, [stride] * 2, *spread, False, [0, 0], x.shape[1], [True, True, False])[:2]


def depthwise(k: int, stride: int = 1, padding: int = 1, dilation: int = 1) -> tuple[Any, ...]:
    x, w = R(2, 5, 11, 21), R(5, 1, k, k)
    g = torch.randn_like(F.conv2d(x, w, stride=stride, padding=padding, dilation=dilation, groups=5))
    return lambda g, x, w: backward(g, x, w, stride, padding, dilation), (g, x, w)


def _levels(x: Any, bias: Any) -> Any:
    d = x - x.mean((1, 2), keepdim=True)
    top = d.amax((1, 2), keepdim=True) + bias
    return d * top.tanh() / (d - top).square().sum((1, 2), keepdim=True), top


def pairs(x: Any) -> Any:
    return torch.view_as_real(torch.stft(x, 40, 16, window=torch.hann_window(40, dtype=x.dtype), return_complex=True))


# name -> (function, inputs, launches at most)
CASES: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    "cummax": (lambda x: torch.cummax(x, 1), (R(3, 300),), 1),
    "cummin of columns": (lambda x: torch.cummin(x, 0), (R(300, 5),), 1),
    "logcumsumexp": (lambda x: torch.logcumsumexp(x, 1), (R(3, 300),), 1),
    **{f"pad {mode} {i}": (lambda x, mode=mode, w=w: F.pad(x, w, mode=mode), (x,), 1)
       for mode in ("reflect", "replicate", "circular")
       for i, (x, w) in enumerate([(R(2, 3, 7, 37), (3, 2, 1, 5)), (R(3, 5, 20), (4, 19)), (R(1, 2, 3, 4, 5).double(), (1, 2, 3, 0, 1, 1)),
                                   (R(2, 9, 40).bfloat16().mT, (2, 3))])},
    "pad that cuts": (lambda x: F.pad(x, (-2, 3), mode="circular"), (R(2, 3, 9),), 1),
    "as_strided": (lambda x: torch.as_strided(x, (5, 7), (4, 1), 2) * 2, (R(50),), 1),
    "unfold": (lambda x: x.unfold(1, 5, 3).sum(-1), (R(3, 50),), 1),
    "unfold of rows": (lambda x: x.unfold(0, 4, 2).contiguous(), (R(17, 9),), 1),
    "diagonal": (lambda x: torch.diagonal(x, 1, -2, -1) * 2, (R(2, 5, 7),), 1),
    "diagonal below": (lambda x: torch.diagonal(x, -3, 0, 1) * 2, (R(5, 7),), 1),
    "fold": (lambda x: F.fold(x, (9, 10), 3, padding=1), (R(2, 18, 90),), 2),
    "fold with steps": (lambda x: F.fold(x, (11, 17), (3, 2), stride=(2, 3), dilation=(2, 1), padding=(1, 0)), (R(2, 12, 30),), 2),
    "fold in bf16": (lambda x: F.fold(x, (9, 10), 3, padding=1), (R(18, 90).bfloat16(),), 4),
    "sums of two slices": (lambda x, g: torch.relu((x * g).sum(1) + x.sum(1)), (R(2, 2, 7, 5, 6), R(2, 1, 7, 1, 1)), 1),
    "sums of two slices in bf16": (lambda x: x.sum(-2, keepdim=True) * x, (R(3, 2, 37).bfloat16(),), 2),
    "cross": (torch.linalg.cross, (R(77, 3), R(77, 3)), 4),
    "columns of rows of four": (lambda x: (x[:, 1] * x[:, 3], x[:, 2] + 1), (R(77, 4),), 2),
    "stack of three": (lambda x, y: torch.stack([x, y, x * y], -1), (R(5, 77).double(), R(5, 77).double()), 2),
    "cdist": (torch.cdist, (R(2, 70, 67), R(2, 33, 67)), 2),
    "cdist of one side": (lambda x, y: torch.cdist(x, y, 1.0), (R(2, 1, 30, 5), R(3, 9, 5)), 1),
    "largest distance": (lambda x, y: torch.cdist(x, y, float("inf")), (R(7, 130).double(), R(9, 130).double()), 1),
    "matrix and vector": (torch.mv, (R(77, 300), R(300)), 1),
    "transposed matrix and vector": (lambda x, y: x.mT @ y, (R(90, 77), R(90)), 1),
    "a row and weights": (lambda x, w, b: torch.relu(F.linear(x, w, b)), (R(1, 77), R(45, 77), R(45)), 1),
    "a row and a matrix": (lambda x, y: x @ y, (R(77), R(77, 45).double().float()), 1),
    "rows and matrices": (lambda x, y: x @ y + 1, (R(3, 2, 1, 45).bfloat16(), R(3, 2, 45, 7).bfloat16()), 1),
    "rows and transposed matrices": (lambda x, y: x @ y.mT, (R(3, 1, 45).double(), R(3, 7, 45).double()), 1),
    "a row of nothing": (lambda x, y: x @ y, (R(1, 0), R(0, 7)), 1),
    "a large matrix's row": (lambda x, y: x @ y, (R(1, 1100), R(1100, 259)), 2),
    "matrices and vectors": (lambda x, y: torch.relu(x @ y) + 1, (R(3, 7, 45).double(), R(3, 45, 1).double()), 1),
    **{f"softmax backward {i}": (lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype), (g, y.softmax(-1)), 1)
       for i, (g, y) in enumerate([(R(9, 67), R(9, 67)), (R(3, 5, 130).double(), R(3, 5, 130).double()), (R(64, 9).mT, R(9, 64))])},
    "softmax backward in bf16": (lambda g, y: aten._softmax_backward_data(g, y, -1, y.dtype), (R(9, 67).bfloat16(),) * 2, 1),
    "softmax backward of columns": (lambda g, y: aten._softmax_backward_data(g, y, 0, y.dtype), (R(67, 9), R(67, 9)), 2),
    "log softmax backward": (lambda g, y: aten._log_softmax_backward_data(g, y, -1, y.dtype), (R(9, 77), R(9, 77).log_softmax(-1)), 1),
    "three levels of sums": (_levels, (R(10, 3, 50), R(10, 1, 1)), 1),
    "a row's sum and its share": (lambda x: (x.sum(-1, keepdim=True), x / x.sum(-1, keepdim=True)), (R(11, 99).abs() + 1,), 1),
    **{f"one of every row {i}": (lambda x, j: torch.gather(x, -1, j), (x, j), 1)
       for i, (x, j) in enumerate([(R(77, 9), torch.randint(9, (77, 1))), (R(9, 300).mT, torch.randint(9, (300, 1))),
                                   (R(3, 70, 5).bfloat16(), torch.randint(5, (3, 70, 1))), (R(600, 5)[::2], torch.randint(5, (300, 1)))])},
    "nll loss": (F.nll_loss, (R(300, 9), torch.randint(9, (300,))), 4),
    "far branches of a product": (lambda x, y: torch.special.i0e(x @ y), (3 * R(13, 40).double(), R(40, 21).double()), 1),
    "far branches of rows": (lambda x: torch.special.i0e(x.softmax(-1) * 30), (R(5, 40).double(),), 1),
    "stft": (pairs, (R(500).double(),), 8),
    "rows put into a computed value": (lambda x, i, u: x.tanh().index_copy(0, i, u), (R(9, 40), torch.tensor([3, 0, 5]), R(3, 40)), 2),
    "rows added twice": (lambda x, i, u: x.tanh().index_add(0, i, u).index_add(0, i, u), (R(9, 40), torch.tensor([3, 0, 3]), R(3, 40)), 3),
    "rows added to a view": (lambda x, i, u: (x @ x).reshape(40, 10).index_add(0, i, u).reshape(8, 50) * 2,
                             (R(20, 20), torch.tensor([3, 17]), R(2, 10)), 3),
    "rows added to what others read": (lambda x, i, u: (x.tanh(), x.tanh().index_add(0, i, u)),
                                       (R(9, 40), torch.tensor([3, 0, 3]), R(3, 40)), 3),
    "elements put along rows": (lambda x, i, u: x.tanh().scatter(0, i, u) * 3, (R(9, 40), torch.randint(9, (1, 40)), R(1, 40)), 3),
    **{f"softmax across memory {i}": (lambda x, d=d: x.softmax(d) * 2, (x,), 1)
       for i, (x, d) in enumerate([(R(3, 5, 37), 1), (R(70, 5), 0), (R(2, 130, 67).double(), 1), (R(40, 33).bfloat16(), 0),
                                   (R(9, 2, 3, 5), 1), (R(33, 70).mT, 1)])},
    "log softmax across memory": (lambda x: x.log_softmax(1), (R(3, 19, 37),), 1),
    "repeated elements": (lambda x: x.repeat_interleave(3, 1), (R(7, 41),), 1),
    "repeated elements in bf16": (lambda x: x.repeat_interleave(2, 1) + 1, (R(7, 300).bfloat16(),), 2),
    "one number a pixel": (lambda x, w: (x - w).relu() * w, (R(3, 77, 3), R(77, 1)), 1),
    "pairs of a pixel": (lambda x, w: (x * w, w / x), (R(101, 2).abs() + 1, R(101, 1)), 2),
    "avg pool backward": (lambda g, x: aten.avg_pool2d_backward(g, x, [2, 3], [2, 3], [0, 0], False, True, None),
                          (R(2, 3, 5, 7), R(2, 3, 11, 22)), 5),
    "max pool backward": (lambda g, x: aten.max_pool2d_with_indices_backward(
        g, x, [3, 2], [3, 2], [0, 0], [1, 1], False, aten.max_pool2d_with_indices(x, [3, 2], [3, 2])[1]),
                          (R(2, 9, 5, 19), R(2, 9, 15, 38)), 2),
    **{f"depthwise backward {i}": (*depthwise(*options), 11)
       for i, options in enumerate([(3,), (3, 2), (5, 1, 2), (3, 1, 2, 2), (4, 3, 0), (2, 2, 0, 3)])},
}


@pytest.mark.parametrize("name", CASES)
def test_few_launches_with_pytorchs_results(name: str) -> None:
    fn, inputs, most = CASES[name]
    with torch.no_grad():
        session = tw.compile(Of(fn), inputs, threads=2)
        got, want = session(*inputs), fn(*inputs)
    for a, b in zip(*((v if isinstance(v, (tuple, list)) else (v,)) for v in (got, want)), strict=True):
        wide = 2e-2 if b.dtype is torch.bfloat16 else 1e-5 if b.dtype is torch.float32 else 1e-10
        torch.testing.assert_close(a, b, rtol=wide, atol=10 * wide)
    assert session.executable is not None
    assert len(session.executable.launches) <= most


def test_means_of_pixels_that_go_back_to_them_read_channels_side_by_side() -> None:
    """A row of pixels of one channel would be read element by element."""
    w, x = R(48, 16, 1, 1), R(1, 16, 9, 11)

    def shares(x: Any) -> Any:
        y = F.relu(F.conv2d(x, w)) * 2
        return y + F.gelu(y.mean((2, 3), keepdim=True)) * 3

    session = tw.compile(Of(shares), (x,), threads=1)
    assert "columns" in next(line for line in str(session.report()).splitlines() if " mean" in line)
    torch.testing.assert_close(session(x), shares(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_pads_keep_nan_and_infinities(mode: str) -> None:
    x = R(2, 3, 5, 19)
    x[torch.rand(x.shape) < 0.2] = float("nan")
    x[torch.rand(x.shape) < 0.2] = float("-inf")
    pad = Of(lambda x: F.pad(x, (3, 4, 2, 1), mode=mode))
    torch.testing.assert_close(tw.compile(pad, (x,), threads=1)(x), pad(x), rtol=0, atol=0, equal_nan=True)


def test_distances_of_infinities_and_equal_rows() -> None:
    a, b = R(5, 30), R(40, 30)
    a[1, 3], b[2, 4], b[7] = float("inf"), float("nan"), a[2]
    got = tw.compile(Of(torch.cdist), (a, b), threads=1)(a, b)
    want = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
    assert got[2, 7] == 0


@pytest.mark.slow
@pytest.mark.parametrize("fn", [lambda x: F.pad(x, (2, 3, 1, 2), mode="reflect"), lambda x: F.pad(x, (2, 3, 1, 2), mode="replicate"),
                                lambda x: F.pad(x, (2, 3, 1, 2), mode="circular"), lambda x: x.unfold(2, 3, 2) * 2,
                                lambda x: x.cummax(-1)[0] * 2, lambda x: x.logcumsumexp(-1), lambda x: torch.diagonal(x, 0, -2, -1) * 2,
                                lambda x: torch.cdist(x[0], x[1]), lambda x: F.fold(x[0], (6, 5), 2)])
def test_gradients_through_torch_compile(fn: Callable[[Any], Any]) -> None:
    torch._dynamo.reset()
    shape = (2, 4, 20) if fn.__code__.co_names[-1] == "fold" else (2, 3, 5, 9)
    x = torch.randn(shape, dtype=torch.float64)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    torch.compile(fn, backend="tilewright")(ours).square().sum().backward()
    fn(theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
