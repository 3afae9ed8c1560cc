"""The Hopper matrix product, written as PTX: TMA → swizzled shared memory → `wgmma`, a ring of stages behind mbarriers.

One warpgroup produces (a single thread issues the copies), `consumers` warpgroups multiply 64 rows each; the grid is persistent and
walks the tiles in an order that keeps rows and columns in L2. With `cluster` 2, two neighbouring blocks share the columns: each
loads half of B and multicasts it to both. With `splits`, a cluster of blocks shares one tile: each multiplies a part of K, leaves its
sums in
shared memory, and finishes a part of the columns, adding the sums of all blocks in order. The epilogue is tile IR, run on the
accumulators where they lie (`Fragment`).

K is cut in steps of 128 bytes (64 elements of 16 bits); tiles past an edge read zeros (TMA fills them in) and store nothing. An element is
the tensor cores' own sum over K in steps of 32 bytes, in order, whatever M, N, the batch and the tile are. With `promote`, its sums of
eight-bit floats, which keep fewer bits than f32, are added to f32 registers every so many steps.
"""

from __future__ import annotations

from ....core.dtypes import dtype
from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import GemmKernel
from ....tile.ir import TileType
from ..ptx.text import KernelText, literal, module_text
from ..threads.layout import Key, Regs
from .gemm_pieces import descriptor, promote, wgmma
from .gemm_results import Results, slice_bytes
from .groups import PRODUCTS, Groups
from .stages import RING, Consumer, Producer, Stages, wait

BK = 128  # bytes of K in a step


def dynamic_shared(kernel: GemmKernel) -> int:
    """Bytes of dynamic shared memory, with room to align the ring."""
    ring = stage_bytes(kernel) * kernel.stages + overread_bytes(kernel)
    return ring + results_bytes(kernel) + sums_bytes(kernel) + kept_bytes(kernel) + 1024


def stage_bytes(kernel: GemmKernel) -> int:
    return ((kernel.rows or kernel.bm) + (0 if kernel.kept else kernel.bn)) * BK


def overread_bytes(kernel: GemmKernel) -> int:
    """What the tensor cores read behind the last stage where fewer rows than theirs are copied: it must be memory of the block."""
    return max(0, kernel.bm * BK - stage_bytes(kernel)) if kernel.rows else 0


def kept_bytes(kernel: GemmKernel) -> int:
    """B, where it is read once."""
    return kernel.kept * kernel.bn * BK


def results_bytes(kernel: GemmKernel) -> int:
    """Slices of results, behind the ring."""
    return slice_bytes(kernel) * 2 * kernel.consumers


def sums_bytes(kernel: GemmKernel) -> int:
    """Sums of one block that the others of its cluster read."""
    return kernel.bm * kernel.bn * 4 if kernel.splits > 1 else 0


WORDS = ("tiles_m", "tiles_n", "steps", "tiles")
PRODUCER_REGISTERS = 40
EMPTY = 8 * 16  # bytes from a stage's full barrier to its empty one
KEPT = 8 * 31  # the barrier of what is kept


def emit_gemm(kernel: GemmKernel, target: TargetSpec) -> str:
    return Gemm(kernel).module(target)


