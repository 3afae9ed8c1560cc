"""Tile IR → PTX: a program runs on a group of threads (`BlockKernel`), one kernel per module."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

from ....core.dtypes import DType, f32, i32, i64
from ....core.errors import CompileError
from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import WARP, BlockKernel
from ....tile.constraints import TileLimits, check
from ....tile.ir import Block, Instr, TileType, Var, ViewType, alloc_bytes
from ..arithmetic import math
from ..arithmetic.convert import convert, narrow_pair
from ..arithmetic.math import combine
from ..ptx.text import START, WAIT, arch_number, literal, module_text
from . import access, ordering
from .access import Address
from .control import EARLY, Control
from .layout import Group, Key, Regs, elem_type


# Reductions along a tile axis: within a thread by halves, across a warp by shuffles, across a block through shared memory.
# The order depends on the tile's shape and the group alone, so the bits are the same from run to run and for every program.
def reduce_tiles(e: Emitter, fn: str, tiles: list[Regs], axis: int) -> list[Regs]:
    """Tiles of one dtype that are reduced along the same axis: a block needs one barrier for all of them."""
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


def scan_tile(e: Emitter, fn: str, x: Regs) -> Regs:
    """Running sums of a tile with one element a thread, by doubling: within a warp by shuffles, in a block through shared memory. Sums of
    integers have no order: warps find theirs by shuffles, and each adds what the warps before it have."""
    k, f, threads, dtype = e.k, e.f, e.layout.threads, x.type.dtype
    if x.type.shape[-1] != threads:
        raise CompileError(f"cuda: scan needs tiles of one element a thread, kernel {e.kernel.name} has {threads} threads for {x.type}")
    ty, item = elem_type(dtype), 8 if dtype.itemsize == 8 else 4
    place = e.base(x.type.shape, len(x.type.shape) - 1)
    warps = threads // WARP
    out = {}
    for key, value in x.values.items():
        reach = 1 if warps <= 1 or not dtype.is_float else WARP
        while reach < min(threads, WARP):
            within = k.value("i64", f"and.b64 {{}}, {place}, {min(threads, WARP) - 1};")
            has = k.value("i1", f"setp.ge.u64 {{}}, {within}, {reach};")
            value = f.select(ty, has, combine(f, fn, dtype, _shuffle(e, dtype, value, reach, "up"), value), value)
            reach *= 2
        if warps > 1:
            slots = threads if dtype.is_float else warps
            at = k.value("i64", f"add.s64 {{}}, {e.shared_base()}, {k.alloc_shared(item * slots)};")
            if dtype.is_float:
                value = _doubled(e, fn, dtype, value, place, at)
            else:
                last = k.value("i1", f"setp.eq.u32 {{}}, {k.value('i32', 'mov.u32 {}, %laneid;')}, {WARP - 1};")
                e.barrier()  # the last round's readers must be done
                mine = k.value("i64", f"mad.wide.u32 {{}}, {e.warp()}, {item}, {at};")
                k.emit(f"@{last} st.shared.b{8 * item} [{mine}], {value};")
                e.barrier()
                for w in range(warps - 1):
                    part = k.value(ty, f"ld.shared.b{8 * item} {{}}, [{at}+{w * item}];")
                    behind = k.value("i1", f"setp.gt.u32 {{}}, {e.warp()}, {w};")
                    value = f.select(ty, behind, combine(f, fn, dtype, part, value), value)
        out[key] = value
    return Regs(x.type, out)


def _doubled(e: Emitter, fn: str, dtype: DType, value: str, place: str, at: str) -> str:
    """A scan by doubling through shared memory."""
    k, ty, item = e.k, elem_type(dtype), 8 if dtype.itemsize == 8 else 4
    mine, reach = k.value("i64", f"mad.lo.s64 {{}}, {place}, {item}, {at};"), 1
    while reach < e.layout.threads:
        e.barrier()  # readers of the step before are done
        k.emit(f"st.shared.b{8 * item} [{mine}], {value};")
        e.barrier()
        has = k.value("i1", f"setp.ge.u64 {{}}, {place}, {reach};")
        earlier = k.value(ty, f"mov.b{8 * item} {{}}, {literal(ty, 0)};")
        k.emit(f"@{has} ld.shared.b{8 * item} {earlier}, [{mine}+{-reach * item}];")
        value = e.f.select(ty, has, combine(e.f, fn, dtype, earlier, value), value)
        reach *= 2
    return value


def _as_bits(e: Emitter, ty: str, value: str) -> str:
    return e.f.select("i32", value, "1", "0") if ty == "i1" else value


def _shuffle(e: Emitter, dtype: DType, value: str, reach: int, mode: str = "bfly") -> str:
    """The value of the lane `reach` away: across (`bfly`), or before (`up`)."""
    k, f, ty = e.k, e.f, elem_type(dtype)
    mask = e.member_mask()
    bound = 31 if mode == "bfly" else 0
    if ty in ("double", "i64"):
        low, high = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.b64 {{{low}, {high}}}, {value};")
        a, b = (k.value("i32", f"shfl.sync.{mode}.b32 {{}}, {x}, {reach}, {bound}, {mask};") for x in (low, high))
        out = k.reg(ty)
        k.emit(f"mov.b64 {out}, {{{a}, {b}}};")
        return out
    other = k.value("i32" if ty == "i1" else ty, f"shfl.sync.{mode}.b32 {{}}, {_as_bits(e, ty, value)}, {reach}, {bound}, {mask};")
    return f.icmp("ne", "i32", other, "0") if ty == "i1" else other


def emit_block_kernel(kernel: BlockKernel, target: TargetSpec) -> str:
    """The PTX module of a kernel. The entry has the kernel's name; parameters are its argument words, then the number of programs."""
    warnings(kernel, target)
    return Emitter(kernel, Group(kernel.threads, kernel.vector)).module(target)


