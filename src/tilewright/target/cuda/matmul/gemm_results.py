"""Results of a matrix kernel on their way out: from accumulator fragments into swizzled shared memory, from there by TMA.

Each warpgroup has two slices of 64 rows × 128 bytes (or 64, or 32); while one is copied out, the next is written. TMA stops at
the edges of the result, so nothing is masked here. A matrix that the epilogue adds comes the other way, through the ring of the operands.
"""

from __future__ import annotations

from ....kernels.cuda.kernel import GemmKernel
from ....tile.ir import Instr, TileType, Var, ViewType
from ..ptx.text import KernelText
from ..threads.access import _pair
from ..threads.emit import Emitter
from ..threads.layout import Fragment, Key, Regs
from .groups import COPIES, Groups

SLICES = 2  # slices of every warpgroup: one is written while another is copied out
EXCHANGED = {128: (0, 3), 64: (1, 2), 32: (2, 1)}  # bytes of a row -> the bits of its number that its 16-byte pieces are moved by


def slice_bytes(kernel: GemmKernel) -> int:
    """Bytes of 64 rows of one run of the epilogue."""
    stored = next((p.type for p in kernel.params if p in kernel.stored), None)
    return 64 * kernel.slice * (stored.dtype.itemsize if isinstance(stored, ViewType) else 0)


