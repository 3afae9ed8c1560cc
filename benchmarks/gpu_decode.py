"""One decode step of a Llama-like model of 1.2 billion parameters in bf16, at position 512: the whole step as one CUDA graph.

The graph is written by hand over the ops; weights and caches are inputs, so that both contenders read the same memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from gpu_tools import BF16, Table, captured, error, timed

import tilewright as tw
import tilewright.ops as o
from tilewright.core.dtypes import bf16, i64
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType


@dataclass(frozen=True)
class Sizes:
    layers: int = 16
    width: int = 2048
    heads: int = 32
    kv_heads: int = 8
    head: int = 64
    inner: int = 8192
    vocab: int = 128256
    capacity: int = 1024
    position: int = 512


SIZES = Sizes()


def shapes(s: Sizes) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"embed": (s.vocab, s.width), "final": (s.width,)}
    for i in range(s.layers):
        found |= {
            f"{i}.norm1": (s.width,), f"{i}.norm2": (s.width,), f"{i}.qkv": ((s.heads + 2 * s.kv_heads) * s.head, s.width),
            f"{i}.out": (s.width, s.heads * s.head), f"{i}.gate": (s.inner, s.width), f"{i}.up": (s.inner, s.width),
            f"{i}.down": (s.width, s.inner),
        }  # fmt: skip
    return found


def weights(s: Sizes) -> dict[str, torch.Tensor]:
    def matrix(name: str, n: int, k: int) -> torch.Tensor:
        return torch.randn(n, k, device="cuda", dtype=BF16) * (1.0 if name == "embed" else k**-0.5)

    return {name: ones(*shape) if len(shape) == 1 else matrix(name, *shape) for name, shape in shapes(s).items()}


def ones(n: int) -> torch.Tensor:
    return 1 + 0.1 * torch.randn(n, device="cuda").to(BF16)


def build(s: Sizes) -> Graph:
    """Inputs: token, cos, sin, weights, key and value caches. Outputs: logits, caches (donated)."""
    g = Graph("decode")
    ids = g.input(TensorType(i64, (1,)), "ids")
    cos, sin = (g.input(TensorType(bf16, (1, s.head // 2)), n) for n in ("cos", "sin"))
    w = {n: g.input(TensorType(bf16, shape), n) for n, shape in shapes(s).items()}
    first = len(g.inputs)
    cache = TensorType(bf16, (1, s.kv_heads, s.capacity, s.head))
    caches = [g.input(cache, f"{kind}{i}") for i in range(s.layers) for kind in "kv"]
    linear = lambda x, name: o.Matmul(transpose_b=True)(x, w[name])
    norm = lambda x, name: o.RmsNorm(eps=1e-5, affine="weight")(x, w[name])
    heads = lambda x, n: o.transpose(o.reshape(x, (1, 1, n, s.head)), (0, 2, 1, 3))
    x: Value = o.Gather(axis=0)(w["embed"], ids)
    after: list[Value] = []
    q_size, kv_size = s.heads * s.head, s.kv_heads * s.head
    for i in range(s.layers):
        q, k, v = o.split(linear(norm(x, f"{i}.norm1"), f"{i}.qkv"), 1, (q_size, kv_size, kv_size))
        q, k = o.Rope()(heads(q, s.heads), cos, sin), o.Rope()(heads(k, s.kv_heads), cos, sin)
        update = o.UpdateSlice(axis=2, start=s.position)
        k, v = update(caches[2 * i], k), update(caches[2 * i + 1], heads(v, s.kv_heads))
        after += [k, v]
        seen = [o.slice_(c, 2, 0, s.position + 1) for c in (k, v)]
        y = o.Attention(scale=s.head**-0.5, causal=True, offset=s.position)(q, *seen)
        x = o.add(x, linear(o.reshape(o.transpose(y, (0, 2, 1, 3)), (1, q_size)), f"{i}.out"))
        h = norm(x, f"{i}.norm2")
        x = o.add(x, linear(o.mul(o.silu(linear(h, f"{i}.gate")), linear(h, f"{i}.up")), f"{i}.down"))
    g.outputs = [linear(norm(x, "final"), "embed"), *after]
    g.donated = {first + i: 1 + i for i in range(len(after))}
    return g


def plain(s: Sizes, w: dict[str, torch.Tensor], caches: list[torch.Tensor], ids: Any, cos: Any, sin: Any) -> Any:
    """The same step in PyTorch."""

    def rope(x: Any) -> Any:
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    x = w["embed"][ids]
    sizes = (s.heads * s.head, s.kv_heads * s.head, s.kv_heads * s.head)
    for i in range(s.layers):
        q, k, v = F.linear(F.rms_norm(x, (s.width,), w[f"{i}.norm1"], 1e-5), w[f"{i}.qkv"]).split(sizes, 1)
        q, k, v = (t.view(1, 1, -1, s.head).transpose(1, 2) for t in (q, k, v))
        kc, vc = caches[2 * i : 2 * i + 2]
        kc[:, :, s.position : s.position + 1] = rope(k)
        vc[:, :, s.position : s.position + 1] = v
        y = F.scaled_dot_product_attention(rope(q), kc[:, :, : s.position + 1], vc[:, :, : s.position + 1], enable_gqa=True)
        x = x + F.linear(y.transpose(1, 2).reshape(1, -1), w[f"{i}.out"])
        h = F.rms_norm(x, (s.width,), w[f"{i}.norm2"], 1e-5)
        x = x + F.linear(F.silu(F.linear(h, w[f"{i}.gate"])) * F.linear(h, w[f"{i}.up"]), w[f"{i}.down"])
    return F.linear(F.rms_norm(x, (s.width,), w["final"], 1e-5), w.get("logits", w["embed"]))


def decode(table: Table, s: Sizes = SIZES) -> Any:
    w = weights(s)
    caches = [torch.randn(1, s.kv_heads, s.capacity, s.head, device="cuda", dtype=BF16) for _ in range(2 * s.layers)]
    angle = s.position * 500000.0 ** (-torch.arange(s.head // 2, device="cuda") / (s.head // 2))
    cos, sin, ids = angle.cos()[None].to(BF16), angle.sin()[None].to(BF16), torch.tensor([17], device="cuda")
    compiled: Any = tw.compile(build(s), target="cuda")
    result = compiled(ids, cos, sin, *w.values(), *caches)
    schedule = compiled.schedule({})
    want = plain(s, {n: t.float() for n, t in w.items()}, [c.float() for c in caches], ids, cos, sin)
    fused = torch.compile(lambda ids, cos, sin: plain(s, w, caches, ids, cos, sin))
    with torch.no_grad():
        peer = captured(lambda: fused(ids, cos, sin), 1)
    runs = {"ours": lambda: schedule.run(torch.cuda.current_stream().cuda_stream), "torch.compile": peer}
    times = timed(runs, 1, 25)
    nbytes = 2.0 * sum(t.numel() for t in w.values())
    table.add(f"decode step, {s.layers} layers, position {s.position}", times, nbytes=nbytes, err=error(result[0], want))
    table.rows[-1]["launches"] = len(schedule.steps)
    return compiled
