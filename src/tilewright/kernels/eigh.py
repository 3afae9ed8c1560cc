"""Symmetric eigenvalues: reduction to a tridiagonal matrix by reflections, then implicit QL. One program a matrix, all in local memory.

Matrix and vectors lie in rows, so that reflections and rotations run along registers; the tridiagonal numbers are f64. A QL step looks for
the first negligible element behind the one in work; the loop over steps has a fixed bound (`STEPS` an eigenvalue, more than any matrix
needs) and does nothing once all have converged. Matrices of no rows take no launch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.dims import product
from ..core.dtypes import f64, i64
from ..core.target_spec import TargetSpec
from ..ops.linalg_spectra import Eigh as EighOp
from ..tile.builder import Ix, KernelBuilder, Tile, View
from .launch import Launch
from .matrices import Columns, Matrices, nothing, padded, reflection, vector
from .region import Region
from .template import Reason, Template, alone, region_bytes, region_flops

STEPS = 40
TINY = 1e-150  # added where it is lost unless the sum were 0: a rotation then is none (cosine 1, sine 0) and needs no case of its own
BLOCK = 4  # rows that are changed together


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
        e = b.scratch(f64, (padded(n + 1, vector(f64, target)),))
        z = None if vectors is None else Columns(b, a.type.dtype, n, n, width)
        _tridiagonal(b, rows, d, e, z, size, n)
        _ql(b, d, e, z, size, n, float(np.finfo(a.type.dtype.np).eps))
        _write(b, d, z, size, n, values, vectors, at)
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


def _by_blocks(b: KernelBuilder, start: Ix | int, stop: Ix, body: Callable[[Ix, int], None]) -> None:
    """body(row, height) for rows in blocks of BLOCK, the last ones one by one."""
    whole = start + (stop - start) // BLOCK * BLOCK
    with b.loop(start, whole, BLOCK) as loop:
        body(loop.index, BLOCK)
    with b.loop(whole, stop) as loop:
        body(loop.index, 1)


def _tridiagonal(b: KernelBuilder, a: Columns, d: Columns, e: View, z: Columns | None, size: Ix, n: int) -> None:
    """a becomes tridiagonal (d and e); z the product of the reflections, transposed.

    Step k's reflection I - tau v vᵀ changes a by -(v pᵀ + p vᵀ). The rows behind take that change in step k + 1, in the one pass that also
    multiplies them with that step's vector, some rows at a time. Passes begin at whole registers: vectors are zero before their first."""
    dtype, width = a.dtype, a.width
    keep = z is not None
    v = Columns(b, dtype, n + 1 if keep else 2, n, width)  # vector k + 1 is step k's; number 0 is zero
    p = Columns(b, dtype, 2, n, width)
    taus = b.scratch(dtype, (n,))
    one = b.full((), 1.0, dtype)
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
        beta, tau = reflection(b, v, new, a.one(k, first), first, size)
        b.store(taus, (k,), tau)
        b.store(e, (k,), b.cast(beta, f64))
        d.set(0, k, b.cast(a.one(k, k), f64))

        def rows(row: Ix, height: int) -> None:
            with b.loop(start, size, width, [b.full((height, width), 0.0, dtype)]) as loop:
                x = changed(row, loop.index, height, old, p_old)
                b.store(a.view, (row, loop.index), x)
                loop.next(b.fma(x, b.load(v.view, (new, loop.index), (1, width)), loop.carried[0]))
            b.store(p.view, (p_new, row), b.reduce("sum", loop.results[0]) * tau, axes=(1, 0))

        _by_blocks(b, first, size, rows)
        half = b.full((), -0.5, dtype) * tau * p.dot(p_new, v, new, start, size)
        p.add(p_new, half, v, new, start, size)
    last = size - 1
    corner = changed(last, last, 1, last if keep else last % 2, last % 2)
    b.store(a.view, (last, last), corner)
    d.set(0, last, b.cast(a.one(last, last), f64))
    b.store(e, (last,), b.full((), 0.0, f64))
    if z is None:
        return
    with b.loop(0, size) as row:
        z.zero(row.index, size)
        z.set(row.index, row.index, one)
    with b.loop(0, size - 1) as back:
        k2 = size - 2 - back.index
        tau2, start2 = b.load(taus, (k2,), ()), (k2 + 1) // width * width

        def reflect(row: Ix, height: int) -> None:
            assert z is not None
            with b.loop(start2, size, width, [b.full((height, width), 0.0, dtype)]) as loop:
                x = b.load(z.view, (row, loop.index), (height, width))
                loop.next(b.fma(x, b.load(v.view, (k2 + 1, loop.index), (1, width)), loop.carried[0]))
            factor = b.reduce("sum", loop.results[0]) * -tau2
            with b.loop(start2, size, width) as loop:
                x = b.load(z.view, (row, loop.index), (height, width))
                b.store(z.view, (row, loop.index), b.fma(factor, b.load(v.view, (k2 + 1, loop.index), (1, width)), x))

        _by_blocks(b, k2 + 1, size, reflect)


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
            width = d.width
            with b.loop(low, size - 1, width, [b.broadcast(b.from_index(size - 1), (width,))]) as loop:
                places = b.iota((width,), 0) + b.from_index(loop.index)
                scale = b.unary("abs", d.get(0, loop.index)) + b.unary("abs", d.get(0, loop.index + 1))
                small = b.cmp("le", b.unary("abs", b.load(e, (loop.index,), (width,))), scale * eps)
                loop.next(b.select(small, b.binary("min", loop.carried[0], places), loop.carried[0]))
            end = b.to_index(b.reduce("min", loop.results[0]))
            with b.if_(b.compare("le", end, low)):
                b.store(place, (0,), b.from_index(low + 1))
            with b.if_(b.compare("gt", end, low)):
                x = (d.one(0, low + 1) - d.one(0, low)) / (at(e, low) * 2.0)
                r = b.unary("sqrt", b.fma(x, x, number(1.0)))
                shift = x + b.select(b.cmp("lt", x, 0.0), -r, r)
                start = d.one(0, end) - d.one(0, low) + at(e, low) / shift + TINY
                with b.loop(0, end - low, 1, [start, number(1.0), number(1.0), number(0.0)]) as sweep:
                    g, s, c, p = sweep.carried
                    i = end - 1 - sweep.index
                    f, h = s * at(e, i), c * at(e, i)
                    r = b.unary("sqrt", b.fma(f, f, g * g))
                    b.store(e, (i + 1,), r)
                    s, c = f / r, g / r
                    g = d.one(0, i + 1) - p
                    r = b.fma(d.one(0, i) - g, s, c * (h * 2.0))
                    p = s * r
                    d.set(0, i + 1, g + p)
                    if z is not None:
                        _rotate(b, z, i, s, c, size)
                    sweep.next(b.fma(c, r, number(TINY) - h), s, c, p)
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
