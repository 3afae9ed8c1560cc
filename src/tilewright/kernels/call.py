"""Builds a kernel and its argument words side by side, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence

from ..core.dims import Dim, Shape, at_least
from ..core.dtypes import DType, i64
from ..core.hashing import blake2b
from ..core.natives import address
from ..ir.layout import Layout
from ..tile.builder import Ix, KernelBuilder, Tile, View
from ..tile.ir import Var, local_bytes
from ..tile.text import to_text
from .launch import CLAIMED, Argument, Buffer, ErrorWord, Launch, Native, Pointer, Word

LONG = 4096  # bytes along memory: shorter rows share lines with what is stored around them
NEAR = (2, 3, 4, -1)  # strides that whole registers and shuffles serve better than single elements


def report(b: KernelBuilder, error: View, code: int, position: Ix | int, value: Ix | int | Tile, site: int = 0) -> None:
    """Fill the error block (code, site, position, value), unless another report has it. The program that sets the bit CLAIMED first
    writes all of it, so that a block never mixes what two threads found."""
    with b.if_(b.cmp("eq", b.atomic("or", error, (0,), b.full((), CLAIMED, i64)), 0)):
        b.store(error, (1,), b.from_index(site))
        b.store(error, (2,), b.from_index(position))
        b.store(error, (3,), value if isinstance(value, Tile) else b.from_index(value))
        b.store(error, (0,), b.from_index(code))


class Call:
    """A launch under construction. Views bake only strides -1, 0 and 1 (and 2 to 4 along the last axis) into the kernel; all else is a
    run-time word."""

    def __init__(self, template: str, label: str) -> None:
        self.b = KernelBuilder(template)
        self.label = label
        self._arguments: list[Argument] = []
        self._reads: dict[Buffer, None] = {}
        self._writes: dict[Buffer, None] = {}
        self._long: list[Var] = []

    def view(self, name: str, dtype: DType, buffer: Buffer, layout: Layout, *, write: bool = False, sizes: Shape | None = None,
             bake: Sequence[int] = ()) -> View:
        """A view parameter over `layout` (its shape gives the extent to check, unless `sizes` does). Strides of the axes in `bake`
        go into the kernel as numbers: worth it where a template fixes them itself."""
        baked = {a % len(layout.strides) for a in bake}
        last = len(layout.strides) - 1
        known = tuple(
            s if isinstance(s, int) and (s in (-1, 0, 1) or i in baked or (i == last and s in NEAR)) else None
            for i, s in enumerate(layout.strides)
        )
        reach: Dim = 1
        for d, s in zip(sizes or layout.shape, layout.strides, strict=True):
            reach = reach + (d - 1) * s
        if any(not at_least(s, 0) for s in layout.strides):  # a flipped axis is touched before the pointer
            reach = 0
        item = dtype.itemsize
        self._arguments.append(Pointer(buffer, layout.offset * item, reach * item))
        self._arguments += [Word(s) for s, k in zip(layout.strides, known, strict=True) if k is None]
        (self._writes if write else self._reads)[buffer] = None
        made = self.b.view(name, dtype, known)
        if write and known and known[-1] == 1 and at_least(layout.shape[-1] * item, LONG):
            self._long.append(made.var)
        return made

    def word(self, name: str, value: Dim) -> Ix:
        """An index parameter with the value of a dim."""
        self._arguments.append(Word(value))
        return self.b.index(name)

    def also_reads(self, buffer: Buffer) -> None:
        """A buffer that is written through a view is read through it too."""
        self._reads[buffer] = None

    def native(self, name: str) -> Ix:
        """The address of a native function, for `call`; a CompileError where this process has none of that name."""
        address(name)
        self._arguments.append(Native(name))
        return self.b.index(name)

    def error(self) -> View:
        self._arguments.append(ErrorWord())
        return self.b.error()

    def finish(self, grid: Dim, *, flops: Dim = 0, bytes_: Dim = 0, inplace: Sequence[tuple[Buffer, Buffer]] = (), note: str = "",
               serial: bool = False, streams: bool = False, shared: bool = False) -> Launch:
        kernel = self.b.build()
        template, kernel.name = kernel.name, "kernel"
        kernel.name = f"{template}_{blake2b(to_text(kernel).encode(), digest_size=8).hexdigest()}"
        return Launch(
            self.label,
            kernel,
            tuple(self._arguments),
            grid,
            tuple(self._reads),
            tuple(self._writes),
            tuple(inplace),
            local_bytes(kernel),
            flops,
            bytes_,
            serial,
            note,
            streams,
            shared,
            long_rows=tuple(self._long) if streams else (),
        )
