"""The backward pass of attention on Hopper in five products, written as PTX: dQ, dK and dV in one sweep.

A block owns 128 keys of one key head; tiles of Q and dO come through a ring of stages. Everything is transposed, so that what a warpgroup
needs as a left operand is in its registers: Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, P = exp(S − logsumexp), dS = P·(dP − δ), dV += Pᵀ·dO, dK += dSᵀ·Q. dS
also goes to shared memory, where both warpgroups take their part of dQ = dS·K.

dQ is a sum over blocks. A warp of the producer's warpgroup adds a tile to memory when it is the block's turn, which a counter per tile of
queries says: blocks of higher keys first. So every sum has one order, and no block waits for one that starts after it: blocks take
numbers from a counter when they start, and higher keys have lower numbers. Between causal blocks the turns come by themselves, because
every block begins at its diagonal. What is added has the order of the registers; `finish` scales it and writes it as rows.

Rows past an end are zeros with an infinite logsumexp, which weighs nothing; so does a row that sees no key. Keys past the end are masked.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import FlashGradKernel
from ..matmul.gemm_pieces import matrix_descriptor, wgmma_registers, wgmma_shared
from ..matmul.groups import COPIES, PRODUCTS, Groups
from ..matmul.stages import RING, Filler, Reader, Stages, wait
from ..ptx.text import literal, module_text
from .flash_finish import PART, Finish
from .flash_grad_extras import Extras
from .flash_stats import ZERO

KEYS = 128  # of a block, 64 for each of two warpgroups
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240
ADDERS = 3  # warps that take turns in adding dQ to memory: one waits for its write while the next asks for its turn
EXCHANGE, EMPTY, FULL = 1, 2, 3  # named barriers: dS is there; dQ has left shared memory; dQ is there (one for each adder)


def emit_flash_grad(kernel: FlashGradKernel, target: TargetSpec) -> str:
    return (FlashGrad(kernel) if kernel.mode == "grad" else Finish(kernel)).module(target)


def flash_grad_shared(kernel: FlashGradKernel) -> int:
    return Places(kernel).end if kernel.mode == "grad" else 0


class Places:
    """Where things are in shared memory: K, V, stages of Q and dO, two buffers of dS, dQ, then logsumexps and δ of the stages."""

    def __init__(self, g: FlashGradKernel) -> None:
        self.own = KEYS * g.d * 2
        self.tile = g.queries * g.d * 2
        self.stage0 = 2 * self.own
        self.ds_bytes = KEYS * g.queries * 2
        self.ds = self.stage0 + g.stages * 2 * self.tile
        self.dq = self.ds + 2 * self.ds_bytes
        self.stats = self.dq + 2 * PART
        self.end = self.stats + g.stages * g.queries * 8


class FlashGrad(Extras):
    def __init__(self, kernel: FlashGradKernel) -> None:
        super().__init__(kernel, 4)
        self.at = Places(kernel)
        self.shift = kernel.queries.bit_length() - 1
        self.tight = kernel.queries > 64  # wide tiles of scores leave no registers for the next ones while dK is under way

    def module(self, target: TargetSpec) -> str:
        k, v = self.k, self.k.value
        k.prologue.insert(0, "  .shared .align 8 .b64 bars[16];")
        self._setup()
        self._position()
        producer, end = k.label("producer"), k.label("end")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {self.tid}, 128;')} bra {producer};")
        self._consume()
        k.emit(f"bra {end};")
        k.place(producer)
        k.emit(f"setmaxnreg.dec.sync.aligned.u32 {PRODUCER_REGISTERS};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {end};")
        adder = k.label("adder")
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {self.tid}, 32;')} bra {adder};")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        self._produce()
        k.emit(f"bra {end};")
        k.place(adder)
        self._add(end)
        k.place(end)
        text = k.text([f".maxntid {self.kernel.block}, 1, 1", ".minnctapersm 1"], target.cpu)
        return module_text(target.cpu, RING + text)

    # bars: 0 own rows are there, 8 the block's number, 16.. stages are full, 64.. stages are empty
    def _setup(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        self.base = v("i32", "mov.u32 {}, ring;")  # at a multiple of 1024, as declared (`stages`)
        self.bars = v("i32", "mov.u32 {}, bars;")
        self.maps = [v("i64", f"cvta.param.u64 {{}}, {v('i64', f'mov.b64 {{}}, map{i};')};") for i in range(4)]
        self.stages = Stages(k, self.bars, g.stages, 16, 64, 256)  # every thread reads statistics, so every thread hands back
        ready = k.label("ready")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {ready};")
        k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}], 1;")
        for s in range(g.stages):
            self.stages.init(s)
        for m in self.maps:
            k.emit(f"prefetch.tensormap [{m}];")
        k.emit("fence.proxy.async.shared::cta;")
        number = v("i32", f"atom.global.add.u32 {{}}, [{self._pointer(g.ticket)}], 1;")
        k.emit(f"st.shared.u32 [{self.bars}+8], {number};")
        k.place(ready)
        k.emit("bar.sync 0;")
        self.block = v("i32", f"ld.shared.u32 {{}}, [{self.bars}+8];")

    def _position(self) -> None:
        """Own keys, head and batch, and the tiles of queries that see them. High keys first: their turns come first; of `chunk` heads, the
        same keys follow one another: blocks of one head then start one after the other, as their turns come."""
        v, w, g = self.k.value, self.word, self.kernel
        some = v("i32", f"mul.lo.u32 {{}}, {w.chunk}, {w.k_tiles};")
        start = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {self.block}, {some};')}, {w.chunk};")
        rest = v("i32", f"rem.u32 {{}}, {self.block}, {some};")
        size = v("i32", f"min.u32 {{}}, {w.chunk}, {v('i32', f'sub.u32 {{}}, {w.lines}, {start};')};")
        tile = v("i32", f"div.u32 {{}}, {rest}, {size};")
        which = v("i32", f"add.u32 {{}}, {start}, {v('i32', f'rem.u32 {{}}, {rest}, {size};')};")
        self.tile = v("i32", f"sub.u32 {{}}, {v('i32', f'sub.u32 {{}}, {w.k_tiles}, {tile};')}, 1;")
        self.row0 = v("i32", f"shl.b32 {{}}, {self.tile}, 7;")
        kv_heads = v("i32", f"div.u32 {{}}, {w.heads}, {w.group};")
        self.head, self.batch = v("i32", f"rem.u32 {{}}, {which}, {kv_heads};"), v("i32", f"div.u32 {{}}, {which}, {kv_heads};")
        self.first, last = "0", w.q_tiles
        lowest = v("i32", f"sub.s32 {{}}, {self.row0}, {w.offset};")
        if g.causal:
            low = v("i32", f"max.s32 {{}}, {lowest}, 0;")
            self.first = v("i32", f"min.u32 {{}}, {v('i32', f'shr.u32 {{}}, {low}, {self.shift};')}, {last};")
        if g.windowed:  # the last query that sees the block's last key
            high = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {lowest}, {KEYS - 2 + g.queries};')}, {w.window};")
            high = v("i32", f"max.s32 {{}}, {v('i32', f'shr.s32 {{}}, {high}, {self.shift};')}, {self.first};")
            last = v("i32", f"min.s32 {{}}, {last}, {high};")
        self.per_head = v("i32", f"sub.u32 {{}}, {last}, {self.first};")
        self.count = v("i32", f"mul.lo.u32 {{}}, {self.per_head}, {w.group};")

    def _streamed(self, step: str) -> tuple[str, str]:
        """Number of the tile of queries and head of a step."""
        v, w = self.k.value, self.word
        which, inside = v("i32", f"div.u32 {{}}, {step}, {self.per_head};"), v("i32", f"rem.u32 {{}}, {step}, {self.per_head};")
        return v("i32", f"add.u32 {{}}, {inside}, {self.first};"), v("i32", f"mad.lo.u32 {{}}, {self.head}, {w.group}, {which};")

    def _line(self, head: str) -> str:
        return self.k.value("i32", f"mad.lo.u32 {{}}, {self.batch}, {self.word.heads}, {head};")

    def _loop(self, step: str) -> str:
        self.k.emit(f"mov.u32 {step}, 0;")
        top = self.k.label("step")
        self.k.place(top)
        return top

    def _again(self, step: str, top: str) -> None:
        self.k.emit(f"add.u32 {step}, {step}, 1;")
        self.k.emit(f"@{self.k.value('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {top};")

    # --- one thread copies --------------------------------------------------------------------------------------------
    def _load(self, which: int, target: str, row: str, head: str, barrier: str, rows: int) -> None:
        for c in range(self.kernel.d // 64):
            self.k.emit(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"[{target}+{c * rows * 128}], [{self.maps[which]}, {{{64 * c}, {row}, {head}, {self.batch}}}], [{barrier}];"
            )

    def _produce(self) -> None:
        k, g, v, w, at = self.k, self.kernel, self.k.value, self.word, self.at
        k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{self.bars}], {2 * at.own};")
        for i in range(2):
            self._load(i, v("i32", f"add.u32 {{}}, {self.base}, {i * at.own};"), self.row0, self.head, self.bars, KEYS)
        ring, step = Filler(k, self.stages), k.reg("i32")
        top = self._loop(step)
        full = ring.fill(2 * at.tile + 8 * g.queries)
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {2 * at.tile}, {self.base};")
        tile, head = self._streamed(step)
        row = v("i32", f"shl.b32 {{}}, {tile}, {self.shift};")
        for i in range(2):
            self._load(2 + i, v("i32", f"add.u32 {{}}, {spot}, {at.stage0 + i * at.tile};"), row, head, full, g.queries)
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {8 * g.queries}, {self.base};")
        source = v("i32", f"mad.lo.u32 {{}}, {self._line(head)}, {w.padded}, {row};")
        for i, var in enumerate((g.lse, g.delta)):
            here = v("i64", f"mad.wide.u32 {{}}, {source}, 4, {self._pointer(var)};")
            there = v("i32", f"add.u32 {{}}, {spot}, {at.stats + 4 * g.queries * i};")
            k.emit(f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{there}], [{here}], {4 * g.queries}, [{full}];")
        ring.advance()
        self._again(step, top)

    # --- one warp adds dQ to memory -----------------------------------------------------------------------------------
    def _turn(self, tile: str) -> str:
        """How many blocks add to a tile of queries before this one."""
        v, w, g = self.k.value, self.word, self.kernel
        last = v("i32", f"sub.u32 {{}}, {w.k_tiles}, 1;")
        if g.causal:
            past = v("i32", f"mad.lo.u32 {{}}, {tile}, {g.queries}, {w.offset};")
            past = v("i32", f"shr.s32 {{}}, {v('i32', f'add.s32 {{}}, {past}, {g.queries + KEYS - 1};')}, 7;")
            last = v("i32", f"min.s32 {{}}, {last}, {v('i32', f'sub.s32 {{}}, {past}, 1;')};")
        return v("i32", f"sub.s32 {{}}, {last}, {self.tile};")

    def _add(self, end: str) -> None:
        """Warp a of the adders takes steps a, a + ADDERS, …"""
        k, g, v, w, at = self.k, self.kernel, self.k.value, self.word, self.at
        which = v("i32", f"sub.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 5;')}, 1;")
        full = v("i32", f"add.u32 {{}}, {which}, {FULL};")
        lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 31;')}, 0;")
        source = v("i32", f"add.u32 {{}}, {self.base}, {at.dq};")
        step, seen, top = k.reg("i32"), k.reg("i32"), k.label("step")
        k.emit(f"mov.u32 {step}, {which};")
        k.place(top)
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {step}, {self.count};')} bra {end};")
        tile, head = self._streamed(step)
        number = v("i32", f"mad.lo.u32 {{}}, {self._line(head)}, {w.q_tiles}, {tile};")
        counter = v("i64", f"mad.wide.u32 {{}}, {number}, 4, {self._pointer(g.turns)};")
        target = v("i64", f"mad.wide.u32 {{}}, {number}, {2 * PART}, {self._pointer(g.acc)};")
        turn = self._turn(tile)
        here, poll = k.label("turn"), k.label("poll")
        k.emit(f"@!{lead} bra {here};")
        k.place(poll)
        k.emit(f"ld.acquire.gpu.global.u32 {seen}, [{counter}];")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {seen}, {turn};')} bra {poll};")
        k.emit("fence.proxy.async;")
        k.place(here)
        k.emit("bar.warp.sync -1;")
        k.emit(f"bar.sync {full}, 288;")
        gone = k.label("gone")
        k.emit(f"@!{lead} bra {gone};")
        none = v("i1", f"setp.eq.u32 {{}}, {turn}, 0;")
        k.emit(f"@{none} cp.async.bulk.global.shared::cta.bulk_group [{target}], [{source}], {2 * PART};")
        k.emit(f"@!{none} cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [{target}], [{source}], {2 * PART};")
        copies = Groups(k, *COPIES)
        added = copies.commit()
        copies.wait(added, read=True)
        k.place(gone)
        k.emit("bar.warp.sync -1;")
        over, done = v("i32", f"add.u32 {{}}, {step}, 1;"), k.label("last")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {over}, {self.count};')} bra {done};")
        k.emit(f"bar.arrive {EMPTY}, 288;")
        k.place(done)
        told = k.label("told")
        k.emit(f"@!{lead} bra {told};")
        copies.wait(added)
        k.emit("fence.proxy.async;")
        k.emit("fence.acq_rel.gpu;")
        k.emit(f"red.release.gpu.global.add.u32 [{counter}], 1;")
        k.place(told)
        k.emit("bar.warp.sync -1;")
        k.emit(f"add.u32 {step}, {step}, {ADDERS};")
        k.emit(f"bra {top};")

    # --- the consumers ------------------------------------------------------------------------------------------------
    def _threads(self) -> None:
        """Which rows and columns a thread has, and where it writes."""
        v, at = self.k.value, self.at
        self.who = v("i32", f"sub.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 7;')}, 1;")
        me = v("i32", f"and.b32 {{}}, {self.tid}, 127;")
        lane, warp = v("i32", f"and.b32 {{}}, {self.tid}, 31;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        self.quad = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {lane}, 3;')}, 1;")
        self.my_row0 = v("i32", f"mad.lo.u32 {{}}, {self.who}, 64, {self.row0};")
        inside = v("i32", f"mad.lo.u32 {{}}, {warp}, 16, {v('i32', f'shr.u32 {{}}, {lane}, 2;')};")
        self.row = v("i32", f"add.u32 {{}}, {inside}, {self.my_row0};")
        # stmatrix: lane l gives the address of row l%8 of matrix l/8; the four are rows 0-7 and 8-15 of two neighbouring columns
        low = v("i32", f"and.b32 {{}}, {lane}, 7;")
        key = v("i32", f"mad.lo.u32 {{}}, {warp}, 16, {v('i32', f'and.b32 {{}}, {lane}, 15;')};")
        key = v("i32", f"mad.lo.u32 {{}}, {self.who}, 64, {key};")
        spot = v("i32", f"mad.lo.u32 {{}}, {key}, 128, {self.base};")
        self.ds_row = v("i32", f"add.u32 {{}}, {spot}, {at.ds};")
        half = v("i32", f"shr.u32 {{}}, {lane}, 4;")
        self.chunks = []
        for i in range(4):
            chunk = v("i32", f"xor.b32 {{}}, {v('i32', f'add.u32 {{}}, {half}, {2 * i};') if i else half}, {low};")
            self.chunks.append(v("i32", f"shl.b32 {{}}, {chunk}, 4;"))
        spot = v("i32", f"mad.lo.u32 {{}}, {self.who}, {PART}, {v('i32', f'mad.lo.u32 {{}}, {me}, 16, {self.base};')};")
        self.dq_spot = v("i32", f"add.u32 {{}}, {spot}, {at.dq};")
        if self.kernel.softcap is not None:
            mine = v("i32", f"mad.lo.u32 {{}}, {self.who}, {64 * 128}, {v('i32', f'mad.lo.u32 {{}}, {warp}, {16 * 128}, {self.base};')};")
            self.ds_warp = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {lane}, 16, {mine};')}, {at.ds};")
            self.ds_bytes, self.ds_half = at.ds_bytes, KEYS * 128

    def _consume(self) -> None:
        k, g, v, at = self.k, self.kernel, self.k.value, self.at
        k.emit(f"setmaxnreg.inc.sync.aligned.u32 {CONSUMER_REGISTERS};")
        self._threads()
        s, dp = ([k.reg("float") for _ in range(g.queries // 2)] for _ in range(2))
        p, ds = ([k.reg("i32") for _ in range(g.queries // 4)] for _ in range(2))
        dv, dk = ([k.reg("float") for _ in range(g.d // 2)] for _ in range(2))
        dq = [k.reg("float") for _ in range(32)]
        for r in (*dv, *dk):
            k.emit(f"mov.f32 {r}, {ZERO};")
        mine = v("i32", f"mad.lo.u32 {{}}, {self.who}, 8192, {self.base};")
        own = [matrix_descriptor(k, v("i32", f"add.u32 {{}}, {mine}, {i * at.own};") if i else mine, 1) for i in range(2)]
        keys = v("i32", f"mad.lo.u32 {{}}, {self.who}, {KEYS * 128}, {self.base};") if g.d == 128 else self.base
        keys = matrix_descriptor(k, keys, KEYS * 128)
        part = v("i32", f"add.u32 {{}}, {self.base}, {at.ds};")
        if g.d == 64:
            part = v("i32", f"mad.lo.u32 {{}}, {self.who}, {KEYS * 128}, {part};")
        part = matrix_descriptor(k, part, KEYS * 128)
        done = k.label("nothing")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {done};")
        wait(k, self.bars, "0")
        ring, step, previous, adder = Reader(k, self.stages), k.reg("i32"), k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {previous}, 0;")
        k.emit(f"mov.u32 {adder}, {FULL};")
        top = self._loop(step)
        products = Groups(k, *PRODUCTS)
        if not self.tight:  # dK of the round before, and with it the last read of its stage, ends while the next scores are under way
            products.carried(lambda: self.stages.hand_back(previous, more))
        start = products.under_way
        ring.ready()
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {2 * at.tile}, {self.base};")
        q_at, do_at = (v("i32", f"add.u32 {{}}, {spot}, {at.stage0 + i * at.tile};") for i in range(2))
        stats = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {8 * g.queries}, {self.base};")
        stats = v("i32", f"mad.lo.u32 {{}}, {self.quad}, 4, {v('i32', f'add.u32 {{}}, {stats}, {at.stats};')};")
        more = v("i1", f"setp.ne.u32 {{}}, {step}, 0;")
        k.emit("wgmma.fence.sync.aligned;")
        self._scores(s, own[0], matrix_descriptor(k, q_at, 1))
        scores = products.commit()
        self._scores(dp, own[1], matrix_descriptor(k, do_at, 1))
        cotangents = products.commit()
        products.wait(scores)
        tile, head = self._streamed(step)
        first = v("i32", f"shl.b32 {{}}, {tile}, {self.shift};")
        if self.changed:
            self._change(s, step, first, head)
        self._mask(s, first)
        self._weights(s, stats)
        self._pack(p, s)
        self._sum(dv, p, do_at)
        products.commit()
        products.wait(cotangents)
        self._cotangents(p, dp, stats)
        if g.scores is not None:
            self._store_scores(dp, first, head)
        if g.softcap is not None:
            self._bend(dp)
        self._pack(ds, dp)
        odd = v("i32", f"and.b32 {{}}, {step}, 1;")
        row = v("i32", f"mad.lo.u32 {{}}, {odd}, {at.ds_bytes}, {self.ds_row};")
        for i in range(g.queries // 16):
            where = v("i32", f"add.u32 {{}}, {row}, {self.chunks[i % 4]};")
            four = ", ".join(ds[4 * i : 4 * i + 4])
            k.emit(f"stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [{where}+{i // 4 * KEYS * 128}], {{{four}}};")
        k.emit("fence.proxy.async.shared::cta;")
        k.emit(f"bar.sync {EXCHANGE}, 256;")
        hop = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'mul.lo.u32 {{}}, {odd}, {at.ds_bytes >> 4};')};")
        left = v("i64", f"add.s64 {{}}, {part}, {hop};")
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(KEYS // 16):
            a, b = (v("i64", f"add.s64 {{}}, {x}, {128 * i};") for x in (left, keys))
            wgmma_shared(k, dq, g.dtype, a, b, k.truth(i > 0), "1, 1")
        dq_there = products.commit()
        self._sum(dk, ds, q_at)
        dk_there = products.commit((lambda: self.stages.hand_back(ring.stage)) if self.tight else None)
        products.wait(dq_there)
        free = k.label("free")
        k.emit(f"@!{more} bra {free};")
        k.emit(f"bar.sync {EMPTY}, 288;")
        k.place(free)
        for j in range(8):
            k.emit(f"st.shared.v4.f32 [{self.dq_spot}+{2048 * j}], {{{', '.join(dq[4 * j : 4 * j + 4])}}};")
        k.emit("fence.proxy.async.shared::cta;")
        k.emit(f"bar.arrive {adder}, 288;")
        k.emit(f"add.u32 {adder}, {adder}, 1;")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {adder}, {FULL + ADDERS};')} mov.u32 {adder}, {FULL};")
        if self.tight:
            products.wait(dk_there)
        k.emit(f"mov.u32 {previous}, {ring.stage};")
        ring.advance()
        self._again(step, top)
        products.again(start)
        products.drain()
        k.place(done)
        for r in dk:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale)};")
        self._store([dv, dk], row=self.my_row0, head=self.head, batch=self.batch)

    def _scores(self, target: list[str], a: str, b: str) -> None:
        """target = own rows · streamed rowsᵀ over the head size."""
        k, g, v = self.k, self.kernel, self.k.value
        for i in range(g.d // 16):
            chunk, inside = divmod(i, 4)
            x = v("i64", f"add.s64 {{}}, {a}, {(chunk * KEYS * 128 >> 4) + 2 * inside};")
            y = v("i64", f"add.s64 {{}}, {b}, {(chunk * g.queries * 128 >> 4) + 2 * inside};")
            wgmma_shared(k, target, g.dtype, x, y, k.truth(i > 0))

    def _sum(self, total: list[str], left: list[str], at: str) -> None:
        """total += left · a streamed tile."""
        k, g, v = self.k, self.kernel, self.k.value
        right = matrix_descriptor(k, at, g.queries * 128)
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(g.queries // 16):
            b = v("i64", f"add.s64 {{}}, {right}, {128 * i};") if i else right
            wgmma_registers(k, total, g.dtype, left[4 * i : 4 * i + 4], b, k.truth(True))
