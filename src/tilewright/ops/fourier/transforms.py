"""Discrete Fourier transforms along one axis. Complex numbers are pairs of floats along the last axis, so that no op here needs complex
types; the transform itself is `dft_columns`, whose kernel does all stages of many transforms side by side."""
from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Traits, Values, register
from ..complex.parts import Complex, ViewAsReal
from ..families import Composite, General, N, f16, f32, f64, show_shape, values_of

LARGEST = 61  # prime factors up to this one are done directly, larger ones by a convolution of another length
SPLIT = 2048  # a transform longer than this one is done as two rounds of shorter ones (whatever is beside it: a row has its bits)


@cache
def factors(n: int) -> tuple[int, ...]:
    """Radixes of a transform: eights and fours, a two where nothing else is left, threes, fives and larger primes.

    >>> factors(1024), factors(60), factors(7)
    ((8, 8, 4, 4), (4, 3, 5), (7,))
    """
    twos = (n & -n).bit_length() - 1 if n else 0
    eights = twos // 3 - (twos % 3 == 1 and twos > 1)  # two fours are better than an eight and a two
    found = [8] * eights
    n >>= 3 * eights
    for p in (4, 2, 3, 5):
        while n % p == 0:
            found.append(p)
            n //= p
    p = 7
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p = n if p * p > n else p + 2
    return tuple(found)


def twiddles(n: int, dtype: DType) -> Any:
    """exp(-2 pi i k / n) for k = 0 … n - 1, as [n, 2]."""
    angle = -2.0 * np.pi * np.arange(max(n, 1)) / max(n, 1)
    return np.stack([np.cos(angle), np.sin(angle)], -1).astype(dtype.np)


def to_complex(x: Any) -> Any:
    return x[..., 0] + 1j * x[..., 1]


def to_pairs(z: Any, dtype: Any) -> Any:
    return np.stack([z.real, z.imag], -1).astype(dtype)


def with_twiddles(arrays: list[Any]) -> list[Any]:
    """Tables for operands whose second axis from the back is the one of length 2."""
    return [arrays[0], *(twiddles(t.shape[0], dt.dtype(t.dtype)) for t in arrays[1:])]


