"""Convolution with few results on Hopper: pixels are brought to shared memory once and every tap reads them there.

A tile is a patch of 8 × 8 pixels in each of four planes (over two axes: four patches below one another), 64 rows of `wgmma` each. Its
pixels and those around them, 64 channels of each (128 bytes, swizzled), come as one box, padding as zeros. A tap is an offset into it:
eight neighbouring pixels are eight neighbouring rows, and the lines of the patch are as far apart as the box is wide. The swizzle goes by
the address, so rows may begin at any multiple of 128 bytes. Weights come tap by tap through a ring of their own. The rest is the kernel of
`gemm.py`; two warpgroups have two patches each.
"""

from __future__ import annotations

from math import prod

from ....core.target_spec import TargetSpec
from ....kernels.conv.cuda.kernels import PATCH, PLANES, PatchKernel
from ..matmul.gemm import BK, EMPTY, Gemm, results_bytes
from ..matmul.gemm_pieces import wgmma
from ..matmul.groups import PRODUCTS, Groups
from ..matmul.stages import Consumer, Producer, Stages
from ..threads.layout import Key, Regs

BOXES = 2  # boxes of pixels
FULL = 8 * 8  # bytes to the barriers of the boxes, behind those of eight stages of weights
OWN = PLANES // 2  # planes of a warpgroup


def emit_patch(kernel: PatchKernel, target: TargetSpec) -> str:
    return PatchGemm(kernel).module(target)


