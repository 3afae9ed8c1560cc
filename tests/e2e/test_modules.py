"""Plain torch modules that use many ops together, natively against torch, with static and dynamic shapes and several dtypes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilewright as tw
from tests.e2e.compare import assert_as_exact_as_torch, assert_close, assert_right, eager
from tests.models.plain import randomised
from tilewright.passes.pipeline import optional_passes


class Encoder(nn.Module):
    """torch's own transformer layer, with a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(24, 3, 40, dropout=0.1, activation="gelu", batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.layer(x, src_key_padding_mask=~keep)


class Pooler(nn.Module):
    """Mean over a mask, normalised, as sentence embeddings are made."""

    def forward(self, x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        m = keep.unsqueeze(-1).to(x.dtype)
        return F.normalize((x * m).sum(1) / m.sum(1).clamp(min=1e-9), dim=-1)


class Relative(nn.Module):
    """Attention with a relative position bias (T5), a soft cap and a sliding window, spelled out."""

    def __init__(self, d: int = 24, heads: int = 3) -> None:
        super().__init__()
        self.h, self.qkv, self.bias = heads, nn.Linear(d, 3 * d), nn.Embedding(32, heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        i = torch.arange(s)
        gap = (i[:, None] - i[None, :]).clamp(0, 31)
        scores = q @ k.mT / math.sqrt(d // self.h) + self.bias(gap).permute(2, 0, 1)
        scores = 5.0 * torch.tanh(scores / 5.0)
        scores = scores.masked_fill((i[None, :] > i[:, None]) | (i[:, None] - i[None, :] >= 6), float("-inf"))
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Gated(nn.Module):
    """Several heads of different kinds on one trunk: shared sub-expressions, many outputs, integer outputs."""

    def __init__(self, d: int = 20) -> None:
        super().__init__()
        self.a, self.b, self.norm = nn.Linear(d, 2 * d), nn.Linear(d, 9, bias=False), nn.RMSNorm(d)

    def trunk(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.norm(F.glu(self.a(x)) + x)
        return h, self.b(h)

    def undecided(self, x: torch.Tensor) -> bool:
        """Whether a sign, a comparison or the place of the largest logit hangs on the last bits."""
        h, logits = self.trunk(x)
        first, second = logits.topk(2).values.unbind(-1)
        return bool(torch.cat([h.flatten(), (first - 0.5).flatten(), (first - second).flatten()]).abs().min() < 1e-5)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        h, logits = self.trunk(x)
        top, where = logits.max(-1)
        return {"p": logits.log_softmax(-1), "top": top, "where": where, "energy": logits.logsumexp(-1), "h": h.square().mean(-1).sqrt(),
                "sure": top > 0.5, "clipped": h.clamp(-0.5, 0.5), "count": (h > 0).sum(-1)}


class Gru(nn.Module):
    """A recurrent cell unrolled by hand."""

    def __init__(self, d: int = 12) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(d, 3 * d), nn.Linear(d, 3 * d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros_like(x[:, 0])
        outs = []
        for step in range(4):
            (a, b, c), (p, q, r) = self.x(x[:, step]).chunk(3, -1), self.h(h).chunk(3, -1)
            z = torch.sigmoid(b + q)
            h = (1 - z) * torch.tanh(c + torch.sigmoid(a + p) * r) + z * h
            outs.append(h)
        return torch.stack(outs, 1)


class Shapes(nn.Module):
    """Views in every direction between two matmuls."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.u = nn.Linear(24, 24), nn.Linear(12, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.w(x)
        a, b = y.chunk(2, -1)
        c = torch.cat([b.flip(-1), a.roll(1, 1)], -1)
        d = self.u(F.pad(a, (0, 0, 1, 0))[:, :-1])
        e = torch.einsum("bsd,btd->bst", c, d)
        split = c.reshape(*x.shape[:2], 4, 6).movedim(2, 1)
        return e.tril(), e.transpose(1, 2)[:, ::2].reshape(x.shape[0], -1), split, torch.stack([a, b]).sum(0)


class Unet(nn.Module):
    """Convolutions, transposed by upsampling, group norm, skip connections, 1x1 and depthwise kernels."""

    def __init__(self, c: int = 8) -> None:
        super().__init__()
        self.one, self.down = nn.Conv2d(3, c, 3, padding=1), nn.Conv2d(c, 2 * c, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(2 * c, 2 * c, 3, padding=2, dilation=2, groups=2 * c)
        self.point, self.norm = nn.Conv2d(3 * c, 4, 1), nn.GroupNorm(4, 2 * c)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = F.silu(self.one(x))
        b = F.silu(self.norm(self.deep(F.relu(self.down(a)))))
        up = F.interpolate(b, scale_factor=2, mode="nearest")
        return self.point(torch.cat([a, up], 1)) + F.avg_pool2d(x, 3, 1, 1).mean(1, keepdim=True)


class Integers(nn.Module):
    """Integer and boolean arithmetic, gathers with computed indices, scatter-like selection."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 7)

    def forward(self, i: torch.Tensor) -> tuple[torch.Tensor, ...]:
        j = (i * 7 + 3) % 50
        picked = torch.gather(self.table(j), 2, (i % 7).unsqueeze(-1))
        odd = ((i // 2) & 1).bool() ^ (i > 20)
        hot = F.one_hot(i % 5, 5)
        return j, picked.squeeze(-1), odd, hot.sum(1), torch.where(odd, j, -j), i.to(torch.int32) * 4, j.cumsum(1), self.table.weight[i[0]]


def keep(b: int, s: int) -> torch.Tensor:
    m = torch.ones(b, s, dtype=torch.bool)
    m[1::2, (s + 1) // 2 :] = False
    return m


Make = Callable[[int, int], tuple[Any, ...]]
B, S = tw.Dim("B", 1, 16), tw.Dim("S", 2, 40)
MODULES: dict[str, tuple[Callable[[], nn.Module], Make, dict[str, Any] | None]] = {
    "encoder": (Encoder, lambda b, s: (torch.randn(b, s, 24), keep(b, s)), {"x": {0: B, 1: S}, "keep": {0: B, 1: S}}),
    "pooler": (Pooler, lambda b, s: (torch.randn(b, s, 24), keep(b, s)), {"x": {0: B, 1: S}, "keep": {0: B, 1: S}}),
    "relative": (Relative, lambda b, s: (torch.randn(b, s, 24),), {"x": {0: B, 1: S}}),
    "gated": (Gated, lambda b, s: (torch.randn(b, s, 20),), {"x": {0: B, 1: S}}),
    "gru": (Gru, lambda b, s: (torch.randn(b, 4, 12),), {"x": {0: B}}),
    "shapes": (Shapes, lambda b, s: (torch.randn(b, s, 24),), None),
    "unet": (Unet, lambda b, s: (torch.randn(b, 3, 12, 10),), {"x": {0: B}}),
    "integers": (Integers, lambda b, s: (torch.randint(0, 50, (b, s)),), {"i": {0: B, 1: S}}),
}


def drawn(name: str, module: Any, b: int, s: int) -> tuple[Any, ...]:
    """Inputs on which integer and boolean results are the same for any order of sums."""
    args = MODULES[name][1](b, s)
    while isinstance(module, Gated) and module.undecided(*args):
        args = MODULES[name][1](b, s)
    return args


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("name", MODULES)
def test_static(name: str, target: str) -> None:
    module = randomised(MODULES[name][0]())
    args = drawn(name, module, 3, 10)
    session = tw.compile(module, args, target=target, validation="strict")
    for given in (args, drawn(name, module, 3, 10)):
        assert_right(module, given, session(*given))


@pytest.mark.parametrize("name", [n for n in MODULES if MODULES[n][2]])
def test_dynamic(name: str) -> None:
    build, make, dynamic = MODULES[name]
    module = randomised(build())
    session = tw.compile(module, make(2, 7), dynamic=dynamic)
    for b, s in [(1, 2), (3, 19), (16, 40), (2, 7)]:
        args = drawn(name, module, b, s)
        assert_right(module, args, session(*args))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["encoder", "relative", "gru", "unet"])
def test_dtypes(name: str, dtype: torch.dtype) -> None:
    build, make, _ = MODULES[name]
    module = randomised(build()).to(dtype)
    draws = [tuple(a.to(dtype) if a.is_floating_point() else a for a in make(3, 10)) for _ in range(8)]
    session = tw.compile(module, draws[0])
    if dtype == torch.float64:
        assert_close(session(*draws[0]), eager(module, draws[0]))
    else:
        assert_as_exact_as_torch(module, session, draws)


@pytest.mark.slow
@pytest.mark.parametrize("off", optional_passes())
@pytest.mark.parametrize("name", MODULES)
def test_each_pass_off(name: str, off: str) -> None:
    module = randomised(MODULES[name][0]())
    args = drawn(name, module, 3, 10)
    assert_right(module, args, tw.compile(module, args, passes=[off])(*args))


def test_torchs_own_dynamic_shapes_and_exported_programs() -> None:
    module = randomised(Relative())
    rows, length = torch.export.Dim("rows", min=1, max=16), torch.export.Dim("length", min=2, max=40)
    x = torch.randn(2, 7, 24)
    shapes = {"x": {0: rows, 1: length}}
    program = torch.export.export(module, (x,), dynamic_shapes=shapes, strict=False)
    for session in (tw.compile(module, (x,), dynamic_shapes=shapes), tw.compile(program)):
        for b, s in [(1, 2), (3, 40)]:
            args = (torch.randn(b, s, 24),)
            assert_close(session(*args), eager(module, args))
        with pytest.raises(tw.InputError, match=r"with .*2 <= length <= 40.*, got f32\[17,7,24\]"):
            session(torch.randn(17, 7, 24))
