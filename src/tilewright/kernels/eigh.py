"""Symmetric eigenvalues: reduction to a tridiagonal matrix by reflections, then implicit QL. One program a matrix, all in local memory.

Matrix and vectors lie in rows, so that reflections and rotations run along registers; the tridiagonal numbers are f64. A QL step looks for
the first negligible element behind the one in work; the loop over steps has a fixed bound (`STEPS` an eigenvalue, more than any matrix
needs) and does nothing once all have converged. Matrices of no rows take no launch.
"""

from __future__ import annotations

import numpy as np

from ..core.dims import product
from ..core.dtypes import f64, i64
from ..core.target_spec import TargetSpec
from ..ops.linalg_spectra import Eigh as EighOp
from ..tile.builder import Ix, KernelBuilder, Tile, View
from .launch import Launch
from .matrices import Columns, Matrices, nothing, reflection, vector
from .region import Region
from .template import Reason, Template, alone, region_bytes, region_flops

STEPS = 40


class Eigh(Template):
    key = "eigh"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, EighOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, _, n = a.type.shape
        assert isinstance(n, int)
        if n == 0:
            return nothing(region.name, region.results)
        w = Matrices("eigh", region.name, tuple(lead))
        b, width = w.b, vector(a.type.dtype, target)
        av, values = w.read("a", a), w.write("w", region.results[0])
        vectors = w.write("v", region.results[1]) if len(region.results) > 1 else None
        size = w.call.word("n", n)
        at = w.at(b.pid)
        rank = len(at)
        rows = Columns(b, a.type.dtype, n, n, width)
        with b.loop(0, size) as row:
            def part(i: Ix | int, left: Ix | int) -> Tile:
                x = b.load(av, (*at, row.index, i), (width,), limit=(left,))
                return (x + b.load(av, (*at, i, row.index), (width,), axes=(rank,), limit=(left,))) * 0.5

            rows.fill(row.index, size, part)
        d = Columns(b, f64, 1, n, vector(f64, target))
        e = b.scratch(f64, (n + 1,))
        z = None if vectors is None else Columns(b, a.type.dtype, n, n, width)
        _tridiagonal(b, rows, d, e, z, size, n)
        _ql(b, d, e, z, size, n, float(np.finfo(a.type.dtype.np).eps))
        _write(b, d, z, size, n, values, vectors, at)
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


def _tridiagonal(b: KernelBuilder, a: Columns, d: Columns, e: View, z: Columns | None, size: Ix, n: int) -> None:
    """a becomes tridiagonal (d and e); z the product of the reflections, transposed."""
    dtype, width = a.dtype, a.width
    v = Columns(b, dtype, n if z is not None else 1, n, width)
    p = Columns(b, dtype, 1, n, width)
    taus = b.scratch(dtype, (n,))
    one = b.full((), 1.0, dtype)
    with b.loop(0, size - 1) as step:
        k = step.index
        own: Ix | int = k if z is not None else 0
        first = k + 1
        v.zero(own, size)
        v.each(first + 1, size, lambda i: v.put(own, i, a.get(k, i)))
        top = a.one(k, first)
        beta, tau = reflection(b, v, own, top, first, size)
        b.store(taus, (k,), tau)
        b.store(e, (k,), b.cast(beta, f64))
        d.set(0, k, b.cast(a.one(k, k), f64))
        p.zero(0, size)
        with b.loop(first, size) as row:
            p.set(0, row.index, tau * a.dot(row.index, v, own, first, size))
        half = b.full((), -0.5, dtype) * tau * p.dot(0, v, own, first, size)
        p.add(0, half, v, own, first, size)
        with b.loop(first, size) as row:
            mine, other = -v.one(own, row.index), -p.one(0, row.index)
            a.each(first, size, lambda i: a.put(row.index, i, b.fma(mine, p.get(0, i), b.fma(other, v.get(own, i), a.get(row.index, i)))))
    d.set(0, size - 1, b.cast(a.one(size - 1, size - 1), f64))
    b.store(e, (size - 1,), b.full((), 0.0, f64))
    if z is None:
        return
    with b.loop(0, size) as row:
        z.zero(row.index, size)
        z.set(row.index, row.index, one)
    with b.loop(0, size - 1) as back:
        last = size - 2 - back.index
        tau = b.load(taus, (last,), ())
        with b.loop(last + 1, size) as row:
            z.add(row.index, -(tau * v.dot(last, z, row.index, last + 1, size)), v, last, last + 1, size)


