"""Resizes through `torch.compile`: traced whole between known sizes, taken apart where sizes vary; gradients against eager PyTorch."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tilewright.dynamo import tilewright as backend
from tilewright.dynamo.backend import watching
from tilewright.dynamo.resizes import whole_resizes

CASES: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("nearest", (2, 3, 5, 7), {"scale_factor": 2.0}), ("bilinear", (2, 3, 5, 7), {"size": (9, 4), "align_corners": True}),
    ("trilinear", (1, 2, 3, 4, 2), {"scale_factor": 1.5}),
]


def ops(compiled: Any) -> str:
    return " ".join(n.op.name for s in compiled.steps for n in s.fragment.graph.nodes)


@pytest.mark.parametrize(("mode", "shape", "options"), CASES, ids=[c[0] for c in CASES])
def test_known_sizes(mode: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    call = lambda x: F.interpolate(x, mode=mode, **options) * 2
    x = torch.randn(shape, requires_grad=True)
    with watching() as found:
        got = torch.compile(call, backend=backend)(x)
        (grad,) = torch.autograd.grad(got.square().sum(), x)
    want = call(x)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(grad, torch.autograd.grad(want.square().sum(), x)[0])
    assert "resize" in ops(found[0]) and not any(c.splits for c in found)


@pytest.mark.parametrize(("mode", "shape", "size"), [("bicubic", (2, 3, 5, 7), (9, 4)), ("bilinear", (1, 2, 6, 6), (12, 13)), (
    "nearest", (1, 2, 9, 4), (4, 9)), ("linear", (2, 3, 4), (250,))], ids=str)
def test_gradients_sum_what_read_an_element(mode: str, shape: tuple[int, ...], size: tuple[int, ...]) -> None:
    """Places are known, so nothing is added at indices; an infinite gradient reaches what read it and nothing else."""
    torch._dynamo.reset()
    x = torch.randn(shape, requires_grad=True)
    call = lambda x: F.interpolate(x, size, mode=mode)
    with watching() as found:
        got = torch.compile(call, backend=backend)(x)
        g = torch.randn_like(got)
        place = {"bilinear": 79, "linear": 126}.get(mode, 3)  # away from the edge, where PyTorch takes an infinity times a weight of zero
        g.view(-1)[place] = 1e30 if mode == "bicubic" else float("inf")  # cubic weights have both signs
        grads = [torch.autograd.grad(y, x, g)[0] for y in (got, call(x))]
    torch.testing.assert_close(*grads, equal_nan=True, rtol=1e-4, atol=1e-4)
    assert "scatter" not in ops(found[1]) and "matmul" not in ops(found[1])


def test_an_infinity_reaches_what_reads_it() -> None:
    """And nothing else, where results read many elements."""
    x = torch.randn(1, 2, 64, 200)
    x[0, 0, 5, 7] = float("inf")
    for call in (lambda x: F.interpolate(x, (3, 4), mode="bilinear", antialias=True), lambda x: F.interpolate(x, (2, 3), mode="area")):
        torch.testing.assert_close(torch.compile(call, backend=backend)(x), call(x), equal_nan=True)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("mode", ["linear", "nearest", "bilinear", "bicubic", "trilinear"])
def test_batches_that_vary_train(mode: str, channels_last: bool) -> None:
    """Between known sizes resizes are whole with any batch."""
    torch._dynamo.reset()
    axes = {"linear": 1, "trilinear": 3}.get(mode, 2)
    call = lambda x: F.interpolate(x.sin(), (7,) * axes, mode=mode)
    compiled = torch.compile(call, backend=backend)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, *[5] * axes)
        x = (x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x).requires_grad_()
        with watching() as found:
            got, want = compiled(x), call(x)
            grads = [torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)]
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*grads)
        assert got.stride() == want.stride()
        assert not found or ("resize" in ops(found[0]) and not any(c.splits for c in found))


@pytest.mark.parametrize(("shape", "pad"), [((2, 3, 7, 9), (3, 2, 1, 0)), ((2, 3, 7), (7, 1)), ((1, 2, 4, 5, 6), (1, 1, 2, 2, 0, 3)),
                                            ((2, 3, 7, 9), (-1, 2, 1, 0))], ids=str)
def test_circular_pads(shape: tuple[int, ...], pad: tuple[int, ...]) -> None:
    """Concatenations, not copies into slices of the whole; pads that cut are left to PyTorch; a corner wraps along both axes."""
    torch._dynamo.reset()
    x = torch.randn(shape, requires_grad=True)
    call = lambda x: F.pad(x, pad, mode="circular") * 2
    with watching() as found:
        got, want = torch.compile(call, backend=backend)(x), call(x)
        g = torch.randn_like(want)
        grads = [torch.autograd.grad(y, x, g)[0] for y in (got, want)]
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*grads)
    assert got.stride() == want.stride() and ("concat" in ops(found[0]) or min(pad) < 0)


@pytest.mark.filterwarnings("ignore::tilewright.dynamo.backend.SplitWarning")
@pytest.mark.parametrize("factor", [1.5, 1.3])
def test_varying_sizes(factor: float) -> None:
    """A factor that sizes cannot be multiplied by exactly leaves its graph to PyTorch, and is no error."""
    torch._dynamo.reset()
    call = lambda x: F.interpolate(x, scale_factor=factor) * 2
    compiled = torch.compile(call, backend=backend, dynamic=True)
    for shape in ((2, 3, 5, 7), (2, 3, 8, 9)):
        x = torch.randn(shape, requires_grad=True)
        got, want = compiled(x), call(x)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), x)[0] for y in (got, want)))


def test_what_torch_had_is_put_back() -> None:
    op = torch.ops.aten.upsample_bilinear2d.vec
    before = dict(op.py_kernels)
    with whole_resizes, whole_resizes:
        assert op.py_kernels != before
    assert op.py_kernels == before
