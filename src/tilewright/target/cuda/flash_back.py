"""The reverse pass of attention on Hopper, written as PTX: three kernels of one shape, none of which adds through memory.

A block owns 128 rows of two matrices that stay in shared memory; 64-row tiles of two others come through a ring of stages. Two products
give a tile of
scores (own0 · stream0ᵀ) and of their cotangent dP (own1 · stream1ᵀ), always in registers:

- `stats` owns Q and dO, streams K and V: per row log2 Σ exp and δ = Σ P·dP;
- `dq` owns and streams the same: dS = P·(dP − δ), dQ += dS · K;
- `dkv` owns K and V, streams Q and dO of every head that shares them: dV += Pᵀ · dO, dK += dSᵀ · Q, all transposed so that the left
operand is in registers.

So every sum has one order. Rows past an end are zeros with an infinite log-sum, which weighs nothing; so does a row that sees no key.
"""

from __future__ import annotations

from types import SimpleNamespace

from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import FlashBackKernel
from ...tile.ir import TileType
from .emit import Emitter
from .flash_back_rows import LOG2E, NEVER, TILE, ZERO, RowStatistics
from .gemm_pieces import Ring, matrix_descriptor, wait, wgmma_registers, wgmma_shared
from .layout import Fragment, Key, Regs
from .ptx_text import KernelText, literal, module_text

STATS = 1024  # bytes after a stage's tiles: log-sums and δ of its rows
PRODUCER_REGISTERS, CONSUMER_REGISTERS = 24, 240


def emit_flash_back(kernel: FlashBackKernel, target: TargetSpec) -> str:
    return FlashBack(kernel).module(target)


def flash_back_shared(kernel: FlashBackKernel) -> int:
    return 2 * kernel.rows * kernel.d * 2 + kernel.stages * stage_bytes(kernel) + 1024


def stage_bytes(kernel: FlashBackKernel) -> int:
    return 2 * TILE * kernel.d * 2 + (STATS if kernel.mode == "dkv" else 0)


