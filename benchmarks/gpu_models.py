"""Whole models on one GPU beside torch.compile in CUDA graphs: MiniLM-L6 on 8 sentences of 128 tokens, ResNet-50 on 32 images, both bf16.

Plain PyTorch modules with random weights of the usual sizes; ours is the same module through `tw.compile`.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from gpu_tools import BF16, Table, captured, error, rand, timed
from torch import nn

import tilewright as tw
from tilewright.core.dims import evaluate


class BertLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-12), nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Any, mask: Any) -> Any:
        b, s, d = x.shape
        q, k, v = (f(x).view(b, s, self.heads, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = self.norm1(self.o(y.transpose(1, 2).reshape(b, s, d)) + x)
        return self.norm2(self.down(F.gelu(self.up(x))) + x)


class MiniLm(nn.Module):
    """all-MiniLM-L6-v2 without its pooling."""

    def __init__(self, layers: int = 6, width: int = 384, heads: int = 12, inner: int = 1536, vocab: int = 30522) -> None:
        super().__init__()
        self.words, self.positions, self.kinds = nn.Embedding(vocab, width), nn.Embedding(512, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, inner) for _ in range(layers))

    def forward(self, ids: Any, mask: Any) -> Any:
        b, s = ids.shape
        at = torch.arange(s, device=ids.device)[None]
        x = self.norm(self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.positions(at))
        seen = torch.where(mask[:, None, None, :] != 0, 0.0, torch.finfo(x.dtype).min).to(x.dtype).expand(b, 1, s, s)
        for layer in self.layers:
            x = layer(x, seen)
        return x


class Bottleneck(nn.Module):
    def __init__(self, wide: int, narrow: int, out: int, stride: int) -> None:
        super().__init__()
        self.a, self.na = nn.Conv2d(wide, narrow, 1, bias=False), nn.BatchNorm2d(narrow)
        self.b, self.nb = nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow)
        self.c, self.nc = nn.Conv2d(narrow, out, 1, bias=False), nn.BatchNorm2d(out)
        other = wide != out or stride != 1
        self.side = nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if other else nn.Identity()

    def forward(self, x: Any) -> Any:
        y = F.relu(self.na(self.a(x)))
        y = F.relu(self.nb(self.b(y)))
        return F.relu(self.nc(self.c(y)) + self.side(x))


class ResNet50(nn.Module):
    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks: list[nn.Module] = []
        wide = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            narrow = 64 << stage
            for i in range(count):
                blocks.append(Bottleneck(wide, narrow, 4 * narrow, 2 if i == 0 and stage else 1))
                wide = 4 * narrow
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(wide, classes)

    def forward(self, x: Any) -> Any:
        x = F.max_pool2d(F.relu(self.norm(self.stem(x))), 3, 2, 1)
        return self.head(self.blocks(x).mean((2, 3)))


def settle(module: nn.Module) -> nn.Module:
    """Random weights that keep the size of what passes through, and batch norms that have seen something."""
    for m in module.modules():
        if isinstance(m, (nn.Linear, nn.Conv2d)):
            nn.init.normal_(m.weight, std=math.sqrt(2.0 / m.weight[0].numel()))
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.3, 0.7)
            nn.init.normal_(m.bias, std=0.1)
            m.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
            m.running_var.uniform_(0.5, 1.5)  # type: ignore[union-attr]
    return module.eval().cuda()


def compare(table: Table, name: str, module: nn.Module, inputs: tuple[Any, ...], peers: dict[str, Any]) -> Any:
    """Our session and the peers in CUDA graphs; the reference is the module in float32."""
    session: Any = tw.compile(module, inputs)
    got = session(*inputs)
    schedule = session.schedule({})
    runs = {"ours": lambda: schedule.run(torch.cuda.current_stream().cuda_stream)}
    with torch.no_grad():
        runs |= {k: captured(call, 1) for k, call in peers.items()}
        wide = module.float()
        want = wide(*(x.float() if x.is_floating_point() else x for x in inputs))
    flops = sum(float(evaluate(x.flops, {})) for x in session.executable.program.launches)
    table.add(name, timed(runs, 1, 25), flops=flops, err=error(got, want))
    table.rows[-1]["launches"] = len(schedule.steps)
    return session


def minilm(table: Table) -> Any:
    module = settle(MiniLm()).to(BF16)
    ids, mask = torch.randint(0, 30000, (8, 128), device="cuda"), torch.ones(8, 128, dtype=torch.int64, device="cuda")
    fused = torch.compile(copy.deepcopy(module))
    return compare(table, "MiniLM-L6 8x128", module, (ids, mask), {"torch.compile": lambda: fused(ids, mask)})


def resnet50(table: Table) -> Any:
    module = settle(ResNet50()).to(BF16)
    x = rand(32, 3, 224, 224)
    fused, last = torch.compile(copy.deepcopy(module)), torch.compile(copy.deepcopy(module).to(memory_format=torch.channels_last))
    turned = x.to(memory_format=torch.channels_last)
    peers = {"torch.compile": lambda: fused(x), "torch.compile, channels last": lambda: last(turned)}
    return compare(table, "ResNet-50 32x3x224x224", module, (x,), peers)


def models(table: Table) -> None:
    minilm(table)
    resnet50(table)
