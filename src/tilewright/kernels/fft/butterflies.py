"""Arithmetic of Fourier transforms on registers: short transforms written out, and rotations of complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...core.dtypes import DType
from ...tile.builder import Ix, KernelBuilder, Tile, View

Number = tuple[Tile, Tile]


class Butterflies:
    """Short transforms of numbers whose parts are tiles; with `inverse`, rotated the other way."""

    def __init__(self, b: KernelBuilder, dtype: DType, *, inverse: bool) -> None:
        self.b, self.dtype, self.inverse = b, dtype, inverse

    def times(self, z: Number, w: Number) -> Number:
        b = self.b
        return b.fma(z[0], w[0], -(z[1] * w[1])), b.fma(z[0], w[1], z[1] * w[0])

    def twiddle_of(self, table: View, index: Ix | int) -> Number:
        """exp(∓2 pi i index / n), from a table [n, 2]."""
        b = self.b
        cos, sin = b.load(table, (index, 0), ()), b.load(table, (index, 1), ())
        return cos, -sin if self.inverse else sin

    def quarter(self, z: Number) -> Number:
        """z times -i, times i where inverse."""
        return (-z[1], z[0]) if self.inverse else (z[1], -z[0])

    def eighth(self, z: Number) -> Number:
        """z rotated by an eighth."""
        root = math.sqrt(0.5)
        a, c = (z[0] + z[1]) * root, (z[1] - z[0]) * root
        return (-c, a) if self.inverse else (a, c)

    def sixteenths(self, z: Number, k: int) -> Number:
        """z rotated by k sixteenths, k < 10."""
        if k % 4 == 0:
            return (z, self.quarter(z), (-z[0], -z[1]))[k // 4]
        if k % 2 == 0:
            return self.sixteenths(self.eighth(z), k - 2)
        angle = (1 if self.inverse else -1) * 2 * math.pi * k / 16
        return self.times(z, (self.b.full((), math.cos(angle), self.dtype), self.b.full((), math.sin(angle), self.dtype)))

    @staticmethod
    def add(a: Number, c: Number) -> Number:
        return a[0] + c[0], a[1] + c[1]

    @staticmethod
    def sub(a: Number, c: Number) -> Number:
        return a[0] - c[0], a[1] - c[1]

    def small(self, x: list[Number]) -> list[Number]:
        """The transform of 2, 4, 8, 16 or an odd number of elements."""
        add, sub = self.add, self.sub
        if len(x) == 2:
            return [add(x[0], x[1]), sub(x[0], x[1])]
        if len(x) == 4:
            even, odd = add(x[0], x[2]), add(x[1], x[3])
            low, high = sub(x[0], x[2]), self.quarter(sub(x[1], x[3]))
            return [add(even, odd), add(low, high), sub(even, odd), sub(low, high)]
        if len(x) == 8:
            evens, odds = self.small(x[::2]), self.small(x[1::2])
            odds = [odds[0], self.eighth(odds[1]), self.quarter(odds[2]), self.quarter(self.eighth(odds[3]))]
            return [*(add(a, c) for a, c in zip(evens, odds, strict=True)), *(sub(a, c) for a, c in zip(evens, odds, strict=True))]
        if len(x) == 16:
            inner = [self.small(x[j::4]) for j in range(4)]
            outer = [self.small([self.sixteenths(inner[j][k], j * k) for j in range(4)]) for k in range(4)]
            return [outer[k % 4][k // 4] for k in range(16)]
        return self._odd(x)

    def _odd(self, x: list[Number]) -> list[Number]:
        n, b, add, sub = len(x), self.b, self.add, self.sub
        pairs = [(add(x[j], x[n - j]), sub(x[j], x[n - j])) for j in range(1, (n + 1) // 2)]
        total = x[0]
        for s, _ in pairs:
            total = add(total, s)
        out = [total] * n
        for k in range(1, (n + 1) // 2):
            near, side = x[0], None
            for j, (s, d) in enumerate(pairs, 1):
                c, w = (b.full((), fn(2 * math.pi * j * k / n), self.dtype) for fn in (math.cos, math.sin))
                near = b.fma(s[0], c, near[0]), b.fma(s[1], c, near[1])
                side = (d[0] * w, d[1] * w) if side is None else (b.fma(d[0], w, side[0]), b.fma(d[1], w, side[1]))
            assert side is not None
            rotated = self.quarter(side)
            out[k], out[n - k] = add(near, rotated), sub(near, rotated)
        return out

    def stage(self, parts: int, stride: int, at: Callable[[Ix | int], Callable[[Ix | int], None]]) -> None:
        """`at(p)(q)` for every part p and every q below the stride; loops of one round are written out. `at(p)` makes what its q share."""
        b = self.b

        def part(p: Ix | int) -> None:
            one = at(p)
            if stride == 1:
                one(0)
            else:
                with b.loop(0, stride) as inner:
                    one(inner.index)

        if parts == 1:
            part(0)
        else:
            with b.loop(0, parts) as outer:
                part(outer.index)
