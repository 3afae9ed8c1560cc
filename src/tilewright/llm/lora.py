"""LoRA adapters: x·W + s·(x·A)·B beside the packed weights, which stay as they are.

A and B are inputs of the program, so one program serves every adapter that changes the same kinds of matrices, of any rank: switching
costs nothing. The scale s is part of B.
"""
from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import ops as o
from ..core import dtypes as dt
from ..core.dims import sym
from ..core.errors import FormatError
from ..ir.graph import Value
from ..ir.types import TensorType
from .fields import Fields
from .hf import place_of

if TYPE_CHECKING:
    from .config import ModelConfig
    from .decoder import Decoder

Array = np.ndarray[Any, Any]
MAX_RANK = 1024
# Settings that change what an adapter does, and the values with which they do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {"peft_type": ("LORA",), "use_dora": (False,), "alpha_pattern": ({},), "bias": ("none",),
                                       "modules_to_save": ([],), "lora_bias": (False,), "layer_replication": ()}


@dataclass(eq=False)
class Adapter:
    """Pairs (A [k, r], B [r, n], scaled) by the name of the matrix they change; `rank` is the largest r."""

    name: str
    rank: int
    pairs: dict[str, tuple[Array, Array]]

    @property
    def kinds(self) -> frozenset[str]:
        """What sorts of matrices it changes: attn_q, ffn_up …"""
        return frozenset(name.rsplit(".", 1)[-1] for name in self.pairs)

    def __repr__(self) -> str:
        return f"<Adapter {self.name}: rank {self.rank}, {len(self.pairs)} matrices ({' '.join(sorted(self.kinds))})>"


def load_adapter(path: str | Path, config: ModelConfig, *, scale: float | None = None) -> Adapter:
    """Read an adapter in PEFT's layout: a safetensors file, or a folder with one. adapter_config.json beside it gives the scale
    (alpha / rank) unless `scale` does; without both it is 1."""
    from ..frontend.safetensors import open_safetensors
    from ..frontend.safetensors.folder import read_json

    place = Path(path)
    file = place / "adapter_model.safetensors" if os.path.isdir(place) else place
    if not os.path.isfile(file):
        raise FormatError(f"lora: no adapter at {str(file)!r}")
    beside = file.parent / "adapter_config.json"
    settings = Fields(read_json(beside) if beside.is_file() else {}, "adapter_config.json", str(beside))
    for key, values in NEUTRAL.items():
        settings.only(key, *values)
    tensors, others = open_safetensors(file)
    if others:
        raise FormatError(f"lora: tensor {next(iter(others))!r:.200} has a type that is not supported ({file})")
    halves: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        stem, part = _parse(name)
        parts = halves.setdefault(place_of(stem, config), {})
        if part in parts:
            raise FormatError(f"lora: tensor {name!r:.200} stands twice, under different names ({file})")
        parts[part] = tensor.array().astype(np.float32)
    return make_adapter(file.stem, halves, config, settings, scale)


def make_adapter(name: str, halves: Mapping[str, Mapping[str, Array]], config: ModelConfig, settings: Fields,
                 scale: float | None) -> Adapter:
    """Check the pairs; the scale becomes part of B."""
    if not halves:
        raise FormatError("lora: the file holds no adapter")
    ranks = {k: v["A"].shape[0] for k, v in halves.items() if set(v) == {"A", "B"} and v["A"].ndim == v["B"].ndim == 2}
    missing = sorted(set(halves) - set(ranks))
    if missing:
        raise FormatError(f"lora: {missing[0]} needs one matrix A and one matrix B")
    rank = max(ranks.values())
    if not 1 <= min(ranks.values()) <= rank <= MAX_RANK:
        raise FormatError(f"lora: the rank must be in 1..{MAX_RANK}, got {min(ranks.values())}..{rank}")
    pairs: dict[str, tuple[Array, Array]] = {}
    for key, parts in halves.items():
        a, b = parts["A"], parts["B"]
        if b.shape[1] != a.shape[0]:
            raise FormatError(f"lora: {key} has A {list(a.shape)} and B {list(b.shape)}, whose ranks differ")
        own = ranks[key]
        alpha = settings.number("lora_alpha", own, low=-1e6, high=1e6)
        factor = scale if scale is not None else alpha / (sqrt(own) if settings.flag("use_rslora", False) else own)
        pairs[key] = a.T, b.T * np.float32(factor)
    return Adapter(name, rank, pairs)


def _parse(name: str) -> tuple[str, str]:
    """`base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight` -> `model.layers.0.self_attn.q_proj`, `A`."""
    stem, found, rest = name.partition(".lora_")
    if not found or rest[:1] not in ("A", "B") or not rest.endswith("weight"):
        raise FormatError(f"lora: tensor {name!r:.200} is not part of a LoRA adapter of linear layers")
    return stem.removeprefix("base_model.model."), rest[0]


@dataclass
class LoraInputs:
    """The hook of a `Decoder` that adds the inputs, and later the arrays for them in their order."""

    kinds: frozenset[str]
    slots: list[tuple[str, int, int]] = field(default_factory=list)  # name, k, n
    _zeros: dict[tuple[int, int], Array] = field(default_factory=dict)

    def __call__(self, decoder: Decoder, name: str, x: Value, y: Value) -> Value:
        if name.rsplit(".", 1)[-1] not in self.kinds:
            return y
        k, n = x.shape[-1], y.shape[-1]
        rank = sym("R", 1, MAX_RANK)
        a = decoder.graph.input(TensorType(dt.f32, (k, rank)), f"{name}.a")
        b = decoder.graph.input(TensorType(dt.f32, (rank, n)), f"{name}.b")
        self.slots.append((name, k, n))
        return o.add(y, o.matmul(o.matmul(x, a), b))

    def arrays(self, adapter: Adapter) -> list[Array]:
        """A and B of every slot; zeros where the adapter changes nothing."""
        if others := adapter.pairs.keys() - {name for name, _, _ in self.slots}:
            raise FormatError(f"lora: {min(others)} is no linear layer that takes an adapter in this model")
        out: list[Array] = []
        for name, k, n in self.slots:
            pair = adapter.pairs.get(name)
            if pair is not None and (pair[0].shape[0] != k or pair[1].shape[1] != n):
                raise FormatError(f"lora: {name} is [{n},{k}] in the model, but the adapter is for [{pair[1].shape[1]},{pair[0].shape[0]}]")
            out += (self._zero(k, adapter.rank), self._zero(adapter.rank, n)) if pair is None else _padded(*pair, adapter.rank)
        return out

    def _zero(self, rows: int, columns: int) -> Array:
        return self._zeros.setdefault((rows, columns), np.zeros((rows, columns), np.float32))


def _padded(a: Array, b: Array, rank: int) -> tuple[Array, Array]:
    """A pair of any rank as one of this rank."""
    left, right = np.zeros((len(a), rank), np.float32), np.zeros((rank, b.shape[1]), np.float32)
    left[:, : a.shape[1]], right[: len(b)] = a, b
    return left, right
