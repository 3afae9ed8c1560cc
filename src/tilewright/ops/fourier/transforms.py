"""Discrete Fourier transforms along one axis. Complex numbers are pairs of floats along the last axis, so that no op here needs complex
types; the transform itself is `dft_columns`, whose kernel does all stages of many transforms side by side.

Fourier transforms of rows by one kernel, real forms included, and the real forms themselves. Complex numbers are pairs of floats along
the last axis. A row's transform of n = m * lanes elements is `lanes` transforms of m elements side by side in a register, twiddles, and
transforms across the registers; a real row of 2 n elements is one complex row of n and a finish that untangles even and odd elements.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, product
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Graph, Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Traits, Values, register
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

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        other = DftColumns(not self.inverse, self.scale, self.rows_out, self.rows)
        if len(inputs) > 2:
            g = self._untwiddled(g, inputs[0])
        return values_of(other(g, inputs[1]))[0] if wanted[0] else None

    def _untwiddled(self, g: Value, x: Value) -> Value:
        n, lanes = self.sizes(x.type)
        assert isinstance(n, int) and isinstance(lanes, int)
        angle = (-2.0 if self.inverse else 2.0) * np.pi * np.arange(n)[:, None] * np.arange(lanes) / (n * lanes)
        z = np.exp(1j * angle)
        z = z.T if self.rows_out else z
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

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return values_of(Dft(inverse=not self.inverse, scale=self.scale)(g))


def halves(n: int) -> tuple[int, int]:
    """n as a product of two factors, as equal as they can be; the second is not the smaller one."""
    first = max(d for d in range(1, int(n**0.5) + 1) if n % d == 0)
    return first, n // first


def constant_pair(graph: Any, z: Any, dtype: DType) -> tuple[Value, Value]:
    """Real and imaginary parts [n] of constant complex numbers."""
    re, im = (graph.constant(np.ascontiguousarray(p).astype(dtype.np)) for p in (z.real, z.imag))
    return re, im


def times(x: Value, by: tuple[Value, Value]) -> Value:
    """Pairs x[…, n, 2] times complex numbers given as parts [n]."""
    (re, im), (a, b) = parts_of(x), by
    return paired(F.sub(F.mul(re, a), F.mul(im, b)), F.add(F.mul(re, b), F.mul(im, a)))


def parts_of(x: Value) -> tuple[Value, Value]:
    """Real and imaginary parts […, n] of pairs […, n, 2]."""
    re, im = (F.reshape(F.slice_(x, len(x.shape) - 1, k, 1), x.shape[:-1]) for k in range(2))
    return re, im


def paired(re: Value, im: Value) -> Value:
    """Pairs […, n, 2] of parts […, n], which one kernel stores."""
    return F.emit(ViewAsReal(), Complex()(re, im))


LONGEST = 8192  # complex elements of a row that stays near its core
KINDS = ("complex", "real", "full", "back")


def lanes_of(n: int, dtype: DType) -> int:
    """Lanes of the row kernel for n complex elements; 0 where another way must be taken."""
    if n > LONGEST or n % 64 or max(factors(n)) > 8:
        return 0
    return 16 if dtype is dt.f32 and n % 256 == 0 else 8


def tables(n: int, lanes: int, dtype: DType, *, real: bool) -> list[Any]:
    """Twiddles of the short transforms [m, 2], those between them and the transforms across registers [m, 2, lanes], and a real row's."""
    m = n // lanes
    z = np.exp(-2j * np.pi * np.outer(np.arange(m), np.arange(lanes)) / n)
    out = [twiddles(m, dtype), np.stack([z.real, z.imag], 1).astype(dtype.np)]
    if real:
        w = np.exp(-2j * np.pi * np.arange(n // 2) / (2 * n))
        out.append(np.stack([w.real, w.imag]).astype(dtype.np))
    return out


def with_tables(arrays: list[Any]) -> list[Any]:
    m, _, lanes = arrays[2].shape
    return [arrays[0], *tables(m * lanes, lanes, dt.dtype(arrays[0].dtype), real=len(arrays) > 3)]


def by_rows(x: Value, kind: str, n: int, lanes: int, *, inverse: bool, scale: float) -> Value:
    graph = x.node.graph
    made = [graph.constant(t, "twiddles") for t in tables(n, lanes, x.dtype, real=kind != "complex")]
    return F.emit(DftRows(kind, inverse, scale), x, *made)


@register
class DftRows(General):
    """Transforms of rows, multiplied by `scale`. `kind` complex: pairs x[…, n, 2] to pairs; real: x[…, 2n] to the first n + 1 results,
    pairs; full: to all 2n results; back: from n + 1 pairs to the 2n real numbers (imaginary parts of the first and the last pair are not
    read). The other operands are the twiddles that `tables` makes."""

    kind: str = "complex"
    inverse: bool = False
    scale: float = 1.0
    traits = Traits(linear=True)
    samples = [S(f32(3, 64, 2), f32(8, 2), f32(8, 2, 8), fit=with_tables),
               S(f64(2, 2, 64, 2), f64(8, 2), f64(8, 2, 8), inverse=True, scale=0.5, fit=with_tables),
               S(f32(256, 2), f32(16, 2), f32(16, 2, 16), fit=with_tables),
               S(f32(3, 512), f32(16, 2), f32(16, 2, 16), f32(2, 128), kind="real", fit=with_tables),
               S(f64(2, 128), f64(8, 2), f64(8, 2, 8), f64(2, 32), kind="full", scale=2.0, fit=with_tables),
               S(f32(N, 65, 2), f32(8, 2), f32(8, 2, 8), f32(2, 32), kind="back", inverse=True, fit=with_tables),
               S(f64(3, 193, 2), f64(24, 2), f64(24, 2, 8), f64(2, 96), kind="back", inverse=True, fit=with_tables),
               S(f32(0, 64, 2), f32(8, 2), f32(8, 2, 8), fit=with_tables)]
    errors = [E(f32(8, 3), f32(8, 2), f32(8, 2, 8), match="needs pairs"), E(f32(60, 2), f32(8, 2), f32(8, 2, 8), match="needs rows of 64"),
              E(f16(64, 2), f16(8, 2), f16(8, 2, 8), match="needs f32 or f64"), E(f32(64, 2), f32(8, 2), f32(8, 2), match="needs twiddles"),
              E(f32(64, 2), f32(7, 2), f32(8, 2, 8), match=r"needs twiddles of its dtype, \[\(8, 2\), \(8, 2, 8\)\]"),
              E(f32(64, 2), f32(8, 2), f64(8, 2, 8), match="needs twiddles of its dtype"),
              E(f32(128), f32(8, 2), f32(8, 2, 8), kind="real", match="needs twiddles of its dtype"),
              E(f32(60, 2), f32(12, 2), f32(12, 2, 5), match="the row kernel has no 5 lanes for 60")]

    def infer(self, x: TensorType, stages: TensorType, across: TensorType, *finish: TensorType) -> TensorType:
        require(x.dtype.name in ("f32", "f64"), "needs f32 or f64", dtype=x.dtype)
        require(self.kind in KINDS, "kind must be one of {kinds}", kinds=", ".join(KINDS), kind=self.kind)
        reals = self.kind in ("real", "full")
        require(x.ndim >= 1 if reals else (x.ndim >= 2 and x.shape[-1] == 2), "needs pairs […, n, 2]", x=show_shape(x.shape))
        require(across.ndim == 3 and across.is_static, "needs twiddles [m, 2, lanes]", across=across)
        m, lanes = (d for d in (across.shape[0], across.shape[2]) if isinstance(d, int))
        n = m * lanes
        known = lanes in (lanes_of(n, x.dtype), lanes_of(n, dt.f32))  # an f32 transform that is computed in f64 keeps its tables
        require(m > 0 and lanes in (8, 16) and known, "the row kernel has no {lanes} lanes for {n}",
                lanes=lanes, n=n)
        wanted = [(m, 2), (m, 2, lanes), *([] if self.kind == "complex" else [(2, n // 2)])]
        found = [stages, across, *finish]
        require([t.shape for t in found] == wanted and all(t.dtype is x.dtype for t in found), "needs twiddles of its dtype, {wanted}",
                wanted=wanted, twiddles=", ".join(map(str, found)))
        want = {"complex": n, "back": n + 1}.get(self.kind, 2 * n)
        require(x.shape[-1 if reals else -2] == want, "needs rows of {want}", want=want, x=show_shape(x.shape))
        lead = x.shape[:-1] if reals else x.shape[:-2]
        tail: dict[str, tuple[Dim, ...]] = {"complex": (n, 2), "real": (n + 1, 2), "full": (2 * n, 2), "back": (2 * n,)}
        return x.with_shape((*lead, *tail[self.kind]))

    def ref(self, x: Any, *_: Any) -> Any:
        x = x.astype(np.float64)
        if self.kind == "complex":
            z = to_complex(x)
            out = np.fft.ifft(z, norm="forward") if self.inverse else np.fft.fft(z)
        elif self.kind == "back":
            return (np.fft.irfft(to_complex(x), norm="forward") * self.scale).astype(_[0].dtype)
        else:
            out = np.fft.rfft(x) if self.kind == "real" else np.fft.fft(x)
        return to_pairs(out * self.scale, _[0].dtype)

    def flops(self, x: TensorType, stages: TensorType, across: TensorType, *finish: TensorType) -> Dim:
        m, _, lanes = across.shape
        assert isinstance(m, int) and isinstance(lanes, int)
        rows = x.numel // (x.shape[-1] if self.kind in ("real", "full") else 2 * x.shape[-2])
        return rows * m * lanes * (sum(4 * r for r in (*factors(m), *factors(lanes))) + (12 if finish else 0))

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        op = {"complex": Dft(self.inverse, self.scale), "real": RealDft(self.scale), "full": RealDft(self.scale, full=True),
              "back": RealDftBack(inputs[0].shape[-2] * 2 - 2, self.scale)}[self.kind]
        return (op.vjp(inputs[:1], outputs, cotangents, (True,))[0] if wanted[0] else None, *(None for _ in inputs[1:]))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x = F.broadcast_batch(inputs[0], batched[0], size)
        return values_of(self(x, *(F.reshape(F.slice_(t, 0, 0, 1), t.shape[1:]) if b else t
                                   for t, b in zip(inputs[1:], batched[1:], strict=True))))


def wide(x: Value) -> Value:
    """Real numbers as pairs."""
    column = F.reshape(x, (*x.shape, 1))
    return F.concat([column, F.zeros(column)], len(x.shape))


def _weights(graph: Graph, n: int, inner: float, dtype: DType) -> Value:
    """[n // 2 + 1, 1]: `inner` for results that stand for two, 1 for those that stand for themselves."""
    w = np.full((n // 2 + 1, 1), inner)
    w[0] = 1.0
    if n % 2 == 0:
        w[-1] = 1.0
    return graph.constant(w.astype(dtype.np))


class _RealForm(Composite):
    cases = True
    traits = Traits(composite=True, linear=True)

    def flops(self, x: TensorType) -> Dim:
        n = self.length(x)
        return x.numel * sum(2 * r for r in factors(n))

    def length(self, x: TensorType) -> int:
        """Real elements of a row."""
        raise NotImplementedError


@register
class RealDft(_RealForm):
    """The transform of real rows x[…, n]: the first n // 2 + 1 results as pairs, or all n with `full`, times `scale`."""

    scale: float = 1.0
    full: bool = False
    samples = [S(f32(3, 8)), S(f64(2, 2, 15), scale=0.25), S(f64(1)), S(f32(0, 4)), S(f32(N, 6)), S(f64(134)), S(f32(2, 256), full=True),
               S(f64(3, 128)), S(f64(7, 9), full=True), S(f32(2, 512))]
    errors = [E(f16(8), match="needs f32 or f64"), E(f32(0), match="needs at least one element")]

    def length(self, x: TensorType) -> int:
        n = x.shape[-1]
        assert isinstance(n, int)
        return n

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype.name in ("f32", "f64"), "needs f32 or f64", dtype=x.dtype)
        require(x.ndim >= 1 and isinstance(x.shape[-1], int), "needs rows […, n] of a known length", x=x)
        require(x.shape[-1] != 0, "needs at least one element along the axis", x=x)
        n = self.length(x)
        return x.with_shape((*x.shape[:-1], n if self.full else n // 2 + 1, 2))

    def ref(self, x: Any) -> Any:
        z = x.astype(np.float64)
        return to_pairs((np.fft.fft(z) if self.full else np.fft.rfft(z)) * self.scale, x.dtype)

    def decompose(self, x: Value) -> Value:
        *lead, n = x.shape
        lanes = lanes_of(n // 2, x.dtype) if n % 2 == 0 else 0
        if lanes:
            return by_rows(x, "full" if self.full else "real", n // 2, lanes, inverse=False, scale=self.scale)
        rank = len(x.shape)
        if n % 2 or self.full:
            full = Dft(False, self.scale).decompose(wide(x))
            return full if self.full else F.slice_(full, rank - 1, 0, n // 2 + 1)
        m = n // 2
        z = Dft(False, 0.5 * self.scale).decompose(F.reshape(x, (*lead, m, 2)))
        around = F.concat([z, F.slice_(z, rank - 1, 0, 1)], rank - 1)
        other = F.flip(around, (rank - 1,))
        (a, b), (c, d) = parts_of(around), parts_of(other)
        angle = -2.0 * np.pi * np.arange(m + 1) / n
        cos, sin = (x.node.graph.constant(fn(angle).astype(x.dtype.np)) for fn in (np.cos, np.sin))
        u, v = F.add(b, d), F.sub(c, a)  # the odd elements' transform
        re = F.add(F.add(a, c), F.sub(F.mul(cos, u), F.mul(sin, v)))
        im = F.add(F.sub(b, d), F.add(F.mul(cos, v), F.mul(sin, u)))
        return paired(re, im)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        n, rank = self.length(x.type), len(x.shape)
        if self.full:
            return (F.reshape(F.slice_(Dft(True, self.scale)(g), rank, 0, 1), x.shape),)
        return values_of(RealDftBack(n, self.scale)(F.mul(g, _weights(g.node.graph, n, 0.5, g.dtype))))


@register
class RealDftBack(_RealForm):
    """The n real numbers whose transform begins with the pairs x[…, n // 2 + 1, 2], times n and `scale`; imaginary parts that must be 0
    are not read."""

    n: int = 2
    scale: float = 1.0
    samples = [S(f32(3, 5, 2), n=8), S(f64(2, 2, 8, 2), n=15, scale=0.25), S(f64(1, 2), n=1), S(f32(0, 3, 2), n=4), S(f32(N, 4, 2), n=6),
               S(f32(2, 257, 2), n=512), S(f64(3, 65, 2), n=128), S(f64(2, 68, 2), n=134)]
    errors = [E(f32(5, 3), n=8, match="needs pairs"), E(f16(5, 2), n=8, match="needs f32 or f64"),
              E(f32(4, 2), n=8, match="needs 5 elements along the axis for a result of 8")]

    def length(self, x: TensorType) -> int:
        return self.n

    def infer(self, x: TensorType) -> TensorType:
        require(x.dtype.name in ("f32", "f64"), "needs f32 or f64", dtype=x.dtype)
        require(self.n >= 1, "needs a result of at least one element", n=self.n)
        require(x.ndim >= 2 and x.shape[-1] == 2, "needs pairs […, n // 2 + 1, 2]", x=show_shape(x.shape))
        want = self.n // 2 + 1
        require(x.shape[-2] == want, "needs {want} elements along the axis for a result of {n}", want=want, n=self.n, x=show_shape(x.shape))
        return x.with_shape((*x.shape[:-2], self.n))

    def ref(self, x: Any) -> Any:
        z = to_complex(x.astype(np.float64))
        return (np.fft.irfft(z, self.n, norm="forward") * self.scale).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        n, m, graph = self.n, self.n // 2, x.node.graph
        lanes = lanes_of(m, x.dtype) if n % 2 == 0 else 0
        if lanes:
            return by_rows(x, "back", m, lanes, inverse=True, scale=self.scale)
        lead, at = x.shape[:-2], len(x.shape) - 2
        edge = np.ones(m + 1, x.dtype.np)
        edge[0] = 0
        if n % 2 == 0:
            edge[m] = 0
        re, im = parts_of(x)
        im = F.mul(im, graph.constant(edge))

        def pick(v: Value, start: int, count: int) -> Value:
            return F.slice_(v, at, start, count)

        if n % 2:
            whole_re = F.concat([re, F.flip(pick(re, 1, m), (at,))], at)
            whole_im = F.concat([im, F.neg(F.flip(pick(im, 1, m), (at,)))], at)
            made = Dft(True, self.scale).decompose(paired(whole_re, whole_im))
            return F.reshape(F.slice_(made, at + 1, 0, 1), (*lead, n))
        a, b = pick(re, 0, m), pick(im, 0, m)
        c, d = F.flip(pick(re, 1, m), (at,)), F.flip(pick(im, 1, m), (at,))
        angle = 2.0 * np.pi * np.arange(m) / n
        cos, sin = (graph.constant(fn(angle).astype(x.dtype.np)) for fn in (np.cos, np.sin))
        u, v = F.sub(a, c), F.add(b, d)
        odd_re, odd_im = F.sub(F.mul(cos, u), F.mul(sin, v)), F.add(F.mul(cos, v), F.mul(sin, u))
        both = paired(F.sub(F.add(a, c), odd_im), F.add(F.sub(b, d), odd_re))
        return F.reshape(Dft(True, self.scale).decompose(both), (*lead, n))

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return (F.mul(RealDft(self.scale)(g), _weights(g.node.graph, self.n, 2.0, g.dtype)),)
