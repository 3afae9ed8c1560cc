"""Reductions along a tile axis: within a thread by halves, across a warp by shuffles, across a block through shared memory.

The order depends on the tile's shape and the group alone, so the bits are the same from run to run and for every program.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....core.dtypes import DType
from ....tile.ir import TileType
from ..arithmetic.math import combine
from .layout import Key, Regs, elem_type

if TYPE_CHECKING:
    from .emit import Emitter


def reduce_tile(e: Emitter, fn: str, x: Regs, axis: int) -> Regs:
    return reduce_tiles(e, fn, [x], axis)[0]


def reduce_tiles(e: Emitter, fn: str, tiles: list[Regs], axis: int) -> list[Regs]:
    """Tiles of one dtype that are reduced along the same axis: a block's threads meet once for all of them."""
    dtype = tiles[0].type.dtype
    found = []
    for x in tiles:
        groups: dict[Key, list[str]] = {}
        for key, value in x.values.items():
            groups.setdefault(tuple(0 if i == axis else k for i, k in enumerate(key)), []).append(value)
        found.append({key: _halve(e, fn, dtype, parts) for key, parts in groups.items()})
    if e.layout.spread(tiles[0].type.shape, axis):
        sums = iter(_across(e, fn, dtype, [v for part in found for v in part.values()]))
        found = [dict(zip(part, sums, strict=False)) for part in found]
    types = [TileType(tuple(1 if i == axis else d for i, d in enumerate(x.type.shape)), dtype) for x in tiles]
    return [Regs(t, values) for t, values in zip(types, found, strict=True)]


def _halve(e: Emitter, fn: str, dtype: DType, parts: list[str]) -> str:
    """Element i with element i + n/2 until one is left."""
    size = 1
    while size < len(parts):
        size *= 2
    while size > 1:
        size //= 2
        pairs = [(parts[i], parts[i + size] if i + size < len(parts) else None) for i in range(min(size, len(parts)))]
        parts = [a if b is None else combine(e.f, fn, dtype, a, b) for a, b in pairs]
    return parts[0]


def _across(e: Emitter, fn: str, dtype: DType, values: list[str]) -> list[str]:
    k, f, threads = e.k, e.f, e.layout.threads
    ty = elem_type(dtype)
    reach = min(threads, 32) // 2
    while reach:
        values = [combine(f, fn, dtype, v, _shuffle(e, dtype, v, reach)) for v in values]
        reach //= 2
    warps = threads // 32
    if warps <= 1:
        return values
    item = 8 if ty in ("double", "i64") else 4
    at = k.alloc_shared(item * warps * len(values))
    base = e.shared_base()
    if e.loops:  # the last round's readers must be done
        e.barrier()
    mine = k.value("i64", f"mad.wide.u32 {{}}, {e.warp()}, {item}, {base};")
    for i, v in enumerate(values):
        k.emit(f"@{e.first_lane()} st.shared.b{8 * item} [{mine}+{at + i * warps * item}], {_as_bits(e, ty, v)};")
    e.barrier()
    out = []
    for i in range(len(values)):
        parts = []
        for w in range(warps):
            reg = k.value("i32" if ty == "i1" else ty, f"ld.shared.b{8 * item} {{}}, [{base}+{at + (i * warps + w) * item}];")
            parts.append(f.icmp("ne", "i32", reg, "0") if ty == "i1" else reg)
        out.append(_halve(e, fn, dtype, parts))
    return out


def _as_bits(e: Emitter, ty: str, value: str) -> str:
    return e.f.select("i32", value, "1", "0") if ty == "i1" else value


def _shuffle(e: Emitter, dtype: DType, value: str, reach: int) -> str:
    k, f, ty = e.k, e.f, elem_type(dtype)
    mask = e.member_mask()
    if ty in ("double", "i64"):
        low, high = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.b64 {{{low}, {high}}}, {value};")
        a, b = (k.value("i32", f"shfl.sync.bfly.b32 {{}}, {x}, {reach}, 31, {mask};") for x in (low, high))
        out = k.reg(ty)
        k.emit(f"mov.b64 {out}, {{{a}, {b}}};")
        return out
    other = k.value("i32" if ty == "i1" else ty, f"shfl.sync.bfly.b32 {{}}, {_as_bits(e, ty, value)}, {reach}, 31, {mask};")
    return f.icmp("ne", "i32", other, "0") if ty == "i1" else other
