"""Singular values, and eigenvalues of matrices that need not be symmetric: SciPy's LAPACK, called from inside a kernel.

One program a matrix: it copies the matrix to memory of its own, calls LAPACK (which runs on this one thread), and writes the results with
the order and the signs that the ops promise. LAPACK's matrices lie in columns, so what it sees of a copied matrix is the transpose: U and
V of singular values change places for that, a matrix for eigenvalues is transposed as it is copied. A matrix that holds NaN or infinity,
or for which LAPACK finds no result, gives NaN everywhere. Matrices without rows or columns take no launch.
"""

from __future__ import annotations

from ...core.dims import product
from ...core.dtypes import DType, f32, f64, i32
from ...core.target_spec import TargetSpec
from ...ops.linalg.spectra import Eig as EigOp
from ...ops.linalg.spectra import Svd as SvdOp
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..launch import Launch
from ..region import Region
from ..template import Template, region_bytes, region_flops
from .matrices import Matrices, nothing, vector
from .spectra import in_order, power_of

BLOCK = 64  # columns that LAPACK takes at a time, where its workspace allows it
NAN = float("nan")


class Routine:
    """A kernel around one call of LAPACK in `dtype`."""

    def __init__(self, name: str, region: Region, target: TargetSpec, dtype: DType) -> None:
        a = region.operands[0]
        self.region, self.dtype, self.width = region, dtype, vector(dtype, target)
        self.lead = a.type.shape[:-2]
        self.w = Matrices(name, region.name, self.lead)
        self.b: KernelBuilder = self.w.b
        self.a = self.w.read("a", a)
        self.outs = [self.w.write(f"y{i}", o) for i, o in enumerate(region.results)]
        self.at = self.w.at(self.b.pid)
        self.scalars: dict[int | str, View] = {}

    def memory(self, *shape: int, dtype: DType | None = None) -> View:
        return self.b.scratch(dtype or self.dtype, tuple(max(d, 1) for d in shape))

    def scalar(self, value: int | str) -> View:
        """Fortran takes all arguments by address, numbers and letters too."""
        if value not in self.scalars:
            self.scalars[value] = place = self.memory(1, dtype=i32)
            self.b.store(place, (0,), self.b.full((), ord(value) if isinstance(value, str) else value, i32))
        return self.scalars[value]

    def copied(self, rows: int, columns: int, *, transposed: bool = False) -> tuple[View, Tile]:
        """The matrix (as rows, or as columns where `transposed`) and its largest magnitude: NaN where one is."""
        b, to = self.b, self.memory(*((columns, rows) if transposed else (rows, columns)))
        outer, inner = (columns, rows) if transposed else (rows, columns)
        with b.loop(0, outer, 1, [b.full((self.width,), 0.0, self.dtype)]) as row:
            with b.loop(0, inner, self.width, [row.carried[0]]) as part:
                i, limit = part.index, (inner - part.index,)
                at = (*self.at, i, row.index) if transposed else (*self.at, row.index, i)
                axis = len(self.at) + (not transposed)
                x = b.cast(b.load(self.a, at, (self.width,), axes=(axis,), limit=limit), self.dtype)
                b.store(to, (row.index, i), x, limit=limit)
                part.next(b.binary("max", part.carried[0], b.unary("abs", x)))
            row.next(part.results[0])
        return to, b.reshape(b.reduce("max", row.results[0]), ())

    def call(self, name: str, most: Tile, *arguments: View | int | str) -> Tile:
        """Call LAPACK where the matrix's largest magnitude is finite: 1 where it has found a result, else NaN."""
        b, info = self.b, self.memory(1, dtype=i32)
        b.store(info, (0,), b.full((), 1, i32))
        function = self.w.call.native(f"lapack.{'s' if self.dtype is f32 else 'd'}{name}")
        given = [a if isinstance(a, View) else self.scalar(a) for a in arguments]
        with b.if_(b.cmp("lt", most, float("inf"))):
            b.call(function, *given, info)
        found = b.cmp("eq", b.load(info, (0,), ()), 0)
        return b.select(found, b.full((), 1.0, self.dtype), b.full((), NAN, self.dtype))

    def row(self, view: View, row: Ix | int, i: Ix, count: int) -> Tile:
        """Elements i … i + width - 1 of a row of `count`, zeros behind."""
        return self.b.load(view, (row, i), (self.width,), limit=(count - i,))

    def signs(self, most: Tile, least: Tile) -> Tile:
        """-1 where the element of largest magnitude is negative, else 1."""
        return self.b.select(self.b.cmp("gt", -least, most), self.b.full(most.shape, -1.0, self.dtype), self.b.full((), 1.0, self.dtype))

    def finish(self) -> list[Launch]:
        return [self.w.call.finish(product(self.lead), flops=region_flops(self.region), bytes_=region_bytes(self.region), shared=True,
                                   note="LAPACK")]


