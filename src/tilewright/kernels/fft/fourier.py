"""Fourier transforms: one program per register of lanes, all stages in its own memory (Stockham's self-sorting form).

Every element of a transform is a register of real parts and one of imaginary parts, so butterflies need no shuffles. Operands whose lanes
lie side by side are read as words of two floats and split; those whose elements lie side by side (rows) are transposed in square tiles,
which separates the parts too. Radixes 8, 4, 2, 3 and 5 are written out, other primes are sums over a table. Lanes past the last are masked.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import ceildiv, product
from ...core.dtypes import i64
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.fourier.transforms import DftColumns as DftOp
from ...ops.fourier.transforms import factors
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch
from ..linalg.matrices import nothing, vector
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .butterflies import Butterflies, Number

SMALL = (2, 3, 4, 5, 8)  # radixes that are written out
LINE, AHEAD = 64, 16  # bytes of a cache line, rows that are asked for before they are read
NEAR = 32  # twiddles between two rounds are products of one near and one far factor


class DftColumnsTemplate(Template):
    key = "dft_columns"
    serves = (DftOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, out = region.operands[0], region.results[0]
        if any(d == 0 for d in x.type.shape):
            return nothing(region.name, region.results)
        return [_Kernel(region, target, x, out).launch()]


class _Kernel:
    def __init__(self, region: Region, target: TargetSpec, x: Operand, out: Operand) -> None:
        self.region, self.op, self.x, self.out = region, region.op(DftOp), x, out
        n, self.lanes = self.op.sizes(x.type)
        assert isinstance(n, int)
        self.n, self.dtype, self.width = n, x.type.dtype, vector(x.type.dtype, target)
        self.call = Call("dft", region.name)
        self.b: KernelBuilder = self.call.b
        self.math = Butterflies(self.b, self.dtype, inverse=self.op.inverse)
        self.table = self.call.view("table", self.dtype, region.operands[1].buffer, region.operands[1].layout)
        more = region.operands[2] if len(region.operands) > 2 else None
        self.further = None if more is None else self.call.view("further", self.dtype, more.buffer, more.layout)
        self.memory = [self.b.scratch(self.dtype, (2 * n, self.width)) for _ in range(2)]
        lead = x.type.shape[:-3]
        words = [self.call.word(f"d{i}", d) for i, d in enumerate(lead)]
        self.count = self.call.word("lanes", self.lanes)
        blocks = self.call.word("blocks", ceildiv(self.lanes, self.width))
        self.first = self.b.pid % blocks * self.width
        self.left = self.count - self.first
        self.at = unravel(self.b, self.b.pid // blocks, words) if words else []
        self.grid = product(lead) * ceildiv(self.lanes, self.width)

    def launch(self) -> Launch:
        now, size, stride = 0, self.n, 1
        radixes = list(factors(self.n))
        # The first and the last stage do their work on what is read and written, where whole tiles of them can be transposed.
        direct_in = len(radixes) > 1 and self._whole(radixes[0], self._layout(self.x, self.op.rows))
        direct_out = len(radixes) > 1 and self.further is None and self._whole(radixes[-1], self._layout(self.out, self.op.rows_out))
        if not direct_in:
            self._read(self.memory[now])
        for i, r in enumerate(radixes):
            if i == 0 and direct_in:
                self._read_stage(self.memory[1 - now], r)
            elif i == len(radixes) - 1 and direct_out:
                self._write_stage(self.memory[now], r)
            else:
                self._stage(self.memory[now], self.memory[1 - now], r, size, stride)
            size, stride, now = size // r, stride * r, 1 - now
        if self.further is not None:
            self._twiddle(self.memory[now])
        if not direct_out:
            self._write(self.memory[now])
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region),
                                note="x".join(map(str, factors(self.n))))

    # --- memory -------------------------------------------------------------------------------------------------------
    def _get(self, m: View, k: Ix | int) -> Number:
        b, shape = self.b, (self.width,)
        return b.load(m, (k * 2, 0), shape), b.load(m, (k * 2 + 1, 0), shape)

    def _put(self, m: View, k: Ix | int, z: Number) -> None:
        self.b.store(m, (k * 2, 0), z[0])
        self.b.store(m, (k * 2 + 1, 0), z[1])

    def _layout(self, o: Operand, rows: bool) -> Layout:
        """[…, n, lanes, 2]."""
        rank = o.type.ndim
        return o.layout.permute((*range(rank - 3), rank - 2, rank - 3, rank - 1)) if rows else o.layout

    def _square(self, lay: Layout) -> bool:
        """Elements lie side by side and whole square tiles of them can be transposed."""
        return lay.strides[-1] == 1 and lay.strides[-3] == 2 and lay.strides[-2] != 2 and self.width > 1

    def _pairs(self, lay: Layout) -> Layout | None:
        """[…, n, floats] where the lanes lie side by side, parts by turns."""
        if lay.strides[-1] != 1 or lay.strides[-2] != 2 or self.width < 2:
            return None
        return Layout((*lay.shape[:-2], 2 * lay.shape[-2]), (*lay.strides[:-2], 1), lay.offset)

    def _whole(self, r: int, lay: Layout) -> bool:
        return r in SMALL and self._square(lay) and self.n // r % (self.width // 2) == 0

    def _flat(self, o: Operand, lay: Layout, *, write: bool) -> View:
        """[…, lanes, floats]."""
        flat = Layout((*lay.shape[:-3], lay.shape[-2], 2 * self.n), (*lay.strides[:-3], lay.strides[-2], 1), lay.offset)
        return self.call.view("y" if write else "x", self.dtype, o.buffer, flat, write=write)

    def _read_stage(self, goal: View, r: int) -> None:
        """The first stage on tiles as they come."""
        b, width, half, parts = self.b, self.width, self.width // 2, self.n // r
        view = self._flat(self.x, self._layout(self.x, self.op.rows), write=False)
        near = b.scratch(self.dtype, (r * width, width))
        with b.loop(0, parts, half) as block:
            for j in range(r):
                at = (*self.at, self.first, (block.index + parts * j) * 2)
                b.store(near, (j * width, 0), b.transpose(b.load(view, at, (width, width), limit=(self.left, None))))
            with b.loop(0, half) as each:
                p = block.index + each.index
                found = self.math.small([self._get(near, each.index + j * half) for j in range(r)])
                for j, z in enumerate(found):
                    self._put(goal, p * r + j, self.math.times(z, self.math.twiddle_of(self.table, p * j)) if j else z)

    def _write_stage(self, source: View, r: int) -> None:
        """The last stage, whose results go out in tiles."""
        b, width, half, stride = self.b, self.width, self.width // 2, self.n // r
        view = self._flat(self.out, self._layout(self.out, self.op.rows_out), write=True)
        near = b.scratch(self.dtype, (r * width, width))
        with b.loop(0, stride, half) as block:
            with b.loop(0, half) as each:
                found = self.math.small([self._get(source, block.index + each.index + j * stride) for j in range(r)])
                for j, z in enumerate(found):
                    self._put(near, each.index + j * half, z)
            for j in range(r):
                tile = self._scaled(b.transpose(b.load(near, (j * width, 0), (width, width))))
                b.store(view, (*self.at, self.first, (block.index + stride * j) * 2), tile, limit=(self.left, None))

    def _tiles(self, o: Operand, lay: Layout, *, write: bool, move: Callable[[View, Ix | int, tuple[Ix | int, Ix | int]], None]) -> None:
        """Square tiles of lanes × floats, of which some at the end are not whole."""
        view = self._flat(o, lay, write=write)
        with self.b.loop(0, 2 * self.n, self.width) as loop:
            move(view, loop.index, (self.left, 2 * self.n - loop.index))

    def _read(self, m: View) -> None:
        b, lay = self.b, self._layout(self.x, self.op.rows)
        if self._square(lay):
            def transposed(view: View, i: Ix | int, limit: tuple[Ix | int, Ix | int]) -> None:
                tile = b.load(view, (*self.at, self.first, i), (self.width, self.width), limit=limit)
                b.store(m, (i, 0), b.transpose(tile), limit=(limit[1], None))

            self._tiles(self.x, lay, write=False, move=transposed)
            return
        pairs = self._pairs(lay)
        view = self.call.view("x", self.dtype, self.x.buffer, lay if pairs is None else pairs)
        with b.loop(0, self.n) as loop:
            if pairs is not None:
                start, width = self.first * 2, self.width
                for line in range(0, 2 * width, LINE // self.dtype.itemsize):  # the hardware does not foresee rows this far apart
                    b.prefetch(view, (*self.at, loop.index + AHEAD, start + line))
                low, high = (b.load(view, (*self.at, loop.index, start + k), (width,), limit=(self.left * 2 - k,)) for k in (0, width))
                self._put(m, loop.index, (b.shuffle(low, high, range(0, 2 * width, 2)), b.shuffle(low, high, range(1, 2 * width, 2))))
            else:
                where = (*self.at, loop.index, self.first)
                re, im = (b.load(view, (*where, k), (self.width,), axes=(len(where) - 1,), limit=(self.left,)) for k in range(2))
                self._put(m, loop.index, (re, im))

    def _write(self, m: View) -> None:
        b, lay = self.b, self._layout(self.out, self.op.rows_out)
        if self._square(lay):
            def transposed(view: View, i: Ix | int, limit: tuple[Ix | int, Ix | int]) -> None:
                tile = b.load(m, (i, 0), (self.width, self.width), limit=(limit[1], None))
                b.store(view, (*self.at, self.first, i), self._scaled(b.transpose(tile)), limit=limit)

            self._tiles(self.out, lay, write=True, move=transposed)
            return
        pairs = self._pairs(lay)
        view = self.call.view("y", self.dtype, self.out.buffer, lay if pairs is None else pairs, write=True)
        with b.loop(0, self.n) as loop:
            parts = [self._scaled(p) for p in self._get(m, loop.index)]
            if pairs is not None:
                b.store(view, (*self.at, loop.index, self.first * 2), b.interleave(*parts), limit=(self.left * 2,))
            else:
                for k, p in enumerate(parts):
                    b.store(view, (*self.at, loop.index, self.first, k), p, axes=(len(self.at) + 1,), limit=(self.left,))

    def _scaled(self, x: Tile) -> Tile:
        return x if self.op.scale == 1.0 else x * self.op.scale

    # --- arithmetic ---------------------------------------------------------------------------------------------------
    def _stage(self, source: View, goal: View, r: int, size: int, stride: int) -> None:
        """size: what is left of the transform; stride: what is done."""
        parts = size // r

        def butterflies(p: Ix | int) -> Callable[[Ix | int], None]:
            twiddles = [] if parts == 1 or r not in SMALL else [self.math.twiddle_of(self.table, p * (j * stride)) for j in range(1, r)]

            def one(q: Ix | int) -> None:
                start, end = p * stride + q, p * (r * stride) + q
                if r not in SMALL:
                    self._prime(source, goal, r, (start, parts * stride), (end, stride), None if parts == 1 else p)
                    return
                found = self.math.small([self._get(source, start + j * (parts * stride)) for j in range(r)])
                for j, z in enumerate(found):
                    self._put(goal, end + j * stride, self.math.times(z, twiddles[j - 1]) if j and twiddles else z)

            return one

        self.math.stage(parts, stride, butterflies)

    def _prime(self, source: View, goal: View, r: int, read: tuple[Ix | int, int], write: tuple[Ix | int, int], p: Ix | int | None) -> None:
        """A sum over the table for every result; `p` (unless None) says how results are transposed."""
        b, step = self.b, self.n // r
        zero = b.full((self.width,), 0.0, self.dtype)
        with b.loop(0, r) as k:
            with b.loop(0, r, 1, [zero, zero]) as j:
                z = self._get(source, read[0] + j.index * read[1])
                cos, sin = self.math.twiddle_of(self.table, j.index * k.index % r * step)
                re, im = j.carried
                j.next(b.fma(z[0], cos, b.fma(-z[1], sin, re)), b.fma(z[0], sin, b.fma(z[1], cos, im)))
            out: Number = (j.results[0], j.results[1])
            if p is not None:
                out = self.math.times(out, self.math.twiddle_of(self.table, p * k.index * write[1]))
            self._put(goal, write[0] + k.index * write[1], out)

    def _twiddle(self, m: View) -> None:
        """Result k of lane l by k * l steps of the longer transform: exp of (k // NEAR) * NEAR * l and of (k % NEAR) * l, multiplied."""
        b, table = self.b, self.further
        assert table is not None
        far = -(-self.n // NEAR)
        rows = b.scratch(self.dtype, (2 * (NEAR + far), self.width))
        lanes = b.minimum(self.count - 1, self.first)  # masked lanes may be at any place
        places = b.binary("min", b.iota((self.width,), 0) + b.from_index(lanes), b.from_index(self.count - 1))

        def fill(start: int, count: int, step: int) -> None:
            with b.loop(0, count) as loop:
                index = places * b.from_index(loop.index * step, i64)
                for k in range(2):
                    x = b.gather(table, (0, k), 0, index)
                    b.store(rows, ((loop.index + start) * 2 + k, 0), -x if k and self.op.inverse else x)

        fill(0, min(NEAR, self.n), 1)
        fill(NEAR, far, NEAR)
        with b.loop(0, self.n) as loop:
            k = loop.index
            twiddle = self.math.times(self._get(rows, k % NEAR), self._get(rows, k // NEAR + NEAR))
            self._put(m, k, self.math.times(self._get(m, k), twiddle))
