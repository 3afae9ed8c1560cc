"""Tile loads and stores: addresses, edge masks, broadcasts, gathers.

Address terms are added outermost-defined first, so that everything invariant in an inner loop is hoisted out of it as one
pointer per row. Rows and lanes outside a limit are never touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.dtypes import DType
from ...tile.ir import TileType
from .bounds import Bounds
from .llvm_text import FunctionText, bits, lanes, like, mangle, number, vector
from .registers import Registers, chunk_sizes, elem_type

MEMORY = {"bool": "i8"}  # in memory where it differs from the register type


@dataclass(frozen=True)
class Address:
    """A view at run time: base pointer and one stride operand (text of an i64) per axis."""

    pointer: str
    strides: tuple[str, ...]
    dtype: DType
    bounds: Bounds | None = None  # bounds of the memory behind it, where accesses are checked


@dataclass(frozen=True)
class Term:
    """An index operand of an access: its text and the loop depth at which it was defined."""

    text: str
    depth: int


def row_pointers(f: FunctionText, view: Address, at: Sequence[Term], shape: tuple[int, ...], axes: Sequence[int]) -> list[str]:
    """The address of the first element of every tile row."""
    mem = MEMORY.get(view.dtype.name, elem_type(view.dtype))
    order = sorted(range(len(at)), key=lambda i: at[i].depth)
    deepest = max((at[i].depth for i in order if at[i].text != "0"), default=0)
    fixed = [i for i in order if _is_number(at[i].text) and _is_number(view.strides[i])]  # last: an instruction's own displacement
    outer = [i for i in order if at[i].depth < deepest and i not in fixed]
    inner = [*(i for i in order if at[i].depth >= deepest and i not in fixed), *fixed]
    base = _advance(f, mem, view.pointer, view, at, outer)
    pointers = []
    for index in itertools.product(*(range(d) for d in shape[:-1])):
        p = base
        for i, axis in zip(index, axes[:-1], strict=True):
            if i:
                p = f.gep(mem, p, _times(f, view.strides[axis], i))
        pointers.append(_advance(f, mem, p, view, at, inner))
    return pointers


def _is_number(text: str) -> bool:
    return text.lstrip("-").isdigit()


def _advance(f: FunctionText, mem: str, pointer: str, view: Address, at: Sequence[Term], axes: Sequence[int]) -> str:
    for i in axes:
        if at[i].text == "0" or view.strides[i] == "0":
            continue
        pointer = f.gep(mem, pointer, at[i].text if view.strides[i] == "1" else product(f, at[i].text, view.strides[i]))
    return pointer


def product(f: FunctionText, a: str, b: str) -> str:
    if _is_number(a) and _is_number(b):
        return str(int(a) * int(b))
    if a == "1":
        return b
    return a if b == "1" else f.op("mul", "i64", a, b)


def _times(f: FunctionText, stride: str, n: int) -> str:
    return product(f, stride, str(n))


def lane_masks(f: FunctionText, n: int, lanes: int, limit: str) -> list[str]:
    """One mask per chunk of an axis of n elements of which `limit` (an i64) are inside."""
    capped = f.intrinsic("llvm.smin.i64", "i64", [("i64", limit), ("i64", str(n))])
    capped = f.intrinsic("llvm.smax.i64", "i64", [("i64", capped), ("i64", "0")])  # far behind the end: -(1 << 32) would be 0 in 32 bits
    small = f.cast("trunc", "i64", capped, "i32")
    masks, start = [], 0
    for size in chunk_sizes(n, lanes):
        if size == 0:
            masks.append(f.icmp("sgt", "i32", small, str(start)))
        else:
            ty = vector(size, "i32")
            masks.append(f.icmp("slt", ty, f.constant(ty, range(start, start + size)), f.broadcast(ty, small)))
        start += size
    return masks


class Masks:
    """Which rows and lanes of an access are inside, from its limit operands (tile axis -> i64 text)."""

    def __init__(self, f: FunctionText, shape: tuple[int, ...], lanes: int, limits: dict[int, str]) -> None:
        last = len(shape) - 1
        self.f, self.sizes = f, chunk_sizes(shape[-1] if shape else 1, lanes)
        self.lane = lane_masks(f, shape[-1], lanes, limits[last]) if last in limits else None
        per_axis = [
            [f.icmp("sgt", "i64", limits[a], str(i)) for i in range(shape[a])] if a in limits else None for a in range(max(last, 0))
        ]
        self.rows: list[str | None] = []
        for index in itertools.product(*(range(d) for d in shape[:-1])):
            held: str | None = None
            for i, column in zip(index, per_axis, strict=True):
                if column is not None:
                    held = column[i] if held is None else f.op("and", "i1", held, column[i])
            self.rows.append(held)

    def pointer(self, row: int, p: str, base: str) -> str:
        """Where a row is masked whole it is not addressed: a processor may take microseconds over what it suppresses on a page that is
        not there."""
        held = self.rows[row] if self.rows else None
        return p if held is None else self.f.value(f"select i1 {held}, ptr {p}, ptr {base}")

    def of(self, row: int, c: int) -> str | None:
        """Mask of a chunk (vector of i1, or <1 x i1> for a scalar); None when all of it is inside."""
        f, n = self.f, max(self.sizes[c], 1)
        ty = vector(n, "i1")
        held = self.rows[row] if self.rows else None
        lane = self.lane[c] if self.lane is not None else None
        if self.sizes[c] == 0:
            both = held if lane is None else lane if held is None else f.op("and", "i1", held, lane)
            return None if both is None else f.value(f"insertelement {ty} poison, i1 {both}, i64 0")
        if held is None:
            return lane
        spread = f.broadcast(ty, held)
        return spread if lane is None else f.op("and", ty, spread, lane)


def load(f: FunctionText, view: Address, at: Sequence[Term], type_: TileType, axes: Sequence[int], lanes: int, limits: dict[int, str],
         other: float) -> Registers:
    """Read a tile. Lane stride 1 or -1 reads vectors, 0 reads a scalar and spreads it, anything else gathers."""
    shape = type_.shape
    pointers = row_pointers(f, view, at, shape, axes)
    masks = Masks(f, shape, lanes, limits) if limits else None
    stride = view.strides[axes[-1]] if shape else "1"
    mem = MEMORY.get(view.dtype.name, elem_type(view.dtype))
    sizes = chunk_sizes(shape[-1] if shape else 1, lanes)
    rows = []
    for r, pointer in enumerate(pointers):
        p = pointer if masks is None else masks.pointer(r, pointer, view.pointer)
        row, start = [], 0
        for c, n in enumerate(sizes):
            mask = masks.of(r, c) if masks else None
            row.append(_from_memory(f, view.dtype, n, _load_chunk(f, mem, p, start, n, stride, mask, other)))
            start += n
        rows.append(row)
    return Registers(type_, lanes, rows)


def _load_chunk(f: FunctionText, mem: str, p: str, start: int, n: int, stride: str, mask: str | None, other: float) -> str:
    ty = vector(max(n, 1), mem)
    fill = f"splat ({mem} {number(mem, other)})"
    if n == 0:
        if mask is None:
            return f.load(mem, p)
        return f.value(f"extractelement {ty} {f.masked_load(ty, p, mask, fill)}, i64 0")
    if stride == "1":
        q = f.gep(mem, p, str(start)) if start else p
        return f.load(ty, q) if mask is None else f.masked_load(ty, q, mask, fill)
    if stride == "-1":  # the vector before it, turned round; lanes outside the limit are its first ones
        q = f.gep(mem, p, str(1 - start - n))
        turned = mask if mask is None else _reverse(f, vector(n, "i1"), mask)
        return _reverse(f, ty, f.load(ty, q) if turned is None else f.masked_load(ty, q, turned, fill))
    if stride == "0" and mask is None:
        return f.broadcast(ty, f.load(mem, p))
    if stride in ("2", "3", "4"):
        step = int(stride)
        return _every(step, f, mem, f.gep(mem, p, str(step * start)) if start else p, n, mask, fill)
    steps = f.constant(vector(n, "i64"), range(start, start + n))
    offsets = f.op("mul", vector(n, "i64"), steps, f.broadcast(vector(n, "i64"), stride))
    q = f.value(f"getelementptr {mem}, ptr {p}, {vector(n, 'i64')} {offsets}")
    return gather_chunk(f, ty, q, mask, fill)


def _reverse(f: FunctionText, ty: str, x: str) -> str:
    return f.intrinsic(f"llvm.vector.reverse.{mangle(ty)}", ty, [(ty, x)])


def _every(step: int, f: FunctionText, mem: str, p: str, n: int, mask: str | None, fill: str) -> str:
    """Elements 0, step, 2 step … from `step` registers. The last one ends with the last element, so that nothing behind it is touched;
    under a mask, nothing between the elements is."""
    ty, firsts = vector(n, mem), [part * n for part in range(step)]
    if mask is None:
        firsts[-1] = step * (n - 1) + 1 - n
        loads = [f.load(ty, f.gep(mem, p, str(at)) if at else p) for at in firsts]
    else:
        spread = [f.shuffle(vector(n, "i1"), mask, "zeroinitializer", [n if e % step else e // step for e in range(at, at + n)])
                  for at in firsts]
        loads = [f.masked_load(ty, f.gep(mem, p, str(at)) if at else p, m, fill) for at, m in zip(firsts, spread, strict=True)]
    found = loads[0]
    for part in range(1, step):  # the lanes that the registers so far have stay, the next one fills those that follow
        wanted = [step * i for i in range(n)]
        there = [e if part == 1 else i for i, e in enumerate(wanted)]
        found = f.shuffle(ty, found, loads[part], [k if e < part * n else min(n + e - firsts[part], 2 * n - 1)
                                                   for k, e in zip(there, wanted, strict=True)])
    return found


def gather_chunk(f: FunctionText, ty: str, pointers: str, mask: str | None, fill: str) -> str:
    n = lanes(ty)
    args = [(f"<{n} x ptr> align {bits(ty) // 8}", pointers), (like(ty, "i1"), mask or "splat (i1 true)"), (ty, fill)]
    return f.intrinsic(f"llvm.masked.gather.{mangle(ty)}.v{n}p0", ty, args)


def store(f: FunctionText, view: Address, at: Sequence[Term], x: Registers, axes: Sequence[int], limits: dict[int, str]) -> None:
    shape = x.type.shape
    pointers = row_pointers(f, view, at, shape, axes)
    masks = Masks(f, shape, x.lanes, limits) if limits else None
    stride = view.strides[axes[-1]] if shape else "1"
    mem = MEMORY.get(view.dtype.name, elem_type(view.dtype))
    for r, pointer in enumerate(pointers):
        p = pointer if masks is None else masks.pointer(r, pointer, view.pointer)
        start = 0
        for c, n in enumerate(x.sizes):
            value = _to_memory(f, view.dtype, n, x.rows[r][c])
            mask = masks.of(r, c) if masks else None
            _store_chunk(f, mem, p, start, n, stride, mask, value)
            start += n


def store_past(f: FunctionText, view: Address, at: Sequence[Term], x: Registers, axes: Sequence[int], limits: dict[int, str]) -> None:
    """Whole rows that go past the caches where they start at a cache line. (An instruction of its own: LLVM would join both ways.)"""
    mem = MEMORY.get(view.dtype.name, elem_type(view.dtype))
    rows = [[_to_memory(f, view.dtype, n, value) for n, value in zip(x.sizes, row, strict=True)] for row in x.rows]
    for p, row in zip(row_pointers(f, view, at, x.type.shape, axes), rows, strict=True):
        aligned, plain, after = f.fresh_label("line"), f.fresh_label("plain"), f.fresh_label("stored")
        f.branch(f.icmp("eq", "i64", f.op("and", "i64", f.value(f"ptrtoint ptr {p} to i64"), "63"), "0"), aligned, plain)
        for label, past in ((aligned, True), (plain, False)):
            f.label(label)
            start = 0
            for n, value in zip(x.sizes, row, strict=True):
                q = f.gep(mem, p, str(start)) if start else p
                if past:
                    f.emit(f"store {vector(n, mem)} {value}, ptr {q}, align {min(64, n * bits(mem) // 8)}, !nontemporal !{{i32 1}}")
                else:
                    f.store(vector(n, mem), value, q)
                start += n
            f.jump(after)
        f.label(after)


def _store_chunk(f: FunctionText, mem: str, p: str, start: int, n: int, stride: str, mask: str | None, value: str) -> None:
    ty = vector(max(n, 1), mem)
    if n == 0:
        if mask is None:
            f.store(mem, value, p)
        else:
            f.masked_store(ty, f.value(f"insertelement {ty} poison, {mem} {value}, i64 0"), p, mask)
    elif stride == "1":
        q = f.gep(mem, p, str(start)) if start else p
        if mask is None:
            f.store(ty, value, q)
        else:
            f.masked_store(ty, value, q, mask)
    elif stride in ("2", "3", "4"):
        _to_every(int(stride), f, mem, f.gep(mem, p, str(int(stride) * start)) if start else p, n, mask, value)
    else:
        steps = f.constant(vector(n, "i64"), range(start, start + n))
        offsets = f.op("mul", vector(n, "i64"), steps, f.broadcast(vector(n, "i64"), stride))
        q = f.value(f"getelementptr {mem}, ptr {p}, {vector(n, 'i64')} {offsets}")
        args = [(ty, value), (f"<{n} x ptr> align {bits(ty) // 8}", q), (like(ty, "i1"), mask or "splat (i1 true)")]
        f.intrinsic(f"llvm.masked.scatter.{mangle(ty)}.v{n}p0", "void", args)


def _to_every(step: int, f: FunctionText, mem: str, p: str, n: int, mask: str | None, value: str) -> None:
    """Elements to places 0, step, 2 step … of `step` registers; what lies between is not touched."""
    ty, inside = vector(n, mem), mask or f.constant(vector(n, "i1"), [1] * n)
    for at in range(0, step * n, n):
        places = range(at, at + n)
        there = f.shuffle(vector(n, "i1"), inside, "zeroinitializer", [n if e % step else e // step for e in places])
        spread = f.shuffle(ty, value, "poison", [-1 if e % step else e // step for e in places])
        f.masked_store(ty, spread, f.gep(mem, p, str(at)) if at else p, there)


def _from_memory(f: FunctionText, dtype: DType, n: int, x: str) -> str:
    ty = vector(n, "i8")
    return f.icmp("ne", ty, x, f.splat(ty, 0)) if dtype.is_bool else x


def _to_memory(f: FunctionText, dtype: DType, n: int, x: str) -> str:
    return f.cast("zext", vector(n, "i1"), x, vector(n, "i8")) if dtype.is_bool else x
