"""Accesses of a block program: tiles in registers to and from global memory, asynchronous copies to shared memory, and the order of
everything that touches shared memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ....core.dtypes import DType
from ..threads.access import Address, _narrow_int, _pack, _pack_literal, _raw, _unpack, plus, times
from ..threads.layout import elem_type
from .layout import Layout, Shape, log2

if TYPE_CHECKING:
    from .emit import TiledEmitter


def axis_bits(shape: Shape, axis: int) -> tuple[int, int]:
    """The position bits of an axis: first and number."""
    return sum(log2(d) for d in shape[axis + 1 :]), log2(shape[axis])


def coordinate(shape: Shape, axis: int, position: int) -> int:
    first, count = axis_bits(shape, axis)
    return position >> first & ((1 << count) - 1)


class Access:
    """One access of a tile in a layout: the address of every register's element, and whether it is inside the limits."""

    def __init__(self, e: TiledEmitter, view: Address, at: Sequence[str], shape: Shape, axes: Sequence[int], layout: Layout,
                 limits: Mapping[int, str]) -> None:
        self.e, self.view, self.shape, self.axes, self.layout = e, view, shape, axes, layout
        self.item = view.dtype.itemsize
        f, offset = e.f, "0"
        for x, stride in zip(at, view.strides, strict=True):
            offset = plus(f, offset, times(f, x, stride))
        for axis in range(len(shape)):
            offset = plus(f, offset, times(f, e.coordinate(layout, shape, axis, wide=True), view.strides[axes[axis]]))
        self.origin = plus(f, view.pointer, times(f, offset, str(self.item)))
        self.room = {axis: e.room(limit, layout, shape, axis) for axis, limit in limits.items()}
        self._places: dict[tuple[int, ...], tuple[str, int]] = {}
        self._checks: dict[tuple[int, int], str] = {}

    def place(self, position: int) -> tuple[str, int]:
        """Register and byte offset of the element at the register's part of a position."""
        key = tuple(coordinate(self.shape, a, position) for a in range(len(self.shape)))
        known, moving = 0, []
        for c, axis in zip(key, self.axes, strict=True):
            stride = self.view.strides[axis]
            if stride.startswith("%"):
                moving.append((c, stride))
            else:
                known += c * int(stride) * self.item
        at = tuple(c for c, _ in moving)
        if at not in self._places:
            p = self.origin
            for c, stride in moving:
                p = plus(self.e.f, p, times(self.e.f, stride, str(c * self.item)))
            self._places[at] = p, 0
        return self._places[at][0], known

    def check(self, axis: int, c: int) -> str:
        """Whether a coordinate is inside its limit; `c` is the register's part of it."""
        if (axis, c) not in self._checks:
            self._checks[axis, c] = self.e.f.icmp("sgt", "i32", self.room[axis], str(c))
        return self._checks[axis, c]

    def inside(self, position: int, but: int | None = None) -> str | None:
        """Whether an element is inside all limits (`but` that of one axis); None: always."""
        found = None
        for axis in self.room:
            if axis != but:
                here = self.check(axis, coordinate(self.shape, axis, position))
                found = here if found is None else self.e.f.op("and", "i1", found, here)
        return found


def pieces(layout: Layout, shape: Shape, axis: int | None, most: int) -> list[list[int]]:
    """Registers in runs of neighbours along an axis, of at most `most`."""
    run = min(most, layout.run(axis_bits(shape, axis)[0])) if axis is not None and shape else 1
    return [list(range(r, r + run)) for r in range(0, layout.count, run)]


def load_piece(e: TiledEmitter, dtype: DType, at: tuple[str, int], count: int, inside: str | None, other: float, ld: str) -> list[str]:
    """`count` neighbours by the widest loads; where they are outside, `other`."""
    k, f, (pointer, offset) = e.k, e.f, at
    guard = "" if inside is None else f"@{inside} "
    if count * dtype.itemsize < 4:
        ty = elem_type(dtype)
        kind = {"bool": "u8", "i8": "s8", "u8": "u8", "i16": "s16", "u16": "u16"}.get(dtype.name, f"b{8 * dtype.itemsize}")
        out = []
        for i in range(count):
            reg = k.reg("i32" if ty in ("i1", "i8", "i16") else ty)
            if guard:
                k.emit(f"mov.b{16 if ty in ('half', 'bf16') else 32} {reg}, {_raw(dtype, other)};")
            k.emit(f"{guard}{ld}.{kind} {reg}, [{pointer}+{offset + i * dtype.itemsize}];")
            out.append(f.icmp("ne", "i32", reg, "0") if dtype.is_bool else reg)
        return out
    word = 8 if dtype.itemsize == 8 else 4
    ty = elem_type(dtype) if dtype.itemsize >= 4 else "i32"
    found: list[str] = []
    per = 16 // word
    regs = [k.reg(ty) for _ in range(count * dtype.itemsize // word)]
    for first in range(0, len(regs), per):
        part = regs[first : first + per]
        if guard:
            for r in part:
                k.emit(f"mov.b{8 * word} {r}, {_pack_literal(dtype, other)};")
        names = f"{{{', '.join(part)}}}" if len(part) > 1 else part[0]
        k.emit(f"{guard}{ld}{f'.v{len(part)}' if len(part) > 1 else ''}.b{8 * word} {names}, [{pointer}+{offset + first * word}];")
        for r in part:
            found += _unpack(f, dtype, r)
    return found


def store_piece(e: TiledEmitter, dtype: DType, at: tuple[str, int], values: list[str], inside: str | None, st: str) -> None:
    k, f, (pointer, offset) = e.k, e.f, at
    guard = "" if inside is None else f"@{inside} "
    if dtype.is_bool:
        values = [f.select("i32", v, "1", "0") for v in values]
    if len(values) * dtype.itemsize < 4:
        for i, v in enumerate(values):
            k.emit(f"{guard}{st}.b{8 * dtype.itemsize} [{pointer}+{offset + i * dtype.itemsize}], {_narrow_int(f, dtype, v)};")
        return
    word = 8 if dtype.itemsize == 8 else 4
    words = _pack(f, dtype, values)
    for first in range(0, len(words), 16 // word):
        part = words[first : first + 16 // word]
        names = f"{{{', '.join(part)}}}" if len(part) > 1 else part[0]
        k.emit(f"{guard}{st}{f'.v{len(part)}' if len(part) > 1 else ''}.b{8 * word} [{pointer}+{offset + first * word}], {names};")


@dataclass
class SharedMemory:
    """The block's dynamic shared memory: a stack of areas, and which of them threads have touched since the last barrier."""

    top: int = 0
    peak: int = 0
    touched: list[tuple[int, int, bool]] = field(default_factory=list)  # first byte, one past the last, written

    def take(self, nbytes: int, align: int = 1024) -> int:
        at = -(-self.top // align) * align
        self.top = at + nbytes
        self.peak = max(self.peak, self.top)
        return at

    def conflicts(self, at: int, nbytes: int, write: bool) -> bool:
        """Whether an access must wait for what other threads did since the last barrier."""
        return any(first < at + nbytes and at < last and (write or wrote) for first, last, wrote in self.touched)

    def touch(self, at: int, nbytes: int, write: bool) -> None:
        self.touched.append((at, at + nbytes, write))

    def anything(self) -> None:
        """A loop's iteration before may have touched all of it."""
        self.touched = [(0, 1 << 30, True)]
