"""Warp roles of a block program: further warps copy the operands of loops' products to shared memory, the others compute.

Every loop that stages operands has a ring. A stage is filled by TMA (one thread asks for it) where its view has a tensor map, else by
`cp.async` of all producer threads, and has two mbarriers: `full` counts the bytes of TMA and the threads whose copies have landed,
`empty` the consumer warps that have read it. Producers run what the copies' addresses depend on and the loops around
them, nothing else, as a program of their own: their tiles of indices are spread over their own threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ....core.errors import CompileError
from ....tile.ir import Block, Instr, Operand, Var
from ..matmul.stages import Ring as Turns
from .dots import Area
from .pipeline import copy, rest_of_body
from .plan import tile, unit_axis

if TYPE_CHECKING:
    from .emit import TiledEmitter

BARRIERS = 1024  # bytes in front of the rings
REGISTERS = 65536  # registers of an SM
LEAN, GATHERING = 40, 88  # registers of a producer thread


@dataclass(eq=False)
class Ring:
    """The stages of one loop: where they lie, and their barriers (bytes from the start of shared memory)."""

    staged: list[Instr]
    offsets: dict[Instr, int]
    size: int  # bytes of a stage
    stages: int
    at: int
    bars: int
    mapped: dict[Instr, int]  # loads by TMA: the number of the map
    turns: Turns | None = None  # turns of the role that is being written
    previous: str = ""  # the stage whose products may be in flight

    @property
    def threads(self) -> bool:
        """Some operand is copied by the producer's threads."""
        return len(self.mapped) < len(self.staged)

    def barrier(self, e: TiledEmitter, stage: str, *, empty: bool = False) -> str:
        place = e.k.value("i32", f"mad.lo.u32 {{}}, {stage}, 8, {e.shared};")
        return f"{place}+{self.bars + (8 * self.stages if empty else 0)}"


def pipelined_loops(e: TiledEmitter) -> list[Instr]:
    return [i for i in e.kernel.walk() if i.op == "for" and any(x in e.plan.staged for x in i.blocks[0].body)]


