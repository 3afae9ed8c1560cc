"""Eigenvalues of real matrices: reflections to Hessenberg form, then complex QR with Wilkinson's shift. One program a matrix, all of it in
local memory and in f64.

The matrix lies in rows, its vectors in columns, each followed by zeros, so that rotations run along registers. The loop over QR steps has a
fixed bound (`STEPS` an eigenvalue) and does nothing once all have converged. A real matrix has its eigenvalues in conjugate pairs: each is
brought together with its partner at the end, so that pairs are exact and the order by real part is one. Matrices of no rows take no launch.
"""

from __future__ import annotations

from ...core.dims import product
from ...core.dtypes import f64, i64
from ...core.target_spec import TargetSpec
from ...ops.linalg.eigenvalues import Eig as EigOp
from ...tile.builder import Ix, KernelBuilder, Tile
from ..launch import Launch
from ..region import Region
from ..template import Reason, Template, alone, region_bytes, region_flops
from .matrices import Columns, Matrices, nothing, reflection, vector
from .spectra import in_order

STEPS, UNUSUAL, EPS = 60, 11, 2.0**-52
Pair = tuple[Tile, Tile]


class Eig(Template):
    key = "eig"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, EigOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, _, n = a.type.shape
        assert isinstance(n, int)
        if n == 0:
            return nothing(region.name, region.results)
        w = Matrices("eig", region.name, tuple(lead))
        b, width = w.b, vector(f64, target)
        av = w.read("a", a)
        outs = [w.write(name, o) for name, o in zip(("wr", "wi", "vr", "vi"), region.results, strict=False)]
        size, at = w.call.word("n", n), w.at(b.pid)
        work = _Work(b, n, size, width, vectors=len(outs) > 2)

        def read(row: Ix, i: Ix | int, left: Ix | int) -> Tile:
            return b.cast(b.load(av, (*at, row, i), (width,), limit=(left,)), f64)

        with b.loop(0, size, 1, [b.full((width,), 0.0, f64)]) as row:
            with b.loop(0, size, width, [row.carried[0]]) as part:
                part.next(b.binary("max", part.carried[0], b.unary("abs", read(row.index, part.index, size - part.index))))
            row.next(part.results[0])
        work.scale = work.neither_large_nor_small(b.reshape(b.reduce("max", row.results[0]), ()))
        with b.loop(0, size) as row:
            work.h[0].fill(row.index, size, lambda i, left: read(row.index, i, left) * work.scale)
            work.h[1].zero(row.index, size)
        work.hessenberg()
        work.triangular()
        work.pairs()
        with b.loop(0, size) as loop:
            place = work.place(loop.index)
            for view, x in zip(outs, (work.mean, work.other), strict=False):
                b.store(view, (*at, place), b.cast(b.load(x, (loop.index,), ()) / work.scale, view.type.dtype))
            if len(outs) > 2:
                work.column(loop.index)
                with b.loop(0, size, width) as part:
                    for view, own in zip(outs[2:], work.v, strict=True):
                        b.store(view, (*at, part.index, place), b.cast(own.get(0, part.index), view.type.dtype), axes=(len(at),),
                                limit=(size - part.index,))
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


