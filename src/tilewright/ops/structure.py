"""Sources of a graph: inputs and constants."""
from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import cached_property
from typing import Any
from weakref import ref

import numpy as np

from ..core.dtypes import DType, bf16, dtype, f16
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
    def content(self) -> bytes:
        """What two constants of one type share where they are equal; of small ones."""
        return self.array.tobytes()

    @property
    def number(self) -> Any:
        """The one element, as a Python number."""
        element = self.array.reshape(-1)[0]
        return float(element) if self.type.dtype.is_float else element.item()

    @property
    def place(self) -> Hashable:
        """Where the bytes lie: constants of one type and place are the same."""
        return self.array.__array_interface__["data"][0], self.array.strides

    def __str__(self) -> str:
        return f"@{self.name}"


class Number(ConstantData):
    """A number of a model in 16 bits that its dtype does not hold. PyTorch computes with it in f32 and rounds results only, and so do
    kernels, which compute in f32: `number` is what they read, `array` the nearest element."""

    def __init__(self, number: float, dtype: DType, name: str = "scalar") -> None:
        with np.errstate(over="ignore"):
            super().__init__(np.asarray(number).astype(dtype.np), name)
        self._number = float(np.float32(number))

    @staticmethod
    def of(number: float, dtype: DType, name: str = "scalar") -> ConstantData:
        """A rank-0 constant: plain where the dtype holds the number."""
        made = Number(number, dtype, name)
        plain = dtype not in (f16, bf16) or made._number == float(made.array) or made._number != made._number
        return ConstantData(made.array, name) if plain else made

    @cached_property
    def digest(self) -> str:
        return f"{super().digest}:{self._number!r}"

    @property
    def content(self) -> bytes:
        return super().content + repr(self._number).encode()

    @property
    def number(self) -> float:
        return self._number


class Derived(ConstantData):
    """A constant made of others whenever it is read: kernels keep packed forms of their own, so it need not stay in memory."""

    def __init__(self, name: str, type_: TensorType) -> None:
        self.name, self.type = name, type_
        self._made: ref[Any] | None = None

    def make(self) -> np.ndarray[Any, Any]:
        raise NotImplementedError

    @property
    def array(self) -> np.ndarray[Any, Any]:  # type: ignore[override]
        made = None if self._made is None else self._made()
        if made is None:
            made = self.make()
            self._made = ref(made)
        return made

    @property
    def place(self) -> Hashable:
        return id(self)


class Seen(Derived):
    """The bytes of a constant as elements of another dtype."""

    def __init__(self, of: ConstantData, type_: TensorType) -> None:
        super().__init__(of.name, type_)
        self.of = of

    def make(self) -> np.ndarray[Any, Any]:
        return np.ascontiguousarray(self.of.array).view(self.type.dtype.np).reshape(self.type.shape)

    @property
    def place(self) -> Hashable:
        return "seen", self.of.place, self.type


class Joined(Derived):
    """Constants one after the other along an axis."""

    def __init__(self, parts: Sequence[ConstantData], axis: int) -> None:
        shape = list(parts[0].type.shape)
        shape[axis] = sum(p.type.shape[axis] for p in parts)
        super().__init__("+".join(p.name for p in parts), TensorType(parts[0].type.dtype, tuple(shape)))
        self.parts, self.axis = tuple(parts), axis

    def make(self) -> np.ndarray[Any, Any]:
        return np.concatenate([p.array for p in self.parts], axis=self.axis)

    @property
    def place(self) -> Hashable:
        return "joined", tuple(p.place for p in self.parts), self.axis


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
