"""Attention forward on Hopper, written as PTX: online softmax in registers between two `wgmma` products.

A block owns 64 query rows of one head for each warpgroup that multiplies; one thread of another warpgroup copies Q (the next one while this
one is still read), and K and V tile by tile through rings of stages. While the tensor core works on the output of tile j-1, the threads
compute the softmax of the scores of tile j. Scores stay in f32 registers; probabilities are rounded to the operands' dtype for the second
product. Keys past the end, above the diagonal or outside the window get no weight; a row that sees no key gives zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import FlashKernel
from ....tile.ir import TileType
from ..matmul.gemm_pieces import matrix_descriptor, wgmma_registers, wgmma_shared
from ..matmul.groups import PRODUCTS, Groups
from ..matmul.stages import RING, Consumer, Producer, Ring, Stages
from ..ptx.text import KernelText, literal, module_text
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs

LOG2E = 1.0 / math.log(2.0)
INF = literal("float", -math.inf)


LEAST = literal("float", -3.4028234663852886e38)


def add_bias(k: KernelText, r: str, bias: str, dtype: str) -> None:
    """A bias onto a score in powers of two. The least bf16 is a number still: a row of them is an average, not a row that sees nothing."""
    k.emit(f"fma.rn.f32 {r}, {bias}, {literal('float', LOG2E)}, {r};")
    if dtype == "bf16":
        low, number = k.value("i1", f"setp.eq.f32 {{}}, {r}, {INF};"), k.value("i1", f"setp.gt.f32 {{}}, {bias}, {INF};")
        k.emit(f"@{k.value('i1', f'and.pred {{}}, {low}, {number};')} mov.f32 {r}, {LEAST};")


# powers of two; f16 must hold a single weight, and lose none that counts. With bf16, f32 holds sums of values up to 2^90.
# Attention's softmax without the maximum in its way: exponentials relative to what the tiles before have shown.
# A tile's weights are 2^(score − level), where the level is the largest score of an earlier tile. They may be above 1: nothing is lost as
# long as they stay far from overflow, which their sum, wanted anyway, tells. Where the sum of a thread's part of a row passes 2^`LIMIT`,
# the warp becomes careful: in this tile, whose weights are computed again, and in the others of this piece of work it looks for the rows'
# maxima first. A level that a maximum passes by more than `LIMIT` is raised to `ROOM` above it, and what was summed before is rescaled.
# Whether a level is raised depends on that row alone: its bits do not depend on the others of its warp.
LIMIT, ROOM = {"bf16": 32, "f16": 13}, {"bf16": 32, "f16": 6}
UNSEEN = literal("float", float.fromhex("0x1.fffffep127"))  # −level of a row that has seen nothing: a score gives inf, −inf gives 0


WORDS = ("sq", "sk", "offset", "window", "heads", "group", "q_tiles", "works", "chunk", "lines")
QUERIES = 2  # buffers of Q


def emit_flash(kernel: FlashKernel, target: TargetSpec) -> str:
    return Flash(kernel).module(target)


def flash_shared(kernel: FlashKernel) -> int:
    return (QUERIES * kernel.rows + 2 * kernel.plan.stages * kernel.keys) * kernel.d * 2 + 1024


class Flash:
    def __init__(self, kernel: FlashKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=3)
        self.e = Emitter(kernel, Fragment(), self.k)
        self.q_bytes, self.tile_bytes = kernel.rows * kernel.d * 2, kernel.keys * kernel.d * 2
        self.k_start = QUERIES * self.q_bytes  # the start of the ring of keys

    @property
    def registers(self) -> tuple[int, int]:
        """Registers of threads that copy and of those that multiply."""
        if self.kernel.plan.per_sm > 1:
            return 24, 136
        return (24, 240) if self.changed else (40, 232)  # 2 % faster where it is enough

    def module(self, target: TargetSpec) -> str:
        g, k, e = self.kernel, self.k, self.e
        e.parameters(WORDS)
        self.word = SimpleNamespace(**{n: k.value("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i, n in enumerate(WORDS)})
        k.prologue.insert(0, "  .shared .align 8 .b64 bars[22];")
        self._setup()
        producer, end = k.label("producer"), k.label("end")
        k.emit(f"@{k.value('i1', f'setp.lt.u32 {{}}, {self.tid}, 128;')} bra {producer};")
        self._consume()
        k.emit(f"bra {end};")
        k.place(producer)
        self._produce(end)
        k.place(end)
        text = k.text([f".maxntid {g.block}, 1, 1", f".minnctapersm {g.plan.per_sm}"], target.cpu)
        return module_text(target.cpu, RING + text)

    # --- barriers: full and empty of K, of V and of Q -------------------------------------------------------------------
    def _setup(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        base = v("i32", "mov.u32 {}, ring;")
        base = v("i32", f"add.u32 {{}}, {base}, 1023;")
        self.shared = v("i32", f"and.b32 {{}}, {base}, -1024;")
        self.bars = v("i32", "mov.u32 {}, bars;")
        self.maps = [v("i64", f"cvta.param.u64 {{}}, {v('i64', f'mov.b64 {{}}, map{i};')};") for i in range(3)]
        self.of_keys, self.of_values = (Stages(k, self.bars, g.plan.stages, *at, g.plan.consumers) for at in ((0, 32), (64, 96)))
        self.of_queries = Stages(k, self.bars, QUERIES, 128, 160, g.plan.consumers)
        ready = k.label("ready")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {ready};")
        for stages in (self.of_keys, self.of_values, self.of_queries):
            for i in range(stages.count):
                stages.init(i)
        for m in self.maps:
            k.emit(f"prefetch.tensormap [{m}];")
        k.emit("fence.proxy.async.shared::cta;")
        k.place(ready)
        k.emit("bar.sync 0;")

    def _work_loop(self) -> tuple[str, str, str]:
        """Blocks of the grid share the blocks of rows of all heads."""
        k, v = self.k, self.k.value
        work = k.reg("i32")
        k.emit(f"mov.u32 {work}, %ctaid.x;")
        top, done = k.label("work"), k.label("works_done")
        k.place(top)
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {work}, {self.word.works};')} bra {done};")
        self._position(work)
        return work, top, done

    def _next_work(self, work: str, top: str, done: str) -> None:
        k = self.k
        k.emit(f"add.u32 {work}, {work}, {k.value('i32', 'mov.u32 {}, %nctaid.x;')};")
        k.emit(f"bra {top};")
        k.place(done)

    def _position(self, block: str) -> None:
        """Rows, head and batch of this block, and its range of key tiles. Of `chunk` heads, whose keys stay in L2, the long rows come
        first: blocks that take every n-th piece of work then get about the same lengths."""
        v, w, g = self.k.value, self.word, self.kernel
        some = v("i32", f"mul.lo.u32 {{}}, {w.chunk}, {w.q_tiles};")
        start = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {block}, {some};')}, {w.chunk};")
        rest = v("i32", f"rem.u32 {{}}, {block}, {some};")
        size = v("i32", f"min.u32 {{}}, {w.chunk}, {v('i32', f'sub.u32 {{}}, {w.lines}, {start};')};")
        tile = v("i32", f"div.u32 {{}}, {rest}, {size};")
        which = v("i32", f"add.u32 {{}}, {start}, {v('i32', f'rem.u32 {{}}, {rest}, {size};')};")
        tile = v("i32", f"sub.u32 {{}}, {v('i32', f'sub.u32 {{}}, {w.q_tiles}, {tile};')}, 1;")
        self.q0 = v("i32", f"mul.lo.u32 {{}}, {tile}, {g.rows};")
        self.head = v("i32", f"rem.u32 {{}}, {which}, {w.heads};")
        self.batch = v("i32", f"div.u32 {{}}, {which}, {w.heads};")
        self.kv_head = v("i32", f"div.u32 {{}}, {self.head}, {w.group};")
        limit = w.sk
        if g.causal:
            last = v("i32", f"min.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.q0}, {g.rows};')}, {w.sq};")
            limit = v("i32", f"min.s32 {{}}, {limit}, {v('i32', f'add.s32 {{}}, {last}, {w.offset};')};")
            limit = v("i32", f"max.s32 {{}}, {limit}, 0;")
        tiles = v("i32", f"div.u32 {{}}, {v('i32', f'add.u32 {{}}, {limit}, {g.keys - 1};')}, {g.keys};")
        self.first = "0"
        if g.windowed:
            low = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.q0}, {w.offset};')}, {w.window};")
            low = v("i32", f"max.s32 {{}}, {v('i32', f'add.s32 {{}}, {low}, 1;')}, 0;")
            self.first = v("i32", f"div.u32 {{}}, {low}, {g.keys};")
            tiles = v("i32", f"max.u32 {{}}, {tiles}, {self.first};")
        self.last = tiles  # one past
        self.count = v("i32", f"sub.u32 {{}}, {tiles}, {self.first};")

    # --- the producer -------------------------------------------------------------------------------------------------
    def _load(self, which: int, target: str, row: str, head: str, barrier: str, rows: int) -> None:
        for c in range(self.kernel.d // 64):
            self.k.emit(
                "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                f"[{target}+{c * rows * 128}], [{self.maps[which]}, {{{64 * c}, {row}, {head}, {self.batch}}}], [{barrier}];"
            )

    def _copy(self, name: str, ring: Producer, step: str) -> None:
        k, g = self.k, self.kernel
        which = 1 if name == "k" else 2
        full = ring.fill(self.tile_bytes)
        tile = k.value("i32", f"sub.u32 {{}}, {self.last}, {step};")
        row = k.value("i32", f"mul.lo.u32 {{}}, {k.value('i32', f'sub.u32 {{}}, {tile}, 1;')}, {g.keys};")
        start = self.k_start + (0 if name == "k" else g.plan.stages * self.tile_bytes)
        spot = k.value("i32", f"mad.lo.u32 {{}}, {ring.stage}, {self.tile_bytes}, {self.shared};")
        spot = k.value("i32", f"add.u32 {{}}, {spot}, {start};")
        self._load(which, spot, row, self.kv_head, full, g.keys)
        ring.advance()

    def _produce(self, end: str) -> None:
        k, v = self.k, self.k.value
        k.emit(f"setmaxnreg.dec.sync.aligned.u32 {self.registers[0]};")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        keys, values, queries = (Producer(k, x) for x in (self.of_keys, self.of_values, self.of_queries))
        work, again, over = self._work_loop()
        empty = k.label("nothing")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {empty};")
        full = queries.fill(self.q_bytes)
        spot = v("i32", f"mad.lo.u32 {{}}, {queries.stage}, {self.q_bytes}, {self.shared};")
        self._load(0, spot, self.q0, self.head, full, self.kernel.rows)
        queries.advance()
        step, ahead = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        self._copy("k", keys, "0")
        top, skip = k.label("copy"), k.label("no_key")
        k.place(top)
        k.emit(f"add.u32 {ahead}, {step}, 1;")
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {ahead}, {self.count};')} bra {skip};")
        self._copy("k", keys, ahead)
        k.place(skip)
        self._copy("v", values, step)
        k.emit(f"mov.u32 {step}, {ahead};")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {self.count};')} bra {top};")
        k.place(empty)
        self._next_work(work, again, over)

    # --- the consumers ------------------------------------------------------------------------------------------------
    def _consume(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        k.emit(f"setmaxnreg.inc.sync.aligned.u32 {self.registers[1]};")
        who = v("i32", f"sub.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 7;')}, 1;")
        mine = v("i32", f"mad.lo.u32 {{}}, {who}, 8192, {self.shared};")
        desc_q = matrix_descriptor(k, mine, 1)
        self.desc_k = matrix_descriptor(k, v("i32", f"add.u32 {{}}, {self.shared}, {self.k_start};"), 1)
        at_v = v("i32", f"add.u32 {{}}, {self.shared}, {self.k_start + g.plan.stages * self.tile_bytes};")
        self.desc_v = matrix_descriptor(k, at_v, g.keys * 128)
        self.lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 127;')}, 0;")
        self.scores = [k.reg("float") for _ in range(g.keys // 2)]
        self.out = [k.reg("float") for _ in range(g.d // 2)]
        self.base, self.total, self.fade = ([k.reg("float") for _ in range(2)] for _ in range(3))
        self.careful = k.reg("i1")
        self.products = Groups(k, *PRODUCTS)
        self.keys, self.values, self.queries = (Consumer(k, x) for x in (self.of_keys, self.of_values, self.of_queries))
        work, again, over = self._work_loop()
        for r in self.out:
            k.emit(f"mov.f32 {r}, 0f00000000;")
        for h in range(2):
            k.emit(f"mov.f32 {self.base[h]}, {UNSEEN};")
            k.emit(f"mov.f32 {self.total[h]}, 0f00000000;")
        self.row0 = v("i32", f"mad.lo.u32 {{}}, {who}, 64, {self.q0};")
        self._limits()
        self._extras()
        done = k.label("no_keys")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.count}, 0;')} bra {done};")
        self.tile = k.reg("i32")
        k.emit(f"sub.u32 {self.tile}, {self.last}, 1;")
        self.queries.ready()
        hop = v("i32", f"mul.lo.u32 {{}}, {self.queries.stage}, {self.q_bytes >> 4};")
        self.desc_q = v("i64", f"add.s64 {{}}, {desc_q}, {v('i64', f'cvt.u64.u32 {{}}, {hop};')};")
        self._tiles()
        k.place(done)
        self._epilogue()
        self._next_work(work, again, over)

    def _epilogue(self) -> None:
        g, k, e, v = self.kernel, self.k, self.e, self.k.value
        for h in range(2):
            total = self._of_row("add.rn.f32", self.total[h])
            nothing = v("i1", f"setp.eq.f32 {{}}, {total}, 0f00000000;")
            if g.logsumexps is not None:
                self._store_log_sum(h, total, nothing)
            inverse = v("float", f"rcp.rn.f32 {{}}, {total};")
            inverse = v("float", f"selp.f32 {{}}, {'0f7FC00000' if g.nan_rows else '0f00000000'}, {inverse}, {nothing};")
            for i in range(h * 2, len(self.out), 4):
                for c in range(2):
                    k.emit(f"mul.rn.f32 {self.out[i + c]}, {self.out[i + c]}, {inverse};")
        assert g.acc is not None and g.row is not None and g.head is not None and g.batch is not None
        assert isinstance(g.acc.type, TileType)
        values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(self.out)}
        e.env[g.acc] = Regs(g.acc.type, values)
        for var, reg in ((g.row, self.row0), (g.head, self.head), (g.batch, self.batch)):
            e.env[var] = v("i64", f"cvt.u64.u32 {{}}, {reg};")
        e.block(g.body)

    # The tiles of keys of one piece of attention forward on Hopper: products, and the softmax between them.
    # The scores of a tile and the sums of the tile before are started together; the softmax of the tile comes while the sums are still
    # computed. The branch on what the softmax gives keeps the wait for the sums behind it: the assembler would move it up to the wait for
    # the scores.
    def _tiles(self) -> None:
        """All tiles of keys of a piece of work. A tile's weights are made while those of the tile before are still read, so there are two
        sets, in turn."""
        k, v = self.k, self.k.value
        sets = [[k.reg("i32") for _ in range(self.kernel.keys // 4)] for _ in range(2)]
        self.products.wait(self._scores())
        self._first_weights(sets[0])
        k.emit(f"mov.pred {self.careful}, {k.truth(False)};")
        top, outs, end = k.label("keys"), [k.label("last_keys") for _ in sets], k.label("keys_done")
        k.place(top)
        for turn in range(2):
            old, new = sets[turn], sets[1 - turn]
            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {self.tile}, {self.first};')} bra {outs[turn]};")
            k.emit(f"sub.u32 {self.tile}, {self.tile}, 1;")
            start, kept = self.products.in_flight, k.label("kept")
            scores, sums = self._scores(), self._weighted(old)
            self.products.wait(scores)
            found, grew = self._next_weights(new)
            self.products.wait(sums)
            k.emit(f"@!{grew} bra {kept};")
            for i, r in enumerate(self.out):
                k.emit(f"mul.rn.f32 {r}, {r}, {self.fade[i % 4 // 2]};")
            k.place(kept)
            for h in range(2):
                k.emit(f"add.rn.f32 {self.total[h]}, {self.total[h]}, {found[h]};")
            self.products.again(start)
        k.emit(f"bra {top};")
        for turn in range(2):
            k.place(outs[turn])
            self._release(self.queries)
            self.products.wait(self._weighted(sets[turn]))
            if not turn:
                k.emit(f"bra {end};")
        k.place(end)

    def _stage(self, base: str, ring: Ring) -> str:
        hop = self.k.value("i32", f"mul.lo.u32 {{}}, {ring.stage}, {self.tile_bytes >> 4};")
        return self.k.value("i64", f"add.s64 {{}}, {base}, {self.k.value('i64', f'cvt.u64.u32 {{}}, {hop};')};")

    def _scores(self) -> int:
        """Start Q · Kᵀ of the tile in the ring, which is free when they are there."""
        k, g = self.k, self.kernel
        self.keys.ready()
        keys = self._stage(self.desc_k, self.keys)
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(g.d // 16):
            chunk, inside = divmod(i, 4)
            a = k.value("i64", f"add.s64 {{}}, {self.desc_q}, {(chunk * g.rows * 128 >> 4) + 2 * inside};")
            b = k.value("i64", f"add.s64 {{}}, {keys}, {(chunk * g.keys * 128 >> 4) + 2 * inside};")
            wgmma_shared(k, self.scores, g.dtype, a, b, k.truth(i > 0))
        return self.products.commit(lambda: self._release(self.keys))

    def _weighted(self, weights: Sequence[str]) -> int:
        """Start O += P · V of the tile in the ring, which is free when they are there."""
        k, g = self.k, self.kernel
        self.values.ready()
        values = self._stage(self.desc_v, self.values)
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(g.keys // 16):
            b = k.value("i64", f"add.s64 {{}}, {values}, {128 * i};")
            wgmma_registers(k, self.out, g.dtype, weights[4 * i : 4 * i + 4], b, k.truth(True))
        return self.products.commit(lambda: self._release(self.values))

    def _release(self, ring: Consumer) -> None:
        ring.of.release(ring.stage, self.lead)
        ring.advance()

    def _powers(self, weights: Sequence[str]) -> list[str]:
        """The tile's weights, in pairs; gives the sums of the thread's parts of its rows."""
        k, v = self.k, self.k.value
        scale = literal("float", self.factor)
        sums: list[list[str]] = [[], []]
        for i, w in enumerate(weights):
            h, turn = i % 2, i // 2
            powers = [v("float", f"fma.rn.f32 {{}}, {x}, {scale}, {self.base[h]};") for x in self.scores[2 * i : 2 * i + 2]]
            low, high = (v("float", f"ex2.approx.ftz.f32 {{}}, {x};") for x in powers)
            k.emit(f"cvt.rn.{self.kernel.dtype}x2.f32 {w}, {high}, {low};")
            both = v("float", f"add.rn.f32 {{}}, {low}, {high};")
            if turn < 2:
                sums[h].append(both)
            else:
                sums[h][turn % 2] = v("float", f"add.rn.f32 {{}}, {sums[h][turn % 2]}, {both};")
        return [v("float", f"add.rn.f32 {{}}, {a}, {b};") for a, b in sums]

    def _largest(self, h: int) -> str:
        """The maximum of a row, of which four threads have parts."""
        v, best = self.k.value, [r for r, _ in self._columns(h)]
        while len(best) > 1:
            best = [v("float", f"max.f32 {{}}, {best[i]}, {best[i + 1]};") for i in range(0, len(best), 2)]
        return self._of_row("max.f32", best[0])

    def _of_row(self, op: str, x: str) -> str:
        """What the four threads of a row make of their parts."""
        for reach in (1, 2):
            x = self.k.value("float", f"{op} {{}}, {x}, {self.k.value('float', f'shfl.sync.bfly.b32 {{}}, {x}, {reach}, 31, -1;')};")
        return x

    def _first_weights(self, weights: Sequence[str]) -> None:
        """Weights of the first tile, whose maximum is looked for."""
        k, v = self.k, self.k.value
        self._masked()
        for h in range(2):
            base = v("float", f"mul.rn.f32 {{}}, {self._largest(h)}, {literal('float', -self.factor)};")
            k.emit(f"min.f32 {self.base[h]}, {base}, {UNSEEN};")
        for h, total in enumerate(self._powers(weights)):
            k.emit(f"mov.f32 {self.total[h]}, {total};")

    def _next_weights(self, weights: Sequence[str]) -> tuple[list[str], str]:
        """Weights of a later tile: the sums of the thread's parts of its rows, and whether earlier sums must be multiplied by `fade`."""
        k, v = self.k, self.k.value
        self._masked()
        grew, again, quick, done = k.reg("i1"), k.label("again"), k.label("quick"), k.label("weights_done")
        k.emit(f"mov.pred {grew}, {k.truth(False)};")
        k.place(again)
        k.emit(f"@!{self.careful} bra {quick};")
        raised = [self._raise(h) for h in range(2)]
        k.emit(f"vote.sync.any.pred {grew}, {v('i1', f'or.pred {{}}, {raised[0]}, {raised[1]};')}, -1;")
        k.place(quick)
        found = self._powers(weights)
        small = [v("i1", f"setp.le.f32 {{}}, {x}, {literal('float', 2.0 ** LIMIT[self.kernel.dtype])};") for x in found]
        fine = v("i1", f"vote.sync.all.pred {{}}, {v('i1', f'and.pred {{}}, {small[0]}, {small[1]};')}, -1;")
        k.emit(f"@{v('i1', f'or.pred {{}}, {fine}, {self.careful};')} bra {done};")
        k.emit(f"mov.pred {self.careful}, {k.truth(True)};")
        k.emit(f"bra {again};")
        k.place(done)
        return found, grew

    def _raise(self, h: int) -> str:
        """Raise a row's level if its maximum is far above; gives whether it was. (Weights of such a maximum make the warp careful anyway,
        whatever `ex2` rounds.)"""
        k, v, dtype = self.k, self.k.value, self.kernel.dtype
        largest = self._largest(h)
        above = v("float", f"fma.rn.f32 {{}}, {largest}, {literal('float', self.factor)}, {self.base[h]};")
        raised = v("i1", f"setp.gt.f32 {{}}, {above}, {literal('float', LIMIT[dtype] + 0.0625)};")
        base = v("float", f"fma.rn.f32 {{}}, {largest}, {literal('float', -self.factor)}, {literal('float', -float(ROOM[dtype]))};")
        base = v("float", f"selp.f32 {{}}, {base}, {self.base[h]}, {raised};")
        k.emit(f"ex2.approx.ftz.f32 {self.fade[h]}, {v('float', f'sub.rn.f32 {{}}, {base}, {self.base[h]};')};")
        k.emit(f"mov.f32 {self.base[h]}, {base};")
        k.emit(f"mul.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]};")
        return raised

    def _store_log_sum(self, h: int, total: str, nothing: str) -> None:
        """log Σ exp of one of the thread's rows: one thread of four stores it."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        sums = v("float", f"sub.rn.f32 {{}}, {v('float', f'lg2.approx.f32 {{}}, {total};')}, {self.base[h]};")
        sums = v("float", f"mul.rn.f32 {{}}, {sums}, {literal('float', math.log(2.0))};")
        sums = v("float", f"selp.f32 {{}}, {INF}, {sums}, {nothing};")
        row, column = self._place()
        row = v("i32", f"add.u32 {{}}, {row}, {8 * h};") if h else row
        line = v("i32", f"mad.lo.u32 {{}}, {self.batch}, {w.heads}, {self.head};")
        at = v("i32", f"mad.lo.u32 {{}}, {line}, {w.sq}, {row};")
        first = v("i1", f"setp.eq.u32 {{}}, {column}, 0;")
        inside = v("i1", f"and.pred {{}}, {first}, {v('i1', f'setp.lt.s32 {{}}, {row}, {w.sq};')};")
        assert g.logsumexps is not None
        address = v("i64", f"mad.wide.u32 {{}}, {at}, 4, {self.e.env[g.logsumexps].pointer};")
        k.emit(f"@{inside} st.global.f32 [{address}], {sums};")

    @property
    def changed(self) -> bool:
        """Scores are more than a multiple of the products: they are brought to powers of two before their maximum is taken."""
        g = self.kernel
        return g.softcap is not None or g.bias is not None or g.mask is not None or g.scale <= 0  # then the least product is the largest

    @property
    def factor(self) -> float:
        """What turns a score into an exponent of two."""
        return 1.0 if self.changed else self.kernel.scale * LOG2E

    def _extras(self) -> None:
        """For each piece of work: where the thread's first row of mask and bias is at its first column, and how many rows on its second."""
        g, v = self.kernel, self.k.value
        self.beside: dict[str, tuple[Any, str]] = {}
        if g.bias is None and g.mask is None:
            return
        row, column = self._place()
        last = v("i32", f"sub.u32 {{}}, {self.word.sq}, 1;")
        rows = [v("i32", f"min.u32 {{}}, {x}, {last};") for x in (row, v("i32", f"add.u32 {{}}, {row}, 8;"))]  # others are not stored
        self.apart = v("i32", f"sub.u32 {{}}, {rows[1]}, {rows[0]};")
        for name, view in (("bias", g.bias), ("mask", g.mask)):
            if view is not None:
                address, at = self.e.env[view], "0"
                for place, stride in zip((self.batch, self.head, rows[0], column), address.strides, strict=True):
                    at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {place};')}, {stride}, {at};")
                self.beside[name] = address, v("i64", f"mad.lo.s64 {{}}, {at}, {address.dtype.itemsize}, {address.pointer};")

    def _change(self, start: str) -> None:
        """Soft cap, bias and mask: scores become exponents of two, or −inf."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        room, at = "", {}
        if self.beside:
            room = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {w.sk}, {start};')}, {self._place()[1]};")
            wide = v("i64", f"cvt.s64.s32 {{}}, {start};")
            for name, (address, first) in self.beside.items():
                hop = v("i64", f"mul.lo.s64 {{}}, {wide}, {address.strides[3]};")
                at[name] = v("i64", f"mad.lo.s64 {{}}, {hop}, {address.dtype.itemsize}, {first};")
        for h in range(2):
            for name, (address, _) in self.beside.items() if h else ():
                hop = v("i64", f"mul.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {self.apart};')}, {address.strides[2]};")
                at[name] = v("i64", f"mad.lo.s64 {{}}, {hop}, {address.dtype.itemsize}, {at[name]};")
            columns = self._columns(h)
            for pair in (columns[i : i + 2] for i in range(0, len(columns), 2)):
                for r, _ in pair:
                    self._scaled(r)
                for some in (pair[i : i + g.together] for i in range(0, 2, g.together)):
                    inside = v("i1", f"setp.gt.s32 {{}}, {room}, {some[0][1]};") if at else ""
                    if "bias" in at:
                        for (r, _), x in zip(some, self._biases(at["bias"], some[0][1], inside), strict=True):
                            add_bias(k, r, x, g.dtype)
                    if "mask" in at:
                        seen = k.reg("i32")
                        k.emit(f"mov.b32 {seen}, -1;")
                        k.emit(f"@{inside} ld.global.u{8 * g.together} {seen}, [{self._moved(at['mask'], g.mask, some[0][1])}];")
                        for i, (r, _) in enumerate(some):
                            one = v("i32", f"and.b32 {{}}, {seen}, {0xFF << 8 * i};") if g.together > 1 else seen
                            k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {one}, 0;')} mov.f32 {r}, {INF};")

    def _scaled(self, r: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        if g.softcap is None:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
            return
        power = v("float", f"mul.rn.f32 {{}}, {r}, {literal('float', 2 * LOG2E * g.scale / g.softcap)};")
        power = v("float", f"ex2.approx.ftz.f32 {{}}, {power};")  # cap · tanh(x / cap) = cap − 2·cap / (exp(2x / cap) + 1)
        power = v("float", f"rcp.approx.ftz.f32 {{}}, {v('float', f'add.rn.f32 {{}}, {power}, 0f3F800000;')};")
        cap = g.softcap * LOG2E
        k.emit(f"fma.rn.f32 {r}, {power}, {literal('float', -2 * cap)}, {literal('float', cap)};")

    def _moved(self, at: str, view: object, column: int) -> str:
        """The address of a column relative to the thread's first."""
        address = self.e.env[view]  # type: ignore[index]
        stride, size = str(address.strides[3]), address.dtype.itemsize
        if stride in ("0", "1"):
            return f"{at}+{column * size * int(stride)}"
        return self.k.value("i64", f"mad.lo.s64 {{}}, {stride}, {column * size}, {at};")

    def _biases(self, at: str, column: int, inside: str) -> list[str]:
        """One bias, or two next to each other."""
        k, v, g = self.k, self.k.value, self.kernel
        halves, where = [k.reg("half") for _ in range(g.together)], self._moved(at, g.bias, column)
        if g.together == 1:
            k.emit(f"mov.b16 {halves[0]}, 0;")
            k.emit(f"@{inside} ld.global.b16 {halves[0]}, [{where}];")
        else:
            word = k.reg("i32")
            k.emit(f"mov.b32 {word}, 0;")
            k.emit(f"@{inside} ld.global.b32 {word}, [{where}];")
            if g.dtype == "bf16":
                upper = v("i32", f"and.b32 {{}}, {word}, -65536;")
                return [v("float", f"mov.b32 {{}}, {x};") for x in (v("i32", f"shl.b32 {{}}, {word}, 16;"), upper)]
            k.emit(f"mov.b32 {{{halves[0]}, {halves[1]}}}, {word};")
        if g.dtype == "f16":
            return [v("float", f"cvt.f32.f16 {{}}, {x};") for x in halves]
        bits = k.reg("i32")
        k.emit(f"mov.b32 {bits}, {{0, {halves[0]}}};")
        return [v("float", f"mov.b32 {{}}, {bits};")]

    def _limits(self) -> None:
        """Tiles that end before column `plain` need no mask; with a window, if they start from column `from_here` on."""
        g, v, w = self.kernel, self.k.value, self.word
        self.plain = w.sk
        seen = v("i32", f"add.s32 {{}}, {self.row0}, {w.offset};") if g.causal or g.windowed else ""
        if g.causal:
            self.plain = v("i32", f"min.s32 {{}}, {self.plain}, {v('i32', f'add.s32 {{}}, {seen}, 1;')};")
        if g.windowed:
            self.from_here = v("i32", f"sub.s32 {{}}, {v('i32', f'add.s32 {{}}, {seen}, 64;')}, {w.window};")

    def _masked(self) -> None:
        """Soft cap, bias and masks: scores that are not seen become −inf."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.word
        start = v("i32", f"mul.lo.u32 {{}}, {self.tile}, {g.keys};")
        if self.changed:
            self._change(start)
        skip = k.label("unmasked")
        clear = v("i1", f"setp.le.s32 {{}}, {v('i32', f'add.s32 {{}}, {start}, {g.keys};')}, {self.plain};")
        if g.windowed:
            clear = v("i1", f"and.pred {{}}, {clear}, {v('i1', f'setp.ge.s32 {{}}, {start}, {self.from_here};')};")
        k.emit(f"@{clear} bra {skip};")
        row, column = self._place()
        first = v("i32", f"add.s32 {{}}, {start}, {column};")  # the thread's
        for h in range(2):
            high = w.sk
            past = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {row}, {w.offset};')}, {8 * h + 1};")
            if g.causal:
                high = v("i32", f"min.s32 {{}}, {high}, {past};")
            room = v("i32", f"sub.s32 {{}}, {high}, {first};")
            floor = v("i32", f"sub.s32 {{}}, {v('i32', f'sub.s32 {{}}, {past}, {w.window};')}, {first};") if g.windowed else ""
            for r, c in self._columns(h):
                k.emit(f"@{v('i1', f'setp.le.s32 {{}}, {room}, {c};')} mov.f32 {r}, {INF};")
                if g.windowed:
                    k.emit(f"@{v('i1', f'setp.gt.s32 {{}}, {floor}, {c};')} mov.f32 {r}, {INF};")
        k.place(skip)

    def _place(self) -> tuple[str, str]:
        """The first of the thread's two rows, and its first column in a tile; computed where it is needed: registers are scarce."""
        v = self.k.value
        lane, warp = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"bfe.u32 {{}}, {self.tid}, 5, 2;")
        row = v("i32", f"add.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {lane};')}, {self.row0};")
        return row, v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 1;")

    def _columns(self, h: int) -> list[tuple[str, int]]:
        """The thread's scores in row h, and their columns relative to its first."""
        return [(self.scores[i + c], 2 * i - 4 * h + c) for i in range(h * 2, self.kernel.keys // 2, 4) for c in range(2)]
