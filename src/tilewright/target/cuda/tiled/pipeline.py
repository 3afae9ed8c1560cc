"""Operands of products on their way to shared memory: asynchronous copies, ahead of time inside loops.

A loop whose iterations load operands of products keeps a ring of stages: while one is multiplied, the copies of the next ones are in
flight; its first rounds only start copies. (With copies in front of the loop, whose iteration is a constant, the assembler made every copy
of four bytes with a run-time size a zero.) What a copy's address depends on is computed again for the iteration that it belongs to. One
barrier an iteration says both that all threads' copies of this stage have arrived and that all have read the stage that is overwritten
next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ....core.errors import CompileError
from ....tile.ir import Block, Instr, TileType, Var
from ..ptx.text import WAIT
from .dots import Area, put
from .gathers import ElementPlaces, RowPlaces, gather
from .gathers import places as places_of
from .layout import Layout, log2
from .memory import Access, coordinate, load_piece, pieces
from .plan import copy_layout, tile, unit_axis

if TYPE_CHECKING:
    from .emit import TiledEmitter

Finish = Callable[[str | None], None]  # stores what was loaded, where a predicate is true


def stage(e: TiledEmitter, instr: Instr) -> None:
    """An operand that is loaded where nothing can be ahead: copied, and waited for."""
    shared = e.plan.staged[instr]
    at = e.memory.take(shared.nbytes)
    area = Area(shared, e.shared, at)
    e.areas[instr.results[0]] = area
    e.touch(at, shared.nbytes, write=True)
    for finish in copy(e, instr, area):
        finish(None)
    e.k.emit("cp.async.commit_group;")
    e.k.emit("cp.async.wait_group 0;")
    if e.plan.has_wgmma:
        e.k.emit("fence.proxy.async.shared::cta;")


def copy(e: TiledEmitter, instr: Instr, area: Area) -> list[Finish]:
    """Start this thread's copies of a tile. Elements that pass through registers are loaded now; what is given back stores them."""
    shape, shared = tile(instr.results[0]).shape, area.tile
    if len(shape) > 2:
        raise CompileError(f"cuda: kernel {e.kernel.name}: boxes of {len(shape)} axes are copied by TMA alone")
    item, axis = shared.dtype.itemsize, unit_axis(instr)
    inner = 0 if shared.swapped else 1
    layout, vector = copy_layout(e.tiled, instr, shared)
    if vector * item < 4 or (instr.attrs.get("other") or 0):
        return [_by_registers(e, instr, area, layout)]
    columns = log2(shape[1])
    bits = tuple(
        (i, area.bit((b < columns) == (inner == 1), b if b < columns else b - columns))
        for i, b in enumerate(layout.threads)
        if b is not None
    )
    places = area.places(e, bits)
    only = e.first_copy(layout)
    source: RowPlaces | ElementPlaces | Access
    if instr.op == "gather":
        source = places_of(e, instr, layout, shape)
    else:
        at, limits, _ = e.positions(instr)
        source = Access(e, e.view(instr), at, shape, instr.attrs["axes"], layout, limits)
    kind = "cg" if vector * item == 16 else "ca"
    sizes: dict[int, str] = {}
    for run in pieces(layout, shape, axis, vector):
        position = layout.offset(run[0])
        row, column = position >> columns, position & ((1 << columns) - 1)
        to = places(column, row) if shared.swapped else places(row, column)
        pointer, offset = source.place(position)
        size = str(vector * item)
        inside = source.inside(position, but=axis)
        if axis is not None and axis in source.room:  # a piece may end inside: what is past the limit becomes zeros
            c = coordinate(shape, axis, position)
            if c not in sizes:
                room = source.room[axis]
                left = e.k.value("i32", f"sub.s32 {{}}, {room}, {c};") if c else room
                left = e.k.value("i32", f"min.s32 {{}}, {e.k.value('i32', f'max.s32 {{}}, {left}, 0;')}, {vector};")
                sizes[c] = e.k.value("i32", f"mul.lo.s32 {{}}, {left}, {item};") if item > 1 else left
            size = sizes[c]
        if inside is not None:
            size = e.k.value("i32", f"selp.b32 {{}}, {size}, 0, {inside};")
        tail = "" if size == str(vector * item) else f", {size}"
        guard = "" if only is None else f"@{only} "
        e.k.emit(f"{guard}cp.async.{kind}.shared.global [{to[0]}+{to[1]}], [{pointer}+{offset}], {vector * item}{tail};")
    return []


def _by_registers(e: TiledEmitter, instr: Instr, area: Area, layout: Layout) -> Finish:
    """Elements that no asynchronous copy can move one by one: loaded, and stored by whoever calls the result."""
    shape = tile(instr.results[0]).shape
    if instr.op == "gather":
        values = gather(e, instr, layout, shape)
    else:
        at, limits, _ = e.positions(instr)
        access = Access(e, e.view(instr), at, shape, instr.attrs["axes"], layout, limits)
        values = {}
        for run in pieces(layout, shape, unit_axis(instr), e.vector(instr)):
            position = layout.offset(run[0])
            found = load_piece(
                e, area.tile.dtype, access.place(position), len(run), access.inside(position), instr.attrs.get("other", 0) or 0, "ld.global"
            )
            values.update(zip(run, found, strict=True))
    return lambda guard: put(e, area, layout, shape, values, guard)


