"""The tiles of keys of one piece of attention forward on Hopper: products, and the softmax between them, in one of several orders.

Plainly: the scores of a tile and the sums of the tile before are started together, and the softmax follows. What the assembler makes of
that waits for the sums, too, before the softmax (it moves the wait up to the one before it), so that a warpgroup's matrix unit rests while
its threads compute; a branch that depends on the softmax keeps the wait behind it (`hold`, `lazy`, `eager`).
"""

from __future__ import annotations

from collections.abc import Sequence

from .flash_eager import FlashEager
from .gemm_pieces import wgmma_registers, wgmma_shared
from .groups import Groups
from .stages import Reader, Ring


class FlashSweeps(FlashEager):
    bars: str
    lead: str
    count: str
    limit: str
    desc_q: str
    desc_k: str
    desc_v: str
    tile_bytes: int
    out: list[str]
    products: Groups
    keys: Reader
    values: Reader
    queries: Ring
    turn: str  # barriers: of this warpgroup's turn, and of the other's
    other_turn: str

    def _begin_turns(self, who: str) -> None:
        """The first turn is the first warpgroup's: the second has given it."""
        k, v = self.k, self.k.value
        self.turn, self.other_turn = v("i32", f"add.u32 {{}}, {who}, 1;"), v("i32", f"sub.u32 {{}}, 2, {who};")
        k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {who}, 1;')} bar.arrive {self.other_turn}, 256;")

    def _my_turn(self) -> None:
        if self.kernel.plan.turns:
            self.k.emit(f"bar.sync {self.turn}, 256;")

    def _your_turn(self) -> None:
        if self.kernel.plan.turns:
            self.k.emit(f"bar.arrive {self.other_turn}, 256;")

    def _tiles(self) -> None:
        """All tiles of keys of a piece of work."""
        self._my_turn()
        scores = self._scores()
        self._your_turn()
        self.products.wait(scores)
        self._first_tile()
        step = self.k.reg("i32")
        self.k.emit(f"mov.u32 {step}, 1;")
        (self._eager_sweep if self.kernel.plan.eager else self._sweep)(step)

    def _first_tile(self) -> None:
        """Weights of the first tile of keys; with `halves`, of its first half where this warpgroup's rows do not see the other."""
        k, g, v = self.k, self.kernel, self.k.value
        if not g.plan.halves:
            self._first_keys(g.keys)
            return
        whole, on = k.label("whole_tile"), k.label("first_tile")
        half = v("i32", f"mad.lo.u32 {{}}, {self.tile}, {g.keys}, {g.keys // 2};")
        limit = self.limit
        if g.causal and g.plan.consumers > 1:
            last = v("i32", f"add.s32 {{}}, {v('i32', f'add.s32 {{}}, {self.row0}, {self.word.offset};')}, 64;")
            limit = v("i32", f"min.s32 {{}}, {limit}, {last};")
        k.emit(f"@{v('i1', f'setp.lt.s32 {{}}, {half}, {limit};')} bra {whole};")
        self._first_keys(g.keys // 2)
        k.emit(f"bra {on};")
        k.place(whole)
        self._first_keys(g.keys)
        k.place(on)

    def _first_keys(self, keys: int) -> None:
        if self.kernel.plan.eager:
            self._first_weights(keys, self.weights)
            return
        self._softmax(keys)
        for r in self.scores[keys // 2 :]:
            self.k.emit(f"mov.f32 {r}, 0f00000000;")
        self._pack()

    def _queries_read(self) -> None:
        if isinstance(self.queries, Reader):
            self._release(self.queries)
        else:
            self.k.emit(f"@{self.lead} mbarrier.arrive.shared::cta.b64 _, [{self.bars}+136];")

    def _rescale(self) -> None:
        for i, r in enumerate(self.out):
            self.k.emit(f"mul.rn.f32 {r}, {r}, {self.fade[i % 4 // 2]};")

    def _hold(self) -> None:
        """A branch that is never taken, on what the softmax gives: the assembler would move the wait that follows before the softmax. (It
        must not stand in a branch itself: all warps of a warpgroup execute it together.)"""
        k, v = self.k, self.k.value
        on = k.label("softmax_done")
        both = v("float", f"add.rn.f32 {{}}, {self.total[0]}, {self.total[1]};")
        never = v("i1", f"vote.sync.any.pred {{}}, {v('i1', f'setp.lt.f32 {{}}, {both}, 0f00000000;')}, -1;")
        k.emit(f"@!{never} bra {on};")
        k.emit("nanosleep.u32 1;")
        k.place(on)

    def _before(self, sums: int) -> None:
        """Wait for the sums before this tile, and rescale them."""
        k, g, v = self.k, self.kernel, self.k.value
        if g.plan.hold or g.plan.lazy is not None:
            self._hold()
        self.products.wait(sums)
        if g.plan.lazy is None:
            self._rescale()
            return
        kept = k.label("kept")
        grew = v("i1", f"or.pred {{}}, {self.grew[0]}, {self.grew[1]};")
        k.emit(f"@!{v('i1', f'vote.sync.any.pred {{}}, {grew}, -1;')} bra {kept};")
        self._rescale()
        k.place(kept)

    def _sweep(self, step: str) -> None:
        """The other tiles, then the sums of the last."""
        k, g, v = self.k, self.kernel, self.k.value
        top, out = k.label("keys"), k.label("last_keys")
        k.place(top)
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {step}, {self.count};')} bra {out};")
        k.emit(f"sub.u32 {self.tile}, {self.tile}, 1;")
        start = self.products.under_way
        self._my_turn()
        scores, sums = self._scores(), self._weighted(self.weights)
        self._your_turn()
        self.products.wait(scores)
        self._softmax(g.keys)
        self._before(sums)
        self.products.again(start)
        self._pack()
        k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"bra {top};")
        k.place(out)
        self._queries_read()
        self.products.wait(self._weighted(self.weights))

    def _eager_sweep(self, step: str) -> None:
        """The same with eager exponentials: a tile's weights are made while those of the tile before are still read, so there are two sets,
        in turn."""
        k, v = self.k, self.k.value
        sets = [self.weights, [k.reg("i32") for _ in self.weights]]
        top, outs, end = k.label("keys"), [k.label("last_keys") for _ in sets], k.label("keys_done")
        k.place(top)
        for turn in range(2):
            old, new = sets[turn], sets[1 - turn]
            k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {step}, {self.count};')} bra {outs[turn]};")
            k.emit(f"sub.u32 {self.tile}, {self.tile}, 1;")
            start, right, kept = self.products.under_way, k.label("weights_done"), k.label("kept")
            self._my_turn()
            scores, sums = self._scores(), self._weighted(old)
            self._your_turn()
            self.products.wait(scores)
            found, small = self._eager_weights(new)
            k.emit(f"@{small} bra {right};")
            self._again(new, found)
            for h in range(2):
                k.emit(f"mul.rn.f32 {self.total[h]}, {self.total[h]}, {self.fade[h]};")
            k.place(right)
            self.products.wait(sums)
            k.emit(f"@{small} bra {kept};")
            self._rescale()
            k.place(kept)
            for h in range(2):
                k.emit(f"add.rn.f32 {self.total[h]}, {self.total[h]}, {found[h]};")
            self.products.again(start)
            k.emit(f"add.u32 {step}, {step}, 1;")
        k.emit(f"bra {top};")
        for turn in range(2):
            k.place(outs[turn])
            self._queries_read()
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
