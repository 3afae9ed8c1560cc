"""Singular values by one-sided Jacobi rotations: one program a matrix, vectors in local memory so that every loop runs along registers.

The shorter side's vectors (columns of a tall matrix, rows of a wide one) are rotated in pairs until all are orthogonal; their lengths are
then the singular values, and the rotations, applied to the identity, the other side's vectors. Vectors shorter than the rounding error of
the whole matrix are left alone and replaced by unit vectors orthogonal to all others. Sweeps over all pairs stop when one changes nothing;
their number is bounded by `SWEEPS`. Matrices without rows or columns take no launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..core.dims import product
from ..core.dtypes import i64
from ..core.target_spec import TargetSpec
from ..ops.linalg_spectra import Svd as SvdOp
from ..tile.builder import Ix, KernelBuilder, Tile, View
from .launch import Launch
from .matrices import Columns, Matrices, nothing, vector
from .region import Region
from .spectra import rank_of, sign_of
from .template import Reason, Template, alone, region_bytes, region_flops

SWEEPS = 40
GROUP = 16  # vectors of a block


class Svd(Template):
    key = "svd"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        return alone(region, SvdOp)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        a = region.operands[0]
        *lead, m, n = a.type.shape
        assert isinstance(m, int) and isinstance(n, int)
        if m == 0 or n == 0:
            return nothing(region.name, region.results)
        tall = m >= n
        few, many = min(m, n), max(m, n)
        w = Matrices("svd", region.name, tuple(lead))
        b, dtype = w.b, a.type.dtype
        width = vector(dtype, target)
        width *= 2 if few >= 2 * width else 1  # several registers at a time, where vectors are that long
        av, values = w.read("a", a), w.write("s", region.results[0])
        u, vt = (w.write(s, o) for s, o in zip("uv", region.results[1:], strict=True)) if len(region.results) > 1 else (None, None)
        count, length = w.call.word("few", few), w.call.word("many", many)
        at = w.at(b.pid)
        rank = len(at)
        x = Columns(b, dtype, few, many, width)
        with b.loop(0, count) as row:
            x.fill(row.index, length, lambda i, left: b.load(
                av, (*at, i, row.index) if tall else (*at, row.index, i), (width,), axes=(rank if tall else rank + 1,), limit=(left,)))
        y = None if u is None else Columns(b, dtype, few, few, width)
        if y is not None:
            with b.loop(0, count) as row:
                y.zero(row.index, count)
                y.set(row.index, row.index, b.full((), 1.0, dtype))
        eps = float(np.finfo(dtype.np).eps)
        floor = _floor(b, x, count, length, eps * max(4.0, many**0.5))
        _orthogonalise(b, x, y, count, length, eps * max(8.0, many**0.5), floor, few)
        s = Columns(b, dtype, 1, few, width)
        with b.loop(0, count) as row:
            norm = b.unary("sqrt", x.dot(row.index, x, row.index, 0, length))
            s.set(0, row.index, norm)
            if y is not None:
                tiny = b.cmp("le", norm, floor)
                safe = b.select(tiny, b.full((), 1.0, dtype), norm)
                x.scale(row.index, b.select(tiny, b.full((), 0.0, dtype), b.full((), 1.0, dtype) / safe), 0, length)
        if y is not None:
            _complete(b, x, s, count, length, floor, many)
        with b.loop(0, count) as row:
            i = row.index
            place = rank_of(b, s, i, count, descending=True)
            b.store(values, (*at, place), s.one(0, i))
            if y is not None and u is not None and vt is not None:
                left, right = (x, y) if tall else (y, x)
                long, short = (length, count) if tall else (count, length)
                sign = sign_of(b, left, i, long)
                with b.loop(0, long, width) as part:
                    b.store(u, (*at, part.index, place), left.get(i, part.index) * sign, axes=(rank,), limit=(long - part.index,))
                with b.loop(0, short, width) as part:
                    b.store(vt, (*at, place, part.index), right.get(i, part.index) * sign, limit=(short - part.index,))
        return [w.call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region))]


def _floor(b: KernelBuilder, x: Columns, count: Ix, length: Ix, factor: float) -> Tile:
    """What counts as zero: the rounding error of the matrix's norm."""
    with b.loop(0, count, 1, [b.full((), 0.0, x.dtype)]) as row:
        row.next(row.carried[0] + x.dot(row.index, x, row.index, 0, length))
    return b.unary("sqrt", row.results[0]) * factor


