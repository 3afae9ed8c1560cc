"""Reduction of a symmetric matrix to a tridiagonal one by reflections, in local memory, and the product of the reflections."""

from __future__ import annotations

from collections.abc import Callable

from ...core.dtypes import f64
from ...tile.builder import Ix, KernelBuilder, Tile, View
from .matrices import Columns, reflection
from .spectra import power_of

BLOCK = 4  # rows that are changed together
FLOOR = {"f32": 1e-30, "f64": 1e-290}  # squares so small have no precision; beside elements of size 1 they do not count


def by_blocks(b: KernelBuilder, start: Ix | int, stop: Ix, body: Callable[[Ix, int], None]) -> None:
    """body(row, height) for rows in blocks of BLOCK, the last ones one by one."""
    whole = start + (stop - start) // BLOCK * BLOCK
    with b.loop(start, whole, BLOCK) as loop:
        body(loop.index, BLOCK)
    with b.loop(whole, stop) as loop:
        body(loop.index, 1)


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

        by_blocks(b, first, size, rows)
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

        by_blocks(b, k2 + 1, size, reflect)
