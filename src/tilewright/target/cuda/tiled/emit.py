"""Block programs → PTX: every tile is spread over the threads of a block in the layout that `plan` gives it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ....core.dtypes import f32, i32
from ....core.errors import CompileError
from ....core.target_spec import TargetSpec
from ....kernels.cuda.tiled import TiledKernel
from ....tile.ir import Block, Instr, Operand, TileType, Type, Var
from ..arithmetic import math
from ..arithmetic.convert import convert, narrow_pair
from ..ptx.text import arch_number, literal, module_text
from ..threads.access import Address, plus, times
from ..threads.control import Control
from ..threads.layout import elem_type
from .dots import Area, multiply, store_operand
from .gathers import gather, scatter
from .layout import Layout, Shape
from .memory import Access, SharedMemory, axis_bits, load_piece, pieces, store_piece
from .pipeline import pipelined, preload, stage
from .plan import Plan, plan, spread_out, sums_in_place, tile, unit_axis
from .reduce import reduce_tiles
from .roles import Ring, consume, emit_roles, fill, produce
from .values import Spread

SHARED = "ring"
SHARED_BYTES: dict[str, int] = {}  # by name: a kernel's name is a hash of all that it is


def emit_tiled(kernel: TiledKernel, target: TargetSpec) -> str:
    """The PTX module of a block program; `SHARED_BYTES` has the shared memory of its launches from then on."""
    return TiledEmitter(kernel, target).module()


class _Block:
    """What the base emitter asks of a layout: how many threads a program has."""

    def __init__(self, threads: int) -> None:
        self.threads = threads


class TiledEmitter(Control):
    def __init__(self, kernel: TiledKernel, target: TargetSpec, whole: TiledEmitter | None = None) -> None:
        """`whole`: this is the part of its producers."""
        super().__init__(kernel, _Block(kernel.threads), None if whole is None else whole.k)  # type: ignore[arg-type]
        self.tiled, self.target, self.whole = kernel, target, whole
        self.plan: Plan = plan(kernel, arch=target.cpu, staged=None if whole is None else whole.plan.staged)
        self.memory = SharedMemory()
        self.areas: dict[Var, Area] = {}  # operands of products in shared memory
        self.ahead: set[Instr] = set()  # staged loads that a loop's pipeline has copied
        self._positions: dict[Any, str] = {}
        self.named = "bar.sync 0;"
        self.in_place = sums_in_place(kernel, self.plan)
        self.in_flight = 0  # groups of products of this iteration
        self.rings: dict[Instr, Ring] = {}
        self.around: dict[int, tuple[Callable[[], None], Callable[[], None]]] = {}  # what is done before and after a block
        self.preloaded: dict[Instr, tuple[int, list[Instr]]] = {}  # loops' rings of which the first stages have some operands
        self.done: set[Instr] = set()
        self.current: Ring | None = None  # that a producer fills: where its stage begins, and the barrier that copies tell
        self.filled = self.full = ""

    def step(self, instr: Instr) -> None:
        if instr not in self.done:
            super().step(instr)

    def producer(self, kernel: TiledKernel, rings: dict[Instr, Ring]) -> TiledEmitter:
        """The emitter of the producers' part."""
        out = TiledEmitter(kernel, self.target, self)
        out.env.update({p: self.env[p] for p in (*kernel.params, kernel.pid)})
        out.rings = rings
        out.memory.top = out.memory.peak = self.memory.peak
        return out

    def map_address(self, number: int) -> str:
        generic = self.prologue("i64", f"mov.b64 {{}}, map{number};")
        return self.prologue("i64", f"cvta.param.u64 {{}}, {generic};")

    def as_register(self, text: str) -> str:
        return text if text.startswith("%") else self.k.value("i64", f"mov.b64 {{}}, {text};")

    def module(self) -> str:
        self.k.maps = len(self.tiled.maps)
        several = self.tiled.beside > 1
        self.parameters(["grid"] if several else [])
        block = self.block_number()
        self.env[self.kernel.pid] = self.inside_grid(block) if several else self.k.value("i64", f"cvt.u64.u32 {{}}, {block};")
        if self.tiled.producers:
            emit_roles(self)
        else:
            if self.tiled.early and arch_number(self.target.cpu) >= 90:
                preload(self)
            self.block(self.kernel.body)
        per = [f".minnctapersm {self.tiled.per_sm}"] if self.tiled.per_sm > 1 or self.tiled.producers else []
        text = self.k.text([f".maxntid {self.tiled.block}, 1, 1", *per], self.target.cpu)
        shared = f".extern .shared .align 1024 .b8 {SHARED}[];\n\n" if self.memory.peak else ""
        limit = self.target.l1d - 1024
        if self.memory.peak > limit:
            raise CompileError(
                f"cuda: kernel {self.kernel.name} needs {self.memory.peak} bytes of shared memory, {limit} fit on {self.target.cpu};"
                " fewer stages or smaller tiles fit"
            )
        SHARED_BYTES[self.kernel.name] = self.memory.peak
        version = "8.4" if ".e4m3" in text or ".e5m2" in text else "8.0"
        return module_text(self.target.cpu, shared + math.tables(text) + text, version=version)

    # --- threads ------------------------------------------------------------------------------------------------------
    def prologue(self, ty: str, text: str) -> str:
        """A value of the kernel's start: it does not change in the kernel."""
        if text not in self._positions:
            reg = self.k.reg(ty)
            self.k.prologue.append("  " + text.replace("{}", reg, 1))
            self._positions[text] = reg
        return self._positions[text]

    @property
    def tid(self) -> str:
        """The thread's number among those of its role."""
        all_ = self.prologue("i32", "mov.u32 {}, %tid.x;")
        return all_ if self.whole is None else self.prologue("i32", f"sub.u32 {{}}, {all_}, {self.whole.tiled.threads};")

    def thread_bits(self, bits: tuple[tuple[int, int], ...]) -> str:
        """A number made of bits of the thread's number: (thread bit, result bit) pairs."""
        parts: list[str] = []
        todo = sorted(bits)
        while todo:
            first, to = todo[0]
            count = 1
            while count < len(todo) and todo[count] == (first + count, to + count):
                count += 1
            part = self.prologue("i32", f"bfe.u32 {{}}, {self.tid}, {first}, {count};")
            parts.append(self.prologue("i32", f"shl.b32 {{}}, {part}, {to};") if to else part)
            todo = todo[count:]
        out = parts[0] if parts else "0"
        for p in parts[1:]:
            out = self.prologue("i32", f"or.b32 {{}}, {out}, {p};")
        return out

    def coordinate(self, layout: Layout, shape: Shape, axis: int, *, wide: bool = False) -> str:
        """This thread's part of the coordinates of its elements along an axis."""
        first, count = axis_bits(shape, axis)
        bits = tuple((i, b - first) for i, b in enumerate(layout.threads) if b is not None and first <= b < first + count)
        out = self.thread_bits(bits)
        return self.prologue("i64", f"cvt.u64.u32 {{}}, {out};") if wide and out != "0" else out

    def room(self, limit: str, layout: Layout, shape: Shape, axis: int) -> str:
        """How many elements along an axis are inside, counted from this thread's first."""
        k = self.k
        if not limit.startswith("%"):
            inside = k.value("i32", f"mov.b32 {{}}, {max(0, min(int(limit), shape[axis]))};")
        else:
            low = k.value("i64", f"max.s64 {{}}, {limit}, 0;")
            inside = k.value("i32", f"cvt.u32.u64 {{}}, {k.value('i64', f'min.s64 {{}}, {low}, {shape[axis]};')};")
        mine = self.coordinate(layout, shape, axis)
        return inside if mine == "0" else k.value("i32", f"sub.s32 {{}}, {inside}, {mine};")

    def first_copy(self, layout: Layout) -> str | None:
        """True in one of the threads that hold copies of the same elements; None: there are no copies."""
        mask = sum(1 << i for i in layout.copies())
        if not mask:
            return None
        return self.prologue("i1", f"setp.eq.u32 {{}}, {self.prologue('i32', f'and.b32 {{}}, {self.tid}, {mask};')}, 0;")

    # --- shared memory ------------------------------------------------------------------------------------------------
    @property
    def shared(self) -> str:
        return self.prologue("i32", f"mov.u32 {{}}, {SHARED};")

    def touch(self, at: int, nbytes: int, *, write: bool) -> None:
        """An access of shared memory: behind a barrier where another thread's access comes before it."""
        if self.memory.conflicts(at, nbytes, write):
            self.barrier()
        self.memory.touch(at, nbytes, write)

    def barrier(self) -> None:
        self.k.emit(self.named)
        self.memory.touched.clear()

    # --- values -------------------------------------------------------------------------------------------------------
    def spread(self, x: Operand, layout: Layout | None = None) -> Spread:
        """A tile, in a layout of its own or in the one that is asked for."""
        found = self.tile(x)
        assert isinstance(found, Spread)
        if layout is None or found.layout == layout:
            return found
        if found.type.numel == 1 or (len(set(found.values.values())) == 1 and not next(iter(found.values.values())).startswith("%")):
            return Spread(found.type, layout, dict.fromkeys(range(layout.count), next(iter(found.values.values()))))
        return self.converted(found, layout)

    def converted(self, x: Spread, layout: Layout) -> Spread:
        """The same tile in another layout: by renaming registers where threads keep their elements, else through shared memory."""
        if set(x.layout.regs) == set(layout.regs) and x.layout.threads == layout.threads:
            at = {x.layout.offset(r): v for r, v in x.values.items()}
            return Spread(x.type, layout, {r: at[layout.offset(r)] for r in range(layout.count)})
        dtype = x.type.dtype
        held = dtype if not dtype.is_bool else i32
        values = {r: self.f.select("i32", v, "1", "0") for r, v in x.values.items()} if dtype.is_bool else dict(x.values)
        whole = TileType(x.type.shape, held)
        mark = self.memory.top
        nbytes = whole.numel * held.itemsize
        base = self.memory.take(nbytes, 128)
        self.touch(base, nbytes, write=True)
        guard = self.first_copy(x.layout)
        for run in pieces(x.layout, (whole.numel,), 0, 16 // held.itemsize):
            store_piece(self, held, self._flat(x.layout, run[0], held.itemsize, base), [values[r] for r in run], guard, "st.shared")
        self.touch(base, nbytes, write=False)
        out: dict[int, str] = {}
        for run in pieces(layout, (whole.numel,), 0, 16 // held.itemsize):
            place = self._flat(layout, run[0], held.itemsize, base)
            out.update(zip(run, load_piece(self, held, place, len(run), None, 0, "ld.shared"), strict=True))
        self.memory.top = mark
        if dtype.is_bool:
            out = {r: self.f.icmp("ne", "i32", v, "0") for r, v in out.items()}
        return Spread(x.type, layout, out)

    def _flat(self, layout: Layout, register: int, item: int, base: int) -> tuple[str, int]:
        """An element's place in a flat array in shared memory whose 16-byte chunks are swizzled by eights of 128 bytes."""
        bits = tuple((i, b) for i, b in enumerate(layout.threads) if b is not None)
        mine = self.thread_bits(bits)
        known = layout.offset(register) * item
        known ^= known >> 3 & 0x70
        low = known & 0x70
        if mine == "0":
            return self.shared, base + known
        scaled = self.prologue("i32", f"mul.lo.u32 {{}}, {mine}, {item};")
        turned = self.prologue("i32", f"and.b32 {{}}, {self.prologue('i32', f'shr.u32 {{}}, {scaled}, 3;')}, 112;")
        scaled = self.prologue("i32", f"xor.b32 {{}}, {scaled}, {turned};")
        if low:
            scaled = self.prologue("i32", f"xor.b32 {{}}, {scaled}, {low};")
        return self.prologue("i32", f"add.u32 {{}}, {scaled}, {self.shared};"), base + known - low

    def result(self, instr: Instr, make: Callable[[Layout, Shape], dict[int, str]]) -> None:
        out = instr.results[0]
        assert isinstance(out.type, TileType)
        layout = self.plan.layouts[out]
        self.env[out] = Spread(out.type, layout, make(layout, out.type.shape))
        self._keep(out)

    def _keep(self, out: Var) -> None:
        """A computed operand of a product goes to shared memory as soon as it is there."""
        if out in self.plan.stored:
            store_operand(self, out)

    def elementwise(self, instr: Instr, emit: Callable[..., str]) -> None:
        out = instr.results[0]
        layout, shape = self.plan.layouts[out], tile(out).shape
        xs, picks = [], []
        for x in instr.operands:
            small = tile(x).shape
            xs.append(self.spread(x, layout.project(shape, small)))
            picks.append(layout.picks(shape, small))
        dtype = xs[-1].type.dtype
        self.result(
            instr, lambda lay, s: {r: emit(dtype, *(x.values[p[r]] for x, p in zip(xs, picks, strict=True))) for r in range(lay.count)}
        )

    def do_cast(self, instr: Instr) -> None:
        target, source = tile(instr.results[0]).dtype, tile(instr.operands[0]).dtype
        if target.name not in ("bf16", "f16"):
            self.elementwise(instr, lambda dt, v: convert(self.f, source, target, v))
            return

        def make(layout: Layout, shape: Shape) -> dict[int, str]:
            x = self.spread(instr.operands[0], layout)
            wide = [convert(self.f, source, f32, x.values[r]) for r in range(layout.count)]
            wide = [v if v.startswith("%") else self.k.value("float", f"mov.f32 {{}}, {v};") for v in wide]
            if len(wide) == 1:
                return {0: convert(self.f, f32, target, wide[0])}
            return {r + i: v for r in range(0, len(wide), 2) for i, v in enumerate(narrow_pair(self.f, target, wide[r], wide[r + 1]))}

        self.result(instr, make)

    def do_full(self, instr: Instr) -> None:
        text = self.constant(tile(instr.results[0]).dtype, instr.attrs["value"])
        self.result(instr, lambda layout, shape: dict.fromkeys(range(layout.count), text))

    def do_iota(self, instr: Instr) -> None:
        axis, dtype = instr.attrs["axis"], tile(instr.results[0]).dtype

        def make(layout: Layout, shape: Shape) -> dict[int, str]:
            mine = self.coordinate(layout, shape, axis)
            first, count = axis_bits(shape, axis)
            made: dict[int, str] = {}
            out = {}
            for r in range(layout.count):
                c = layout.offset(r) >> first & ((1 << count) - 1)
                if c not in made:
                    whole = str(c) if mine == "0" else mine if c == 0 else self.k.value("i32", f"add.u32 {{}}, {mine}, {c};")
                    made[c] = literal(elem_type(dtype), c) if mine == "0" else convert(self.f, i32, dtype, whole)
                out[r] = made[c]
            return out

        self.result(instr, make)

    def do_reshape(self, instr: Instr) -> None:
        if instr.results[0] in self.plan.virtual:
            return  # products read the rows of a box from shared memory
        self.result(instr, lambda layout, shape: dict(self.spread(instr.operands[0], layout).values))

    def do_transpose(self, instr: Instr) -> None:
        out = instr.results[0]
        if out in self.plan.virtual:
            return  # products read it transposed from shared memory
        root = instr.operands[0]
        back = self.plan.layouts[out].transposed(tile(out).shape)
        self.result(instr, lambda layout, shape: dict(self.spread(root, back).values))

    def do_reduce(self, instr: Instr) -> None:
        together, later = [instr], {*instr.results}  # reductions of what is known already share a barrier
        for i in self.rest:
            if i.op == "reduce" and i.operands[0] not in later:
                together.append(i)
            later.update(i.results)
        jobs = [(i.attrs["fn"], self.spread(i.operands[0]), i.attrs["axis"]) for i in together]
        for out, found in zip((i.results[0] for i in together), reduce_tiles(self, jobs), strict=True):
            self.env[out] = found
            if found.layout != self.plan.layouts[out]:
                self.env[out] = self.spread(out, self.plan.layouts[out])
        self.done.update(together[1:])

    def do_mma(self, instr: Instr) -> None:
        multiply(self, instr)

    def _scalar(self, instr: Instr, value: str) -> None:
        self.result(instr, lambda layout, shape: {0: value})

    # --- memory -------------------------------------------------------------------------------------------------------
    def view(self, instr: Instr) -> Address:
        found = self.env[instr.operands[0]]  # type: ignore[index]
        assert isinstance(found, Address)
        return found

    def do_subview(self, instr: Instr) -> None:
        view, keep = self.view(instr), instr.attrs["keep"]
        offset = "0"
        for x, stride in zip(instr.operands[1:], view.strides, strict=True):
            offset = plus(self.f, offset, times(self.f, self.ix(x), stride))
        origin = plus(self.f, view.pointer, times(self.f, offset, str(view.dtype.itemsize)))
        self.env[instr.results[0]] = Address(origin, tuple(view.strides[i] for i in keep), view.dtype, view.space)

    def positions(self, instr: Instr) -> tuple[list[str], dict[int, str], int]:
        """Where an access begins, its limits, and how many operands both take with the view."""
        rank, limited = len(self.view(instr).strides), instr.attrs.get("limits") or ()
        at = [self.ix(x) for x in instr.operands[1 : 1 + rank]]
        limits = {axis: self.ix(x) for axis, x in zip(limited, instr.operands[1 + rank :], strict=False)}
        return at, limits, 1 + rank + len(limited)

    def vector(self, instr: Instr) -> int:
        view = instr.operands[0]
        assert isinstance(view, Var)
        return self.tiled.vector(view.name)

    def do_load(self, instr: Instr) -> None:
        if instr in self.plan.staged:
            if self.whole is not None:
                fill(self, instr)
            elif instr not in self.ahead:
                stage(self, instr)
            return
        view = self.view(instr)
        at, limits, _ = self.positions(instr)

        def make(layout: Layout, shape: Shape) -> dict[int, str]:
            access = Access(self, view, at, shape, instr.attrs["axes"], layout, limits)
            out: dict[int, str] = {}
            seen: dict[tuple[str, int], list[str]] = {}
            for run in pieces(layout, shape, unit_axis(instr), self.vector(instr)):
                position = layout.offset(run[0])
                inside, place = access.inside(position), access.place(position)
                if inside is not None or place not in seen:  # strides of 0 read one element again and again
                    seen[place] = load_piece(self, view.dtype, place, len(run), inside, instr.attrs.get("other", 0) or 0, "ld.global")
                out.update(zip(run, seen[place], strict=True))
            return out

        self.result(instr, make)

    def do_store(self, instr: Instr) -> None:
        view = self.view(instr)
        at, limits, used = self.positions(instr)
        x = instr.operands[used]
        shape = tile(x).shape
        tile_ = self.spread(x, self._stored_as(instr, x))
        layout = tile_.layout
        access = Access(self, view, at, shape, instr.attrs["axes"], layout, limits)
        only = self.first_copy(layout)
        for run in pieces(layout, shape, unit_axis(instr), self.vector(instr)):
            inside = access.inside(layout.offset(run[0]))
            if only is not None:
                inside = only if inside is None else self.f.op("and", "i1", inside, only)
            store_piece(self, view.dtype, access.place(layout.offset(run[0])), [tile_.values[r] for r in run], inside, "st.global")

    def _stored_as(self, instr: Instr, x: Operand) -> Layout | None:
        """The layout a tile is stored from: its own, unless whole rows of a large tile make wider stores than it allows."""
        t, axis = tile(x), unit_axis(instr)
        own = self.spread(x).layout
        if axis is None or t.numel < 32 * self.tiled.threads // t.dtype.itemsize:
            return None
        if not self.fits(t):
            return None
        wanted = min(16 // t.dtype.itemsize, self.vector(instr))
        if own.run(axis_bits(t.shape, axis)[0]) >= wanted or wanted * t.dtype.itemsize < 8:
            return None
        return spread_out(self.tiled, t, axis, wanted)

    def fits(self, t: TileType) -> bool:
        """Whether a tile can change its layout through shared memory."""
        return self.memory.top + t.numel * t.dtype.itemsize <= self.target.l1d - 2048

    def do_gather(self, instr: Instr) -> None:
        if instr in self.plan.staged:
            if self.whole is not None:
                fill(self, instr)
            elif instr not in self.ahead:
                stage(self, instr)
            return
        self.result(instr, lambda layout, shape: gather(self, instr, layout, shape))

    def do_scatter(self, instr: Instr) -> None:
        scatter(self, instr)

    def do_alloc(self, instr: Instr) -> None:
        raise CompileError(f"cuda: kernel {self.kernel.name}: a block program places its own shared memory, got alloc")

    def do_join(self, instr: Instr) -> None:
        """Accesses of global memory in one program are ordered by the barriers of shared memory only: tokens have no part here."""
        raise CompileError(f"cuda: kernel {self.kernel.name}: tokens between accesses of global memory are not supported in block programs")

    # --- control ------------------------------------------------------------------------------------------------------
    def do_for(self, instr: Instr) -> None:
        if instr in self.rings:
            (produce if self.whole is not None else consume)(self, instr)
        elif any(i in self.plan.staged for i in instr.blocks[0].body):
            pipelined(self, instr)
        else:
            self.plain_for(instr)

    def plain_for(self, instr: Instr) -> None:
        self.memory.anything()
        self._match_carried(instr)
        super().do_for(instr)
        self.memory.anything()

    def _match_carried(self, instr: Instr) -> None:
        """Initial values in the layout that the loop carries."""
        for init, p in zip(instr.operands[2:], instr.blocks[0].params[1:], strict=True):
            if isinstance(p.type, TileType):
                assert isinstance(init, Var)
                self.env[init] = self.spread(init, self.plan.layouts[p])

    def block(self, block: Block) -> None:
        mark = self.memory.top
        before, after = self.around.get(id(block), (None, None))
        if before is not None:
            before()
        super().block(block)
        if after is not None:
            after()
        self.memory.top = mark
        for y, p in zip(block.yields, block.params[1:], strict=False):
            if isinstance(y, Var) and isinstance(y.type, TileType):
                self.env[y] = self.spread(y, self.plan.layouts[p])

    def carry(self, types: Sequence[Type], yields: Sequence[Operand], held: Sequence[Any]) -> None:
        """Products that were added to the carried registers themselves are there already."""
        all_ = list(zip(types, yields, held, strict=True))
        moved = [(t, y, h) for t, y, h in all_ if not (isinstance(h, Spread) and self.tile(y).values is h.values)]
        super().carry([t for t, _, _ in moved], [y for _, y, _ in moved], [h for _, _, h in moved])

    def do_if(self, instr: Instr) -> None:
        before = list(self.memory.touched)
        super().do_if(instr)
        self.memory.touched += before