class Gemm:
    def __init__(self, kernel: GemmKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=len(kernel.maps))
        self.e = Results(kernel, self.k)
        self.cluster = kernel.cluster
        self.uneven = kernel.splits == 1 and kernel.per_sm == 1  # else registers are few, or all threads sync again
        self.item = dtype(kernel.dtype).itemsize
        self.number = "i32" if kernel.dtype in ("i8", "u8") else "float"  # the type of the sums
        self.a_bytes, self.b_bytes = (kernel.rows or kernel.bm) * BK, kernel.bn * BK

    def module(self, target: TargetSpec) -> str:
        g, k = self.kernel, self.k
        e = self.e
        e.parameters(WORDS)
        self.tiles_m, self.tiles_n, self.steps, self.tiles = (k.value("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i in range(4))
        k.prologue.insert(0, "  .shared .align 8 .b64 bars[32];")
        self._setup()
        producer, end = k.label("producer"), k.label("end")
        joined = k.label("meet") if g.splits > 1 else end
        is_producer = k.value("i1", f"setp.lt.u32 {{}}, {self.tid}, 128;")
        k.emit(f"@{is_producer} bra {producer};")
        self._consume()
        k.emit(f"bra {joined};")
        k.place(producer)
        self._produce(joined)
        k.place(joined)
        if g.splits > 1:
            self._sync()
            k.emit(f"@{is_producer} bra {end};")
            self._finish()
            k.place(end)
        if self.cluster > 1 or g.splits > 1:  # nobody leaves while others read its memory
            self._sync()
        directives = [f".maxntid {g.block}, 1, 1", f".minnctapersm {g.per_sm}"]
        if self.cluster > 1 or g.splits > 1:
            directives.append(f".reqnctapercluster {max(self.cluster, g.splits)}, 1, 1")
        text = k.text(directives, target.cpu)
        mixed = self.number == "i32" and g.dtype != g.dtype_b
        return module_text(target.cpu, RING + text, version="8.4" if mixed else "8.0")

    def _sync(self) -> None:
        """All threads of the cluster, which come one by one."""
        self.k.emit("barrier.cluster.arrive;")
        self.k.emit("barrier.cluster.wait;")

    def _setup(self) -> None:
        k, g = self.k, self.kernel
        self.tid = k.value("i32", "mov.u32 {}, %tid.x;")
        base = k.value("i32", "mov.u32 {}, ring;")
        base = k.value("i32", f"add.u32 {{}}, {base}, 1023;")
        self.base = k.value("i32", f"and.b32 {{}}, {base}, -1024;")
        self.bars = k.value("i32", "mov.u32 {}, bars;")
        self.stages = Stages(k, self.bars, g.stages, 0, EMPTY, g.consumers * self.cluster)
        self.rank = k.value("i32", "mov.u32 {}, %cluster_ctarank;") if self.cluster > 1 else "0"
        self.maps = []
        for i in range(len(g.maps)):
            p = k.value("i64", f"mov.b64 {{}}, map{i};")
            self.maps.append(k.value("i64", f"cvta.param.u64 {{}}, {p};"))
        ready = k.label("ready")
        k.emit(f"@{k.value('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {ready};")
        for s in range(g.stages):
            self.stages.init(s)
        self._rings()
        if g.kept:
            k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}+{KEPT}], 1;")
        for m in self.maps:
            k.emit(f"prefetch.tensormap [{m}];")
        k.emit("fence.mbarrier_init.release.cluster;" if self.cluster > 1 else "fence.proxy.async.shared::cta;")
        k.place(ready)
        if self.cluster > 1:
            k.emit("barrier.cluster.arrive.aligned;")
            k.emit("barrier.cluster.wait.aligned;")
        else:
            k.emit("bar.sync 0;")
        block = k.value("i32", "mov.u32 {}, %ctaid.x;")
        blocks = k.value("i32", "mov.u32 {}, %nctaid.x;")
        shift = max(self.cluster, g.splits).bit_length() - 1
        self.start, self.count = "0", self.steps
        if g.splits > 1:
            self.part = k.value("i32", "mov.u32 {}, %cluster_ctarank;")
            more = k.value("i32", f"add.u32 {{}}, {self.steps}, {g.splits - 1};")
            each = k.value("i32", f"shr.u32 {{}}, {more}, {g.splits.bit_length() - 1};")
            self.start = k.value("i32", f"mul.lo.u32 {{}}, {self.part}, {each};")
            self.count = k.value("i32", f"min.u32 {{}}, {each}, {k.value('i32', f'sub.u32 {{}}, {self.steps}, {self.start};')};")
        self.first = k.value("i32", f"shr.u32 {{}}, {block}, {shift};") if shift else block
        self.hop = k.value("i32", f"shr.u32 {{}}, {blocks}, {shift};") if shift else blocks

    def _rings(self) -> None:
        """Barriers of further rings."""

    # --- tiles --------------------------------------------------------------------------------------------------------
    def _position(self, tile: str) -> tuple[str, str, str]:
        """(row, column, batch) of a tile, in elements: groups of `group` rows of tiles, columns before rows inside a group."""
        k, g = self.k, self.kernel
        v = k.value
        rows = v("i32", f"shr.u32 {{}}, {self.tiles_m}, {self.cluster.bit_length() - 1};") if self.cluster > 1 else self.tiles_m
        area = v("i32", f"mul.lo.u32 {{}}, {rows}, {self.tiles_n};")
        batch = v("i32", f"div.u32 {{}}, {tile}, {area};")
        inside = v("i32", f"rem.u32 {{}}, {tile}, {area};")
        group = g.group // self.cluster
        per = v("i32", f"mul.lo.u32 {{}}, {self.tiles_n}, {group};")
        which = v("i32", f"div.u32 {{}}, {inside}, {per};")
        within = v("i32", f"rem.u32 {{}}, {inside}, {per};")
        first = v("i32", f"mul.lo.u32 {{}}, {which}, {group};")
        height = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {rows}, {first};')}, {group};")
        m = v("i32", f"add.u32 {{}}, {first}, {v('i32', f'rem.u32 {{}}, {within}, {height};')};")
        n = v("i32", f"div.u32 {{}}, {within}, {height};")
        if self.cluster > 1:
            m = v("i32", f"mad.lo.u32 {{}}, {m}, {self.cluster}, {self.rank};")
        return v("i32", f"mul.lo.u32 {{}}, {m}, {g.bm};"), v("i32", f"mul.lo.u32 {{}}, {n}, {g.bn};"), batch

    def _tile_loop(self) -> tuple[str, str, str]:
        k = self.k
        if self.kernel.splits > 1:  # a cluster has one tile
            return self.first, "", ""
        tile = k.reg("i32")
        k.emit(f"mov.u32 {tile}, {self.first};")
        top, done = k.label("tile"), k.label("tiles_done")
        k.place(top)
        k.emit(f"@{k.value('i1', f'setp.ge.u32 {{}}, {tile}, {self.tiles};')} bra {done};")
        return tile, top, done

    def _next_tile(self, tile: str, top: str, done: str) -> None:
        if self.kernel.splits == 1:
            self.k.emit(f"add.u32 {tile}, {tile}, {self.hop};")
            self.k.emit(f"bra {top};")
            self.k.place(done)

    # --- the producer -------------------------------------------------------------------------------------------------
    def _produce(self, end: str) -> None:
        k, g = self.k, self.kernel
        if self.uneven:
            k.emit(f"setmaxnreg.dec.sync.aligned.u32 {PRODUCER_REGISTERS};")
        k.emit(f"@{k.value('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        ring = Producer(k, self.stages)
        load = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        if g.kept:
            full = f"{self.bars}+{KEPT}"
            k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {kept_bytes(g)};")
            for i in range(g.kept):
                k.emit(f"{load} [{self._kept()}+{self.b_bytes * i}], [{self.maps[1]}, {{{self._kept_place(i)}}}], [{full}];")
        tile, top, done = self._tile_loop()
        row, column, batch = self._position(tile)
        self._first_step(row, column)
        step = k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        inner = k.label("copy")
        k.place(inner)
        full = ring.fill(self.a_bytes + (0 if g.kept else self.b_bytes))
        here = k.value("i32", f"add.u32 {{}}, {step}, {self.start};") if self.start != "0" else step
        at = k.value("i32", f"shl.b32 {{}}, {here}, {(BK // self.item).bit_length() - 1};")
        spot = k.value("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.base};")
        batch_a, batch_b = (k.value("i32", f"rem.u32 {{}}, {batch}, {many};") if many else batch for many in g.matrices)
        self._load_a(load, spot, (row, at, batch_a), full)
        if not g.kept:
            self._load_b(load, spot, (column, at, batch_b), full)
        ring.advance()
        self._next_step()
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"@{k.value('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {inner};")
        if g.added is not None:
            self._fetch_added(ring, (row, column, batch))
        self._next_tile(tile, top, done)

    def _kept(self) -> str:
        g = self.kernel
        return self.k.value("i32", f"add.u32 {{}}, {self.base}, {stage_bytes(g) * g.stages + results_bytes(g)};")

    def _kept_place(self, step: int) -> str:
        """Coordinates of a step's part of B."""
        return f"{step * (BK // self.item)}, 0, 0"

    def _load_b(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        """The copies of B's part of a stage; `place` is (column, k, batch)."""
        k, g = self.k, self.kernel
        column, at, batch = place
        share = g.bn // self.cluster
        mask = ""
        if self.cluster > 1:
            load += ".multicast::cluster"
            wide = k.value("half", f"mov.b16 {{}}, {(1 << self.cluster) - 1};")
            mask = f", {wide}"
        offset = k.value("i32", f"mul.lo.u32 {{}}, {self.rank}, {share};") if self.cluster > 1 else "0"
        first = k.value("i32", f"add.u32 {{}}, {column}, {offset};") if self.cluster > 1 else column
        target = k.value("i32", f"mad.lo.u32 {{}}, {offset}, {BK}, {spot};") if self.cluster > 1 else spot
        if g.transposed_b:
            k.emit(f"{load} [{target}+{self.a_bytes}], [{self.maps[1]}, {{{self._b_place(at, first, batch)}}}], [{full}]{mask};")
        else:
            for c in range(share // 64):
                col = k.value("i32", f"add.u32 {{}}, {first}, {64 * c};") if c else first
                k.emit(f"{load} [{target}+{self.a_bytes + 8192 * c}], [{self.maps[1]}, {{{col}, {at}, {batch}}}], [{full}]{mask};")

    def _fetch_added(self, ring: Producer, place: tuple[str, str, str]) -> None:
        """What the epilogue adds takes stages of the ring too, one for every slice of columns, in place of A."""
        k, g, v = self.k, self.kernel, self.k.value
        row, column, batch = place
        for first in range(0, g.bn, g.slice):
            full = ring.fill(g.bm * BK)
            spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.base};")
            at = v("i32", f"add.u32 {{}}, {column}, {first};") if first else column
            load = "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
            k.emit(f"{load} [{spot}], [{self.maps[-1]}, {{{at}, {row}, {batch}}}], [{full}];")
            ring.advance()

    def _first_step(self, row: str, column: str) -> None:
        """Before the copies of a tile that begins here."""

    def _next_step(self) -> None:
        """After the copies of a step."""

    def _load_a(self, load: str, spot: str, place: tuple[str, str, str], full: str) -> None:
        """The copies of A's part of a stage; `place` is (row, k, batch)."""
        k, g = self.k, self.kernel
        row, at, batch = place
        if g.transposed_a:
            for c in range(g.bm // 64):
                col = k.value("i32", f"add.u32 {{}}, {row}, {64 * c};") if c else row
                k.emit(f"{load} [{spot}+{8192 * c}], [{self.maps[0]}, {{{col}, {at}, {batch}}}], [{full}];")
        else:
            k.emit(f"{load} [{spot}], [{self.maps[0]}, {{{at}, {row}, {batch}}}], [{full}];")

    def _b_place(self, at: str, column: str, batch: str) -> str:
        """Coordinates of a stage's part of B in its map, where its rows are along K."""
        return f"{at}, {column}, {batch}"

    # --- the consumers ------------------------------------------------------------------------------------------------
    def _consume(self) -> None:
        k, g = self.k, self.kernel
        registers = {1: 240, 2: 232, 3: 152}[g.consumers]
        if self.uneven:
            k.emit(f"setmaxnreg.inc.sync.aligned.u32 {registers};")
        who = k.value("i32", f"shr.u32 {{}}, {self.tid}, 7;")
        who = k.value("i32", f"sub.u32 {{}}, {who}, 1;")
        mine = k.value("i32", f"mad.lo.u32 {{}}, {who}, 8192, {self.base};")
        desc_a = descriptor(k, mine, transposed=g.transposed_a)
        right = self._kept() if g.kept else k.value("i32", f"add.u32 {{}}, {self.base}, {self.a_bytes};")
        desc_b = descriptor(k, right, transposed=not g.transposed_b)
        lead = k.value("i1", f"setp.eq.u32 {{}}, {k.value('i32', f'and.b32 {{}}, {self.tid}, 127;')}, 0;")
        if self.cluster > 1:  # thread r of the warpgroup tells block r of the cluster
            lane = k.value("i32", f"and.b32 {{}}, {self.tid}, 127;")
            lead = k.value("i1", f"setp.lt.u32 {{}}, {lane}, {self.cluster};")
            who_hears = k.value("i32", f"min.u32 {{}}, {lane}, {self.cluster - 1};")
            self.stages.remote = k.value("i32", f"mapa.shared::cluster.u32 {{}}, {self.bars}, {who_hears};")
        acc = [k.reg(self.number) for _ in range(g.bn // 2)]
        total = [k.reg("float") for _ in acc] if g.promote else acc
        ring = Consumer(k, self.stages)
        previous = k.reg("i32")
        if g.stored:
            self.e.place_staging(k.value("i32", f"add.u32 {{}}, {self.base}, {stage_bytes(g) * g.stages};"), who, self.tid, self.maps[2:])
        if g.kept:
            wait(k, f"{self.bars}+{KEPT}", "0")
        tile, top, done = self._tile_loop()
        row, column, batch = self._position(tile)
        for t in total if g.promote else ():
            k.emit(f"mov.f32 {t}, {literal('float', 0.0)};")
        step = k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        inner = k.label("multiply")
        k.place(inner)
        products = Groups(k, *PRODUCTS)
        before = products.carried(lambda: self.stages.release(previous, k.value("i1", f"and.pred {{}}, {lead}, {more};")))
        start = products.in_flight
        ring.ready()
        more = k.value("i1", f"setp.ne.u32 {{}}, {step}, 0;")
        goes_on = k.value("i1", f"setp.ne.u32 {{}}, {k.value('i32', f'and.b32 {{}}, {step}, {g.promote - 1};')}, 0;") if g.promote else more
        hop = k.value("i32", f"mul.lo.u32 {{}}, {ring.stage}, {stage_bytes(g) >> 4};")
        wide = k.value("i64", f"cvt.u64.u32 {{}}, {hop};")
        across = k.value("i64", f"mul.wide.u32 {{}}, {step}, {self.b_bytes >> 4};") if g.kept else wide
        da, db = (k.value("i64", f"add.s64 {{}}, {d}, {x};") for d, x in ((desc_a, wide), (desc_b, across)))
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(BK // 32):
            step_a, step_b = (128 if t else 2 for t in (g.transposed_a, not g.transposed_b))
            a = k.value("i64", f"add.s64 {{}}, {da}, {step_a * i};") if i else da
            b = k.value("i64", f"add.s64 {{}}, {db}, {step_b * i};") if i else db
            wgmma(k, acc, g, a, b, goes_on if i == 0 else k.truth(True))
        sums = products.commit(lambda: self.stages.release(previous, lead))
        products.wait(before)
        k.emit(f"mov.u32 {previous}, {ring.stage};")
        ring.advance()
        k.emit(f"add.u32 {step}, {step}, 1;")
        ahead = k.value("i1", f"setp.lt.u32 {{}}, {step}, {self.count};")
        if g.promote:
            promote(k, g, acc, total, (step, ahead), lambda: products.wait(sums, sometimes=True))
        products.again(start)
        k.emit(f"@{ahead} bra {inner};")
        products.wait(sums)
        place = (k.value("i32", f"mad.lo.u32 {{}}, {who}, 64, {row};"), column, batch)
        if g.splits > 1:
            self._leave(total, who, place)
            return
        self._epilogue(total, *place, ring=ring, lead=lead)
        self._next_tile(tile, top, done)
        if g.stored:
            self.e.finish()

    # --- sums of a cluster --------------------------------------------------------------------------------------------
    def _leave(self, acc: list[str], who: str, place: tuple[str, str, str]) -> None:
        """This block's sums into its shared memory: four registers (eight columns) of all threads side by side."""
        k, g, v = self.k, self.kernel, self.k.value
        lane = v("i32", f"and.b32 {{}}, {self.tid}, 127;")
        here = v("i32", f"add.u32 {{}}, {self.base}, {stage_bytes(g) * g.stages};")
        here = v("i32", f"mad.lo.u32 {{}}, {who}, {64 * g.bn * 4}, {here};")
        self.sums, self.place = v("i32", f"mad.lo.u32 {{}}, {lane}, 16, {here};"), place
        for i in range(0, len(acc), 4):
            k.emit(f"st.shared.v4.b32 [{self.sums}+{512 * i}], {{{', '.join(acc[i : i + 4])}}};")

    def _finish(self) -> None:
        """This block's share of the columns: the sums of all blocks, in their order."""
        k, g, v = self.k, self.kernel, self.k.value
        width = g.bn // g.splits
        first = v("i32", f"mad.lo.u32 {{}}, {self.part}, {width * 256}, {self.sums};")
        total: list[str] = []
        for s in range(g.splits):
            there = v("i32", f"mapa.shared::cluster.u32 {{}}, {first}, {s};")
            found = [k.reg(self.number) for _ in range(width // 2)]
            for i in range(0, len(found), 4):
                k.emit(f"ld.shared::cluster.v4.b32 {{{', '.join(found[i : i + 4])}}}, [{there}+{512 * i}];")
            add = "add.rn.f32" if self.number == "float" else "add.s32"
            total = found if s == 0 else [v(self.number, f"{add} {{}}, {a}, {b};") for a, b in zip(total, found, strict=True)]
        row, column, batch = self.place
        self._epilogue(total, row, v("i32", f"mad.lo.u32 {{}}, {self.part}, {width}, {column};"), batch)

    def _epilogue(self, acc: list[str], row: str, column: str, batch: str, ring: Consumer | None = None, lead: str = "") -> None:
        g, e, k = self.kernel, self.e, self.k
        assert g.acc is not None and g.row is not None and g.column is not None and g.batch is not None
        assert isinstance(g.acc.type, TileType)
        for var, reg in ((g.row, row), (g.batch, batch)):
            e.env[var] = k.value("i64", f"cvt.u64.u32 {{}}, {reg};")
        wide = k.value("i64", f"cvt.u64.u32 {{}}, {column};")
        for first in range(0, 2 * len(acc), g.slice):
            self.e.corner = (k.value("i32", f"add.u32 {{}}, {column}, {first};") if first else column, row, batch)
            part = acc[first // 2 : (first + g.slice) // 2]
            values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(part)}
            e.env[g.acc] = Regs(g.acc.type, values)
            e.env[g.column] = k.value("i64", f"add.s64 {{}}, {wide}, {first};") if first else wide
            if g.added is None:
                e.block(g.body)
                continue
            assert ring is not None
            ring.ready()
            e.place_added(k.value("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.base};"))
            e.block(g.body)  # its stores have a barrier after the loads
            self.stages.release(ring.stage, lead)
            ring.advance()