def _needed(block: Block, staged: list[Instr]) -> list[Instr] | None:
    """The instructions of a loop's body that the staged loads' addresses depend on, in order; None where they depend on a carried value."""
    made = {r: i for i in block.body for r in i.results}
    carried = set(block.params[1:])
    seen: set[Instr] = set()
    stack = list(staged)
    while stack:
        i = stack.pop()
        for x in i.operands:
            if x in carried:
                return None
            if isinstance(x, Var) and x in made and made[x] not in seen:
                seen.add(made[x])
                stack.append(made[x])
    return [i for i in block.body if i in seen]


def rest_of_body(block: Block, staged: list[Instr]) -> list[Instr]:
    """The body without the staged loads and what only they need."""
    return _rest(block, _needed(block, staged) or [], staged)


def _rest(block: Block, needed: list[Instr], staged: list[Instr]) -> list[Instr]:
    """The body without what only the staged loads' addresses are computed from."""
    kept = [i for i in block.body if i not in staged and i not in needed]
    used = {x for i in kept for x in _uses(i)} | set(block.yields)
    for i in reversed(needed):
        if any(r in used for r in i.results):
            kept.append(i)
            used.update(_uses(i))
    order = {i: n for n, i in enumerate(block.body)}
    return sorted(kept, key=order.__getitem__)


def _uses(i: Instr) -> set[Var]:
    """Values that an instruction reads, inside its blocks too."""
    found = {x for x in i.operands if isinstance(x, Var)}
    for b in i.blocks:
        found.update(y for y in b.yields if isinstance(y, Var))
        for inner in b.body:
            found |= _uses(inner)
    return found


def pipelined(e: TiledEmitter, instr: Instr) -> None:
    """A `for` whose staged loads are copied `stages` - 1 iterations ahead."""
    k, block = e.k, instr.blocks[0]
    staged = [i for i in block.body if i in e.plan.staged]
    needed = _needed(block, staged)
    if needed is None:
        raise CompileError(f"cuda: kernel {e.kernel.name}: an operand's address depends on a value that its loop carries")
    if any(i.blocks or i.op in ("store", "atomic", "mma") for i in needed):
        raise CompileError(f"cuda: kernel {e.kernel.name}: an operand's address depends on more than arithmetic inside its loop")
    stages, step = e.tiled.stages, instr.attrs.get("step", 1)
    mark = e.memory.top
    offsets, size = _places(e, staged)
    early = e.preloaded.get(instr)
    ring = e.memory.take(size * stages) if early is None else early[0]
    if early is None:
        e.touch(ring, size * stages, write=True)
    e._match_carried(instr)
    start, stop, carried = instr.operands[0], instr.operands[1], instr.operands[2:]
    types = [r.type for r in instr.results]
    first, last = e.index_register(start), e.index_register(stop)
    counter, ahead = k.reg("i64"), k.reg("i64")
    k.emit(f"sub.s64 {counter}, {first}, {(stages - 1) * step};")  # the first rounds only fetch
    k.emit(f"mov.b64 {ahead}, {first};")
    read, write = k.reg("i32"), k.reg("i32")
    for reg in (read, write):
        k.emit(f"mov.u32 {reg}, {e.shared};")
    end = e.prologue("i32", f"add.u32 {{}}, {e.shared}, {stages * size};")
    held = []
    for t, c in zip(types, carried, strict=True):
        regs, moves = e.carried(t, e.ix(c) if not isinstance(t, TileType) else e.spread(c))
        held.append(regs)
        for m in moves:
            e.move(*m)
    top, none_left, not_yet = k.label("loop"), k.label("no_more"), k.label("not_yet")
    k.place(top)
    k.emit(f"cp.async.wait_group {stages - 2};")
    if e.plan.has_wgmma:
        k.emit("fence.proxy.async.shared::cta;")
    e.barrier()
    more = k.value("i1", f"setp.lt.s64 {{}}, {ahead}, {last};")
    slot = k.value("i32", f"mov.u32 {{}}, {write};")
    k.emit(f"@!{more} bra.uni {none_left};")
    around = dict(e.env)
    e.env[block.params[0]] = ahead
    for i in needed:
        e.step(i)
    there = [] if early is None else early[1]
    stores: list[Finish] = []
    for i in staged:
        if i not in there:
            stores += copy(e, i, Area(e.plan.staged[i], slot, ring + offsets[i], ring=True))
    if there:  # operands of the first rounds are there already
        done = k.label("there")
        late = k.value("i64", f"add.s64 {{}}, {first}, {(stages - 1) * step};")
        k.emit(f"@{k.value('i1', f'setp.lt.s64 {{}}, {ahead}, {late};')} bra.uni {done};")
        for i in there:
            copy(e, i, Area(e.plan.staged[i], slot, ring + offsets[i], ring=True))
        k.place(done)
    e.env.clear()
    e.env.update(around)
    k.place(none_left)
    k.emit("cp.async.commit_group;")
    k.emit(f"add.s64 {ahead}, {ahead}, {step};")
    _advance(e, write, size, end)
    k.emit(f"@{k.value('i1', f'setp.lt.s64 {{}}, {counter}, {first};')} bra.uni {not_yet};")
    k.emit(f"@{k.value('i1', f'setp.ge.s64 {{}}, {counter}, {last};')} bra.uni {not_yet};")  # no iteration at all
    e.loops += 1
    e.env[block.params[0]] = counter
    for p, regs in zip(block.params[1:], held, strict=True):
        e.env[p] = regs
    for i in staged:
        e.areas[i.results[0]] = Area(e.plan.staged[i], read, ring + offsets[i], ring=True)
    e.ahead.update(staged)
    e.block(Block(block.params, _rest(block, needed, staged), block.yields))
    if e.in_flight:
        k.emit("wgmma.wait_group.sync.aligned 0;")
        e.in_flight = 0
    e.loops -= 1
    e.carry(types, block.yields, held)
    _advance(e, read, size, end)
    k.place(not_yet)
    for finish in stores:  # what was loaded into registers had the time of an iteration to arrive
        finish(more)
    k.emit(f"add.s64 {counter}, {counter}, {step};")
    k.emit(f"@{k.value('i1', f'setp.lt.s64 {{}}, {counter}, {last};')} bra.uni {top};")
    k.emit("cp.async.wait_group 0;")
    e.memory.anything()
    e.memory.top = mark
    for result, regs in zip(instr.results, held, strict=True):
        e.env[result] = regs