class SvdTemplate(Template):
    key = "svd"
    serves = (SvdOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        m, n = region.operands[0].type.shape[-2:]
        assert isinstance(m, int) and isinstance(n, int)
        if m == 0 or n == 0:
            return nothing(region.name, region.results)
        r = Routine("svd", region, target, region.operands[0].type.dtype)
        b, at, k, vectors = r.b, r.at, min(m, n), len(r.outs) > 1
        a, most = r.copied(m, n)
        s, u, vt = r.memory(1, k), r.memory(m, k if vectors else 1), r.memory(k if vectors else 1, n)
        work = (4 * k * k + 7 * k if vectors else 3 * k + max(m, n, 7 * k)) + BLOCK * (m + n)
        job, wide = ("S", k) if vectors else ("N", 1)
        found = r.call("gesdd", most, job, n, m, a, n, s, vt, n, u, wide, r.memory(work), work, r.memory(8 * k, dtype=i32))
        with b.loop(0, k, r.width) as part:
            i, limit = part.index, (k - part.index,)
            b.store(r.outs[0], (*at, i), r.row(s, 0, i, k) * found, limit=limit)
            if vectors:
                with b.loop(0, m, 1, [b.full((r.width,), 0.0, r.dtype)] * 2) as line:
                    x = r.row(u, line.index, i, k)
                    line.next(b.binary("max", line.carried[0], x), b.binary("min", line.carried[1], x))
                sign = r.signs(*line.results) * found
                b.store(s, (0, i), sign, limit=limit)
                with b.loop(0, m) as line:
                    b.store(r.outs[1], (*at, line.index, i), r.row(u, line.index, i, k) * sign, limit=limit)
        if vectors:
            with b.loop(0, k) as line, b.loop(0, n, r.width) as part:
                x = r.row(vt, line.index, part.index, n) * b.load(s, (0, line.index), ())
                b.store(r.outs[2], (*at, line.index, part.index), x, limit=(n - part.index,))
        return r.finish()


class EigTemplate(Template):
    """In f64: an eigenvalue of a matrix that is not symmetric may be far more sensitive than the matrix."""

    key = "eig"
    serves = (EigOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        n = region.operands[0].type.shape[-1]
        assert isinstance(n, int)
        if n == 0:
            return nothing(region.name, region.results)
        r = Routine("eig", region, target, f64)
        b, at, vectors = r.b, r.at, len(r.outs) > 2
        out = r.outs[0].type.dtype
        a, most = r.copied(n, n, transposed=True)
        power = power_of(b, most)
        inverse = 1.0 / power  # to magnitudes near 1: releases of LAPACK scale very large matrices, and not their eigenvalues back
        with b.loop(0, n) as line, b.loop(0, n, r.width) as part:
            b.store(a, (line.index, part.index), r.row(a, line.index, part.index, n) * inverse, limit=(n - part.index,))
        re, im, v, work = r.memory(1, n), r.memory(1, n), r.memory(n if vectors else 1, n), (4 + BLOCK) * n
        with b.loop(0, n) as loop:
            for x in (re, im):
                b.store(x, (0, loop.index), b.full((), 0.0, f64))
        found = r.call("geev", most, "N", "V" if vectors else "N", n, a, n, re, im, v, n, v, n, r.memory(work), work)
        with b.loop(0, n) as loop:
            i = loop.index
            mine = b.load(re, (0, i), ()), b.load(im, (0, i), ())
            place = self._place(r, re, im, mine, i, n)
            for view, own in zip(r.outs, mine, strict=False):
                b.store(view, (*at, place), b.cast(own * power * found, out))
            if vectors:
                self._vector(r, v, i, place, mine[1], found, n)
        return r.finish()

    @staticmethod
    def _vector(r: Routine, v: View, i: Ix, place: Ix, imag: Tile, found: Tile, n: int) -> None:
        """Write eigenvector i. A pair of conjugate vectors is two rows, the real and the imaginary part; its first eigenvalue lies in the
        upper half plane. The largest element of a vector is real."""
        b, at, out = r.b, r.at, r.outs[2].type.dtype
        zero = b.full((), 0.0, f64)
        up, down = (b.cmp(fn, imag, 0.0) for fn in ("gt", "lt"))
        side = b.select(up, zero + 1.0, b.select(down, zero - 1.0, zero))
        first, second = i - b.to_index(b.cast(down, i32)), i + b.to_index(b.cast(up, i32))
        with b.loop(0, n, r.width, [b.full((r.width,), 0.0, f64)] * 2) as part:
            x = r.row(v, first, part.index, n)
            part.next(b.binary("max", part.carried[0], x), b.binary("min", part.carried[1], x))
        sign = r.signs(*(b.reshape(b.reduce(fn, x), ()) for fn, x in zip(("max", "min"), part.results, strict=True))) * found
        with b.loop(0, n, r.width) as part:
            for view, line, factor in ((r.outs[2], first, sign), (r.outs[3], second, sign * side)):
                x = b.cast(r.row(v, line, part.index, n) * factor, out)
                b.store(view, (*at, part.index, place), x, axes=(len(at),), limit=(n - part.index,))

    @staticmethod
    def _place(r: Routine, re: View, im: View, mine: tuple[Tile, Tile], i: Ix, n: int) -> Ix:
        """Where eigenvalue i stands by real part, then by imaginary part."""
        b = r.b
        with b.loop(0, n, r.width, [b.full((r.width,), 0, i32)]) as loop:
            j = b.iota((r.width,), 0) + b.from_index(loop.index)
            before, same = in_order(b, r.row(re, 0, loop.index, n), mine[0])
            below, equal = in_order(b, r.row(im, 0, loop.index, n), mine[1])
            first = b.binary("or", below, b.binary("and", equal, b.cmp("lt", j, b.from_index(i))))
            smaller = b.binary("and", b.binary("or", before, b.binary("and", same, first)), b.cmp("lt", j, n))
            loop.next(loop.carried[0] + b.cast(smaller, i32))
        return b.to_index(b.reduce("sum", loop.results[0]))
