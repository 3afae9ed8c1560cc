"""The weights of a model under GGUF's names, as constants of a graph: matrices stay packed, vectors are f32."""

from __future__ import annotations

import mmap
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.dtypes import dtype
from ..core.errors import FormatError
from ..frontend.gguf import GGUFFile
from ..ir.types import TensorType
from ..ops.quant import FORMATS, PackedTensor
from ..ops.structure import ConstantData, Derived
from .config import ModelConfig

Shape = tuple[int, ...]
READ = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")  # by `gguf_config.py`
JOINED = ("phi3", "gpt2")  # architectures with q, k and v in one matrix; gate and up, where there are both
NORMED = ("qwen3", "qwen3moe", "gemma3", "qwen3next")  # architectures with norms of q and k


def check_tensors(shapes: Mapping[str, Shape], config: ModelConfig, source: str) -> None:
    """FormatError for a tensor that is missing, one too many, or of another shape than the configuration says."""
    known, kind = {name for name in READ if name in shapes}, f"a {config.architecture} model of {config.layers} layers"
    for name, shape, needed in expected(config, shapes):
        known.add(name)
        found = shapes.get(name)
        if found is None and needed:
            raise FormatError(f"llm: tensor {name!r} is missing; {kind} needs it ({source})")
        if found is not None and needed is False:
            raise FormatError(f"llm: tensor {name!r} has no place in this model, by its configuration ({source})")
        if found is not None and found != shape:
            raise FormatError(f"llm: tensor {name!r} must have shape {list(shape)}, got {list(found)} ({source})")
    if others := shapes.keys() - known:
        raise FormatError(f"llm: no place for tensor {min(others)!r:.200} in {kind} ({source})")


def expected(c: ModelConfig, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape, bool | None]]:
    """Name and shape of every tensor, and whether it must be there (None: it may)."""
    width, wide, narrow = c.width, c.heads * c.head_dim, c.kv_heads * c.head_dim
    layered = c.norm == "layer"

    def norm(name: str) -> Iterator[tuple[str, Shape, bool | None]]:
        yield f"{name}.weight", (width,), True
        yield f"{name}.bias", (width,), layered

    def linear(name: str, n: int, k: int, bias: bool | None) -> Iterator[tuple[str, Shape, bool | None]]:
        yield f"{name}.weight", (n, k), True
        yield f"{name}.bias", (n,), bias

    yield "token_embd.weight", (c.vocab, width), True
    yield from norm("output_norm")
    yield "output.weight", (c.vocab, width), None if c.tied is None else not c.tied
    if c.learned_positions:
        yield "position_embd.weight", (c.context, width), True
    inner, output, feed = c.biases
    for i in range(c.layers):
        name = f"blk.{i}."
        yield from norm(name + "attn_norm")
        if c.layer_mixer(i) != "recurrent":
            if c.architecture in JOINED and name + "attn_qkv.weight" in shapes:
                yield from linear(name + "attn_qkv", wide + 2 * narrow, width, inner)
            else:
                for part, n in (("attn_q", wide * (2 if c.gated_attention else 1)), ("attn_k", narrow), ("attn_v", narrow)):
                    yield from linear(name + part, n, width, inner)
            for part in ("attn_q_norm", "attn_k_norm"):
                yield f"{name}{part}.weight", (c.head_dim,), c.architecture in NORMED
            yield from linear(name + "attn_output", width, wide, output)
        if c.layer_mixer(i) != "attention":
            yield from _recurrent(c, name, shapes)
        if not c.feeds:
            continue
        yield from norm(name + c.feed_norm)
        if c.architecture.startswith("gemma"):
            yield from norm(name + "post_attention_norm")
            yield from norm(name + "post_ffw_norm")
        yield from _feed_forward(c, name, shapes, feed)


