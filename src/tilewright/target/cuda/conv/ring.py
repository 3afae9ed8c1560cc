"""Convolution on `mma.sync`, written as PTX for every chip from sm_80 on: the ring of `ring.py`, with windows for rows of A.

A row is a pixel of the result, K runs over taps and channels, eight of a tap together: the 16 bytes that one `cp.async` brings. A thread
keeps where the first taps of its rows lie; in every stage it finds the tap of its piece, and pieces outside the image are zeros. Groups of
channels are the batch of the product, sizes but the batch's are known, so that quotients are products with constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ....core.target_spec import TargetSpec
from ....kernels.conv.cuda.kernels import ConvRingKernel
from ..matmul.ring import LINE, Ring
from ..matmul.ring_cores import Side
from ..threads.access import Address

FAR = 1 << 30  # a place that no tap brings back into an image


def emit_conv_ring(kernel: ConvRingKernel, target: TargetSpec) -> str:
    return ConvRing(kernel).module(target)


@dataclass
class Windows(Side):
    """The rows of A: where each begins in memory, and its first tap's place along every axis."""

    piece: str = ""  # number of this thread's piece of the next stage
    starts: list[tuple[str, list[str]]] = field(default_factory=list)
    strides: list[str] = field(default_factory=list)  # bytes along the axes


class ConvRing(Ring):
    kernel: ConvRingKernel

    def _side(self, view: object, rows: int, outer: bool, first: str, limit: str, depth: str, batch: str, base: str) -> Side:
        g = self.kernel
        if view is not g.a:
            return super()._side(view, rows, outer, first, limit, depth, batch, base)
        k, v = self.k, self.k.value
        address = self.e.env[g.a]  # type: ignore[index]
        assert isinstance(address, Address)
        strides = [v("i64", f"mul.lo.s64 {{}}, {s}, 2;") if s.startswith("%") else str(2 * int(s)) for s in address.strides[:4]]
        across = LINE // 16
        inside = v("i32", f"and.b32 {{}}, {self.tid}, {across - 1};")
        line = v("i32", f"shr.u32 {{}}, {self.tid}, {across.bit_length() - 1};")
        hop = g.block // across
        channel = v("i64", f"mul.wide.u32 {{}}, {batch}, {2 * g.channels};")
        origin = v("i64", f"add.s64 {{}}, {address.pointer}, {channel};")
        starts = []
        for i in range(0, rows, hop):
            row = v("i32", f"add.u32 {{}}, {first}, {v('i32', f'add.u32 {{}}, {line}, {i};') if i else line};")
            there = v("i1", f"setp.lt.u32 {{}}, {row}, {limit};")
            at, rest = origin, row
            places: list[str] = []
            for axis in (2, 1, 0):
                here = v("i32", f"rem.u32 {{}}, {rest}, {g.out[axis]};")
                rest = v("i32", f"div.u32 {{}}, {rest}, {g.out[axis]};")
                place = v("i32", f"mul.lo.s32 {{}}, {here}, {g.stride[axis]};")
                place = v("i32", f"sub.s32 {{}}, {place}, {g.before[axis]};") if g.before[axis] else place
                at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.s64.s32 {{}}, {place};')}, {strides[axis + 1]}, {at};")
                places.insert(0, v("i32", f"selp.b32 {{}}, {place}, {FAR}, {there};"))
            at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {rest};')}, {strides[0]}, {at};")
            starts.append((at, places))
        piece = k.reg("i32")
        k.emit(f"mov.u32 {piece}, {inside};")
        swapped = v("i32", f"shl.b32 {{}}, {v('i32', f'xor.b32 {{}}, {inside}, {self.core.moved(line, False)};')}, 4;")
        place = v("i32", f"mad.lo.u32 {{}}, {line}, {LINE}, {v('i32', f'add.u32 {{}}, {base}, {swapped};')};")
        return Windows(base, rows, False, "", "", "", place, hop, "", "", LINE, piece, starts, strides[1:])

    def _copy(self, side: Side, slot: str) -> None:
        if not isinstance(side, Windows):
            super()._copy(side, slot)
            return
        k, v, g = self.k, self.k.value, self.kernel
        to = v("i32", f"add.u32 {{}}, {side.place}, {slot};")
        per_tap = g.channels // 8  # pieces
        taps = g.taps[0] * g.taps[1] * g.taps[2]
        tap, inside = v("i32", f"div.u32 {{}}, {side.piece}, {per_tap};"), v("i32", f"rem.u32 {{}}, {side.piece}, {per_tap};")
        some = v("i1", f"setp.lt.u32 {{}}, {tap}, {taps};")
        move, rest = v("i64", f"mul.wide.u32 {{}}, {inside}, 16;"), tap
        moves: list[str] = []
        for axis in (2, 1, 0):
            here = v("i32", f"rem.u32 {{}}, {rest}, {g.taps[axis]};")
            rest = v("i32", f"div.u32 {{}}, {rest}, {g.taps[axis]};")
            here = v("i32", f"mul.lo.u32 {{}}, {here}, {g.dilation[axis]};")
            move = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {here};')}, {side.strides[axis]}, {move};")
            moves.insert(0, here)
        for i, (start, places) in enumerate(side.starts):
            there = some
            for axis, (place, by) in enumerate(zip(places, moves, strict=True)):
                now = v("i32", f"add.s32 {{}}, {place}, {by};")  # before the first it is a large number
                there = v("i1", f"and.pred {{}}, {there}, {v('i1', f'setp.lt.u32 {{}}, {now}, {g.image[axis]};')};")
            n = v("i32", f"selp.b32 {{}}, 16, 0, {there};")
            source = v("i64", f"add.s64 {{}}, {start}, {move};")
            source = v("i64", f"selp.b64 {{}}, {source}, {start}, {there};")
            k.emit(f"cp.async.cg.shared.global [{to}+{i * side.hop * LINE}], [{source}], 16, {n};")
        k.emit(f"add.u32 {side.piece}, {side.piece}, {LINE // 16};")