class Results(Emitter):
    """The epilogue's emitter: stores into results with a tensor map go through shared memory."""

    def __init__(self, kernel: GemmKernel, text: KernelText) -> None:
        super().__init__(kernel, Fragment(kernel.run), text)
        self.stored, self.added = kernel.stored, kernel.added
        self.wide = slice_bytes(kernel) // 64  # bytes of a row of a slice
        self.corner: tuple[str, ...] = ("0", "0", "0")  # column, row, batch of the slice, as 32-bit registers

    def place_staging(self, base: str, who: str, tid: str, maps: list[str]) -> None:
        """Where this warpgroup's slices lie, and where in them each lane of a warp stores."""
        k, v = self.k, self.k.value
        self.maps = maps
        self.staging = v("i32", f"mad.lo.u32 {{}}, {who}, {SLICES * 64 * self.wide}, {base};")
        self.which = k.reg("i32")
        k.emit(f"mov.u32 {self.which}, 0;")
        self.lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {tid}, 127;')}, 0;")
        self.copies = Groups(k, *COPIES, guard=self.lead)
        self.barrier_id = v("i32", f"add.u32 {{}}, {who}, 1;")
        # stmatrix: lane l gives the address of row l%8 of matrix l/8; the four are rows 0-7 and 8-15 of two neighbouring 16-byte columns
        inside = v("i32", f"and.b32 {{}}, {tid}, 7;")
        lower = v("i32", f"bfe.u32 {{}}, {tid}, 3, 1;")
        warp = v("i32", f"bfe.u32 {{}}, {tid}, 5, 2;")
        row = v("i32", f"mad.lo.u32 {{}}, {lower}, 8, {inside};")
        row = v("i32", f"mad.lo.u32 {{}}, {warp}, 16, {row};")
        self.slot = v("i32", f"mad.lo.u32 {{}}, {row}, {self.wide}, {self.staging};")
        self.right = v("i32", f"bfe.u32 {{}}, {tid}, 4, 1;")
        start, bits = EXCHANGED[self.wide]
        self.inside = v("i32", f"bfe.u32 {{}}, {tid}, {start}, {bits};")  # which 16-byte pieces a row exchanges
        self.tid, self.who = tid, who

    def place_added(self, stage: str) -> None:
        """Where this thread's part of a slice lies that came through the ring: row lane/4 of its warp, columns lane%4·2."""
        v = self.k.value
        self.line = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;")
        row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {self.tid}, 5, 2;')}, 16, {self.line};")
        row = v("i32", f"mad.lo.u32 {{}}, {self.who}, 64, {row};")
        at = v("i32", f"mad.lo.u32 {{}}, {row}, 128, {stage};")
        self.added_at = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 3;')}, 4, {at};")

    def do_load(self, instr: Instr) -> None:
        if self.added is None or instr.operands[0] is not self.added:
            super().do_load(instr)
            return
        k, v = self.k, self.k.value
        type_ = instr.results[0].type
        assert isinstance(type_, TileType) and type_.shape == (64, 64)
        values: dict[Key, str] = {}
        for j in range(8):
            chunk = v("i32", f"xor.b32 {{}}, {self.line}, {j};") if j else self.line
            where = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {self.added_at};")
            for h in (0, 8):
                word = v("i32", f"ld.shared.b32 {{}}, [{where}+{128 * h}];")
                low, high = k.reg("half"), k.reg("half")
                k.emit(f"mov.b32 {{{low}, {high}}}, {word};")
                values[h, 8 * j], values[h, 8 * j + 1] = low, high
        self.env[instr.results[0]] = Regs(type_, values)

    def do_store(self, instr: Instr) -> None:
        target = instr.operands[0]
        assert isinstance(target, Var)
        if target not in self.stored:
            super().do_store(instr)
            return
        k, v = self.k, self.k.value
        tile = self.tile(instr.operands[-1])
        self.copies.room(SLICES)
        k.emit(f"bar.sync {self.barrier_id}, 128;")
        {1: self._slice_of_bytes, 2: self._slice_of_halves, 4: self._slice_of_words}[tile.type.dtype.itemsize](tile)
        k.emit("fence.proxy.async.shared::cta;")
        k.emit(f"bar.sync {self.barrier_id}, 128;")
        source = v("i32", f"mad.lo.u32 {{}}, {self.which}, {64 * self.wide}, {self.staging};")
        place = f"{self.maps[self.stored.index(target)]}, {{{', '.join(self.corner)}}}"
        k.emit(f"@{self.lead} cp.async.bulk.tensor.{len(self.corner)}d.global.shared::cta.bulk_group [{place}], [{source}];")
        self.copies.commit()
        k.emit(f"xor.b32 {self.which}, {self.which}, 1;")

    def _slice_of_halves(self, tile: Regs) -> None:
        """16-bit elements, four matrices of 8 × 8 at a time."""
        k, v = self.k, self.k.value
        at = v("i32", f"mad.lo.u32 {{}}, {self.which}, {64 * self.wide}, {self.slot};")
        for j in range(0, self.wide // 16, 2):
            regs = [_pair(self.f, tile.values[8 * h, 8 * c], tile.values[8 * h, 8 * c + 1]) for c in (j, j + 1) for h in (0, 1)]
            chunk = v("i32", f"xor.b32 {{}}, {v('i32', f'add.u32 {{}}, {self.right}, {j};')}, {self.inside};")
            where = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {at};")
            k.emit(f"stmatrix.sync.aligned.m8n8.x4.shared::cta.b16 [{where}], {{{', '.join(regs)}}};")

    def _slice_of_words(self, tile: Regs) -> None:
        """32-bit elements, two neighbours at a time: row lane/4 (+ 8) of the warp, columns lane%4·2 + 8j."""
        k, v = self.k, self.k.value
        line, pair = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"and.b32 {{}}, {self.tid}, 3;")
        row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {self.tid}, 5, 2;')}, 16, {line};")
        at = v("i32", f"mad.lo.u32 {{}}, {self.which}, {64 * self.wide}, {self.staging};")
        at = v("i32", f"mad.lo.u32 {{}}, {row}, 128, {at};")
        at = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {pair}, 1;')}, 8, {at};")
        right = v("i32", f"shr.u32 {{}}, {pair}, 1;")
        for j in range(4):
            chunk = v("i32", f"xor.b32 {{}}, {v('i32', f'add.u32 {{}}, {right}, {2 * j};')}, {line};")
            where = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {at};")
            for h in (0, 8):
                two = [self.register(tile.elem, tile.values[h, 8 * j + c]) for c in (0, 1)]
                k.emit(f"st.shared.v2.b32 [{where}+{128 * h}], {{{', '.join(two)}}};")

    def _slice_of_bytes(self, tile: Regs) -> None:
        """Eight-bit elements, two neighbours at a time, where the words of `_slice_of_words` would be."""
        k, v = self.k, self.k.value
        line, pair = v("i32", f"bfe.u32 {{}}, {self.tid}, 2, 3;"), v("i32", f"and.b32 {{}}, {self.tid}, 3;")
        row = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {self.tid}, 5, 2;')}, 16, {line};")
        at = v("i32", f"mad.lo.u32 {{}}, {self.which}, {64 * self.wide}, {self.staging};")
        at = v("i32", f"mad.lo.u32 {{}}, {row}, {self.wide}, {at};")
        at = v("i32", f"mad.lo.u32 {{}}, {pair}, 2, {at};")
        start, bits = EXCHANGED[self.wide]
        moved = v("i32", f"bfe.u32 {{}}, {line}, {start}, {bits};")
        for j in range(self.wide // 8):
            chunk = v("i32", f"xor.b32 {{}}, {moved}, {j // 2};")
            where = v("i32", f"mad.lo.u32 {{}}, {chunk}, 16, {at};")
            for h in (0, 8):
                low, high = (self.register("i32", tile.values[h, 8 * j + c]) for c in (0, 1))
                both = v("i32", f"prmt.b32 {{}}, {low}, {high}, 0x0040;")
                two = v("half", f"cvt.u16.u32 {{}}, {both};")
                k.emit(f"st.shared.b16 [{where}+{self.wide * h + 8 * (j % 2)}], {two};")

    def register(self, ty: str, value: str) -> str:
        return value if value.startswith("%") else self.k.value(ty, f"mov.b32 {{}}, {value};")

    def finish(self) -> None:
        """Shared memory must stay until everything is out."""
        self.copies.drain()
