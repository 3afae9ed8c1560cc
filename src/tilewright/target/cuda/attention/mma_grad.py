"""Backward pass of attention on `mma.sync`, written as PTX for every chip from sm_80 on: blocks that own keys sum dK and dV, blocks that
own queries sum dQ. Both compute weights again from saved logsumexps: seven products instead of five, but nothing is added across blocks.

The two kernels are one: 64 own rows (of K and V, or of Q and dO) stay in shared memory, 16 a warp; tiles of the other two matrices pass
through two stages (`cp.async`), rows padded so that `ldmatrix` meets no bank twice. Scores and their cotangents are own rows · tileᵀ;
weights and dS are then left operands of the sums over the tile, straight from their registers. Shared key heads: blocks of keys walk
through all query heads of theirs. What is past an end reads zeros and weighs nothing.
"""

from __future__ import annotations

from types import SimpleNamespace

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import MmaGradKernel
from ....tile.ir import TileType, Var
from ..matmul.groups import PIECES, Groups
from ..ptx.text import KernelText, literal, module_text
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs
from .mma_grad_scores import ZERO, GradScores

WORDS = ("sq", "sk", "offset", "window", "heads", "group", "tiles", "padded", "split")
THREADS, OWN = 128, 64


def emit_mma_grad(kernel: MmaGradKernel, target: TargetSpec) -> str:
    return MmaGrad(kernel).module(target)


def pitch(kernel: MmaGradKernel) -> int:
    """Bytes between rows in shared memory."""
    return kernel.d * 2 + 16


def mma_grad_shared(kernel: MmaGradKernel) -> int:
    """Two own matrices, two stages of two tiles."""
    return (2 * OWN + 4 * kernel.tile) * pitch(kernel)


