"""Attention on `mma.sync`, written as PTX for every chip from sm_80 on: what the Hopper kernel does not take (masks, biases, soft caps),
and everything where there is no `wgmma`.

A block of four warps owns 64 query rows of a head, 16 a warp; queries stay in registers as fragments. Keys and values pass through shared
memory in two stages of `keys` rows (`cp.async`), rows padded so that `ldmatrix` meets no bank twice. Scores become weights in place
(online softmax in powers of two), which are then the left operand of the second product. The epilogue is tile IR over the finished rows.
"""

from __future__ import annotations

from types import SimpleNamespace

from ....core.target_spec import TargetSpec
from ....kernels.attention.cuda.flash_kernels import MmaGradKernel
from ....kernels.cuda.kernel import MmaAttentionKernel
from ....tile.ir import TileType, Var
from ..matmul.groups import PIECES, Groups
from ..ptx.text import KernelText, literal, module_text
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs
from .flash import add_bias


class MmaFragments:
    kernel: MmaAttentionKernel | MmaGradKernel
    k: KernelText
    e: Emitter
    name: str  # the name of the instruction
    batch: str
    pitch: int  # bytes of a row in shared memory

    def _view(self, var: Var | None) -> Address:
        assert var is not None
        found = self.e.env[var]
        assert isinstance(found, Address)
        return found

    def _wide(self, x: str) -> str:
        return self.k.value("i64", f"cvt.u64.u32 {{}}, {x};")

    def _head(self, view: Address, head: str, item: int) -> str:
        """The address of a head's first element."""
        v, pointer = self.k.value, view.pointer
        for x, stride in ((self.batch, view.strides[0]), (head, view.strides[1])):
            if stride != "0":
                step = v("i64", f"mul.lo.s64 {{}}, {self._wide(x)}, {stride};")
                pointer = v("i64", f"mad.lo.s64 {{}}, {step}, {item}, {pointer};")
        return pointer

    def _matrices(self, at: str, trans: str = "") -> list[str]:
        regs = [self.k.reg("i32") for _ in range(4)]
        self.k.emit(f"ldmatrix.sync.aligned.m8n8.x4{trans}.shared.b16 {{{', '.join(regs)}}}, [{at}];")
        return regs

    def _mma(self, acc: list[str], a: list[str], b: list[str]) -> None:
        c = ", ".join(acc)
        self.k.emit(f"{self.name} {{{c}}}, {{{', '.join(a)}}}, {{{', '.join(b)}}}, {{{c}}};")

    def _add_product(self, total: list[str], left: list[list[str]], right: str, start: int) -> None:
        """total += left · the matrix that begins `start` bytes after `right`; left has four numbers of a thread for eight columns."""

        def pair(low: str, high: str) -> str:
            return self.k.value("i32", f"cvt.rn.{self.kernel.dtype}x2.f32 {{}}, {high}, {low};")

        for c in range(0, 8 * len(left), 16):
            upper, lower = left[c // 8], left[c // 8 + 1]
            a = [pair(*upper[:2]), pair(*upper[2:]), pair(*lower[:2]), pair(*lower[2:])]
            for n in range(0, self.kernel.d, 16):
                b = self._matrices(f"{right}+{start + c * self.pitch + 2 * n}", ".trans")
                self._mma(total[n // 2 : n // 2 + 4], a, b[:2])
                self._mma(total[n // 2 + 4 : n // 2 + 8], a, b[2:])


WORDS = ("sq", "sk", "offset", "window", "heads", "group", "q_tiles")
LOG2E = 1.4426950408889634
NEVER = "0fFF800000"
ZERO = "0f00000000"
THREADS = 128


def emit_attention_mma(kernel: MmaAttentionKernel, target: TargetSpec) -> str:
    return MmaAttention(kernel).module(target)


def pitch(kernel: MmaAttentionKernel) -> int:
    """Bytes between rows in shared memory."""
    return kernel.d * 2 + 16


class MmaAttention(MmaFragments):
    kernel: MmaAttentionKernel

    def __init__(self, kernel: MmaAttentionKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.e = Emitter(kernel, Fragment(), self.k)
        self.copies = Groups(self.k, *PIECES)
        self.pitch = pitch(kernel)
        self.side = kernel.keys * self.pitch  # bytes of keys or values of a stage
        self.name = f"mma.sync.aligned.m16n8k16.row.col.f32.{kernel.dtype}.{kernel.dtype}.f32"

    def module(self, target: TargetSpec) -> str:
        k, v, e = self.k, self.k.value, self.e
        e.parameters(WORDS)
        self.w = w = SimpleNamespace(**{n: v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i, n in enumerate(WORDS)})
        self.tid = v("i32", "mov.u32 {}, %tid.x;")
        lane = v("i32", f"and.b32 {{}}, {self.tid}, 31;")
        warp = v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        self.line, self.quad = v("i32", f"shr.u32 {{}}, {lane}, 2;"), v("i32", f"and.b32 {{}}, {lane}, 3;")
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        which = v("i32", f"div.u32 {{}}, {block}, {w.q_tiles};")
        self.first = v("i32", f"shl.b32 {{}}, {v('i32', f'rem.u32 {{}}, {block}, {w.q_tiles};')}, 6;")
        self.head, self.batch = v("i32", f"rem.u32 {{}}, {which}, {w.heads};"), v("i32", f"div.u32 {{}}, {which}, {w.heads};")
        own = v("i32", f"mad.lo.u32 {{}}, {warp}, 16, {self.line};")
        top = v("i32", f"add.u32 {{}}, {self.first}, {own};")
        self.rows = [top, v("i32", f"add.u32 {{}}, {top}, 8;")]
        base = v("i32", "mov.u32 {}, scratch;")
        self.base = v("i32", f"add.u32 {{}}, {base}, {k.alloc_shared(4 * self.side)};")
        # ldmatrix: lane l gives row l%8 of matrix l/8; the four are two blocks of eight rows × two of eight columns
        inside, low, high = (v("i32", f"bfe.u32 {{}}, {lane}, {at}, {n};") for at, n in ((0, 3), (3, 1), (4, 1)))
        self.key_lane = self._lane(inside, high, low)
        self.value_lane = self._lane(inside, low, high)
        self._queries()
        self._range()
        self._copies()
        self._sweep()
        self._finish()
        return module_text(target.cpu, k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))

    def _lane(self, inside: str, rows: str, columns: str) -> str:
        v = self.k.value
        row = v("i32", f"mad.lo.u32 {{}}, {rows}, 8, {inside};")
        at = v("i32", f"mad.lo.u32 {{}}, {row}, {self.pitch}, {self.base};")
        return v("i32", f"mad.lo.u32 {{}}, {columns}, 16, {at};")

    def _step(self, stride: str, item: int) -> str:
        return self.k.value("i64", f"mul.lo.s64 {{}}, {stride}, {item};") if stride.startswith("%") else str(int(stride) * item)

    def _queries(self) -> None:
        """Fragments of this warp's rows; rows past the end read the last one, columns past the head are zeros."""
        k, g, v = self.k, self.kernel, self.k.value
        view = self._view(g.q)
        base, step = self._head(view, self.head, 2), self._step(view.strides[2], 2)
        last = v("i32", f"sub.u32 {{}}, {self.w.sq}, 1;")
        inside = self._wide(v("i32", f"shl.b32 {{}}, {self.quad}, 2;"))
        at = []
        for row in self.rows:
            place = v("i64", f"mad.lo.s64 {{}}, {self._wide(v('i32', f'min.u32 {{}}, {row}, {last};'))}, {step}, {base};")
            at.append(v("i64", f"add.s64 {{}}, {place}, {inside};"))
        self.q: list[list[str]] = []
        for c in range(0, g.d, 16):
            found = []
            for half in (0, 8):
                for place in at:
                    reg = k.reg("i32")
                    k.emit(f"ld.global.b32 {reg}, [{place}+{2 * (c + half)}];" if c + half < g.own else f"mov.b32 {reg}, 0;")
                    found.append(reg)
            self.q.append(found)

    def _range(self) -> None:
        """Tiles of keys that some row of the block sees, and for each row the last and first key it sees."""
        k, g, v, w = self.k, self.kernel, self.k.value, self.w
        end = v("i32", f"sub.u32 {{}}, {w.sk}, 1;")
        stop = w.sk
        self.lasts, self.firsts = [end, end], []
        if g.causal:
            self.lasts = [v("i32", f"min.s32 {{}}, {v('i32', f'add.s32 {{}}, {row}, {w.offset};')}, {end};") for row in self.rows]
            reach = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.first}, 64;')}, {w.offset};")
            stop = v("i32", f"max.s32 {{}}, {v('i32', f'min.s32 {{}}, {stop}, {reach};')}, 0;")
        shift = g.keys.bit_length() - 1
        self.stop = v("i32", f"shr.u32 {{}}, {v('i32', f'add.u32 {{}}, {stop}, {g.keys - 1};')}, {shift};")
        self.tile = k.reg("i32")
        if not g.windowed:
            k.emit(f"mov.u32 {self.tile}, 0;")
            return
        behind = v("i32", f"sub.s32 {{}}, {w.offset}, {w.window};")
        self.firsts = [v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {row}, {behind};')}, 1;") for row in self.rows]
        start = v("i32", f"add.s32 {{}}, {self.first}, {behind};")
        start = v("i32", f"max.s32 {{}}, {v('i32', f'add.s32 {{}}, {start}, 1;')}, 0;")
        k.emit(f"shr.u32 {self.tile}, {start}, {shift};")

    def _copies(self) -> None:
        """Which 16-byte pieces of a tile this thread copies: (row, offset in the head's row, offset in a stage, whether it has one)."""
        g, v = self.kernel, self.k.value
        columns = g.d // 8
        count = g.keys * columns
        self.sources = []
        for view in (self._view(g.k), self._view(g.v)):
            head = v("i32", f"div.u32 {{}}, {self.head}, {self.w.group};")
            self.sources.append((self._head(view, head, 2), self._step(view.strides[2], 2)))
        self.pieces = []
        for i in range(0, count, THREADS):
            piece = v("i32", f"add.u32 {{}}, {self.tid}, {i};") if i else self.tid
            row, column = (v("i32", f"{op}.u32 {{}}, {piece}, {columns};") for op in ("div", "rem"))
            target = v("i32", f"mad.lo.u32 {{}}, {row}, {self.pitch}, {self.base};")
            target = v("i32", f"mad.lo.u32 {{}}, {column}, 16, {target};")
            offset = self._wide(v("i32", f"shl.b32 {{}}, {column}, 4;"))
            mine = None if i + THREADS <= count else v("i1", f"setp.lt.u32 {{}}, {piece}, {count};")
            real = None if g.own == g.d else v("i1", f"setp.lt.u32 {{}}, {column}, {g.own // 8};")
            self.pieces.append((row, offset, target, mine, real))

    def _fetch(self, tile: str, stage: str, when: str) -> int:
        """Start the copies of a tile; rows past the end become zeros."""
        k, g, v = self.k, self.kernel, self.k.value
        last = v("i32", f"sub.u32 {{}}, {self.w.sk}, 1;")
        for row, offset, target, mine, real in self.pieces:
            key = v("i32", f"mad.lo.u32 {{}}, {tile}, {g.keys}, {row};")
            inside = v("i1", f"setp.le.u32 {{}}, {key}, {last};")
            inside = v("i1", f"and.pred {{}}, {inside}, {real};") if real is not None else inside
            size = v("i32", f"selp.u32 {{}}, 16, 0, {inside};")
            at = self._wide(v("i32", f"min.u32 {{}}, {key}, {last};"))
            here = v("i32", f"mad.lo.u32 {{}}, {stage}, {2 * self.side}, {target};")
            guard = when if mine is None else v("i1", f"and.pred {{}}, {when}, {mine};")
            for side, (base, step) in enumerate(self.sources):
                source = v("i64", f"add.s64 {{}}, {v('i64', f'mad.lo.s64 {{}}, {at}, {step}, {base};')}, {offset};")
                if real is not None:  # a piece past the head must not be touched at all
                    source = v("i64", f"selp.b64 {{}}, {source}, {base}, {inside};")
                k.emit(f"@{guard} cp.async.cg.shared.global [{here}+{side * self.side}], [{source}], 16, {size};")
        return self.copies.commit()

    # --- the sweep over keys ------------------------------------------------------------------------------------------
    def _sweep(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        self.out = [k.reg("float") for _ in range(g.d // 2)]
        self.top, self.sums = [k.reg("float") for _ in range(2)], [k.reg("float") for _ in range(2)]
        for r in (*self.out, *self.sums):
            k.emit(f"mov.f32 {r}, {ZERO};")
        for r in self.top:
            k.emit(f"mov.f32 {r}, {NEVER};")
        stage = k.reg("i32")
        k.emit(f"mov.u32 {stage}, 0;")
        some = v("i1", f"setp.lt.s32 {{}}, {self.tile}, {self.stop};")
        first = self._fetch(self.tile, stage, some)
        again, done = k.label("keys"), k.label("keys_done")
        k.emit(f"@!{some} bra.uni {done};")
        k.place(again)
        following = v("i32", f"add.u32 {{}}, {self.tile}, 1;")
        other = v("i32", f"xor.b32 {{}}, {stage}, 1;")
        more = v("i1", f"setp.lt.s32 {{}}, {following}, {self.stop};")
        start = self.copies.in_flight
        self._fetch(following, other, more)
        self.copies.wait(first)  # a round later it is the one just fetched
        self.copies.again(start)
        k.emit("bar.sync 0;")
        here = v("i32", f"mul.lo.u32 {{}}, {stage}, {2 * self.side};")
        scores = self._scores(v("i32", f"add.u32 {{}}, {here}, {self.key_lane};"))
        self._softmax(scores)
        self._add_product(self.out, scores, v("i32", f"add.u32 {{}}, {here}, {self.value_lane};"), self.side)
        k.emit("bar.sync 0;")
        k.emit(f"mov.u32 {stage}, {other};")
        k.emit(f"mov.u32 {self.tile}, {following};")
        k.emit(f"@{more} bra.uni {again};")
        k.place(done)

    def _scores(self, keys: str) -> list[list[str]]:
        """Q · Kᵀ: for every eight keys, this thread's two of two rows."""
        k, g = self.k, self.kernel
        scores = [[k.reg("float") for _ in range(4)] for _ in range(g.keys // 8)]
        for r in (r for four in scores for r in four):
            k.emit(f"mov.f32 {r}, {ZERO};")
        for n in range(0, g.keys, 16):
            for c, a in enumerate(self.q):
                b = self._matrices(f"{keys}+{n * self.pitch + 32 * c}")
                self._mma(scores[n // 8], a, b[:2])
                self._mma(scores[n // 8 + 1], a, b[2:])
        return scores

    def _softmax(self, scores: list[list[str]]) -> None:
        """Scores to weights, in place; running maxima, sums and the output are brought to the new maxima."""
        g, v = self.kernel, self.k.value
        column = v("i32", f"shl.b32 {{}}, {self.quad}, 1;")
        column = v("i32", f"mad.lo.u32 {{}}, {self.tile}, {g.keys}, {column};")
        extras = [self._extra(var, column) for var in (g.mask, g.bias)]
        for h in (0, 1):
            after = v("i32", f"sub.s32 {{}}, {self.lasts[h]}, {column};")
            before = v("i32", f"sub.s32 {{}}, {self.firsts[h]}, {column};") if g.windowed else None
            tops = []
            for n, four in enumerate(scores):
                for i in (0, 1):
                    at, r = 8 * n + i, four[2 * h + i]
                    seen = v("i1", f"setp.ge.s32 {{}}, {after}, {at};")
                    if before is not None:
                        seen = v("i1", f"and.pred {{}}, {seen}, {v('i1', f'setp.le.s32 {{}}, {before}, {at};')};")
                    self._score(r, seen, extras, h, at)
                    tops.append(r)
            self._rows(h, tops)

    def _extra(self, var: Var | None, column: str) -> list[tuple[str, str]] | None:
        """Address of this thread's first score in a mask or bias for both rows, and the step between columns."""
        if var is None:
            return None
        v, view = self.k.value, self._view(var)
        item = view.dtype.itemsize
        base = self._head(view, self.head, item)
        across = self._step(view.strides[3], item)
        base = v("i64", f"mad.lo.s64 {{}}, {self._wide(column)}, {across}, {base};") if across != "0" else base
        if view.strides[2] == "0":
            return [(base, across)] * 2
        step, last = self._step(view.strides[2], item), v("i32", f"sub.u32 {{}}, {self.w.sq}, 1;")
        rows = [self._wide(v("i32", f"min.u32 {{}}, {row}, {last};")) for row in self.rows]
        return [(v("i64", f"mad.lo.s64 {{}}, {row}, {step}, {base};"), across) for row in rows]

    def _place(self, extra: list[tuple[str, str]], h: int, at: int) -> str:
        base, across = extra[h]
        if not across.startswith("%"):
            return f"{base}+{at * int(across)}"
        return self.k.value("i64", f"mad.lo.s64 {{}}, {across}, {at}, {base};") if at else base

    def _score(self, r: str, seen: str, extras: list[list[tuple[str, str]] | None], h: int, at: int) -> None:
        """One score in powers of two, or minus infinity where the row does not see the key."""
        k, g, v = self.k, self.kernel, self.k.value
        mask, bias = extras
        if g.softcap:  # cap · tanh(x / cap), tanh x = 1 - 2 / (1 + e^2x)
            twice, one = literal("float", 2 * LOG2E * g.scale / g.softcap), literal("float", 1.0)
            power = v("float", f"ex2.approx.f32 {{}}, {v('float', f'mul.rn.f32 {{}}, {r}, {twice};')};")
            part = v("float", f"rcp.approx.f32 {{}}, {v('float', f'add.rn.f32 {{}}, {power}, {one};')};")
            k.emit(f"fma.rn.f32 {r}, {part}, {literal('float', -2 * g.softcap * LOG2E)}, {literal('float', g.softcap * LOG2E)};")
        else:
            k.emit(f"mul.rn.f32 {r}, {r}, {literal('float', g.scale * LOG2E)};")
        if bias is not None:
            raw, more = k.reg("half"), k.reg("float")
            k.emit(f"mov.b16 {raw}, 0;")
            k.emit(f"@{seen} ld.global.b16 {raw}, [{self._place(bias, h, at)}];")
            if g.dtype == "bf16":
                k.emit(f"mov.b32 {more}, {{{v('half', 'mov.b16 {}, 0;')}, {raw}}};")
            else:
                k.emit(f"cvt.f32.f16 {more}, {raw};")
            add_bias(k, r, more, g.dtype)
        if mask is not None:
            told = k.reg("i32")
            k.emit(f"mov.b32 {told}, 0;")
            k.emit(f"@{seen} ld.global.u8 {told}, [{self._place(mask, h, at)}];")
            seen = v("i1", f"setp.ne.u32 {{}}, {told}, 0;")
        k.emit(f"selp.f32 {r}, {r}, {NEVER}, {seen};")

    def _rows(self, h: int, scores: list[str]) -> None:
        k, v = self.k, self.k.value
        top = self.top[h]
        new = top
        for r in scores:
            new = v("float", f"max.f32 {{}}, {new}, {r};")
        for reach in (1, 2):
            new = v("float", f"max.f32 {{}}, {new}, {v('float', f'shfl.sync.bfly.b32 {{}}, {new}, {reach}, 31, -1;')};")
        nothing = v("i1", f"setp.eq.f32 {{}}, {new}, {NEVER};")
        base = v("float", f"selp.f32 {{}}, {ZERO}, {new}, {nothing};")
        less = v("float", f"ex2.approx.f32 {{}}, {v('float', f'sub.rn.f32 {{}}, {top}, {base};')};")
        k.emit(f"mov.f32 {top}, {new};")
        k.emit(f"mul.rn.f32 {self.sums[h]}, {self.sums[h]}, {less};")
        for r in scores:
            k.emit(f"ex2.approx.f32 {r}, {v('float', f'sub.rn.f32 {{}}, {r}, {base};')};")
            k.emit(f"add.rn.f32 {self.sums[h]}, {self.sums[h]}, {r};")
        for i in range(0, len(self.out), 4):
            for r in self.out[i + 2 * h : i + 2 * h + 2]:
                k.emit(f"mul.rn.f32 {r}, {r}, {less};")

    def _store_log_sum(self, h: int, total: str, nothing: str) -> None:
        """log Σ exp of one of the thread's rows: one thread of four stores it."""
        k, v, view = self.k, self.k.value, self._view(self.kernel.logsumexps)
        log = v("float", f"add.rn.f32 {{}}, {self.top[h]}, {v('float', f'lg2.approx.f32 {{}}, {total};')};")
        log = v("float", f"mul.rn.f32 {{}}, {log}, {literal('float', 1 / LOG2E)};")
        log = v("float", f"selp.f32 {{}}, {NEVER}, {log}, {nothing};")
        at = self._head(view, self.head, 4)
        at = v("i64", f"mad.lo.s64 {{}}, {self._wide(self.rows[h])}, {self._step(view.strides[2], 4)}, {at};")
        here = v("i1", f"setp.lt.s32 {{}}, {self.rows[h]}, {self.w.sq};")
        here = v("i1", f"and.pred {{}}, {here}, {v('i1', f'setp.eq.u32 {{}}, {self.quad}, 0;')};")
        k.emit(f"@{here} st.global.f32 [{at}], {log};")

    def _finish(self) -> None:
        k, g, e, v = self.k, self.kernel, self.e, self.k.value
        for h in (0, 1):
            total = self.sums[h]
            for reach in (1, 2):
                total = v("float", f"add.rn.f32 {{}}, {total}, {v('float', f'shfl.sync.bfly.b32 {{}}, {total}, {reach}, 31, -1;')};")
            nothing = v("i1", f"setp.eq.f32 {{}}, {total}, {ZERO};")
            if g.logsumexps is not None:
                self._store_log_sum(h, total, nothing)
            empty = "0f7FC00000" if g.nan_rows else ZERO
            inverse = v("float", f"selp.f32 {{}}, {empty}, {v('float', f'rcp.rn.f32 {{}}, {total};')}, {nothing};")
            for i in range(0, len(self.out), 4):
                for r in self.out[i + 2 * h : i + 2 * h + 2]:
                    k.emit(f"mul.rn.f32 {r}, {r}, {inverse};")
        assert g.acc is not None and g.row is not None and g.head is not None and g.batch is not None
        assert isinstance(g.acc.type, TileType)
        values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(self.out)}
        e.env[g.acc] = Regs(g.acc.type, values)
        for var, reg in ((g.row, self.first), (g.head, self.head), (g.batch, self.batch)):
            e.env[var] = self._wide(reg)
        e.block(g.body)