def box_bytes(kernel: PatchKernel) -> int:
    """Bytes of a box of pixels; boxes begin at multiples of 1024."""
    return -(-prod(kernel.box) * BK // 1024) * 1024


def patch_shared(kernel: PatchKernel) -> int:
    return BOXES * box_bytes(kernel) + kernel.stages * kernel.bn * BK + results_bytes(kernel) + 1024


class PatchGemm(Gemm):
    kernel: PatchKernel

    def _setup(self) -> None:
        self.boxes: Stages | None = None
        super()._setup()

    def _rings(self) -> None:
        """Barriers of the pixels' ring beside those of the weights'."""
        g = self.kernel
        self.boxes = Stages(self.k, self.bars, BOXES, FULL, FULL + EMPTY, g.consumers)
        for s in range(BOXES):
            self.boxes.init(s)

    def _patch(self, row: str) -> tuple[str, str, str, str]:
        """First column, line and plane of a tile, and its image."""
        g, v = self.kernel, self.k.value
        depth, height, width = g.image
        rest = v("i32", f"div.u32 {{}}, {row}, {g.bm};")
        found = []
        for size, step in zip((width, height, depth), g.tile[::-1], strict=True):
            count = -(-size // step)
            found.append(v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {rest}, {count};')}, {step};"))
            rest = v("i32", f"div.u32 {{}}, {rest}, {count};")
        return found[0], found[1], found[2], rest

    def _produce(self, end: str) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        assert self.boxes is not None
        k.emit("setmaxnreg.dec.sync.aligned.u32 40;")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {self.tid}, 0;')} bra {end};")
        pixels, weights = Producer(k, self.boxes), Producer(k, self.stages)
        load = "cp.async.bulk.tensor.{}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        tile, top, done = self._tile_loop()
        row, column, _ = self._position(tile)
        first = self._patch(row)
        corner = [v("i32", f"sub.s32 {{}}, {p}, {b};") if b else p for p, b in zip(first[:3], g.before[::-1], strict=True)]
        channel, tap = k.reg("i32"), k.reg("i32")
        k.emit(f"mov.u32 {channel}, 0;")
        outer, inner = k.label("channels"), k.label("taps")
        k.place(outer)
        full = pixels.fill(prod(g.box) * BK)
        spot = v("i32", f"mad.lo.u32 {{}}, {pixels.stage}, {box_bytes(g)}, {self.base};")
        k.emit(f"{load.format(5)} [{spot}], [{self.maps[0]}, {{{channel}, {', '.join((*corner, first[3]))}}}], [{full}];")
        pixels.advance()
        k.emit(f"mov.u32 {tap}, 0;")
        k.place(inner)
        full = weights.fill(self.b_bytes)
        spot = v("i32", f"mad.lo.u32 {{}}, {weights.stage}, {self.b_bytes}, {self._weights()};")
        k.emit(f"{load.format(3)} [{spot}], [{self.maps[1]}, {{{channel}, {column}, {tap}}}], [{full}];")
        weights.advance()
        k.emit(f"add.u32 {tap}, {tap}, 1;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {tap}, {prod(g.taps)};')} bra {inner};")
        k.emit(f"add.u32 {channel}, {channel}, 64;")
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {channel}, {g.channels};')} bra {outer};")
        self._next_tile(tile, top, done)

    def _weights(self) -> str:
        return self.k.value("i32", f"add.u32 {{}}, {self.base}, {BOXES * box_bytes(self.kernel)};")

    def _descriptor(self, address: str, rows: int) -> str:
        """Rows of 128 bytes, swizzled; eights of them so many rows apart."""
        v = self.k.value
        low = v("i64", f"cvt.u64.u32 {{}}, {v('i32', f'bfe.u32 {{}}, {address}, 4, 14;')};")
        return v("i64", f"or.b64 {{}}, {low}, {(1 << 16) | ((rows * BK >> 4) << 32) | (1 << 62)};")

    def _consume(self) -> None:
        k, g, v = self.k, self.kernel, self.k.value
        assert self.boxes is not None
        k.emit("setmaxnreg.inc.sync.aligned.u32 232;")
        who = v("i32", f"sub.u32 {{}}, {v('i32', f'shr.u32 {{}}, {self.tid}, 7;')}, 1;")
        _, height, width = g.box
        plane = (PATCH if g.stacked else height) * width * BK  # bytes from patch to patch
        mine = v("i32", f"mad.lo.u32 {{}}, {who}, {OWN * plane}, {self.base};")
        desc_a, desc_b = self._descriptor(mine, width), self._descriptor(self._weights(), 8)
        lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'and.b32 {{}}, {self.tid}, 127;')}, 0;")
        assert g.acc is not None
        none = [v("float", "mov.f32 {}, 0f00000000;")] * ((g.acc.type.shape[1] - g.bn) // 2)  # type: ignore[union-attr]
        acc = [[k.reg("float") for _ in range(g.bn // 2)] for _ in range(OWN)]
        pixels, weights = Consumer(k, self.boxes), Consumer(k, self.stages)
        staging = v("i32", f"add.u32 {{}}, {self._weights()}, {g.stages * self.b_bytes};")
        self.e.place_staging(staging, who, self.tid, self.maps[2:])
        previous, step, tap, across, down = (k.reg("i32") for _ in range(5))
        k.emit(f"mov.u32 {previous}, 0;")
        tile, top, done = self._tile_loop()
        row, column, _ = self._position(tile)
        first = self._patch(row)
        k.emit(f"mov.u32 {step}, 0;")
        outer, inner = k.label("channels"), k.label("taps")
        k.place(outer)
        pixels.ready()
        begin = v("i64", f"mul.wide.u32 {{}}, {pixels.stage}, {box_bytes(g) >> 4};")
        begin = v("i64", f"add.s64 {{}}, {desc_a}, {begin};")
        here = k.reg("i64")
        k.emit(f"mov.b64 {here}, {begin};")
        for r in (tap, across, down):
            k.emit(f"mov.u32 {r}, 0;")
        k.place(inner)
        products = Groups(k, *PRODUCTS)
        more = v("i1", f"setp.ne.u32 {{}}, {tap}, 0;")
        before = products.carried(lambda: self.stages.release(previous, v("i1", f"and.pred {{}}, {lead}, {more};")))
        start = products.in_flight
        weights.ready()
        goes_on = v("i1", f"setp.ne.u32 {{}}, {step}, 0;")
        db = v("i64", f"add.s64 {{}}, {desc_b}, {v('i64', f'mul.wide.u32 {{}}, {weights.stage}, {self.b_bytes >> 4};')};")
        k.emit("wgmma.fence.sync.aligned;")
        for i in range(BK // 32):
            b = v("i64", f"add.s64 {{}}, {db}, {2 * i};") if i else db
            for p in range(OWN):
                a = v("i64", f"add.s64 {{}}, {here}, {2 * i + p * (plane >> 4)};") if i or p else here
                wgmma(k, acc[p], g, a, b, goes_on if i == 0 else k.truth(True))
        sums = products.commit(lambda: self.stages.release(previous, lead))
        products.wait(before)
        k.emit(f"mov.u32 {previous}, {weights.stage};")
        weights.advance()
        self._next_tap(here, across, down, (height * width * BK, width))
        for r in (step, tap):
            k.emit(f"add.u32 {r}, {r}, 1;")
        products.again(start)
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {tap}, {prod(g.taps)};')} bra {inner};")
        products.wait(sums)
        self.boxes.release(pixels.stage, lead)
        pixels.advance()
        k.emit(f"@{v('i1', f'setp.lt.u32 {{}}, {step}, {prod(g.taps) * -(-g.channels // 64)};')} bra {outer};")
        each, axis = (PATCH, 1) if g.stacked else (1, 2)
        begin = v("i32", f"mad.lo.u32 {{}}, {who}, {OWN * each}, {first[axis]};")
        for p in range(OWN):
            corner = [column, *first]
            corner[axis + 1] = v("i32", f"add.u32 {{}}, {begin}, {p * each};") if p else begin
            self._patch_out([*acc[p], *none], tuple(corner))
        self._next_tile(tile, top, done)
        self.e.finish()

    def _next_tap(self, here: str, across: str, down: str, size: tuple[int, int]) -> None:
        """The next pixel of a line, then the next line, then the next plane."""
        k, g, v = self.k, self.kernel, self.k.value
        (_, rows, columns), (plane, width) = g.taps, size
        k.emit(f"add.s64 {here}, {here}, {BK >> 4};")
        k.emit(f"add.u32 {across}, {across}, 1;")
        end = v("i1", f"setp.eq.u32 {{}}, {across}, {columns};")
        k.emit(f"@{end} mov.u32 {across}, 0;")
        k.emit(f"@{end} add.s64 {here}, {here}, {(width - columns) * BK >> 4};")
        k.emit(f"@{end} add.u32 {down}, {down}, 1;")
        last = v("i1", f"setp.eq.u32 {{}}, {down}, {rows};")
        k.emit(f"@{last} mov.u32 {down}, 0;")
        k.emit(f"@{last} add.s64 {here}, {here}, {(plane - rows * width * BK) >> 4};")

    def _patch_out(self, acc: list[str], corner: tuple[str, ...]) -> None:
        """The epilogue of one plane's patch; it reads nothing that differs between pixels."""
        g, e, v = self.kernel, self.e, self.k.value
        assert g.acc is not None and g.row is not None and g.column is not None and g.batch is not None
        for var in (g.row, g.batch):
            e.env[var] = v("i64", "mov.b64 {}, 0;")
        e.env[g.column] = v("i64", f"cvt.u64.u32 {{}}, {corner[0]};")
        values: dict[Key, str] = {(8 * (i % 4 // 2), 8 * (i // 4) + i % 2): r for i, r in enumerate(acc)}
        e.env[g.acc] = Regs(g.acc.type, values)  # type: ignore[arg-type]
        e.corner = corner
        e.block(g.body)
