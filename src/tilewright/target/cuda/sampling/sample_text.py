"""What the kernel that chooses a token is made of: sweeps over a row, values over a block, and 1,024 counters of 64 bits with their
running sums. Everything that the block decides by is read from one place in shared memory, so that all threads go the same way."""

from __future__ import annotations

from collections.abc import Callable

from ....kernels.sort.cuda.sampling import LISTED, THREADS, SampleKernel
from ....tile.ir import Var
from ..ptx.text import KernelText, literal
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Group

UNROLL = 12  # most elements that a thread asks for at a time: 48 KB of the block are under way
UNIT = 2.0**40  # of masses
ADD = "atom.relaxed.cta.shared.add.u32"


class SampleText:
    def __init__(self, kernel: SampleKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.e = Emitter(kernel, Group(THREADS, 1), self.k)
        self.v = self.k.value
        self.e.parameters()
        self.tid = self.v("i32", "mov.u32 {}, %tid.x;")
        self.lane, self.warp = self.v("i32", f"and.b32 {{}}, {self.tid}, 31;"), self.v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        self.first = self.v("i1", f"setp.eq.u32 {{}}, {self.tid}, 0;")
        scratch = self.v("i32", "mov.u32 {}, scratch;")

        def room(nbytes: int) -> str:
            return self.v("i32", f"add.u32 {{}}, {scratch}, {self.k.alloc_shared(nbytes)};")

        self.counters = room(8 * THREADS)  # the low words, then the high ones
        self.sums = room(8 * THREADS), room(8 * THREADS)
        self.partial, self.slots = room(4 * 32), room(256)
        self._slots = 0
        self.unroll = min(UNROLL, -(-kernel.size // THREADS))
        self.place, self.before, self.upto, self.appended = (self.slot() for _ in range(4))

    # --- pieces -------------------------------------------------------------------------------------------------------
    def pointer(self, view: Var | None) -> str:
        """Of the part of a view that belongs to the block's row."""
        found = self.e.env[view]  # type: ignore[index]
        assert isinstance(found, Address)
        kernel = self.kernel
        counts = {kernel.logits: kernel.size, kernel.seen: kernel.size, kernel.kept: kernel.size, kernel.settings: 4, kernel.numbers: 3,
                  kernel.out: 1, kernel.listed: LISTED, kernel.ids: LISTED}
        if view not in counts:
            return found.pointer
        row = self.v("i32", "mov.u32 {}, %ctaid.x;")
        offset = self.v("i64", f"mul.wide.u32 {{}}, {row}, {counts[view] * found.dtype.itemsize};")
        return self.v("i64", f"add.u64 {{}}, {found.pointer}, {offset};")

    def slot(self) -> str:
        """Eight bytes in shared memory through which one thread tells the others."""
        self._slots += 1
        assert self._slots <= 32
        return f"{self.slots}+{8 * (self._slots - 1)}"

    def barrier(self) -> None:
        self.k.emit("bar.sync 0;")

    def go(self, label: str, predicate: str = "") -> None:
        self.k.emit(f"{'@' + predicate + ' ' if predicate else ''}bra {label};")

    def at(self, base: str, index: str, size: int) -> str:
        return self.v("i64", f"mad.wide.u32 {{}}, {index}, {size}, {base};")

    def both(self, *predicates: str) -> str:
        out = predicates[0]
        for p in predicates[1:]:
            out = self.v("i1", f"and.pred {{}}, {out}, {p};")
        return out

    def mass(self, p: str) -> str:
        """A probability (at most 1) as a whole number."""
        scaled = self.v("float", f"mul.rn.f32 {{}}, {p}, {literal('float', UNIT)};")
        return self.v("i64", f"cvt.rzi.u64.f32 {{}}, {scaled};")

    def halves(self, x: str) -> tuple[str, str]:
        low, high = self.k.reg("i32"), self.k.reg("i32")
        self.k.emit(f"mov.b64 {{{low}, {high}}}, {x};")
        return low, high

    def swap(self, x: str, step: int) -> str:
        """The value of the lane `step` away."""
        return self.v("i32", f"shfl.sync.bfly.b32 {{}}, {x}, {step}, 31, -1;")

    def over_block(self, fn: str, ty: str, x: str) -> str:
        """`fn` over a value of every thread."""
        k, v = self.k, self.v
        kind = "f32" if ty == "float" else "u32"

        def over_warp(x: str) -> str:
            for step in (16, 8, 4, 2, 1):
                bits = v("i32", f"mov.b32 {{}}, {x};")
                other = v(ty, f"mov.b32 {{}}, {self.swap(bits, step)};")
                x = v(ty, f"{fn} {{}}, {x}, {other};")
            return x

        slot = self.slot()
        x = over_warp(x)
        own = v("i32", f"mad.lo.u32 {{}}, {self.warp}, 4, {self.partial};")
        leads = v("i1", f"setp.eq.u32 {{}}, {self.lane}, 0;")
        k.emit(f"@{leads} st.shared.{kind} [{own}], {x};")
        self.barrier()
        x = over_warp(v(ty, f"ld.shared.{kind} {{}}, [{v('i32', f'mad.lo.u32 {{}}, {self.lane}, 4, {self.partial};')}];"))
        k.emit(f"@{self.first} st.shared.{kind} [{slot}], {x};")
        self.barrier()
        return v(ty, f"ld.shared.{kind} {{}}, [{slot}];")

    def sweep(self, source: str, count: str, body: Callable[[str, str, str], None], fill: str = "0f00000000") -> None:
        """body(value, position, whether it is there) for `count` numbers from `source` on. The lanes of a warp stay together."""
        k, v = self.k, self.v
        i, base = v("i32", f"mov.u32 {{}}, {self.tid};"), v("i32", f"and.b32 {{}}, {self.tid}, {THREADS - 32};")
        top, end = k.label("sweep"), k.label("swept")
        k.place(top)
        self.go(end, v("i1", f"setp.ge.u32 {{}}, {base}, {count};"))
        address = self.at(source, i, 4)
        found = []
        for j in range(self.unroll):
            here = v("i32", f"add.u32 {{}}, {i}, {j * THREADS};")
            inside = v("i1", f"setp.lt.u32 {{}}, {here}, {count};")
            x = v("float", f"mov.f32 {{}}, {fill};")
            k.emit(f"@{inside} ld.global.f32 {x}, [{address}+{4 * j * THREADS}];")
            found.append((x, here, inside))
        for x, here, inside in found:
            body(x, here, inside)
        k.emit(f"add.u32 {i}, {i}, {self.unroll * THREADS};")
        k.emit(f"add.u32 {base}, {base}, {self.unroll * THREADS};")
        self.go(top)
        k.place(end)

    # --- counters -----------------------------------------------------------------------------------------------------
    def clear(self) -> None:
        own = self.own_counter()
        self.k.emit(f"st.shared.u32 [{own}], 0;")
        self.k.emit(f"st.shared.u32 [{own}+{4 * THREADS}], 0;")
        self.barrier()

    def own_counter(self, index: str = "") -> str:
        return self.v("i32", f"mad.lo.u32 {{}}, {index or self.tid}, 4, {self.counters};")

    def count(self, index: str, mass: str | None) -> None:
        """Add a mass, or 1, to a counter. Two words and a carry: shared memory adds 32 bits at a time."""
        k, v = self.k, self.v
        at = self.own_counter(index)
        if mass is None:
            v("i32", f"{ADD} {{}}, [{at}], 1;")
            return
        low, high = self.halves(mass)
        old = v("i32", f"{ADD} {{}}, [{at}], {low};")
        new = v("i32", f"add.u32 {{}}, {old}, {low};")
        carry = v("i32", f"selp.u32 {{}}, 1, 0, {v('i1', f'setp.lt.u32 {{}}, {new}, {low};')};")
        more = v("i32", f"add.u32 {{}}, {high}, {carry};")
        unused = k.reg("i32")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {more}, 0;')} {ADD} {unused}, [{at}+{4 * THREADS}], {more};")

    def put(self, index: str, mass: str, predicate: str) -> None:
        """A counter that nobody else writes."""
        at, (low, high) = self.own_counter(index), self.halves(mass)
        self.k.emit(f"@{predicate} st.shared.u32 [{at}], {low};")
        self.k.emit(f"@{predicate} st.shared.u32 [{at}+{4 * THREADS}], {high};")

    def scan(self) -> str:
        """Running sums of the counters, by doubling; gives the sum of all."""
        k, v = self.k, self.v
        self.barrier()
        own = self.own_counter()
        low, high = (v("i32", f"ld.shared.u32 {{}}, [{own}+{o}];") for o in (0, 4 * THREADS))
        x = v("i64", f"mov.b64 {{}}, {{{low}, {high}}};")
        places = [v("i32", f"mad.lo.u32 {{}}, {self.tid}, 8, {s};") for s in self.sums]
        k.emit(f"st.shared.u64 [{places[0]}], {x};")
        self.barrier()
        reach, turn = 1, 0
        while reach < THREADS:
            has = v("i1", f"setp.ge.u32 {{}}, {self.tid}, {reach};")
            left, back = v("i64", "mov.u64 {}, 0;"), v("i32", f"sub.u32 {{}}, {places[turn]}, {8 * reach};")
            k.emit(f"@{has} ld.shared.u64 {left}, [{back}];")
            x = v("i64", f"add.u64 {{}}, {x}, {left};")
            turn, reach = 1 - turn, 2 * reach
            k.emit(f"st.shared.u64 [{places[turn]}], {x};")
            self.barrier()
        self._sum, self._place, self._last = x, places[turn], self.sums[turn]
        return v("i64", f"ld.shared.u64 {{}}, [{self._last}+{8 * (THREADS - 1)}];")

    def locate(self, goal: str) -> tuple[str, str, str]:
        """The first counter at which the running sum reaches `goal` (1 or more, at most the sum of all): its number, the sum before it,
        and with it."""
        k, v = self.k, self.v
        has = v("i1", f"setp.ne.u32 {{}}, {self.tid}, 0;")
        left, back = v("i64", "mov.u64 {}, 0;"), v("i32", f"sub.u32 {{}}, {self._place}, 8;")
        k.emit(f"@{has} ld.shared.u64 {left}, [{back}];")
        here = self.both(v("i1", f"setp.ge.u64 {{}}, {self._sum}, {goal};"), v("i1", f"setp.lt.u64 {{}}, {left}, {goal};"))
        k.emit(f"@{here} st.shared.u32 [{self.place}], {self.tid};")
        k.emit(f"@{here} st.shared.u64 [{self.before}], {left};")
        k.emit(f"@{here} st.shared.u64 [{self.upto}], {self._sum};")
        self.barrier()
        place = v("i32", f"ld.shared.u32 {{}}, [{self.place}];")
        before, upto = (v("i64", f"ld.shared.u64 {{}}, [{s}];") for s in (self.before, self.upto))
        self.barrier()
        return place, before, upto
