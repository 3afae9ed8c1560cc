"""The decode step of `gpu_decode` with all matrices in a packed format (Q4_K): activations and norms in f32, caches in bf16.

Weights are random blocks whose numbers have the size of a trained model's; they are constants of the program. A small model is checked
against PyTorch with dequantized weights (its activations are not rounded to codes: the norm of the difference is theirs).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gpu_decode import SIZES, Sizes, plain
from gpu_tools import BF16, Table, error, timed

import tilewright as tw
import tilewright.ops as o
from tilewright.core.dtypes import bf16, f32, i64
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.ops import quant

SMALL = Sizes(layers=2, vocab=4096)


def packed(rng: np.random.Generator, name: str, n: int, k: int, size: float) -> Any:
    """Random codes; scales that give numbers of about this size around zero."""
    fmt = quant.by_name(name)
    raw = np.frombuffer(rng.bytes(n * k // fmt.elements * fmt.bytes), np.uint8).reshape(n, k // fmt.elements, fmt.bytes).copy()
    for at, what in fmt.halves():
        scale = size / (130 if name == "Q4_K" else 600 if name == "Q6_K" else 70 if name == "Q8_0" else 5)
        middle = 7.5 if what == "minimum" else 1.0
        value = (scale * middle * rng.uniform(0.8, 1.2, (n, k // fmt.elements, 1))).astype(np.float16)
        raw[..., at : at + 2] = value.view(np.uint8)
    return raw.reshape(n, -1)


def weights(s: Sizes, name: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    matrix = lambda n, k: packed(rng, name, n, k, k**-0.5)
    norm = lambda: (1 + 0.1 * rng.standard_normal(s.width)).astype(np.float32)
    w: dict[str, Any] = {"embed": packed(rng, name, s.vocab, s.width, 1.0), "head": matrix(s.vocab, s.width), "final": norm()}
    for i in range(s.layers):
        w |= {
            f"{i}.norm1": norm(), f"{i}.norm2": norm(), f"{i}.qkv": matrix((s.heads + 2 * s.kv_heads) * s.head, s.width),
            f"{i}.out": matrix(s.width, s.heads * s.head), f"{i}.gate": matrix(s.inner, s.width), f"{i}.up": matrix(s.inner, s.width),
            f"{i}.down": matrix(s.width, s.inner),
        }  # fmt: skip
    return w


def build(s: Sizes, w: dict[str, Any], name: str) -> Graph:
    g = Graph("decode_packed")
    ids = g.input(TensorType(i64, (1,)), "ids")
    cos, sin = (g.input(TensorType(f32, (1, s.head // 2)), n) for n in ("cos", "sin"))
    first = len(g.inputs)
    cache = TensorType(bf16, (1, s.kv_heads, s.capacity, s.head))
    caches = [g.input(cache, f"{kind}{i}") for i in range(s.layers) for kind in "kv"]

    def linear(x: Value, key: str) -> Value:
        k = x.shape[-1]
        out: Value = o.QMatmul(format=name, n=w[key].shape[0], k=k)(x, g.constant(w[key], key), name=key)
        return out

    norm = lambda x, key: o.RmsNorm(eps=1e-5, affine="weight")(x, g.constant(w[key], key))
    heads = lambda x, n: o.transpose(o.reshape(x, (1, 1, n, s.head)), (0, 2, 1, 3))
    x: Value = o.QGather(format=name, k=s.width)(g.constant(w["embed"], "embed"), ids)
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
    g.outputs = [linear(norm(x, "final"), "head"), *after]
    g.donated = {first + i: 1 + i for i in range(len(after))}
    return g


def step(s: Sizes, name: str) -> tuple[Any, Any, tuple[Any, ...], dict[str, Any]]:
    """(session, logits, inputs, weights)."""
    w = weights(s, name)
    caches = [torch.randn(1, s.kv_heads, s.capacity, s.head, device="cuda", dtype=BF16) for _ in range(2 * s.layers)]
    angle = s.position * 500000.0 ** (-torch.arange(s.head // 2, device="cuda") / (s.head // 2))
    inputs = (torch.tensor([17], device="cuda"), angle.cos()[None], angle.sin()[None], *caches)
    compiled: Any = tw.compile(build(s, w, name), target="cuda")
    return compiled, compiled(*inputs)[0], inputs, w


def checked(name: str, s: Sizes = SMALL) -> float:
    """The error of a small model."""
    _, got, (ids, cos, sin, *caches), w = step(s, name)
    fmt = quant.by_name(name)
    wide = {n: torch.from_numpy(fmt.dequantize(x) if x.dtype == np.uint8 else x).cuda() for n, x in w.items()}
    want = plain(s, {**wide, "logits": wide["head"]}, [c.float() for c in caches], ids, cos, sin)
    return error(got, want)


def decode_packed(table: Table, s: Sizes = SIZES, names: tuple[str, ...] = ("Q4_K",)) -> None:
    """The ratio is to our own step in bf16, where the table has it."""
    bf16_steps = [row["us"] for row in table.rows if row["row"].startswith("decode step, ")]
    known = {"bf16": bf16_steps[0]} if bf16_steps else {}
    for name in names:
        wrong = checked(name)
        compiled, result, inputs, w = step(s, name)
        schedule = compiled.schedule({})
        keep = (result, inputs)
        runs: dict[str, Callable[[], Any]] = {"ours": lambda _=keep, s=schedule: s.run(torch.cuda.current_stream().cuda_stream)}
        times = {**timed(runs, 1, 25), **known}
        nbytes = float(sum(x.nbytes for n, x in w.items() if n != "embed"))
        table.add(f"decode step in {name}, {s.layers} layers, position {s.position}", times, nbytes=nbytes, err=wrong)
        table.rows[-1]["launches"] = len(schedule.steps)
        del compiled, schedule, keep, result, inputs
