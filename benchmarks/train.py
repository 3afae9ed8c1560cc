"""A training step beside PyTorch: eager, with a fused optimizer, and with torch.compile, in one run, interleaved.

    python benchmarks/train.py [gpt] [mlp]

Times count only after the losses of four steps, and the parameters after them, agree with eager PyTorch's.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tilewright as tw
from tilewright.cli.timing import measure, ratio

CONTENDERS = ("eager", "fused", "compile", "compile+fused", "tilewright")


class Layer(nn.Module):
    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads, self.before, self.between = heads, nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out, self.up, self.down = nn.Linear(d, 3 * d), nn.Linear(d, d), nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Any) -> Any:
        batch, length, d = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, d)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self, vocabulary: int = 512, d: int = 256, layers: int = 4, length: int = 128) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, d), nn.Parameter(torch.randn(length, d) * 0.02)
        self.layers = nn.Sequential(*(Layer(d, 4) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocabulary, bias=False)

    def forward(self, ids: Any) -> Any:
        return self.head(self.norm(self.layers(self.tokens(ids) + self.places)))


def gpt() -> tuple[Any, ...]:
    rates = {"lr": 3e-4, "weight_decay": 0.01}
    return (Gpt(), torch.randint(0, 512, (8, 128)), torch.randint(0, 512, (8, 128)),
            lambda p, **more: torch.optim.AdamW(p, **rates, **more), tw.optim.adamw(rates["lr"], weight_decay=rates["weight_decay"]))


def mlp() -> tuple[Any, ...]:
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    return net, torch.randn(64, 784), torch.randint(0, 10, (64,)), lambda p, **more: torch.optim.SGD(p, lr=0.1, **more), tw.optim.sgd(0.1)


CASES: dict[str, Callable[[], tuple[Any, ...]]] = {"gpt": gpt, "mlp": mlp}


def theirs(name: str, module: Any, make: Any, x: Any, y: Any) -> Callable[[], float]:
    optimizer = make(module.parameters(), **({"fused": True} if "fused" in name else {}))
    run = torch.compile(module) if "compile" in name else module

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(run(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def ours(module: Any, optimizer: Any, x: Any, y: Any) -> tuple[Callable[[], float], dict[str, Any]]:
    apply, params = tw.from_torch(module, (x,))
    now: dict[str, Any] = {"params": params, "state": optimizer.init(params)}

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        out = apply(params, x)
        return tw.softmax_cross_entropy(tw.reshape(out, (-1, out.shape[-1])), tw.reshape(y, (-1,))).mean()

    @tw.jit(donate=(0, 1))
    def update(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = tw.value_and_grad(loss_of)(params, x, y)
        return *optimizer.update(params, gradients, state), loss

    ids, labels = x.numpy(), y.numpy()

    def step() -> float:
        now["params"], now["state"], loss = update(now["params"], now["state"], ids, labels)
        return float(loss)

    return step, now


def race(name: str) -> None:
    torch.manual_seed(0)
    module, x, y, make, optimizer = CASES[name]()
    steps, ready, losses, models, now = {}, {}, {}, {}, dict[str, Any]()
    for key in CONTENDERS:
        models[key] = copy.deepcopy(module)
        began = time.perf_counter()
        if key == "tilewright":
            steps[key], now = ours(models[key], optimizer, x, y)
        else:
            steps[key] = theirs(key, models[key], make, x, y)
        losses[key] = [steps[key]() for _ in range(4)]
        ready[key] = time.perf_counter() - began
    np.testing.assert_allclose(losses["tilewright"], losses["eager"], rtol=1e-4)
    for key, want in models["eager"].named_parameters():
        np.testing.assert_allclose(np.asarray(now["params"][key]), want.detach().numpy(), rtol=1e-3, atol=2e-4, err_msg=key)
    times = measure(steps, rounds=9, slice_s=0.2)
    middle = {k: statistics.median(v) * 1e3 for k, v in times.items()}
    best = min((k for k in CONTENDERS if k != "tilewright"), key=middle.__getitem__)
    print(f"{name}: " + ", ".join(f"{k} {middle[k]:.2f} ms (ready {ready[k]:.1f} s)" for k in CONTENDERS)
          + f"; best peer {best}, ratio {ratio(times['tilewright'], times[best])}", flush=True)


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        race(case)
