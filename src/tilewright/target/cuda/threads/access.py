"""Tile loads and stores on global, shared and thread-private memory: addresses, 16-byte pieces, edge predicates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.dtypes import DType
from ....tile.ir import TileType
from ..arithmetic.scalar import Scalars
from ..ptx.text import literal
from .layout import Key, Regs, elem_type

if TYPE_CHECKING:
    from .emit import Emitter

WIDEST = 16  # bytes of one access


@dataclass(frozen=True)
class Address:
    """A view at run time: byte address, one stride operand (elements, text of an i64) per axis, and the state space."""

    pointer: str
    strides: tuple[str, ...]
    dtype: DType
    space: str = "global"
    hint: str = ""  # the cache hint of loads
    order: str = ""  # ordering and scope of accesses that are more than weak
    runs: bool = False  # a thread's elements along the first axis of a tile are neighbours, and one access where there are four
    early: bool = False  # in memory from the start: loads need not wait for the previous kernel


def times(f: Scalars, a: str, b: str) -> str:
    numbers = [x for x in (a, b) if not x.startswith("%")]
    if len(numbers) == 2:
        return str(int(a) * int(b))
    if "0" in (a, b):
        return "0"
    if "1" in (a, b):
        return b if a == "1" else a
    return f.op("mul", "i64", a, b)


def plus(f: Scalars, a: str, b: str) -> str:
    if not a.startswith("%") and not b.startswith("%"):
        return str(int(a) + int(b))
    return b if a == "0" else a if b == "0" else f.op("add", "i64", a, b)


class Access:
    """One load or store: where every piece lies and when it may be touched."""

    def __init__(self, e: Emitter, view: Address, at: Sequence[str], shape: tuple[int, ...], axes: Sequence[int],
                 limits: Mapping[int, str]) -> None:
        self.e, self.f, self.view, self.shape, self.axes = e, e.f, view, shape, axes
        self.item = view.dtype.itemsize
        offset, known = "0", 0
        for x, s in zip(at, view.strides, strict=True):
            if x.startswith("%") or (s.startswith("%") and x != "0"):
                offset = plus(self.f, offset, times(self.f, x, s))
            elif x != "0":
                known += int(x) * int(s)
        for axis in range(len(shape)):
            if e.layout.spread(shape, axis):
                offset = plus(self.f, offset, times(self.f, e.base(shape, axis), view.strides[axes[axis]]))
        self.offset = known * self.item  # bytes from the origin that every instruction adds
        self.origin = self._bytes(view.pointer, offset)
        self.room = {axis: self._room(axis, limit) for axis, limit in limits.items()}
        self._rows: dict[Key, tuple[str, int]] = {}
        self._checks: dict[tuple[int, int], str] = {}
        self.known: str | None = None  # a predicate of the whole access

    def _bytes(self, pointer: str, elements: str) -> str:
        return plus(self.f, pointer, times(self.f, elements, str(self.item)))

    def _room(self, axis: int, limit: str) -> str:
        """How many elements along the axis are inside, counted from this thread's first."""
        if not self.e.layout.spread(self.shape, axis):
            return limit
        return self.f.op("sub", "i64", limit, self.e.base(self.shape, axis))

    @property
    def unit(self) -> bool:
        return not self.shape or self.shape[-1] == 1 or self.view.strides[self.axes[-1]] == "1"

    def place(self, key: Key) -> tuple[str, int]:
        """Register and byte offset of an element."""
        lead, last = key[:-1], key[-1] if key else 0
        if lead not in self._rows:
            p, known = self.origin, self.offset
            for i, axis in zip(lead, self.axes[:-1], strict=False):
                stride = self.view.strides[axis]
                if stride.startswith("%"):
                    p = self._bytes(p, times(self.f, stride, str(i)))
                else:
                    known += i * int(stride) * self.item
            self._rows[lead] = p, known
        row, known = self._rows[lead]
        stride = self.view.strides[self.axes[-1]] if last else "0"
        if not stride.startswith("%"):
            return row, known + last * int(stride) * self.item
        return self._bytes(row, times(self.f, stride, str(last))), known

    def inside(self, key: Key) -> str | None:
        """A predicate that is true when the element may be touched; None: always."""
        found = self.known
        for axis, room in self.room.items():
            at = (axis, key[axis])
            if at not in self._checks:
                self._checks[at] = self.f.icmp("sgt", "i64", room, str(key[axis]))
            found = self._checks[at] if found is None else self.f.op("and", "i1", found, self._checks[at])
        return found

    def pieces(self) -> list[list[Key]]:
        """Keys in runs that lie side by side in memory."""
        found = list(self.e.layout.pieces(self.shape))
        if not self.view.runs or len(self.shape) != 2 or self.view.strides[self.axes[0]] != "1":
            return found
        alike: dict[int, list[Key]] = {}
        for (key,) in found:
            alike.setdefault(key[1], []).append(key)
        return list(alike.values())

    def whole(self, piece: Sequence[Key]) -> bool:
        """Whether a run of neighbours may move as one access."""
        return len(piece) > 1 and (self.unit or self.view.runs) and len(piece) * self.item >= 4


