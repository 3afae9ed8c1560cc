"""Products of a block program: operands from swizzled shared memory (or, on the left, from registers), sums in registers.

16-bit floats go to the tensor cores by `ldmatrix` and `mma.sync`, and so does f32 where the product's `precision` is tf32; on Hopper
warpgroups multiply 16-bit floats by `wgmma`, which reads shared memory itself. Other f32 and f64 are multiplied and added element by
element, one chain over K in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.dtypes import DType
from ....core.errors import CompileError
from ....tile.ir import Instr, Operand, TileType, Var
from ..threads.access import _pair
from ..threads.layout import elem_type
from .layout import Layout, log2
from .memory import load_piece, pieces, store_piece
from .plan import Dot, SharedTile, tile
from .values import Spread

if TYPE_CHECKING:
    from .emit import TiledEmitter


UNITS = {"f8e4m3": "e4m3", "f8e5m2": "e5m2", "i8": "s8", "u8": "u8", "i32": "s32"}  # what the tensor cores call these


@dataclass(frozen=True)
class Area:
    """A matrix in shared memory: `base` is the register of an address, `at` a byte offset from it."""

    tile: SharedTile
    base: str
    at: int
    ring: bool = False  # filled by a loop's pipeline, which orders its accesses itself

    def descriptor(self, e: TiledEmitter, inner: bool, moved: str) -> str:
        """What `wgmma` reads as a matrix here, from a place on that begins `moved` bytes later. Rows along K (`inner`) are one swizzled row
        of shared memory each, eight of them a group; other rows have the distance of their panels."""
        t, k = self.tile, e.k
        place = k.value("i32", f"add.u32 {{}}, {self.base}, {self.at};")
        if moved != "0":
            place = k.value("i32", f"add.u32 {{}}, {place}, {moved};")
        low = k.value("i64", f"cvt.u64.u32 {{}}, {k.value('i32', f'bfe.u32 {{}}, {place}, 4, 14;')};")
        leading = 16 if inner else t.rows * t.pitch
        fields = leading >> 4 << 16 | t.pitch >> 1 << 32 | {128: 1, 64: 2, 32: 3}[t.pitch] << 62
        return k.value("i64", f"or.b64 {{}}, {low}, {fields};")

    def bit(self, column: bool, bit: int) -> int:
        """The bit of a byte offset that a bit of a row's or column's number is."""
        t = self.tile
        if not column:
            return log2(t.pitch) + bit
        inside = log2(t.dtype.itemsize) + bit
        return inside if inside < log2(t.pitch) else inside + log2(t.rows)

    def places(self, e: TiledEmitter, bits: tuple[tuple[int, int], ...]) -> Places:
        """Addresses for threads whose part of the offset is made of these (thread bit, offset bit) pairs."""
        mine = e.thread_bits(bits)
        if mine != "0" and self.tile.mask:
            moved = e.prologue("i32", f"and.b32 {{}}, {e.prologue('i32', f'shr.u32 {{}}, {mine}, 3;')}, {self.tile.mask};")
            mine = e.prologue("i32", f"xor.b32 {{}}, {mine}, {moved};")
        return Places(e, self, mine, {})


@dataclass
class Places:
    e: TiledEmitter
    area: Area
    mine: str  # the thread's part of the offset, swizzled
    known: dict[int, str]

    def __call__(self, row: int, column: int) -> tuple[str, int]:
        """Register and byte offset of the element at (row, column) from the thread's own."""
        t, e = self.area.tile, self.e
        offset = t.swizzled(t.place(row, column))
        low = offset & t.mask
        if low not in self.known:
            part = self.mine
            if low:
                part = str(low) if part == "0" else e.prologue("i32", f"xor.b32 {{}}, {part}, {low};")
            if self.area.base == e.shared:
                self.known[low] = e.shared if part == "0" else e.prologue("i32", f"add.u32 {{}}, {e.shared}, {part};")
            else:
                self.known[low] = self.area.base if part == "0" else e.k.value("i32", f"add.u32 {{}}, {self.area.base}, {part};")
        return self.known[low], self.area.at + offset - low