def _ql(b: KernelBuilder, d: Columns, e: View, z: Columns | None, size: Ix, n: int, eps: float) -> None:
    place = b.scratch(i64, (1,))
    b.store(place, (0,), b.full((), 0, i64))

    def at(view: View, i: Ix | int) -> Tile:
        return b.load(view, (i,), ())

    def number(x: float) -> Tile:
        return b.full((), x, f64)

    with b.loop(0, n * STEPS):
        low = b.to_index(b.load(place, (0,), ()))
        with b.if_(b.compare("lt", low, size)):
            with b.loop(low, size - 1, 1, [b.from_index(size - 1)]) as loop:
                m = loop.index
                scale = b.unary("abs", d.one(0, m)) + b.unary("abs", d.one(0, m + 1))
                small = b.cmp("le", b.unary("abs", at(e, m)), scale * eps)
                loop.next(b.select(small, b.binary("min", loop.carried[0], b.from_index(m)), loop.carried[0]))
            end = b.to_index(loop.results[0])
            with b.if_(b.compare("le", end, low)):
                b.store(place, (0,), b.from_index(low + 1))
            with b.if_(b.compare("gt", end, low)):
                x = (d.one(0, low + 1) - d.one(0, low)) / (at(e, low) * 2.0)
                r = b.unary("sqrt", b.fma(x, x, number(1.0)))
                shift = x + b.select(b.cmp("lt", x, 0.0), -r, r)
                start = d.one(0, end) - d.one(0, low) + at(e, low) / shift
                with b.loop(0, end - low, 1, [start, number(1.0), number(1.0), number(0.0)]) as sweep:
                    g, s, c, p = sweep.carried
                    i = end - 1 - sweep.index
                    f, h = s * at(e, i), c * at(e, i)
                    r = b.unary("sqrt", b.fma(f, f, g * g))
                    b.store(e, (i + 1,), r)
                    none = b.cmp("eq", r, 0.0)
                    safe = b.select(none, number(1.0), r)
                    s, c = b.select(none, number(0.0), f / safe), b.select(none, number(1.0), g / safe)
                    g = d.one(0, i + 1) - p
                    r = (d.one(0, i) - g) * s + c * h * 2.0
                    p = s * r
                    d.set(0, i + 1, g + p)
                    if z is not None:
                        _rotate(b, z, i, s, c, size)
                    sweep.next(c * r - h, s, c, p)
                g, _, _, p = sweep.results
                d.set(0, low, d.one(0, low) - p)
                b.store(e, (low,), g)
                b.store(e, (end,), number(0.0))


def _rotate(b: KernelBuilder, z: Columns, i: Ix | int, s: Tile, c: Tile, size: Ix) -> None:
    sine, cosine = b.cast(s, z.dtype), b.cast(c, z.dtype)

    def part(k: Ix) -> None:
        x, y = z.get(i, k), z.get(i + 1, k)
        z.put(i + 1, k, b.fma(sine, x, cosine * y))
        z.put(i, k, b.fma(cosine, x, -(sine * y)))

    z.each(0, size, part)


def rank_of(b: KernelBuilder, d: Columns, i: Ix, size: Ix, *, descending: bool = False) -> Ix:
    """The place of number i in order; equal ones keep theirs."""
    own = d.one(0, i)
    with b.loop(0, size, d.width, [b.full((d.width,), 0, i64)]) as loop:
        x, places = d.get(0, loop.index), b.iota((d.width,), 0) + b.from_index(loop.index)
        before = b.binary("or", b.cmp("gt" if descending else "lt", x, own),
                          b.binary("and", b.cmp("eq", x, own), b.cmp("lt", places, b.from_index(i))))
        inside = b.binary("and", before, b.cmp("lt", places, b.from_index(size)))
        loop.next(loop.carried[0] + b.cast(inside, i64))
    return b.to_index(b.reduce("sum", loop.results[0]))


def sign_of(b: KernelBuilder, z: Columns, i: Ix | int, size: Ix | int) -> Tile:
    """-1 where the element of largest magnitude is negative, else 1 (the vector is followed by zeros)."""
    zero = b.full((z.width,), 0.0, z.dtype)
    with b.loop(0, size, z.width, [zero, zero]) as loop:
        x = z.get(i, loop.index)
        loop.next(b.binary("max", loop.carried[0], x), b.binary("min", loop.carried[1], x))
    most, least = (b.reshape(b.reduce(fn, x), ()) for fn, x in zip(("max", "min"), loop.results, strict=True))
    return b.select(b.cmp("gt", -least, most), b.full((), -1.0, z.dtype), b.full((), 1.0, z.dtype))


def _write(b: KernelBuilder, d: Columns, z: Columns | None, size: Ix, n: int, values: View, vectors: View | None,
           at: list[Ix | int]) -> None:
    with b.loop(0, size) as loop:
        i = loop.index
        place = rank_of(b, d, i, size)
        dtype = values.type.dtype
        b.store(values, (*at, place), b.cast(d.one(0, i), dtype))
        if z is not None and vectors is not None:
            sign = sign_of(b, z, i, size)
            with b.loop(0, size, z.width) as part:
                b.store(vectors, (*at, part.index, place), z.get(i, part.index) * sign, axes=(len(at),), limit=(size - part.index,))
