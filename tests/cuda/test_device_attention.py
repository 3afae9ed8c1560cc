"""On a GPU: attention of scores for which bases of exponentials are raised, over and over, and of rows that see nothing or NaN."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import tilewright as tw
import tilewright.ops as o
from tests.cuda.launching import graph
from tests.cuda.test_device import check, poison, rand
from tilewright.core.dtypes import DType, bf16, f16
from tilewright.ops.attention.forward import Attention
from tilewright.runtime.cuda import driver as cuda_driver

pytestmark = pytest.mark.skipif(bool(cuda_driver.available()), reason=f"no GPU: {cuda_driver.available()}")


@pytest.mark.parametrize("scale", [1.0, -1.0])
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("d", [64, 128])
def test_large_scores_and_infinite_biases(d: int, dtype: DType, scale: float) -> None:
    """Up to 1e4, growing to the keys that come last; a NaN in a key is in the rows of its head and in no others."""
    q, k, v = 30 * rand(dtype, 1, 2, 150, d), rand(dtype, 1, 2, 700, d), rand(dtype, 1, 2, 700, d)
    k *= torch.linspace(100, 1, 700, device="cuda").to(k.dtype)[:, None]
    q[:, 1] *= 0.02  # a head of moderate scores, some of whose rows see nothing in their first tiles, or at all
    bias = 10 * rand(dtype, 2, 150, 700)
    bias[:, :, ::7] = -math.inf
    bias[1, 20:30] = -math.inf
    bias[1, 40:50, 250:] = -math.inf
    op = Attention(scale=scale * d**-0.5, has_bias=True)
    session: Any = tw.compile(graph(lambda *x: op(*x), *((dtype, tuple(t.shape)) for t in (q, k, v, bias))), target="cuda")
    poison()
    got = session(q, k, v, bias)
    scores = q.double() @ k.double().transpose(-1, -2) * scale * d**-0.5 + bias.double()
    check(got, scores.softmax(-1).nan_to_num(0.0) @ v.double(), dtype, 2.0)
    assert (got[0, 1, 20:30] == 0).all()
    k[0, 0, 5, 3] = math.nan
    bad = session(q, k, v, bias)
    assert torch.isnan(bad[0, 0]).all() and torch.equal(bad[0, 1], got[0, 1])


@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
@pytest.mark.parametrize("d", [64, 128])
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")  # PyTorch's own thread of the backward pass
def test_backward_of_growing_scores(d: int, dtype: DType) -> None:
    """With the logsumexps that the forward pass saves."""
    q, g, k, v = rand(dtype, 1, 2, 330, d), rand(dtype, 1, 2, 330, d), rand(dtype, 1, 1, 700, d), rand(dtype, 1, 1, 700, d)
    k *= torch.linspace(20, 1, 700, device="cuda").to(k.dtype)[:, None]
    op, back = (kind(scale=d**-0.5, causal=True, offset=370) for kind in (Attention, o.AttentionBackward))
    made = graph(lambda *x: (op(*x[:3]), *back(*x)), *((dtype, tuple(t.shape)) for t in (q, k, v, g)))
    poison()
    got = tw.compile(made, target="cuda")(q, k, v, g)
    wide = [t.double().requires_grad_() for t in (q, k, v)]
    seen = torch.ones(330, 700, dtype=torch.bool, device="cuda").tril(370)
    scores = (wide[0] @ wide[1].transpose(-1, -2) * d**-0.5).masked_fill(~seen, -math.inf)
    out = scores.softmax(-1) @ wide[2]
    for a, w in zip(got, [out.detach(), *torch.autograd.grad(out, wide, g.double())], strict=True):
        check(a, w, dtype, 2.0)