def _orthogonalise(b: KernelBuilder, x: Columns, y: Columns | None, count: Ix, length: Ix, tolerance: float, floor: Tile, few: int) -> None:
    """Sweeps over all pairs, block of vectors by block of vectors, so that those in work stay near. No two pairs of a step share a vector:
    their angles are computed side by side. Every sweep numbers the vectors by their length, longest first, which takes fewer sweeps.
    Squared norms are kept along with the vectors, and computed again for every sweep."""
    side = min(GROUP, few + few % 2)
    moving, order, norms = b.scratch(i64, (1,)), b.scratch(i64, (few,)), Columns(b, x.dtype, 1, few, x.width)
    step = _Step(b, x, y, norms, order, moving, count, length, tolerance, floor * floor, side)
    b.store(moving, (0,), b.full((), 1, i64))
    with b.loop(0, SWEEPS), b.if_(b.cmp("ne", b.load(moving, (0,), ()), 0)):
        b.store(moving, (0,), b.full((), 0, i64))
        with b.loop(0, count) as row:
            b.store(order, (row.index,), b.from_index(row.index))  # so stays what has no length (NaN)
            norms.set(0, row.index, x.dot(row.index, x, row.index, 0, length))
        with b.loop(0, count) as row:
            b.store(order, (rank_of(b, norms, row.index, count, descending=True),), b.from_index(row.index))
        blocks = b.ceildiv(count, side)
        with b.loop(0, blocks) as own:
            base = own.index * side
            with b.loop(0, side - 1) as turn:  # a round of a tournament: the last one stays, the others go round
                def within(k: Ix, r: Ix = turn.index, base: Ix | int = base) -> tuple[Ix | int, Ix | int]:
                    first, second = (r + k) % (side - 1), (r + (side - 1) - k) % (side - 1)
                    return base + first, base + (second + (1 - b.minimum(k, 1)) * ((side - 1) - second))

                step.run(side // 2, within)
            with b.loop(own.index + 1, blocks) as other, b.loop(0, side) as shift:
                def between(k: Ix, r: Ix = shift.index, base: Ix | int = base, far: Ix = other.index) -> tuple[Ix | int, Ix | int]:
                    return base + k, far * side + (k + r) % side

                step.run(side, between)


@dataclass
class _Step:
    """Rotations of pairs that share no vector."""

    b: KernelBuilder
    x: Columns
    y: Columns | None
    norms: Columns
    order: View
    moving: View
    count: Ix
    length: Ix
    tolerance: float
    least: Tile
    side: int

    def __post_init__(self) -> None:
        self.angles = self.b.scratch(self.x.dtype, (4, self.side))

    def run(self, pairs: int, pair: Callable[[Ix], tuple[Ix | int, Ix | int]]) -> None:
        b, x, angles, norms = self.b, self.x, self.angles, self.norms
        one = b.full((), 1.0, x.dtype)

        def vectors(k: Ix) -> tuple[Ix, Ix]:
            i, j = pair(k)
            return b.to_index(b.load(self.order, (i,), ())), b.to_index(b.load(self.order, (j,), ()))

        b.store(angles, (0, 0), b.full((self.side,), 0.0, x.dtype))  # a pair that does not exist has no length
        with b.loop(0, pairs) as each, b.if_(b.compare("lt", b.maximum(*pair(each.index)), self.count)):
            p, q = vectors(each.index)
            for place, value in enumerate((norms.one(0, p), norms.one(0, q), x.dot(p, x, q, 0, self.length))):
                b.store(angles, (place, each.index), value)
        alpha, beta, gamma = (b.load(angles, (place, 0), (self.side,)) for place in range(3))
        far = b.cmp("gt", b.unary("abs", gamma), b.unary("sqrt", alpha) * b.unary("sqrt", beta) * self.tolerance)
        far = b.binary("and", far, b.binary("and", b.cmp("gt", alpha, self.least), b.cmp("gt", beta, self.least)))
        with b.if_(b.reshape(b.reduce("any", far), ())):
            b.store(self.moving, (0,), b.full((), 1, i64))
            zeta = (beta - alpha) / (gamma * 2.0)
            t = one / (b.unary("abs", zeta) + b.unary("sqrt", b.fma(zeta, zeta, one)))
            t = b.select(far, b.select(b.cmp("lt", zeta, 0.0), -t, t), 0.0)
            secant = b.unary("sqrt", b.fma(t, t, one))
            less = -(t * t) / b.fma(secant, secant, secant)  # cosine - 1
            for place, found in enumerate((t / secant, less, b.fma(-t, gamma, alpha), b.fma(t, gamma, beta))):
                b.store(angles, (place, 0), found)
            with b.loop(0, pairs) as each:
                sine, less = (b.load(angles, (place, each.index), ()) for place in range(2))
                with b.if_(b.cmp("ne", sine, 0.0)):
                    p, q = vectors(each.index)
                    norms.set(0, p, b.load(angles, (2, each.index), ()))
                    norms.set(0, q, b.load(angles, (3, each.index), ()))
                    _turn(b, x, p, q, sine, less, self.length)
                    if self.y is not None:
                        _turn(b, self.y, p, q, sine, less, self.count)


def _turn(b: KernelBuilder, x: Columns, p: Ix, q: Ix, sine: Tile, less: Tile, length: Ix) -> None:
    """Rotates a pair of vectors by adding what changes, so that rounding errors are as small as the angle."""
    def part(i: Ix) -> None:
        u, v = x.get(p, i), x.get(q, i)
        x.put(p, i, b.fma(less, u, b.fma(-sine, v, u)))
        x.put(q, i, b.fma(less, v, b.fma(sine, u, v)))

    x.each(0, length, part)


def _complete(b: KernelBuilder, x: Columns, s: Columns, count: Ix, length: Ix, floor: Tile, many: int) -> None:
    """Vectors that were zero: the first axis whose part outside all the others is not small, made a unit vector."""
    missing = b.scratch(i64, (1,))
    with b.loop(0, count) as row, b.if_(b.cmp("le", s.one(0, row.index), floor)):
        b.store(missing, (0,), b.full((), 1, i64))
        trial = Columns(b, x.dtype, 1, many, x.width)
        with b.loop(0, length) as axis, b.if_(b.cmp("ne", b.load(missing, (0,), ()), 0)):
            trial.zero(0, length)
            trial.set(0, axis.index, b.full((), 1.0, x.dtype))
            for _ in range(2):
                with b.loop(0, count) as other:
                    trial.add(0, -x.dot(other.index, trial, 0, 0, length), x, other.index, 0, length)
            norm = trial.dot(0, trial, 0, 0, length)
            with b.if_(b.cmp("gt", norm, 0.5 / many)):
                b.store(missing, (0,), b.full((), 0, i64))
                factor = b.full((), 1.0, x.dtype) / b.unary("sqrt", norm)
                x.each(0, length, lambda i: x.put(row.index, i, trial.get(0, i) * factor))