@register
class DftColumns(General):
    """Many transforms side by side ("lanes"): y[k] = scale * sum over j of x[j] * exp(-2 pi i j k / n), +2 with `inverse`, of pairs
    x[…, n, lanes, 2], or x[…, lanes, n, 2] with `rows`; the result has that form where `rows_out`. The second operand holds
    exp(-2 pi i k / n); with a third, exp(-2 pi i k / (n * lanes)), result k of lane l is rotated by k * l of those steps, which is what
    stands between the two rounds of a longer transform."""

    inverse: bool = False
    scale: float = 1.0
    rows: bool = False
    rows_out: bool = False
    traits = Traits(linear=True)
    samples = [S(f32(8, 3, 2), f32(8, 2), fit=with_twiddles), S(f64(2, 6, 5, 2), f64(6, 2), inverse=True, scale=0.5, fit=with_twiddles),
               S(f32(2, 1, 2), f32(1, 2), rows=True, fit=with_twiddles), S(f32(0, 5, 3, 2), f32(5, 2), fit=with_twiddles),
               S(f32(20, 15, 2), f32(15, 2), rows=True, rows_out=True, fit=with_twiddles),
               S(f32(4, 6, 2), f32(4, 2), f32(24, 2), fit=with_twiddles),
               S(f64(7, 4, 2), f64(7, 2), f64(28, 2), inverse=True, fit=with_twiddles), S(f32(16, 0, 2), f32(16, 2), fit=with_twiddles),
               S(f64(9, 12, 2), f64(12, 2), rows=True, rows_out=True, fit=with_twiddles),
               S(f32(3, 64, 2), f32(64, 2), rows=True, fit=with_twiddles),
               S(f32(N, 10, 2), f32(10, 2), rows=True, rows_out=True, fit=with_twiddles), S(f64(14, 9, 2), f64(14, 2), fit=with_twiddles)]
    errors = [E(f32(8, 3), f32(8, 2), match="needs pairs"), E(f32(8, 3, 2), f32(4, 2), match="the table must hold 8 twiddles"),
              E(f16(8, 3, 2), f16(8, 2), match="needs f32 or f64")]

    def sizes(self, x: TensorType) -> tuple[Dim, Dim]:
        """(n, lanes)."""
        a, b = x.shape[-3:-1]
        return (b, a) if self.rows else (a, b)

    def infer(self, x: TensorType, table: TensorType, *more: TensorType) -> TensorType:
        require(x.dtype.name in ("f32", "f64"), "needs f32 or f64", dtype=x.dtype)
        require(x.ndim >= 3 and x.shape[-1] == 2, "needs pairs […, n, lanes, 2]", x=show_shape(x.shape))
        n, lanes = self.sizes(x)
        require(table.shape == (n, 2), "the table must hold {n} twiddles", n=n, table=table)
        return x.with_shape((*x.shape[:-3], *((lanes, n) if self.rows_out else (n, lanes)), 2))

    def ref(self, x: Any, table: Any, *more: Any) -> Any:
        z = to_complex(x.astype(np.float64))
        z = np.swapaxes(z, -1, -2) if self.rows else z
        n, lanes = z.shape[-2:]
        if z.size:
            z = (np.fft.ifft(z, axis=-2) * n if self.inverse else np.fft.fft(z, axis=-2)) * self.scale
        if more:
            z = z * np.exp((2j if self.inverse else -2j) * np.pi * np.arange(n)[:, None] * np.arange(lanes) / (n * lanes))
        return to_pairs(np.swapaxes(z, -1, -2) if self.rows_out else z, x.dtype)

    def flops(self, x: TensorType, *tables: TensorType) -> Dim:
        n = self.sizes(x)[0]
        return x.numel * sum(2 * r for r in factors(n)) if isinstance(n, int) and n else 0

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        other = DftColumns(not self.inverse, self.scale, self.rows_out, self.rows)
        if len(inputs) > 2:
            g = self._untwiddled(g, inputs[0])
        return (values_of(other(g, inputs[1]))[0] if wanted[0] else None, *(None for _ in inputs[1:]))

    def _untwiddled(self, g: Value, x: Value) -> Value:
        n, lanes = self.sizes(x.type)
        assert isinstance(n, int) and isinstance(lanes, int)
        angle = (-2.0 if self.inverse else 2.0) * np.pi * np.arange(n)[:, None] * np.arange(lanes) / (n * lanes)
        z = np.exp(1j * angle)[..., None]
        z = np.swapaxes(z, 0, 1) if self.rows_out else z
        re, im = (g.node.graph.constant(np.ascontiguousarray(p).astype(x.dtype.np)) for p in (z.real, z.imag))
        return times(g, (re, im))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x = F.broadcast_batch(inputs[0], batched[0], size)
        return values_of(self(x, *(F.reshape(F.slice_(t, 0, 0, 1), t.shape[1:]) if b else t
                                   for t, b in zip(inputs[1:], batched[1:], strict=True))))


