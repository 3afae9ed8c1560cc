"""Random numbers that depend on a key and a position alone (Philox 4x32-10, Salmon et al. 2011): the same on every target, for any number
of threads, in whatever region they are computed.

A key is a u64. A block of four words belongs to a key and a counter of four words: the lower two are the operand `counter`, the third is
`stream`, which keeps apart what different functions draw from one key, the fourth is 0.
"""
from __future__ import annotations

from math import pi
from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from ..base import E, S, Sample, Values, register
from ..families import Elementwise, N, broadcast_shapes, i64, u32, u64
from ..tiles import TileBuilder

MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # what the words of the key grow by in each round
ROUNDS = 10
DRAW, SPLIT, FOLD = range(3)  # streams
DIGITS = {"f16": 11, "bf16": 8, "f32": 24, "f64": 53}  # random bits of a uniform number: those of its mantissa

Array = np.ndarray[Any, Any]


def philox(t: TileBuilder, key: tuple[Any, Any], counter: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Four random words (u32 tiles) of the tile builder `t`."""
    k, c = list(key), list(counter)
    for _ in range(ROUNDS):
        low = [c[2 * i] * m for i, m in enumerate(MULTIPLIERS)]
        high = [t.binary("mulhi", c[2 * i], m) for i, m in enumerate(MULTIPLIERS)]
        mixed = [t.binary("xor", t.binary("xor", high[1 - i], c[2 * i + 1]), k[i]) for i in range(2)]
        c = [mixed[0], low[1], mixed[1], low[0]]
        k = [x + w for x, w in zip(k, WEYL, strict=True)]
    return c[0], c[1], c[2], c[3]


def halves(t: TileBuilder, x: Any) -> tuple[Any, Any]:
    """The lower and the upper word of a tile of 64 bits; of one of 32 bits, itself and 0."""
    if x.dtype.itemsize == 4:
        return x, t.full((), 0, dt.u32)
    return t.cast(x, dt.u32), t.cast(t.binary("shr", x, 32), dt.u32)


def words(key: Any, counter: Any, stream: int = DRAW) -> tuple[Array, Array, Array, Array]:
    """Four random words a counter, in NumPy (each held in a u64)."""
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    key, counter = np.broadcast_arrays(np.asarray(key, np.uint64), np.asarray(counter).astype(np.uint64))
    k = [key & low, key >> shift]
    c = [counter & low, counter >> shift, np.full_like(counter, stream), np.zeros_like(counter)]
    for _ in range(ROUNDS):
        a, b = (c[2 * i] * np.uint64(m) for i, m in enumerate(MULTIPLIERS))
        c = [(b >> shift) ^ c[1] ^ k[0], b & low, (a >> shift) ^ c[3] ^ k[1], a & low]
        k = [(x + np.uint64(w)) & low for x, w in zip(k, WEYL, strict=True)]
    return c[0], c[1], c[2], c[3]


def _both(low: Array, high: Array) -> Array:
    return np.asarray(low | high << np.uint64(32))


def draws(*attrs: dict[str, Any]) -> list[Sample]:
    """Keys and counters of several shapes and widths."""
    types = [(u64(), u32(5)), (u64(3, 1), u64(3, 4)), (u64(), u64(N)), (u64(), u32()), (u64(), u32(0, 3))]
    return [S(*types[i % len(types)], **a, low=0, high=2**40 if types[i % len(types)][1].dtype is dt.u64 else 2**31)
            for i, a in enumerate(attrs)]


KEYS = [E(i64(), u32(3), match="the key must be u64"), E(u64(), i64(3), match="the counter must be u32 or u64")]


class Random(Elementwise):
    """Numbers for a key (u64) and a counter (u32 or u64). No two elements of one draw may have the same key and counter."""

    kinds = "u"
    arity = (2, 2)
    first: ClassVar[tuple[str, ...]]  # dtypes of results

    def infer(self, key: TensorType, counter: TensorType) -> TensorType:  # type: ignore[override]
        require(key.dtype is dt.u64, "the key must be u64", key=key)
        require(counter.dtype in (dt.u32, dt.u64), "the counter must be u32 or u64", counter=counter)
        dtype: DType = self.attrs()["dtype"]
        require(dtype.name in self.first, "dtype must be one of {names}", names=" ".join(self.first), dtype=dtype)
        return TensorType(dtype, broadcast_shapes(key.shape, counter.shape))

    def words(self, t: TileBuilder, key: Any, counter: Any) -> tuple[Any, Any, Any, Any]:
        """Four u32 tiles."""
        stream = t.full((), self.attrs().get("stream", DRAW), dt.u32)
        return philox(t, halves(t, key), (*halves(t, counter), stream, t.full((), 0, dt.u32)))

    def flops(self, key: TensorType, counter: TensorType) -> Dim:
        return self.infer(key, counter).numel * ROUNDS * 8

    def partials(self, inputs: Values, output: Value, wanted: tuple[bool, ...]) -> tuple[Value | float | None, ...]:
        return None, None


@register
class RandomBits(Random):
    """Random bits: word number `word` of the block as u32, or that and the next one as u64."""

    word: int = 0
    stream: int = DRAW
    dtype: DType = dt.u32
    first = ("u32", "u64")
    samples = draws({}, {"word": 3}, {"dtype": dt.u64, "stream": SPLIT}, {"word": 1, "stream": FOLD}, {"dtype": dt.u64, "word": 2})
    errors = [*KEYS, E(u64(), u32(3), word=3, dtype=dt.u64, match="a block has four words"),
              E(u64(), u32(3), dtype=dt.i32, match="dtype must be one of u32 u64")]

    def infer(self, key: TensorType, counter: TensorType) -> TensorType:  # type: ignore[override]
        out = super().infer(key, counter)
        require(0 <= self.word <= 4 - self.dtype.itemsize // 4, "a block has four words", word=self.word, dtype=self.dtype)
        return out

    def ref(self, key: Any, counter: Any) -> Any:
        found = words(key, counter, self.stream)
        return (found[self.word] if self.dtype is dt.u32 else _both(*found[self.word : self.word + 2])).astype(self.dtype.np)

    def lower(self, t: TileBuilder, key: Any, counter: Any) -> Any:
        found = self.words(t, key, counter)
        return found[self.word] if self.dtype is dt.u32 else joined(t, *found[self.word : self.word + 2])


def joined(t: TileBuilder, low: Any, high: Any) -> Any:
    """Two words as one of 64 bits."""
    return t.binary("or", t.cast(low, dt.u64), t.binary("shl", t.cast(high, dt.u64), 32))


FLOATS = [*KEYS, E(u64(), u32(3), dtype=dt.i32, match="dtype must be one of f16 bf16 f32 f64")]


@register
class RandomUniform(Random):
    """Numbers of [0, 1): random multiples of the dtype's precision there (2^-24 for f32)."""

    dtype: DType = dt.f32
    first = ("f16", "bf16", "f32", "f64")
    samples = draws({}, {"dtype": dt.f64}, {"dtype": dt.bf16}, {"dtype": dt.f16}, {"dtype": dt.f32})
    errors = FLOATS

    def ref(self, key: Any, counter: Any) -> Any:
        found, digits = words(key, counter), DIGITS[self.dtype.name]
        bits = _both(found[0], found[1]) >> np.uint64(64 - digits) if self.dtype is dt.f64 else found[0] >> np.uint64(32 - digits)
        return (bits.astype(np.float64) * 2.0**-digits).astype(self.dtype.np)

    def lower(self, t: TileBuilder, key: Any, counter: Any) -> Any:
        found, digits = self.words(t, key, counter), DIGITS[self.dtype.name]
        return fraction(t, joined(t, found[0], found[1]) if self.dtype is dt.f64 else found[0], digits)


def fraction(t: TileBuilder, x: Any, digits: int) -> Any:
    """The upper `digits` bits of a word (f32) or two (f64), behind the point; they fit, so nothing is rounded."""
    wide = x.dtype.itemsize == 8
    bits = t.binary("shr", x, 8 * x.dtype.itemsize - digits)
    return t.cast(t.bitcast(bits, dt.i64 if wide else dt.i32), dt.f64 if wide else dt.f32) * 2.0**-digits


@register
class RandomNormal(Random):
    """Numbers of the standard normal distribution, by Box and Muller's formula."""

    dtype: DType = dt.f32
    first = ("f16", "bf16", "f32", "f64")
    samples = draws({}, {"dtype": dt.f64}, {"dtype": dt.bf16}, {"dtype": dt.f16}, {"dtype": dt.f32})
    errors = FLOATS

    def ref(self, key: Any, counter: Any) -> Any:
        found = words(key, counter)
        if self.dtype is dt.f64:
            u: Any = (_both(found[0], found[1]) >> np.uint64(1)).astype(np.float64) * 2.0**-63 + 2.0**-64
            turn: Any = (_both(found[2], found[3]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        else:
            u = (found[0] >> np.uint64(1)).astype(np.float32) * np.float32(2.0**-31) + np.float32(2.0**-32)
            turn = (found[1] >> np.uint64(8)).astype(np.float64) * 2.0**-24
        return (np.sqrt(-2 * np.log(u.astype(np.float64))) * np.cos(2 * pi * turn)).astype(self.dtype.np)

    def lower(self, t: TileBuilder, key: Any, counter: Any) -> Any:
        found, wide = self.words(t, key, counter), self.dtype is dt.f64
        radius, turn = (joined(t, found[0], found[1]), joined(t, found[2], found[3])) if wide else found[:2]
        bits = 63 if wide else 31
        u = fraction(t, radius, bits) + 2.0 ** -(bits + 1)  # above 0
        return t.unary("sqrt", t.unary("log", u) * -2.0) * t.unary("cos", fraction(t, turn, 53 if wide else 24) * (2 * pi))
