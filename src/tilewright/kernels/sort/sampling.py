"""Choosing a token: one program a row, so that nothing depends on how many threads or other rows there are.

The probabilities (of which the largest is 1) are kept in local memory in blocks, with the largest of each block beside them. Thresholds
are found by bisection on the bits of the probabilities, which order like integers; a sweep looks only into blocks whose largest value
reaches the bound found so far, so that most sweeps touch a few blocks.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import product
from ...core.dtypes import DType, f32, i32, i64, u32, u64
from ...core.target_spec import TargetSpec
from ...ops.index.sampling import Sample as SampleOp
from ...ops.random.philox import DRAW, fraction, halves, philox
from ...tile.builder import Ix, Tile, View
from ..call import Call, report
from ..launch import Launch
from ..pointwise.pointwise import unravel
from ..region import Region
from ..template import Template, region_bytes, region_flops

BLOCK = 64
BAD_LOGITS = 2  # code in the error block
NEVER = float("-inf")
ONE = 0x3F800000  # the bits of 1.0


class SampleTemplate(Template):
    """Any number of logits; the last block is filled with probability 0."""

    key = "sample"
    serves = (SampleOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [Sampler(region).launch()]


class Sampler:
    """One kernel under construction."""

    def __init__(self, region: Region) -> None:
        self.region = region
        call = self.call = Call("sample", region.name)
        self.b = call.b
        operands = [region.operand(v) for v in region.node.operands]
        names = ("logits", "seen", "settings", "numbers")
        views = [call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(names, operands, strict=True) if o is not None]
        self.logits, self.seen, self.settings, self.numbers = views
        result = region.results[0]
        self.out = call.view("y", result.type.dtype, result.buffer, result.layout, write=True)
        self.error = call.error()
        self.rows, size = region.node.operands[0].shape[:-1], region.node.operands[0].shape[-1]
        assert isinstance(size, int)
        self.at = tuple(unravel(self.b, self.b.pid, [call.word(f"d{i}", d) for i, d in enumerate(self.rows)]))
        self.size, self.blocks = size, -(-size // BLOCK)
        self.p = self.b.scratch(f32, (self.blocks, BLOCK))
        self.largest = self.b.scratch(f32, (self.blocks, 1))

    def launch(self) -> Launch:
        b = self.b
        temperature, top_p, min_p, penalty = (self._number(self.settings, i, f32) for i in range(4))
        top_k, seed, counter = (self._number(self.numbers, i, i64) for i in range(3))
        top, where = self._penalised(penalty)
        bad = b.binary("or", b.unary("isnan", top), b.unary("isinf", top))
        with b.if_(b.reshape(bad, ())):
            report(b, self.error, BAD_LOGITS, b.pid, -1)
        b.store(self.out, self.at, b.reshape(where, ()))
        with b.if_(b.reshape(b.cmp("gt", temperature, 0.0), ())):
            self._exponents(top, temperature)
            least = self._top_k(top_k)
            least = self._top_p(top_p, least)
            floor = b.bitcast(b.binary("max", b.binary("min", min_p, 1.0), 0.0), i32)
            b.store(self.out, self.at, b.reshape(self._draw(b.binary("max", least, floor), self._uniform(seed, counter)), ()))
        rows = product(self.rows)
        return self.call.finish(rows, flops=region_flops(self.region), bytes_=region_bytes(self.region), serial=rows == 1)

    def _number(self, view: View, i: int, dtype: DType) -> Tile:
        return self.b.cast(self.b.load(view, (*self.at, i), (1,)), dtype)

    # --- sweeps -------------------------------------------------------------------------------------------------------
    def _penalised(self, penalty: Tile) -> tuple[Tile, Tile]:
        """Logits after the penalty into local memory; the largest of all, and where it first stands."""
        b = self.b
        penalty = b.select(b.cmp("gt", penalty, 0.0), penalty, 1.0)
        lane = b.iota((BLOCK,), 0)
        last = self.size - (self.blocks - 1) * BLOCK
        nothing = [b.full((BLOCK,), NEVER), b.full((BLOCK,), 0, i64)]

        def block(i: Ix | int, best: Tile, place: Tile, left: int | None) -> tuple[Tile, Tile]:
            limit = None if left is None else (left,)
            x = b.load(self.logits, (*self.at, i * BLOCK), (BLOCK,), limit=limit, other=NEVER)
            seen = b.load(self.seen, (*self.at, i * BLOCK), (BLOCK,), limit=limit)
            turned = b.select(b.cmp("gt", x, 0.0), x / penalty, x * penalty)
            x = b.select(b.cmp("ne", seen, 0), turned, x)
            b.store(self.p, (i, 0), x)
            better = b.binary("or", b.cmp("gt", x, best), b.unary("isnan", x))
            here = lane + b.from_index(i * BLOCK)
            return b.select(better, x, best), b.select(better, here, place)

        with b.loop(0, self.blocks - 1, 1, nothing) as loop:
            loop.next(*block(loop.index, loop.carried[0], loop.carried[1], None))
        best, place = block(self.blocks - 1, loop.results[0], loop.results[1], last)
        top = b.reduce("max", best)
        where = b.reduce("min", b.select(b.cmp("eq", best, top), place, self.size - 1))
        return top, where

    def _exponents(self, top: Tile, temperature: Tile) -> None:
        """Local memory from logits to probabilities over the largest; the largest of each block."""
        b = self.b
        with b.loop(0, self.blocks) as loop:
            p = b.unary("exp", (b.load(self.p, (loop.index, 0), (BLOCK,)) - top) / temperature)
            b.store(self.p, (loop.index, 0), p)
            b.store(self.largest, (loop.index, 0), b.reduce("max", p))

    def _over(self, bound: Tile, start: Tile, value: Callable[[Tile, Tile], Tile]) -> Tile:
        """Fold value(p, bits of p) over the blocks that reach `bound` (bits, i32[1]); one sum per lane, then over lanes."""
        b = self.b
        with b.loop(0, self.blocks, 1, [start]) as loop:
            reaches = b.cmp("ge", b.bitcast(b.load(self.largest, (loop.index, 0), (1,)), i32), bound)
            times = b.to_index(b.reshape(b.cast(reaches, i64), ()))
            with b.loop(0, times, 1, [loop.carried[0]]) as once:
                p = b.load(self.p, (loop.index, 0), (BLOCK,))
                once.next(once.carried[0] + value(p, b.bitcast(p, i32)))
            loop.next(once.results[0])
        total: Tile = loop.results[0]
        return b.reduce("sum", total)

    def _bisect(self, low: Tile, enough: Callable[[Tile, Tile], Tile], wanted: Tile) -> Tile:
        """The largest bits from `low` on for which enough(bits, low so far) holds (it holds for `low`); `low` when it is not wanted."""
        b = self.b
        steps = b.to_index(b.reshape(b.select(wanted, b.full((1,), 31, i64), 0), ()))
        with b.loop(0, steps, 1, [low, b.full((1,), ONE + 1, i32)]) as loop:
            lo, hi = loop.carried
            middle = lo + b.binary("shr", hi - lo, 1)
            more = b.binary("and", b.cmp("gt", middle, lo), enough(middle, lo))
            done = b.cmp("le", hi - lo, 1)
            loop.next(b.select(more, middle, lo), b.select(b.binary("or", more, done), hi, middle))
        found: Tile = loop.results[0]
        return found

    # --- the filters --------------------------------------------------------------------------------------------------
    def _top_k(self, k: Tile) -> Tile:
        """Bits of the k-th largest probability."""
        b = self.b

        def enough(bits: Tile, low: Tile) -> Tile:
            count = self._over(bits, b.full((BLOCK,), 0, i32), lambda p, own: b.cast(b.cmp("ge", own, bits), i32))
            return b.cmp("ge", b.cast(count, i64), k)

        wanted = b.binary("and", b.cmp("gt", k, 0), b.cmp("lt", k, self.size))
        return self._bisect(b.full((1,), 0, i32), enough, wanted)

    def _top_p(self, top_p: Tile, least: Tile) -> Tile:
        """Bits of the smallest probability such that all larger ones sum to less than top_p of those from `least` on."""
        b = self.b
        nothing = b.full((BLOCK,), 0.0)

        def mass(bits: Tile) -> Tile:
            return self._over(bits, nothing, lambda p, own: b.select(b.cmp("ge", own, bits), p, 0.0))

        goal = b.binary("max", top_p, 1e-30) * mass(least)
        # the mass from t on falls with t: the largest t at which it still reaches the goal is the smallest probability to keep
        return self._bisect(least, lambda bits, low: b.cmp("ge", mass(bits), goal), b.cmp("lt", top_p, 1.0))

    # --- the draw -----------------------------------------------------------------------------------------------------
    def _uniform(self, seed: Tile, counter: Tile) -> Tile:
        """f32[1] in [0, 1) with 24 random bits."""
        b = self.b
        key, low = (halves(b, b.bitcast(x, u64)) for x in (seed, counter))
        found: Tile = fraction(b, philox(b, key, (*low, b.full((), DRAW, u32), b.full((), 0, u32)))[0], 24)
        return found

    def _draw(self, least: Tile, u: Tile) -> Tile:
        """The first token at which the running sum of the kept probabilities exceeds u times their total."""
        b = self.b

        def kept(p: Tile) -> Tile:
            return b.select(b.cmp("ge", b.bitcast(p, i32), least), p, 0.0)

        def block_sum(i: Ix | int) -> Tile:
            return b.reduce("sum", kept(b.load(self.p, (i, 0), (BLOCK,))))

        zero, none = b.full((1,), 0.0), b.full((1,), 0, i64)
        with b.loop(0, self.blocks, 1, [zero]) as sums:
            sums.next(sums.carried[0] + block_sum(sums.index))
        target = u * sums.results[0]

        def step(value: Tile, index: Tile, state: list[Tile]) -> list[Tile]:
            """state: the running sum, the sum before the chosen, the chosen, whether the sum has exceeded the target."""
            total, before, chosen, over = state
            new = total + value
            take = b.binary("and", b.unary("not", over), b.cmp("gt", value, 0.0))
            return [new, b.select(take, total, before), b.select(take, index, chosen), b.binary("or", over, b.cmp("gt", new, target))]

        never = b.cmp("gt", zero, zero)
        with b.loop(0, self.blocks, 1, [zero, zero, none, never]) as loop:
            index = b.reshape(b.from_index(loop.index), (1,))
            loop.next(*step(block_sum(loop.index), index, list(loop.carried)))
        _, before, block, _ = loop.results
        at = b.to_index(b.reshape(block, ()))
        with b.loop(0, BLOCK, 1, [before, zero, none, never]) as inner:
            index = b.reshape(b.from_index(at * BLOCK + inner.index), (1,))
            inner.next(*step(kept(b.load(self.p, (at, inner.index), (1,))), index, list(inner.carried)))
        chosen: Tile = inner.results[2]
        return chosen
