"""Tile IR → LLVM IR for CPUs: one function `void name(ptr args, i64 begin, i64 end, ptr scratch)` that runs programs begin..end-1."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from ...core.dtypes import DType, bf16, f32, f64
from ...core.errors import CompileError
from ...core.target_spec import TargetSpec
from ...tile.ir import UNARY, Instr, Kernel, TileType, Var, ViewType, alloc_bytes, identity
from . import access, amx, arithmetic
from .access import Address, Term
from .bounds import LOCAL, Bounds
from .llvm_text import FunctionText, element, number, vector
from .registers import Registers, chunk_sizes, chunks, elem_type, read_chunk, row_count, row_map
from .skeleton import Skeleton
from .vmath import functions as vmath

# Reductions and transposes of tiles in registers. The tree of a reduction depends on the size of its axis alone: pad with the identity to a
# power of two, then combine the lower half with the upper half until one element is left.
_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def combine(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    if fn in ("any", "all"):
        return f.op("or" if fn == "any" else "and", ty, a, b)
    return arithmetic.binary(f, _COMBINE[fn], dtype, ty, a, b)


def _halve(f: FunctionText, fn: str, dtype: DType, ty: str, parts: list[str]) -> str:
    """Combine whole registers: element i with element i + n/2; a missing partner is the identity, so it is skipped."""
    size = 1
    while size < len(parts):
        size *= 2
    while size > 1:
        size //= 2
        parts = [
            combine(f, fn, dtype, ty, parts[i], parts[i + size]) if i + size < len(parts) else parts[i]
            for i in range(min(size, len(parts)))
        ]
    return parts[0]


def reduce_tile(f: FunctionText, fn: str, x: Registers, axis: int) -> list[list[str]]:
    """Rows of the result (the axis kept with size 1)."""
    if axis == len(x.type.shape) - 1:
        return [[_horizontal(f, fn, x, row)] for row in x.rows]
    before, size, after = x.type.shape[:axis], x.type.shape[axis], x.type.shape[axis + 1 : -1]
    rows = []
    n_before, n_after = _count(before), _count(after)
    for o, i in itertools.product(range(n_before), range(n_after)):
        group = [x.rows[(o * size + k) * n_after + i] for k in range(size)]
        rows.append([_halve(f, fn, x.type.dtype, x.chunk_type(c), [g[c] for g in group]) for c in range(len(x.sizes))])
    return rows


def scan_tile(f: FunctionText, fn: str, x: Registers) -> list[list[str]]:
    """Rows of running sums by doubling; a row is one register."""
    if len(x.sizes) != 1:
        raise CompileError(f"cpu: scan takes rows of one register, got {x.type}")
    n, step, rows = x.sizes[0], 1, [row[0] for row in x.rows]
    ty = x.chunk_type(0)
    while step < n:
        for r, v in enumerate(rows):
            before = f.shuffle(ty, v, "poison", [max(i - step, 0) for i in range(n)])
            both = combine(f, fn, x.type.dtype, ty, before, v)
            rows[r] = f.shuffle(ty, v, both, [i if i < step else n + i for i in range(n)])
        step *= 2
    return [[v] for v in rows]


def _count(dims: tuple[int, ...]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n


def _horizontal(f: FunctionText, fn: str, x: Registers, row: list[str]) -> str:
    if x.sizes == (0,):
        return row[0]
    width = 1
    while width < max(x.sizes):
        width *= 2
    ty, elem = vector(width, x.elem), x.elem
    fill = f"splat ({elem} {number(elem, identity(fn, x.type.dtype))})"
    full = [chunk if n == width else _pad(f, vector(n, elem), chunk, n, width, fill, ty) for chunk, n in zip(row, x.sizes, strict=True)]
    value = _halve(f, fn, x.type.dtype, ty, full)
    while width > 1:
        half = width // 2
        low = f.shuffle(vector(width, elem), value, "poison", range(half))
        high = f.shuffle(vector(width, elem), value, "poison", range(half, width))
        value, width = combine(f, fn, x.type.dtype, vector(half, elem), low, high), half
    return f.value(f"extractelement <1 x {elem}> {value}, i64 0")


def _pad(f: FunctionText, ty: str, x: str, n: int, width: int, fill: str, wide: str) -> str:
    grown = f.shuffle(ty, x, "poison", [i if i < n else -1 for i in range(width)])
    return f.shuffle(wide, grown, fill, [i if i < n else width for i in range(width)])


def pick(f: FunctionText, target: TargetSpec, table: Registers, index: Registers) -> str:
    """One instruction of AVX-512 on two registers of 32- or 64-bit floats."""
    n, size = index.type.shape[0], table.type.dtype.itemsize
    if not (target.has("avx512f") and table.type.dtype.is_float and n * size == 64 and table.type.shape == (2 * n,)):
        raise CompileError(f"cpu: picks need AVX-512 and a table of two registers of f32 or f64, got {table.type} by {index.type}")
    whole, row = vector(n, table.elem), table.rows[0]
    low, high = row if len(row) == 2 else (f.shuffle(vector(2 * n, table.elem), row[0], "poison", range(k, k + n)) for k in (0, n))
    args = [(whole, low), (vector(n, index.elem), index.rows[0][0]), (whole, high)]
    return f.intrinsic(f"llvm.x86.avx512.vpermi2var.{'ps' if size == 4 else 'pd'}.512", whole, args)


def shuffle_tile(f: FunctionText, a: Registers, b: Registers, order: Sequence[int]) -> list[list[str]]:
    """Elements of two rows by constant index; a result register that takes from two registers is one shuffle."""
    elem, n = elem_type(a.type.dtype), a.type.shape[0]
    whole = vector(a.lanes, elem)

    def grown(row: list[str], sizes: Sequence[int]) -> list[str]:
        """Registers of the same width, so that any two can be mixed."""
        out = []
        for x, size in zip(row, sizes, strict=True):
            if size == 0:
                out.append(f.value(f"insertelement {whole} poison, {elem} {x}, i64 0"))
            else:
                out.append(x if size == a.lanes else f.shuffle(vector(size, elem), x, "poison", [*range(size), *[-1] * (a.lanes - size)]))
        return out

    sources = [*grown(a.rows[0], a.sizes), *grown(b.rows[0], b.sizes)]
    places = [(k // n * len(a.sizes) + k % n // a.lanes, k % n % a.lanes) for k in order]
    row, start = [], 0
    for size in chunk_sizes(len(order), a.lanes):
        count = max(size, 1)
        wanted = places[start : start + count]
        used = list(dict.fromkeys(source for source, _ in wanted))
        first, second = sources[used[0]], sources[used[1]] if len(used) > 1 else "poison"
        offset = {used[0]: 0, **({used[1]: a.lanes} if len(used) > 1 else {})}
        rest = [-1] * (a.lanes - count)
        made = f.shuffle(whole, first, second, [offset[s] + k if s in offset else -1 for s, k in wanted] + rest)
        for s in used[2:]:
            made = f.shuffle(whole, made, sources[s], [a.lanes + k if t == s else i for i, (t, k) in enumerate(wanted)] + rest)
        if size == 0:
            made = f.value(f"extractelement {whole} {made}, i64 0")
        elif size < a.lanes:
            made = f.shuffle(whole, made, "poison", range(size))
        row.append(made)
        start += count
    return [row]


def transpose_tile(f: FunctionText, x: Registers) -> list[list[str]]:
    """Swap the axes of a rank-2 tile. Square power-of-two tiles of one register per row use a butterfly of shuffles."""
    r, c = x.type.shape
    elem = elem_type(x.type.dtype)
    if r == c and len(x.sizes) == 1 and r > 1 and r & (r - 1) == 0:
        ty, v, s = vector(r, elem), [row[0] for row in x.rows], r // 2
        while s:
            out = list(v)
            for i in range(r):
                if i & s == 0:
                    a, b = v[i], v[i + s]
                    out[i] = f.shuffle(ty, a, b, [lane if lane & s == 0 else r + lane - s for lane in range(r)])
                    out[i + s] = f.shuffle(ty, a, b, [lane + s if lane & s == 0 else r + lane for lane in range(r)])
            v, s = out, s // 2
        return [[row] for row in v]
    if c == 1:  # a column of scalars becomes one row
        row, lane = [], 0
        for n in chunk_sizes(r, x.lanes):
            if n == 0:
                row.append(x.rows[0][0])
                continue
            built = "poison"
            for k in range(n):
                built = f.value(f"insertelement {vector(n, elem)} {built}, {elem} {x.rows[lane + k][0]}, i64 {k}")
            row.append(built)
            lane += n
        return [row]
    raise CompileError(f"cpu: transpose takes square power-of-two tiles of one register a row, or a column, got {x.type}")


DTYPES = {"f32": f32, "f64": f64}  # dtypes of numbers that functions of the host take


def emit_kernel(kernel: Kernel, target: TargetSpec) -> str:
    """The LLVM module text of a kernel. The function has the kernel's name."""
    return Emitter(kernel, target).run()


