"""Convolution with groups of few channels on `mma.sync`, written as PTX for every chip from sm_80 on.

A block has `lines` lines of one image's results and the channels of some groups, 64 at most. All pixels that it reads are copied into
shared memory once, padding as zeros, and every tap reads them there: `ldmatrix` takes the address of each of its rows, so a window is an
offset. A warp multiplies 16 neighbouring pixels by the weights of its results, which stay in its registers; K runs over taps and channels,
eight of them a piece, two pieces a step. Pixels lie an odd number of 16-byte pieces apart, so that eight neighbours meet all banks.

A pair of groups of four channels is a group of eight whose sums are taken twice, each time with the other group's channels cleared: nothing
that a group reads, infinities included, reaches the other's results.
"""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.conv.cuda.halo import line_bytes
from ....kernels.conv.cuda.kernels import HaloKernel
from ....tile.ir import Instr, TileType
from ..matmul.groups import PIECES, Groups
from ..ptx.text import KernelText, literal, module_text
from ..threads.access import Address, _pair
from ..threads.layout import Key, Regs, Spots
from ..tiled.epilogue import Epilogue

PIECE = 16  # bytes
WARP = 32
ROWS = 16  # pixels of a warp at a time


def emit_halo(kernel: HaloKernel, target: TargetSpec) -> str:
    return Halo(kernel).module(target)


def pixel_bytes(kernel: HaloKernel) -> int:
    height, width = kernel.reach
    return height * width * kernel.pitch


def halo_shared(kernel: HaloKernel) -> int:
    return pixel_bytes(kernel) + (kernel.block // WARP * ROWS * line_bytes(kernel.wide) if kernel.stored else 0)


def places(kernel: HaloKernel) -> tuple[tuple[int, int], ...]:
    """(first byte, bytes) of the pixels and of every warp's lines."""
    first, own = pixel_bytes(kernel), ROWS * line_bytes(kernel.wide)
    return (0, first), *((at, own) for at in range(first, halo_shared(kernel), own))


class Out(Epilogue):
    """Results of 16 bits go out through shared memory: two neighbours a thread become eight."""

    kernel: HaloKernel

    def place(self, base: str, warp: str, lane: str, right: str) -> None:
        """This warp's lines, and which of their pieces a lane writes and reads."""
        g, v = self.kernel, self.k.value
        line = line_bytes(g.wide)
        own = v("i32", f"mad.lo.u32 {{}}, {warp}, {ROWS * line}, {v('i32', f'add.u32 {{}}, {base}, {pixel_bytes(g)};')};")
        self.slot = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'shr.u32 {{}}, {lane}, 2;')}, {line}, {own};")
        self.slot = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'and.b32 {{}}, {lane}, 3;')}, 4, {self.slot};")
        across = g.wide // 8
        piece = v("i32", f"and.b32 {{}}, {lane}, {across - 1};")
        self.line = v("i32", f"shr.u32 {{}}, {lane}, {across.bit_length() - 1};")
        self.source = v("i32", f"mad.lo.u32 {{}}, {piece}, {PIECE}, {v('i32', f'mad.lo.u32 {{}}, {self.line}, {line}, {own};')};")
        self.column = v("i32", f"mad.lo.u32 {{}}, {piece}, 8, {right};")

    def do_store(self, instr: Instr) -> None:
        g, k, v = self.kernel, self.k, self.k.value
        view, address = instr.operands[0], self.env[instr.operands[0]]  # type: ignore[index]
        if view not in g.stored:
            super().do_store(instr)
            return
        assert isinstance(address, Address) and g.row is not None and g.column is not None and g.end is not None
        tile, line = self.tile(instr.operands[-1]), line_bytes(g.wide)
        k.emit("bar.warp.sync -1;")  # what was there has been read
        for h in (0, 8):
            for c in range(0, g.wide, 8):
                k.emit(f"st.shared.b32 [{self.slot}+{h * line + 2 * c}], {_pair(self.f, tile.values[h, c], tile.values[h, c + 1])};")
        k.emit("bar.warp.sync -1;")
        row = v("i64", f"add.s64 {{}}, {self.env[g.row]}, {v('i64', f'cvt.u64.u32 {{}}, {self.line};')};")
        column = v("i64", f"add.s64 {{}}, {self.env[g.column]}, {v('i64', f'cvt.u64.u32 {{}}, {self.column};')};")
        step = address.strides[-2]
        at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'mad.lo.s64 {{}}, {row}, {step}, {column};')}, 2, {address.pointer};")
        at_once = 8 * WARP // g.wide  # lines
        left = v("i64", f"sub.s64 {{}}, {self.env[g.end]}, {row};")
        for first in range(0, ROWS, at_once):
            there = v("i1", f"setp.gt.s64 {{}}, {left}, {first};")
            if at_once > ROWS:
                there = v("i1", f"and.pred {{}}, {there}, {v('i1', f'setp.lt.u32 {{}}, {self.line}, {ROWS};')};")
            regs = [k.reg("i32") for _ in range(4)]
            k.emit(f"@{there} ld.shared.v4.b32 {{{', '.join(regs)}}}, [{self.source}+{first * line}];")
            if first:
                skip = v("i64", f"mul.lo.s64 {{}}, {step}, {2 * at_once};")
                at = v("i64", f"add.s64 {{}}, {at}, {skip};")
            k.emit(f"@{there} st.global.v4.b32 [{at}], {{{', '.join(regs)}}};")


