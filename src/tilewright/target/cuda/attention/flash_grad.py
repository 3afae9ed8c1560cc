"""The backward pass of attention on Hopper in five products, written as PTX: dQ, dK and dV in one sweep.

A block owns 128 keys of one key head, for all or a part (`split`) of the query heads that share it; tiles of Q and
dO come through a ring of stages. Everything is transposed, so that what a warpgroup needs as a left operand is in its registers:
Sᵀ = K·Qᵀ, dPᵀ = V·dOᵀ, P = exp(S − logsumexp), dS = P·(dP − δ), dV += Pᵀ·dO, dK += dSᵀ·Q. dS also goes
to shared memory, where both warpgroups take their part of dQ = dS·K.

dQ is a sum over blocks. A warp of the producer's warpgroup adds a tile to memory when it is the block's turn, which a counter per tile of
queries says: blocks of higher keys first. So every sum has one order, and no block waits for one that starts after it: blocks take
numbers from a counter when they start, and higher keys have lower numbers. Between causal blocks the turns come by themselves, because
every block begins at its diagonal. What is added has the order of the registers; `finish` scales it and writes it as rows.

Rows past an end are zeros with an infinite logsumexp, which weighs nothing; so does a row that sees no key. Keys past the end are masked.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import FlashGradKernel
from ....tile.ir import Var
from ..matmul.gemm_pieces import matrix_descriptor, wgmma_registers, wgmma_shared
from ..matmul.groups import COPIES, PRODUCTS, Groups
from ..matmul.stages import RING, Consumer, Producer, Stages, wait
from ..ptx.text import literal, module_text
from .flash_finish import PART, Common, Finish
from .flash_stats import LOG2E, NEVER, ZERO


class Scores(Common):
    """The part of `flash_grad` between its products."""

    my_row0: str
    row: str
    quad: str
    batch: str

    @property
    def changed(self) -> bool:
        """Scores are more than a multiple of the products: they are brought to powers of two before their logsumexp is taken away."""
        g = self.kernel
        return g.softcap is not None or g.bias is not None or g.mask is not None

    def _columns(self, h: int) -> list[tuple[int, int]]:
        """(register, query relative to the thread's first) of row h of a thread."""
        return [(i + c, 8 * (i // 4) + c) for i in range(2 * h, self.kernel.queries // 2, 4) for c in range(2)]

    def _mask(self, s: list[str], first: str) -> None:
        """−inf where a query does not see a key, or there is no key. Tiles that need no mask skip it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        skip, past = k.label("unmasked"), v("i32", f"add.s32 {{}}, {self.my_row0}, 64;")
        whole = v("i1", f"setp.le.s32 {{}}, {past}, {w.sk};")
        shifted = v("i32", f"sub.s32 {{}}, {self.my_row0}, {w.offset};")
        if g.causal:  # the first query sees the last key
            least = v("i32", f"add.s32 {{}}, {shifted}, 63;")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.ge.s32 {{}}, {first}, {least};')};")
        if g.windowed:  # the last query still sees the first key
            most = v("i32", f"add.s32 {{}}, {shifted}, {w.window};")
            end = v("i32", f"add.s32 {{}}, {first}, {g.queries};")
            whole = v("i1", f"and.pred {{}}, {whole}, {v('i1', f'setp.le.s32 {{}}, {end}, {most};')};")
        k.emit(f"@{whole} bra {skip};")
        here = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        for h in range(2):
            key = v("i32", f"add.s32 {{}}, {self.row}, {8 * h};") if h else self.row
            missing = v("i1", f"setp.ge.s32 {{}}, {key}, {w.sk};")
            room = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {key}, {w.offset};')}, {here};")
            end = v("i32", f"add.s32 {{}}, {room}, {w.window};") if g.windowed else ""
            for i, c in self._columns(h):
                k.emit(f"@{missing} mov.f32 {s[i]}, {NEVER};")
                if g.causal:
                    k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {room}, {c};')} mov.f32 {s[i]}, {NEVER};")
                if g.windowed:
                    k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {end}, {c};')} mov.f32 {s[i]}, {NEVER};")
        k.place(skip)

    def _stat(self, stats: str, which: int, i: int, held: dict[int, tuple[str, str]]) -> str:
        """Logsumexp (0) or δ (1) of the query of a register."""
        if i // 4 not in held:
            held[i // 4] = (self.k.reg("float"), self.k.reg("float"))
            at = 4 * self.kernel.queries * which + 32 * (i // 4)
            self.k.emit(f"ld.shared.v2.f32 {{{', '.join(held[i // 4])}}}, [{stats}+{at}];")
        return held[i // 4][i % 2]

    def _weights(self, s: list[str], stats: str) -> None:
        k, v, scale = self.k, self.k.value, literal("float", self.kernel.scale * LOG2E)
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(s):
            if self.changed:
                k.emit(f"sub.rn.f32 {r}, {r}, {self._stat(stats, 0, i, held)};")
                k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
                continue
            k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {v('float', f'neg.f32 {{}}, {self._stat(stats, 0, i, held)};')};")
            k.emit(f"ex2.approx.ftz.f32 {r}, {r};")

    def _cotangents(self, p: list[str], dp: list[str], stats: str) -> None:
        """dS = P·(dP − δ), in the registers of dP, with the rounded P: there are no registers for both."""
        k = self.k
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(dp):
            k.emit(f"sub.rn.f32 {r}, {r}, {self._stat(stats, 1, i, held)};")
            weight = self._rounded(p[i // 2], i % 2)
            k.emit(f"mul.rn.f32 {r}, {r}, {weight};")

    def _rounded(self, pair: str, which: int) -> str:
        k, v = self.k, self.k.value
        if self.kernel.dtype == "bf16":
            bits = v("i32", f"and.b32 {{}}, {pair}, -65536;" if which else f"shl.b32 {{}}, {pair}, 16;")
            return v("float", f"mov.b32 {{}}, {bits};")
        halves = [k.reg("half"), k.reg("half")]
        k.emit(f"mov.b32 {{{', '.join(halves)}}}, {pair};")
        return v("float", f"cvt.f32.f16 {{}}, {halves[which]};")

    def _pack(self, packed: list[str], values: list[str]) -> None:
        for i, w in enumerate(packed):
            self.k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {values[2 * i + 1]}, {values[2 * i]};")


# Soft cap, bias and mask of a tile of scores in attention's backward pass, and the scores' cotangent on its way to memory.
# Rows are keys, columns are queries, so a thread has two keys, eight apart, of two of every eight queries. A soft cap's slope is needed
# later, with no registers to keep it in: it waits, rounded, in the place that the warp's dS takes afterwards.
ONE = literal("float", 1.0)
AT_ONCE = 8  # scores whose mask and bias are in flight together
LINE = 512  # bytes of 16 for every thread of a warp


KEYS = 128  # keys of a block, 64 for each of two warpgroups
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


class FlashGrad(Scores):
    def __init__(self, kernel: FlashGradKernel) -> None:
        super().__init__(kernel, 4)
        self.at = Places(kernel)
        self.shift = kernel.queries.bit_length() - 1
        self.tight = kernel.queries > 64  # wide tiles of scores leave no registers for the next ones while dK is in flight

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
        self.stages = Stages(k, self.bars, g.stages, 16, 64, 256)  # every thread reads statistics, so every thread releases
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
        own = v("i32", f"div.u32 {{}}, {self.head}, {w.split};")
        for i in range(2):
            self._load(i, v("i32", f"add.u32 {{}}, {self.base}, {i * at.own};"), self.row0, own, self.bars, KEYS)
        ring, step = Producer(k, self.stages), k.reg("i32")
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
        ring, step, previous, adder = Consumer(k, self.stages), k.reg("i32"), k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {previous}, 0;")
        k.emit(f"mov.u32 {adder}, {FULL};")
        top = self._loop(step)
        products = Groups(k, *PRODUCTS)
        if not self.tight:  # dK of the round before, and with it the last read of its stage, ends while the next scores are in flight
            products.carried(lambda: self.stages.release(previous, more))
        start = products.in_flight
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
        dk_there = products.commit((lambda: self.stages.release(ring.stage)) if self.tight else None)
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

    def _here(self, first: str, head: str, views: tuple[Var | None, ...]) -> None:
        """For a tile of queries: where the thread's keys are in these views, and which of its queries exist."""
        v, w = self.k.value, self.word
        start = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        self.room = v("i32", f"sub.s32 {{}}, {w.sq}, {start};")
        keys = [self.row, v("i32", f"add.s32 {{}}, {self.row}, 8;")]
        self.inside = [v("i1", f"setp.lt.s32 {{}}, {key}, {w.sk};") for key in keys]
        self.spots: dict[Var, list[str]] = {}
        for var in (x for x in views if x is not None):
            address = self.e.env[var]
            at = "0"
            for place, stride in zip((self.batch, head, start), address.strides[:3], strict=True):
                at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {place};')}, {stride}, {at};")
            here = [v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {key};')}, {address.strides[3]}, {at};") for key in keys]
            self.spots[var] = [v("i64", f"mad.lo.s64 {{}}, {x}, {address.dtype.itemsize}, {address.pointer};") for x in here]

    def _spot(self, var: Var, i: int) -> tuple[str, str]:
        """Address of the score of a register in a view, and whether it is there."""
        v, h, column = self.k.value, i % 4 // 2, 8 * (i // 4) + i % 2
        address = self.e.env[var]
        there = v("i1", f"setp.gt.s32 {{}}, {self.room}, {column};")
        there = v("i1", f"and.pred {{}}, {there}, {self.inside[h]};")
        at, stride, size = self.spots[var][h], str(address.strides[2]), address.dtype.itemsize
        if not stride.startswith("%"):
            return f"{at}+{column * size * int(stride)}", there
        return v("i64", f"mad.lo.s64 {{}}, {stride}, {column * size}, {at};"), there

    def _change(self, s: list[str], step: str, first: str, head: str) -> None:
        """Scores become exponents of two, or −inf where the mask says so."""
        k, g, v = self.k, self.kernel, self.k.value
        self._here(first, head, (g.mask, g.bias))
        if g.softcap is not None:
            odd = v("i32", f"and.b32 {{}}, {step}, 1;")
            self.slopes = v("i32", f"mad.lo.u32 {{}}, {odd}, {self.ds_bytes}, {self.ds_warp};")
        held: list[str] = []
        for i, r in enumerate(s):
            self._pause(i)
            if g.softcap is not None:  # cap · tanh(x / cap) = cap − 2·cap·y with y = 1 / (exp(2x / cap) + 1); its slope is 4·y·(1 − y)
                power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
                power = v("float", f"add.rn.f32 {{}}, {v('float', f'ex2.approx.ftz.f32 {{}}, {power};')}, {ONE};")
                y = v("float", f"rcp.approx.ftz.f32 {{}}, {power};")
                cap = g.softcap * LOG2E
                k.emit(f"fma.rn.f32 {r}, {y}, {literal('float', -2 * cap)}, {literal('float', cap)};")
                rest = v("float", f"sub.rn.f32 {{}}, {ONE}, {y};")
                slope = v("float", f"mul.rn.f32 {{}}, {y}, {literal('float', 4.0)};")
                held.append(v("float", f"mul.rn.f32 {{}}, {slope}, {rest};"))
                if len(held) == 8:
                    words = [v("i32", f"cvt.rn.{g.dtype}x2.f32 {{}}, {held[2 * n + 1]}, {held[2 * n]};") for n in range(4)]
                    k.emit(f"st.shared.v4.b32 [{self.slopes}+{self._slope(i // 8)}], {{{', '.join(words)}}};")
                    held = []
            else:
                k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
            if g.bias is not None:
                k.emit(f"fma.rn.f32 {r}, {self._bias(g.bias, i)}, {literal('float', LOG2E)}, {r};")
            if g.mask is not None:
                at, there = self._spot(g.mask, i)
                seen = k.reg("i32")
                k.emit(f"mov.b32 {seen}, 1;")
                k.emit(f"@{there} ld.global.u8 {seen}, [{at}];")
                k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {seen}, 0;')} mov.f32 {r}, {NEVER};")

    def _pause(self, i: int) -> None:
        """Loads and stores of later scores stay behind: there are no registers for all of them."""
        if i and i % AT_ONCE == 0 and self.spots:
            self.k.emit("bar.warp.sync -1;")

    def _bias(self, var: Var, i: int) -> str:
        k, v, half = self.k, self.k.value, self.k.reg("half")
        at, there = self._spot(var, i)
        k.emit(f"mov.b16 {half}, 0;")
        k.emit(f"@{there} ld.global.b16 {half}, [{at}];")
        if self.kernel.dtype == "f16":
            return v("float", f"cvt.f32.f16 {{}}, {half};")
        return v("float", f"mov.b32 {{}}, {v('i32', f'mov.b32 {{}}, {{0, {half}}};')};")

    def _slope(self, n: int) -> int:
        """Where the n-th 16 bytes of a thread's slopes lie."""
        return n % 4 * LINE + n // 4 * self.ds_half

    def _bend(self, dp: list[str]) -> None:
        """The scores' cotangent becomes that of the products."""
        k = self.k
        for n in range(len(dp) // 8):
            words = [k.reg("i32") for _ in range(4)]
            k.emit(f"ld.shared.v4.b32 {{{', '.join(words)}}}, [{self.slopes}+{self._slope(n)}];")
            for i in range(8):
                r = dp[8 * n + i]
                k.emit(f"mul.rn.f32 {r}, {r}, {self._rounded(words[i // 2], i % 2)};")
        k.emit("bar.warp.sync -1;")  # dS takes the slopes' place

    def _store_scores(self, dp: list[str], first: str, head: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        assert g.scores is not None
        self._here(first, head, (g.scores,))
        for i in range(0, len(dp), 2):
            self._pause(i)
            pair = v("i32", f"cvt.rn.{g.dtype}x2.f32 {{}}, {dp[i + 1]}, {dp[i]};")
            halves = [k.reg("half"), k.reg("half")]
            k.emit(f"mov.b32 {{{', '.join(halves)}}}, {pair};")
            for c in range(2):
                at, there = self._spot(g.scores, i + c)
                k.emit(f"@{there} st.global.b16 [{at}], {halves[c]};")
