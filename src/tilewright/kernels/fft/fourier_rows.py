"""Fourier transforms of rows, real forms included: one program a row, all of it near its core.

n = m * V. Element j1 * V + j2 stands in lane j2, so a row is m registers of real parts and m of imaginary parts, split as they are read.
The stages over j1 (Stockham's self-sorting form) work lane by lane; then result k1 of lane j2 is rotated by k1 * j2 steps, squares of V x V
are transposed, and the transform over j2 is a butterfly of whole registers whose results k1 + m * k2 lie side by side. A real row is read
as a complex one of half its length; results k and n - k are untangled together, one register forwards and one from behind.
"""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.fourier.transforms import DftRows as DftRowsOp
from ...ops.fourier.transforms import factors
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Launch
from ..linalg.matrices import nothing
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops
from .butterflies import Butterflies, Number

LINE = 64  # bytes
Get = Callable[[Ix | int], Number]
Put = Callable[[Ix | int, Number], None]


class DftRowsTemplate(Template):
    key = "dft_rows"
    serves = (DftRowsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if any(d == 0 for d in region.results[0].type.shape):
            return nothing(region.name, region.results)
        return [_Kernel(region).launch()]


class _Kernel:
    def __init__(self, region: Region) -> None:
        self.region, self.op, self.kind = region, region.op(DftRowsOp), region.op(DftRowsOp).kind
        x, stages, across, *finish = region.operands
        m, _, width = across.type.shape
        assert isinstance(m, int) and isinstance(width, int)
        self.m, self.width, self.n, self.dtype = m, width, m * width, x.type.dtype
        self.call = Call("dft_rows", region.name)
        self.b: KernelBuilder = self.call.b
        self.math = Butterflies(self.b, self.dtype, inverse=self.op.inverse)
        self.stages, self.across, *more = (self.call.view(f"t{i}", self.dtype, o.buffer, o.layout) for i, o in
                                           enumerate((stages, across, *finish)))
        self.finish = more[0] if more else None
        lead = x.type.shape[:-1] if self.kind in ("real", "full") else x.type.shape[:-2]
        words = [self.call.word(f"d{i}", d) for i, d in enumerate(lead)]
        self.at: list[Ix | int] = unravel(self.b, self.b.pid, words) if words else []
        self.grid = product(lead)
        self.next: list[Ix | int] = unravel(self.b, self.b.pid + 1, words) if words else []
        self.x = self._pairs("x", x.layout, real=self.kind in ("real", "full"), write=False)
        out = region.results[0].layout
        self.y = self._pairs("y", out, real=self.kind == "back", write=True)
        self.flat: View | None = None  # results as floats side by side
        if self.kind == "back" and out.strides[-1] == 1:
            self.flat = self.call.view("flat", self.dtype, region.results[0].buffer, out, write=True)
        elif self.kind != "back" and out.strides[-1] == 1 and out.strides[-2] == 2:
            joined = Layout((*out.shape[:-2], 2 * out.shape[-2]), (*out.strides[:-2], 1), out.offset)
            self.flat = self.call.view("flat", self.dtype, region.results[0].buffer, joined, write=True)
        self.memory = [self.b.scratch(self.dtype, (2, self.m, self.width)) for _ in range(2)]
        self.planes = self.b.scratch(self.dtype, (2, self.n + self.width)) if more else None

    def _pairs(self, name: str, lay: Layout, *, real: bool, write: bool) -> View:
        """[…, elements, 2]; real numbers taken two by two."""
        if real:
            lay = Layout((*lay.shape[:-1], lay.shape[-1] // 2, 2), (*lay.strides[:-1], lay.strides[-1] * 2, lay.strides[-1]), lay.offset)
        o = self.region.results[0] if write else self.region.operands[0]
        return self.call.view(name, self.dtype, o.buffer, lay, write=write, bake=(-2,) if lay.strides[-2] == 2 else ())

    def launch(self) -> Launch:
        radixes = list(reversed(factors(self.m)))
        if self.kind == "back":
            self._tangle()
        if self.kind != "complex":  # whose rows are written in whole lines, for which nothing need be fetched
            self._ahead(self.y, self.at, self.region.results[0], real=self.kind == "back")
        now, size, stride = 0, self.m, 1
        get: Get = self._from_planes if self.kind == "back" else self._from_row
        for r in radixes:
            self._stage(get, self._into(now, across=size == r), r, size, stride)
            get = self._from(now)
            if size == self.m and self.kind != "complex":
                self._ahead(self.x, self.next, self.region.operands[0], real=self.kind in ("real", "full"))
            size, stride, now = size // r, stride * r, 1 - now
        self._across(self.memory[1 - now])
        if self.kind in ("real", "full"):
            self._untangle()
        note = "x".join(map(str, (*radixes, self.width)))
        return self.call.finish(self.grid, flops=region_flops(self.region), bytes_=region_bytes(self.region), note=note, streams=True)

    def _ahead(self, view: View, at: list[Ix | int], o: Operand, *, real: bool) -> None:
        """Asks for the lines of a row that is needed later: of the result, and of the next program's operand."""
        count = o.type.shape[-1] // 2 if real else o.type.shape[-2]
        assert isinstance(count, int)
        with self.b.loop(0, count, LINE // (2 * self.dtype.itemsize)) as loop:
            self.b.prefetch(view, (*at, loop.index, 0), locality=2 if self.kind == "back" else 3)

    # --- memory -------------------------------------------------------------------------------------------------------
    def _from_row(self, j: Ix | int) -> Number:
        return self._row(j * self.width)

    def _row(self, start: Ix | int) -> Number:
        """A register of elements of the row that is read."""
        re, im = (self.b.load(self.x, (*self.at, start, k), (self.width,), axes=(len(self.at),)) for k in range(2))
        return re, im

    def _from_planes(self, j: Ix | int) -> Number:
        return self._plane(j * self.width)

    def _plane(self, start: Ix | int) -> Number:
        assert self.planes is not None
        re, im = (self.b.load(self.planes, (k, start), (self.width,)) for k in range(2))
        return re, im

    def _keep(self, start: Ix | int, z: Number) -> None:
        assert self.planes is not None
        for k in range(2):
            self.b.store(self.planes, (k, start), z[k])

    def _from(self, which: int) -> Get:
        def get(k: Ix | int) -> Number:
            return (self.b.load(self.memory[which], (0, k, 0), (self.width,)), self.b.load(self.memory[which], (1, k, 0), (self.width,)))
        return get

    def _into(self, which: int, *, across: bool) -> Put:
        """Results of a stage; those of the last one are turned for the transform across registers."""
        def put(k: Ix | int, z: Number) -> None:
            if across:
                cos, sin = (self.b.load(self.across, (k, part, 0), (self.width,)) for part in range(2))
                z = self.math.times(z, (cos, -sin if self.op.inverse else sin))
            for part in range(2):
                self.b.store(self.memory[which], (part, k, 0), z[part])
        return put

    def _write(self, start: Ix | int, z: Number, count: Ix | int | None = None) -> None:
        """A register of results (the first `count` of them)."""
        b = self.b
        if self.flat is not None:
            b.store(self.flat, (*self.at, start * 2), b.interleave(*z), limit=None if count is None else (count * 2,))
            return
        for k in range(2):
            b.store(self.y, (*self.at, start, k), z[k], axes=(len(self.at),), limit=None if count is None else (count,))

    def _reversed(self, z: Number) -> Number:
        return self.b.reverse(z[0]), self.b.reverse(z[1])

    # --- transforms ---------------------------------------------------------------------------------------------------
    def _stage(self, get: Get, put: Put, r: int, size: int, stride: int) -> None:
        """size: what is left of the transform; stride: what is done."""
        parts = size // r

        def butterflies(p: Ix | int) -> Callable[[Ix | int], None]:
            twiddles = [] if parts == 1 else [self.math.twiddle_of(self.stages, p * (j * stride)) for j in range(1, r)]

            def one(q: Ix | int) -> None:
                start, end = p * stride + q, p * (r * stride) + q
                found = self.math.small([get(start + j * (parts * stride)) for j in range(r)])
                for j, z in enumerate(found):
                    put(end + j * stride, self.math.times(z, twiddles[j - 1]) if j and twiddles else z)

            return one

        self.math.stage(parts, stride, butterflies)

    def _across(self, source: View) -> None:
        b, width = self.b, self.width
        scale = self.op.scale * (0.5 if self.kind in ("real", "full") else 1.0)

        def rows(part: int, k: Ix) -> list[Tile]:
            tile = b.transpose(b.load(source, (part, k, 0), (width, width)))
            return [b.reshape(b.extract(tile, (j, 0), (1, width)), (width,)) for j in range(width)]

        with b.loop(0, self.m, width) as loop:
            numbers = list(zip(rows(0, loop.index), rows(1, loop.index), strict=True))
            for k2, z in enumerate(self.math.small(numbers)):
                z = z if scale == 1.0 else (z[0] * scale, z[1] * scale)
                (self._write if self.kind in ("complex", "back") else self._keep)(loop.index + self.m * k2, z)

    # --- real rows ----------------------------------------------------------------------------------------------------
    def _twiddles(self, k: Ix | int) -> Number:
        assert self.finish is not None
        return self.b.load(self.finish, (0, k), (self.width,)), self.b.load(self.finish, (1, k), (self.width,))

    def _untangle(self) -> None:
        """Results k and n - k from those of the complex row: sums of even elements e and of odd ones o, e + w o and conj(e - w o)."""
        b, n, width, planes = self.b, self.n, self.width, self.planes
        assert planes is not None
        for part in range(2):  # result n of the complex row is its result 0
            b.store(planes, (part, n), b.load(planes, (part, 0), ()))
        with b.loop(0, n // 2, width) as loop:
            k = loop.index
            behind = n - (width - 1) - k
            (p, q), (r, s) = self._plane(k), self._reversed(self._plane(behind))
            w, (u, v) = self._twiddles(k), (q + s, r - p)
            e, o = (p + r, q - s), self.math.times((u, v), w)
            low, high = (e[0] + o[0], e[1] + o[1]), (e[0] - o[0], o[1] - e[1])
            self._write(k, low)
            self._write(behind, self._reversed(high))
            if self.kind == "full":
                self._write(n + k, (high[0], -high[1]))
                # result 2 n does not exist
                self._write(behind + n, self._reversed((low[0], -low[1])), k + (width - 1))
        middle = [b.load(planes, (k, n // 2), ()) * 2.0 for k in range(2)]
        self._single(n // 2, middle[0], -middle[1])
        if self.kind == "full":
            self._single(n + n // 2, middle[0], middle[1])

    def _single(self, k: int, re: Tile, im: Tile) -> None:
        for part, x in enumerate((re, im)):
            self.b.store(self.y, (*self.at, k, part), x)

    def _tangle(self) -> None:
        """The complex row whose transform holds the even results in its real and the odd ones in its imaginary parts."""
        b, n, width, planes = self.b, self.n, self.width, self.planes
        assert planes is not None
        with b.loop(0, n // 2, width) as loop:
            k = loop.index
            behind = n - (width - 1) - k
            (p, q), (r, s) = self._row(k), self._reversed(self._row(behind))
            cos, sin = self._twiddles(k)
            e, o = (p + r, q - s), self.math.times((p - r, q + s), (cos, -sin))
            self._keep(k, (e[0] - o[1], e[1] + o[0]))
            self._keep(behind, self._reversed((e[0] + o[1], o[0] - e[1])))
        first, last = (b.load(self.x, (*self.at, k, 0), ()) for k in (0, n))
        b.store(planes, (0, 0), first + last)
        b.store(planes, (1, 0), first - last)
        for part, factor in enumerate((2.0, -2.0)):
            b.store(planes, (part, n // 2), b.load(self.x, (*self.at, n // 2, part), ()) * factor)
