"""One-sided Jacobi rotations: pairs of vectors are rotated until all are orthogonal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ...core.dtypes import i64
from ...tile.builder import Ix, KernelBuilder, Tile, View
from .matrices import Columns
from .spectra import power_of, rank_of

SWEEPS = 40
GROUP = 16  # vectors of a block


@dataclass
class Step:
    """Rotations of pairs that share no vector."""

    b: KernelBuilder
    x: Columns
    y: Columns | None
    norms: Columns
    order: View
    moving: View
    moved: Ix | int  # where in `moving` a 1 is left when another sweep is needed
    count: Ix
    length: Ix
    many: int
    eps: float
    floor: Tile
    side: int

    def __post_init__(self) -> None:
        self.angles = self.b.scratch(self.x.dtype, (4, self.side))
        self.tolerance, self.least = self.eps * max(8.0, self.many**0.5), self.floor * self.floor

    def sort(self) -> None:
        """Numbers the vectors by their length, longest first, which takes fewer sweeps. Squared norms are kept along with the vectors, and
        computed again for every sweep."""
        b, x, norms = self.b, self.x, self.norms
        with b.loop(0, self.count) as row:
            norms.set(0, row.index, x.dot(row.index, x, row.index, 0, self.length))
        with b.loop(0, self.count) as row:
            b.store(self.order, (rank_of(b, norms, row.index, self.count, descending=True),), b.from_index(row.index))

    def within(self, base: Ix | int) -> None:
        """All pairs of `side` vectors, in the rounds of a tournament: the last one stays, the others go round."""
        b, side = self.b, self.side
        with b.loop(0, side - 1) as turn:
            def pair(k: Ix) -> tuple[Ix | int, Ix | int]:
                first, second = (turn.index + k) % (side - 1), (turn.index + (side - 1) - k) % (side - 1)
                return base + first, base + (second + (1 - b.minimum(k, 1)) * ((side - 1) - second))

            self.run(side // 2, pair)

    def between(self, base: Ix | int, far: Ix | int) -> None:
        """All pairs of one of `side` vectors and one of `side` others."""
        with self.b.loop(0, self.side) as shift:
            self.run(self.side, lambda k: (base + k, far + (k + shift.index) % self.side))

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
        scale = b.unary("sqrt", alpha) * b.unary("sqrt", beta)
        far = b.cmp("gt", b.unary("abs", gamma), scale * self.tolerance)
        far = b.binary("and", far, b.binary("and", b.cmp("gt", alpha, self.least), b.cmp("gt", beta, self.least)))
        with b.if_(b.reshape(b.reduce("any", far), ())):
            zeta = (beta - alpha) / (gamma * 2.0)
            t = one / (b.unary("abs", zeta) + b.unary("sqrt", b.fma(zeta, zeta, one)))
            t = b.select(far, b.select(b.cmp("lt", zeta, 0.0), -t, t), 0.0)
            # rotations that leave less than the tolerance are the last: what the next sweep would find is an angle times an angle like it
            root = self.tolerance**0.5
            much = b.binary("or", b.cmp("gt", b.unary("abs", gamma), scale * root), b.cmp("gt", b.unary("abs", t), root))
            with b.if_(b.reshape(b.reduce("any", b.binary("and", far, much)), ())):
                b.store(self.moving, (self.moved,), b.full((), 1, i64))
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


def take(b: KernelBuilder, a: View, at: list[Ix | int], tall: bool, x: Columns, y: Columns | None, count: Ix, length: Ix) -> Tile:
    """x becomes the matrix's vectors, divided by a power of two that makes the largest about 1 (which comes back), y the identity."""
    width, rank, one = x.width, len(at), b.full((), 1.0, x.dtype)
    with b.loop(0, count, 1, [b.full((width,), 0.0, x.dtype)]) as row:
        with b.loop(0, length + width, width, row.carried) as loop:
            here = (*at, loop.index, row.index) if tall else (*at, row.index, loop.index)
            part = b.load(a, here, (width,), axes=(rank if tall else rank + 1,), limit=(length - loop.index,))
            x.put(row.index, loop.index, part)
            loop.next(b.binary("max", loop.carried[0], b.unary("abs", part)))
        row.next(*loop.results)
        if y is not None:
            y.zero(row.index, count)
            y.set(row.index, row.index, one)
    power = power_of(b, b.reshape(b.reduce("max", row.results[0]), ()))
    with b.loop(0, count) as row:
        x.scale(row.index, one / power, 0, length)
    return power


def floor_of(b: KernelBuilder, x: Columns, count: Ix, length: Ix, many: int, eps: float) -> Tile:
    """What counts as zero: the rounding error of the matrix's norm."""
    with b.loop(0, count, 1, [b.full((), 0.0, x.dtype)]) as row:
        row.next(row.carried[0] + x.dot(row.index, x, row.index, 0, length))
    return b.unary("sqrt", row.results[0]) * float(eps * max(4.0, many**0.5))


def orthogonalise(step: Step) -> None:
    """Sweeps over all pairs, block of vectors by block of vectors, so that those in work stay near, until one changes nothing. No two pairs
    of a step share a vector: their angles are computed side by side."""
    b, side, moving = step.b, step.side, step.moving
    b.store(moving, (step.moved,), b.full((), 1, i64))
    with b.loop(0, SWEEPS), b.if_(b.cmp("ne", b.load(moving, (step.moved,), ()), 0)):
        b.store(moving, (step.moved,), b.full((), 0, i64))
        step.sort()
        blocks = b.ceildiv(step.count, side)
        with b.loop(0, blocks) as own:
            step.within(own.index * side)
            with b.loop(own.index + 1, blocks) as other:
                step.between(own.index * side, other.index * side)


def finish(b: KernelBuilder, x: Columns, y: Columns | None, s: Columns, count: Ix, length: Ix, floor: Tile, many: int) -> None:
    """s becomes the lengths of orthogonal vectors; where vectors are wanted (y), they become unit vectors."""
    one, zero = b.full((), 1.0, x.dtype), b.full((), 0.0, x.dtype)
    with b.loop(0, count) as row:
        norm = b.unary("sqrt", x.dot(row.index, x, row.index, 0, length))
        s.set(0, row.index, norm)
        if y is not None:
            tiny = b.cmp("le", norm, floor)
            x.scale(row.index, b.select(tiny, zero, one / b.select(tiny, one, norm)), 0, length)
    if y is not None:
        _complete(b, x, s, count, length, floor, many)


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
