"""Decode steps of small Llama-like models as graphs, with their inputs: what kernels of a whole step are tested on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright.ops as o
from tilewright.core.dtypes import DType, bf16, f32, i64
from tilewright.ir.graph import Graph, Value
from tilewright.ir.types import TensorType
from tilewright.ops import quant

Array = Any


@dataclass(frozen=True)
class Sizes:
    layers: int = 2
    width: int = 264
    heads: int = 2
    kv_heads: int = 1
    head: int = 32
    inner: int = 272
    vocab: int = 40
    capacity: int = 24
    position: int = 17


class Model:
    """A graph and the arrays of a call. With `packed`, matrices are constants in that format and activations f32; else all is `dtype`."""

    def __init__(self, s: Sizes, rng: np.random.Generator, packed: str = "", dtype: DType = bf16) -> None:
        self.s, self.rng, self.packed, self.graph = s, rng, packed, Graph("decode")
        self.arrays: list[Array] = []
        self.dtype = f32 if packed else dtype
        ids = self._input(np.array([3]), "ids")
        angle = s.position * 10000.0 ** (-np.arange(s.head // 2) / (s.head // 2))
        cos, sin = (self._input(f(angle)[None].astype(self.dtype.np), n) for n, f in (("cos", np.cos), ("sin", np.sin)))
        embed = self._matrix("embed", s.vocab, s.width)
        x: Value = o.QGather(format=packed, k=s.width)(embed, ids) if packed else o.Gather(axis=0)(embed, ids)
        after: list[Value] = []
        donated: list[Value] = []
        q_size, kv_size = s.heads * s.head, s.kv_heads * s.head
        for i in range(s.layers):
            row = self._linear(self._norm(x, f"norm1.{i}"), f"qkv.{i}", q_size + 2 * kv_size)
            q, k, v = o.split(row, 1, (q_size, kv_size, kv_size))
            q, k = o.Rope()(self._heads(q, s.heads), cos, sin), o.Rope()(self._heads(k, s.kv_heads), cos, sin)
            shape = (1, s.kv_heads, s.capacity, s.head)
            caches = [self._input(rng.standard_normal(shape).astype(np.float32).astype(bf16.np), f"{n}{i}") for n in "kv"]
            donated += caches
            update = o.UpdateSlice(axis=2, start=s.position)
            k, v = update(caches[0], k), update(caches[1], self._heads(v, s.kv_heads))
            after += [k, v]
            seen = [o.slice_(c, 2, 0, s.position + 1) for c in (k, v)]
            y = o.Attention(scale=s.head**-0.5, causal=True, offset=s.position)(q, *seen)
            x = o.add(x, self._linear(o.reshape(o.transpose(y, (0, 2, 1, 3)), (1, q_size)), f"out.{i}", s.width))
            h = self._norm(x, f"norm2.{i}")
            gate, up = (self._linear(h, f"{n}.{i}", s.inner) for n in ("gate", "up"))
            x = o.add(x, self._linear(o.mul(o.silu(gate), up), f"down.{i}", s.width))
        self.graph.outputs = [self._linear(self._norm(x, "final"), "head", s.vocab), *after]
        self.graph.donated = {self.graph.inputs.index(c): 1 + i for i, c in enumerate(donated)}

    def _input(self, array: Array, name: str) -> Value:
        self.arrays.append(array)
        kinds = {np.dtype(np.int64): i64, np.dtype(np.float32): f32}
        return self.graph.input(TensorType(kinds.get(array.dtype, bf16), array.shape), name)

    def _matrix(self, name: str, n: int, k: int) -> Value:
        if not self.packed:
            return self._input((self.rng.standard_normal((n, k)) * k**-0.5).astype(np.float32).astype(self.dtype.np), name)
        fmt = quant.by_name(self.packed)
        raw = np.frombuffer(self.rng.bytes(n * k // fmt.elements * fmt.bytes), np.uint8).reshape(n, k // fmt.elements, fmt.bytes).copy()
        for at, what in fmt.halves():
            scale = k**-0.5 / 130 * (7.5 if what == "minimum" else 1.0)
            value = (scale * self.rng.uniform(0.8, 1.2, (n, k // fmt.elements, 1))).astype(np.float16)
            raw[..., at : at + 2] = value.view(np.uint8)
        return self.graph.constant(raw.reshape(n, -1), name)

    def _linear(self, x: Value, name: str, n: int) -> Value:
        k = x.shape[-1]
        assert isinstance(k, int)
        matrix = self._matrix(name, n, k)
        out: Value = o.QMatmul(format=self.packed, n=n, k=k)(x, matrix) if self.packed else o.Matmul(transpose_b=True)(x, matrix)
        return out

    def _norm(self, x: Value, name: str) -> Value:
        weight = (1 + 0.1 * self.rng.standard_normal(self.s.width)).astype(self.dtype.np)
        made = self.graph.constant(weight, name) if self.packed else self._input(weight, name)
        out: Value = o.RmsNorm(eps=1e-5, affine="weight")(x, made)
        return out

    def _heads(self, x: Value, n: int) -> Value:
        return o.transpose(o.reshape(x, (1, 1, n, self.s.head)), (0, 2, 1, 3))
