"""The models that `benchmarks/bench.py` times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Build = Callable[[], tuple[Any, tuple[Any, ...]]]


def workloads() -> dict[str, Build]:
    """name -> () -> (module in eval mode, inputs). Nothing is built before it is asked for."""
    class Mlp(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

        def forward(self, x: Any) -> Any:
            return self.c(F.relu(self.b(F.relu(self.a(x)))))

    class Block(nn.Module):
        """Pre-norm transformer block; `naive` spells attention out."""

        def __init__(self, d: int, heads: int, naive: bool = False) -> None:
            super().__init__()
            self.heads, self.naive = heads, naive
            self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: Any) -> Any:
            b, s, d = x.shape
            y = self.norm1(x)
            q, k, v = (p(y).view(b, s, self.heads, d // self.heads).transpose(1, 2) for p in (self.q, self.k, self.v))
            if self.naive:
                a = torch.softmax(q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5, -1) @ v
            else:
                a = F.scaled_dot_product_attention(q, k, v)
            x = x + self.out(a.transpose(1, 2).reshape(b, s, d))
            return x + self.down(F.relu(self.up(self.norm2(x))))

    class Chain(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return torch.tanh(F.gelu(x * y + 1.0) * 0.5 + torch.sigmoid(y)) / (1 + torch.exp(-x))

    class Logits(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any) -> Any:
            return self.model(ids).logits

    def gpt2(length: int) -> tuple[Any, tuple[Any, ...]]:
        from transformers import GPT2Config, GPT2LMHeadModel

        return Logits(GPT2LMHeadModel(GPT2Config(use_cache=False))), (torch.randint(0, 50257, (1, length)),)

    class Hidden(nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            return self.model(input_ids=ids, attention_mask=mask).last_hidden_state

    def minilm(batch: int, length: int) -> tuple[Any, tuple[Any, ...]]:
        """all-MiniLM-L6-v2's shape, with random weights: times do not depend on them."""
        from transformers import BertConfig, BertModel

        config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
        return Hidden(BertModel(config, add_pooling_layer=False)), (
            torch.randint(0, 30000, (batch, length)), torch.ones(batch, length, dtype=torch.long))

    def resnet(batch: int) -> tuple[Any, tuple[Any, ...]]:
        from transformers import ResNetConfig, ResNetForImageClassification

        return Logits(ResNetForImageClassification(ResNetConfig(num_labels=1000))), (torch.randn(batch, 3, 224, 224),)

    table: dict[str, Build] = {}
    for b, d in [(1, 512), (32, 512), (128, 512), (1, 2048), (32, 2048), (128, 2048)]:
        table[f"mlp {b}x{d}"] = lambda b=b, d=d: (Mlp(d), (torch.randn(b, d),))  # type: ignore[misc]
    for b, s, d in [(1, 16, 64), (4, 16, 64), (1, 64, 128), (4, 64, 128), (1, 128, 256), (4, 128, 256), (1, 512, 768)]:
        for naive in (False, True) if d > 64 else (False,):
            table[f"block{'-naive' * naive} {b}x{s}x{d}"] = lambda b=b, s=s, d=d, naive=naive: (  # type: ignore[misc]
                Block(d, max(2, d // 64), naive), (torch.randn(b, s, d),))
    for length in (16, 64, 256):
        table[f"gpt2-124m S={length}"] = lambda length=length: gpt2(length)  # type: ignore[misc]
    for b, s in [(1, 16), (1, 128), (8, 128)]:
        table[f"minilm {b}x{s}"] = lambda b=b, s=s: minilm(b, s)  # type: ignore[misc]
    for b in (1, 4):
        table[f"resnet50 b={b}"] = lambda b=b: resnet(b)  # type: ignore[misc]
    table["eltwise 1M"] = lambda: (Chain(), (torch.randn(1024, 1024), torch.randn(1024, 1024)))
    table["softmax 512x512"] = lambda: (nn.Softmax(-1), (torch.randn(512, 512),))

    def evaluated(build: Build) -> Build:
        def made() -> tuple[Any, tuple[Any, ...]]:
            torch.manual_seed(0)
            module, inputs = build()
            return module.eval(), inputs

        return made

    return {name: evaluated(build) for name, build in table.items()}
