"""Small models whose launches cost models are asked about: convolutions around a resize, a transformer block, bags of embeddings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Upscale(nn.Module):
    """Convolutions of several kinds around a resize, as in decoders of images."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(64, 128, 3, padding=1), nn.Conv2d(128, 64, 3, padding=1)
        self.d, self.n = nn.Conv2d(64, 64, 5, padding=2, groups=64), nn.GroupNorm(8, 128)

    def forward(self, x: Any) -> Any:
        return self.d(F.relu(self.b(F.interpolate(F.silu(self.n(self.a(x))), scale_factor=2.0))))


class Attends(nn.Module):
    def __init__(self, d: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.n, self.qkv, self.o = heads, nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.m = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

    def forward(self, x: Any) -> Any:
        b, s, d = x.shape
        q, k, v = self.qkv(self.n(x)).reshape(b, s, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, s, d))
        return x + self.m(x)


class Ranks(nn.Module):
    """Bags of embeddings and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.m = nn.Embedding(5000, 64), nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 32))

    def forward(self, ids: Any) -> Any:
        return torch.softmax(self.m(self.e(ids).mean(1)), -1)


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "upscale": lambda: (Upscale(), torch.randn(8, 64, 64, 64)),
    "attends": lambda: (Attends(), torch.randn(8, 512, 512)),
    "ranks": lambda: (Ranks(), torch.randint(0, 5000, (4096, 16))),
}
