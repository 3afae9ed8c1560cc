"""The weights of a model under GGUF's names, as constants of a graph: matrices stay packed, vectors are f32."""
from __future__ import annotations

import mmap
from collections.abc import Hashable
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
from .tensors import check_tensors

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
    """Rows of q or k from interleaved pairs to halves."""

    def __init__(self, rows: Array, name: str, head_dim: int) -> None:
        super().__init__(name, TensorType(dtype(rows.dtype), rows.shape))
        self._rows, self._head_dim = rows, head_dim

    def make(self) -> Array:
        return _halves(self._rows, self._head_dim)

    @property
    def place(self) -> Hashable:
        return "halves", self._rows.__array_interface__["data"][0], self._rows.strides


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
        return _halves(values[:, None], self.config.head_dim)[:, 0] if self._interleaved(name) else values

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

    def _interleaved(self, name: str) -> bool:
        return self.config.interleaved_rows and name.rpartition(".")[0].endswith((".attn_q", ".attn_k"))

    def matrix(self, name: str, n: int, k: int, experts: int = 0) -> Matrix:
        """The matrix [n, k] (or [experts, n, k]) in its own format; rows of q and k in the order of whole halves."""
        if name not in self.matrices:
            tensor = self.tensor(name)
            want = (experts, n, k) if experts else (n, k)
            if tensor.shape != want:
                raise FormatError(f"llm: tensor {name!r} must have shape {list(want)}, got {list(tensor.shape)}")
            data = Reordered(tensor.data, name, self.config.head_dim) if self._interleaved(name) else ConstantData(tensor.data, name)
            self.matrices[name] = Matrix(data, tensor.format.name, n, k, experts)
        return self.matrices[name]


def _mapping(array: Array) -> mmap.mmap | None:
    """The read-only mapping of a file behind an array, if that is what it is."""
    base: Any = array
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    owner = base.obj if isinstance(base, memoryview) else base
    return owner if isinstance(owner, mmap.mmap) and memoryview(owner).readonly else None


def _halves(rows: Array, head_dim: int) -> Array:
    """Rows of each head from the order of interleaved pairs (0, d/2, 1, d/2+1, …) to that of two halves."""
    heads = len(rows) // head_dim
    pairs = rows.reshape(heads, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


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