class _Work:
    """The memory of one matrix: h is in the end upper triangular (rows), z its vectors (columns); each as real and imaginary part."""

    def __init__(self, b: KernelBuilder, n: int, size: Ix, width: int, vectors: bool) -> None:
        self.b, self.n, self.size, self.width, self.vectors = b, n, size, width, vectors
        self.h = tuple(Columns(b, f64, n, n, width) for _ in range(2))
        self.z = tuple(Columns(b, f64, n if vectors else 1, n, width) for _ in range(2))
        self.x, self.v = (tuple(Columns(b, f64, 1, n, width) for _ in range(2)) for _ in range(2))
        self.turns = b.scratch(f64, (4, n))  # of one sweep: parts of a / r and of b / r
        self.mean, self.other = b.scratch(f64, (n,)), b.scratch(f64, (n,))

        self.scale = self.number(1.0)

    def number(self, x: float) -> Tile:
        return self.b.full((), x, f64)

    def neither_large_nor_small(self, most: Tile) -> Tile:
        """The factor that keeps squares of elements up to `most` finite and apart from zero: 1 but for extreme matrices."""
        b, far = self.b, self.b.cmp
        extreme = b.binary("or", far("gt", most, 1e100), b.binary("and", far("lt", most, 1e-100), far("gt", most, 0.0)))
        return b.select(extreme, self.number(1.0) / b.select(extreme, most, self.number(1.0)), self.number(1.0))

    def at(self, i: Ix | int, j: Ix | int) -> Pair:
        return self.h[0].one(i, j), self.h[1].one(i, j)

    # --- complex arithmetic -------------------------------------------------------------------------------------------------------------
    def times(self, p: Pair, q: Pair) -> Pair:
        return p[0] * q[0] - p[1] * q[1], p[0] * q[1] + p[1] * q[0]

    def over(self, p: Pair, q: Pair) -> Pair:
        total = q[0] * q[0] + q[1] * q[1]
        re, im = self.times(p, (q[0], -q[1]))
        return re / total, im / total

    def size_of(self, p: Pair) -> Tile:
        return self.b.unary("abs", p[0]) + self.b.unary("abs", p[1])

    def root(self, p: Pair) -> Pair:
        """The square root whose real part is not negative."""
        b = self.b
        length = b.unary("sqrt", p[0] * p[0] + p[1] * p[1])
        t = b.unary("sqrt", (length + b.unary("abs", p[0])) * 0.5)
        none = b.cmp("eq", t, 0.0)
        u = p[1] * 0.5 / b.select(none, self.number(1.0), t)
        left = b.cmp("lt", p[0], 0.0)
        down = b.cmp("lt", p[1], 0.0)
        return b.select(left, b.unary("abs", u), t), b.select(left, b.select(down, -t, t), u)

    # --- Hessenberg form ----------------------------------------------------------------------------------------------------------------
    def hessenberg(self) -> None:
        """Reflections from both sides; z starts as their product."""
        b, h, size = self.b, self.h[0], self.size
        v, p = Columns(b, f64, 1, self.n, self.width), Columns(b, f64, 1, self.n, self.width)
        if self.vectors:
            with b.loop(0, size) as row:
                for z in self.z:
                    z.zero(row.index, size)
                self.z[0].set(row.index, row.index, self.number(1.0))
        with b.loop(0, size - 2) as step:
            k = step.index
            first = k + 1
            v.zero(0, size)
            with b.loop(first + 1, size) as row:
                v.set(0, row.index, h.one(row.index, k))
            beta, tau = reflection(b, v, 0, h.one(first, k), first, size)
            p.zero(0, size)
            with b.loop(first, size) as row:  # from the left: rows
                p.add(0, v.one(0, row.index), h, row.index, 0, size)
            with b.loop(first, size) as row:
                h.add(row.index, -(tau * v.one(0, row.index)), p, 0, 0, size)
            with b.loop(0, size) as row:  # from the right
                h.add(row.index, -(tau * h.dot(row.index, v, 0, 0, size)), v, 0, 0, size)
            h.set(first, k, beta)
            with b.loop(first + 1, size) as row:
                h.set(row.index, k, self.number(0.0))
            if self.vectors:
                p.zero(0, size)
                with b.loop(first, size) as row:  # z times the reflection: columns of z are its rows here
                    p.add(0, v.one(0, row.index), self.z[0], row.index, 0, size)
                with b.loop(first, size) as row:
                    self.z[0].add(row.index, -(tau * v.one(0, row.index)), p, 0, 0, size)

    # --- QR -------------------------------------------------------------------------------------------------------------------------------
    def triangular(self) -> None:
        b = self.b
        state = b.scratch(i64, (2,))  # the last row in work, and how often it was
        b.store(state, (0,), b.from_index(self.size - 1))
        b.store(state, (1,), b.full((), 0, i64))
        with b.loop(0, self.n * STEPS):
            last = b.load(state, (0,), ())
            with b.if_(b.cmp("gt", last, 0)):
                high = b.to_index(last)
                with b.loop(1, high + 1, 1, [b.full((), 0, i64)]) as search:
                    m = search.index
                    scale = self.size_of(self.at(m - 1, m - 1)) + self.size_of(self.at(m, m))
                    small = b.cmp("le", self.size_of(self.at(m, m - 1)), scale * EPS)
                    search.next(b.select(small, b.from_index(m), search.carried[0]))
                low = b.to_index(search.results[0])
                with b.if_(b.compare("ge", low, high)):
                    b.store(state, (0,), last - 1)
                    b.store(state, (1,), b.full((), 0, i64))
                with b.if_(b.compare("lt", low, high)):
                    count = b.load(state, (1,), ())
                    b.store(state, (1,), count + 1)
                    self.sweep(low, high, self.shift(high, count))

    def shift(self, high: Ix, count: Tile) -> Pair:
        """The eigenvalue of the last two rows that is nearer to the last element; now and then another number."""
        b = self.b
        before, corner = self.at(high - 1, high - 1), self.at(high, high)
        x = self.times(self.at(high - 1, high), self.at(high, high - 1))
        y = ((before[0] - corner[0]) * 0.5, (before[1] - corner[1]) * 0.5)
        square = self.times(y, y)
        z = self.root((square[0] + x[0], square[1] + x[1]))
        flip = b.cmp("lt", y[0] * z[0] + y[1] * z[1], 0.0)
        z = (b.select(flip, -z[0], z[0]), b.select(flip, -z[1], z[1]))
        below = (y[0] + z[0], y[1] + z[1])
        none = b.cmp("eq", self.size_of(below), 0.0)
        part = self.over(x, (b.select(none, self.number(1.0), below[0]), below[1]))
        usual = (corner[0] - b.select(none, self.number(0.0), part[0]), corner[1] - b.select(none, self.number(0.0), part[1]))
        odd = b.cmp("eq", b.binary("rem", count, UNUSUAL), UNUSUAL - 1)
        other = self.size_of(self.at(high, high - 1))
        return b.select(odd, corner[0] + other, usual[0]), b.select(odd, corner[1] + other * 0.5, usual[1])

    def moved(self, low: Ix, high: Ix, by: Pair, sign: float) -> None:
        with self.b.loop(low, high + 1) as loop:
            i = loop.index
            for part, amount in zip(self.h, by, strict=True):
                part.set(i, i, part.one(i, i) + amount * sign)

    def sweep(self, low: Ix, high: Ix, shift: Pair) -> None:
        """H - s = QR, then RQ + s: rotations of rows low … high from the left, all of them, then from the right."""
        b, size = self.b, self.size
        self.moved(low, high, shift, -1.0)
        with b.loop(low, high) as loop:
            k = loop.index
            x, y = self.at(k, k), self.at(k + 1, k)
            length = b.unary("sqrt", (x[0] * x[0] + x[1] * x[1]) + (y[0] * y[0] + y[1] * y[1]))
            none = b.cmp("eq", length, 0.0)
            safe = b.select(none, self.number(1.0), length)
            turn = (b.select(none, self.number(1.0), x[0] / safe), x[1] / safe, y[0] / safe, y[1] / safe)
            for number, x_or_y in enumerate(turn):
                b.store(self.turns, (number, k), x_or_y)
            self.rotate_rows(k, turn, k, size)
        with b.loop(low, high) as loop:
            k = loop.index
            c0, c1, s0, s1 = (b.load(self.turns, (i, k), ()) for i in range(4))
            with b.loop(0, k + 2) as row:
                i = row.index
                x, y = self.at(i, k), self.at(i, k + 1)
                one, two = self.times(x, (c0, c1)), self.times(y, (s0, s1))
                three, four = self.times(x, (s0, -s1)), self.times(y, (c0, -c1))
                for h, p, q in zip(self.h, (one[0] + two[0], one[1] + two[1]), (four[0] - three[0], four[1] - three[1]), strict=True):
                    h.set(i, k, p)
                    h.set(i, k + 1, q)
            if self.vectors:
                self.rotate_vectors(k, (c0, c1, s0, s1), size)
        self.moved(low, high, shift, 1.0)

    def rotate_rows(self, k: Ix, turn: tuple[Tile, ...], start: Ix, size: Ix) -> None:
        """Row k becomes conj(c) x + conj(s) y, the next one c y - s x."""
        h, (c0, c1, s0, s1) = self.h, turn

        def part(j: Ix) -> None:
            x, y = (h[0].get(k, j), h[1].get(k, j)), (h[0].get(k + 1, j), h[1].get(k + 1, j))
            h[0].put(k, j, (x[0] * c0 + x[1] * c1) + (y[0] * s0 + y[1] * s1))
            h[1].put(k, j, (x[1] * c0 - x[0] * c1) + (y[1] * s0 - y[0] * s1))
            h[0].put(k + 1, j, (y[0] * c0 - y[1] * c1) - (x[0] * s0 - x[1] * s1))
            h[1].put(k + 1, j, (y[1] * c0 + y[0] * c1) - (x[1] * s0 + x[0] * s1))

        h[0].each(start, size, part)

    def rotate_vectors(self, k: Ix, turn: tuple[Tile, ...], size: Ix) -> None:
        """Column k becomes c x + s y, the next one conj(c) y - conj(s) x."""
        z, (c0, c1, s0, s1) = self.z, turn

        def part(j: Ix) -> None:
            x, y = (z[0].get(k, j), z[1].get(k, j)), (z[0].get(k + 1, j), z[1].get(k + 1, j))
            z[0].put(k, j, (x[0] * c0 - x[1] * c1) + (y[0] * s0 - y[1] * s1))
            z[1].put(k, j, (x[1] * c0 + x[0] * c1) + (y[1] * s0 + y[0] * s1))
            z[0].put(k + 1, j, (y[0] * c0 + y[1] * c1) - (x[0] * s0 + x[1] * s1))
            z[1].put(k + 1, j, (y[1] * c0 - y[0] * c1) - (x[1] * s0 - x[0] * s1))

        z[0].each(0, size, part)

    # --- results ------------------------------------------------------------------------------------------------------------------------
    def pairs(self) -> None:
        """Each eigenvalue and the one nearest to its conjugate become exact conjugates (a real one is its own partner)."""
        b = self.b
        with b.loop(0, self.size) as loop:
            own = self.at(loop.index, loop.index)
            start = [self.number(float("inf")), own[0], own[1]]
            with b.loop(0, self.size, 1, start) as other:
                x = self.at(other.index, other.index)
                far = self.size_of((x[0] - own[0], x[1] + own[1]))
                nearer = b.cmp("lt", far, other.carried[0])
                other.next(*(b.select(nearer, new, old) for new, old in zip((far, *x), other.carried, strict=True)))
            _, re, im = other.results
            b.store(self.mean, (loop.index,), (own[0] + re) * 0.5)
            b.store(self.other, (loop.index,), (own[1] - im) * 0.5)

    def place(self, i: Ix) -> Ix:
        """The place of eigenvalue i in order; equal ones keep theirs."""
        b = self.b
        re, im = b.load(self.mean, (i,), ()), b.load(self.other, (i,), ())
        with b.loop(0, self.size, 1, [b.full((), 0, i64)]) as loop:
            x, y = b.load(self.mean, (loop.index,), ()), b.load(self.other, (loop.index,), ())
            (first, same), (below, level) = in_order(b, x, re), in_order(b, y, im)
            early = b.binary("and", level, b.cmp("lt", b.from_index(loop.index), b.from_index(i)))
            same = b.binary("and", same, b.binary("or", below, early))
            loop.next(loop.carried[0] + b.cast(b.binary("or", first, same), i64))
        return b.to_index(loop.results[0])

    def column(self, i: Ix) -> None:
        """The eigenvector of eigenvalue i into v: the triangular system's solution, times z; of length 1, real where it is largest."""
        b, size, x, v = self.b, self.size, self.x, self.v
        for own_part in (*x, *v):
            own_part.zero(0, size)
        x[0].set(0, i, self.number(1.0))
        own = self.at(i, i)
        with b.loop(0, i) as loop:
            row = i - 1 - loop.index
            h, first = self.h, row + 1
            re = h[0].dot(row, x[0], 0, first, size) - h[1].dot(row, x[1], 0, first, size)
            im = h[0].dot(row, x[1], 0, first, size) + h[1].dot(row, x[0], 0, first, size)
            here = self.at(row, row)
            gap = (own[0] - here[0], own[1] - here[1])
            least = (self.size_of(own) + self.size_of(here)) * EPS + 1e-140
            near = b.cmp("lt", self.size_of(gap), least)
            found = self.over((re, im), (b.select(near, least, gap[0]), b.select(near, self.number(0.0), gap[1])))
            x[0].set(0, row, found[0])
            x[1].set(0, row, found[1])
        with b.loop(0, i + 1) as loop:
            k = loop.index
            re, im = x[0].one(0, k), x[1].one(0, k)
            v[0].add(0, re, self.z[0], k, 0, size)
            v[0].add(0, -im, self.z[1], k, 0, size)
            v[1].add(0, im, self.z[0], k, 0, size)
            v[1].add(0, re, self.z[1], k, 0, size)
        with b.loop(0, size, 1, [self.number(-1.0), self.number(1.0), self.number(0.0)]) as loop:
            p = v[0].one(0, loop.index), v[1].one(0, loop.index)
            length = p[0] * p[0] + p[1] * p[1]
            larger = b.cmp("gt", length, loop.carried[0] * (1 + 1e-9))
            loop.next(*(b.select(larger, new, old) for new, old in zip((length, *p), loop.carried, strict=True)))
        most, re, im = loop.results
        total = v[0].dot(0, v[0], 0, 0, size) + v[1].dot(0, v[1], 0, 0, size)
        factor = self.number(1.0) / (b.unary("sqrt", total) * b.unary("sqrt", most))
        c, s = re * factor, im * factor

        def part(j: Ix) -> None:
            p, q = v[0].get(0, j), v[1].get(0, j)
            v[0].put(0, j, p * c + q * s)
            v[1].put(0, j, q * c - p * s)

        v[0].each(0, size, part)