class FlashBack(RowStatistics):
    def __init__(self, kernel: FlashBackKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=4)
        self.e = Emitter(kernel, Fragment(), self.k)
        self.own_bytes, self.tile_bytes = kernel.rows * kernel.d * 2, TILE * kernel.d * 2
        self.turned = kernel.mode == "dkv"  # rows are keys, columns are queries
        self.tight = self.turned and kernel.d > 64  # no registers for the next scores while the last sums are under way

    def module(self, target: TargetSpec) -> str:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        names = ["sq", "sk", "offset", "heads", "group", "tiles", "padded"]
        e.parameters(names)
        self.word = SimpleNamespace(**{n: v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i, n in enumerate(names)})
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
        return module_text(target.cpu, ".extern .shared .align 1024 .b8 ring[];\n\n" + text)

    def _setup(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        base = v("i32", f"add.u32 {{}}, {v('i32', 'mov.u32 {}, ring;')}, 1023;")
        self.base = v("i32", f"and.b32 {{}}, {base}, -1024;")
        self.first_stage = v("i32", f"add.u32 {{}}, {self.base}, {2 * self.own_bytes};")
        self.bars = v("i32", "mov.u32 {}, bars;")
        self.maps = [v("i64", f"cvta.param.u64 {{}}, {v('i64', f'mov.b64 {{}}, map{i};')};") for i in range(4)]
        ready = k.label("ready")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {ready};")
        k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}], 1;")
        for s in range(g.stages):
            k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}+{8 + 8 * s}], 1;")
            k.emit(f"mbarrier.init.shared::cta.b64 [{self.bars}+{72 + 8 * s}], {g.consumers};")
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
        if not self.turned:
            tile = v("i32", f"sub.u32 {{}}, {v('i32', f'sub.u32 {{}}, {w.tiles}, {tile};')}, 1;")
        self.row0 = v("i32", f"mul.lo.u32 {{}}, {tile}, {g.rows};")
        self.head, self.batch = v("i32", f"rem.u32 {{}}, {which}, {w.heads};"), v("i32", f"div.u32 {{}}, {which}, {w.heads};")
        if self.turned:
            tiles = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {w.sq}, {TILE - 1};')}, 6;")
            self.first = "0"
            if g.causal:
                lowest = v("i32", f"max.s32 {{}}, {v('i32', f'sub.s32 {{}}, {self.row0}, {w.offset};')}, 0;")
                self.first = v("i32", f"min.u32 {{}}, {v('i32', f'shr.u32 {{}}, {lowest}, 6;')}, {tiles};")
            self.per_head = v("i32", f"sub.u32 {{}}, {tiles}, {self.first};")
            self.count = v("i32", f"mul.lo.u32 {{}}, {self.per_head}, {w.group};")
            return
        limit = w.sk
        if g.causal:
            last = v("i32", f"min.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.row0}, {g.rows};')}, {w.sq};")
            limit = v("i32", f"min.s32 {{}}, {limit}, {v('i32', f'add.s32 {{}}, {last}, {w.offset};')};")
            limit = v("i32", f"max.s32 {{}}, {limit}, 0;")
        self.count = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {limit}, {TILE - 1};')}, 6;")

    def _streamed(self, step: str) -> tuple[str, str]:
        """First row and head of the tile of a step."""
        v, w = self.k.value, self.word
        if not self.turned:
            return v("i32", f"shl.b32 {{}}, {step}, 6;"), v("i32", f"div.u32 {{}}, {self.head}, {w.group};")
        which, inside = v("i32", f"div.u32 {{}}, {step}, {self.per_head};"), v("i32", f"rem.u32 {{}}, {step}, {self.per_head};")
        row = v("i32", f"shl.b32 {{}}, {v('i32', f'add.u32 {{}}, {inside}, {self.first};')}, 6;")
        return row, v("i32", f"mad.lo.u32 {{}}, {self.head}, {w.group}, {which};")

    def _bar(self, first: int, stage: str) -> str:
        return f"{self.k.value('i32', f'mad.lo.u32 {{}}, {stage}, 8, {self.bars};')}+{first}"

    # --- the producer -------------------------------------------------------------------------------------------------
    def _load(self, which: int, target: str, row: str, head: str, barrier: str, rows: int) -> None:
        for c in range(self.kernel.d // 64):
            self.k.emit(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"[{target}+{c * rows * 128}], [{self.maps[which]}, {{{64 * c}, {row}, {head}, {self.batch}}}], [{barrier}];"
            )

    def _produce(self, end: str) -> None:
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        k.emit(f"setmaxnreg.dec.sync.aligned.u32 {PRODUCER_REGISTERS};")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {end};")
        k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{self.bars}], {2 * self.own_bytes};")
        for i in range(2):
            at = v("i32", f"add.u32 {{}}, {self.base}, {i * self.own_bytes};")
            self._load(i, at, self.row0, self.head, self.bars, g.rows)
        ring, step = Ring(k, g.stages, phase=1), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        top = k.label("copy")
        k.place(top)
        wait(k, self._bar(72, ring.stage), ring.phase)
        full = self._bar(8, ring.stage)
        k.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [{full}], {2 * self.tile_bytes + (512 if self.turned else 0)};")
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.first_stage};")
        row, head = self._streamed(step)
        for i in range(2):
            self._load(2 + i, v("i32", f"add.u32 {{}}, {spot}, {i * self.tile_bytes};") if i else spot, row, head, full, TILE)
        if self.turned:
            heads = v("i32", f"mul.lo.u32 {{}}, {w.heads}, {w.group};")
            line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {heads}, {head};")
            at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.padded}, {row};")
            for i, var in enumerate((g.lse, g.delta)):
                source = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self._pointer(var)};")
                target = v("i32", f"add.u32 {{}}, {spot}, {2 * self.tile_bytes + 256 * i};")
                k.emit(f"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [{target}], [{source}], 256, [{full}];")
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
        packs = [[k.reg("i32") for _ in range(TILE // 4)] for _ in range({"stats": 0, "dq": 1, "dkv": 2}[g.mode])]
        sums = [[k.reg("float") for _ in range(g.d // 2)] for _ in packs]
        for r in (r for total in sums for r in total):
            k.emit(f"mov.f32 {r}, {ZERO};")
        self._start_rows()
        done = k.label("nothing")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {done};")
        wait(k, self.bars, "0")
        ring, step, previous = Ring(k, g.stages, phase=0), k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        k.emit(f"mov.u32 {previous}, 0;")
        top = k.label("tile")
        k.place(top)
        wait(k, self._bar(8, ring.stage), ring.phase)
        spot = v("i32", f"mad.lo.u32 {{}}, {ring.stage}, {stage_bytes(g)}, {self.first_stage};")
        second = v("i32", f"add.u32 {{}}, {spot}, {self.tile_bytes};")
        k.emit("wgmma.fence.sync.aligned;")
        for target, a, at in ((s, own[0], spot), (dp, own[1], second)):
            self._product(target, a, matrix_descriptor(k, at, 1))
        k.emit("wgmma.wait_group.sync.aligned 1;")
        if packs and not self.tight:
            more = v("i1", f"setp.ne.u32 {{}}, {step}, 0;")
            k.emit(f"@{v('i1', f'and.pred {{}}, {lead}, {more};')} mbarrier.arrive.shared::cta.b64 _, [{self._bar(72, previous)}];")
        first_column, _ = self._streamed(step)
        self._mask(s, first_column)
        at_stats = v("i32", f"mad.lo.u32 {{}}, {self.quad}, 4, {v('i32', f'add.u32 {{}}, {spot}, {2 * self.tile_bytes};')};")
        {"stats": self._maxima, "dq": self._weights, "dkv": self._weights}[g.mode](s, at_stats)
        if g.mode == "dkv":
            self._pack(packs[0], s)
        k.emit("wgmma.wait_group.sync.aligned 0;")
        if g.mode == "stats":
            self._moments(s, dp)
            k.emit(f"@{lead} mbarrier.arrive.shared::cta.b64 _, [{self._bar(72, ring.stage)}];")
        else:
            self._cotangents(s, dp, at_stats)
            self._pack(packs[-1], dp)
            k.emit("wgmma.fence.sync.aligned;")
            for total, left, at in zip(sums, packs, (spot,) if g.mode == "dq" else (second, spot), strict=True):
                right = matrix_descriptor(k, at, TILE * 128)
                for i in range(TILE // 16):
                    b = v("i64", f"add.s64 {{}}, {right}, {128 * i};") if i else right
                    wgmma_registers(k, total, g.dtype, left[4 * i : 4 * i + 4], b, k.truth(True))
            k.emit("wgmma.commit_group.sync.aligned;")
            if self.tight:
                k.emit("wgmma.wait_group.sync.aligned 0;")
                k.emit(f"@{lead} mbarrier.arrive.shared::cta.b64 _, [{self._bar(72, ring.stage)}];")
        k.emit(f"mov.u32 {previous}, {ring.stage};")
        ring.advance()
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {top};")
        k.emit("wgmma.wait_group.sync.aligned 0;")
        k.place(done)
        if g.mode == "stats":
            self._store_stats()
        else:
            self._epilogue(sums)

    def _product(self, target: list[str], a: str, b: str) -> None:
        """target = own rows · streamed rowsᵀ over the head size."""
        k, g, v = self.k, self.kernel, self.k.value
        for i in range(g.d // 16):
            chunk, inside = divmod(i, 4)
            x = v("i64", f"add.s64 {{}}, {a}, {(chunk * g.rows * 128 >> 4) + 2 * inside};")
            y = v("i64", f"add.s64 {{}}, {b}, {(chunk * TILE * 128 >> 4) + 2 * inside};")
            wgmma_shared(k, target, g.dtype, x, y, k.truth(i > 0))
        k.emit("wgmma.commit_group.sync.aligned;")

    def _start_rows(self) -> None:
        """What a thread keeps about its two rows."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        if self.turned:
            return
        if g.mode == "stats":
            self.top, self.total, self.moment, self.fade = ([k.reg("float") for _ in range(2)] for _ in range(4))
            for h in range(2):
                k.emit(f"mov.f32 {self.top[h]}, {NEVER};")
                k.emit(f"mov.f32 {self.total[h]}, {ZERO};")
                k.emit(f"mov.f32 {self.moment[h]}, {ZERO};")
            return
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.padded}, {self.row};")
        places = [v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self._pointer(var)};") for var in (g.lse, g.delta)]
        self.lse, self.delta = ([v("float", f"ld.global.f32 {{}}, [{p}+{32 * h}];") for h in range(2)] for p in places)

    def _mask(self, s: list[str], first: str) -> None:
        """−inf where a query does not see a key. Tiles that need no mask skip it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        skip = k.label("unmasked")
        if self.turned:  # column q sees row key iff q >= key - offset
            if not g.causal:
                return
            most = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.my_row0}, 63;')}, {w.offset};")
            k.emit(f"@{v('i1', f'setp.ge.s32 {{}}, {first}, {most};')} bra {skip};")
            mine, here = v("i32", f"sub.s32 {{}}, {self.row}, {w.offset};"), v("i32", f"add.s32 {{}}, {first}, {self.quad};")
            least = v("i32", f"sub.s32 {{}}, {mine}, {here};")
            for h in range(2):
                bound = v("i32", f"add.s32 {{}}, {least}, {8 * h};") if h else least
                for i, c in self._columns(h):
                    k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {bound}, {c};')} mov.f32 {s[i]}, {NEVER};")
            k.place(skip)
            return
        plain = w.sk
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

    def _per_element(self, at_stats: str, which: int, h: int, i: int, held: dict[int, tuple[str, str]]) -> str:
        """log2 Σ exp (0) or δ (1) of the query of a register."""
        if not self.turned:
            return (self.lse, self.delta)[which][h]
        group = i // 4
        if group not in held:
            held[group] = (self.k.reg("float"), self.k.reg("float"))
            self.k.emit(f"ld.shared.v2.f32 {{{', '.join(held[group])}}}, [{at_stats}+{256 * which + 32 * group}];")
        return held[group][i % 2]

    def _weights(self, s: list[str], at_stats: str) -> None:
        """Scores become probabilities."""
        k, v = self.k, self.k.value
        scale = literal("float", self.kernel.scale * LOG2E)
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(s):
            lse = self._per_element(at_stats, 0, i % 4 // 2, i, held)
            k.emit(f"fma.rn.f32 {r}, {r}, {scale}, {v('float', f'neg.f32 {{}}, {lse};')};")
            k.emit(f"ex2.approx.ftz.f32 {r}, {r};")

    def _cotangents(self, p: list[str], dp: list[str], at_stats: str) -> None:
        """dS = P·(dP − δ), in the registers of dP."""
        held: dict[int, tuple[str, str]] = {}
        for i, r in enumerate(dp):
            self.k.emit(f"sub.rn.f32 {r}, {r}, {self._per_element(at_stats, 1, i % 4 // 2, i, held)};")
            self.k.emit(f"mul.rn.f32 {r}, {r}, {p[i]};")

    def _pack(self, packed: list[str], values: list[str]) -> None:
        """As the left operand of a product."""
        for i, w in enumerate(packed):
            self.k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {values[2 * i + 1]}, {values[2 * i]};")

    def _epilogue(self, sums: list[list[str]]) -> None:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        for r in sums[-1]:  # dQ, or dK
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale)};")
        for var, total in zip(g.sums, sums, strict=True):
            assert isinstance(var.type, TileType)
            values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(total)}
            e.env[var] = Regs(var.type, values)
        assert g.row is not None and g.head is not None and g.batch is not None
        for var, reg in ((g.row, self.my_row0), (g.head, self.head), (g.batch, self.batch)):
            e.env[var] = v("i64", f"cvt.u64.u32 {{}}, {reg};")
        e.block(g.body)
