"""Symmetric eigenvalues: reduction to a tridiagonal matrix by reflections, then implicit QL.

The values alone, and small matrices, are one program a matrix, all in local memory, where matrix and vectors lie in rows, so that
reflections and rotations run along registers. Larger ones with vectors keep reflections and rotations and apply them afterwards, to slices
of all vectors on all threads. The tridiagonal numbers are f64. Matrices of no rows take no launch.
"""

from __future__ import annotations

import numpy as np

from ...core.dims import product
from ...core.dtypes import DType, f64, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.linalg.spectra import Eigh as EighOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Buffer, Launch
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .eigh_ql import Record, Rotate, ql
from .eigh_tridiagonal import product_of, symmetric, tridiagonal
from .matrices import Columns, Matrices, nothing, padded, vector
from .spectra import columns_launch, matrix_of, rank_of, sign_of

# Eigenvectors of symmetric matrices from recorded reflections and rotations, on all threads.
# Launches: one program a matrix reduces it and finds the eigenvalues, keeping what it did. Programs of the second each take some components
# of all vectors, in local memory: the product of the reflections, four at a time, then all rotations; a sweep's rotations hand a row from
# one to the next in registers. The third does what found no room in the record (`ROOM`; seldom anything). The fourth finds each vector's
# place and sign, the last turns the vectors into columns. The order of all sums depends on the sizes alone.
ROOM = (1.25, 16)  # rotations a matrix of n rows may record: n * (1.25 n + 16); most take 0.9 n²
SWEEPS = (3, 32)  # sweeps: 3 n + 32; most take 1.7 n
GROUP = 4  # reflections that are applied together