def warnings(kernel: BlockKernel, target: TargetSpec) -> list[str]:
    """What a kernel costs beyond its chip's limits: registers that will spill. Memory that there is not is an error."""
    limits = TileLimits.of(target, kernel.threads)
    if kernel.workspace is not None:  # its allocations lie in a buffer
        limits = replace(limits, local_bytes=sys.maxsize)
    return [f.message for f in check(kernel, limits)]


class Emitter(Control):
    """Walks a kernel once; `env` maps each tile-IR value to registers."""

    pending = False  # the wait for the previous kernel is still to come
    quotients: Mapping[tuple[str, str], str] = {}  # index values, as far as the open blocks know them
    arch = 90

    @cached_property
    def barriers_of(self) -> frozenset[Instr]:
        """Accesses before which the threads of a program wait for each other."""
        return ordering.planned(self.kernel)

    def module(self, target: TargetSpec) -> str:
        kernel = self.kernel
        assert isinstance(kernel, BlockKernel)
        if kernel.threads > WARP and kernel.programs != 1:
            raise CompileError(f"cuda: a program of {kernel.threads} threads takes a block of its own, got {kernel.programs} programs")
        self.arch = arch_number(target.cpu)
        self.k.late = self.pending = kernel.early and self.arch >= 90
        self.parameters(["grid"] if kernel.programs > 1 or kernel.beside > 1 else [])
        self._program_index(kernel)
        self.block(kernel.body)
        text = self.k.text([f".maxntid {kernel.block}, 1, 1"], target.cpu)
        return module_text(target.cpu, math.tables(text) + text)

    def _program_index(self, kernel: BlockKernel) -> None:
        k, block = self.k, self.block_number()
        if kernel.programs == 1:
            self.env[kernel.pid] = self.inside_grid(block) if k.beside > 1 else k.value("i64", f"cvt.u64.u32 {{}}, {block};")
            return
        tid = k.value("i32", "mov.u32 {}, %tid.x;")
        group = tid if kernel.threads == 1 else k.value("i32", f"shr.u32 {{}}, {tid}, {kernel.threads.bit_length() - 1};")
        self.env[kernel.pid] = self.inside_grid(k.value("i32", f"mad.lo.u32 {{}}, {block}, {kernel.programs}, {group};"))

    # --- index scalars ------------------------------------------------------------------------------------------------
    def block(self, block: Block) -> None:
        before = self.quotients
        super().block(block)
        self.quotients = before

    def _divide(self, fn: str, a: str, b: str) -> str:
        """A quotient and what it leaves are asked for together: one division."""
        if not b.startswith("%") and int(b) & (int(b) - 1) == 0:
            return super()._divide(fn, a, b)
        if (a, b) not in self.quotients:
            self.quotients = {**self.quotients, (a, b): super()._divide("floordiv", a, b)}
        whole, k = self.quotients[a, b], self.k
        if fn == "floordiv":
            return whole
        return k.value("i64", f"sub.s64 {{}}, {a}, {k.value('i64', f'mul.lo.s64 {{}}, {whole}, {b};')};")

    # --- tiles --------------------------------------------------------------------------------------------------------
    def keys(self, shape: tuple[int, ...]) -> list[Key]:
        return [key for piece in self.layout.pieces(shape) for key in piece]

    def elementwise(self, instr: Instr, emit: Callable[..., str]) -> None:
        out = instr.results[0]
        assert isinstance(out.type, TileType)
        xs = [self.tile(x) for x in instr.operands]
        dtype = xs[-1].type.dtype
        self.env[out] = Regs(out.type, {key: emit(dtype, *(x.pick(key) for x in xs)) for key in self.keys(out.type.shape)})

    def do_dot4(self, instr: Instr) -> None:
        """Unsigned bytes of a, signed bytes of b."""
        self.elementwise(instr, lambda dt, a, b, c: self.k.value("i32", f"dp4a.u32.s32 {{}}, {a}, {b}, {c};"))

    def do_cast(self, instr: Instr) -> None:
        out, x = instr.results[0], self.tile(instr.operands[0])
        assert isinstance(out.type, TileType)
        source, target = x.type.dtype, out.type.dtype
        if target.name not in ("bf16", "f16"):
            self.elementwise(instr, lambda dt, v: convert(self.f, source, target, v))
            return
        values: dict[Key, str] = {}
        for piece in self.layout.pieces(out.type.shape):
            wide = [convert(self.f, source, f32, x.pick(key)) for key in piece]
            wide = [v if v.startswith("%") else self.k.value("float", f"mov.f32 {{}}, {v};") for v in wide]
            for i in range(0, len(piece) - 1, 2):
                values[piece[i]], values[piece[i + 1]] = narrow_pair(self.f, target, wide[i], wide[i + 1])
            if len(piece) % 2:
                values[piece[-1]] = convert(self.f, f32, target, wide[-1])
        self.env[out] = Regs(out.type, values)

    def do_full(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        self.env[instr.results[0]] = Regs(type_, dict.fromkeys(self.keys(type_.shape), self.constant(type_.dtype, instr.attrs["value"])))

    def do_iota(self, instr: Instr) -> None:
        type_, axis = instr.results[0].type, instr.attrs["axis"]
        assert isinstance(type_, TileType)
        if not self.layout.spread(type_.shape, axis):
            values = {key: literal(elem_type(type_.dtype), key[axis]) for key in self.keys(type_.shape)}
        else:
            base = self.base(type_.shape, axis)
            whole = {o: access.plus(self.f, base, str(o)) for o in {key[axis] for key in self.keys(type_.shape)}}
            made = {o: convert(self.f, i64, type_.dtype, v) for o, v in whole.items()}
            values = {key: made[key[axis]] for key in self.keys(type_.shape)}
        self.env[instr.results[0]] = Regs(type_, values)

    def do_reduce(self, instr: Instr) -> None:
        if instr in self.reduced:
            return
        together = [instr, *self._beside(instr)]
        found = reduce_tiles(self, instr.attrs["fn"], [self.tile(i.operands[0]) for i in together], instr.attrs["axis"])
        self.env.update(zip((i.results[0] for i in together), found, strict=True))
        self.reduced.update(together)

    def _beside(self, instr: Instr) -> list[Instr]:
        """The reductions that follow at once and are of the same kind, where each would have a barrier of its own."""
        x = self.tile(instr.operands[0]).type
        if self.layout.threads <= WARP or not self.layout.spread(x.shape, instr.attrs["axis"]):
            return []
        found: list[Instr] = []
        for i in self.rest:
            known = i.op == "reduce" and i.attrs == instr.attrs and i.operands[0] in self.env
            y = self.tile(i.operands[0]).type if known else None
            if y is None or y.dtype is not x.dtype or len(y.shape) != len(x.shape) or not self.layout.spread(y.shape, i.attrs["axis"]):
                break
            found.append(i)
        return found

    def _private(self, instr: Instr) -> TileType:
        """Ops that move elements between positions work where one thread holds the whole tile."""
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        if self.layout.threads != 1:
            raise CompileError(f"cuda: {instr.op} needs programs of one thread, kernel {self.kernel.name} has {self.layout.threads}")
        return type_

    def do_reshape(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        x = self.tile(instr.operands[0])
        assert isinstance(type_, TileType)
        if self.layout.threads != 1 and x.type.shape[-1:] != type_.shape[-1:] and x.type.numel != 1:
            self._private(instr)
        order = [x.values[key] for key in sorted(x.values)]
        self.env[instr.results[0]] = Regs(type_, dict(zip(sorted(self.keys(type_.shape)), order, strict=True)))

    def do_transpose(self, instr: Instr) -> None:
        type_, x = self._private(instr), self.tile(instr.operands[0])
        self.env[instr.results[0]] = Regs(type_, {(b, a): v for (a, b), v in x.values.items()})

    def do_scan(self, instr: Instr) -> None:
        """By doubling along the last axis, in the order that every target keeps."""
        type_, x = instr.results[0].type, self.tile(instr.operands[0])
        assert isinstance(type_, TileType)
        if self.layout.spread(type_.shape, len(type_.shape) - 1):
            self.env[instr.results[0]] = scan_tile(self, instr.attrs["fn"], x)
            return
        values, reach = dict(x.values), 1
        while reach < type_.shape[-1]:
            values = {
                key: v if key[-1] < reach else math.combine(self.f, instr.attrs["fn"], type_.dtype, values[(*key[:-1], key[-1] - reach)], v)
                for key, v in values.items()
            }
            reach *= 2
        self.env[instr.results[0]] = Regs(type_, values)

    def do_extract(self, instr: Instr) -> None:
        type_, x, starts = instr.results[0].type, self.tile(instr.operands[0]), instr.attrs["starts"]
        assert isinstance(type_, TileType)
        if x.type.shape[-1] != type_.shape[-1]:  # else every thread keeps its columns
            self._private(instr)
        self.env[instr.results[0]] = Regs(
            type_, {key: x.values[tuple(s + i for s, i in zip(starts, key, strict=True))] for key in self.keys(type_.shape)}
        )

    def do_shuffle(self, instr: Instr) -> None:
        type_, a, b = self._private(instr), self.tile(instr.operands[0]), self.tile(instr.operands[1])
        n, order = a.type.shape[0], instr.attrs["order"]
        picked = {key: divmod(order[key[0]], n) for key in self.keys(type_.shape)}
        self.env[instr.results[0]] = Regs(type_, {key: (a, b)[which].values[(k,)] for key, (which, k) in picked.items()})

    def do_mma(self, instr: Instr) -> None:
        type_ = self._private(instr)
        a, b, acc = (self.tile(x) for x in instr.operands)
        ty, values = elem_type(type_.dtype), dict(acc.values)
        for k in range(a.type.shape[1]):
            for m, n in values:
                x, y = (convert(self.f, t.type.dtype, type_.dtype, t.values[key]) for t, key in ((a, (m, k)), (b, (k, n))))
                values[m, n] = (
                    self.f.fma(ty, x, y, values[m, n])
                    if type_.dtype.is_float
                    else self.f.op("add", ty, self.f.op("mul", ty, x, y), values[m, n])
                )
        self.env[instr.results[0]] = Regs(type_, values)

    # --- memory -------------------------------------------------------------------------------------------------------
    def do_alloc(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, ViewType)
        strides = tuple(str(s) for s in type_.strides)
        if type_.space == "shared" and self.layout.threads != 1:
            self.env[instr.results[0]] = Address(self._shared(alloc_bytes(instr)), strides, type_.dtype, "shared")
            return
        if self.layout.threads != 1:
            raise CompileError(f"cuda: private memory needs programs of one thread, kernel {self.kernel.name} has {self.layout.threads}")
        space = getattr(self.kernel, "workspace", None)
        if space is not None:
            self.env[instr.results[0]] = Address(self._own_part(instr, space), strides, type_.dtype)
            return
        name = f"private{self.private}"
        self.private += 1
        self.k.prologue.append(f"  .local .align 16 .b8 {name}[{alloc_bytes(instr)}];")
        pointer = self.k.value("i64", f"mov.u64 {{}}, {name};")
        self.env[instr.results[0]] = Address(pointer, strides, type_.dtype, "local")

    def _own_part(self, instr: Instr, space: Var) -> str:
        """Where this program's `alloc` lies in the workspace of all programs."""
        allocs = [i for i in self.kernel.walk() if i.op == "alloc"]
        each, before = sum(map(alloc_bytes, allocs)), sum(alloc_bytes(i) for i in allocs[: allocs.index(instr)])
        whole = self.env[space]
        assert isinstance(whole, Address)
        start = self.k.value("i64", f"add.s64 {{}}, {whole.pointer}, {before};")
        return self.k.value("i64", f"mad.lo.s64 {{}}, {self.env[self.kernel.pid]}, {each}, {start};")

    def _shared(self, nbytes: int) -> str:
        """Scratch of this program in shared memory."""
        k, programs = self.k, getattr(self.kernel, "programs", 1)
        each = -(-nbytes // 16) * 16
        at = k.value("i64", f"add.s64 {{}}, {self.shared_base()}, {k.alloc_shared(each * programs)};")
        if programs == 1:
            return at
        tid = k.value("i32", "mov.u32 {}, %tid.x;")
        which = k.value("i32", f"shr.u32 {{}}, {tid}, {self.layout.threads.bit_length() - 1};")
        return k.value("i64", f"mad.wide.u32 {{}}, {which}, {each}, {at};")

    def _view(self, instr: Instr) -> Address:
        var = instr.operands[0]
        assert isinstance(var, Var)
        found = self.env[var]
        assert isinstance(found, Address)
        return found

    def do_subview(self, instr: Instr) -> None:
        view, keep = self._view(instr), instr.attrs["keep"]
        first = access.Access(self, view, [self.ix(x) for x in instr.operands[1:]], (), (), {})
        origin = access.plus(self.f, first.origin, str(first.offset))
        self.env[instr.results[0]] = Address(origin, tuple(view.strides[i] for i in keep), view.dtype, view.space)

    def _access(self, instr: Instr) -> tuple[Address, list[str], dict[int, str], int]:
        view = self._view(instr)
        rank, limited = len(view.strides), instr.attrs.get("limits") or ()
        at = [self.ix(x) for x in instr.operands[1 : 1 + rank]]
        limits = {axis: self.index_register(x) for axis, x in zip(limited, instr.operands[1 + rank :], strict=False)}
        return view, at, limits, 1 + rank + len(limited)

    def do_load(self, instr: Instr) -> None:
        view, at, limits, _ = self._access(instr)
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        if self.pending and not view.early:  # the first load that must wait
            if self.loops:
                raise CompileError(f"cuda: kernel {self.kernel.name} waits for the previous kernel inside a loop or branch")
            self.wait()
            self.pending = False
        if self.pending and view.hint:
            view = replace(view, hint=EARLY)
        ordering.before(self, instr)
        other = instr.attrs.get("other", 0) or 0
        self.env[instr.results[0]] = access.load(self, ordering.qualified(self, view, instr), at, type_, instr.attrs["axes"], limits, other)
        ordering.after(self, instr)

    def wait(self) -> None:
        """All that the previous kernel wrote is in memory from here on."""
        self.k.lines += [WAIT, START] if self.k.starts_after_wait else [WAIT]

    def do_store(self, instr: Instr) -> None:
        view, at, limits, used = self._access(instr)
        ordering.before(self, instr)
        access.store(self, ordering.qualified(self, view, instr), at, self.tile(instr.operands[used]), instr.attrs["axes"], limits)

    def do_atomic(self, instr: Instr) -> None:
        view, at, limits, used = self._access(instr)
        ordering.before(self, instr)
        self.env[instr.results[0]] = ordering.atomic(self, instr, view, at, limits, self.tile(instr.operands[used]))
        ordering.after(self, instr)

    def do_gather(self, instr: Instr) -> None:
        type_ = instr.results[0].type
        assert isinstance(type_, TileType)
        ordering.before(self, instr)
        masked = bool(instr.attrs.get("masked"))
        values = {key: access._load_piece(one, [()], 0)[0] for key, one in self._elements(instr, masked=masked).items()}
        self.env[instr.results[0]] = Regs(type_, values)

    def do_scatter(self, instr: Instr) -> None:
        view = self._view(instr)
        tile = self.tile(instr.operands[-1])
        if self.tile(instr.operands[1 + len(view.strides)]).type.shape != tile.type.shape:
            raise CompileError(f"cuda: scatter of rows needs a block program (kernel {self.kernel.name})")
        ordering.before(self, instr)
        only = self.first_thread() if self.layout.shared_by_all(tile.type.shape) else None
        for key, one in self._elements(instr, masked=True).items():
            inside = one.inside(())
            inside = only if inside is None else inside if only is None else self.f.op("and", "i1", inside, only)
            access._store_piece(one, [()], [tile.values[key]], inside)

    def _elements(self, instr: Instr, *, masked: bool) -> dict[Key, access.Access]:
        """The accesses of single elements, each at an index of its own; `masked`: those with a negative one are not touched."""
        view, at, _, used = self._access(instr)
        indices, axis = self.tile(instr.operands[used]), instr.attrs["axis"]
        first, step = access.Access(self, view, at, (), (), {}), view.strides[axis]
        origin = first.origin
        narrow = indices.type.dtype is i32 and not step.startswith("%") and abs(int(step) * view.dtype.itemsize) < 1 << 31
        out = {}
        for key, index in indices.values.items():
            inside = self.f.icmp("sge", elem_type(indices.type.dtype), index, "0") if masked else None
            if narrow and index.startswith("%"):
                place = self.k.value("i64", f"mad.wide.s32 {{}}, {index}, {int(step) * view.dtype.itemsize}, {origin};")
            else:
                wide = convert(self.f, indices.type.dtype, i64, index)
                place = access.plus(self.f, origin, access.times(self.f, access.times(self.f, wide, step), str(view.dtype.itemsize)))
            out[key] = one = access.Access(self, replace(view, pointer=place, strides=(), hint=""), [], (), (), {})
            one.known, one.offset = inside, first.offset
        return out

    def do_join(self, instr: Instr) -> None:
        """Tokens became barriers and qualifiers of accesses (`ordering.py`)."""