class Halo:
    def __init__(self, kernel: HaloKernel) -> None:
        self.kernel = kernel
        self.k = KernelText(kernel.name, [])
        self.columns = kernel.wide // 8  # columns of eight results each, of a warp
        self.e = Out(kernel, Spots((0, 8), tuple((8 * j, 8 * j + 1) for j in range(self.columns)), kernel.block), self.k)

    def module(self, target: TargetSpec) -> str:
        g, k, v = self.kernel, self.k, self.k.value
        self.e.parameters()
        self.tid, self.base = v("i32", "mov.u32 {}, %tid.x;"), v("i32", "mov.u32 {}, ring;")
        block = v("i32", "mov.u32 {}, %ctaid.x;")
        part, tile = v("i32", f"rem.u32 {{}}, {block}, {g.parts};"), v("i32", f"div.u32 {{}}, {block}, {g.parts};")
        tiles = -(-g.out[0] // g.lines)
        image = v("i32", f"div.u32 {{}}, {tile}, {tiles};")
        first = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {tile}, {tiles};')}, {g.lines};")
        self._copy(image, first, part)
        copies = Groups(k, *PIECES)
        copied = copies.commit()
        self._place(part)
        weights = self._weights(part)
        copies.wait(copied)
        k.emit("bar.sync 0;")
        self._multiply(weights, image, first, part)
        text = k.text([f".maxntid {g.block}, 1, 1", f".minnctapersm {g.per_sm}"], target.cpu)
        return module_text(target.cpu, ".extern .shared .align 128 .b8 ring[];\n\n" + text)

    def _copy(self, image: str, first: str, part: str) -> None:
        """The pixels of the block: a thread has one piece of one pixel of some lines at a time."""
        g, k, v = self.kernel, self.k, self.k.value
        address = self.e.env[g.a]  # type: ignore[index]
        assert isinstance(address, Address)
        sn, sh, sw, _ = (2 * int(s) for s in address.strides)
        height, width = g.reach
        pieces = g.held // 8
        across = 1 << (pieces - 1).bit_length()  # threads of a pixel
        slots = g.block // across
        span = min(slots, 1 << (width - 1).bit_length())  # pixels of a line at a time
        piece = v("i32", f"and.b32 {{}}, {self.tid}, {across - 1};")
        slot = v("i32", f"shr.u32 {{}}, {self.tid}, {across.bit_length() - 1};")
        column, line = v("i32", f"and.b32 {{}}, {slot}, {span - 1};"), v("i32", f"shr.u32 {{}}, {slot}, {span.bit_length() - 1};")
        x = v("i32", f"sub.s32 {{}}, {column}, {g.before[1]};")
        y = v("i32", f"mad.lo.s32 {{}}, {first}, {g.stride[0]}, {v('i32', f'sub.s32 {{}}, {line}, {g.before[0]};')};")
        at = address.pointer
        for place, step in ((x, sw), (y, sh), (image, sn), (part, 2 * g.held), (piece, PIECE)):
            at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.s64.s32 {{}}, {place};')}, {step}, {at};")
        to = v("i32", f"mad.lo.u32 {{}}, {piece}, {PIECE}, {self.base};")
        to = v("i32", f"mad.lo.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {line}, {width}, {column};')}, {g.pitch}, {to};")
        some = v("i1", f"setp.lt.u32 {{}}, {piece}, {pieces};")
        held, inside = [], []
        for i in range(0, width, span):
            held.append(v("i1", f"and.pred {{}}, {some}, {v('i1', f'setp.lt.u32 {{}}, {column}, {width - i};')};"))
            inside.append(v("i1", f"setp.lt.u32 {{}}, {v('i32', f'add.s32 {{}}, {x}, {i};')}, {g.image[1]};"))
        hop = slots // span  # lines at a time
        for j in range(0, height, hop):
            there = v("i1", f"setp.lt.u32 {{}}, {v('i32', f'add.s32 {{}}, {y}, {j};')}, {g.image[0]};")
            whole = j + hop <= height
            for i in range(0, width, span):
                n = v("i32", f"selp.b32 {{}}, {PIECE}, 0, {v('i1', f'and.pred {{}}, {there}, {inside[i // span]};')};")
                held_here = held[i // span]
                if not whole:
                    held_here = v("i1", f"and.pred {{}}, {held_here}, {v('i1', f'setp.lt.u32 {{}}, {line}, {height - j};')};")
                spot, source = (j * width + i) * g.pitch, j * sh + i * sw
                k.emit(f"@{held_here} cp.async.cg.shared.global [{to}+{spot}], [{at}+{source}], {PIECE}, {n};")

    def _place(self, part: str) -> None:
        """This thread's lane, its warp's first pixels and results."""
        g, v = self.kernel, self.k.value
        self.lane = v("i32", f"and.b32 {{}}, {self.tid}, {WARP - 1};")
        warp = v("i32", f"shr.u32 {{}}, {self.tid}, 5;")
        self.turn = v("i32", f"div.u32 {{}}, {warp}, {g.results // g.wide};")
        self.right = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {warp}, {g.results // g.wide};')}, {g.wide};")
        self.row, self.pair = v("i32", f"shr.u32 {{}}, {self.lane}, 2;"), v("i32", f"and.b32 {{}}, {self.lane}, 3;")
        self.pieces = g.taps[0] * g.taps[1] * (g.channels // 8)
        self.zero = v("i32", "mov.u32 {}, 0;")
        if g.stored:
            self.e.place(self.base, warp, self.lane, self.right)

    def _weights(self, part: str) -> list[list[tuple[str, str]]]:
        """[eight results][step]: two registers, rows of the weights along K."""
        g, v = self.kernel, self.k.value
        address = self.e.env[g.b]  # type: ignore[index]
        assert isinstance(address, Address)
        deep = 8 * self.pieces
        result = v("i32", f"add.u32 {{}}, {self.right}, {self.row};")
        result = v("i32", f"mad.lo.u32 {{}}, {part}, {g.results}, {result};")
        at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {result};')}, {2 * deep}, {address.pointer};")
        pair = self.pair
        if g.paired:  # the second group's weights belong to the second four channels, zeros to the first
            half = v("i32", f"shr.u32 {{}}, {self.lane}, 3;")
            pair = v("i32", f"xor.b32 {{}}, {pair}, {v('i32', f'and.b32 {{}}, {half}, 2;')};")
        at = v("i64", f"add.s64 {{}}, {at}, {v('i64', f'mul.wide.u32 {{}}, {pair}, 4;')};")

        def word(j: int, piece: int) -> str:
            return self.zero if piece >= self.pieces else v("i32", f"ld.global.b32 {{}}, [{at}+{8 * j * 2 * deep + PIECE * piece}];")

        return [[(word(j, p), word(j, p + 1)) for p in range(0, self.pieces, 2)] for j in range(self.columns)]

    def _offset(self, piece: int) -> int:
        """Bytes from a pixel's first tap to a piece of K."""
        g = self.kernel
        tap, inside = divmod(piece, g.channels // 8)
        y, x = divmod(tap, g.taps[1])
        return (y * g.dilation[0] * g.reach[1] + x * g.dilation[1]) * g.pitch + inside * PIECE

    def _multiply(self, weights: list[list[tuple[str, str]]], image: str, first: str, part: str) -> None:
        """16 pixels at a time: every warp of the same results takes every so many."""
        g, k, v, e = self.kernel, self.k, self.k.value, self.e
        assert g.acc is not None and g.row is not None and g.column is not None and g.batch is not None and g.end is not None
        assert isinstance(g.acc.type, TileType)
        width, pixels = g.out[1], g.lines * g.out[1]
        lines = v("i32", f"min.u32 {{}}, {v('i32', f'sub.u32 {{}}, {g.out[0]}, {first};')}, {g.lines};")
        start = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'mad.lo.u32 {{}}, {image}, {g.out[0]}, {first};')}, {width};")
        end = v("i32", f"mad.lo.u32 {{}}, {lines}, {width}, {start};")
        e.env[g.end] = v("i64", f"cvt.u64.u32 {{}}, {end};")
        e.env[g.batch] = v("i64", "mov.b64 {}, 0;")
        e.env[g.column] = v("i64", f"mul.wide.u32 {{}}, {part}, {g.results};")
        side = v("i32", f"mad.lo.u32 {{}}, {self.pair}, 2, {self.right};")
        e.corner = (v("i64", f"cvt.u64.u32 {{}}, {self.row};"), v("i64", f"cvt.u64.u32 {{}}, {side};"))
        steps = [(self._offset(p), self._offset(p + 1) if p + 1 < self.pieces else self._offset(p)) for p in range(0, self.pieces, 2)]
        upper = v("i1", f"setp.ge.u32 {{}}, {self.lane}, 16;")
        group = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {self.right}, {g.each};')}, {2 * g.channels};")
        origin = v("i32", f"add.u32 {{}}, {self.base}, {group};")
        far = {d: v("i32", f"add.u32 {{}}, {origin}, {v('i32', f'selp.b32 {{}}, {d}, 0, {upper};')};") for d in {b - a for a, b in steps}}
        if g.paired:
            first_four = v("i1", f"setp.lt.u32 {{}}, {self.pair}, 2;")
            lower, rest = (v("i32", f"selp.b32 {{}}, {x}, {y}, {first_four};") for x, y in ((-1, 0), (0, -1)))
        inside = v("i32", f"and.b32 {{}}, {self.lane}, 15;")
        now = k.reg("i32")
        k.emit(f"mad.lo.u32 {now}, {self.turn}, 16, {start};")
        top, done = k.label("pixels"), k.label("done")
        k.place(top)
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {now}, {end};')} bra {done};")
        pixel = v("i32", f"add.u32 {{}}, {v('i32', f'sub.u32 {{}}, {now}, {start};')}, {inside};")
        pixel = v("i32", f"min.u32 {{}}, {pixel}, {pixels - 1};")
        line = v("i32", f"div.u32 {{}}, {pixel}, {width};")
        across = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {pixel}, {width};')}, {g.stride[1] * g.pitch};")
        spot = v("i32", f"mad.lo.u32 {{}}, {line}, {g.stride[0] * g.reach[1] * g.pitch}, {across};")
        spots = {d: v("i32", f"add.u32 {{}}, {spot}, {r};") for d, r in far.items()}
        sums = [[k.reg("float") for _ in range(4)] for _ in range(self.columns)]
        second = [[k.reg("float") for _ in range(4)] for _ in sums] if g.paired else []
        for r in (r for four in (*sums, *second) for r in four):
            k.emit(f"mov.f32 {r}, {literal('float', 0.0)};")
        name = f"mma.sync.aligned.m16n8k16.row.col.f32.{g.dtype}.{g.dtype}.f32"
        for i, (a, b) in enumerate(steps):
            for own in range(0, self.columns, max(1, g.each // 8)):  # the first eight results of a group
                regs = [k.reg("i32") for _ in range(4)]
                at = a + 8 * own // g.each * 2 * g.channels
                k.emit(f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{', '.join(regs)}}}, [{spots[b - a]}+{at}];")
                left = regs if 2 * i + 1 < self.pieces else [*regs[:2], self.zero, self.zero]
                sides = [(sums, left)]
                if g.paired:
                    sides = [(to, [v("i32", f"and.b32 {{}}, {r}, {m};") for r in left]) for to, m in ((sums, lower), (second, rest))]
                for to, a_regs in sides:
                    for j in range(own, min(self.columns, own + g.each // 8)):
                        c = ", ".join(to[j])
                        k.emit(f"{name} {{{c}}}, {{{', '.join(a_regs)}}}, {{{', '.join(weights[j][i])}}}, {{{c}}};")
        if g.paired:
            for first_sum, second_sum in ((a, b) for four in zip(sums, second, strict=True) for a, b in zip(*four, strict=True)):
                k.emit(f"selp.f32 {first_sum}, {first_sum}, {second_sum}, {first_four};")
        e.env[g.row] = v("i64", f"cvt.u64.u32 {{}}, {now};")
        values: dict[Key, str] = {(8 * (x // 2), 8 * j + x % 2): r for j, four in enumerate(sums) for x, r in enumerate(four)}
        e.env[g.acc] = Regs(g.acc.type, values)
        e.block(g.body)
        k.emit(f"add.u32 {now}, {now}, {16 * g.block // WARP // (g.results // g.wide)};")
        k.emit(f"bra {top};")
        k.place(done)