class Vectors:
    """The launches of one region."""

    def __init__(self, region: Region, target: TargetSpec, n: int) -> None:
        self.region, self.n = region, n
        self.a = region.operands[0]
        self.lead, self.dtype = self.a.type.shape[:-2], self.a.type.dtype
        self.width, self.wide = vector(self.dtype, target), vector(f64, target)
        self.slice = 2 * self.width
        self.slices = -(-n // self.slice)
        self.most, self.most_sweeps = int(n * (ROOM[0] * n + ROOM[1])), int(SWEEPS[0] * n + SWEEPS[1])
        self.eps = float(np.finfo(self.dtype.np).eps)
        line = padded(n, self.width)
        self.v = self._temp("v", self.dtype, n + GROUP, line)
        self.taus = self._temp("taus", self.dtype, n + GROUP - 1)
        self.tri = self._temp("tridiagonal", f64, 2, padded(n + 1, self.wide))  # behind them what values are multiplied with
        self.state = self._temp("state", i64, 3)
        self.sweeps = self._temp("sweeps", i64, self.most_sweeps, 3)
        self.rotations = self._temp("rotations", self.dtype, self.most, 2)
        self.z = self._temp("z", self.dtype, n, self.slices * self.slice + self.width)
        self.order, self.signs = self._temp("order", i64, n), self._temp("signs", self.dtype, n)

    def _temp(self, name: str, dtype: DType, *shape: int) -> Operand:
        type_ = TensorType(dtype, (*self.lead, *shape))
        return Operand(type_, Buffer(f"{self.region.name}.{name}", "temp", type_.nbytes), Layout.contiguous(type_.shape))

    def launches(self) -> list[Launch]:
        name, out = f"{self.region.name}.columns", self.region.results[1]
        columns = columns_launch(name, self.lead, self.z, self.order, self.signs, out, self.width)
        return [self._values(), self._slices(), self._rest(), self._places(), columns]

    def _call(self, template: str, suffix: str = "") -> Matrices:
        return Matrices(template, self.region.name + suffix, self.lead)

    def _values(self) -> Launch:
        w, n = self._call("eigh"), self.n
        b = w.b
        a = w.read("a", self.a)
        v, taus, tri = (w.write(s, o) for s, o in (("v", self.v), ("taus", self.taus), ("tri", self.tri)))
        state, sweeps, rotations = (w.write(s, o) for s, o in (("state", self.state), ("sweeps", self.sweeps), ("turns", self.rotations)))
        size, most_sweeps, most = (w.call.word(s, x) for s, x in (("n", n), ("most_sweeps", self.most_sweeps), ("most", self.most)))
        at = w.at(b.pid)
        rows = Columns(b, self.dtype, n, n, self.width)
        power = symmetric(b, a, at, rows, size)
        d, e = Columns(b, f64, 1, n, self.wide), b.scratch(f64, (padded(n + 1, self.wide),))
        kept, factors = Columns(b, self.dtype, n, n, self.width, matrix_of(v, at)), matrix_of(taus, at, 1)
        tridiagonal(b, rows, d, e, kept, factors, size, n, keep=True)
        for i in range(GROUP - 1):  # reflections that are none fill the last group
            kept.zero(size + i, size)
            b.store(factors, (size + (i - 1),), b.full((), 0.0, self.dtype))
        record = Record(matrix_of(sweeps, at), matrix_of(rotations, at), matrix_of(state, at, 1), most_sweeps, most)
        ql(b, d, e, size, n, self.eps, record=record)
        with b.loop(0, size + 1, self.wide) as loop:
            b.store(tri, (*at, 0, loop.index), d.get(0, loop.index))
            b.store(tri, (*at, 1, loop.index), b.load(e, (loop.index,), (self.wide,)))
        b.store(tri, (*at, 1, size), power)
        return w.call.finish(product(self.lead), flops=region_flops(self.region), bytes_=region_bytes(self.region))

    def _slices(self) -> Launch:
        w, n = self._call("eigh_vectors", ".vectors"), self.n
        b = w.b
        v, taus, state, sweeps, rotations = (w.read(s, o) for s, o in (
            ("v", self.v), ("taus", self.taus), ("state", self.state), ("sweeps", self.sweeps), ("turns", self.rotations)))
        out = w.write("z", self.z)
        size, slices = w.call.word("n", n), w.call.word("slices", self.slices)
        start = b.pid % slices * self.slice
        at = w.at(b.pid // slices)
        part = b.scratch(self.dtype, (n, self.slice))
        own = b.iota((self.slice,), 0) + b.from_index(start)
        with b.loop(0, size) as row:
            hit = b.cmp("eq", own, b.from_index(row.index))
            one, none = b.full((self.slice,), 1.0, self.dtype), b.full((self.slice,), 0.0, self.dtype)
            b.store(part, (row.index, 0), b.select(hit, one, none))
        vectors = Columns(b, self.dtype, n, n, self.width, matrix_of(v, at))
        factors = matrix_of(taus, at, 1)
        with b.loop(0, size - 1, GROUP) as step:
            self._reflect(b, part, vectors, factors, step.index, size)
        table, turns = matrix_of(sweeps, at), matrix_of(rotations, at)
        with b.loop(0, b.to_index(b.load(state, (*at, 1), ()))) as sweep:
            low, end, first = (b.to_index(b.load(table, (sweep.index, i), ())) for i in range(3))
            with b.loop(0, end - low, 1, [b.load(part, (end, 0), (self.slice,))]) as loop:
                y, i = loop.carried[0], end - 1 - loop.index
                sine, cosine = (b.load(turns, (first + loop.index, k), ()) for k in range(2))
                x = b.load(part, (i, 0), (self.slice,))
                b.store(part, (i + 1, 0), b.fma(cosine, y, sine * x))
                loop.next(b.fma(-sine, y, cosine * x))
            b.store(part, (low, 0), loop.results[0])
        with b.loop(0, size) as row:
            b.store(out, (*at, row.index, start), b.load(part, (row.index, 0), (self.slice,)))
        flops = product(self.lead) * 7 * n**3
        return w.call.finish(product(self.lead) * self.slices, flops=flops, bytes_=self.v.type.nbytes + self.z.type.nbytes)

    def _reflect(self, b: KernelBuilder, part: View, v: Columns, taus: View, k: Ix, size: Ix) -> None:
        """Steps k … k + GROUP - 1 on a slice: what each adds goes by the sums of all of them with the slice as it is."""
        numbers, shape = range(GROUP), (self.slice,)

        def factor(q: int, j: Ix | int) -> Tile:
            return b.load(v.view, (k + (q + 1), j), ())

        with b.loop(k + 1, size, 1, [b.full(shape, 0.0, self.dtype)] * GROUP) as loop:
            x = b.load(part, (loop.index, 0), shape)
            loop.next(*(b.fma(factor(q, loop.index), x, loop.carried[q]) for q in numbers))
        done: list[Tile] = []
        for q in numbers:
            total = loop.results[q]
            for p, other in enumerate(done):
                total = b.fma(v.dot(k + (p + 1), v, k + (q + 1), k // self.width * self.width, size), other, total)
            done.append(total * -b.load(taus, (k + q,), ()))
        with b.loop(k + 1, size) as loop:
            x = b.load(part, (loop.index, 0), shape)
            for q in numbers:
                x = b.fma(factor(q, loop.index), done[q], x)
            b.store(part, (loop.index, 0), x)

    def _rest(self) -> Launch:
        """Sweeps that found no room, with rotations of whole rows."""

        w, n = self._call("eigh_rest", ".rest"), self.n
        b = w.b
        state, tri, z = w.change("state", self.state), w.change("tri", self.tri), w.change("z", self.z)
        size = w.call.word("n", n)
        at = w.at(b.pid)
        begin = b.load(state, (*at, 0), ())
        with b.if_(b.cmp("lt", begin, b.from_index(size))):
            d, e = Columns(b, f64, 1, n, self.wide), b.scratch(f64, (padded(n + 1, self.wide),))
            with b.loop(0, size + 1, self.wide) as loop:
                d.put(0, loop.index, b.load(tri, (*at, 0, loop.index), (self.wide,)))
                b.store(e, (loop.index,), b.load(tri, (*at, 1, loop.index), (self.wide,)))
            rows = Columns(b, self.dtype, n, n, self.width, matrix_of(z, at))
            ql(b, d, e, size, n, self.eps, rotate=rotate_rows(b, rows, size), begin=begin)
            with b.loop(0, size, self.wide) as loop:
                b.store(tri, (*at, 0, loop.index), d.get(0, loop.index))
        return w.call.finish(product(self.lead))

    def _places(self) -> Launch:
        """Values in order; which vector comes where, and whether it is turned round. One program a vector."""
        w, n = self._call("eigh_places", ".places"), self.n
        b = w.b
        tri, z = w.read("tri", self.tri), w.read("z", self.z)
        values, order, signs = w.write("w", self.region.results[0]), w.write("order", self.order), w.write("signs", self.signs)
        size = w.call.word("n", n)
        i = b.pid % size
        at = w.at(b.pid // size)
        d = Columns(b, f64, 2, n, self.wide, matrix_of(tri, at))
        place = rank_of(b, d, i, size)
        b.store(values, (*at, place), b.cast(d.one(0, i) * d.one(1, size), self.dtype))
        b.store(order, (*at, place), b.from_index(i))
        b.store(signs, (*at, place), sign_of(b, Columns(b, self.dtype, n, n, self.width, matrix_of(z, at)), i, size))
        return w.call.finish(product(self.lead) * n, bytes_=self.z.type.nbytes + n * self.tri.type.nbytes)


SMALL = 48  # rows of a matrix whose vectors one program computes


class EighTemplate(Template):
    key = "eigh"
    serves = (EighOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, _, n = a.type.shape
        assert isinstance(n, int)
        if n == 0:
            return nothing(region.name, region.results)
        if n > SMALL and len(region.results) > 1:
            return Vectors(region, target, n).launches()
        w = Matrices("eigh", region.name, tuple(lead))
        b, width = w.b, vector(a.type.dtype, target)
        av, values = w.read("a", a), w.write("w", region.results[0])
        vectors = w.write("v", region.results[1]) if len(region.results) > 1 else None
        size = w.call.word("n", n)
        at = w.at(b.pid)
        rows = Columns(b, a.type.dtype, n, n, width)
        power = symmetric(b, av, at, rows, size)
        d = Columns(b, f64, 1, n, vector(f64, target))
        e = b.scratch(f64, (padded(n + 1, vector(f64, target)),))
        keep = vectors is not None
        v, taus = Columns(b, a.type.dtype, n + 1 if keep else 2, n, width), b.scratch(a.type.dtype, (n,))
        tridiagonal(b, rows, d, e, v, taus, size, n, keep=keep)
        z = Columns(b, a.type.dtype, n, n, width) if keep else None
        if z is not None:
            product_of(b, z, v, taus, size)
        ql(b, d, e, size, n, float(np.finfo(a.type.dtype.np).eps), rotate=None if z is None else rotate_rows(b, z, size))
        _write(b, d, power, z, size, values, vectors, at)
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


def rotate_rows(b: KernelBuilder, z: Columns, size: Ix) -> Rotate:
    """Rotations of whole rows of z, at once."""
    def rotate(i: Ix | int, _: Ix, s: Tile, c: Tile) -> None:
        sine, cosine = b.cast(s, z.dtype), b.cast(c, z.dtype)

        def part(k: Ix) -> None:
            x, y = z.get(i, k), z.get(i + 1, k)
            z.put(i + 1, k, b.fma(cosine, y, sine * x))
            z.put(i, k, b.fma(-sine, y, cosine * x))

        z.each(0, size, part)

    return rotate


def _write(b: KernelBuilder, d: Columns, power: Tile, z: Columns | None, size: Ix, values: View, vectors: View | None,
           at: list[Ix | int]) -> None:
    with b.loop(0, size) as loop:
        i = loop.index
        place = rank_of(b, d, i, size)
        dtype = values.type.dtype
        b.store(values, (*at, place), b.cast(d.one(0, i) * power, dtype))
        if z is not None and vectors is not None:
            sign = sign_of(b, z, i, size)
            with b.loop(0, size, z.width) as part:
                b.store(vectors, (*at, part.index, place), z.get(i, part.index) * sign, axes=(len(at),), limit=(size - part.index,))