def _recurrent(c: ModelConfig, name: str, shapes: Mapping[str, Shape]) -> Iterator[tuple[str, Shape, bool | None]]:
    """The tensors of a recurrence. GGUF gives numbers of heads an axis more."""
    r, width = c.recurrence, c.width
    assert r is not None

    def numbers(tensor: str, *kinds: Shape) -> tuple[str, Shape, bool]:
        found = shapes.get(name + tensor)
        return name + tensor, found if found in kinds else kinds[0], True

    yield name + "ssm_conv1d.weight", (r.channels, r.taps), True
    yield name + "ssm_conv1d.bias", (r.channels,), r.conv_bias
    yield name + "ssm_out.weight", (width, r.inner), True
    yield name + "ssm_out.bias", (width,), r.biases and None
    if r.kind == "mamba":
        yield name + "ssm_in.weight", (2 * r.inner, width), True
        yield name + "ssm_in.bias", (2 * r.inner,), r.biases and None
        yield name + "ssm_x.weight", (r.rank + 2 * r.state, r.inner), True
        yield name + "ssm_dt.weight", (r.inner, r.rank), True
        yield name + "ssm_dt.bias", (r.inner,), True
        yield name + "ssm_a", (r.inner, r.state), True
        yield name + "ssm_d", (r.inner,), True
        return
    yield name + "ssm_dt.bias", (r.heads,), True
    yield numbers("ssm_a", (r.heads,), (r.heads, 1))
    if r.kind == "mamba2":
        yield name + "ssm_in.weight", (r.inner + r.channels + r.heads, width), True
        yield name + "ssm_in.bias", (r.inner + r.channels + r.heads,), r.biases and None
        yield numbers("ssm_d", (r.heads,), (r.heads, 1))
        if r.norm_groups:
            yield numbers("ssm_norm.weight", (r.inner,), (r.norm_groups, r.inner // r.norm_groups))
        return
    yield name + "ssm_norm.weight", (r.inner // r.heads,), True
    yield name + "ssm_ba.weight", (2 * r.heads, width), True
    whole = name + "ssm_in.weight" in shapes  # transformers and older GGUF files have one matrix, group by group
    yield name + "ssm_in.weight", (r.channels + r.inner, width), whole
    yield name + "attn_qkv.weight", (r.channels, width), not whole
    yield name + "attn_gate.weight", (r.inner, width), not whole


def _feed_forward(c: ModelConfig, name: str, shapes: Mapping[str, Shape], bias: bool | None) -> Iterator[tuple[str, Shape, bool | None]]:
    """The size between the matrices is what the configuration says; else what the first of them has."""
    def size(tensor: str, axis: int) -> int:
        found = shapes.get(tensor, ())
        return c.hidden if c.hidden is not None else found[axis] if len(found) > axis else 1

    if c.experts:
        hidden = size(name + "ffn_gate_exps.weight", 1)
        yield name + "ffn_gate_inp.weight", (c.experts, c.width), True
        for part, n, k in (("gate", hidden, c.width), ("up", hidden, c.width), ("down", c.width, hidden)):
            yield f"{name}ffn_{part}_exps.weight", (c.experts, n, k), True
        if c.shared_expert:
            found = shapes.get(name + "ffn_up_shexp.weight", ())
            hidden, gate = found[0] if found else 1, name + "ffn_gate_inp_shexp.weight"
            yield gate, (1, c.width) if shapes.get(gate) == (1, c.width) else (c.width,), True
            for part, n, k in (("gate", hidden, c.width), ("up", hidden, c.width), ("down", c.width, hidden)):
                yield f"{name}ffn_{part}_shexp.weight", (n, k), True
        return
    joined = c.gated and c.architecture in JOINED and name + "ffn_gate.weight" not in shapes
    hidden = size(name + "ffn_down.weight", 1)
    parts = [("ffn_up", hidden * (2 if joined else 1), c.width), ("ffn_down", c.width, hidden)]
    for part, n, k in parts if joined or not c.gated else [("ffn_gate", hidden, c.width), *parts]:
        yield f"{name}{part}.weight", (n, k), True
        yield f"{name}{part}.bias", (n,), bias


Array = np.ndarray[Any, Any]
NUMBERS = (".ssm_a", ".ssm_d", ".ssm_conv1d.weight", ".ssm_norm.weight", ".ffn_gate_inp_shexp.weight")  # though of two axes


@dataclass(frozen=True, eq=False)
class Matrix:
    """A packed matrix [n, k]; `data` is u8[n, row bytes]. With `experts`, n counts the rows of one expert."""

    data: ConstantData
    format: str
    n: int
    k: int
    experts: int = 0


class Reordered(Derived):
    """Rows of a matrix, packed or not, in another order."""

    def __init__(self, rows: Array, name: str, order: Array) -> None:
        super().__init__(name, TensorType(dtype(rows.dtype), (len(order), *rows.shape[1:])))
        self._rows, self._order = rows, order

    def make(self) -> Array:
        found: Array = self._rows[self._order]
        return found

    @property
    def place(self) -> Hashable:
        return "rows", self._rows.__array_interface__["data"][0], self._rows.strides, self._order.tobytes()


class Weights:
    """Tensors by GGUF name, checked against the configuration. Matrices are made once, so that tied users share them."""

    def __init__(self, tensors: dict[str, PackedTensor], config: ModelConfig, source: str = "the model") -> None:
        check_tensors({name: t.shape for name, t in tensors.items()}, config, source)
        self.tensors, self.config = tensors, config
        self.matrices: dict[str, Matrix] = {}  # those that were asked for

    @staticmethod
    def from_gguf(file: GGUFFile, config: ModelConfig) -> Weights:
        return Weights(dict(file.tensors), config, file.metadata.source)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def is_f32(self) -> bool:
        """Nothing of the model is rounded to fewer bits."""
        return all(t.format.name == "F32" for t in self.tensors.values())

    def tensor(self, name: str) -> PackedTensor:
        found = self.tensors.get(name)
        if found is None:
            raise FormatError(f"llm: tensor {name!r} is missing; a {self.config.architecture} model needs it")
        return found

    def vector(self, name: str, size: int) -> Array:
        tensor = self.tensor(name)
        if tensor.shape != (size,):
            raise FormatError(f"llm: tensor {name!r} must have {size} elements, got shape {list(tensor.shape)}")
        values = np.ascontiguousarray(tensor.dequantize(), np.float32)
        order = self._order(name, size)
        return values if order is None else values[order]

    def numbers(self, name: str, *shape: int) -> Array:
        """The values of a tensor that is no matrix, f32 in this shape."""
        return np.ascontiguousarray(self.tensor(name).dequantize(), np.float32).reshape(shape)

    @staticmethod
    def is_numbers(name: str, shape: tuple[int, ...]) -> bool:
        """Whether a tensor is read as numbers: a program may have them as constants of its own."""
        return len(shape) < 2 or name.endswith(NUMBERS)

    def forget_pages(self) -> None:
        """Let the system drop the pages of mapped files from this process: what kernels still read there is mapped again on demand."""
        if not hasattr(mmap.mmap, "madvise"):
            return
        for mapping in {id(m): m for t in self.tensors.values() if (m := _mapping(t.data)) is not None}.values():
            mapping.madvise(mmap.MADV_DONTNEED)

    def _order(self, name: str, n: int) -> Array | None:
        """The rows of a tensor in the order that the decoder has them, where the file has another: the pairs of a rope apart, or those
        of a delta net that queries, keys and values (or the gates) have, of all groups."""
        stem, r = name.rpartition(".")[0], self.config.recurrence
        if self.config.interleaved_rows and stem.endswith((".attn_q", ".attn_k")):
            return np.arange(n).reshape(-1, self.config.head_dim // 2, 2).swapaxes(1, 2).reshape(-1)
        if name in self.tensors or r is None or not stem.endswith((".attn_qkv", ".attn_gate")):
            return None
        values = r.inner // r.groups
        sizes = (r.state, r.state, values, values)
        *mixed, gates = np.split(np.arange(r.groups * sum(sizes)).reshape(r.groups, -1), np.cumsum(sizes)[:-1], axis=1)
        return gates.reshape(-1) if stem.endswith("gate") else np.concatenate([part.reshape(-1) for part in mixed])

    def matrix(self, name: str, n: int, k: int, experts: int = 0) -> Matrix:
        """The matrix [n, k] (or [experts, n, k]) in its own format, its rows in the decoder's order."""
        if name not in self.matrices:
            order = self._order(name, n)
            tensor = self.tensor(name if order is None or name in self.tensors else f"{name.rpartition('.attn_')[0]}.ssm_in.weight")
            want = (experts, n, k) if experts else (n, k)
            if order is None and tensor.shape != want:
                raise FormatError(f"llm: tensor {name!r} must have shape {list(want)}, got {list(tensor.shape)}")
            if tensor.format.dtype is not None and tensor.format.name not in PLAIN.values():
                raise FormatError(f"llm: tensor {name!r} must be quantized or F32, F16 or BF16, got {tensor.format.name}")
            data = ConstantData(tensor.data, name) if order is None else Reordered(tensor.data, name, order)
            self.matrices[name] = Matrix(data, tensor.format.name, n, k, experts)
        return self.matrices[name]


def _mapping(array: Array) -> mmap.mmap | None:
    """The read-only mapping of a file behind an array, if that is what it is."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    return owner if isinstance(owner, mmap.mmap) and memoryview(owner).readonly else None


PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}


def plain_tensor(name: str, array: Array, shown: str = "", where: str = "") -> PackedTensor:
    """An array of f32, f16 or bf16 as a tensor in that format. An error calls it `shown`."""
    kind = PLAIN.get(str(array.dtype))
    if kind is None:
        raise FormatError(f"llm: tensor {shown or repr(name)} must be f32, f16 or bf16, got {array.dtype}{where}")
    if not array.size:
        raise FormatError(f"llm: tensor {shown or repr(name)} is empty: shape {list(array.shape)}{where}")
    whole = np.ascontiguousarray(array)
    rows = whole.reshape(-1, whole.shape[-1]) if whole.ndim > 1 else whole.reshape(1, -1)
    return PackedTensor(name, FORMATS[kind], tuple(int(d) for d in whole.shape), rows.view(np.uint8).reshape(len(rows), -1))
