"""Attention in dynamo's graphs is one op, whatever PyTorch would make of it: shared key heads, biases, odd sizes, autocast, checkpoints."""
from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

from tilewright.dynamo import attention
from tilewright.dynamo.backend import watching

from .check import check


def r(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def repeated(x: torch.Tensor, n: int) -> torch.Tensor:
    """As Hugging Face writes it."""
    b, h, s, d = x.shape
    return x[:, :, None, :, :].expand(b, h, n, s, d).reshape(b, h * n, s, d)


sdpa = F.scaled_dot_product_attention
CASES: dict[str, tuple[Any, Any]] = {
    "one key head": (lambda q, k, v: sdpa(q, k, v), lambda: (r(2, 6, 5, 8), r(2, 1, 7, 8), r(2, 1, 7, 8))),
    "repeated": (lambda q, k, v: sdpa(q, repeated(k, 3), repeated(v, 3), is_causal=True, scale=0.3),
                 lambda: (r(2, 6, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8))),
    "interleaved": (lambda q, k, v: sdpa(q, k.repeat_interleave(3, dim=1), torch.repeat_interleave(v, 3, 1)),
                    lambda: (r(2, 6, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8))),
    "learned bias": (lambda q, k, v, m: sdpa(q, k, v, m), lambda: (r(2, 4, 5, 8), r(2, 4, 7, 8), r(2, 4, 7, 9), r(4, 1, 7))),
    "rows that see nothing": (lambda q, k, v: sdpa(q, k, v, torch.arange(5)[:, None] > torch.arange(7) % 6),
                              lambda: (r(1, 2, 5, 8), r(1, 2, 7, 8), r(1, 2, 7, 8))),
    "checkpoint": (lambda q, k, v: checkpoint(lambda *x: sdpa(*x).sin(), q, k, v, use_reentrant=False),
                   lambda: (r(1, 4, 5, 8), r(1, 1, 7, 8), r(1, 1, 7, 8))),
    "three axes": (lambda q, k, v: sdpa(q, k, v), lambda: (r(2, 5, 8), r(2, 7, 8), r(2, 7, 8))),
}



QUICK = ("repeated", "learned bias", "checkpoint")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_gradients(name: str) -> None:
    function, inputs = CASES[name]
    check(function, *(x.requires_grad_() for x in inputs()), grad=True)


def exchanged(function: Any, *inputs: torch.Tensor) -> Any:
    """The call that stands in dynamo's graph."""
    found: list[Any] = []

    def backend(module: Any, _: Any) -> Any:
        attention.exchange(module)
        found.extend(n for n in module.graph.nodes if n.target is attention.attend)
        return module

    torch._dynamo.reset()
    torch.compile(function, backend=backend)(*inputs)
    return found[0]


@pytest.mark.parametrize("name", ["repeated", "interleaved"])
def test_repeated_heads_are_read_as_they_are(name: str) -> None:
    function, inputs = CASES[name]
    node = exchanged(function, *inputs())
    assert all(node.kwargs[x].op == "placeholder" for x in ("key", "value")) and node.kwargs["enable_gqa"]


@pytest.mark.parametrize("function", [
    lambda q, k, v: sdpa(q, k.repeat(1, 3, 1, 1), v.repeat(1, 3, 1, 1)),  # heads in another order
    lambda q, k, v: sdpa(q, k[:, None].expand(2, 3, 2, 5, 8).reshape(2, 6, 5, 8), v[:, None].expand(2, 3, 2, 5, 8).reshape(2, 6, 5, 8)),
    lambda q, k, v: sdpa(q, repeated(k, 3), v.repeat(1, 3, 1, 1))])
def test_other_repetitions_stay(function: Any) -> None:
    inputs = (r(2, 6, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8))
    assert not exchanged(function, *inputs).kwargs.get("enable_gqa")


def test_the_graph_holds_one_op() -> None:
    """One key head, a bias with a gradient, autocast: PyTorch would write two products and a softmax."""
    torch._dynamo.reset()
    q, k, bias = r(2, 6, 16, 8).requires_grad_(), r(2, 1, 16, 8).requires_grad_(), r(16, 16).requires_grad_()
    with watching() as found, torch.autocast("cpu", torch.bfloat16):
        out = torch.compile(lambda q, k, b: sdpa(q, k, k, b), backend="tilewright")(q, k, bias)
        out.float().sum().backward()
        want = sdpa(q, k.expand_as(q), k.expand_as(q), bias)
    assert out.dtype == torch.bfloat16 and [c.splits for c in found] == [0, 0]
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)
    targets = [str(n.target) for c in found for s in c.steps for n in s.nodes]
    assert "tilewright.attention.default" in targets and "tilewright.attention_backward.default" in targets
    assert not any("softmax" in t or "bmm" in t for t in targets)


@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_the_ops_mean_what_pytorch_computes(keeps: bool, masked: bool) -> None:
    """Where a part of a graph runs in PyTorch."""
    attention.library()
    ours = torch.ops.tilewright
    q, k, v = (x.double().requires_grad_() for x in (r(2, 6, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8)))
    mask = r(5, 5).double().requires_grad_() if masked else None
    out, sums = ours.attention(q, k, v, mask, not masked, 0.3, keeps, keeps)
    want = sdpa(q, k, v, mask, is_causal=not masked, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(out, want)
    leaves = [x for x in (q, k, v, mask) if x is not None]
    g = torch.randn_like(want)
    for a, b in zip(torch.autograd.grad(out, leaves, g), torch.autograd.grad(want, leaves, g), strict=True):
        torch.testing.assert_close(a, b)
    assert sums.shape == ((2, 6, 5) if keeps else (0,))
    torch.library.opcheck(ours.attention.default, (q, k, v, mask, not masked, 0.3, keeps, keeps), test_utils="test_faketensor")


def test_writes_beside_attention_stay() -> None:
    """Dynamo's graph has calls that write and whose results nobody reads."""

    def f(x: Any, cache: Any) -> Any:
        made = x.clone()
        made.select(1, 0).fill_(1)
        cache.narrow(2, 1, 2).copy_(x.narrow(2, 0, 2))
        cache[:, :, 0] = 3
        return made, F.scaled_dot_product_attention(x, cache.repeat_interleave(2, 1)[:, :2], cache.repeat_interleave(2, 1)[:, :2])

    torch._dynamo.reset()
    check(f, torch.randn(1, 2, 4, 8), torch.randn(1, 2, 5, 8), splits=None)
    check(f, torch.randn(1, 2, 4, 8, requires_grad=True), torch.randn(1, 2, 5, 8), splits=None, grad=True)


@pytest.mark.filterwarnings("ignore:flex_attention called without")
@pytest.mark.parametrize("score", [None, lambda s, b, h, i, j: s + (j - i) * torch.exp2(-(h + 1.0) * 2),
                                   lambda s, b, h, i, j: 20 * (s / 20).tanh()])
def test_flex_attention_is_ours(score: Any) -> None:
    """A formula of its scores, masks of blocks, shared key heads and logsumexps, without a part in PyTorch."""
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 37, 37, device="cpu")
    with torch.no_grad():
        for options in ({}, {"block_mask": mask}, {"return_lse": True}):
            check(lambda q, k, v, o=options: flex_attention(q, k, v, score_mod=score, enable_gqa=True, **o),
                  r(2, 4, 37, 16), r(2, 2, 37, 16), r(2, 2, 37, 16))
