"""Meetings of all blocks of a kernel, which must all be on the chip at once.

One word that counts arrivals, or one word a block that counts its own stages. Both only ever grow, so nothing is reset between launches: a
launch finds out where it begins, and stage t begins when t times all blocks (or every block t times) have arrived since. A block arrives by
one release after a barrier of its threads; who waits reads by acquire, and then meets the threads it waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from .ptx_text import KernelText

SYNC = 1  # number of the parameter that says where


def place(k: KernelText) -> str:
    """Read again where it is needed: a register for the whole kernel costs more."""
    return k.value("i64", f"cvta.to.global.u64 {{}}, {k.value('i64', f'ld.param.u64 {{}}, [p{SYNC}];')};")


class Counter:
    """One word for all. A block reads it before it arrives itself, so fewer than all have arrived: the rest of a division is theirs."""

    def __init__(self, k: KernelText, grid: int) -> None:
        self.k, self.grid = k, grid
        now = k.value("i64", f"ld.relaxed.gpu.global.u64 {{}}, [{place(k)}];")
        self.want = k.value("i64", f"sub.s64 {{}}, {now}, {k.value('i64', f'rem.u64 {{}}, {now}, {grid};')};")

    def wait(self, tid: str, threads: int, meet: Callable[[], None]) -> None:
        """`threads` threads, this one `tid` of them, go on when all blocks have done the stages before."""
        k, v = self.k, self.k.value
        spin, seen, sync = k.label("wait"), k.label("seen"), place(k)
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {tid}, 0;')} bra {seen};")
        k.place(spin)
        found = v("i64", f"ld.acquire.gpu.global.u64 {{}}, [{sync}];")
        k.emit(f"@{v('i1', f'setp.lt.u64 {{}}, {found}, {self.want};')} bra {spin};")
        k.place(seen)
        meet()

    def arrive(self, tid: str) -> None:
        """The block is done with its stage, and its threads have met."""
        first = self.k.value("i1", f"setp.eq.u32 {{}}, {tid}, 0;")
        self.k.emit(f"@{first} red.release.gpu.global.add.u64 [{place(self.k)}], 1;")
        self.k.emit(f"add.s64 {self.want}, {self.want}, {self.grid};")


class Flags:
    """One word a block: nobody waits for another's arrival to be counted, and a waiting warp reads the words of 32 blocks at once."""

    def __init__(self, k: KernelText, grid: int) -> None:
        self.k, self.grid = k, grid
        self.want = k.value("i32", f"ld.relaxed.gpu.global.u32 {{}}, [{self._mine()}];")

    def _mine(self) -> str:
        return self.k.value("i64", f"mad.wide.u32 {{}}, {self.k.value('i32', 'mov.u32 {}, %ctaid.x;')}, 4, {place(self.k)};")

    def wait(self, tid: str, threads: int, meet: Callable[[], None]) -> None:
        k, v = self.k, self.k.value
        sync = place(k)
        for first in range(0, self.grid, threads):
            which = v("i32", f"add.u32 {{}}, {tid}, {first};")
            spin, seen = k.label("wait"), k.label("seen")
            if first + threads > self.grid:
                k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {which}, {self.grid};')} bra {seen};")
            at = v("i64", f"mad.wide.u32 {{}}, {which}, 4, {sync};")
            k.place(spin)
            found = v("i32", f"ld.acquire.gpu.global.u32 {{}}, [{at}];")
            ahead = v("i32", f"sub.u32 {{}}, {found}, {self.want};")  # the words may wrap around, their distance does not
            k.emit(f"@{v('i1', f'setp.lt.s32 {{}}, {ahead}, 0;')} bra {spin};")
            k.place(seen)
        meet()

    def arrive(self, tid: str) -> None:
        k, v = self.k, self.k.value
        k.emit(f"add.u32 {self.want}, {self.want}, 1;")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {tid}, 0;')} st.release.gpu.global.u32 [{self._mine()}], {self.want};")


MEETINGS: dict[str, type[Counter] | type[Flags]] = {"counter": Counter, "flags": Flags}
