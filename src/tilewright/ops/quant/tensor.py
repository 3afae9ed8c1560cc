"""A weight as it stands in its file: a name, a format, a shape, and the packed bytes (mapped, never expanded)."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from ...core.errors import InputError
from .base import BlockFormat
from .bits import F32, U8, Array


@dataclass(frozen=True, eq=False)
class PackedTensor:
    """`shape` is in NumPy order (the last axis is the packed one); `data` is u8[rows, row bytes], read-only."""

    name: str
    format: BlockFormat
    shape: tuple[int, ...]
    data: U8

    def __repr__(self) -> str:
        return f"PackedTensor({self.name!r}, {self.format}{list(self.shape)}, {self.nbytes} bytes)"

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def dequantize(self) -> F32:
        """All of it as f32 in its own shape: for tests, small vectors and tools, not for running a model."""
        return self.format.dequantize(self.data).reshape(self.shape)

    def row(self, index: int) -> F32:
        """One row (over all leading axes) as f32."""
        if not 0 <= index < self.rows:
            raise InputError(f"{self.name}: row must be in 0 .. {self.rows - 1}, got {index}")
        return self.format.dequantize(self.data[index])

    def array(self) -> Array:
        """A view with the numbers themselves, for formats without blocks (F32, F16, BF16, integers)."""
        if self.format.dtype is None:
            raise InputError(f"{self.name}: {self.format} is packed in blocks and has no view as plain numbers; use dequantize()")
        if self.format.dtype == "bfloat16":
            import ml_dtypes

            halves: Array = self.data.view(ml_dtypes.bfloat16)
            return halves.reshape(self.shape)
        return self.data.view(np.dtype(self.format.dtype)).reshape(self.shape)