def emit_roles(e: TiledEmitter) -> None:
    """The body of a kernel with producers: barriers, then one branch for each role."""
    k, kernel = e.k, e.tiled
    loops = pipelined_loops(e)
    if not loops:
        raise CompileError(f"cuda: kernel {kernel.name}: there is no loop for its producers")
    e.memory.take(BARRIERS)
    numbers = {name: i for i, (name, _) in enumerate(kernel.mapped)}
    bars = 0
    for loop in loops:
        staged = [i for i in loop.blocks[0].body if i in e.plan.staged]
        offsets, size = {}, 0
        for i in staged:
            offsets[i] = size
            size += e.plan.staged[i].nbytes
        views = {i: i.operands[0].name for i in staged if isinstance(i.operands[0], Var)}
        mapped = {i: numbers[views[i]] for i in staged if views[i] in numbers and _as_mapped(e, i, numbers[views[i]])}
        ring = e.rings[loop] = Ring(staged, offsets, size, kernel.stages, e.memory.take(size * kernel.stages), bars, mapped)
        bars += 16 * ring.stages
    if bars > BARRIERS:
        raise CompileError(f"cuda: kernel {kernel.name}: {bars // 8} barriers, {BARRIERS // 8} fit")
    tid = k.value("i32", "mov.u32 {}, %tid.x;")
    ready, produce, end = k.label("ready"), k.label("produce"), k.label("end")
    k.emit(f"@{k.value('i1', f'setp.ne.u32 {{}}, {tid}, 0;')} bra {ready};")
    for ring in e.rings.values():
        full = (32 * kernel.producers if ring.threads else 0) + (1 if ring.mapped else 0)
        for first, arrivals in ((ring.bars, full), (ring.bars + 8 * ring.stages, kernel.warps)):
            for s in range(ring.stages):
                k.emit(f"mbarrier.init.shared::cta.b64 [{e.shared}+{first + 8 * s}], {arrivals};")
    for number in range(len(kernel.maps)):
        k.emit(f"prefetch.tensormap [{e.map_address(number)}];")
    k.emit("fence.proxy.async.shared::cta;")
    k.place(ready)
    k.emit("bar.sync 0;")
    k.emit(f"@{k.value('i1', f'setp.ge.u32 {{}}, {tid}, {kernel.threads};')} bra {produce};")
    threads = any(r.threads for r in e.rings.values())
    lean = GATHERING if threads else LEAN
    groups = kernel.warps // 4
    most = min(240, (REGISTERS // kernel.per_sm // 128 - lean) // groups // 8 * 8) if kernel.warps % 4 == 0 else 0
    uneven = most * groups + lean > REGISTERS // kernel.per_sm // (128 * (groups + 1)) * (groups + 1) or groups > 1
    uneven = uneven and most > REGISTERS // kernel.per_sm // (128 * (groups + 1))
    if uneven:
        k.emit(f"setmaxnreg.inc.sync.aligned.u32 {most};")
    _turns(e, phase=0)
    e.named = f"bar.sync 1, {kernel.threads};"
    e.block(e.kernel.body)
    k.emit(f"bra {end};")
    k.place(produce)
    if uneven:
        k.emit(f"setmaxnreg.dec.sync.aligned.u32 {lean};")
    rings: dict[Instr, Ring] = {}
    body = Block(e.kernel.body.params, _kept(e, e.kernel.body.body, rings), [])
    p = e.producer(replace(kernel, body=body, warps=kernel.producers, producers=0), rings)
    if not threads:
        k.emit(f"@{k.value('i1', f'setp.ne.u32 {{}}, {p.tid}, 0;')} bra {end};")
    _turns(p, phase=1)
    p.named = f"bar.sync 2, {32 * kernel.producers};"
    p.block(p.kernel.body)
    e.memory.peak = max(e.memory.peak, p.memory.peak)
    k.place(end)


def _turns(e: TiledEmitter, *, phase: int) -> None:
    for ring in e.rings.values():
        ring.turns = Turns(e.k, ring.stages, phase=phase)
        ring.previous = e.k.value("i32", "mov.b32 {}, -1;")


def _as_mapped(e: TiledEmitter, i: Instr, number: int) -> bool:
    """Whether a tensor map writes what the products read: the same contiguous axis, rows of the same swizzle."""
    shared, box = e.plan.staged[i], e.tiled.maps[number].box
    axis = unit_axis(i)
    return axis is not None and i.attrs["axes"][axis] == e.tiled.mapped[number][1][0] and box[0] * shared.dtype.itemsize == shared.pitch


def _walk(body: list[Instr]) -> Iterator[Instr]:
    for i in body:
        yield i
        for b in i.blocks:
            yield from _walk(b.body)


def _kept(e: TiledEmitter, body: list[Instr], rings: dict[Instr, Ring]) -> list[Instr]:
    """What the producers run: the loops around staged loads, and all that the loads' addresses and the loops' ends are computed from.
    `rings` gets the rings of their loops."""
    wanted: set[Operand] = set()
    kept: list[Instr] = []
    for i in reversed(body):
        copied = i
        if i.op == "for" and any(x in e.rings for x in _walk([i])):
            own = i.blocks[0]
            inner = Block(own.params[:1], _kept(e, own.body, rings))
            copied = Instr("for", i.operands[:2], {k: v for k, v in i.attrs.items() if k == "step"}, [], [inner])
            if i in e.rings:
                rings[copied] = e.rings[i]
            used = {x for y in _walk(inner.body) for x in y.operands}
            if used & set(own.params[1:]):
                raise CompileError(f"cuda: kernel {e.kernel.name}: an operand's address depends on a value that its loop carries")
            wanted |= used
        elif not any(i in r.staged for r in e.rings.values()):
            if not any(r in wanted for r in i.results):
                continue
            if i.blocks or i.op in ("store", "atomic", "mma"):
                raise CompileError(f"cuda: kernel {e.kernel.name}: an operand's address depends on more than arithmetic")
        kept.insert(0, copied)
        wanted.update(copied.operands)
    return kept


# --- consumers --------------------------------------------------------------------------------------------------------
def consume(e: TiledEmitter, instr: Instr) -> None:
    """A loop whose operands arrive in its ring. Products that only the next iteration adds to stay in flight for one iteration."""
    ring, k, block = e.rings[instr], e.k, instr.blocks[0]
    body = Block(block.params, rest_of_body(block, ring.staged), block.yields)
    dots = [e.plan.dots[i] for i in _walk(body.body) if i.op == "mma"]
    wgmma = any(d.kind.startswith("wgmma") for d in dots)
    late = bool(dots) and all(d.kind == "wgmma" and d.instr in e.in_place for d in dots)  # no operand is in registers
    lane = e.prologue("i1", f"setp.eq.u32 {{}}, {e.prologue('i32', f'and.b32 {{}}, {e.tid}, 31;')}, 0;")
    turns = ring.turns
    assert turns is not None

    def release(stage: str, when: str) -> None:
        k.emit(f"@{when} mbarrier.arrive.shared::cta.b64 _, [{ring.barrier(e, stage, empty=True)}];")

    def before() -> None:
        turns.wait(ring.barrier(e, turns.stage))
        if wgmma and ring.threads:
            k.emit("fence.proxy.async.shared::cta;")
        base = k.value("i32", f"mad.lo.u32 {{}}, {turns.stage}, {ring.size}, {e.shared};")
        for i in ring.staged:
            e.areas[i.results[0]] = Area(e.plan.staged[i], base, ring.at + ring.offsets[i], ring=True)
        e.in_flight = 0

    def after() -> None:
        if late:
            k.emit(f"wgmma.wait_group.sync.aligned {e.in_flight};")
            there = k.value("i1", f"setp.ge.s32 {{}}, {ring.previous}, 0;")
            release(ring.previous, k.value("i1", f"and.pred {{}}, {there}, {lane};"))
            k.emit(f"mov.u32 {ring.previous}, {turns.stage};")
        else:
            if e.in_flight:
                k.emit("wgmma.wait_group.sync.aligned 0;")
            k.emit("bar.warp.sync -1;")
            release(turns.stage, lane)
        e.in_flight = 0
        turns.advance()

    e.around[id(body)] = before, after
    e.ahead.update(ring.staged)
    e.plain_for(Instr("for", instr.operands, instr.attrs, instr.results, [body]))
    if late:
        k.emit("wgmma.wait_group.sync.aligned 0;")
        there = k.value("i1", f"setp.ge.s32 {{}}, {ring.previous}, 0;")
        release(ring.previous, k.value("i1", f"and.pred {{}}, {there}, {lane};"))
        k.emit(f"mov.b32 {ring.previous}, -1;")
    top = e.kernel.body.body
    if instr in top and not any(i in e.rings for i in _walk(top[top.index(instr) + 1 :])):
        e.memory.top = BARRIERS  # the last loop: its ring is memory like any other
        e.memory.anything()


# --- producers --------------------------------------------------------------------------------------------------------
def produce(e: TiledEmitter, instr: Instr) -> None:
    ring, k = e.rings[instr], e.k
    turns = ring.turns
    assert turns is not None
    one = e.prologue("i1", f"setp.eq.u32 {{}}, {e.tid}, 0;")
    nbytes = sum(_bytes(i) for i in ring.mapped)

    def before() -> None:
        turns.wait(ring.barrier(e, turns.stage, empty=True))
        e.filled = k.value("i32", f"mad.lo.u32 {{}}, {turns.stage}, {ring.size}, {e.shared};")
        e.full = ring.barrier(e, turns.stage)
        e.current = ring
        if nbytes:
            k.emit(f"@{one} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{e.full}], {nbytes};")

    def after() -> None:
        if ring.threads:
            k.emit(f"cp.async.mbarrier.arrive.noinc.shared::cta.b64 [{e.full}];")
        turns.advance()

    e.around[id(instr.blocks[0])] = before, after
    e.plain_for(instr)


def _bytes(i: Instr) -> int:
    t = tile(i.results[0])
    return t.numel * t.dtype.itemsize


def fill(e: TiledEmitter, i: Instr) -> None:
    """The copies of one operand of a stage."""
    ring, k = e.current, e.k
    assert ring is not None
    shared = e.plan.staged[i]
    area = Area(shared, e.filled, ring.at + ring.offsets[i], ring=True)
    if i not in ring.mapped:
        if copy(e, i, area):
            raise CompileError(f"cuda: kernel {e.kernel.name}: producers copy four bytes at least at a time")
        return
    number = ring.mapped[i]
    one = e.prologue("i1", f"setp.eq.u32 {{}}, {e.tid}, 0;")
    at, _, _ = e.positions(i)
    words = [k.value("i32", f"cvt.u32.u64 {{}}, {e.as_register(at[a])};") for a in e.tiled.mapped[number][1]]
    wide = shared.pitch // shared.dtype.itemsize
    name = f"cp.async.bulk.tensor.{len(words)}d.shared::cluster.global.mbarrier::complete_tx::bytes"
    for panel in range(-(-shared.columns // wide)):
        first = k.value("i32", f"add.u32 {{}}, {words[0]}, {panel * wide};") if panel else words[0]
        place = f"{area.base}+{area.at + panel * shared.rows * shared.pitch}"
        k.emit(f"@{one} {name} [{place}], [{e.map_address(number)}, {{{', '.join([first, *words[1:]])}}}], [{e.full}];")


