"""Fourier transforms on a GPU: a group of threads takes a row, or neighbouring lanes of columns, and does all stages in registers.

A thread holds the elements of a few butterflies (radixes up to 16); between two stages they change hands through shared memory, real parts
first, then imaginary ones in the same place. Stages are Stockham's: what is read lies side by side in every stage, what is written lies in
order at the end, so that memory is read and written along its rows. Words of shared memory are padded by one in 32 against conflicts of
banks. A row of n = m * V elements (`DftRows`) is V transforms of m elements side by side, twiddles, and m transforms of V elements; a real
row is read as a complex one of half its length, and results k and n - k are untangled by one thread. Elements beyond the last are masked;
results without elements are not launched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ....core.dims import Dim, ceildiv, divisible, product
from ....core.dtypes import DType, f32, i32, i64
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.fourier.transforms import DftColumns as DftOp
from ....ops.fourier.transforms import DftRows as DftRowsOp
from ....ops.fourier.transforms import factors
from ....tile.builder import Ix, KernelBuilder, Tile, View
from ...call import Call
from ...cuda.groups import on_threads, shared_launch
from ...cuda.kernel import WARP
from ...cuda.spots import Spots
from ...launch import Launch
from ...linalg.matrices import nothing
from ...pointwise.pointwise import unravel
from ...region import Operand, Region
from ...template import Reason, Template, region_bytes, region_flops
from ..butterflies import Butterflies, Number

EACH = 16  # elements of a thread
BLOCK = 128  # threads of a block of several programs
SHARED = 46 << 10  # bytes of a program's shared memory
LANES = 16  # columns of a program: 128 bytes of complex numbers


def radixes(n: int) -> list[int]:
    """Factors of a transform: powers of two up to 16, as equal as they can be, and odd primes.

    >>> radixes(4096), radixes(512), radixes(1000), radixes(1)
    ([16, 16, 16], [8, 8, 8], [8, 5, 5, 5], [])
    """
    twos = (n & -n).bit_length() - 1
    stages = -(-twos // 4)
    found = [1 << (twos // stages + (i < twos % stages)) for i in range(stages)]
    return found + [p for p in factors(n >> twos) if p > 1]


def _padded(count: int) -> int:
    return count + count // WARP


def _fits(count: int, dtype: DType) -> bool:
    return _padded(count) * dtype.itemsize <= SHARED


class Pairs:
    """Complex numbers […, 2] in memory: words of two f32 where they lie so, else two accesses."""

    def __init__(self, call: Call, name: str, o: Operand, layout: Layout, axes: int = 1, *, write: bool = False) -> None:
        self.b, dtype = call.b, o.type.dtype
        *steps, part = layout.strides
        self.words = dtype is f32 and part == 1 and all(divisible(s, 2) for s in (*steps, layout.offset))
        if self.words:
            layout = Layout(layout.shape[:-1], tuple(s // 2 for s in steps), layout.offset // 2)
        else:  # the part is the first coordinate
            layout = layout.permute((len(steps), *range(len(steps))))
        self.spots = Spots(call, name, i64 if self.words else dtype, o.buffer, layout, axes, write=write)

    def get(self, at: Sequence[Ix | int], *coordinates: Tile) -> Number:
        b = self.b
        if not self.words:
            return self.spots.get((0, *at), *coordinates), self.spots.get((1, *at), *coordinates)
        word = self.spots.get(at, *coordinates)
        return b.bitcast(b.cast(word, i32), f32), b.bitcast(b.cast(b.binary("shr", word, 32), i32), f32)

    def put(self, at: Sequence[Ix | int], inside: Tile | None, z: Number, *coordinates: Tile) -> None:
        b = self.b
        if not self.words:
            for k in range(2):
                self.spots.put((k, *at), z[k], *coordinates, inside=inside)
            return
        low, high = (b.cast(b.bitcast(p, i32), i64) for p in z)
        word = b.binary("or", b.binary("and", low, 0xFFFFFFFF), b.binary("shl", high, 32))
        self.spots.put(at, word, *coordinates, inside=inside)


@dataclass(frozen=True)
class Exchange:
    """Butterflies of a stage: their numbers, and which of them there are (None: all)."""

    at: Tile
    inside: Tile | None


@dataclass(frozen=True)
class Placed:
    """A number, its element and lane, and whether it is one (None: all are)."""

    z: Number
    element: Tile
    lane: Tile
    inside: Tile | None


class Stages:
    """Transforms of `n` elements in `lanes` lanes by a group of threads; element j of lane l is at place j * lanes + l."""

    def __init__(self, b: KernelBuilder, dtype: DType, n: int, lanes: int, *, inverse: bool) -> None:
        self.b, self.n, self.lanes = b, n, lanes
        self.math = Butterflies(b, dtype, inverse=inverse)
        most = 512 if dtype is f32 else 256
        self.threads = min(most, max(4, 1 << (-(-n * lanes // EACH) - 1).bit_length()))
        self.memory = b.scratch(dtype, (_padded(n * lanes) + 1,), space="shared")

    def dealt(self, count: int) -> Exchange:
        b = self.b
        at = b.iota((-(-count // self.threads) * self.threads,), 0, i32)
        if count % self.threads == 0:
            return Exchange(at, None)
        return Exchange(b.binary("min", at, count - 1), b.cmp("lt", at, count))

    def divided(self, x: Tile, by: int) -> tuple[Tile, Tile]:
        """x // by and x % by of numbers that are not negative."""
        b = self.b
        if by == 1:
            return x, b.full(x.shape, 0, i32)
        if by & (by - 1) == 0:
            return b.binary("shr", x, by.bit_length() - 1), b.binary("and", x, by - 1)
        found = b.binary("floordiv", x, by)
        return found, x - found * by

    def exchanged(self, written: Sequence[Placed], reads: Sequence[tuple[Tile, Tile]]) -> list[Number]:
        """Numbers go to their places, others come from theirs (element, lane): one part after the other, through the same memory."""
        b = self.b

        def place(element: Tile, lane: Tile) -> Tile:
            at = element if self.lanes == 1 else element * self.lanes + lane
            return at + b.binary("shr", at, 5)

        to = [place(w.element, w.lane) if w.inside is None else b.select(w.inside, place(w.element, w.lane), -1) for w in written]
        source = [place(*at) for at in reads]
        parts: list[list[Tile]] = []
        for part in range(2):
            for at, w in zip(to, written, strict=True):
                b.scatter(self.memory, (0,), 0, at, w.z[part])
            parts.append([b.gather(self.memory, (0,), 0, at) for at in source])
        return list(zip(parts[0], parts[1], strict=True))

    def turned(self, w: Number) -> Number:
        """A twiddle of a table, the other way around where inverse."""
        return w[0], -w[1] if self.math.inverse else w[1]

    def run(self, first: Callable[[Tile, Tile], Number] | Sequence[Placed], table: Pairs, *, rows: bool, rows_out: bool) -> list[Placed]:
        """All stages. `first` gives an element of a lane, or is what stands at places already. In the first stage neighbouring threads take
        neighbouring elements of a lane where `rows` is said, else neighbouring lanes; so do they in the last with `rows_out`."""
        n, lanes = self.n, self.lanes
        found: list[Placed] = []
        size, stride = n, 1
        for r in radixes(n) or [1]:
            parts, each = size // r, n // r
            e = self.dealt(each * lanes)
            if (size == n and rows) or (size == r and rows_out):
                lane, butterfly = self.divided(e.at, each)
            else:
                butterfly, lane = self.divided(e.at, lanes)
            sources = [butterfly + j * each for j in range(r)]
            if size == n and callable(first):
                numbers = [first(s, lane) for s in sources]
            else:
                numbers = self.exchanged(first if size == n and not callable(first) else found, [(s, lane) for s in sources])
            p, q = self.divided(butterfly, stride)
            found = []
            for j, z in enumerate(numbers if r == 1 else self.math.small(numbers)):
                if j and parts > 1:
                    z = self.math.times(z, self.turned(table.get((0,), p * (j * stride))))
                found.append(Placed(z, p * (r * stride) + q + j * stride, lane, e.inside))
            size, stride = parts, stride * r
        return found


