"""What attention's backward pass needs to know of a query row, where the forward pass did not save it, on Hopper, written as PTX: log2 of
the sum of its exponentials, and δ = Σ P·dP.

A block owns 128 rows of Q and dO, which stay in shared memory; tiles of 64 keys and values come through a ring of stages. Two products
give a tile of scores (Q · Kᵀ) and of their cotangent dP (dO · Vᵀ) in registers, and the statistics are kept while keys stream by. A row
past the end, and one that sees no key, has an infinite logsumexp: it weighs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import FlashStatsKernel
from ....tile.ir import Var
from ..matmul.gemm_pieces import matrix_descriptor, wgmma_shared
from ..matmul.groups import PRODUCTS, Groups
from ..matmul.stages import RING, Consumer, Producer, Stages, wait
from ..ptx.text import KernelText, literal, module_text
from ..threads.emit import Emitter
from ..threads.layout import Fragment

WORDS = ("sq", "sk", "offset", "heads", "group", "tiles", "padded")
LOG2E = 1.0 / math.log(2.0)
NEVER, INF, ZERO = literal("float", -math.inf), literal("float", math.inf), literal("float", 0.0)
TILE = 64  # rows of a streamed tile
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240


def emit_flash_stats(kernel: FlashStatsKernel, target: TargetSpec) -> str:
    return FlashStats(kernel).module(target)


def flash_stats_shared(kernel: FlashStatsKernel) -> int:
    return 2 * kernel.rows * kernel.d * 2 + kernel.stages * stage_bytes(kernel) + 1024


def stage_bytes(kernel: FlashStatsKernel) -> int:
    return 2 * TILE * kernel.d * 2


class FlashStats:
    def __init__(self, kernel: FlashStatsKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=4)
        self.e = Emitter(kernel, Fragment(), self.k)
        self.own_bytes, self.tile_bytes = kernel.rows * kernel.d * 2, TILE * kernel.d * 2

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        e.parameters(WORDS)
        self.word = SimpleNamespace(**{n: v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i, n in enumerate(WORDS)})
        k.prologue.insert(0, "  .shared .align 8 .b64 bars[24];")
        self._setup()
        self._position()
        producer, end = k.label("producer"), k.label("end")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {self.tid}, 128;')} bra {producer};")
        self._consume()
        k.emit(f"bra {end};")
        k.place(producer)
        self._produce(end)
        k.place(end)
        text = k.text([f".maxntid {g.block}, 1, 1", ".minnctapersm 1"], target.cpu)
        return module_text(target.cpu, RING + text)

    def _setup(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        base = v("i32", f"add.u32 {{}}, {v('i32', 'mov.u32 {}, ring;')}, 1023;")
        self.base = v("i32", f"and.b32 {{}}, {base}, -1024;")
        self.first_stage = v("i32", f"add.u32 {{}}, {self.base}, {2 * self.own_bytes};")
        self.bars = v("i32", "mov.u32 {}, bars;")
        self.maps = [v("i64", f"cvta.param.u64 {{}}, {v('i64', f'mov.b64 {{}}, map{i};')};") for i in range(4)]
        self.stages = Stages(k, self.bars, g.stages, 8, 72, g.consumers)
        ready = k.label("ready")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {ready};")
        k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}], 1;")
        for s in range(g.stages):
            self.stages.init(s)
        for m in self.maps:
            k.emit(f"prefetch.tensormap [{m}];")
        k.emit("fence.proxy.async.shared::cta;")
        k.place(ready)
        k.emit("bar.sync 0;")

    def _position(self) -> None:
        """Own rows, head and batch of this block, and how many tiles stream by. Blocks with most work come first."""
        v, w, g = self.k.value, self.word, self.kernel
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        which, tile = v("i32", f"div.u32 {{}}, {block}, {w.tiles};"), v("i32", f"rem.u32 {{}}, {block}, {w.tiles};")
        tile = v("i32", f"sub.u32 {{}}, {v('i32', f'sub.u32 {{}}, {w.tiles}, {tile};')}, 1;")
        self.row0 = v("i32", f"mul.lo.u32 {{}}, {tile}, {g.rows};")
        self.head, self.batch = v("i32", f"rem.u32 {{}}, {which}, {w.heads};"), v("i32", f"div.u32 {{}}, {which}, {w.heads};")
        self.kv_head = v("i32", f"div.u32 {{}}, {self.head}, {w.group};")
        limit = w.sk
        if g.causal:
            last = v("i32", f"min.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.row0}, {g.rows};')}, {w.sq};")
            limit = v("i32", f"min.s32 {{}}, {limit}, {v('i32', f'add.s32 {{}}, {last}, {w.offset};')};")
            limit = v("i32", f"max.s32 {{}}, {limit}, 0;")
        self.count = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {limit}, {TILE - 1};')}, 6;")

    # --- the producer -------------------------------------------------------------------------------------------------
    def _load(self, which: int, target: str, row: str, head: str, barrier: str, rows: int) -> None:
        for c in range(self.kernel.d // 64):
            self.k.emit(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"[{target}+{c * rows * 128}], [{self.maps[which]}, {{{64 * c}, {row}, {head}, {self.batch}}}], [{barrier}];"
            )

    def _produce(self, end: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        k.emit(f"setmaxnreg.dec.sync.aligned.u32 {PRODUCER_REGISTERS};")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {end};")
        k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{self.bars}], {2 * self.own_bytes};")
        for i in range(2):
            at = v("i32", f"add.u32 {{}}, {self.base}, {i * self.own_bytes};")
            self._load(i, at, self.row0, self.head, self.bars, g.rows)
        ring, step = Producer(k, self.stages), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        top = k.label("copy")
        k.place(top)
        full = ring.fill(2 * self.tile_bytes)
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.first_stage};")
        row = v("i32", f"shl.b32 {{}}, {step}, 6;")
        for i in range(2):
            self._load(2 + i, v("i32", f"add.u32 {{}}, {spot}, {i * self.tile_bytes};") if i else spot, row, self.kv_head, full, TILE)
        ring.advance()
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {top};")

    # --- the consumers ------------------------------------------------------------------------------------------------
    def _consume(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        k.emit(f"setmaxnreg.inc.sync.aligned.u32 {CONSUMER_REGISTERS};")
        who = v("i32", f"sub.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 7;')}, 1;")
        mine = v("i32", f"mad.lo.u32 {{}}, {who}, 8192, {self.base};")
        own = [matrix_descriptor(k, v("i32", f"add.u32 {{}}, {mine}, {i * self.own_bytes};") if i else mine, 1) for i in range(2)]
        lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 127;')}, 0;")
        self.quad = v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 1;")  # first column of a thread
        self.my_row0 = v("i32", f"mad.lo.u32 {{}}, {who}, 64, {self.row0};")
        warp, line = v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;")
        inside = v("i32", f"mad.lo.u32 {{}}, {warp}, 16, {line};")
        self.row = v("i32", f"add.u32 {{}}, {inside}, {self.my_row0};")
        s, dp = ([k.reg("float") for _ in range(TILE // 2)] for _ in range(2))
        self.top, self.total, self.moment, self.fade = ([k.reg("float") for _ in range(2)] for _ in range(4))
        for h in range(2):
            k.emit(f"mov.f32 {self.top[h]}, {NEVER};")
            k.emit(f"mov.f32 {self.total[h]}, {ZERO};")
            k.emit(f"mov.f32 {self.moment[h]}, {ZERO};")
        done = k.label("nothing")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {done};")
        wait(k, self.bars, "0")
        ring, step = Consumer(k, self.stages), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        top = k.label("tile")
        k.place(top)
        ring.ready()
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.first_stage};")
        second = v("i32", f"add.u32 {{}}, {spot}, {self.tile_bytes};")
        k.emit("wgmma.fence.sync.aligned;")
        products = Groups(k, *PRODUCTS)
        self._product(s, own[0], matrix_descriptor(k, spot, 1))
        scores = products.commit()
        self._product(dp, own[1], matrix_descriptor(k, second, 1))
        both = products.commit(lambda: self.stages.release(ring.stage, lead))
        products.wait(scores)
        self._mask(s, v("i32", f"shl.b32 {{}}, {step}, 6;"))
        self._maxima(s)
        products.wait(both)
        self._moments(s, dp)
        ring.advance()
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {top};")
        k.place(done)
        self._store_stats()

    def _product(self, target: list[str], a: str, b: str) -> None:
        """target = own rows · streamed rowsᵀ over the head size."""
        k, g, v = self.k, self.kernel, self.k.value
        for i in range(g.d // 16):
            chunk, inside = divmod(i, 4)
            x = v("i64", f"add.s64 {{}}, {a}, {(chunk * g.rows * 128 >> 4) + 2 * inside};")
            y = v("i64", f"add.s64 {{}}, {b}, {(chunk * TILE * 128 >> 4) + 2 * inside};")
            wgmma_shared(k, target, g.dtype, x, y, k.truth(i > 0))

    def _mask(self, s: list[str], first: str) -> None:
        """−inf where a query does not see a key. Tiles that need no mask skip it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        skip, plain = k.label("unmasked"), w.sk
        if g.causal:
            next_row = v("i32", f"add.s32 {{}}, {self.my_row0}, 1;")
            plain = v("i32", f"min.s32 {{}}, {plain}, {v('i32', f'add.s32 {{}}, {next_row}, {w.offset};')};")
        past = v("i32", f"add.s32 {{}}, {first}, {TILE};")
        k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {past}, {plain};')} bra {skip};")
        start = v("i32", f"add.s32 {{}}, {first}, {self.quad};")
        for h in range(2):
            high = w.sk
            if g.causal:
                seen = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.row}, {w.offset};')}, {8 * h + 1};")
                high = v("i32", f"min.s32 {{}}, {high}, {seen};")
            room = v("i32", f"sub.s32 {{}}, {high}, {start};")
            for i, c in self._columns(h):
                k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {room}, {c};')} mov.f32 {s[i]}, {NEVER};")
        k.place(skip)

    def _pointer(self, var: Var | None) -> str:
        assert var is not None
        return str(self.e.env[var].pointer)

    @staticmethod
    def _columns(h: int) -> list[tuple[int, int]]:
        """(register, column relative to the thread's first) of row h of a thread."""
        return [(i + c, 8 * (i // 4) + c) for i in range(2 * h, TILE // 2, 4) for c in range(2)]

    def _maxima(self, s: list[str]) -> None:
        """Scores become exp2(score − running maximum); what was summed before fades."""
        k, g, v = self.k, self.kernel, self.k.value
        scale = literal("float", g.scale * LOG2E)
        for h in range(2):
            mine = [s[i] for i, _c in self._columns(h)]
            top = self._tree("max.f32", mine)
            for reach in (1, 2):
                top = v("float", f"max.f32 {{}}, {top}, {v('float', f'shfl.sync.bfly.b32 {{}}, {top}, {reach}, 31, -1;')};")
            top = v("float", f"max.f32 {{}}, {top}, {self.top[h]};")
            known = v("float", f"selp.f32 {{}}, {ZERO}, {top}, {v('i1', f'setp.eq.f32 {{}}, {top}, {NEVER};')};")
            base = v("float", f"mul.rn.f32 {{}}, {known}, {literal('float', -g.scale * LOG2E)};")
            k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'fma.rn.f32 {{}}, {self.top[h]}, {scale}, {base};')};")
            k.emit(f"mov.f32 {self.top[h]}, {top};")
            for r in mine:
                k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {base};")
                k.emit(f"ex2.approx.ftz.f32 {r}, {r};")
            k.emit(f"fma.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]}, {self._tree('add.rn.f32', mine)};")

    def _moments(self, s: list[str], dp: list[str]) -> None:
        """Σ P·dP of every row."""
        k, v = self.k, self.k.value
        for h in range(2):
            parts = [v("float", f"mul.rn.f32 {{}}, {s[i]}, {dp[i]};") for i, _c in self._columns(h)]
            k.emit(f"fma.rn.f32 {self.moment[h]}, {self.moment[h]}, {self.fade[h]}, {self._tree('add.rn.f32', parts)};")

    def _tree(self, op: str, parts: Sequence[str]) -> str:
        found = list(parts)
        while len(found) > 1:
            found = [self.k.value("float", f"{op} {{}}, {found[i]}, {found[i + 1]};") for i in range(0, len(found), 2)]
        return found[0]

    def _store_stats(self) -> None:
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.padded}, {self.row};")
        first = v("i1", f"setp.eq.u32 {{}}, {self.quad}, 0;")
        for h in range(2):
            total, moment = self.total[h], self.moment[h]
            for reach in (1, 2):
                total = v("float", f"add.rn.f32 {{}}, {total}, {v('float', f'shfl.sync.bfly.b32 {{}}, {total}, {reach}, 31, -1;')};")
                moment = v("float", f"add.rn.f32 {{}}, {moment}, {v('float', f'shfl.sync.bfly.b32 {{}}, {moment}, {reach}, 31, -1;')};")
            row = v("i32", f"add.u32 {{}}, {self.row}, {8 * h};")
            nothing = v("i1", f"setp.eq.f32 {{}}, {total}, {ZERO};")
            nothing = v("i1", f"or.pred {{}}, {nothing}, {v('i1', f'setp.ge.s32 {{}}, {row}, {w.sq};')};")
            log = v("float", f"lg2.approx.f32 {{}}, {total};")
            lse = v("float", f"fma.rn.f32 {{}}, {self.top[h]}, {literal('float', g.scale * LOG2E)}, {log};")
            delta = v("float", f"div.rn.f32 {{}}, {moment}, {total};")
            for var, value, none in ((g.lse, lse, INF), (g.delta, delta, ZERO)):
                value = v("float", f"selp.f32 {{}}, {none}, {value}, {nothing};")
                address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self._pointer(var)};")
                k.emit(f"@{first} st.global.f32 [{address}+{32 * h}], {value};")