class MmaGrad(GradScores):
    def __init__(self, kernel: MmaGradKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.e = Emitter(kernel, Fragment(), self.k)
        self.copies = Groups(self.k, *PIECES)
        self.of_keys = kernel.mode == "keys"
        self.pitch, self.side = pitch(kernel), kernel.tile * pitch(kernel)
        self.stage0 = 2 * OWN * self.pitch
        self.name = f"mma.sync.aligned.m16n8k16.row.col.f32.{kernel.dtype}.{kernel.dtype}.f32"

    def module(self, target: TargetSpec) -> str:
        k, v, e, g = self.k, self.k.value, self.e, self.kernel
        e.parameters(WORDS)
        self.w = SimpleNamespace(**{n: v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i, n in enumerate(WORDS)})
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        lane, warp = v("i32", f"and.b32 {{}}, {self.tid}, 31;"), v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        line, self.quad = v("i32", f"shr.u32 {{}}, {lane}, 2;"), v("i32", f"shl.b32 {{}}, {v('i32', f'and.b32 {{}}, {lane}, 3;')}, 1;")
        self._position()
        top = v("i32", f"add.u32 {{}}, {self.first}, {v('i32', f'mad.lo.u32 {{}}, {warp}, 16, {line};')};")
        self.rows = [top, v("i32", f"add.u32 {{}}, {top}, 8;")]
        self.base = v("i32", "mov.u32 {}, ring;")
        # ldmatrix: lane l gives row l%8 of matrix l/8; the four are two blocks of eight rows × two of eight columns
        inside, low, high = (v("i32", f"bfe.u32 {{}}, {lane}, {at}, {n};") for at, n in ((0, 3), (3, 1), (4, 1)))
        self.wide_lane, self.tall_lane = self._lane(inside, high, low), self._lane(inside, low, high)
        self.own_lane = v("i32", f"mad.lo.u32 {{}}, {warp}, {16 * self.pitch}, {self.tall_lane};")
        self.sums = [[k.reg("float") for _ in range(g.d // 2)] for _ in g.sums]
        for r in (r for total in self.sums for r in total):
            k.emit(f"mov.f32 {r}, {ZERO};")
        self._own_statistics()
        self._sweep()
        self._finish()
        return module_text(target.cpu, ".extern .shared .align 128 .b8 ring[];\n\n" + k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))

    def _lane(self, inside: str, rows: str, columns: str) -> str:
        v = self.k.value
        row = v("i32", f"mad.lo.u32 {{}}, {rows}, 8, {inside};")
        return v("i32", f"mad.lo.u32 {{}}, {columns}, 16, {v('i32', f'mad.lo.u32 {{}}, {row}, {self.pitch}, {self.base};')};")

    # --- which rows and tiles -----------------------------------------------------------------------------------------
    def _position(self) -> None:
        """Own rows, head and batch of this block, and the tiles that see them or that they see: `count` steps, `per_head` for a head."""
        g, v, w = self.kernel, self.k.value, self.w
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        which = v("i32", f"div.u32 {{}}, {block}, {w.tiles};")
        self.first = v("i32", f"shl.b32 {{}}, {v('i32', f'rem.u32 {{}}, {block}, {w.tiles};')}, 6;")
        heads = v("i32", f"div.u32 {{}}, {w.heads}, {w.group};") if self.of_keys else w.heads
        self.head, self.batch = v("i32", f"rem.u32 {{}}, {which}, {heads};"), v("i32", f"div.u32 {{}}, {which}, {heads};")
        self.own_end, self.end = (w.sk, w.sq) if self.of_keys else (w.sq, w.sk)
        start, stop = "0", self.end
        shifted = v("i32", f"{'sub' if self.of_keys else 'add'}.s32 {{}}, {self.first}, {w.offset};")
        if g.causal and self.of_keys:
            start = v("i32", f"max.s32 {{}}, {shifted}, 0;")
        elif g.causal:
            stop = v("i32", f"min.s32 {{}}, {stop}, {v('i32', f'add.s32 {{}}, {shifted}, {OWN};')};")
        if g.windowed and self.of_keys:
            last = v("i32", f"add.s32 {{}}, {shifted}, {w.window};")  # one past the last of the queries that see the first key
            stop = v("i32", f"min.s32 {{}}, {stop}, {v('i32', f'add.s32 {{}}, {last}, {OWN - 1};')};")
        elif g.windowed:
            least = v("i32", f"sub.s32 {{}}, {shifted}, {w.window};")
            start = v("i32", f"max.s32 {{}}, {v('i32', f'add.s32 {{}}, {least}, 1;')}, 0;")
        shift = g.tile.bit_length() - 1
        stop = v("i32", f"max.s32 {{}}, {stop}, 0;")
        stop = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {stop}, {g.tile - 1};')}, {shift};")
        self.start = v("i32", f"shr.u32 {{}}, {start}, {shift};")
        self.count = self.per_head = v("i32", f"max.s32 {{}}, {v('i32', f'sub.s32 {{}}, {stop}, {self.start};')}, 0;")
        if self.of_keys:
            self.count = v("i32", f"mul.lo.u32 {{}}, {self.per_head}, {w.group};")

    def _streamed(self, step: str) -> tuple[str, str]:
        """First row and query head (of blocks of keys) or key head of a step's tile."""
        v, w, shift = self.k.value, self.w, self.kernel.tile.bit_length() - 1
        head, inside = "", step
        if self.of_keys:
            which, inside = v("i32", f"div.u32 {{}}, {step}, {self.per_head};"), v("i32", f"rem.u32 {{}}, {step}, {self.per_head};")
            head = v("i32", f"mad.lo.u32 {{}}, {self.head}, {w.group}, {which};")
        else:
            head = v("i32", f"div.u32 {{}}, {self.head}, {w.group};")
        tile = v("i32", f"add.u32 {{}}, {inside}, {self.start};")
        return v("i32", f"shl.b32 {{}}, {tile}, {shift};"), head

    # --- copies -------------------------------------------------------------------------------------------------------
    def _fetch(self, views: tuple[Var | None, ...], head: str, first: str, rows: int, end: str, to: str, when: str) -> None:
        """Copies of two matrices' rows from `first` on, side by side; what is past an end becomes zeros."""
        k, g, v = self.k, self.kernel, self.k.value
        columns, last = g.d // 8, v("i32", f"sub.u32 {{}}, {end}, 1;")
        sources = []
        for view in (self._view(x) for x in views):
            sources.append((self._head(view, head, 2), v("i64", f"mul.lo.s64 {{}}, {view.strides[2]}, 2;")))
        for i in range(0, rows * columns, THREADS):
            piece = v("i32", f"add.u32 {{}}, {self.tid}, {i};") if i else self.tid
            row, column = (v("i32", f"{op}.u32 {{}}, {piece}, {columns};") for op in ("div", "rem"))
            there = v("i32", f"add.u32 {{}}, {first}, {row};")
            inside = v("i1", f"setp.le.u32 {{}}, {there}, {last};")
            if g.own != g.d:
                inside = v("i1", f"and.pred {{}}, {inside}, {v('i1', f'setp.lt.u32 {{}}, {column}, {g.own // 8};')};")
            size = v("i32", f"selp.u32 {{}}, 16, 0, {inside};")
            target = v("i32", f"mad.lo.u32 {{}}, {column}, 16, {v('i32', f'mad.lo.u32 {{}}, {row}, {self.pitch}, {to};')};")
            at, offset = self._wide(v("i32", f"min.u32 {{}}, {there}, {last};")), self._wide(v("i32", f"shl.b32 {{}}, {column}, 4;"))
            guard = when
            if i + THREADS > rows * columns:
                guard = v("i1", f"and.pred {{}}, {when}, {v('i1', f'setp.lt.u32 {{}}, {piece}, {rows * columns};')};")
            for side, (base, step) in enumerate(sources):
                source = v("i64", f"add.s64 {{}}, {v('i64', f'mad.lo.s64 {{}}, {at}, {step}, {base};')}, {offset};")
                source = v("i64", f"selp.b64 {{}}, {source}, {base}, {inside};") if g.own != g.d else source
                k.emit(f"@{guard} cp.async.cg.shared.global [{target}+{side * rows * self.pitch}], [{source}], 16, {size};")

    def _next(self, step: str, stage: str, when: str) -> int:
        g, v = self.kernel, self.k.value
        first, head = self._streamed(step)
        to = v("i32", f"mad.lo.u32 {{}}, {stage}, {2 * self.side}, {self.base};")
        to = v("i32", f"add.u32 {{}}, {to}, {self.stage0};")
        self._fetch((g.q, g.g) if self.of_keys else (g.k, g.v), head, first, g.tile, self.end, to, when)
        return self.copies.commit()

    # --- the sweep ----------------------------------------------------------------------------------------------------
    def _sweep(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        step, stage = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {step}, 0;")
        k.emit(f"mov.u32 {stage}, 0;")
        some = v("i1", f"setp.gt.u32 {{}}, {self.count}, 0;")
        head = v("i32", f"div.u32 {{}}, {self.head}, {self.w.split};") if self.of_keys else self.head
        self._fetch((g.k, g.v) if self.of_keys else (g.q, g.g), head, self.first, OWN, self.own_end, self.base, some)
        first = self._next(step, stage, some)
        again, done = k.label("tile"), k.label("tiles_done")
        k.emit(f"@!{some} bra.uni {done};")
        k.place(again)
        following, other = v("i32", f"add.u32 {{}}, {step}, 1;"), v("i32", f"xor.b32 {{}}, {stage}, 1;")
        more = v("i1", f"setp.lt.u32 {{}}, {following}, {self.count};")
        start = self.copies.in_flight
        self._next(following, other, more)
        self.copies.wait(first)  # a round later it is the one just fetched
        self.copies.again(start)
        k.emit("bar.sync 0;")
        here = v("i32", f"mul.lo.u32 {{}}, {stage}, {2 * self.side};")
        self._tile(step, *(v("i32", f"add.u32 {{}}, {here}, {lane};") for lane in (self.wide_lane, self.tall_lane)))
        k.emit("bar.sync 0;")
        k.emit(f"mov.u32 {stage}, {other};")
        k.emit(f"mov.u32 {step}, {following};")
        k.emit(f"@{more} bra.uni {again};")
        k.place(done)

    def _tile(self, step: str, wide: str, tall: str) -> None:
        """One tile: `wide` and `tall` are the lane's places in it for rows along the other side and along K."""
        g = self.kernel
        first, head = self._streamed(step)
        s, dp = self._product(0, wide), self._product(1, wide)
        slopes = self._weights(s, first, head)
        if self.of_keys:
            self._add_product(self.sums[0], s, tall, self.stage0 + self.side)
        self._cotangents(s, dp, first, head)
        if g.scores is not None:
            self._store_scores(dp)
        for r, slope in zip((r for four in dp for r in four), slopes, strict=False):
            self.k.emit(f"mul.rn.f32 {r}, {r}, {slope};")
        self._add_product(self.sums[-1], dp, tall, self.stage0)

    def _product(self, which: int, tile: str) -> list[list[str]]:
        """Own rows of a matrix · the tile's ᵀ: for every eight rows of the tile, this thread's two of two own rows."""
        k, g = self.k, self.kernel
        out = [[k.reg("float") for _ in range(4)] for _ in range(g.tile // 8)]
        for r in (r for four in out for r in four):
            k.emit(f"mov.f32 {r}, {ZERO};")
        for c in range(0, g.d, 16):
            a = self._matrices(f"{self.own_lane}+{which * OWN * self.pitch + 2 * c}")
            for n in range(0, g.tile, 16):
                b = self._matrices(f"{tile}+{self.stage0 + which * self.side + n * self.pitch + 2 * c}")
                self._mma(out[n // 8], a, b[:2])
                self._mma(out[n // 8 + 1], a, b[2:])
        return out

    def _finish(self) -> None:
        """Run the body over finished registers."""
        g, k, e = self.kernel, self.k, self.e
        for r in self.sums[-1]:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale)};")
        for var, total in zip(g.sums, self.sums, strict=True):
            assert isinstance(var.type, TileType)
            values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(total)}
            e.env[var] = Regs(var.type, values)
        assert g.row is not None and g.head is not None and g.batch is not None
        for var, reg in ((g.row, self.first), (g.head, self.head), (g.batch, self.batch)):
            e.env[var] = self._wide(reg)
        e.block(g.body)
