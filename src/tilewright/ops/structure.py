"""Sources of a graph: inputs and constants."""
from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from ..core.dtypes import dtype
from ..ir.types import TensorType
from .base import Op, Traits, register


class ConstantData:
    """The bytes of a constant, shared by every node and graph that uses it, read-only by convention.

    Identity is object identity; `digest` is computed when a structural hash asks for it.
    """

    def __init__(self, array: Any, name: str = "const") -> None:
        self.array: np.ndarray[Any, Any] = np.asarray(array)
        self.name = name
        self.type = TensorType(dtype(self.array.dtype), tuple(int(n) for n in self.array.shape))

    @cached_property
    def digest(self) -> str:
        plain = np.ascontiguousarray(self.array)
        return hashlib.blake2b(plain.view(np.uint8).data if plain.size else b"", digest_size=16, person=str(self.type)[:16].encode()).hexdigest()

    def __str__(self) -> str:
        return f"@{self.name}"


@register
class Input(Op):
    """A value given at the call."""

    type: TensorType
    traits = Traits(source=True)

    def infer(self) -> TensorType:
        return self.type


@register
class Constant(Op):
    """A value known at compile time: a weight, a buffer, a folded result."""

    data: ConstantData
    traits = Traits(source=True)

    def infer(self) -> TensorType:
        return self.data.type

    def ref(self) -> Any:
        return self.data.array
