"""Convolution with few results on Hopper's tensor cores: patches whose pixels are read once (`target/cuda/conv/patch.py`).

With few results a pixel that every tap gathers again is more than L2 gives; see `hopper.py` for the rest, of which this takes steps of one
over two or three axes without groups, and epilogues that read nothing that differs between pixels.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from ....core.dims import Dim, divisible, minimum
from ....core.dtypes import bf16, f16
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.matmul.contractions import Conv as ConvOp
from ...call import Call
from ...cuda.kernel import TensorMap, identified
from ...launch import Launch, Word
from ...matmul.cuda.product_epilogue import Matrix, add_epilogue
from ...matmul.tiling import leaves_of_epilogue
from ...region import Operand, Region
from ...template import Reason, region_bytes, region_flops
from .hopper import BK, HopperConv, first_of, image_operand, matrices, matrix_of, plain_weights, weight_operand, windows_of
from .kernels import PATCH, PLANES, PatchKernel
from .windows import Windowed

BN = 64
FLAT = 32  # results over two axes above which ...
LEAST_FULL, FLAT_FULL = 0.8, 0.95  # the least share of a tile's pixels inside the image, on average, is the larger (measured)
SHARED = 226 << 10
RESULTS = 32 << 10  # bytes of shared memory for results on their way out


def tile_of(at: Windowed) -> tuple[int, ...]:
    """Results of a tile."""
    return (PLANES * PATCH, PATCH) if len(at.image) == 2 else (PLANES, PATCH, PATCH)


def box_of(at: Windowed) -> tuple[int, int, int]:
    """Pixels that a tile reads."""
    d, h, w = (1, *(n + t - 1 for n, t in zip(tile_of(at), at.taps, strict=True)))[-3:]
    return d, h, w


def columns_of(at: Windowed, n: int) -> int:
    """Results that the tensor cores compute."""
    return 32 if n <= 32 and len(at.image) == 2 else BN


def stages_of(at: Windowed, n: int) -> int:
    """Stages of weights that fit beside two boxes of pixels."""
    box = -(-prod(box_of(at)) * BK * 2 // 1024) * 1024
    return min(8, (SHARED - 2 * box - RESULTS) // (columns_of(at, n) * BK * 2))


def tiles_of(at: Windowed, batch: Dim) -> Dim:
    return batch * prod(-(-size // step) for size, step in zip(at.out, tile_of(at), strict=True))


class PatchConv(HopperConv):
    key = "patch_conv"
    least = 32
    dtypes = (bf16, f16)

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        if (other := super().matches(region, target)) is not None:
            return other
        node, at = region.anchor, windows_of(region)
        assert node is not None and isinstance(node.op, ConvOp) and at is not None
        n, flat = node.values[0].shape[1], len(at.image) == 2
        if not isinstance(n, int) or n > BN or n % 8:
            return Reason(f"at most {BN} results, in eights")
        if {*at.stride, *at.dilation} != {1} or node.op.groups != 1 or stages_of(at, n) < 3 or prod(at.taps[-2:]) < 4:
            return Reason("steps of one, no groups, and boxes that fit in shared memory")
        tiles = tiles_of(at, node.values[0].shape[0])
        if max(box_of(at)) > 256 or first_of(region) is not None or (flat and isinstance(tiles, int) and tiles < target.cores):
            return Reason("channels that are not packed and, over two axes, tiles for every SM")
        for r in region.results:  # where they lie, or channels last beside it
            found = matrix_of(r, r.layout)
            if r.type.dtype not in (bf16, f16) or (found is not None and not found.by_tma):
                return Reason("results of 16 bits that TMA can write")
        full = 1.0
        for size, step in zip(at.out, tile_of(at), strict=True):
            full *= size / (-(-size // step) * step)
        if full < (FLAT_FULL if flat and n > FLAT else LEAST_FULL):
            return Reason("patches that fill the image")
        for v in leaves_of_epilogue(region, node.values[0]):
            o = region.operand(v)
            lay = None if o is None else o.layout.expand(node.values[0].shape)
            if lay is None or any(s != 0 for i, s in enumerate(lay.strides) if i != 1) or not (flat or divisible(n, BN)):
                return Reason("an epilogue that reads the same for all pixels")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, at = region.anchor, windows_of(region)
        assert node is not None and at is not None
        x, w = region.given(node.operands[0]), plain_weights(region)
        before, results, leaves, after = matrices(region, node.values[0], target)
        pixels, x = image_operand(region.name, x, target)
        weights, w = weight_operand(region.name, w, target)
        return [*before, *pixels, *weights, patch_launch(region, at, x, w, results, leaves, target), *after]


def patch_launch(region: Region, at: Windowed, x: Operand, w: Operand, results: list[Matrix], leaves: dict[Value, Matrix],
                 target: TargetSpec) -> Launch:
    node = region.node
    call = Call("conv_patch", region.name)
    n, flat = node.values[0].shape[1], len(at.image) == 2
    assert isinstance(n, int)
    box, stages, bn, tiles = box_of(at), stages_of(at, n), columns_of(at, n), tiles_of(at, x.layout.shape[0])
    if flat:  # a plane of one
        lay = x.layout
        x = replace(x, layout=Layout((lay.shape[0], 1, *lay.shape[1:]), (lay.strides[0], lay.strides[0], *lay.strides[1:]), lay.offset))
        at = Windowed(*((fill, *found) for fill, found in zip((1, 1, 1, 1, 0, 0, 1), (
            at.image, at.out, at.taps, at.stride, at.before, at.after, at.dilation), strict=True)))  # fmt: skip
    batch, *sizes, channels = x.layout.shape
    assert isinstance(channels, int)
    pixels = batch * prod(at.out)
    epilogue = add_epilogue(call, region, node.values[0], (pixels, n), results, leaves, 64)
    depth, height, width = at.out
    outs = []
    for found, r in zip(epilogue.maps, results, strict=True):
        steps = (r.row * 2, r.row * 2 * width, r.row * 2 * width * height, r.row * 2 * width * height * depth)
        outs.append(replace(found, sizes=(n, width, height, depth, batch), strides=steps, box=(BN, PATCH, PATCH, 1, 1)))
    word = len(call._arguments)
    call.view("a", x.type.dtype, x.buffer, x.layout)
    hops = tuple(s * 2 for s in x.layout.strides[-2::-1])
    a_map = TensorMap(word, x.type.dtype, (channels, *sizes[::-1], batch), hops, (BK, *box[::-1], 1), 128)
    word = len(call._arguments)
    call.view("b", w.type.dtype, w.buffer, w.layout)
    steps_b = (w.layout.strides[0] * 2, w.layout.strides[1] * 2)
    b_map = TensorMap(word, w.type.dtype, (channels, n, w.layout.shape[1]), steps_b, (BK, bn, 1), 128)
    call._arguments += [Word(tiles), Word(1), Word(w.layout.shape[1] * -(-channels // BK)), Word(tiles)]
    note = f"wgmma {PLANES} {'patches' if flat else 'planes'} of {PATCH}x{PATCH}, {stages} stages of weights, pixels copied once"
    launch = call.finish(minimum(tiles, target.cores), flops=region_flops(region), bytes_=region_bytes(region), note=note)
    k, dtype = launch.kernel, x.type.dtype.name
    launch.kernel = identified(PatchKernel(
        k.name, k.params, k.pid, k.body, acc=epilogue.acc, row=epilogue.row, column=epilogue.column, batch=epilogue.batch, bm=256, bn=bn,
        slice=epilogue.width, stages=stages, consumers=2, dtype=dtype, dtype_b=dtype, group=16, maps=(a_map, b_map, *outs),
        stored=epilogue.stored, image=at.out, channels=channels, taps=at.taps, stride=at.stride, before=at.before, dilation=at.dilation,
        box=box, stacked=flat))  # fmt: skip
    return launch