@register
class Dft(Composite):
    """The transform of pairs x[…, n, 2] along axis -2: y[k] = scale * sum over j of x[j] * exp(-2 pi i j k / n), or +2 with `inverse`."""

    inverse: bool = False
    scale: float = 1.0
    cases = True
    traits = Traits(composite=True, linear=True)
    samples = [S(f32(3, 8, 2)), S(f64(2, 2, 15, 2), inverse=True, scale=0.25), S(f64(1, 2)), S(f32(0, 4, 2)), S(f32(N, 6, 2)),
               S(f64(67, 2)), S(f32(2, 600, 2)), S(f64(20, 64, 2)), S(f64(134, 2), inverse=True)]
    errors = [E(f32(8, 3), match="needs pairs"), E(f16(8, 2), match="needs f32 or f64"), E(f32(0, 2), match="needs at least one element")]

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype.name in ("f32", "f64"), "needs f32 or f64", dtype=x.dtype)
        require(x.ndim >= 2 and x.shape[-1] == 2 and isinstance(x.shape[-2], int), "needs pairs […, n, 2] of a known length", x=x)
        require(x.shape[-2] != 0, "needs at least one element along the axis", x=x)
        return x

    def ref(self, x: Any) -> Any:
        z = to_complex(x.astype(np.float64))
        if z.size == 0:
            return x
        return to_pairs((np.fft.ifft(z) * z.shape[-1] if self.inverse else np.fft.fft(z)) * self.scale, x.dtype)

    def flops(self, x: TensorType) -> Dim:
        n = x.shape[-2]
        return x.numel * sum(2 * r for r in factors(n)) if isinstance(n, int) else 0

    def decompose(self, x: Value) -> Value:
        from .rows import by_rows, lanes_of

        *lead, n, _ = x.shape
        if n == 1:
            return x if self.scale == 1.0 else F.mul(x, self.scale)
        lanes = lanes_of(n, x.dtype)
        if lanes:
            return by_rows(x, "complex", n, lanes, inverse=self.inverse, scale=self.scale)
        if max(factors(n)) > LARGEST:
            return self._convolved(x)
        rows = product(lead)
        first, second = halves(n)
        if n > SPLIT and first > 1 and isinstance(rows, int):
            return self._in_two(x, first, second)
        table = x.node.graph.constant(twiddles(n, x.dtype), "twiddles")
        out = DftColumns(self.inverse, self.scale, rows=True, rows_out=True)(F.reshape(x, (rows, n, 2)), table)
        return F.reshape(out, x.shape)

    def _in_two(self, x: Value, first: int, second: int) -> Value:
        """j = j1 * second + j2 and k = k1 + first * k2: transforms over j1 for every j2, twiddles, transforms over j2 for every k1."""
        graph, rows = x.node.graph, product(x.shape[:-2])
        tables = [graph.constant(twiddles(n, x.dtype), "twiddles") for n in (first, second, first * second)]
        square = F.reshape(x, (rows, first, second, 2))
        inner = DftColumns(self.inverse, 1.0)(square, tables[0], tables[2])  # [rows, k1, j2]
        out = DftColumns(self.inverse, self.scale, rows=True)(inner, tables[1])  # [rows, k2, k1]
        return F.reshape(out, x.shape)

    def _convolved(self, x: Value) -> Value:
        """Bluestein: jk = (j² + k² - (k - j)²) / 2 makes the transform a convolution with a chirp, of a length that factors well."""
        *lead, n, _ = x.shape
        graph = x.node.graph
        length = 1 << (2 * n - 2).bit_length()
        angle = (1.0 if self.inverse else -1.0) * np.pi * (np.arange(n, dtype=np.int64) ** 2 % (2 * n)) / n
        chirp = np.exp(1j * angle)
        kernel = np.zeros(length, np.complex128)
        kernel[:n] = np.conj(chirp)
        kernel[length - n + 1 :] = np.conj(chirp[1:][::-1])
        spectrum = np.fft.fft(kernel) / length
        none = (0,) * len(lead)
        padded = F.pad(times(x, constant_pair(graph, chirp, x.dtype)), (*none, 0, 0), (*none, length - n, 0))
        inner = times(Dft().decompose(padded), constant_pair(graph, spectrum, x.dtype))
        back = F.slice_(Dft(inverse=True).decompose(inner), len(lead), 0, n)
        return times(back, constant_pair(graph, chirp * self.scale, x.dtype))

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        return values_of(Dft(inverse=not self.inverse, scale=self.scale)(g))


def halves(n: int) -> tuple[int, int]:
    """n as a product of two factors, as equal as they can be; the second is not the smaller one."""
    first = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
    return first, n // first


def constant_pair(graph: Any, z: Any, dtype: DType) -> tuple[Value, Value]:
    """Real and imaginary parts [n, 1] of constant complex numbers."""
    re, im = (graph.constant(np.ascontiguousarray(p)[:, None].astype(dtype.np)) for p in (z.real, z.imag))
    return re, im


def times(x: Value, by: tuple[Value, Value]) -> Value:
    """Pairs x[…, n, 2] times complex numbers given as parts [n, 1]."""
    axis = len(x.shape) - 1
    re, im = F.slice_(x, axis, 0, 1), F.slice_(x, axis, 1, 1)
    a, b = by
    return paired(F.sub(F.mul(re, a), F.mul(im, b)), F.add(F.mul(re, b), F.mul(im, a)))


def paired(re: Value, im: Value) -> Value:
    """Pairs […, n, 2] of parts […, n, 1], which one kernel stores."""
    return F.emit(ViewAsReal(), Complex()(*(F.reshape(p, p.shape[:-1]) for p in (re, im))))
