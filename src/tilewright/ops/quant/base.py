"""What a packed weight format is: a record that says where the numbers of a block lie and how they become weights.

A tensor in a block format is a row of blocks per row of the matrix: `elements` weights stand in `bytes` bytes, and

    weight = scale[group] * number (+ minimum[group])

where `number` is the quantized value itself, an entry of a small table, a float of eight bits or an entry of a codebook (`numbers`). The
records are data: `dequantize` follows from them and is what kernels, which follow from them too, are tested against.

A weight as it stands in its file: a name, a format, a shape, and the packed bytes (mapped, never expanded).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod

import ml_dtypes
import numpy as np

from ...core.errors import InputError
from .bits import F32, U8, Array, Bits, Book, Integers, Reals, Scale, Trits
from .iq_tables import DELTA, grid, signs


@dataclass(frozen=True)
class BlockFormat:
    """One packed format. `encode` makes whole blocks, f32[n, elements] -> u8[n, bytes].

    >>> FORMATS["Q8_0"].dequantize(np.zeros(68, np.uint8)).shape
    (64,)
    """

    name: str
    type_id: int
    elements: int
    bytes: int
    q: Integers | Trits  # the quantized values
    scale: Scale | None = None
    minimum: Scale | None = None
    table: tuple[float, ...] | str | Book | None = None  # what a quantized value stands for: itself, an entry, a float dtype, a codebook
    encode: Callable[[BlockFormat, F32], U8] | None = field(default=None, repr=False, compare=False)
    dtype: str | None = None  # NumPy or ml_dtypes name where an element is a plain number of that type
    spare: tuple[Bits, ...] = ()  # bits that say nothing new

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Callable[[str], BlockFormat], tuple[str]]:
        return by_name, (self.name,)

    @property
    def bits(self) -> float:
        """Bits a weight takes."""
        return 8 * self.bytes / self.elements

    @property
    def exact(self) -> bool:
        """Products in integers serve it: quantized values of four bits and more are integers, and their scales f16."""
        return self.dtype is None and self.table is None and isinstance(self.q, Integers) and self.q.width >= 4 and (
            self.scale is not None and self.scale.real.kind == "f16")

    @property
    def grouped(self) -> bool:
        """Products in integers can serve it, too: groups of 32 columns and more with a scale and a minimum in f32."""
        return self.table is None and self.minimum is not None and self.minimum.real.kind == "f32" and self.elements % 32 == 0

    def fields(self) -> Iterator[Bits]:
        """All bit fields of a block of integers."""
        book = self.table if isinstance(self.table, Book) else None
        scales = [s for s in (self.scale, self.minimum) if s is not None]
        found = [self.q, *(x for s in scales for x in (s.real.bits, s.by)), *((book.signs, book.shifted) if book else ())]
        for x in found:
            if isinstance(x, Integers):
                yield from x.parts
        yield from self.spare

    def halves(self) -> Iterator[tuple[int, str]]:
        """The bytes at which f16 numbers stand, and whether each belongs to the "scale" or the "minimum"."""
        for name, s in (("scale", self.scale), ("minimum", self.minimum)):
            if s is not None and s.real.kind == "f16" and len(s.real.bits.parts) == 1:
                yield s.real.bits.parts[0].at // 8, name

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` elements."""
        if columns % self.elements:
            raise InputError(f"{self.name}: a row must be a multiple of {self.elements} elements, got {columns}")
        return columns // self.elements * self.bytes

    def decode(self, b: U8) -> F32:
        """Blocks u8[n, bytes] -> f32[n, elements]."""
        if self.dtype is not None:
            return b.view(np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))).astype(np.float32)
        assert self.scale is not None
        scale = self.scale.numbers(b)
        out = scale[:, :, None] * self.numbers(b).reshape(len(b), scale.shape[1], -1)
        if self.minimum is not None:
            out += self.minimum.numbers(b)[:, :, None]
        return out.reshape(len(b), self.elements)

    def numbers(self, b: U8) -> F32:
        """What the scales multiply, f32[n, elements]."""
        if self.table is None:
            return self.q.numbers(b)
        raw = self.q.unpack(b)
        if isinstance(self.table, str):
            floats: F32 = raw.view(getattr(ml_dtypes, self.table)).astype(np.float32)
            return floats
        if isinstance(self.table, tuple):
            return np.array(self.table, np.float32)[raw]
        points = grid(self.table.name)[raw]
        if self.table.signs is not None:
            sign = self.table.signs.unpack(b)
            points = points.reshape(len(b), self.elements) * (
                signs()[sign].reshape(len(b), -1) if self.table.patterns else np.float32(1) - np.float32(2) * sign)
        if self.table.shifted is not None:
            delta = np.where(self.table.shifted.unpack(b) == 0, DELTA, -DELTA)
            points = points.reshape(*delta.shape, -1) + delta[:, :, None]
        return points.reshape(len(b), self.elements)

    def pack(self, n: int, *parts: tuple[Integers | Trits | Reals, Array]) -> U8:
        """Blocks of these parts: stored bits of integers, numbers of floats."""
        out = np.zeros((n, self.bytes), np.uint8)
        for part, values in parts:
            part.pack(out, values)
        return out

    def dequantize(self, raw: Array) -> F32:
        """Packed bytes, u8[..., row bytes] -> f32[..., columns]."""
        if raw.dtype != np.uint8:
            raise InputError(f"dequantize: {self.name} is read from u8 bytes, got {raw.dtype}{list(raw.shape)}")
        if raw.ndim == 0 or raw.shape[-1] % self.bytes:
            raise InputError(f"dequantize: {self.name} needs rows of a multiple of {self.bytes} bytes, got u8{list(raw.shape)}")
        out = np.empty((*raw.shape[:-1], raw.shape[-1] // self.bytes * self.elements), np.float32)
        blocks, flat = raw.reshape(-1, self.bytes), out.reshape(-1, self.elements)
        step = max(1, (1 << 18) // self.elements)  # temporaries stay in the cache, and far below the size of the tensor
        with np.errstate(invalid="ignore", over="ignore"):  # a scale may be infinite or NaN: the numbers then are, too
            for start in range(0, len(blocks), step):
                flat[start : start + step] = self.decode(np.ascontiguousarray(blocks[start : start + step]))
        return out

    def quantize(self, values: Array) -> U8:
        """Numbers f32[..., columns] -> packed bytes u8[..., row bytes], rounded as ggml's reference does."""
        if self.encode is None:
            raise InputError(f"quantize: {self.name} can only be read; writable: {known(writable=True)}")
        x = np.ascontiguousarray(values, np.float32)
        if x.ndim == 0:
            raise InputError(f"quantize: {self.name} needs at least one axis, got a scalar")
        out = np.empty((*x.shape[:-1], self.row_bytes(x.shape[-1])), np.uint8)
        if self.elements > 1 and not np.isfinite(x).all():
            raise InputError(f"quantize: {self.name} holds finite numbers only, got NaN or infinity in f32{list(x.shape)}")
        blocks, flat = x.reshape(-1, self.elements), out.reshape(-1, self.bytes)
        step = max(1, (1 << 18) // self.elements)
        with np.errstate(all="ignore"):
            for start in range(0, len(blocks), step):
                flat[start : start + step] = self.encode(self, blocks[start : start + step])
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
