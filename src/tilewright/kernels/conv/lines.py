"""Windows over pixels that lie channels last, every channel by itself: depthwise convolution and pooling, channels along registers.

A program computes a line of results (or a stretch of it) of some channels. Neighbouring results share the pixels that they both read, in
registers. Taps that fall outside of the input are left out, so nothing is padded: along the outer axes by the bounds of loops, along the
line by results at its ends that go one by one. The taps of a result are taken in order.

Channels past the last whole tile are masked; zero-sized results run no program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import Dim, Shape, ceildiv, maximum, minimum, product
from ...core.dtypes import DType, compute_dtype
from ...core.target_spec import TargetSpec
from ...tile.builder import Ix, Tile
from ..call import Call
from ..launch import Launch
from ..matmul.tiling import for_each_tile, tile_heights
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import region_bytes, region_flops

ABREAST = 8  # results that share pixels
STRETCH = 64  # results of a program at most
LEAST = 64  # channels of a program

State = list[Tile]  # the state of one result
Row = tuple[list[Ix | int], list[Ix | int]]  # the taps of the outer axes, and where they are
Limit = tuple[Ix | int] | None


class Lines:
    """One kernel under construction over x [lead…, C, sizes…]. A subclass says what a result starts with, what a tap does to it and how it
    is stored."""

    def __init__(self, name: str, region: Region, x: Operand, out: Shape, kernel: Sequence[int], stride: Sequence[int],
                 dilation: Sequence[int], padding: Sequence[int], target: TargetSpec, results: int | None = None) -> None:
        call = self.call = Call(name, region.name)
        self.b, self.region = call.b, region
        self.n = len(kernel)
        lead = x.type.ndim - self.n - 1
        self.order = (*range(lead), *range(lead + 1, x.type.ndim), lead)  # pixels, then channels
        channels = x.type.shape[lead] if results is None else results
        assert isinstance(channels, int)
        self.lead, self.channels, self.out = x.type.shape[:lead], channels, out
        self.kernel, self.stride, self.dilation, self.padding = tuple(kernel), tuple(stride), tuple(dilation), tuple(padding)
        self.dtype: DType = compute_dtype(x.type.dtype)
        self.x = call.view("x", x.type.dtype, x.buffer, x.layout.permute(self.order))
        self.sizes = [call.word(f"i{i}", d) for i, d in enumerate(x.type.shape[-self.n :])]
        self.lanes = self.width = target.lanes(4)  # the width: channels of neighbouring results at once
        k, s, d, lo, size = self.kernel[-1], self.stride[-1], self.dilation[-1], self.padding[-1], x.type.shape[-1]
        # results of a line whose windows are inside
        first = minimum(max(-(-lo // s), 0), out[-1])
        last = maximum(first, minimum(out[-1], maximum(size + lo - d * (k - 1) - 1 + s, 0) // s))
        self.middle, self.inside = (first, last), (call.word("first", first), call.word("last", last))
        lines = product((*self.lead, *out[:-1])) * ceildiv(out[-1], STRETCH)
        pieces = min(-(-channels // LEAST), -(-4 * target.cores // max(lines, 1))) if isinstance(lines, int) else 1
        self.block = -(-max(channels, 1) // (max(pieces, 1) * LEAST)) * LEAST

    # --- what a subclass says -----------------------------------------------------------------------------------------
    def start(self, n: int) -> State:
        raise NotImplementedError

    def tap(self, states: list[State], pixels: list[Tile], taps: list[Ix | int], places: list[list[Ix | int]], c: Ix | int, n: int,
            limit: Limit) -> list[State]:
        """One tap of neighbouring results: its pixels, and where these are."""
        raise NotImplementedError

    def finish(self, states: list[State], at: list[list[Ix | int]], c: Ix | int, n: int, limit: Limit) -> None:
        """Store results at [lead…, out…]."""
        raise NotImplementedError

    # --- the walk -----------------------------------------------------------------------------------------------------
    def launch(self) -> Launch:
        b, call = self.b, self.call
        last = call.word("n", self.out[-1])
        blocks = -(-self.channels // self.block)
        stretches = b.ceildiv(last, STRETCH)
        dims = [*(call.word(f"l{i}", d) for i, d in enumerate(self.lead)), *(call.word(f"o{i}", d) for i, d in enumerate(self.out[:-1]))]
        *self.at, stretch, block = unravel(b, b.pid, [*dims, stretches, max(blocks, 1)])
        self.starts = [o * s - p for o, s, p in zip(self.at[len(self.lead) :], self.stride, self.padding, strict=False)]
        self.ranges = [self._range(start, i) for i, start in enumerate(self.starts)]
        begin = stretch * STRETCH
        end = b.minimum(begin + STRETCH, last)
        low = b.minimum(b.maximum(self.inside[0], begin), end)
        high = b.maximum(b.minimum(self.inside[1], end), low)
        start, stop = block * self.block, b.minimum(block * self.block + self.block, self.channels)

        def alone(first: Ix | int, until: Ix | int) -> None:
            with b.loop(first, until) as loop:
                self._over_channels(start, stop, 4 * self.lanes, lambda c, n, limit: self._one(loop.index, c, n, limit))

        def abreast(first: Ix | int, count: int) -> None:
            self._over_channels(start, stop, self.width, lambda c, n, limit: self._several(first, count, c, n, limit))

        alone(begin, low)
        if counts := self._counts():
            with b.if_(b.compare("lt", low, high)):
                for_each_tile(b, low, high - low, ABREAST, counts, abreast)
        alone(high, end)
        grid: Dim = product((*self.lead, *self.out[:-1])) * ceildiv(self.out[-1], STRETCH) * blocks
        return call.finish(grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note="channels along registers",
                           shared=True)

    def _counts(self) -> list[int]:
        """How many results can stand abreast, so that lines of known length compile only those."""
        (first, last), n = self.middle, self.out[-1]
        if not (isinstance(n, int) and isinstance(first, int) and isinstance(last, int)):
            return list(range(ABREAST, 0, -1))
        # Stretches away from the ends of the middle are whole: those at its ends and their neighbours show all lengths.
        begins = {(at // STRETCH + k) * STRETCH for at in (first, last) for k in (-1, 0, 1)}
        lengths = (min(last, begin + STRETCH) - max(first, begin) for begin in begins if 0 <= begin < n)
        return sorted({h for length in lengths if length > 0 for h in tile_heights(length, length, ABREAST)}, reverse=True)

    def _range(self, start: Ix | int, axis: int) -> tuple[Ix | int, Ix | int]:
        """Taps of a window that begins at `start` which are inside."""
        b, d, k = self.b, self.dilation[axis], self.kernel[axis]
        low = b.minimum((b.maximum(0, 0 - start) + (d - 1)) // d, k)
        return low, b.maximum(low, b.minimum((b.maximum(0, self.sizes[axis] - start) + (d - 1)) // d, k))

    def _over_channels(self, start: Ix | int, stop: Ix | int, width: int, emit: Callable[[Ix | int, int, Limit], None]) -> None:
        b = self.b
        whole = start + (stop - start) // width * width
        with b.loop(start, whole, width) as loop:
            emit(loop.index, width, None)
        if rest := self.channels % width or self.block % width:
            rest = -(-rest // self.lanes) * self.lanes  # abreast: one register after another would wait for every tap
            with b.loop(whole, stop, rest) as tail:
                emit(tail.index, rest, (stop - tail.index,))

    def _taps(self, states: list[State], line: Callable[[list[Row], list[State]], list[State]], together: int = 1) -> list[State]:
        """Loops over the taps of the outer axes that are inside; `line(rows, states)` does those of the last one, of up to `together`
        neighbours along the axis before it."""
        b = self.b

        def nest(axis: int, row: Row, states: list[State]) -> list[State]:
            if axis == self.n - 1:
                return line([row], states)
            low, high = self.ranges[axis]
            for count in (together, 1) if together > 1 and axis == self.n - 2 else (1,):
                until = high if count == 1 else low + (high - low) // count * count
                with b.loop(low, until, count, _flat(states)) as loop:
                    rows = [([*row[0], loop.index + i], [*row[1], self.starts[axis] + (loop.index + i) * self.dilation[axis]])
                            for i in range(count)]
                    carried = _split(loop.carried, len(states))
                    loop.next(*_flat(nest(axis + 1, rows[0], carried) if count == 1 else line(rows, carried)))
                low, states = until, _split(loop.results, len(states))
            return states

        return nest(0, ([], []), states)

    def _pixel(self, where: list[Ix | int], c: Ix | int, n: int, limit: Limit) -> Tile:
        return self.b.cast(self.b.load(self.x, (*self.at[: len(self.lead)], *where, c), (n,), limit=limit), self.dtype)

    def _columns(self, count: int) -> list[int]:
        """The pixels of a line that neighbours read: each is done with before the next one."""
        k, s, d = self.kernel[-1], self.stride[-1], self.dilation[-1]
        return sorted({i * s + t * d for i in range(count) for t in range(k)})

    def _several(self, first: Ix | int, count: int, c: Ix | int, n: int, limit: Limit) -> None:
        """Neighbours in the middle of a line."""
        k, s, d = self.kernel[-1], self.stride[-1], self.dilation[-1]
        column = first * s - self.padding[-1]

        def line(rows: list[Row], states: list[State]) -> list[State]:
            [(taps, where)] = rows
            for j in self._columns(count):
                there = [*where, column + j]
                pixel = self._pixel(there, c, n, limit)
                for t in range(k):
                    i, odd = divmod(j - t * d, s)
                    if not odd and 0 <= i < count:
                        states[i : i + 1] = self.tap(states[i : i + 1], [pixel], [*taps, t], [there], c, n, limit)
            return states

        states = self._taps([self.start(n) for _ in range(count)], line)
        self.finish(states, [[*self.at, first + i] for i in range(count)], c, n, limit)

    def _one(self, place: Ix | int, c: Ix | int, n: int, limit: Limit) -> None:
        """A result near an end of its line."""
        b = self.b
        start = place * self.stride[-1] - self.padding[-1]
        low, high = self._range(start, self.n - 1)

        def line(rows: list[Row], states: list[State]) -> list[State]:
            [(taps, where)] = rows
            with b.loop(low, high, 1, _flat(states)) as loop:
                there = [*where, start + loop.index * self.dilation[-1]]
                x = self._pixel(there, c, n, limit)
                loop.next(*_flat(self.tap([list(loop.carried)], [x], [*taps, loop.index], [there], c, n, limit)))
            return [list(loop.results)]

        self.finish(self._taps([self.start(n)], line), [[*self.at, place]], c, n, limit)


def _flat(states: list[State]) -> list[Tile]:
    return [x for state in states for x in state]


def _split(tiles: Sequence[Tile], count: int) -> list[State]:
    size = len(tiles) // count
    return [list(tiles[i * size : (i + 1) * size]) for i in range(count)]
