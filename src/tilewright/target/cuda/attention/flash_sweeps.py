"""The tiles of keys of one piece of attention forward on Hopper: products, and the softmax between them.

The scores of a tile and the sums of the tile before are started together; the softmax of the tile comes while the sums are still computed.
The branch on what the softmax gives keeps the wait for the sums behind it: the assembler would move it up to the wait for the scores.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..matmul.gemm_pieces import wgmma_registers, wgmma_shared
from ..matmul.groups import Groups
from ..matmul.stages import Reader, Ring
from .flash_weights import FlashWeights


class FlashSweeps(FlashWeights):
    lead: str
    first: str
    desc_q: str
    desc_k: str
    desc_v: str
    tile_bytes: int
    out: list[str]
    products: Groups
    keys: Reader
    values: Reader
    queries: Reader

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
            start, kept = self.products.under_way, k.label("kept")
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

    def _release(self, ring: Reader) -> None:
        ring.of.hand_back(ring.stage, self.lead)
        ring.advance()
