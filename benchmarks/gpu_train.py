"""One training step of a GPT (12 layers, width 768, 16 x 1024 tokens): loss, gradients and AdamW in one program.

Parameters and AdamW's moments are f32, products and activations bf16, as under PyTorch's autocast; the peer is torch.compile of forward and
backward with its fused AdamW.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from gpu_tools import BF16, Table, timed

import tilewright as tw
from tilewright.core.pytree import flatten
from tilewright.transform.trace import leaf_of, trace


@dataclass(frozen=True)
class Sizes:
    layers: int = 12
    width: int = 768
    heads: int = 12
    batch: int = 16
    length: int = 1024
    vocab: int = 50304


SIZES = Sizes()


def shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    w = s.width
    found: dict[str, tuple[int, ...]] = {"wte": (s.vocab, w), "wpe": (s.length, w), "norm.w": (w,), "norm.b": (w,)}
    for i in range(s.layers):
        found |= {
            f"{i}.norm1.w": (w,), f"{i}.norm1.b": (w,), f"{i}.qkv.w": (3 * w, w), f"{i}.qkv.b": (3 * w,), f"{i}.out.w": (w, w),
            f"{i}.out.b": (w,), f"{i}.norm2.w": (w,), f"{i}.norm2.b": (w,), f"{i}.up.w": (4 * w, w), f"{i}.up.b": (4 * w,),
            f"{i}.down.w": (w, 4 * w), f"{i}.down.b": (w,),
        }  # fmt: skip
    return found


def loss_of(s: Sizes, p: dict[str, Any], ids: Any, labels: Any) -> Any:
    """Over tracers."""
    f: Any = tw
    half = {n: f.astype(x, "bf16") for n, x in p.items()}
    rows = s.batch * s.length
    linear = lambda x, n: x @ half[f"{n}.w"].T + half[f"{n}.b"]
    norm = lambda x, n: f.layer_norm(x, half[f"{n}.w"], half[f"{n}.b"])
    heads = lambda x: x.reshape((s.batch, s.length, s.heads, s.width // s.heads)).transpose((0, 2, 1, 3))
    x = (f.take(half["wte"], ids, axis=0) + half["wpe"]).reshape((rows, s.width))
    for i in range(s.layers):
        y = linear(norm(x, f"{i}.norm1"), f"{i}.qkv")
        q, k, v = (heads(y[:, j * s.width : (j + 1) * s.width]) for j in range(3))
        y = f.attention(q, k, v, causal=True).transpose((0, 2, 1, 3)).reshape((rows, s.width))
        x = x + linear(y, f"{i}.out")
        x = x + linear(f.gelu(linear(norm(x, f"{i}.norm2"), f"{i}.up")), f"{i}.down")
    logits = norm(x, "norm") @ half["wte"].T
    return f.softmax_cross_entropy(f.astype(logits, "f32"), labels.reshape((rows,))).mean()


def step_graph(s: Sizes) -> Any:
    """(graph, number of parameters). Inputs: parameters, moments and step number, ids, labels; outputs: parameters, state, loss."""
    opt = tw.optim.adamw(1e-3)

    def step(params: Any, state: Any, ids: Any, labels: Any) -> Any:
        loss, grads = tw.value_and_grad(lambda p: loss_of(s, p, ids, labels))(params)
        return *opt.update(params, grads, state), loss

    params = {n: np.broadcast_to(np.float32(0), shape) for n, shape in shapes(s).items()}
    state = {"step": np.zeros((), np.int32), "m": params, "v": params}
    tokens = np.broadcast_to(np.int64(0), (s.batch, s.length))
    leaves, spec = flatten(((params, state, tokens, tokens), {}))
    graph = trace(step, spec, [leaf_of(x) for x in leaves]).graph
    kept = len(leaves) - 2
    graph.donated = {i: i for i in range(kept)}
    return graph


class Block(torch.nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        w = s.width
        self.norm1, self.norm2 = torch.nn.LayerNorm(w), torch.nn.LayerNorm(w)
        self.qkv, self.out = torch.nn.Linear(w, 3 * w), torch.nn.Linear(w, w)
        self.up, self.down = torch.nn.Linear(w, 4 * w), torch.nn.Linear(4 * w, w)
        self.heads = s.heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, w = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(w, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, w))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(torch.nn.Module):
    """The peer: weights are tied as ours."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(s.vocab, s.width), torch.nn.Embedding(s.length, s.width)
        self.blocks = torch.nn.ModuleList(Block(s) for _ in range(s.layers))
        self.norm = torch.nn.LayerNorm(s.width)

    def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), labels.view(-1))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters by our names."""
        found = {"wte": self.wte.weight, "wpe": self.wpe.weight, "norm.w": self.norm.weight, "norm.b": self.norm.bias}
        for i, b in enumerate(self.blocks):
            for name in ("norm1", "qkv", "out", "norm2", "up", "down"):
                part = getattr(b, name)
                found |= {f"{i}.{name}.w": part.weight, f"{i}.{name}.b": part.bias}
        return found


def train(table: Table, s: Sizes = SIZES) -> Any:
    torch.manual_seed(0)
    model = Gpt(s).cuda()
    for name, t in model.tensors().items():
        if name in ("wte", "wpe"):
            torch.nn.init.normal_(t, std=0.02)
    ids, labels = (torch.randint(0, s.vocab, (s.batch, s.length), device="cuda") for _ in range(2))
    order = list(shapes(s))
    graph = step_graph(s)
    compiled: Any = tw.compile(graph, target="cuda")
    params = [model.tensors()[n].detach().clone() for n in order]
    state = [torch.zeros((), dtype=torch.int32, device="cuda"), *(torch.zeros_like(p) for _ in range(2) for p in params)]
    out = compiled(*params, *state, ids, labels)
    loss, moments = float(out[-1]), [m.clone() for m in out[len(order) + 1 : 2 * len(order) + 1]]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    forward = torch.compile(model)

    def peer() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=BF16):
            loss = forward(ids, labels)
        loss.backward()
        optimizer.step()
        return loss

    want = float(peer().detach())
    named = model.tensors()
    theirs = [optimizer.state[named[n]]["exp_avg"] for n in order]  # a tenth of the gradients
    apart, whole = torch.cat([(a - b).flatten() for a, b in zip(moments, theirs, strict=True)]), torch.cat([b.flatten() for b in theirs])
    err = float(apart.norm() / whole.norm())
    schedule = compiled.schedule({})
    for _ in range(3):
        peer()
    times = timed({"ours": lambda: schedule.run(torch.cuda.current_stream().cuda_stream), "torch.compile": peer}, 1, 11)
    tokens = s.batch * s.length
    products = sum(a * b for a, b in (x for n, x in shapes(s).items() if len(x) == 2 and n != "wpe"))
    flops = 6.0 * tokens * products + 3 * s.layers * 2.0 * s.batch * s.length**2 * s.width
    table.add(f"GPT training step, {s.layers} layers, {s.batch}x{s.length}", times, flops=flops, err=err)
    table.rows[-1] |= {"launches": len(schedule.steps), "loss": loss, "peer_loss": want}
    print(f"{'':42s} loss {loss:.4f}, the peer's {want:.4f}; {len(schedule.steps)} launches")
    return compiled