def store_operand(e: TiledEmitter, var: Var) -> None:
    """A computed operand from registers to its area."""
    shared = e.plan.stored[var]
    x = e.spread(var)
    at = e.memory.take(shared.nbytes)
    area = Area(shared, e.shared, at)
    e.areas[var] = area
    e.touch(at, shared.nbytes, write=True)
    put(e, area, x.layout, x.type.shape, x.values)
    if e.plan.has_wgmma:
        e.k.emit("fence.proxy.async.shared::cta;")


def put(e: TiledEmitter, area: Area, layout: Layout, shape: tuple[int, ...], values: dict[int, str], guard: str | None = None) -> None:
    """Registers to an area, in the widest pieces that the layout has along the contiguous axis."""
    t = area.tile
    columns = log2(shape[1])
    inner = 0 if t.swapped else 1
    bits = []
    for i, b in enumerate(layout.threads):
        if b is not None:
            axis, n = (1, b) if b < columns else (0, b - columns)
            bits.append((i, area.bit(axis == inner, n)))
    places = area.places(e, tuple(bits))
    only = e.first_copy(layout)
    if guard is not None:
        only = guard if only is None else e.f.op("and", "i1", only, guard)
    for run in pieces(layout, shape, inner, 16 // t.dtype.itemsize):
        position = layout.offset(run[0])
        at = [position >> columns, position & ((1 << columns) - 1)]
        row, column = (at[1], at[0]) if t.swapped else (at[0], at[1])
        store_piece(e, t.dtype, places(row, column), [values[r] for r in run], only, "st.shared")


def area_of(e: TiledEmitter, x: Operand) -> tuple[Area, bool] | None:
    """The shared memory of an operand and whether it is read transposed, or None: it is in registers."""
    assert isinstance(x, Var)
    root, transposed = e.plan.roots[x]
    found = e.areas.get(root)
    if found is None:
        return None
    if not found.ring:
        e.touch(found.at, found.tile.nbytes, write=False)
    return found, transposed


def multiply(e: TiledEmitter, instr: Instr) -> None:
    dot, out = e.plan.dots[instr], instr.results[0]
    acc = e.spread(instr.operands[2], dot.layout)
    ty = elem_type(acc.type.dtype)
    sums: dict[int, str] = acc.values if instr in e.in_place else {}
    for r, v in acc.values.items() if not sums else ():
        sums[r] = e.k.reg(ty)
        e.move(e.move_kind(ty), sums[r], v)
    {"mma": _mma, "tf32": _tf32, "doubles": _doubles, "fma": _fma, "wgmma": _wgmma, "wgmma_tf32": _wgmma_tf32}[dot.kind](e, dot, sums)
    e.env[out] = Spread(acc.type, dot.layout, sums)
    if e.plan.layouts[out] != dot.layout:
        e.env[out] = e.spread(out, e.plan.layouts[out])
    e._keep(out)


def _grid(dot: Dot, shape: tuple[int, ...]) -> tuple[dict[tuple[int, int], int], list[int], list[int], int]:
    """Registers by (row, column) of their part of the position; the rows and columns that occur, but for columns that are zeros; bits of a
    column's number."""
    columns = log2(shape[1])
    at = {}
    for r in range(dot.layout.count):
        position = dot.layout.offset(r)
        at[position >> columns, position & ((1 << columns) - 1)] = r
    return at, sorted({a for a, _ in at}), sorted(b for b in {b for _, b in at} if b < max(8, -(-dot.wide // 8) * 8)), columns


def _inner_k(area: Area, transposed: bool, k_axis: int) -> bool:
    """Whether K is the contiguous axis of an operand whose own axis `k_axis` is K."""
    return ((1 - k_axis if transposed else k_axis) == 0) == area.tile.swapped


def _mma(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    k, instr = e.k, dot.instr
    a_type, acc = tile(instr.operands[0]), tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    down = [(5 + i, b - columns) for i, b in enumerate(dot.layout.warps) if b is not None and b >= columns]
    across = [(5 + i, b) for i, b in enumerate(dot.layout.warps) if b is not None and b < columns]
    tall = [r for r in rows if not r & 8]
    wide = [c for c in cols if not c & 1 and not c & 8]
    deep, units = 32 // a_type.dtype.itemsize, [UNITS.get(tile(x).dtype.name, tile(x).dtype.name) for x in instr.operands]
    name = f"mma.sync.aligned.m16n8k{deep}.row.col.{units[2]}.{units[0]}.{units[1]}.{units[2]}"
    left, right = area_of(e, instr.operands[0]), area_of(e, instr.operands[1])
    assert right is not None
    b_area, b_transposed = right
    b_inner = _inner_k(b_area, b_transposed, 0)
    steps = _steps(at, a_type, deep)
    b_places = b_area.places(e, _matrix_lanes(b_area, across, b_inner, first=b_inner, deep=steps == 2))
    a_inner, a_places = True, None
    if left is not None:
        a_area, a_transposed = left
        a_inner = _inner_k(a_area, a_transposed, 1)
        a_places = a_area.places(e, _matrix_lanes(a_area, down, a_inner, first=not a_inner))
    else:
        own = e.spread(instr.operands[0])
        bits = log2(a_type.shape[1])
        values = {(own.layout.offset(r) >> bits, own.layout.offset(r) & ((1 << bits) - 1)): v for r, v in own.values.items()}
    for depth in range(0, dot.deep, deep):
        a = {}
        for r in tall:
            if a_places is not None:
                place = a_places(r, depth) if a_inner else a_places(depth, r)
                a[r] = _matrices(e, place, "" if a_inner else ".trans")
            else:
                corner = [(r, depth), (r + 8, depth), (r, depth + 8), (r + 8, depth + 8)]
                a[r] = [_pair(e.f, values[x, y], values[x, y + 1]) for x, y in corner]
        for c in wide:
            place = b_places(c, depth) if b_inner else b_places(depth, c)
            if depth % (steps * deep) == 0:
                b = _matrices(e, place, "" if b_inner else ".trans")
            for n in (0, 1) if steps == 1 else (depth // deep % 2,):
                for r in tall:
                    four = ", ".join(sums[at[r + 8 * i, c + 8 * n * (2 - steps) + j]] for i in (0, 1) for j in (0, 1))
                    k.emit(f"{name} {{{four}}}, {{{', '.join(a[r])}}}, {{{b[2 * n]}, {b[2 * n + 1]}}}, {{{four}}};")


def _steps(at: Iterable[tuple[int, int]], a_type: TileType, deep: int) -> int:
    """Steps of K for which four 8x8 matrices of the right operand suffice: two where a warp has eight columns."""
    if max(c for _, c in at) >= 8:
        return 1
    if a_type.shape[1] % (2 * deep):
        raise CompileError(f"cuda: products of eight columns need K in steps of {2 * deep}, got {a_type}")
    return 2


def _wgmma(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    """Every warpgroup its rows, 64 at a time, over 16 of K an instruction."""
    k, instr = e.k, dot.instr
    a_type, acc = tile(instr.operands[0]), tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    groups = [(5 + i, b) for i, b in enumerate(dot.layout.warps) if i >= 2 and b is not None]
    left, right = area_of(e, instr.operands[0]), area_of(e, instr.operands[1])
    assert right is not None
    sides: list[tuple[str, Area, bool]] = []
    for side, found, axis in ((0, left, 1), (1, right, 0)):
        if found is None:
            continue
        area, transposed = found
        inner = _inner_k(area, transposed, axis)
        mine = [(i, area.bit(not inner, b - columns if side == 0 else b)) for i, b in groups if (b >= columns) == (side == 0)]
        sides.append((area.descriptor(e, inner, e.thread_bits(tuple(mine))), area, inner))
    values: dict[tuple[int, int], str] = {}
    if left is None:
        own = e.spread(instr.operands[0])
        deep = log2(a_type.shape[1])
        values = {(own.layout.offset(r) >> deep, own.layout.offset(r) & ((1 << deep) - 1)): v for r, v in own.values.items()}
    tall, wide = [r for r in rows if not r & 15], [c for c in cols if c % 8 == 0]
    pairs = {(r, d): [_pair(e.f, values[x, y], values[x, y + 1]) for x, y in ((r, d), (r + 8, d), (r, d + 8), (r + 8, d + 8))]
             for r in tall for d in range(0, dot.deep, 16)} if left is None else {}  # fmt: skip
    k.emit("wgmma.fence.sync.aligned;")
    for depth in range(0, dot.deep, 16):
        for r in tall:
            four = [sums[at[r + 8 * i, c + j]] for c in wide for i in (0, 1) for j in (0, 1)]
            a = f"{{{', '.join(pairs[r, depth])}}}" if left is None else _moved(e, sides[0], r, depth)
            b = _moved(e, sides[-1], 0, depth)
            flags = f"{int(not sides[-1][2])}" if left is None else f"{int(not sides[0][2])}, {int(not sides[1][2])}"
            name = f"wgmma.mma_async.sync.aligned.m64n{2 * len(four)}k16.f32.{a_type.dtype.name}.{a_type.dtype.name}"
            k.emit(f"{name} {{{', '.join(four)}}}, {a}, {b}, {k.truth(True)}, 1, 1, {flags};")
    _commit(e, instr)


def _commit(e: TiledEmitter, instr: Instr) -> None:
    """Products that only the next iteration adds to may stay in flight; others are waited for."""
    e.k.emit("wgmma.commit_group.sync.aligned;")
    if instr in e.in_place:
        e.in_flight += 1
    else:
        e.k.emit("wgmma.wait_group.sync.aligned 0;")
        e.in_flight = 0


def _wgmma_tf32(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    """f32 operands: the left one is rounded to tf32 on its way through registers, the right one was rounded by TMA."""
    k, instr = e.k, dot.instr
    acc = tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    left, right = area_of(e, instr.operands[0]), area_of(e, instr.operands[1])
    assert left is not None and right is not None
    warps = [(5 + i, b) for i, b in enumerate(dot.layout.warps) if b is not None]
    places = left[0].places(e, _matrix_lanes(left[0], [(i, b - columns) for i, b in warps if b >= columns], True, first=False))
    across = tuple((i, right[0].bit(False, b)) for i, b in warps if b < columns)
    side = right[0].descriptor(e, True, e.thread_bits(across)), right[0], True
    tall, wide = [r for r in rows if not r & 15], [c for c in cols if c % 8 == 0]
    a = {}
    for depth in range(0, dot.deep, 8):
        for r in tall:
            bits = [k.value("float", f"mov.b32 {{}}, {x};") for x in _matrices(e, places(r, depth), "")]
            a[r, depth] = [k.value("i32", f"cvt.rna.tf32.f32 {{}}, {x};") for x in bits]
    k.emit("wgmma.fence.sync.aligned;")
    for depth in range(0, dot.deep, 8):
        for r in tall:
            four = [sums[at[r + 8 * i, c + j]] for c in wide for i in (0, 1) for j in (0, 1)]
            name = f"wgmma.mma_async.sync.aligned.m64n{2 * len(four)}k8.f32.tf32.tf32"
            k.emit(f"{name} {{{', '.join(four)}}}, {{{', '.join(a[r, depth])}}}, {_moved(e, side, 0, depth)}, {k.truth(True)}, 1, 1;")
    _commit(e, instr)


def _moved(e: TiledEmitter, side: tuple[str, Area, bool], number: int, depth: int) -> str:
    """The descriptor of a matrix that begins at another row or column `number`, and `depth`."""
    start, area, inner = side
    offset = area.tile.place(number, depth) if inner else area.tile.place(depth, number)
    return e.k.value("i64", f"add.s64 {{}}, {start}, {offset >> 4};") if offset else start


def _matrix_lanes(area: Area, warps: list[tuple[int, int]], inner: bool, *, first: bool, deep: bool = False) -> tuple[tuple[int, int], ...]:
    """How the lanes of a warp name the rows of four 8x8 matrices: eight rows each; lane bits 3 and 4 choose the next eight along the other
    axis and along the rows (`first`), or the other way round; with `deep` both go along the one that bit 3 chooses."""
    lanes, chunk = [(i, area.bit(False, i)) for i in range(3)], log2(16 // area.tile.dtype.itemsize)
    next_row, next_chunk = area.bit(False, 3), area.bit(True, chunk)
    after = area.bit(True, chunk + 1) if first else area.bit(False, 4)
    lanes += [(3, next_chunk), (4, after if deep else next_row)] if first else [(3, next_row), (4, after if deep else next_chunk)]
    return tuple(lanes + [(i, area.bit(not inner, b)) for i, b in warps])


def _matrices(e: TiledEmitter, place: tuple[str, int], trans: str) -> list[str]:
    regs = [e.k.reg("i32") for _ in range(4)]
    e.k.emit(f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{{', '.join(regs)}}}, [{place[0]}+{place[1]}];")
    return regs


def _tf32(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    """f32 operands rounded to tf32 on their way from shared memory, f32 sums: `mma.sync` over eight of K."""
    k, instr = e.k, dot.instr
    a_type, acc = tile(instr.operands[0]), tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    steps = _steps(at, a_type, 8)
    sides = []
    for x, axis in ((instr.operands[0], 1), (instr.operands[1], 0)):
        found = area_of(e, x)
        assert found is not None
        area, transposed = found
        inner, mine = _inner_k(area, transposed, axis), axis == 1
        warps = [(5 + i, b - columns if mine else b) for i, b in enumerate(dot.layout.warps) if b is not None and (b >= columns) == mine]
        if inner:  # matrices of eight rows of 16 bytes
            lanes = _matrix_lanes(area, warps, inner, first=not mine, deep=steps == 2 and not mine)
        else:  # element by element
            own = [(0, area.bit(False, 0)), (1, area.bit(False, 1)), *((2 + i, area.bit(True, i)) for i in range(3))]
            lanes = (*own, *((i, area.bit(True, b)) for i, b in warps))
        sides.append((area.places(e, lanes), inner))

    def rounded(side: tuple[Places, bool], number: int, depth: int, *, left: bool) -> list[str]:
        """16 × 8 of the left operand, or 8 × 16 (where there are eight columns: 16 × 8) of the right: two fragments."""
        places, inner = side
        if inner:
            raw = _matrices(e, places(number, depth), "")
        else:
            order = [(8 * i, 4 * j) for j in (0, 1) for i in (0, 1)] if left else [(8 * i, 4 * j) for i in (0, 1) for j in (0, 1)]
            order = [(0, 4 * i) for i in range(4)] if steps == 2 and not left else order
            raw = []
            for n, d in order:
                pointer, offset = places(depth + d, number + n)
                raw.append(k.value("i32", f"ld.shared.b32 {{}}, [{pointer}+{offset}];"))
        bits = [k.value("float", f"mov.b32 {{}}, {r};") for r in raw]
        return [k.value("i32", f"cvt.rna.tf32.f32 {{}}, {r};") for r in bits]

    name = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"
    tall, wide = [r for r in rows if not r & 8], [c for c in cols if not c & 1 and not c & 8]
    for depth in range(0, dot.deep, 8):
        a = {r: rounded(sides[0], r, depth, left=True) for r in tall}
        for c in wide:
            if depth % (8 * steps) == 0:
                b = rounded(sides[1], c, depth, left=False)
            for n in (0, 1) if steps == 1 else (depth // 8 % 2,):
                for r in tall:
                    four = ", ".join(sums[at[r + 8 * i, c + 8 * n * (2 - steps) + j]] for i in (0, 1) for j in (0, 1))
                    k.emit(f"{name} {{{four}}}, {{{', '.join(a[r])}}}, {{{b[2 * n]}, {b[2 * n + 1]}}}, {{{four}}};")


def _doubles(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    """f64 on the tensor cores: a lane has one element of every 8 rows × 4 of K. Which four of K does not matter as long as both operands
    agree: a lane takes two neighbours for two steps, which are one 16-byte access where rows lie along K. Where both do, lanes take every
    second piece: eight of them meet eight banks of 16 bytes."""
    k, instr = e.k, dot.instr
    acc = tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    sides = []
    along = all(_inner_k(*found, axis) for found, axis in ((area_of(e, instr.operands[0]), 1), (area_of(e, instr.operands[1]), 0)) if found)
    first, hop = (2, 2) if along else (1, 8)
    for x, axis in ((instr.operands[0], 1), (instr.operands[1], 0)):
        found = area_of(e, x)
        assert found is not None
        area, transposed = found
        inner, mine = _inner_k(area, transposed, axis), axis == 1
        warps = [(5 + i, b - columns if mine else b) for i, b in enumerate(dot.layout.warps) if b is not None and (b >= columns) == mine]
        own = [(0, area.bit(inner, first)), (1, area.bit(inner, first + 1)), *((2 + i, area.bit(not inner, i)) for i in range(3))]
        sides.append((area.places(e, (*own, *((i, area.bit(not inner, b)) for i, b in warps))), inner))

    def two(side: tuple[Places, bool], number: int, depth: int) -> list[str]:
        places, inner = side
        if inner:
            return load_piece(e, acc.dtype, places(number, depth), 2, None, 0, "ld.shared")
        return [load_piece(e, acc.dtype, places(depth + i, number), 1, None, 0, "ld.shared")[0] for i in (0, 1)]

    whole = e.target.cpu == "sm_90a"
    name = f"mma.sync.aligned.{'m16n8k8' if whole else 'm8n8k4'}.row.col.f64.f64.f64.f64"
    tall, wide = [r for r in rows if not r & 8], [c for c in cols if c % 8 == 0]
    for depth in (base + step for base in range(0, dot.deep, 16) for step in (0, hop)):
        a = {r: two(sides[0], r, depth) for r in (*tall, *(r + 8 for r in tall))}
        for c in wide:
            b = two(sides[1], c, depth)
            for r in tall:
                four = [sums[at[r + 8 * i, c + j]] for i in (0, 1) for j in (0, 1)]
                if whole:
                    names = ", ".join(four)
                    left = ", ".join(a[r + 8 * i][s] for s in (0, 1) for i in (0, 1))
                    k.emit(f"{name} {{{names}}}, {{{left}}}, {{{', '.join(b)}}}, {{{names}}};")
                    continue
                for i in (0, 1):
                    names = ", ".join(four[2 * i : 2 * i + 2])
                    for s in (0, 1):
                        k.emit(f"{name} {{{names}}}, {{{a[r + 8 * i][s]}}}, {{{b[s]}}}, {{{names}}};")


def _fma(e: TiledEmitter, dot: Dot, sums: dict[int, str]) -> None:
    instr = dot.instr
    a_type, acc = tile(instr.operands[0]), tile(instr.operands[2])
    at, rows, cols, columns = _grid(dot, acc.shape)
    ty, dtype = elem_type(acc.dtype), acc.dtype
    step = min(16 // dtype.itemsize, a_type.shape[1])
    sides = []
    for x, axis, numbers in ((instr.operands[0], 1, rows), (instr.operands[1], 0, cols)):
        found = area_of(e, x)
        assert found is not None
        area, transposed = found
        inner = _inner_k(area, transposed, axis)
        mine = axis == 1  # the left operand follows rows
        bits = tuple(
            (i, area.bit(not inner, b - columns if mine else b))
            for i, b in enumerate(dot.layout.threads)
            if b is not None and (b >= columns) == mine
        )
        sides.append((area.places(e, bits), inner, numbers))
    fma = f"fma.rn.{'f64' if ty == 'double' else 'f32'}"
    (a_places, a_inner, _), (b_places, b_inner, _) = sides
    for depth in range(0, dot.deep, step):
        # a piece of the right operand at a time: few registers are live, and its loads stand among the multiplications of others
        left = _elements(e, a_places, a_inner, rows, range(depth, depth + step), dtype) if a_inner else {}
        deeps = range(depth, depth + step)
        parts = [([c], deeps) for c in cols] if b_inner else [(cols, range(d, d + 1)) for d in deeps]
        for numbers, deep in parts:
            if not a_inner and (rows[0], deep[0]) not in left:
                left.update(_elements(e, a_places, False, rows, deep, dtype))
            right = _elements(e, b_places, b_inner, numbers, deep, dtype)
            for d in deep:
                for r in rows:
                    for c in numbers:
                        reg = sums[at[r, c]]
                        e.k.emit(f"{fma} {reg}, {left[r, d]}, {right[c, d]}, {reg};")


def _elements(e: TiledEmitter, places: Places, inner: bool, numbers: list[int], deep: range, dtype: DType) -> dict[tuple[int, int], str]:
    """The elements (number, k) for some values of k."""
    out: dict[tuple[int, int], str] = {}
    if inner:
        for n in numbers:
            for d, v in enumerate(load_piece(e, dtype, places(n, deep[0]), len(deep), None, 0, "ld.shared"), deep[0]):
                out[n, d] = v
        return out
    run = 1
    while run * 2 <= 16 // dtype.itemsize and all(n % (run * 2) or all(n + i in numbers for i in range(run * 2)) for n in numbers):
        run *= 2
    for d in deep:
        for n in numbers:
            if n % run == 0:
                for i, v in enumerate(load_piece(e, dtype, places(d, n), run, None, 0, "ld.shared")):
                    out[n + i, d] = v
    return out
