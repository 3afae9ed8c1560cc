"""Windows over pixels that lie channels last, every channel by itself, on a GPU: depthwise convolution and pooling.

A program has a few neighbouring pixels of a row of the results, 16 bytes of channels a thread, and walks the rows of taps that are inside
the image: a pixel of a row is read once for all windows of the program that it lies in, one outside the image reads as `fill`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from ....core.dims import Dim, bounds, ceildiv, divisible, product
from ....core.dtypes import compute_dtype
from ....ir.layout import Layout
from ....tile.builder import Ix, KernelBuilder, Tile
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...launch import Launch
from ...pointwise.cuda.pointwise import group
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, widen
from ...template import region_bytes, region_flops

PIXELS = (8, 7)  # pixels of a program, along the innermost axis: the first that divides it where windows overlap, else 4 (measured) …
FULL = 1 << 14  # … and 2 or 1 where there would be fewer threads
MANY = 16  # pixels of a row that are loaded before the first is used
BLOCK = 128  # threads

# (taps of the outer axes, the pixel at a place, the states of the program's results) -> those states
Row = Callable[[tuple[Ix | int, ...], Callable[[int], Tile], list[Tile]], list[Tile]]


class Windows:
    """One kernel under construction."""

    def __init__(self, name: str, region: Region, x: Operand, results: Sequence[Operand], kernel: Sequence[int], stride: Sequence[int],
                 padding: Sequence[tuple[int, int]], dilation: Sequence[int], others: Sequence[Layout] = (), fill: float = 0.0) -> None:
        """`others`: layouts with channels last whose rows are read in vectors, too."""
        self.region, self.call = region, Call(name, region.name)
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.n, shape = len(kernel), results[0].type.shape
        b, call, n = self.call.b, self.call, self.n
        self.b, self.order = b, (0, *range(2, n + 2), 1)
        source, outs = x.layout.permute(self.order), [r.layout.permute(self.order) for r in results]
        channels, out = shape[1], shape[2:]
        width = out[-1]
        self.vector = vector_width([o.type.dtype.itemsize for o in (x, *results)], channels, [source, *outs, *others])
        self.threads = min(BLOCK, group(channels, self.vector)[0])
        if isinstance(channels, int):
            lanes = -(-channels // self.vector)
            self.threads = next((t for t in (32, 16, 8, 4, 2) if -(-lanes // t) * t <= lanes * 9 / 8), self.threads)
        most, rows = bounds(width)[1], bounds(product((shape[0], *out[:-1])) * ceildiv(channels, self.vector))[1]
        options = [*(p for p in PIXELS if stride[-1] == 1 and divisible(width, p)), 4, 2]
        self.per = next((p for p in options if p <= most and rows * -(-most // p) >= FULL), 1)
        self.tile = tile = self.threads * self.vector
        self.x = call.view("x", x.type.dtype, x.buffer, source, bake=(n,))  # neighbours are so many bytes from one address
        places = enumerate(zip(results, outs, strict=True))
        self.results = [call.view(f"c{i}", r.type.dtype, r.buffer, lay, write=True) for i, (r, lay) in places]
        self.fill, self.dtype = fill, compute_dtype(x.type.dtype)

        def number(name: str, d: Dim) -> Ix | int:
            return d if isinstance(d, int) else call.word(name, d)

        self.sizes = [number(f"s{i}", d) for i, d in enumerate(x.type.shape[2:])]
        every, stretches = call.word("channels", channels), number("stretches", ceildiv(channels, tile))
        columns = ceildiv(width, self.per)
        dims = [call.word("batch", shape[0]), *(number(f"o{i}", d) for i, d in enumerate(out[:-1])), number("columns", columns)]
        self.image, *self.rows, column = unravel(b, b.pid // stretches, dims)
        self.start = b.pid % stretches * tile
        self.left = every - self.start
        self.edge = None if isinstance(channels, int) and channels % tile == 0 else (self.left,)
        self.first, self.width = column * self.per, number("width", width)
        self.grid: Dim = product((shape[0], *out[:-1])) * columns * ceildiv(channels, tile)
        # along the innermost axis: where a program reads, and how many channels of that count
        (lo, _), step = padding[-1], stride[-1]
        self.reads = _reads(self.per, kernel[-1], step, dilation[-1])
        size = x.type.shape[-1]
        safe = lo == 0 and isinstance(columns, int) and isinstance(size, int) and (columns - 1) * self.per * step + max(self.reads) < size
        self.spots = {i: self.first * step + (i - lo) for i in self.reads}
        self.limits = {i: self.edge if safe else (self.left * (inside_flag(b, q + 1) * inside_flag(b, self.sizes[-1] - q)),)
                       for i, q in self.spots.items()}  # fmt: skip
        first = self.first * step - lo
        self.near = b.subview(self.x, (self.image, *(0,) * (n - 1), first, self.start), tuple(range(1, n + 2)))

    def fold(self, row: Row, more: Sequence[Tile] = ()) -> list[Tile]:
        """The states of the program's results, `fill` (and `more` behind them) at first, after all rows of taps."""
        return self._rows(0, (), (), [*[self.b.full((self.tile,), self.fill, self.dtype)] * self.per, *more], row)

    def _rows(self, axis: int, at: tuple[Ix | int, ...], taps: tuple[Ix | int, ...], states: list[Tile], row: Row) -> list[Tile]:
        b = self.b
        if axis == self.n - 1:
            def pixel(i: int) -> Tile:
                return widen(b, b.load(self.near, (*at, i, 0), (self.tile,), limit=self.limits[i], other=self.fill))

            few = {i: pixel(i) for i in self.spots} if len(self.spots) <= MANY else None
            return row(taps, pixel if few is None else few.__getitem__, list(states))
        dilation = self.dilation[axis]
        begin = self.begin(axis, self.rows[axis])
        low, high = (b.ceildiv(b.maximum(q, 0), dilation) for q in (0 - begin, self.sizes[axis] - begin))  # quotients of no negative number
        with b.loop(low, b.minimum(high, self.kernel[axis]), 1, states) as loop:
            loop.next(*self._rows(axis + 1, (*at, begin + loop.index * dilation), (*taps, loop.index), list(loop.carried), row))
        return list(loop.results)

    def begin(self, axis: int, place: Ix | int) -> Ix | int:
        """Where the window of a result starts along an axis."""
        return place * self.stride[axis] - self.padding[axis][0]

    def places(self) -> Iterator[tuple[tuple[Ix | int, ...], tuple[Ix | int] | None]]:
        """Where each result of the program lies, and how many channels of it there are."""
        even = isinstance(self.width, int) and self.width % self.per == 0
        for i in range(self.per):
            yield (*self.rows, self.first + i), self.edge if even else (self.left * inside_flag(self.b, self.width - self.first - i),)

    def launch(self) -> Launch:
        flops, nbytes = region_flops(self.region), region_bytes(self.region)
        launch = self.call.finish(self.grid, flops=flops, bytes_=nbytes, note=f"{self.per} pixels a program")
        launch.kernel = on_threads(launch.kernel, self.threads, BLOCK // self.threads, self.vector)
        return launch


def inside_flag(b: KernelBuilder, x: Ix | int) -> Ix | int:
    """1 where x is positive, else 0."""
    return b.minimum(b.maximum(x, 0), 1)


def _reads(per: int, taps: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """Place (from the program's first) -> the (result, tap) pairs that read it, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for o, t in itertools.product(range(per), range(taps)):
        found.setdefault(o * stride + t * dilation, []).append((o, t))
    return dict(sorted(found.items()))
