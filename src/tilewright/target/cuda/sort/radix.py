"""A radix sort by bytes, written as PTX: a block counts the bytes of its words, moves them to their places, or sorts a whole row.

Words keep their order: a warp has neighbouring words, 32 at a time. The lanes with the same byte find one another by eight votes; the
first of them adds their number to the warp's counter. Places in the block follow from the counters of all warps, places in memory from
the counts of the blocks before. Words past the end of a row behave like words with the largest byte, behind all others, and are dropped.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.sort.cuda.radix import THREADS, RadixKernel
from ....tile.ir import Var
from ..ptx.text import KernelText, module_text
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Group

WARPS = THREADS // 32


def emit_radix(kernel: RadixKernel, target: TargetSpec) -> str:
    return _Pass(kernel).module(target)


class _Pass:
    def __init__(self, kernel: RadixKernel) -> None:
        self.kernel, self.k = kernel, KernelText(kernel.name, [])
        self.items, self.each = kernel.items, kernel.items // THREADS  # words of the block and of a thread
        self.e, self.v = Emitter(kernel, Group(THREADS, 1), self.k), self.k.value
        self.e.parameters()
        v = self.v
        self.tid, self.lane = v("i32", "mov.u32 {}, %tid.x;"), v("i32", "mov.u32 {}, %laneid;")
        self.warp = v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        self.blocks, self.n = (v("i32", f"cvt.u32.u64 {{}}, {self.e.env[p]};") for p in (kernel.blocks, kernel.n))  # type: ignore[index]
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        self.row = v("i32", f"div.u32 {{}}, {block}, {self.blocks};")
        self.own = v("i32", f"rem.u32 {{}}, {block}, {self.blocks};")
        self.start = v("i32", f"mul.lo.u32 {{}}, {self.own}, {self.items};")
        self.scratch = v("i32", "mov.u32 {}, scratch;")

    def module(self, target: TargetSpec) -> str:
        k, v = self.k, self.v
        length = self.n
        if self.kernel.lengths is not None:
            found = v("i32", f"ld.global.b32 {{}}, [{self.at(self.pointer(self.kernel.lengths), self.row, 4)}];")
            length = v("i32", f"min.u32 {{}}, {v('i32', f'max.s32 {{}}, {found}, 0;')}, {length};")
        end = k.label("done")
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {self.start}, {length};')} bra {end};")
        self.here = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {length}, {self.start};')}, {self.items};")  # words of the block
        first = v("i64", f"mad.wide.u32 {{}}, {self.row}, {self.n}, {v('i64', f'cvt.u64.u32 {{}}, {self.start};')};")
        self.source = v("i64", f"mad.lo.s64 {{}}, {first}, 8, {self.pointer(self.kernel.words)};")
        if self.kernel.goal is None:
            self._count(self.kernel.shifts[0])
        elif self.kernel.counts is not None:
            self._move(self.kernel.shifts[0])
        else:
            self._sort()
        k.place(end)
        return module_text(target.cpu, k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))

    # --- pieces -------------------------------------------------------------------------------------------------------
    def pointer(self, view: Var | None) -> str:
        found = self.e.env[view]  # type: ignore[index]
        assert isinstance(found, Address)
        return found.pointer

    def at(self, base: str, index: str, size: int) -> str:
        return self.v("i64", f"mad.wide.u32 {{}}, {index}, {size}, {base};")

    def room(self, nbytes: int) -> str:
        return self.v("i32", f"add.u32 {{}}, {self.scratch}, {self.k.alloc_shared(nbytes)};")

    def slot(self, base: str, index: str, size: int = 4) -> str:
        return self.v("i32", f"mad.lo.u32 {{}}, {index}, {size}, {base};")

    def digit(self, word: str, shift: int) -> str:
        high = self.v("i32", f"cvt.u32.u64 {{}}, {self.v('i64', f'shr.u64 {{}}, {word}, {32 + shift};')};")
        return self.v("i32", f"and.b32 {{}}, {high}, {THREADS - 1};")

    def barrier(self) -> None:
        self.k.emit("bar.sync 0;")

    def own_count(self) -> str:
        """Where the count of this block and of this thread's digit stands."""
        digit = self.v("i32", f"mad.lo.u32 {{}}, {self.row}, {THREADS}, {self.tid};")
        place = self.v("i64", f"mad.wide.u32 {{}}, {digit}, {self.blocks}, {self.v('i64', f'cvt.u64.u32 {{}}, {self.own};')};")
        return self.v("i64", f"mad.lo.s64 {{}}, {place}, 4, {self.pointer(self.kernel.counts)};")

    def before(self, *values: str) -> list[str]:
        """For each value, the sum of those that the threads before this one have."""
        k, v = self.k, self.v
        upto = list(values)
        for reach in (1, 2, 4, 8, 16):
            has = v("i1", f"setp.ge.u32 {{}}, {self.lane}, {reach};")
            for i, x in enumerate(upto):
                earlier = v("i32", f"shfl.sync.up.b32 {{}}, {x}, {reach}, 0, -1;")
                upto[i] = v("i32", f"add.u32 {{}}, {x}, {v('i32', f'selp.u32 {{}}, {earlier}, 0, {has};')};")
        last = v("i1", f"setp.eq.u32 {{}}, {self.lane}, 31;")
        sums = self.room(4 * WARPS * len(values))
        for i, x in enumerate(upto):
            k.emit(f"@{last} st.shared.u32 [{self.slot(sums, self.warp)}+{4 * WARPS * i}], {x};")
        self.barrier()
        out = []
        for i, x in enumerate(upto):
            for w in range(WARPS - 1):
                part = v("i32", f"ld.shared.u32 {{}}, [{sums}+{4 * (WARPS * i + w)}];")
                behind = v("i1", f"setp.gt.u32 {{}}, {self.warp}, {w};")
                x = v("i32", f"add.u32 {{}}, {x}, {v('i32', f'selp.u32 {{}}, {part}, 0, {behind};')};")
            out.append(v("i32", f"sub.u32 {{}}, {x}, {values[i]};"))
        return out

    # --- the two kernels ----------------------------------------------------------------------------------------------
    def _count(self, shift: int) -> None:
        k, v = self.k, self.v
        counters = self.room(4 * THREADS)
        mine = self.slot(counters, self.tid)
        k.emit(f"st.shared.u32 [{mine}], 0;")
        self.barrier()
        address, found = self.at(self.source, self.tid, 8), []
        for j in range(self.each):
            inside = v("i1", f"setp.lt.u32 {{}}, {v('i32', f'add.u32 {{}}, {self.tid}, {j * THREADS};')}, {self.here};")
            key = v("i32", "mov.u32 {}, 0;")
            k.emit(f"@{inside} ld.global.b32 {key}, [{address}+{8 * j * THREADS + 4}];")
            found.append((inside, key))
        for inside, key in found:
            digit = v("i32", f"and.b32 {{}}, {v('i32', f'shr.u32 {{}}, {key}, {shift};')}, {THREADS - 1};")
            k.emit(f"@{inside} red.relaxed.cta.shared.add.u32 [{self.slot(counters, digit)}], 1;")
        self.barrier()
        k.emit(f"st.global.b32 [{self.own_count()}], {v('i32', f'ld.shared.u32 {{}}, [{mine}];')};")

    def _room(self) -> None:
        self.counters, self.ordered, self.places = self.room(4 * THREADS * WARPS), self.room(8 * self.items), self.room(4 * THREADS)
        self.own_counters = self.v("i32", f"mad.lo.u32 {{}}, {self.warp}, {4 * THREADS}, {self.counters};")
        self.first = self.v("i32", f"mad.lo.u32 {{}}, {self.warp}, {32 * self.each}, {self.lane};")

    def _clear(self) -> None:
        for w in range(WARPS):
            self.k.emit(f"st.shared.u32 [{self.slot(self.counters, self.tid)}+{4 * THREADS * w}], 0;")

    def _words(self) -> list[str]:
        """The words of this thread; what lies past the end is the largest word."""
        address, words = self.at(self.source, self.first, 8), []
        for j in range(self.each):
            inside = self.v("i1", f"setp.lt.u32 {{}}, {self.v('i32', f'add.u32 {{}}, {self.first}, {32 * j};')}, {self.here};")
            words.append(self.v("i64", "mov.b64 {}, -1;"))
            self.k.emit(f"@{inside} ld.global.b64 {words[-1]}, [{address}+{256 * j}];")
        return words

    def _order(self, words: list[str], shift: int, total: str = "0", earlier: str = "0") -> None:
        """The words of the block in shared memory, ordered by a byte, from counters that are clear. `places` gets for each byte what
        leads from there to memory, given how many words of this thread's byte the row has, and how many of them the blocks before."""
        k, v = self.k, self.v
        below = v("i32", f"sub.u32 {{}}, {v('i32', f'shl.b32 {{}}, 1, {self.lane};')}, 1;")
        slots = [self.slot(self.own_counters, self.digit(word, shift)) for word in words]
        ranks = [self._rank(slot, self.digit(word, shift), below) for slot, word in zip(slots, words, strict=True)]
        self.barrier()
        # the counts of the warps before, of every digit; then the first place of the digit in the block
        mine, sums = self.slot(self.counters, self.tid), v("i32", "mov.u32 {}, 0;")
        counts = [v("i32", f"ld.shared.u32 {{}}, [{mine}+{4 * THREADS * w}];") for w in range(WARPS)]
        for c in counts:
            sums = v("i32", f"add.u32 {{}}, {sums}, {c};")
        local, *general = self.before(sums, *([total] if total != "0" else []))
        place = local
        for w, c in enumerate(counts):
            k.emit(f"st.shared.u32 [{mine}+{4 * THREADS * w}], {place};")
            place = v("i32", f"add.u32 {{}}, {place}, {c};")
        if general:
            place = v("i32", f"sub.u32 {{}}, {v('i32', f'add.u32 {{}}, {general[0]}, {earlier};')}, {local};")
            k.emit(f"st.shared.u32 [{self.slot(self.places, self.tid)}], {place};")
        self.barrier()
        for word, slot, rank in zip(words, slots, ranks, strict=True):
            at = v("i32", f"add.u32 {{}}, {v('i32', f'ld.shared.u32 {{}}, [{slot}];')}, {rank};")
            k.emit(f"st.shared.b64 [{self.slot(self.ordered, at, 8)}], {word};")
        self.barrier()

    def _move(self, shift: int) -> None:
        v = self.v
        self._room()
        self._clear()
        words = self._words()
        base = self.at(self.pointer(self.kernel.totals), v("i32", f"mad.lo.u32 {{}}, {self.row}, {THREADS}, {self.tid};"), 4)
        total = v("i32", f"ld.global.b32 {{}}, [{base}];")
        earlier = v("i32", f"ld.global.b32 {{}}, [{self.own_count()}];")
        self.barrier()
        self._order(words, shift, total, earlier)
        self._write(shift)

    def _sort(self) -> None:
        """A row that one block holds."""
        self._room()
        words = self._words()
        for i, shift in enumerate(self.kernel.shifts):
            self._clear()
            self.barrier()
            self._order(words, shift)
            if i < len(self.kernel.shifts) - 1:
                source = self.slot(self.ordered, self.first, 8)
                words = [self.v("i64", f"ld.shared.b64 {{}}, [{source}+{256 * j}];") for j in range(self.each)]
        self._write(None)

    def _write(self, shift: int | None) -> None:
        """The ordered words to memory: to the places of a byte, or as they stand."""
        k, v = self.k, self.v
        whole = v("i64", f"mul.wide.u32 {{}}, {self.row}, {self.n};")
        goal = v("i64", f"mad.lo.s64 {{}}, {whole}, 8, {self.pointer(self.kernel.goal)};")
        source = self.slot(self.ordered, self.tid, 8)
        for j in range(self.each):
            place = at = v("i32", f"add.u32 {{}}, {self.tid}, {j * THREADS};")
            word = v("i64", f"ld.shared.b64 {{}}, [{source}+{8 * j * THREADS}];")
            inside = v("i1", f"setp.lt.u32 {{}}, {at}, {self.here};")
            if shift is not None:
                there = v("i32", f"ld.shared.u32 {{}}, [{self.slot(self.places, self.digit(word, shift))}];")
                place = v("i32", f"add.u32 {{}}, {there}, {at};")
                # a launch that is measured by itself may find counts of another pass: its words must not leave the row
                inside = v("i1", f"and.pred {{}}, {inside}, {v('i1', f'setp.lt.u32 {{}}, {place}, {self.n};')};")
            k.emit(f"@{inside} st.global.b64 [{self.at(goal, place, 8)}], {word};")

    def _rank(self, counter: str, digit: str, below: str) -> str:
        """How many words of the warp with the same byte come before; counts them."""
        k, v = self.k, self.v
        peers = v("i32", "mov.u32 {}, -1;")
        for bit in range(8):
            has = v("i1", f"setp.ne.u32 {{}}, {v('i32', f'and.b32 {{}}, {digit}, {1 << bit};')}, 0;")
            votes = v("i32", f"vote.sync.ballot.b32 {{}}, {has}, -1;")
            alike = v("i32", f"xor.b32 {{}}, {votes}, {v('i32', f'selp.b32 {{}}, 0, -1, {has};')};")
            peers = v("i32", f"and.b32 {{}}, {peers}, {alike};")
        ahead = v("i32", f"popc.b32 {{}}, {v('i32', f'and.b32 {{}}, {peers}, {below};')};")
        old = v("i32", f"ld.shared.u32 {{}}, [{counter}];")
        k.emit("bar.warp.sync -1;")
        new = v("i32", f"add.u32 {{}}, {old}, {v('i32', f'popc.b32 {{}}, {peers};')};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {ahead}, 0;')} st.shared.u32 [{counter}], {new};")
        k.emit("bar.warp.sync -1;")
        return v("i32", f"add.u32 {{}}, {old}, {ahead};")