def load(e: Emitter, view: Address, at: Sequence[str], type_: TileType, axes: Sequence[int], limits: Mapping[int, str],
         other: float) -> Regs:
    access = Access(e, view, at, type_.shape, axes, limits)
    out = Regs(type_, {})
    broadcast: dict[Key, Key] = {}
    if type_.shape and type_.shape[-1] != 1 and view.strides[axes[-1]] == "0" and not limits:  # one element for the whole row
        for piece in e.layout.pieces(type_.shape):
            broadcast.update(dict.fromkeys(piece, (*piece[0][:-1], 0)))
        for first in dict.fromkeys(broadcast.values()):
            out.values[first] = _load_piece(access, [first], other)[0]
        out.values = {k: out.values[v] for k, v in broadcast.items()}
        return out
    for piece in access.pieces():
        if access.whole(piece):
            out.values.update(zip(piece, _load_piece(access, piece, other), strict=True))
        else:
            for key in piece:
                out.values[key] = _load_piece(access, [key], other)[0]
    return out


def _load_piece(a: Access, keys: Sequence[Key], other: float) -> list[str]:
    f, k, dtype = a.f, a.f.k, a.view.dtype
    pointer, offset = a.place(keys[0])
    inside = a.inside(keys[0])
    guard = "" if inside is None else f"@{inside} "
    ld = f"ld{a.view.order}.{a.view.space}{a.view.hint}"
    if len(keys) == 1:
        ty = elem_type(dtype)
        kind = {"bool": "u8", "i8": "s8", "u8": "u8", "i16": "s16", "u16": "u16"}.get(dtype.name, f"b{8 * dtype.itemsize}")
        reg = k.reg("i32" if ty in ("i1", "i8", "i16") else ty)
        if guard:
            k.emit(f"mov.b{_bits(ty)} {reg}, {_raw(dtype, other)};")
        k.emit(f"{guard}{ld}.{kind} {reg}, [{pointer}+{offset}];")
        return [f.icmp("ne", "i32", reg, "0") if dtype.is_bool else reg]
    out: list[str] = []
    per = WIDEST // dtype.itemsize
    for first in range(0, len(keys), per):
        part = keys[first : first + per]
        nbytes = len(part) * dtype.itemsize
        word = 8 if dtype.itemsize == 8 else 4
        ty = elem_type(dtype) if dtype.itemsize >= 4 else "i32"
        regs = [k.reg(ty) for _ in range(nbytes // word)]
        if guard:
            packed = _pack_literal(dtype, other)
            for r in regs:
                k.emit(f"mov.b{8 * word} {r}, {packed};")
        width = f".v{len(regs)}" if len(regs) > 1 else ""
        names = "{" + ", ".join(regs) + "}" if len(regs) > 1 else regs[0]
        k.emit(f"{guard}{ld}{width}.b{8 * word} {names}, [{pointer}+{offset + first * dtype.itemsize}];")
        for r in regs:
            out += _unpack(f, dtype, r)
    return out


def _bits(ty: str) -> int:
    return {"half": 16, "bf16": 16, "double": 64, "i64": 64}.get(ty, 32)


def _raw(dtype: DType, value: float) -> str:
    """A constant of the dtype as the bits of its register."""
    if dtype.name in ("f16", "bf16"):
        import numpy as np

        return str(int(np.asarray(value, dtype.np).view(np.uint16)))
    ty = elem_type(dtype)
    return literal("i32" if ty in ("i1", "i8", "i16") else ty, value)


def _pack_literal(dtype: DType, value: float) -> str:
    if dtype.itemsize >= 4:
        return _raw(dtype, value)
    one = int(_raw(dtype, value)) & ((1 << (8 * dtype.itemsize)) - 1)
    return str(sum(one << (8 * dtype.itemsize * i) for i in range(4 // dtype.itemsize)))


def _unpack(f: Scalars, dtype: DType, word: str) -> list[str]:
    k = f.k
    if dtype.itemsize >= 4:
        return [word]
    if dtype.name in ("f16", "bf16"):
        low, high = k.reg("half"), k.reg("half")
        k.emit(f"mov.b32 {{{low}, {high}}}, {word};")
        return [low, high]
    bits = 8 * dtype.itemsize
    sign = "s" if dtype.kind == "i" else "u"
    parts = [k.value("i32", f"bfe.{sign}32 {{}}, {word}, {i}, {bits};") for i in range(0, 32, bits)]
    return [f.icmp("ne", "i32", p, "0") for p in parts] if dtype.is_bool else parts


def store(e: Emitter, view: Address, at: Sequence[str], tile: Regs, axes: Sequence[int], limits: Mapping[int, str]) -> None:
    shape = tile.type.shape
    access = Access(e, view, at, shape, axes, limits)
    only = e.first_thread() if e.layout.shared_by_all(shape) else None
    for piece in access.pieces():
        runs = [piece] if access.whole(piece) else [[key] for key in piece]
        for run in runs:
            inside = access.inside(run[0])
            if only is not None:
                inside = only if inside is None else e.f.op("and", "i1", inside, only)
            _store_piece(access, run, [tile.values[key] for key in run], inside)


def _store_piece(a: Access, keys: Sequence[Key], values: list[str], inside: str | None) -> None:
    f, k, dtype = a.f, a.f.k, a.view.dtype
    pointer, offset = a.place(keys[0])
    guard = "" if inside is None else f"@{inside} "
    st = f"st{a.view.order}.{a.view.space}"
    if dtype.is_bool:
        values = [f.select("i32", v, "1", "0") for v in values]
    if len(keys) == 1:
        k.emit(
            f"{guard}{st}.{'u8' if dtype.itemsize == 1 else f'b{8 * dtype.itemsize}' if dtype.itemsize != 2 else 'b16'} "
            f"[{pointer}+{offset}], {_narrow_int(f, dtype, values[0])};"
        )
        return
    words = _pack(f, dtype, values)
    word = 8 if dtype.itemsize == 8 else 4
    for first in range(0, len(words), WIDEST // word):
        part = words[first : first + WIDEST // word]
        width = f".v{len(part)}" if len(part) > 1 else ""
        names = "{" + ", ".join(part) + "}" if len(part) > 1 else part[0]
        k.emit(f"{guard}{st}{width}.b{8 * word} [{pointer}+{offset + first * word}], {names};")


def _narrow_int(f: Scalars, dtype: DType, value: str) -> str:
    """`st.b16` wants a 16-bit register; integers of 16 bits live in wider ones."""
    if dtype.name in ("i16", "u16"):
        if not value.startswith("%"):
            return str(int(value))
        return f.k.value("half", f"cvt.u16.u32 {{}}, {value};")
    if not value.startswith("%"):
        ty = elem_type(dtype)
        ty = "i32" if ty in ("i8", "i1") else ty
        return f.k.value(ty, f"mov.b{_bits(ty)} {{}}, {value};")
    return value


def _pack(f: Scalars, dtype: DType, values: list[str]) -> list[str]:
    k = f.k
    if dtype.itemsize >= 4:
        return [_narrow_int(f, dtype, v) for v in values]
    if dtype.name in ("f16", "bf16"):
        return [_pair(f, values[i], values[i + 1]) for i in range(0, len(values), 2)]
    values = [v if v.startswith("%") else k.value("i32", f"mov.b32 {{}}, {v};") for v in values]
    if dtype.itemsize == 1:
        values = [k.value("i32", f"prmt.b32 {{}}, {values[i]}, {values[i + 1]}, 0x0040;") for i in range(0, len(values), 2)]
    return [k.value("i32", f"prmt.b32 {{}}, {values[i]}, {values[i + 1]}, 0x5410;") for i in range(0, len(values), 2)]


def _pair(f: Scalars, low: str, high: str) -> str:
    out = f.k.reg("i32")
    f.k.emit(f"mov.b32 {out}, {{{low}, {high}}};")
    return out
