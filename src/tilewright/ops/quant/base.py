"""What a packed weight format is: a record with its size, the fields of one block, and how a block becomes numbers.

A tensor in a block format is a row of blocks per row of the matrix: `elements` numbers stand in `bytes` bytes. The records are
data: a kernel reads the offsets of the fields from here, `dequantise` is the definition it is tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import InputError

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Array = NDArray[Any]


@dataclass(frozen=True)
class Field:
    """A run of bytes in a block. `dtype` is how it is read (little endian); `meaning` says which element or group a bit belongs to."""

    name: str
    offset: int
    bytes: int
    dtype: str
    meaning: str

    @property
    def end(self) -> int:
        return self.offset + self.bytes


@dataclass(frozen=True)
class BlockFormat:
    """One packed format. `decode` and `encode` work on whole blocks: u8[n, bytes] <-> f32[n, elements].

    >>> FORMATS["Q8_0"].dequantise(np.zeros(68, np.uint8)).shape
    (64,)
    """

    name: str
    type_id: int
    elements: int
    bytes: int
    formula: str
    fields: tuple[Field, ...]
    decode: Callable[[U8], F32] = field(repr=False, compare=False)
    encode: Callable[[F32], U8] | None = field(default=None, repr=False, compare=False)
    dtype: str | None = None  # NumPy or ml_dtypes name where an element is a plain number of that type

    def __post_init__(self) -> None:
        end = 0
        for part in self.fields:
            if part.offset != end:
                raise AssertionError(f"{self.name}: field {part.name} starts at {part.offset}, the one before ends at {end}")
            end = part.end
        if end != self.bytes:
            raise AssertionError(f"{self.name}: fields end at {end}, a block has {self.bytes} bytes")

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], BlockFormat], tuple[str]]:
        return by_name, (self.name,)

    @property
    def bits(self) -> float:
        """Bits a weight takes."""
        return 8 * self.bytes / self.elements

    def offset(self, name: str) -> int:
        """The byte of a block at which the field `name` starts."""
        for part in self.fields:
            if part.name == name:
                return part.offset
        raise InputError(f"{self.name}: no field {name!r}; it has {', '.join(p.name for p in self.fields)}")

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements."""
        if columns % self.elements:
            raise InputError(f"{self.name}: a row must be a multiple of {self.elements} elements, got {columns}")
        return columns // self.elements * self.bytes

    def dequantise(self, raw: Array) -> F32:
        """Packed bytes, u8[..., row bytes] -> f32[..., columns]."""
        if raw.dtype != np.uint8:
            raise InputError(f"dequantise: {self.name} is read from u8 bytes, got {raw.dtype}{list(raw.shape)}")
        if raw.ndim == 0 or raw.shape[-1] % self.bytes:
            raise InputError(f"dequantise: {self.name} needs rows of a multiple of {self.bytes} bytes, got u8{list(raw.shape)}")
        out = np.empty((*raw.shape[:-1], raw.shape[-1] // self.bytes * self.elements), np.float32)
        blocks, flat = raw.reshape(-1, self.bytes), out.reshape(-1, self.elements)
        step = max(1, (1 << 18) // self.elements)  # temporaries stay in the cache, and far below the size of the tensor
        with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or NaN: the numbers then are, too
            for start in range(0, len(blocks), step):
                flat[start : start + step] = self.decode(np.ascontiguousarray(blocks[start : start + step]))
        return out

    def quantise(self, values: Array) -> U8:
        """Numbers f32[..., columns] -> packed bytes u8[..., row bytes], rounded as ggml's reference does."""
        if self.encode is None:
            raise InputError(f"quantise: {self.name} can only be read; writable: {known(writable=True)}")
        x = np.ascontiguousarray(values, np.float32)
        if x.ndim == 0:
            raise InputError(f"quantise: {self.name} needs at least one axis, got a scalar")
        out = np.empty((*x.shape[:-1], self.row_bytes(x.shape[-1])), np.uint8)
        if self.elements > 1 and not np.isfinite(x).all():
            raise InputError(f"quantise: {self.name} holds finite numbers only, got NaN or infinity in f32{list(x.shape)}")
        blocks, flat = x.reshape(-1, self.elements), out.reshape(-1, self.bytes)
        step = max(1, (1 << 18) // self.elements)
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), step):
                flat[start : start + step] = self.encode(blocks[start : start + step])
        return out


FORMATS: dict[str, BlockFormat] = {}
BY_ID: dict[int, BlockFormat] = {}


def register(fmt: BlockFormat) -> BlockFormat:
    if fmt.name in FORMATS or fmt.type_id in BY_ID:
        raise AssertionError(f"{fmt.name} ({fmt.type_id}) is registered twice")
    FORMATS[fmt.name] = fmt
    BY_ID[fmt.type_id] = fmt
    return fmt


def known(*, writable: bool = False) -> str:
    """The names of all formats (or of those that can be written), as messages list them."""
    return " ".join(f.name for _, f in sorted(BY_ID.items()) if f.encode or not writable)


def by_name(name: str) -> BlockFormat:
    """The format called `name` (upper or lower case)."""
    found = FORMATS.get(name.upper())
    if found is None:
        raise InputError(f"format: no format {name!r}; known: {known()}")
    return found


def layout(*parts: tuple[str, int, str, str]) -> tuple[Field, ...]:
    """Fields one after the other, from (name, bytes, dtype, meaning)."""
    fields, at = [], 0
    for name, size, dtype, meaning in parts:
        fields.append(Field(name, at, size, dtype, meaning))
        at += size
    return tuple(fields)


def f16(part: U8) -> F32:
    """Two bytes per row -> f32[n, 1]."""
    return np.ascontiguousarray(part).view(np.float16).astype(np.float32)


def shifts(*counts: int, dtype: type[np.unsignedinteger[Any]] = np.uint8) -> Array:
    return np.array(counts, dtype)


def nibbles(qs: U8, group: int) -> U8:
    """Four-bit numbers of u8[n, m]: in each run of `group` bytes first all low nibbles, then all high ones -> u8[n, 2m]."""
    parts = qs.reshape(len(qs), -1, 1, group) >> shifts(0, 4)[:, None]
    return (parts & np.uint8(15)).reshape(len(qs), -1)


def pairs(qs: U8, group: int) -> U8:
    """Two-bit numbers of u8[n, m], `group` bytes at a time, lowest bits first -> u8[n, 4m]."""
    parts = qs.reshape(len(qs), -1, 1, group) >> shifts(0, 2, 4, 6)[:, None]
    return (parts & np.uint8(3)).reshape(len(qs), -1)


def single_bits(qh: U8, group: int) -> U8:
    """Bits of u8[n, m], `group` bytes at a time, bit 0 of all of them first -> u8[n, 8m]."""
    parts = qh.reshape(len(qh), -1, 1, group) >> shifts(*range(8))[:, None]
    return (parts & np.uint8(1)).reshape(len(qh), -1)


def byte_bits(qh: U8) -> U8:
    """Bits of u8[n, m], byte by byte, bit 0 first -> u8[n, 8m]."""
    return np.unpackbits(qh, axis=-1, bitorder="little")


def round_half_away(x: F32) -> F32:
    """C's roundf."""
    whole = np.abs(x)
    floor = np.floor(whole)
    rounded: F32 = np.sign(x) * (floor + np.floor(np.float32(2) * (whole - floor)))
    return rounded


def inverse(d: F32) -> F32:
    """1/d, and 0 for 0."""
    result: F32 = np.where(d == 0, np.float32(0), np.float32(1) / d)
    return result
