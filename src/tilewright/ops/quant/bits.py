"""Where the numbers of a packed block lie: integers as bit fields with strides, floats, and scales made of both.

    Integers(runs(2, 4, 16, 32), bias=-8)     # Q4_0: 32 integers of four bits from byte 2 on, less 8

This is the one description of a format. The NumPy reference reads and writes blocks by it, kernels emit loads, shifts and masks from it,
and packed layouts are other orders of the same fields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]
Array = NDArray[Any]


@dataclass(frozen=True)
class Bits:
    """`width` bits of every integer of an array: those of integer i, whose digits in `shape` are (i0, i1, …), begin at bit
    `at` + i0 · strides[0] + i1 · strides[1] + … of the block."""

    at: int
    width: int
    shape: tuple[int, ...] = (1,)
    strides: tuple[int, ...] = (0,)

    @property
    def count(self) -> int:
        return prod(self.shape)

    def place(self, i: int) -> int:
        """The first bit of integer i."""
        at = self.at
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            i, digit = divmod(i, size)
            at += digit * stride
        return at

    def spaced(self, first: int, count: int) -> int | None:
        """The distance in bits of the integers first, first + 1, …, where it is always the same."""
        places = [self.place(first + i) for i in range(count)]
        steps = {b - a for a, b in zip(places, places[1:], strict=False)}
        return steps.pop() if len(steps) == 1 else None

    @cached_property
    def steps(self) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """Bytes of the word that an integer is read from, and for every digit the bytes and the bits it moves on by."""
        moves = [divmod(s, 8) for s in self.strides]
        most = self.at % 8 + self.width + sum(bits * (n - 1) for n, (_, bits) in zip(self.shape, moves, strict=True))
        return next(w for w in (1, 2, 4, 8) if most <= 8 * w), tuple(b for b, _ in moves), tuple(b for _, b in moves)

    def unpack(self, b: U8) -> Array:
        """Blocks u8[n, bytes] -> the integers, [n, count]."""
        word, steps, shifts = self.steps
        first, shape = self.at // 8, list(self.shape)
        part = np.ascontiguousarray(b[:, first : first + word + sum(s * (n - 1) for s, n in zip(steps, shape, strict=True))])
        ones = 1
        if word == 1 and self.strides[-1] == 8 and shape[-1] % 8 == 0:  # eight neighbours in one word
            word, ones, shape[-1], steps = 8, 0x0101010101010101, shape[-1] // 8, (*steps[:-1], 8)
        kind = np.dtype(f"u{word}")
        by = np.full((), self.at % 8, kind)
        for axis, (shift, n) in enumerate(zip(shifts, shape, strict=True)):
            if shift and n > 1:
                by = by + (np.arange(n) * shift).astype(kind).reshape([-1 if a == axis else 1 for a in range(len(shape))])
        words = np.ndarray((len(b), *shape), kind, part.data, 0, (part.strides[0], *steps))
        out = (words >> by if by.any() else words) & kind.type(((1 << self.width) - 1) * ones)
        found: Array = (out.view(np.uint8) if ones > 1 else out).reshape(len(b), self.count)
        return found

    def pack(self, out: U8, values: Array) -> None:
        """Put integers [n, count] into blocks u8[n, bytes] whose bits there are zero."""
        word, steps, shifts = self.steps
        kind, first = np.dtype(f"<u{word}"), self.at // 8
        inside = (values & values.dtype.type((1 << self.width) - 1)).astype(kind).reshape(len(out), *self.shape)
        moving, free = [i for i, s in enumerate(shifts) if s], [i for i, s in enumerate(shifts) if not s]
        strides = (out.strides[0], *(steps[i] for i in free))
        for digits in product(*(range(self.shape[i]) for i in moving)):
            at = dict(zip(moving, digits, strict=True))
            start = first + sum(d * steps[i] for i, d in at.items())
            target = np.ndarray((len(out), *(self.shape[i] for i in free)), kind, out.data, start, strides)
            by = self.at % 8 + sum(d * shifts[i] for i, d in at.items())
            target |= inside[(slice(None), *(at.get(i, slice(None)) for i in range(len(shifts))))] << kind.type(by)


def runs(byte: int, width: int, run: int, count: int, *, bits: int | None = None) -> Bits:
    """Integers in runs of `run` bytes: in each first the lowest bits of all of its bytes, then the next ones; `bits` of a byte are used."""
    per = (bits or 8) // width
    return Bits(8 * byte, width, (count // (run * per), per, run), (8 * run, width, 8))


def whole(byte: int, size: int, count: int = 1) -> Bits:
    """Integers of `size` bytes one after the other."""
    return Bits(8 * byte, 8 * size, (count,), (8 * size,))


@dataclass(frozen=True, init=False)
class Integers:
    """Integers of a block: the bits of all parts, those of the first one lowest, as a number with a sign or without, plus `bias`."""

    parts: tuple[Bits, ...]
    bias: int
    signed: bool

    def __init__(self, *parts: Bits, bias: int = 0, signed: bool = False) -> None:
        for name, value in (("parts", parts), ("bias", bias), ("signed", signed)):
            object.__setattr__(self, name, value)
        assert len({p.count for p in parts}) <= 1

    @property
    def count(self) -> int:
        return self.parts[0].count

    @property
    def width(self) -> int:
        return sum(p.width for p in self.parts)

    def places(self) -> Iterator[tuple[int, Bits]]:
        """Every part and the bit of the integer at which it begins."""
        to = 0
        for p in self.parts:
            yield to, p
            to += p.width

    def pieces(self, i: int) -> list[tuple[int, int, int, Bits]]:
        """The bits of integer i: where they begin in it and in the block, how many, and their part. Parts side by side are one piece."""
        found: list[tuple[int, int, int, Bits]] = []
        for to, p in self.places():
            at, width = p.place(i), p.width
            if found and found[-1][1] + found[-1][2] == at:
                to, at, before, p = found.pop()
                width += before
            found.append((to, at, width, p))
        return found

    def unpack(self, b: U8) -> Array:
        """Blocks u8[n, bytes] -> stored bits [n, count], without bias."""
        kind = np.dtype(f"u{next(w for w in (1, 2, 4) if self.width <= 8 * w)}").type
        out: Array | None = None
        for to, p in self.places():
            part = p.unpack(b).astype(kind, copy=False)
            part = part << kind(to) if to else part
            out = part if out is None else out | part
        assert out is not None
        return out

    def numbers(self, b: U8) -> F32:
        """The integers themselves, as f32."""
        raw = self.unpack(b)
        wide = (raw.view(np.int8) if self.signed else raw).astype(np.float32)
        return wide + np.float32(self.bias) if self.bias else wide

    def pack(self, out: U8, values: Array) -> None:
        """Stored bits [n, count] into blocks."""
        for to, p in self.places():
            p.pack(out, values >> values.dtype.type(to) if to else values)


@dataclass(frozen=True)
class Trits:
    """Base-3 digits less one, the highest first, as the fraction byte/256 holds them: (byte, digits of a byte, bytes of a run) each."""

    pieces: tuple[tuple[int, int, int], ...]
    bias: int = -1
    signed: bool = False

    @property
    def count(self) -> int:
        return sum(digits * run for _, digits, run in self.pieces)

    def unpack(self, b: U8) -> Array:
        found = []
        for byte, digits, run in self.pieces:
            wrapped = b[:, None, byte : byte + run] * (3 ** np.arange(digits)).astype(np.uint8)[:, None]  # u8 arithmetic wraps on purpose
            found.append(((wrapped.astype(np.uint16) * np.uint16(3)) >> np.uint16(8)).astype(np.uint8).reshape(len(b), -1))
        return np.concatenate(found, axis=-1)

    def numbers(self, b: U8) -> F32:
        return self.unpack(b).astype(np.float32) + np.float32(self.bias)

    def pack(self, out: U8, values: Array) -> None:
        first = 0
        for byte, digits, run in self.pieces:
            part = values[:, first : first + digits * run].reshape(len(out), digits, run)
            total = (part * (81 // 3 ** np.arange(digits)).astype(np.uint8)[:, None]).sum(axis=-2, dtype=np.uint16)
            out[:, byte : byte + run] = (total * np.uint16(256) + np.uint16(242)) // np.uint16(243)
            first += digits * run


@dataclass(frozen=True)
class Reals:
    """Floats of a block. Kinds: f16, f32, e8m0 (2^(e-128), half its usual value) and ue4m3 (no sign, half its value; 0x7f is zero)."""

    bits: Integers
    kind: str = "f16"

    def numbers(self, b: U8) -> F32:
        raw = self.bits.unpack(b)
        if self.kind in ("f16", "f32"):
            return np.ascontiguousarray(raw).view(np.dtype(self.kind.replace("f16", "f2").replace("f32", "f4"))).astype(np.float32)
        return half_e8m0(raw) if self.kind == "e8m0" else half_ue4m3(raw)

    def pack(self, out: U8, values: Array) -> None:
        """Numbers rounded to f16, or kept in f32; the other kinds as bytes."""
        if self.kind in ("f16", "f32"):
            kind = np.dtype(self.kind.replace("f16", "f2").replace("f32", "f4"))
            values = values.astype(kind).view(f"u{kind.itemsize}")
        self.bits.pack(out, values)


def half_e8m0(e: U8) -> F32:
    """2^(e-128); the two smallest are subnormal."""
    wide = e.astype(np.uint32)
    normal = (wide - np.uint32(1)) << np.uint32(23)  # wraps for e = 0, which the line below replaces
    return np.where(e < 2, np.uint32(0x00200000) << np.minimum(wide, 1), normal).astype(np.uint32).view(np.float32)


def half_ue4m3(x: U8) -> F32:
    """An unsigned e4m3 float (bias 7), halved; 0x7f is NaN there and zero here. The top bit is not read."""
    exponent, mantissa = ((x >> np.uint8(3)) & np.uint8(15)).astype(np.float32), (x & np.uint8(7)).astype(np.float32)
    normal = (np.float32(1) + mantissa / np.float32(8)) * np.exp2(exponent - np.float32(7))
    value = np.where(exponent == 0, mantissa * np.float32(2**-9), normal) * np.float32(0.5)
    return np.where(x == 0x7F, np.float32(0), value).astype(np.float32)


@dataclass(frozen=True)
class Scale:
    """One number per group of elements: a float of the block, times `slope` · integer + `start` where groups have integers of their own."""

    real: Reals
    by: Integers | None = None
    slope: float = 1.0
    start: float = 0.0

    @property
    def groups(self) -> int:
        return self.real.bits.count if self.by is None else self.by.count

    def numbers(self, b: U8) -> F32:
        """f32[n, groups]"""
        d = self.real.numbers(b)
        if self.by is None:
            return d
        by = self.by.numbers(b) * np.float32(self.slope)
        return d * (by + np.float32(self.start) if self.start else by)


@dataclass(frozen=True)
class Book:
    """Integers are rows of a codebook. Signs: a bit an element, or a pattern of signs for eight of them; `shifted`: a bit that says whether
    0.125 is added to a group of points or taken away."""

    name: str
    signs: Integers | None = None
    patterns: bool = False
    shifted: Integers | None = None
