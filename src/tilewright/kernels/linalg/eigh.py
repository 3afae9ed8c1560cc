"""Symmetric eigenvalues: reduction to a tridiagonal matrix by reflections, then implicit QL.

The values alone, and small matrices, are one program a matrix, all in local memory, where matrix and vectors lie in rows, so that
reflections and rotations run along registers. Larger ones with vectors keep reflections and rotations and apply them afterwards, to slices
of all vectors on all threads. The tridiagonal numbers are f64. Matrices of no rows take no launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...core.dims import product
from ...core.dtypes import DType, f64, i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.linalg.spectra import Eigh as EighOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Buffer, Launch
from ..loops import in_blocks
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .matrices import Columns, Matrices, nothing, padded, reflection, vector
from .spectra import columns_launch, matrix_of, power_of, rank_of, sign_of

# --- Eigenvalues of a symmetric tridiagonal matrix by implicit QL, in f64, and what becomes of the rotations.

STEPS = 40
TINY = 1e-150  # added where it is lost unless the sum were 0: a rotation then is none (cosine 1, sine 0) and needs no case of its own
LEAST = 1e-100  # what is smaller counts as zero beside elements of size 1, and is far above TINY

Rotate = Callable[[Ix | int, Ix, Tile, Tile], None]  # (row, number in its sweep, sine, cosine): of rows `row` and `row` + 1


@dataclass(frozen=True)
class Record:
    """Rotations for later: row k of `sweeps` is a sweep's lowest row, its highest, and where its sines and cosines begin in `rotations`.
    `state` is the row in work, the number of sweeps and of rotations; sweeps that find no room are left undone."""

    sweeps: View
    rotations: View
    state: View
    most_sweeps: Ix
    most: Ix


def ql(b: KernelBuilder, d: Columns, e: View, size: Ix, n: int, eps: float, *, rotate: Rotate | None = None, record: Record | None = None,
       begin: Tile | None = None) -> None:
    """d, with elements of size 1 at most, becomes the eigenvalues. Rotations are applied at once, or recorded, or neither.
    From row `begin` on (default: the first)."""
    zero = b.full((), 0, i64)
    place, done = b.scratch(i64, (3,)), b.scratch(i64, (1,))  # row in work, sweeps, rotations
    for i, x in enumerate((zero if begin is None else begin, zero, zero)):
        b.store(place, (i,), x)
    b.store(done, (0,), zero)
    with b.loop(0, n * STEPS), b.if_(b.cmp("eq", b.load(done, (0,), ()), 0)):
        low = b.to_index(b.load(place, (0,), ()))
        end = _end(b, d, e, low, size, eps)
        with b.if_(b.compare("ge", low, size - 1)):
            b.store(place, (0,), b.from_index(size))
            b.store(done, (0,), b.full((), 1, i64))
        with b.if_(b.compare("lt", low, size - 1)):
            with b.if_(b.compare("le", end, low)):
                b.store(place, (0,), b.from_index(low + 1))
            with b.if_(b.compare("gt", end, low)):
                if record is None:
                    _sweep(b, d, e, low, end, rotate)
                else:
                    _recorded(b, d, e, low, end, record, place, done)
    if record is not None:
        for i in range(3):
            b.store(record.state, (i,), b.load(place, (i,), ()))


def _end(b: KernelBuilder, d: Columns, e: View, low: Ix, size: Ix, eps: float) -> Ix:
    """The first row from `low` on behind which the matrix falls apart."""
    width = d.width
    with b.loop(low, size - 1, width, [b.broadcast(b.from_index(size - 1), (width,))]) as loop:
        places = b.iota((width,), 0) + b.from_index(loop.index)
        scale = b.unary("abs", d.get(0, loop.index)) + b.unary("abs", d.get(0, loop.index + 1))
        small = b.cmp("le", b.unary("abs", b.load(e, (loop.index,), (width,))), b.binary("max", scale * eps, LEAST))
        loop.next(b.select(small, b.binary("min", loop.carried[0], places), loop.carried[0]))
    return b.to_index(b.reduce("min", loop.results[0]))


def _recorded(b: KernelBuilder, d: Columns, e: View, low: Ix, end: Ix, record: Record, place: View, done: View) -> None:
    number, used = (b.to_index(b.load(place, (i,), ())) for i in (1, 2))
    room = b.binary("and", b.compare("lt", number, record.most_sweeps), b.compare("le", used + (end - low), record.most))
    with b.if_(b.unary("not", room)):
        b.store(done, (0,), b.full((), 1, i64))
    with b.if_(room):
        for i, x in enumerate((low, end, used)):
            b.store(record.sweeps, (number, i), b.from_index(x))

        def keep(row: Ix | int, k: Ix, s: Tile, c: Tile) -> None:
            for i, x in enumerate((s, c)):
                b.store(record.rotations, (used + k, i), b.cast(x, record.rotations.type.dtype))

        _sweep(b, d, e, low, end, keep)
        b.store(place, (1,), b.from_index(number + 1))
        b.store(place, (2,), b.from_index(used + (end - low)))


def _sweep(b: KernelBuilder, d: Columns, e: View, low: Ix, end: Ix, rotate: Rotate | None) -> None:
    """One step of QL on rows low … end."""
    def at(i: Ix | int) -> Tile:
        return b.load(e, (i,), ())

    def number(x: float) -> Tile:
        return b.full((), x, f64)

    x = (d.one(0, low + 1) - d.one(0, low)) / (at(low) * 2.0)
    r = b.unary("sqrt", b.fma(x, x, number(1.0)))
    shift = x + b.select(b.cmp("lt", x, 0.0), -r, r)
    start = d.one(0, end) - d.one(0, low) + at(low) / shift + TINY
    one = number(1.0)
    with b.loop(0, end - low, 1, [start, one, one, one, number(0.0)]) as sweep:
        g, s, c, s2, p = sweep.carried  # s2: the sine's square, from f and not from ff, or their difference would grow
        i = end - 1 - sweep.index
        f, h = s * at(i), c * at(i)
        ff = s2 * (at(i) * at(i))
        total = b.fma(g, g, ff)
        inverse, root = one / total, b.unary("sqrt", total)
        b.store(e, (i + 1,), root)
        s2, sc, c2 = f * f * inverse, f * g * inverse, g * g * inverse
        s, c = f * inverse * root, g * inverse * root
        g = d.one(0, i + 1) - p
        apart = d.one(0, i) - g
        p = b.fma(s2, apart, sc * (h * 2.0))
        d.set(0, i + 1, g + p)
        if rotate is not None:
            rotate(i, sweep.index, s, c)
        sweep.next(b.fma(sc, apart, b.fma(c2, h * 2.0, number(TINY) - h)), s, c, s2, p)
    g, _, _, _, p = sweep.results
    d.set(0, low, d.one(0, low) - p)
    b.store(e, (low,), g)
    b.store(e, (end,), number(0.0))


# --- Reduction of a symmetric matrix to a tridiagonal one by reflections, in local memory, and the product of the reflections.

BLOCK = 4  # rows that are changed together
FLOOR = {"f32": 1e-30, "f64": 1e-290}  # squares so small have no precision; beside elements of size 1 they do not count


def symmetric(b: KernelBuilder, a: View, at: list[Ix | int], rows: Columns, size: Ix) -> Tile:
    """The symmetric part of a matrix, in `rows`, divided by a power of two that makes its largest element about 1: that power (1 where
    the matrix has no size: zeros, infinities, NaN)."""
    width, rank, dtype = rows.width, len(at), rows.dtype
    with b.loop(0, size, 1, [b.full((width,), 0.0, dtype)]) as row:
        with b.loop(0, size + width, width, row.carried) as loop:
            left = (size - loop.index,)
            x = b.load(a, (*at, row.index, loop.index), (width,), limit=left)
            x = (x + b.load(a, (*at, loop.index, row.index), (width,), axes=(rank,), limit=left)) * 0.5
            rows.put(row.index, loop.index, x)
            loop.next(b.binary("max", loop.carried[0], b.unary("abs", x)))
        row.next(*loop.results)
    power = power_of(b, b.reshape(b.reduce("max", row.results[0]), ()))
    with b.loop(0, size) as row:
        rows.scale(row.index, b.full((), 1.0, dtype) / power, 0, size)
    return b.cast(power, f64)


def tridiagonal(b: KernelBuilder, a: Columns, d: Columns, e: View, v: Columns, taus: View, size: Ix, n: int, *, keep: bool) -> None:
    """a, whose largest element is about 1, becomes tridiagonal (d and e). With `keep` vector k + 1 of v becomes step k's reflection, else v
    has two that take turns.

    Step k's reflection I - tau v vᵀ changes a by -(v pᵀ + p vᵀ). The rows behind take that change in step k + 1, in the one pass that also
    multiplies them with that step's vector, some rows at a time. Passes begin at whole registers: vectors are zero before their first."""
    dtype, width = a.dtype, a.width
    p = Columns(b, dtype, 2, n, width)
    v.zero(0, size)
    p.zero(0, size)

    def column(of: Columns, which: Ix | int, row: Ix | int, height: int) -> Tile:
        return b.load(of.view, (which, row), (height, 1), axes=(1, 0))

    def changed(row: Ix | int, i: Ix | int, height: int, old: Ix | int, other: Ix | int) -> Tile:
        """Rows from `row` on, elements from i on, after the step before."""
        mine, theirs = -column(v, old, row, height), -column(p, other, row, height)
        x = b.load(a.view, (row, i), (height, width))
        right, left = b.load(p.view, (other, i), (1, width)), b.load(v.view, (old, i), (1, width))
        return b.fma(mine, right, b.fma(theirs, left, x))

    with b.loop(0, size - 1) as step:
        k = step.index
        first, p_old, p_new = k + 1, k % 2, (k + 1) % 2
        old, new = (k, k + 1) if keep else (p_old, p_new)
        start = first // width * width
        v.zero(new, size)
        p.zero(p_new, size)
        a.each(k // width * width, size, lambda i: b.store(a.view, (k, i), changed(k, i, 1, old, p_old)))
        v.each(first + 1, size, lambda i: v.put(new, i, a.get(k, i)))
        beta, tau = reflection(b, v, new, a.one(k, first), first, size, FLOOR[dtype.name])
        b.store(taus, (k,), tau)
        b.store(e, (k,), b.cast(beta, f64))
        d.set(0, k, b.cast(a.one(k, k), f64))

        def rows(row: Ix, height: int) -> None:
            with b.loop(start, size, width, [b.full((height, width), 0.0, dtype)]) as loop:
                x = changed(row, loop.index, height, old, p_old)
                b.store(a.view, (row, loop.index), x)
                loop.next(b.fma(x, b.load(v.view, (new, loop.index), (1, width)), loop.carried[0]))
            b.store(p.view, (p_new, row), b.reduce("sum", loop.results[0]) * tau, axes=(1, 0))

        in_blocks(b, first, size, BLOCK, rows)
        half = b.full((), -0.5, dtype) * tau * p.dot(p_new, v, new, start, size)
        p.add(p_new, half, v, new, start, size)
    last = size - 1
    corner = changed(last, last, 1, last if keep else last % 2, last % 2)
    b.store(a.view, (last, last), corner)
    d.set(0, last, b.cast(a.one(last, last), f64))
    b.store(e, (last,), b.full((), 0.0, f64))


def product_of(b: KernelBuilder, z: Columns, v: Columns, taus: View, size: Ix) -> None:
    """z becomes the product of all reflections, transposed."""
    dtype, width = z.dtype, z.width
    one = b.full((), 1.0, dtype)
    with b.loop(0, size) as row:
        z.zero(row.index, size)
        z.set(row.index, row.index, one)
    with b.loop(0, size - 1) as back:
        k2 = size - 2 - back.index
        tau2, start2 = b.load(taus, (k2,), ()), (k2 + 1) // width * width

        def reflect(row: Ix, height: int) -> None:
            with b.loop(start2, size, width, [b.full((height, width), 0.0, dtype)]) as loop:
                x = b.load(z.view, (row, loop.index), (height, width))
                loop.next(b.fma(x, b.load(v.view, (k2 + 1, loop.index), (1, width)), loop.carried[0]))
            factor = b.reduce("sum", loop.results[0]) * -tau2
            with b.loop(start2, size, width) as loop:
                x = b.load(z.view, (row, loop.index), (height, width))
                b.store(z.view, (row, loop.index), b.fma(factor, b.load(v.view, (k2 + 1, loop.index), (1, width)), x))

        in_blocks(b, k2 + 1, size, BLOCK, reflect)

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
