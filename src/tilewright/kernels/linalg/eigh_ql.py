"""Eigenvalues of a symmetric tridiagonal matrix by implicit QL, in f64, and what becomes of the rotations.

A step looks for the first negligible element behind the one in work; the loop over steps has a fixed bound (`STEPS` an eigenvalue, more
than any matrix needs) and does nothing once all have converged. What one rotation hands to the next takes no root: squares and products of
its sine and cosine are quotients by the sum of two squares. The root, which the rotations themselves need, is computed beside that chain.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.dtypes import f64, i64
from ...tile.builder import Ix, KernelBuilder, Tile, View
from .matrices import Columns

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
