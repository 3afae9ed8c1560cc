"""Reductions of a block program: registers by halves, lanes by shuffles, warps through shared memory. The order follows from the layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....core.dtypes import DType
from ....tile.ir import TileType
from ..arithmetic.math import combine
from ..threads.layout import elem_type
from .layout import Bit, Layout
from .memory import axis_bits
from .values import Spread

if TYPE_CHECKING:
    from .emit import TiledEmitter


def reduce_tiles(e: TiledEmitter, jobs: list[tuple[str, Spread, int]]) -> list[Spread]:
    """Reductions (what combines, of what, along which axis) that cross the warps of a block at one barrier."""
    mark = e.memory.top
    waiting = [_reduced(e, *job) for job in jobs]
    found = [Spread(type_, layout, read()) for type_, layout, read in waiting]
    e.memory.top = mark
    return found


def _reduced(e: TiledEmitter, fn: str, x: Spread, axis: int) -> tuple[TileType, Layout, Callable[[], dict[int, str]]]:
    """One reduction up to the barrier, and what reads its result behind it."""
    shape, dtype = x.type.shape, x.type.dtype
    small = tuple(1 if i == axis else d for i, d in enumerate(shape))
    first, count = axis_bits(shape, axis)

    def along(b: Bit) -> bool:
        return b is not None and first <= b < first + count

    layout = x.layout.project(shape, small)
    groups: dict[int, list[str]] = {}
    for r, to in enumerate(x.layout.picks(shape, small)):
        groups.setdefault(to, []).append(x.values[r])
    values = {r: _halve(e, fn, dtype, parts) for r, parts in sorted(groups.items())}
    for i, b in enumerate(x.layout.lanes):
        if along(b):
            values = {r: combine(e.f, fn, dtype, v, shuffled(e, dtype, v, 1 << i)) for r, v in values.items()}
    warps = [i for i, b in enumerate(x.layout.warps) if along(b)]
    read = _across_warps(e, fn, dtype, values, layout, warps, small) if warps else lambda: values
    return TileType(small, dtype), layout, read


def _halve(e: TiledEmitter, fn: str, dtype: DType, parts: list[str]) -> str:
    """Element i with element i + n/2 until one is left."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [combine(e.f, fn, dtype, parts[i], parts[i + half]) for i in range(half)]
    return parts[0]


def shuffled(e: TiledEmitter, dtype: DType, value: str, reach: int) -> str:
    """The value of the lane whose number differs in one bit."""
    k, f, ty = e.k, e.f, elem_type(dtype)
    if ty in ("double", "i64"):
        low, high = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.b64 {{{low}, {high}}}, {value};")
        a, b = (k.value("i32", f"shfl.sync.bfly.b32 {{}}, {x}, {reach}, 31, -1;") for x in (low, high))
        out = k.reg(ty)
        k.emit(f"mov.b64 {out}, {{{a}, {b}}};")
        return out
    if ty == "i1":
        other = k.value("i32", f"shfl.sync.bfly.b32 {{}}, {f.select('i32', value, '1', '0')}, {reach}, 31, -1;")
        return f.icmp("ne", "i32", other, "0")
    if ty in ("half", "bf16"):
        wide = k.value("i32", f"cvt.u32.u16 {{}}, {value};")
        return k.value("half", f"cvt.u16.u32 {{}}, {k.value('i32', f'shfl.sync.bfly.b32 {{}}, {wide}, {reach}, 31, -1;')};")
    if not value.startswith("%"):
        return value
    return k.value(ty, f"shfl.sync.bfly.b32 {{}}, {value}, {reach}, 31, -1;")


def _across_warps(e: TiledEmitter, fn: str, dtype: DType, values: dict[int, str], layout: Layout, warps: list[int],
                  shape: tuple[int, ...]) -> Callable[[], dict[int, str]]:
    """Every warp stores its part, all threads combine the parts in the order of the warps."""
    k, f, ty = e.k, e.f, elem_type(dtype)
    item = 8 if ty in ("double", "i64") else 4
    numel = 1
    for d in shape:
        numel *= d
    parts = 1 << len(warps)
    nbytes = parts * numel * item
    base = e.memory.take(nbytes, 16)
    e.touch(base, nbytes, write=True)
    bits = tuple((i, b) for i, b in enumerate(layout.threads) if b is not None)
    here = e.thread_bits(bits)
    part = e.thread_bits(tuple((5 + w, i) for i, w in enumerate(warps)))
    which = e.prologue("i32", f"mad.lo.u32 {{}}, {part}, {numel}, {here};")
    mine = e.prologue("i32", f"mad.lo.u32 {{}}, {which}, {item}, {e.shared};")
    mask = sum(1 << i for i in layout.copies() if i - 5 not in warps)
    guard = ""
    if mask:
        one = e.prologue("i1", f"setp.eq.u32 {{}}, {e.prologue('i32', f'and.b32 {{}}, {e.tid}, {mask};')}, 0;")
        guard = f"@{one} "
    for r, v in values.items():
        bits_ = f.select("i32", v, "1", "0") if ty == "i1" else k.value("i32", f"cvt.u32.u16 {{}}, {v};") if ty in ("half", "bf16") else v
        if not bits_.startswith("%"):
            bits_ = k.value(ty, f"mov.b{8 * item} {{}}, {bits_};")
        k.emit(f"{guard}st.shared.b{8 * item} [{mine}+{base + layout.offset(r) * item}], {bits_};")

    def read() -> dict[int, str]:
        e.touch(base, nbytes, write=False)
        origin = e.shared if here == "0" else e.prologue("i32", f"mad.lo.u32 {{}}, {here}, {item}, {e.shared};")
        out = {}
        for r in values:
            found = []
            for p in range(parts):
                at = base + (p * numel + layout.offset(r)) * item
                reg = k.value("i32" if ty in ("i1", "half", "bf16") else ty, f"ld.shared.b{8 * item} {{}}, [{origin}+{at}];")
                if ty in ("half", "bf16"):
                    reg = k.value("half", f"cvt.u16.u32 {{}}, {reg};")
                found.append(f.icmp("ne", "i32", reg, "0") if ty == "i1" else reg)
            out[r] = _halve(e, fn, dtype, found)
        return out

    return read