def _places(e: TiledEmitter, staged: list[Instr]) -> tuple[dict[Instr, int], int]:
    """Where operands lie in a stage, and its bytes."""
    offsets, size = {}, 0
    for i in staged:
        offsets[i] = size
        size += e.plan.staged[i].nbytes
    return offsets, size


def preload(e: TiledEmitter) -> None:
    """Before the wait for the previous kernel: the first stages of operands that are constants, where the kernel's only pipelined loop
    needs nothing but arithmetic on indices for them. What the previous kernel writes is copied by the loop as ever."""
    body = e.kernel.body.body
    loops = [i for i in body if i.op == "for" and any(x in e.plan.staged for x in i.blocks[0].body)]
    if len(loops) != 1:
        return
    loop, block = loops[0], loops[0].blocks[0]
    staged = [i for i in block.body if i in e.plan.staged]
    there = [i for i in staged if isinstance(i.operands[0], Var) and i.operands[0].name in e.tiled.early and i.op == "load"]
    there = [i for i in there if copy_layout(e.tiled, i, e.plan.staged[i])[1] * e.plan.staged[i].dtype.itemsize == 16]
    inner = _needed(block, there)
    if not there or inner is None:
        return
    wanted = {x for i in (*there, *inner) for x in i.operands} | set(loop.operands[:2])
    before: list[Instr] = []
    for i in reversed(body[: body.index(loop)]):
        if any(r in wanted for r in i.results):
            before.insert(0, i)
            wanted.update(i.operands)
    if not all(i.op.startswith("index.") for i in (*before, *inner)):
        return
    for i in before:
        e.step(i)
        e.done.add(i)
    k, stages, step = e.k, e.tiled.stages, loop.attrs.get("step", 1)
    offsets, size = _places(e, staged)
    ring = e.memory.take(size * stages)
    e.touch(ring, size * stages, write=True)
    first, last = e.index_register(loop.operands[0]), e.index_register(loop.operands[1])
    skip, around = k.label("few"), dict(e.env)
    for s in range(stages - 1):
        at = k.value("i64", f"add.s64 {{}}, {first}, {s * step};")
        k.emit(f"@{k.value('i1', f'setp.ge.s64 {{}}, {at}, {last};')} bra.uni {skip};")
        e.env[block.params[0]] = at
        for i in inner:
            e.step(i)
        for i in there:
            copy(e, i, Area(e.plan.staged[i], e.shared, ring + offsets[i] + s * size, ring=True))
        e.env.clear()
        e.env.update(around)
    k.place(skip)
    k.emit("cp.async.commit_group;")
    k.late = True
    k.emit(WAIT.strip())
    e.preloaded[loop] = ring, there


def _advance(e: TiledEmitter, slot: str, size: int, end: str) -> None:
    """The next stage of the ring."""
    e.k.emit(f"add.u32 {slot}, {slot}, {size};")
    e.k.emit(f"@{e.k.value('i1', f'setp.eq.u32 {{}}, {slot}, {end};')} mov.u32 {slot}, {e.shared};")
