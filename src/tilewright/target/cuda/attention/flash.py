"""Attention forward on Hopper, written as PTX: online softmax in registers between two `wgmma` products.

A block owns 64 query rows of one head for each warpgroup that multiplies; one thread of another warpgroup copies Q (the next one while this
one is still read), and K and V tile by tile through rings of stages. While the tensor core works on the output of tile j-1, the threads
compute the softmax of the scores of tile j. Scores stay in f32 registers; probabilities are rounded to the operands' dtype for the second
product. Keys past the end, above the diagonal or outside the window get no weight; a row that sees no key gives zeros.
"""

from __future__ import annotations

from types import SimpleNamespace

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import FlashKernel
from ....tile.ir import TileType
from ..matmul.gemm_pieces import matrix_descriptor
from ..matmul.groups import PRODUCTS, Groups
from ..matmul.stages import RING, Filler, Reader, Stages
from ..ptx.text import KernelText, module_text
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs
from .flash_sweeps import FlashSweeps
from .flash_weights import UNSEEN

WORDS = ("sq", "sk", "offset", "window", "heads", "group", "q_tiles", "works", "chunk", "lines")
QUERIES = 2  # buffers of Q


def emit_flash(kernel: FlashKernel, target: TargetSpec) -> str:
    return Flash(kernel).module(target)


def flash_shared(kernel: FlashKernel) -> int:
    return (QUERIES * kernel.rows + 2 * kernel.plan.stages * kernel.keys) * kernel.d * 2 + 1024


class Flash(FlashSweeps):
    def __init__(self, kernel: FlashKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [], maps=3)
        self.e = Emitter(kernel, Fragment(), self.k)
        self.q_bytes, self.tile_bytes = kernel.rows * kernel.d * 2, kernel.keys * kernel.d * 2
        self.k_start = QUERIES * self.q_bytes  # of the ring of keys

    @property
    def registers(self) -> tuple[int, int]:
        """Of threads that copy and of those that multiply."""
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

    def _copy(self, name: str, ring: Filler, step: str) -> None:
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
        keys, values, queries = (Filler(k, x) for x in (self.of_keys, self.of_values, self.of_queries))
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
        self.keys, self.values, self.queries = (Reader(k, x) for x in (self.of_keys, self.of_values, self.of_queries))
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