class Emitter(Skeleton):
    """Walks a kernel once; tiles and memory on top of the skeleton."""

    # --- tiles --------------------------------------------------------------------------------------------------------
    def arithmetic(self, instr: Instr) -> None:
        fn = instr.op
        if fn in arithmetic.VMATH and self._is_float(instr):
            self.vector_math(instr)
        elif fn in UNARY:
            self.elementwise(instr, lambda dt, ty, n, xs: arithmetic.unary(self.f, fn, dt, ty, xs[0]))
        else:
            self.elementwise(instr, lambda dt, ty, n, xs: arithmetic.binary(self.f, fn, dt, ty, xs[0], xs[1]))

    def elementwise(self, instr: Instr, emit: Callable[..., str]) -> None:
        """Apply emit(dtype, chunk type, lanes, operand chunks) to every chunk of the result; operands broadcast."""
        out = instr.results[0]
        assert isinstance(out.type, TileType)
        xs = [self.tile(x) for x in instr.operands]
        maps = [row_map(x.type.shape, out.type.shape) if out.type.shape else (0,) for x in xs]
        dtype = xs[-1].type.dtype
        rows: list[list[str]] = [[] for _ in range(row_count(out.type.shape))]
        for r, c, n in chunks(out.type.shape, self.lanes):
            parts = [read_chunk(self.f, x, m[r], c, n) for x, m in zip(xs, maps, strict=True)]
            rows[r].append(emit(dtype, vector(n, elem_type(dtype)), n, parts))
        self._bind(out, Registers(out.type, self.lanes, rows))

    @staticmethod
    def _is_float(instr: Instr) -> bool:
        type_ = instr.results[0].type
        return isinstance(type_, TileType) and type_.dtype.is_float

    def vector_math(self, instr: Instr) -> None:
        """All chunks of one function together, so that their instructions interleave."""
        x = self.tile(instr.operands[0])
        groups: dict[str, list[tuple[int, int]]] = {}
        for r, c, n in chunks(x.type.shape, self.lanes):
            groups.setdefault(vector(n, x.elem), []).append((r, c))
        rows = [list(row) for row in x.rows]
        for ty, places in groups.items():
            for (r, c), value in zip(places, vmath.emit_many(instr.op, self.f, ty, [x.rows[r][c] for r, c in places]), strict=True):
                rows[r][c] = value
        self._tile(instr, rows)

    def do_full(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        elem = elem_type(type_.dtype)
        value = _bits(instr.attrs["value"], type_.dtype) if elem.startswith("i") and type_.dtype.is_float else instr.attrs["value"]
        row = [self.f.splat(vector(n, elem), value) for n in chunk_sizes(type_.shape[-1] if type_.shape else 1, self.lanes)]
        self._tile(instr, [list(row) for _ in range(row_count(type_.shape))])

    def do_iota(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        elem, axis, rank = elem_type(type_.dtype), instr.attrs["axis"], len(type_.shape)
        inner = 1
        for d in type_.shape[axis + 1 : -1]:
            inner *= d
        rows: list[list[str]] = [[] for _ in range(row_count(type_.shape))]
        for r, c, n in chunks(type_.shape, self.lanes):
            if axis == rank - 1:
                first = c * self.lanes
                rows[r].append(self.f.constant(vector(n, elem), range(first, first + n)) if n else self.f.splat(elem, first))
            else:
                rows[r].append(self.f.splat(vector(n, elem), r // inner % type_.shape[axis]))
        self._tile(instr, rows)

    def do_cmp(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: arithmetic.compare(self.f, instr.attrs["fn"], dt, ty, xs[0], xs[1]))

    def do_select(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: self.f.select(ty, xs[0], xs[1], xs[2]))

    def do_fma(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: self.f.fma(ty, xs[0], xs[1], xs[2]))

    def do_dot4(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: arithmetic.dot4(self.f, self.target, n, xs[0], xs[1], xs[2]))

    def do_dot2(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: arithmetic.dot2(self.f, self.target, n, xs[0], xs[1], xs[2]))

    def do_tile_dot(self, instr: Instr) -> None:
        found = [self.env[x] for x in instr.operands[:3] if isinstance(x, Var)]
        views = [v for v in found if isinstance(v, Address)]
        kind = "tdpbusd" if views[0].dtype.is_int else "tdpbf16ps"
        ends = [(v.pointer, self.f.op("mul", "i64", v.strides[0], "4")) for v in views]
        amx.tile_dot(self.f, self.target, ends, self.ix(instr.operands[3]), instr.attrs["rows"], instr.attrs["cols"], kind)

    def do_cast(self, instr: Instr) -> None:
        out = instr.results[0].type
        assert isinstance(out, TileType)
        x, flush = instr.operands[0], out.dtype is bf16 and instr.attrs.get("flush") and self.target.has_avx512bf16

        def chunk(dtype: DType, ty: str, n: int, xs: list[str]) -> str:
            if flush and dtype is f32 and n in (8, 16):
                return arithmetic.narrow_flushing(self.f, n, xs[0])
            if out.dtype is bf16 and x in self.halves.quiet:
                return arithmetic.narrow_quiet(self.f, n, xs[0], rounds=x not in self.halves.short)
            return arithmetic.convert(self.f, dtype, out.dtype, n, xs[0])

        self.elementwise(instr, chunk)

    def do_bitcast(self, instr: Instr) -> None:
        out = instr.results[0].type
        assert isinstance(out, TileType)
        self.elementwise(instr, lambda dt, ty, n, xs: self.f.cast("bitcast", ty, xs[0], vector(n, elem_type(out.dtype))))

    def do_broadcast(self, instr: Instr) -> None:
        self.elementwise(instr, lambda dt, ty, n, xs: xs[0])

    def do_reshape(self, instr: Instr) -> None:
        x, type_ = self.tile(instr.operands[0]), instr.results[0].type
        assert isinstance(type_, TileType)
        last = x.type.shape[-1] if x.type.shape else 1
        if last != (type_.shape[-1] if type_.shape else 1):
            raise CompileError(f"cpu: reshape keeps the last axis, got {x.type} to {type_}")
        self._tile(instr, x.rows)

    def do_extract(self, instr: Instr) -> None:
        x, type_, starts = self.tile(instr.operands[0]), instr.results[0].type, instr.attrs["starts"]
        assert isinstance(type_, TileType)
        if (
            len(type_.shape) != 2
            or starts[-1] % self.lanes
            or (type_.shape[-1] % self.lanes and starts[-1] + type_.shape[-1] != x.type.shape[-1])
        ):
            raise CompileError(f"cpu: extract works on rank-2 tiles at whole registers, got {starts} of {x.type}")
        first, count = starts[1] // self.lanes, len(chunk_sizes(type_.shape[1], self.lanes))
        self._tile(instr, [x.rows[r][first : first + count] for r in range(starts[0], starts[0] + type_.shape[0])])

    def do_transpose(self, instr: Instr) -> None:
        self._tile(instr, transpose_tile(self.f, self.tile(instr.operands[0])))

    def do_shuffle(self, instr: Instr) -> None:
        a, b = (self.tile(x) for x in instr.operands)
        self._tile(instr, shuffle_tile(self.f, a, b, instr.attrs["order"]))

    def do_pick(self, instr: Instr) -> None:
        table, index = (self.tile(x) for x in instr.operands)
        self._tile(instr, [[pick(self.f, self.target, table, index)]])

    def do_reduce(self, instr: Instr) -> None:
        self._tile(instr, reduce_tile(self.f, instr.attrs["fn"], self.tile(instr.operands[0]), instr.attrs["axis"]))

    def do_scan(self, instr: Instr) -> None:
        self._tile(instr, scan_tile(self.f, instr.attrs["fn"], self.tile(instr.operands[0])))

    def do_mma(self, instr: Instr) -> None:
        a, b, acc = (self.tile(x) for x in instr.operands)
        rows, depth = a.type.shape
        out = [list(row) for row in acc.rows]
        for k in range(depth):
            for m in range(rows):
                if depth == 1:
                    scalar = None
                else:
                    scalar = self.f.value(
                        f"extractelement {a.chunk_type(k // self.lanes)} {a.rows[m][k // self.lanes]}, i64 {k % self.lanes}"
                    )
                for c, n in enumerate(acc.sizes):
                    ty = vector(n, acc.elem)
                    left = read_chunk(self.f, a, m, 0, n) if scalar is None else self.f.broadcast(ty, scalar)
                    out[m][c] = self._multiply_add(ty, left, b.rows[k][c], out[m][c])
        self._tile(instr, out)

    def _multiply_add(self, ty: str, a: str, b: str, c: str) -> str:
        if element(ty) in ("float", "double"):
            return self.f.fma(ty, a, b, c)
        return self.f.op("add", ty, self.f.op("mul", ty, a, b), c)

    # --- memory -------------------------------------------------------------------------------------------------------
    def do_alloc(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, ViewType)
        pointer = self.f.gep("i8", "%scratch", str(self.scratch)) if self.scratch else "%scratch"
        self.scratch += alloc_bytes(instr)
        bounds = None
        if self.guard is not None:
            low = self.f.value(f"ptrtoint ptr {pointer} to i64")
            bounds = Bounds(low, self.f.op("add", "i64", low, str(prod(instr.attrs["shape"]) * type_.dtype.itemsize)), LOCAL)
        self._bind(instr.results[0], Address(pointer, tuple(str(s) for s in type_.strides), type_.dtype, bounds))
        self.depth[instr.results[0]] = 0

    def do_subview(self, instr: Instr) -> None:
        view, keep = self._view(instr), instr.attrs["keep"]
        at = [self.term(x) for x in instr.operands[1:]]
        pointer = access.row_pointers(self.f, view, at, (), ())[0]
        self._bind(instr.results[0], Address(pointer, tuple(view.strides[i] for i in keep), view.dtype, view.bounds))

    def _view(self, instr: Instr) -> Address:
        var = instr.operands[0]
        assert isinstance(var, Var)
        found = self.env[var]
        assert isinstance(found, Address)
        return found

    def _access(self, instr: Instr) -> tuple[Address, list[Term], dict[int, str], int]:
        """View, position, limits by tile axis, and how many operands those took."""
        view = self._view(instr)
        rank = len(view.strides)
        limited = instr.attrs.get("limits") or ()
        at = [self.term(x) for x in instr.operands[1 : 1 + rank]]
        limits = {axis: self.ix(x) for axis, x in zip(limited, instr.operands[1 + rank :], strict=False)}
        return view, at, limits, 1 + rank + len(limited)

    def _check(self, view: Address, at: list[Term], shape: tuple[int, ...], axes: Sequence[int], limits: dict[int, str]) -> None:
        """The tile's elements inside the limits lie in the view's buffer."""
        if self.guard is None or view.bounds is None:
            return
        spans: list[tuple[str, int | str]] = []
        for d, (n, axis) in enumerate(zip(shape, axes, strict=False)):
            inside = self.f.intrinsic("llvm.smin.i64", "i64", [("i64", limits[d]), ("i64", str(n))]) if d in limits else n
            spans.append((view.strides[axis], inside))
        self.guard.box(view.bounds, access.row_pointers(self.f, view, at, (), ())[0], spans, view.dtype.itemsize)

    def do_load(self, instr: Instr) -> None:
        view, at, limits, _ = self._access(instr)
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        self._check(view, at, type_.shape, instr.attrs["axes"], limits)
        other = instr.attrs.get("other", 0)
        if type_.dtype.is_float and elem_type(type_.dtype).startswith("i"):
            other = _bits(other, type_.dtype)
        self._bind(instr.results[0], access.load(self.f, view, at, type_, instr.attrs["axes"], self.lanes, limits, other))

    def do_store(self, instr: Instr) -> None:
        view, at, limits, used = self._access(instr)
        tile = self.tile(instr.operands[used])
        self._check(view, at, tile.type.shape, instr.attrs["axes"], limits)
        past = "past" in instr.attrs and not limits and view.strides[instr.attrs["axes"][-1]] == "1"
        self.fenced |= past
        (access.store_past if past else access.store)(self.f, view, at, tile, instr.attrs["axes"], limits)

    def do_gather(self, instr: Instr) -> None:
        view, at, _, used = self._access(instr)
        indices, axis, f = self.tile(instr.operands[used]), instr.attrs["axis"], self.f
        base = access.row_pointers(f, view, at, (), ())[0]
        mem = access.MEMORY.get(view.dtype.name, elem_type(view.dtype))
        rows: list[list[str]] = [[] for _ in indices.rows]
        for r, c, n in chunks(indices.type.shape, self.lanes):
            wide = vector(n, "i64")
            index = indices.rows[r][c]
            if indices.elem != "i64":
                index = f.cast("zext" if indices.type.dtype.kind == "u" else "sext", vector(n, indices.elem), index, wide)
            offset = f.op("mul", wide, index, f.broadcast(wide, view.strides[axis]))
            if self.guard is not None and view.bounds is not None:
                self.guard.lanes(view.bounds, base, offset, n, view.dtype.itemsize)
            if n == 0:
                x = f.load(mem, f.gep(mem, base, offset))
            else:
                x = access.gather_chunk(
                    f, vector(n, mem), f.value(f"getelementptr {mem}, ptr {base}, {wide} {offset}"), None, "zeroinitializer"
                )
            rows[r].append(access._from_memory(f, view.dtype, n, x))
        self._tile(instr, rows)

    def do_atomic(self, instr: Instr) -> None:
        """Integers, one element at a time. Barriers between threads order everything else: no ordering is needed here."""
        view, at, limits, used = self._access(instr)
        x, fn = self.tile(instr.operands[used]), instr.attrs["fn"]
        if x.type.shape or limits or not view.dtype.is_int:
            raise CompileError(f"cpu: atomics are of single integers, got {fn} of {x.type}")
        name = {"max": "max", "min": "min", "exchange": "xchg"}.get(fn, fn)
        if view.dtype.kind == "u" and fn in ("max", "min"):
            name = f"u{name}"
        self._check(view, at, (), (), {})
        pointer = access.row_pointers(self.f, view, at, (), ())[0]
        old = self.f.value(f"atomicrmw {name} ptr {pointer}, {x.elem} {x.rows[0][0]} monotonic, align {view.dtype.itemsize}")
        self._tile(instr, [[old]])

    def do_join(self, instr: Instr) -> None:
        """Tokens order memory; within one program the CPU keeps program order, so nothing is emitted."""

    def do_call(self, instr: Instr) -> None:
        """With the C calling convention. What the function touches is its author's promise: bounds are not checked."""
        f, given = self.f, []
        for x, kind in zip(instr.operands[1:], instr.attrs["kinds"], strict=True):
            if kind == "ptr":
                assert isinstance(x, Var)
                found = self.env[x]
                assert isinstance(found, Address)
                given.append(f"ptr {found.pointer}")
            elif kind == "i32":
                given.append(f"i32 {f.cast('trunc', 'i64', self.ix(x), 'i32')}")
            elif kind == "i64":
                given.append(f"i64 {self.ix(x)}")
            else:
                given.append(f"{elem_type(DTYPES[kind])} {self.tile(x).rows[0][0]}")
        target = f.value(f"inttoptr i64 {self.ix(instr.operands[0])} to ptr")
        f.emit(f"call void {target}({', '.join(given)})")

    def do_prefetch(self, instr: Instr) -> None:
        view, at, _, _ = self._access(instr)
        pointer = access.row_pointers(self.f, view, at, (), ())[0]
        args = [("ptr", pointer), ("i32", "0"), ("i32", str(instr.attrs["locality"])), ("i32", "1")]
        self.f.declarations["llvm.prefetch.p0"] = "declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)"
        self.f.emit(f"call void @llvm.prefetch.p0({', '.join(f'{t} {a}' for t, a in args)})")


def _bits(value: float, dtype: DType) -> int:
    """The code of a number in a float dtype that lives as an integer."""
    return int(np.asarray(value, np.float32).astype(dtype.np).view(f"i{dtype.itemsize}"))
