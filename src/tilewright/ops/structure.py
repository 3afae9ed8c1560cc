"""Sources of a graph: inputs and constants."""
from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Any

import numpy as np

from ..core.dtypes import dtype
from ..core.hashing import blake2b
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
        hasher = blake2b(str(self.type).encode() + b"\0", digest_size=16)
        if self.array.size:
            hasher.update(np.ascontiguousarray(self.array).reshape(-1).view(np.uint8).data)
        return hasher.hexdigest()

    @property
    def place(self) -> Hashable:
        """Where the bytes lie: constants of one type and place are the same."""
        return self.array.__array_interface__["data"][0], self.array.strides

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