def _finish(call: Call, region: Region, threads: int, grid: Dim, note: str) -> Launch:
    launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    launch.kernel = on_threads(launch.kernel, threads, 1 if threads > WARP else BLOCK // threads)
    return launch


class CudaDftColumns(Template):
    key = "dft_blocks"
    serves = (DftOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        x = region.operands[0].type
        n = region.op(DftOp).sizes(x)[0]
        assert isinstance(n, int)
        return None if _fits(n, x.dtype) else Reason(f"a block keeps transforms of {SHARED >> 10} KB, got {n} of {x.dtype}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, x, out = region.op(DftOp), region.operands[0], region.results[0]
        if any(d == 0 for d in x.type.shape):
            return [shared_launch(x) for x in nothing(region.name, region.results)]
        n, count = op.sizes(x.type)
        assert isinstance(n, int)
        lanes = 1 if op.rows and op.rows_out else LANES
        while lanes > 1 and (not _fits(n * lanes, x.type.dtype) or (isinstance(count, int) and lanes >= 2 * count)):
            lanes //= 2
        call = Call("dft_blocks", region.name)
        b = call.b
        table, *more = (Pairs(call, f"table{i}", o, o.layout) for i, o in enumerate(region.operands[1:]))
        source, goal = (Pairs(call, name, o, _by_lane(o, rows=rows), 2, write=name == "y")
                        for name, o, rows in (("x", x, op.rows), ("y", out, op.rows_out)))
        lead = x.type.shape[:-3]
        words = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
        total, blocks = call.word("lanes", count), call.word("blocks", ceildiv(count, lanes))
        start = b.pid % blocks * lanes
        at = [*(unravel(b, b.pid // blocks, words) if words else []), 0, start]
        stages = Stages(b, x.type.dtype, n, lanes, inverse=op.inverse)
        left = b.from_index(total - start, i32)
        whole = isinstance(count, int) and count % lanes == 0

        def first(element: Tile, lane: Tile) -> Number:
            return source.get(at, element, lane if whole else b.binary("min", lane, left - 1))

        for w in stages.run(first, table, rows=op.rows, rows_out=op.rows_out):
            inside, z = w.inside, w.z
            if not whole:
                here = b.cmp("lt", w.lane, left)
                inside = here if inside is None else b.binary("and", inside, here)
            if more:
                index = w.element * (w.lane + b.from_index(start, i32))
                index = index if whole else b.select(b.cmp("lt", w.lane, left), index, 0)
                z = stages.math.times(z, stages.turned(more[0].get((0,), index)))
            goal.put(at, inside, z if op.scale == 1.0 else (z[0] * op.scale, z[1] * op.scale), w.element, w.lane)
        note = f"{'x'.join(map(str, radixes(n)))}, {lanes} lanes on {stages.threads} threads"
        return [_finish(call, region, stages.threads, product(lead) * ceildiv(count, lanes), note)]


def _by_lane(o: Operand, *, rows: bool) -> Layout:
    """[…, n, lanes, 2]."""
    rank = o.type.ndim
    return o.layout.permute((*range(rank - 3), rank - 2, rank - 3, rank - 1)) if rows else o.layout


class CudaDftRows(Template):
    key = "dft_row_blocks"
    serves = (DftRowsOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        m, _, width = region.operands[2].type.shape
        dtype = region.operands[0].type.dtype
        assert isinstance(m, int) and isinstance(width, int)
        return None if _fits(m * width, dtype) else Reason(f"a block keeps rows of {SHARED >> 10} KB, got {m * width} of {dtype}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if any(d == 0 for d in region.results[0].type.shape):
            return [shared_launch(x) for x in nothing(region.name, region.results)]
        return [_Row(region).launch()]


class _Row:
    def __init__(self, region: Region) -> None:
        self.region, self.op, self.kind = region, region.op(DftRowsOp), region.op(DftRowsOp).kind
        x, stages, across, *finish = region.operands
        m, _, width = across.type.shape
        assert isinstance(m, int) and isinstance(width, int)
        self.m, self.width, self.n = m, width, m * width
        self.call = Call("dft_row_blocks", region.name)
        b = self.b = self.call.b
        self.table = Pairs(self.call, "table", stages, stages.layout)
        self.across, *more = (self.call.view(f"t{i}", o.type.dtype, o.buffer, o.layout) for i, o in enumerate((across, *finish)))
        self.finish: View | None = more[0] if more else None
        self.x = Pairs(self.call, "x", x, _halved(x.layout) if self.kind in ("real", "full") else x.layout)
        y = region.results[0]
        self.y = Pairs(self.call, "y", y, _halved(y.layout) if self.kind == "back" else y.layout, write=True)
        lead = x.type.shape[:-1] if self.kind in ("real", "full") else x.type.shape[:-2]
        words = [self.call.word(f"d{i}", d) for i, d in enumerate(lead)]
        self.at: list[Ix | int] = [*(unravel(b, b.pid, words) if words else []), 0]
        self.grid = product(lead)
        self.stages = Stages(b, x.type.dtype, m, width, inverse=self.op.inverse)

    def launch(self) -> Launch:
        b, stages, width = self.b, self.stages, self.width

        def first(element: Tile, lane: Tile) -> Number:
            return self.x.get(self.at, element * width + lane)

        found = stages.run(self._tangled() if self.kind == "back" else first, self.table, rows=False, rows_out=False)
        e = stages.dealt(self.m)
        numbers = []
        lanes = [b.full(e.at.shape, j, i32) for j in range(width)]
        for j, z in enumerate(stages.exchanged(found, [(e.at, lane) for lane in lanes])):
            w = tuple(b.gather(self.across, (0, part, j), 0, e.at) for part in range(2))
            numbers.append(stages.math.times(z, stages.turned((w[0], w[1]))) if j else z)
        scale = self.op.scale * (0.5 if self.kind in ("real", "full") else 1.0)
        ends = []
        for k, z in enumerate(stages.math.small(numbers)):
            ends.append((z if scale == 1.0 else (z[0] * scale, z[1] * scale), e.at + k * self.m))
        if self.kind in ("complex", "back"):
            for z, at in ends:
                self.y.put(self.at, e.inside, z, at)
        else:
            self._untangle([self._placed(z, at, e.inside) for z, at in ends])
        note = f"{'x'.join(map(str, (*radixes(self.m), width)))} on {stages.threads} threads"
        return _finish(self.call, self.region, stages.threads, self.grid, note)

    def _placed(self, z: Number, k: Tile, inside: Tile | None) -> Placed:
        """Number k of the row at its place."""
        return Placed(z, *self.stages.divided(k, self.width), inside)

    def _halves(self) -> tuple[Exchange, Tile, Tile, Number]:
        """k = 0 … n / 2, n - k, n - k as a place of the row, and the twiddles of k."""
        b, n = self.b, self.n
        assert self.finish is not None
        e = self.stages.dealt(n // 2 + 1)
        behind = n - e.at
        middle, last = b.cmp("eq", e.at, n // 2), b.binary("min", e.at, n // 2 - 1)
        cos, sin = (b.gather(self.finish, (k, 0), 1, last) for k in range(2))
        return e, behind, b.select(b.cmp("eq", e.at, 0), 0, behind), (b.select(middle, 0.0, cos), b.select(middle, -1.0, sin))

    def _untangle(self, ends: list[Placed]) -> None:
        """Results k and n - k from those of the complex row: sums of even elements e and of odd ones o, e + w o and conj(e - w o)."""
        b, n, stages = self.b, self.n, self.stages
        half, behind, place, w = self._halves()
        (p, q), (r, s) = stages.exchanged(ends, [stages.divided(half.at, self.width), stages.divided(place, self.width)])
        e, o = (p + r, q - s), stages.math.times((q + s, r - p), w)
        low, high = (e[0] + o[0], e[1] + o[1]), (e[0] - o[0], o[1] - e[1])

        def within(*conditions: Tile) -> Tile | None:
            found = half.inside
            for c in conditions:
                found = c if found is None else b.binary("and", found, c)
            return found

        early, late = b.cmp("lt", half.at, n // 2), b.cmp("gt", half.at, 0)
        self.y.put(self.at, half.inside, low, half.at)
        self.y.put(self.at, within(early), high, behind)
        if self.kind == "full":
            self.y.put(self.at, within(early, late), (high[0], -high[1]), half.at + n)
            self.y.put(self.at, within(late), (low[0], -low[1]), behind + n)

    def _tangled(self) -> list[Placed]:
        """The complex row whose transform holds the even results in its real and the odd ones in its imaginary parts."""
        b, n = self.b, self.n
        half, behind, place, (cos, sin) = self._halves()
        (p, q), (r, s) = self.x.get(self.at, half.at), self.x.get(self.at, behind)
        first = b.cmp("eq", half.at, 0)
        q, s = (b.select(first, 0.0, x) for x in (q, s))  # imaginary parts that must be 0
        e, o = (p + r, q - s), self.stages.math.times((p - r, q + s), (cos, -sin))
        inner = b.binary("and", b.cmp("gt", half.at, 0), b.cmp("lt", half.at, n // 2))
        inner = inner if half.inside is None else b.binary("and", inner, half.inside)
        return [self._placed((e[0] - o[1], e[1] + o[0]), half.at, half.inside), self._placed((e[0] + o[1], o[0] - e[1]), place, inner)]


def _halved(layout: Layout) -> Layout:
    """Real numbers two by two."""
    step = layout.strides[-1]
    return Layout((*layout.shape[:-1], layout.shape[-1] // 2, 2), (*layout.strides[:-1], step * 2, step), layout.offset)
