"""Depthwise convolution of large windows on a GPU, over values of any layout: tiles of planes with their halos in shared memory.

A block has tiles of a few planes. It copies the pixels that their windows see (zeros around the image) and the planes' weights to shared
memory as f32, each once and in the order in which they lie. A thread has some neighbouring results of one row and walks the taps: a pixel
that it reads serves all of its windows, a weight all of its results, so that next to all its instructions are multiply-adds. Neighbouring
threads have neighbouring rows, a pitch apart that keeps them in different banks. Results go back through shared memory, in the order in
which they lie in memory; the region's elementwise consumers are computed there. Zero-sized results run no program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from math import prod

from ....core.dims import Dim, ceildiv, product
from ....core.dtypes import bf16, f16, f32, i32
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Buffer, Launch
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..conv import ConvTemplate
from .weight_gradient import is_weight_gradient

LEAST_TAPS = 65  # fewer are spelled out by `depthwise.py`
SHARED = 48 << 10  # bytes of a block
THREADS = 256  # a block has about as many
ROW = 128  # results of a row that a tile has, at most
EACH = 16  # results of a thread, at most
WRITTEN = 640  # multiply-adds that are written out
AT_ONCE = 4  # elements that a thread copies at a time
MOVE, COLLECT = 30, 40  # instructions that bring an element to shared memory, and a result from there
BANKS = 32
SECTOR = 16  # elements that one access of memory brings, two of them in a cycle
RUN = 16  # bytes of neighbouring channels of a block, at least
USUAL = 8  # images of a batch of unknown size
WARPS = 16  # so many of an SM hide the latencies of each other


@dataclass(frozen=True)
class Shape:
    """A convolution of planes: sizes are (rows, columns)."""

    image: tuple[int, int]
    out: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]  # padding

    @property
    def everywhere(self) -> bool:
        """Whether every result sees all rows of the image."""
        rows, low = self.image[0], self.before[0]
        return self.stride[0] == self.dilation[0] == 1 and low >= self.out[0] - 1 and self.taps[0] >= rows + low


@dataclass(frozen=True)
class Tiling:
    """`planes` tiles of `rows` rows of `across` times `each` results."""

    planes: int
    rows: int
    across: int
    each: int
    pitch: int  # elements from row to row of pixels
    apart: int  # ... from plane to plane

    @property
    def columns(self) -> int:
        return self.across * self.each

    def by_row(self, s: Shape) -> bool:
        """Whether threads walk the rows of the image, all of them the same, not those of their taps: none is outside."""
        return s.everywhere and self.rows == s.out[0]

    def deep(self, s: Shape) -> int:
        """Rows of pixels."""
        return s.image[0] if self.by_row(s) else halo(self.rows, s.taps[0], s.stride[0], s.dilation[0])

    def span(self, s: Shape) -> int:
        """Columns of pixels."""
        return halo(self.columns, s.taps[1], s.stride[1], s.dilation[1])

    def inside(self, s: Shape, j: int, k: int) -> bool:
        """Whether a result of a thread may see a tap's pixel: where a thread has a whole row that is known."""
        place = j * s.stride[1] + k * s.dilation[1] - s.before[1]
        return not (self.each == s.out[1] and (place < 0 or place >= s.image[1]))

    @property
    def count(self) -> int:
        """Threads that have results."""
        return self.planes * self.rows * self.across

    @property
    def threads(self) -> int:
        return -(-self.count // WARP) * WARP


def halo(results: int, taps: int, stride: int, dilation: int) -> int:
    """Pixels that neighbouring windows see."""
    return (results - 1) * stride + (taps - 1) * dilation + 1


def conflicts(places: Sequence[int]) -> int:
    """How many words of one bank the threads of a warp ask for."""
    banks: dict[int, set[int]] = {}
    for p in places:
        banks.setdefault(p % BANKS, set()).add(p)
    return max(map(len, banks.values()))


@lru_cache(maxsize=1024)
def choose(s: Shape, planes: int, cores: int, *, last: bool) -> Tiling:
    """The tiling with the shortest estimated time. `last`: channels are neighbours in memory."""

    def time(t: Tiling) -> float:
        kh, kw = s.image[0] if t.by_row(s) else s.taps[0], s.taps[1]
        pairs = [(j, k) for j in range(t.each) for k in range(kw) if t.inside(s, j, k)]
        seen = kh * len({j * s.stride[1] + k * s.dilation[1] for j, k in pairs})
        lanes = [places(t, s, i)[0] for i in range(min(WARP, t.count))]
        reads = seen * conflicts(lanes) + kh * kw
        staged = t.planes * (t.deep(s) * t.span(s) + prod(s.taps))
        moved = (MOVE * staged + COLLECT * t.planes * t.rows * t.columns) / t.threads
        issue = (kh * (len(pairs) + kw + 8) + seen + moved) / 4
        warps = t.threads / WARP * (issue + 0.25 * reads if issue > reads else reads + 0.25 * issue)
        sectors = (staged + 2 * t.planes * t.rows * t.columns) / (min(t.planes, SECTOR) if last else SECTOR)
        tiles = -(-s.out[0] // t.rows) * -(-s.out[1] // t.columns) * -(-planes // t.planes)
        alive = max(1, min(-(-tiles // cores), 4 * SHARED // (4 * used(t, s)), 64 * WARP // t.threads, 32)) * t.threads / WARP
        return -(-tiles // cores) * (warps + sectors / 2) * max(1.0, WARPS / alive)

    return min(tilings(s, planes), key=time)


def places(t: Tiling, s: Shape, thread: int) -> tuple[int, int]:
    """Where a thread's first pixel and result lie in shared memory."""
    rest, y = divmod(thread, t.rows)
    q, p = divmod(rest, t.across)
    first = 0 if t.by_row(s) else y * s.stride[0] * t.pitch
    return q * t.apart + first + p * t.each * s.stride[1], (q * t.rows + y) * (t.columns | 1) + p * t.each


def used(t: Tiling, s: Shape) -> int:
    """Elements of shared memory."""
    return max(t.planes * t.apart, t.planes * t.rows * (t.columns | 1)) + t.planes * weights(s)


def weights(s: Shape) -> int:
    """Elements from plane to plane of weights: in different banks."""
    return prod(s.taps) | 1


def tilings(s: Shape, planes: int) -> Iterator[Tiling]:
    height, width = s.out
    wide = min(width, ROW)
    each = {-(-wide // n) for n in range(1, wide + 1)}
    for per in sorted(e for e in each if e <= EACH or e == wide <= 2 * EACH):
        across = -(-wide // per)
        for parts in range(1, height + 1):
            rows = -(-height // parts)
            if parts > 1 and rows == -(-height // (parts - 1)):
                continue
            plain = Tiling(1, rows, across, per, 0, 0)
            deep, span = plain.deep(s), plain.span(s)
            if deep * (span | 1) + prod(s.taps) > SHARED // 4 or rows * across > 4 * THREADS:
                continue
            pitch = span | 1
            for many in (1, 2, 4, 8, 16, 32, 64):
                tries = (Tiling(many, rows, across, per, pitch, deep * pitch + more) for more in range(16 if 1 < many <= WARP else 1))
                one = min(tries, key=lambda t: conflicts([places(t, s, i)[0] for i in range(min(WARP, t.count))]))
                if many > 1 and (used(one, s) > SHARED // 4 or one.count > THREADS or many > planes):
                    break
                yield one
                if many == 1 and one.count >= THREADS:
                    break
            if rows <= 8 and rows * across < WARP and parts > 1:
                break


class DepthwiseTiles(Template):
    key = "depthwise_tiles"
    serves = (Conv,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if (other := ConvTemplate().matches(region, target)) is not None:
            return other
        if not large_depthwise(region.node):
            return Reason(f"every channel by itself, in f16, bf16 or f32, {LEAST_TAPS} taps or more of a row that fits in shared memory")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, before = region.given(region.node.operands[0]), list[Launch]()
        if x.layout.strides[1] == 1 and not in_runs(region.node, target.cores):
            there = Operand(x.type, Buffer(f"{region.name}.image", "temp", x.type.nbytes), Layout.contiguous(x.type.shape))
            before.append(copy_launch(f"{region.name}.planes", x, there, target, "channels first for a depthwise convolution"))
            x = there
        return [*before, Kernel(region, x, target).launch()]


def shape_of(node: Node) -> Shape:
    """The last two axes, or the last one as a row."""
    op, (x, w), out = node.op, node.operands, node.values[0]
    assert isinstance(op, Conv)

    def pair(values: Sequence[Dim], fill: int = 1) -> tuple[int, int]:
        a, b = (fill, *(int(v) for v in values))[-2:]
        return a, b

    lows = pair([lo for lo, _ in op.padding], 0)
    return Shape(pair(x.shape[2:]), pair(out.shape[2:]), pair(w.shape[2:]), pair(op.stride), pair(op.dilation), lows)


def large_depthwise(node: Node) -> bool:
    """Whether a convolution is of every channel by itself, with many taps."""
    op = node.op
    if not isinstance(op, Conv) or is_weight_gradient(node):
        return False
    (x, w), out = node.operands, node.values[0]
    if op.transposed or op.groups == 1 or x.shape[1] != op.groups or not 3 <= len(x.shape) <= 5:
        return False
    known = all(isinstance(d, int) and d > 0 for d in (*x.shape[1:], *w.shape, *out.shape[1:]))
    if not known or x.dtype not in (bf16, f16, f32) or w.dtype != x.dtype or any(p < 0 for pair in op.padding for p in pair):
        return False
    taps = prod(int(d) for d in w.shape[2:])
    return taps >= LEAST_TAPS and next(tilings(shape_of(node), 1), None) is not None


def in_runs(node: Node, cores: int = 132) -> bool:
    """Whether a block has enough channels beside each other where they lie last."""
    x, out = node.operands[0], node.values[0]
    if x.shape[1] == 1:
        return False
    tiling = choose(shape_of(node), planes_of(out.shape), cores, last=True)
    return bool(tiling.planes * x.dtype.itemsize >= RUN)


def planes_of(shape: Sequence[Dim]) -> int:
    """Planes of a result, with a usual batch where that is unknown."""
    lead = shape[: max(2, len(shape) - 2)]
    return prod(d if isinstance(d, int) else USUAL for d in lead)


class Kernel:
    """One kernel under construction. Planes are (image, channel), of volumes also the depth."""

    def __init__(self, region: Region, x: Operand, target: TargetSpec) -> None:
        node, op = region.node, region.op(Conv)
        self.region, self.node, self.op, self.value = region, node, op, node.values[0]
        self.x, self.w = x, region.given(node.operands[1])
        self.shape = s = shape_of(node)
        self.last = self.x.layout.strides[1] == 1 and self.value.shape[1] != 1
        lead = self.value.shape[: max(2, len(self.value.shape) - 2)]
        self.lead, self.spatial = lead, len(self.value.shape) - 2
        self.t = t = choose(s, planes_of(self.value.shape), target.cores, last=self.last)
        self.call = Call("conv_depthwise_tiles", region.name)
        b = self.b = self.call.b
        self.deep, self.span = t.deep(s), t.span(s)
        self.held = b.scratch(f32, (max(t.planes * t.apart, t.planes * t.rows * (t.columns | 1)),), space="shared")
        self.factors = b.scratch(f32, (t.planes * weights(s),), space="shared")
        down, beside = -(-s.out[0] // t.rows), -(-s.out[1] // t.columns)
        self.grid = ceildiv(product(lead), t.planes) * (down * beside)
        rest = b.from_index(b.pid, i32)
        rest, column = self._divided(rest, beside)
        rest, row = self._divided(rest, down)
        self.first, self.row, self.column = rest * t.planes, row * t.rows, column * t.columns
        self.many = b.from_index(self.call.word("planes", product(lead)), i32)

    def _divided(self, x: Tile, by: int) -> tuple[Tile, Tile]:
        """x // by and x % by of numbers that are not negative."""
        b = self.b
        if by & (by - 1) == 0:
            return b.binary("shr", x, by.bit_length() - 1), b.binary("and", x, by - 1)
        found = b.binary("div", x, by)
        return found, x - found * by

    def _walk(self, total: int, at_once: int) -> Iterator[tuple[Tile, Tile | None]]:
        """Numbers below `total`, dealt out to the threads in turn: the loop that is open, and which of its numbers count."""
        b, threads = self.b, self.t.threads
        width = threads * min(at_once, -(-total // threads))
        e = b.iota((width,), 0, i32)
        if total <= width:
            yield e, b.cmp("lt", e, total) if total < width else None
            return
        with b.loop(0, -(-total // width), 1) as loop:
            e = e + b.from_index(loop.index * width, i32)
            yield e, b.cmp("lt", e, total) if total % width else None

    def _both(self, *conditions: Tile | None) -> Tile | None:
        found = [c for c in conditions if c is not None]
        return reduce(lambda a, c: self.b.binary("and", a, c), found) if found else None

    def _plane(self, q: Tile) -> tuple[list[Tile], Tile]:
        """Image, channel and depth of a plane of the block, and whether there is one."""
        b, at = self.b, [self.first + q]
        inside = b.cmp("lt", at[0], self.many)
        for d in reversed(self.lead[1:]):
            at[:1] = self._divided(at[0], int(d))
        return at, inside

    def _pixel(self, e: Tile, rows: int, columns: int, *, last: bool) -> tuple[Tile, Tile, Tile]:
        """Plane, row and column of a block's element, neighbours of memory beside each other."""
        if last:
            rest, q = self._divided(e, self.t.planes)
            return (q, *self._divided(rest, columns))
        rest, column = self._divided(e, columns)
        return (*self._divided(rest, rows), column)

    def _stage(self, depth: Ix | int) -> None:
        """Pixels and weights to shared memory."""
        b, t, s, op, x = self.b, self.t, self.shape, self.op, self.x
        several, sizes = int(self.value.shape[1]) // op.groups, [int(d) for d in x.type.shape[2:]]

        def within(place: Tile, size: int) -> Tile:
            return b.binary("and", b.cmp("ge", place, 0), b.cmp("lt", place, size))

        for e, inside in self._walk(t.planes * self.deep * self.span, AT_ONCE):
            q, r, c = self._pixel(e, self.deep, self.span, last=self.last)
            (image, channel, *deep), some = self._plane(q)
            line = r if t.by_row(s) else self.row * s.stride[0] + r - s.before[0]
            at = [line, self.column * s.stride[1] + c - s.before[1]][-self.spatial :]
            if deep:
                moved = depth * op.dilation[0] - op.padding[0][0]
                at.insert(0, deep[0] * op.stride[0] + (b.from_index(moved, i32) if isinstance(moved, Ix) else moved))
            seen = self._both(some, inside, *(within(p, size) for p, size in zip(at, sizes, strict=True)))
            pixel = self.source.get((0,) * len(x.layout.shape), image, self._divided(channel, several)[0], *at, inside=seen)
            goal = q * t.apart + r * t.pitch + c
            b.scatter(self.held, (0,), 0, goal if inside is None else b.select(inside, goal, -1), widen(b, pixel))
        for e, inside in self._walk(t.planes * prod(s.taps), AT_ONCE):
            q, tap = self._divided(e, prod(s.taps))
            (_, channel, *_), some = self._plane(q)
            taps = list(self._divided(tap, s.taps[1]))[-self.spatial :]
            if self.spatial == 3:
                taps.insert(0, b.full((), 0, i32) + (b.from_index(depth, i32) if isinstance(depth, Ix) else depth))
            number = self.weights.get((0,) * len(self.w.layout.shape), channel, b.full((), 0, i32), *taps, inside=self._both(some, inside))
            goal = q * weights(s) + tap
            b.scatter(self.factors, (0,), 0, goal if inside is None else b.select(inside, goal, -1), widen(b, number))

    def _taps(self, sums: list[Tile]) -> list[Tile]:
        """All taps of a plane."""
        b, t, s = self.b, self.t, self.shape
        kh, kw = s.image[0] if t.by_row(s) else s.taps[0], s.taps[1]
        chunk = max(1, min(kw, WRITTEN // t.each))

        def some(sums: list[Tile], pixels: Tile, factors: Tile, count: int) -> list[Tile]:
            seen: dict[int, Tile] = {}
            for k in range(count):
                weight = b.gather(self.factors, (k,), 0, factors)
                for j in range(t.each):
                    if kw == chunk and not t.inside(s, j, k):
                        continue
                    place = j * s.stride[1] + k * s.dilation[1]
                    if place not in seen:
                        seen[place] = b.gather(self.held, (place,), 0, pixels)
                    sums[j] = b.fma(seen[place], weight, sums[j])
            return sums

        def line(y: Ix | int, sums: list[Tile]) -> list[Tile]:
            moved = [b.from_index(y * step, i32) if isinstance(y, Ix) else y * step for step in (s.dilation[0] * t.pitch, kw)]
            pixels, factors = self.pixels + moved[0], self.own + moved[1]
            if kw > chunk:
                with b.loop(0, kw // chunk, 1, sums) as loop:
                    x, w = (b.from_index(loop.index * (chunk * d), i32) for d in (s.dilation[1], 1))
                    loop.next(*some(list(loop.carried), pixels + x, factors + w, chunk))
                sums, done = list(loop.results), kw // chunk * chunk
                return some(sums, pixels + done * s.dilation[1], factors + done, kw - done)
            return some(sums, pixels, factors, kw)

        together = max(1, min(kh, WRITTEN // (chunk * t.each))) if kw == chunk else 1
        if together >= kh:
            for y in range(kh):
                sums = line(y, sums)
            return sums
        with b.loop(0, kh // together, 1, sums) as rows:
            sums = list(rows.carried)
            for y in range(together):
                sums = line(rows.index * together + y, sums)
            rows.next(*sums)
        sums = list(rows.results)
        for y in range(kh // together * together, kh):
            sums = line(y, sums)
        return sums

    def launch(self) -> Launch:
        b, t, s, region, call = self.b, self.t, self.shape, self.region, self.call
        self.source = Spots(call, "x", self.x.type.dtype, self.x.buffer, self.x.layout, len(self.x.layout.shape))
        self.weights = Spots(call, "w", self.w.type.dtype, self.w.buffer, self.w.layout, len(self.w.layout.shape))
        tid = b.iota((t.threads,), 0, i32)
        mine = b.binary("min", tid, t.count - 1) if t.count < t.threads else tid
        rest, y = self._divided(mine, t.rows)
        q, p = self._divided(rest, t.across)
        self.pixels, self.own = q * t.apart + p * (t.each * s.stride[1]), q * weights(s)
        if t.by_row(s):
            self.own = self.own - (y - s.before[0]) * s.taps[1]
        else:
            self.pixels = self.pixels + y * (s.stride[0] * t.pitch)
        sums = [b.full((t.threads,), 0.0, f32)] * t.each
        depths = int(self.w.type.shape[2]) if self.spatial == 3 else 1
        if depths > 1:
            with b.loop(0, depths, 1, sums) as loop:
                self._stage(loop.index)
                loop.next(*self._taps(list(loop.carried)))
            sums = list(loop.results)
        else:
            self._stage(0)
            sums = self._taps(sums)
        pitch = t.columns | 1
        goal = (q * t.rows + y) * pitch + p * t.each
        if t.count < t.threads:
            goal = b.select(b.cmp("lt", tid, t.count), goal, -t.each - 1)
        for j, total in enumerate(sums):
            b.scatter(self.held, (0,), 0, goal + j, total)
        self._collect(pitch)
        launch = call.finish(self.grid, flops=region_flops(region), bytes_=region_bytes(region), note=(
            f"{t.planes} tiles of {t.rows}x{t.columns} in shared memory, {t.each} results a thread"))  # fmt: skip
        launch.kernel = on_threads(launch.kernel, t.threads, 1)
        return launch

    def _collect(self, pitch: int) -> None:
        """Results from shared memory, through the epilogue, to where they lie."""
        b, t, s, region, value = self.b, self.t, self.shape, self.region, self.value
        rank = len(value.shape)
        read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
        layouts = {v: o.layout.expand(value.shape) for v, o in read.items()}
        ins = {v: Spots(self.call, f"e{i}", o.type.dtype, o.buffer, layouts[v], rank) for i, (v, o) in enumerate(read.items())}
        outs = [Spots(self.call, f"y{i}", r.type.dtype, r.buffer, r.layout, rank, write=True) for i, r in enumerate(region.results)]
        last = region.results[0].layout.strides[1] == 1 and value.shape[1] != 1
        for e, inside in self._walk(t.planes * t.rows * t.columns, 2):
            q, r, c = self._pixel(e, t.rows, t.columns, last=last)
            lead, some = self._plane(q)
            spots = [self.row + r, self.column + c]
            cut = [b.cmp("lt", p, size) for p, size, n in zip(spots, s.out, (t.rows, t.columns), strict=True) if size % n]
            here = self._both(inside, some, *cut)
            at = [*lead, *spots[-min(2, self.spatial) :]]
            place = (q * t.rows + r) * pitch + c
            total = b.gather(self.held, (0,), 0, place if inside is None else b.binary("min", place, t.planes * t.rows * pitch - 1))

            def leaf(v: Value, _: Operand, at: list[Tile] = at, here: Tile | None = here) -> Tile:
                return ins[v].get((0,) * rank, *at, inside=here)

            evaluate = evaluator(region)(b, region, leaf, {value: total})
            for out, v, result in zip(outs, region.body.outputs, region.results, strict=True):
                out.put((0,) * rank, narrow(b, b.broadcast(evaluate(v), total.shape), result.type.dtype), *at, inside=here)
