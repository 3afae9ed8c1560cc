"""What factorisation kernels share: one program per matrix, columns in local memory padded with zeros so that loops over them need no
masks, and reports of matrices that have no factorisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...core.dims import Shape
from ...core.dtypes import DType
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...tile.builder import Ix, KernelBuilder, Tile, View
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.pointwise import unravel
from ..region import Operand

SINGULAR, NOT_POSITIVE = 3, 4  # codes in the error block


def vector(dtype: DType, target: TargetSpec) -> int:
    """Elements of one register."""
    return target.lanes(dtype.itemsize)


def tile_width(dtype: DType, target: TargetSpec) -> int:
    """Columns of a register tile of a product."""
    return vector(dtype, target) * (4 if target.registers >= 32 else 2)


def padded(length: int, width: int) -> int:
    """The distance between columns: sweeps from any start may run past the end by less than a register."""
    return (length + width - 1) // width * width + width


class Matrices:
    """A call with one program per matrix (or per part of one): views of whole operands, and where this program's matrix lies."""

    def __init__(self, template: str, name: str, lead: Shape) -> None:
        self.call = Call(template, name)
        self.b: KernelBuilder = self.call.b
        self.lead = lead
        self._words: list[Ix] = []

    def read(self, name: str, o: Operand, layout: Layout | None = None) -> View:
        return self.call.view(name, o.type.dtype, o.buffer, layout or o.layout)

    def write(self, name: str, o: Operand, layout: Layout | None = None) -> View:
        return self.call.view(name, o.type.dtype, o.buffer, layout or o.layout, write=True)

    def change(self, name: str, o: Operand) -> View:
        """For reading and writing."""
        self.call.also_reads(o.buffer)
        return self.write(name, o)

    def at(self, index: Ix | int) -> list[Ix | int]:
        """Positions along the leading axes."""
        words = [self.call.word(f"d{i}", d) for i, d in enumerate(self.lead)]
        return unravel(self.b, index, words) if words else []


class Columns:
    """Vectors in local memory, `count` of `length` elements, each followed by zeros."""

    def __init__(self, b: KernelBuilder, dtype: DType, count: int, length: int, width: int, view: View | None = None) -> None:
        """`view`: memory of that form that outlives the program."""
        self.b, self.dtype, self.width = b, dtype, width
        self.view = b.scratch(dtype, (count, padded(length, width))) if view is None else view

    def get(self, c: Ix | int, i: Ix | int) -> Tile:
        """Elements i … i + width - 1 of vector c."""
        return self.b.load(self.view, (c, i), (self.width,))

    def put(self, c: Ix | int, i: Ix | int, x: Tile) -> None:
        self.b.store(self.view, (c, i), x)

    def one(self, c: Ix | int, i: Ix | int) -> Tile:
        return self.b.load(self.view, (c, i), ())

    def set(self, c: Ix | int, i: Ix | int, x: Tile) -> None:
        self.b.store(self.view, (c, i), x)

    def fill(self, c: Ix | int, length: Ix | int, load: Callable[[Ix | int, Ix | int], Tile]) -> None:
        """load(i, left) gives elements from i on, of which `left` are inside; zeros behind."""
        with self.b.loop(0, length + self.width, self.width) as loop:
            self.put(c, loop.index, load(loop.index, length - loop.index))

    def zero(self, c: Ix | int, length: Ix | int) -> None:
        with self.b.loop(0, length + self.width, self.width) as loop:
            self.put(c, loop.index, self.b.full((self.width,), 0.0, self.dtype))

    def each(self, start: Ix | int, stop: Ix | int, body: Callable[[Ix], None]) -> None:
        with self.b.loop(start, stop, self.width) as loop:
            body(loop.index)

    def dot(self, c: Ix | int, other: Columns, d: Ix | int, start: Ix | int, stop: Ix | int) -> Tile:
        """The sum of products from start on (beyond stop one of them holds zeros)."""
        b = self.b
        with b.loop(start, stop, self.width, [b.full((self.width,), 0.0, self.dtype)]) as loop:
            loop.next(b.fma(self.get(c, loop.index), other.get(d, loop.index), loop.carried[0]))
        return b.reshape(b.reduce("sum", loop.results[0]), ())

    def add(self, c: Ix | int, factor: Tile, other: Columns, d: Ix | int, start: Ix | int, stop: Ix | int) -> None:
        """Vector c plus factor times another."""
        self.each(start, stop, lambda i: self.put(c, i, self.b.fma(factor, other.get(d, i), self.get(c, i))))

    def scale(self, c: Ix | int, factor: Tile, start: Ix | int, stop: Ix | int) -> None:
        self.each(start, stop, lambda i: self.put(c, i, self.get(c, i) * factor))


def nothing(name: str, results: Sequence[Operand]) -> list[Launch]:
    """A launch of no programs: results without elements count as written."""
    call = Call("nothing", name)
    for i, o in enumerate(results):
        call.view(f"y{i}", o.type.dtype, o.buffer, o.layout, write=True)
    return [call.finish(0)]


def swap(b: KernelBuilder, view: View, first: list[Ix | int], second: list[Ix | int]) -> None:
    x, y = b.load(view, first, ()), b.load(view, second, ())
    b.store(view, first, y)
    b.store(view, second, x)


def temp_like(o: Operand, name: str) -> Operand:
    """Contiguous memory of a template's own, of the type of `o`."""
    return Operand(o.type, Buffer(name, "temp", o.type.nbytes), Layout.contiguous(o.type.shape))


def reflection(b: KernelBuilder, v: Columns, own: Ix | int, top: Tile, first: Ix | int, size: Ix, floor: float = 0.0) -> tuple[Tile, Tile]:
    """Householder's reflection of the vector (top, rest) onto its first axis: beta, which top becomes, and tau. Column `own` of v holds
    the rest behind `first`, and becomes the reflection's vector, one at `first`. A rest of zeros, or whose squares add up to no more than
    `floor`, is left as it is."""
    one, zero = b.full((), 1.0, v.dtype), b.full((), 0.0, v.dtype)
    rest = v.dot(own, v, own, first + 1, size)
    norm = b.unary("sqrt", b.fma(top, top, rest))
    flat = b.cmp("le", rest, floor)
    beta = b.select(flat, top, b.select(b.cmp("lt", top, 0.0), norm, -norm))
    tau = b.select(flat, zero, (beta - top) / b.select(flat, one, beta))
    v.scale(own, b.select(flat, one, one / b.select(flat, one, top - beta)), first + 1, size)
    v.set(own, first, one)
    return beta, tau
