"""Plain torch modules: MLP, transformer blocks in several spellings, small helpers around Hugging Face models."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class MLP(nn.Module):
    """Three linear layers with ReLU."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(F.relu(self.b(F.relu(self.a(x)))))


class Block(nn.Module):
    """Pre-norm transformer block. `spelling`: "sdpa", "softmax" (between two matmuls) or "manual" (max, exp, sum)."""

    def __init__(self, d: int, heads: int, spelling: str = "sdpa", *, causal: bool = False) -> None:
        super().__init__()
        self.h, self.spelling, self.causal = heads, spelling, causal
        self.l1, self.l2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d) for _ in range(4))
        self.f1, self.f2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.spelling == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        if self.causal:
            n = q.shape[-2]
            scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), float("-inf"))
        if self.spelling == "softmax":
            return torch.softmax(scores, -1) @ v
        e = torch.exp(scores - scores.amax(-1, keepdim=True))
        return (e / e.sum(-1, keepdim=True)) @ v

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        y = self.l1(x)
        q, k, v = (f(y).view(b, s, self.h, d // self.h).transpose(1, 2) for f in (self.q, self.k, self.v))
        x = x + self.o(self.attend(q, k, v).transpose(1, 2).reshape(b, s, d))
        return x + self.f2(F.relu(self.f1(self.l2(x))))


class LlamaBlock(nn.Module):
    """RMSNorm, rope in the rotate-half form, grouped-query attention, SwiGLU, in plain torch."""

    cos: torch.Tensor
    sin: torch.Tensor

    def __init__(self, d: int = 32, heads: int = 4, kv_heads: int = 2, hidden: int = 48, max_len: int = 64) -> None:
        super().__init__()
        self.h, self.kv, self.hd = heads, kv_heads, d // heads
        self.n1, self.n2 = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.q, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = (nn.Linear(d, kv_heads * self.hd, bias=False) for _ in range(2))
        self.gate, self.up, self.down = nn.Linear(d, hidden, bias=False), nn.Linear(d, hidden, bias=False), nn.Linear(hidden, d, bias=False)
        angle = torch.outer(torch.arange(max_len).float(), 10000.0 ** (-torch.arange(0, self.hd, 2) / self.hd))
        self.register_buffer("cos", torch.cat([angle.cos()] * 2, -1), persistent=False)
        self.register_buffer("sin", torch.cat([angle.sin()] * 2, -1), persistent=False)

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        s, half = x.shape[-2], x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * self.cos[:s].to(x.dtype) + turned * self.sin[:s].to(x.dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        y = self.n1(x)
        q = self.rope(self.q(y).view(b, s, self.h, self.hd).transpose(1, 2))
        k = self.rope(self.k(y).view(b, s, self.kv, self.hd).transpose(1, 2))
        v = self.v(y).view(b, s, self.kv, self.hd).transpose(1, 2)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(b, s, d))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ConvNet(nn.Module):
    """A ResNet-like stem: convolution, batch norm, in-place ReLU and addition, pools."""

    def __init__(self, c: int = 6) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, c, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(c), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, groups=2), nn.BatchNorm2d(c))
        self.pool, self.head = nn.AdaptiveAvgPool2d(1), nn.Linear(c, 5)
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                nn.init.uniform_(m.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
                nn.init.uniform_(m.running_var, 0.5, 2.0)  # type: ignore[arg-type]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(self.stem(x), 3, 2, 1)
        y = self.body(x)
        y += x
        return self.head(self.pool(F.relu_(y)).flatten(1))


class Logits(nn.Module):
    """Only the logits of a Hugging Face model, from its first input."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).logits


class Hidden(nn.Module):
    """The last hidden state of an encoder, from ids and mask."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def randomised(module: Any, seed: int = 0) -> Any:
    """The module in eval mode with every parameter drawn afresh, biases and norms too (defaults of 0 and 1 hide mistakes)."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in module.named_parameters():
            scale = 0.2 if p.ndim > 1 else 0.1
            p.copy_(torch.randn(p.shape, generator=g) * scale + (1.0 if p.ndim == 1 and "weight" in name else 0.0))
    return module.eval()
