"""Convolution on the matrix units of every chip: an implicit product over windows that `cp.async` gathers (`target/cuda/conv/ring.py`).

Serves f16 and bf16 convolutions over one to three spatial axes of known size, with groups of eight channels and more, with the region's
elementwise consumers as epilogue; on sm_90a those that the copy engine cannot gather (groups, three axes, long reaches). Activations lie
channels last (`channels_last.py`); an operand that does not is copied first, and the channels of a group are padded to whole 16-byte
pieces. Constant weights are laid out [O, taps, channels] before the first run.
"""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import Dim, ceildiv, divisible
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import View
from ....tile.ir import TileType
from ...call import Call
from ...launch import Buffer, Launch, Packed, Word
from ...matmul.cuda.epilogue import Sums, write_results
from ...matmul.cuda.product_epilogue import Matrix
from ...matmul.cuda.ring import RingConfig
from ...pointwise.copies import copy_launch, fill_launch
from ...region import Operand, Region
from ...template import Reason, Template, region_bytes, region_flops
from ..channels_last import channels_last
from ..conv import Conv
from .channels_last import in_groups
from .hopper import PIECE, TAPS, matrices, packed_weights, weight_operand
from .kernels import ConvRingKernel

LARGE, SMALL = RingConfig("mma", 128, 128, 64, 32, 3), RingConfig("mma", 64, 64, 32, 16, 4)
Triple = tuple[int, int, int]


def triple(values: tuple[Dim, ...], fill: int) -> Triple:
    a, b, c = (fill,) * (3 - len(values)) + tuple(v for v in values if isinstance(v, int))
    return a, b, c


class MmaConv(Template):
    key = "mma_conv"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        if (other := of_known_size(region, target)) is not None:
            return other
        assert region.anchor is not None
        return None if in_groups(region.anchor) else Reason("groups of at least eight channels, and an even number of results in each")

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return packed_weights(region, TAPS)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.anchor
        assert node is not None and isinstance(node.op, ConvOp)
        x, w = region.operand(node.operands[0]), region.operand(node.operands[1])
        assert x is not None and w is not None
        before, results, leaves, after = matrices(region, node.values[0], target)
        pixels, x = volume(region.name, x, node.op.groups, target)
        weights, w = weight_operand(region.name, w, target)
        return [*before, *pixels, *weights, conv_launch(region, x, w, results, leaves, target), *after]


def of_known_size(region: Region, target: TargetSpec) -> Reason | None:
    """Why a region is no convolution that `mma.sync` could serve, whatever its groups are."""
    node = region.anchor
    if node is None or not isinstance(node.op, ConvOp):
        return Reason("no convolution")
    if any(v.dtype not in (bf16, f16) for v in node.operands) or node.op.transposed:
        return Reason("needs bf16 or f16 operands, not transposed")
    if (other := Conv().matches(region, target)) is not None:
        return other
    (x, w), out = node.operands, node.values[0]
    sizes = (*x.shape[1:], *w.shape, *out.shape[1:])
    padding = [p for pair in node.op.padding for p in pair]
    known = all(isinstance(d, int) and d > 0 for d in sizes) and all(isinstance(p, int) and p >= 0 for p in padding)
    return None if known and len(x.shape) <= 5 else Reason("up to three spatial axes of known size")


def volume(name: str, x: Operand, groups: int, target: TargetSpec) -> tuple[list[Launch], Operand]:
    """x as [batch, depth, height, width, channels], the channels of a group whole pieces, copied where they are not."""
    lay, (batch, channels, *sizes) = x.layout, x.type.shape
    assert isinstance(channels, int)
    own = channels // groups
    aligned = divisible(lay.offset, PIECE) and all(divisible(s, PIECE) for i, s in enumerate(lay.strides) if i != 1)
    if lay.strides[1] == 1 and aligned and own % PIECE == 0:
        return [], _as_volume(x)
    padded = -(-own // PIECE) * PIECE
    type_ = TensorType(x.type.dtype, (batch, groups * padded, *sizes))
    whole = Operand(type_, Buffer(f"{name}.image", "temp", type_.nbytes), channels_last(type_.shape))
    grouped = TensorType(x.type.dtype, (batch, groups, own, *sizes))
    source = replace(x, type=grouped, layout=_split(lay, groups, own))
    part = Operand(grouped, whole.buffer, _split(whole.layout, groups, padded).slice(2, 0, own))
    launches = [] if padded == own else [fill_launch(f"{name}.zero", 0.0, whole, target)]
    return [*launches, copy_launch(f"{name}.pixels", source, part, target, "channels last for a convolution")], _as_volume(whole)


def _split(lay: Layout, groups: int, own: int) -> Layout:
    """[N, C, …] as [N, groups, C of a group, …]."""
    (n, _, *sizes), (sn, sc, *steps) = lay.shape, lay.strides
    return Layout((n, groups, own, *sizes), (sn, sc * own, sc, *steps), lay.offset)


def _as_volume(x: Operand) -> Operand:
    (n, c, *sizes), (sn, sc, *steps) = x.layout.shape, x.layout.strides
    fill = 3 - len(sizes)
    lay = Layout((n, *(1,) * fill, *sizes, c), (sn, *(0,) * fill, *steps, sc), x.layout.offset)
    return replace(x, type=TensorType(x.type.dtype, lay.shape), layout=lay)


def conv_launch(
    region: Region, x: Operand, w: Operand, results: list[Matrix], leaves: dict[Value, Matrix], target: TargetSpec
) -> Launch:
    node = region.anchor
    assert node is not None and isinstance(node.op, ConvOp)
    op, out = node.op, node.values[0].shape
    batch, *image, channels = x.layout.shape
    taps, depth = w.type.shape[1:]
    assert isinstance(channels, int) and isinstance(out[1], int) and isinstance(depth, int) and isinstance(taps, int)
    groups, n = op.groups, out[1] // op.groups
    sizes = triple(tuple(out[2:]), 1)
    m = batch * (sizes[0] * sizes[1] * sizes[2])
    call = Call("conv_ring", region.name)

    def view(name: str, at: Matrix, write: bool = False) -> View:
        lay = Layout((groups, m, n), (at.column * n, at.row, at.column), at.offset)
        return call.view(name, at.operand.type.dtype, at.operand.buffer, lay, write=write)

    outs = [view(f"c{i}", r, write=True) for i, r in enumerate(results)]
    ins = {value: view(f"e{i}", leaf) for i, (value, leaf) in enumerate(leaves.items())}
    a = call.view("a", x.type.dtype, x.buffer, x.layout)
    b = call.view("b", w.type.dtype, w.buffer, Layout((groups, n, taps * depth), (n * taps * depth, taps * depth, 1), w.layout.offset))
    words = [call.word("m", m), call.word("n", n)]
    tiles = ceildiv(m, LARGE.bm) * -(-n // LARGE.bn) * groups
    config = LARGE if n > 64 and (not isinstance(tiles, int) or tiles >= target.cores) else SMALL
    made = Sums.of(TileType((config.bm - config.tm + 16, config.bn), f32))
    write_results(call, region, 1.0, made, outs, ins, (words[0], words[1]), (groups,), edges=True)
    tiles_m, tiles_n = ceildiv(m, config.bm), ceildiv(n, config.bn)
    call._arguments += [Word(m), Word(n), Word(taps * depth), Word(tiles_m), Word(tiles_n)]
    note = f"mma.sync {config.bm}x{config.bn}, {config.stages} stages, windows by cp.async{f', {groups} groups' if groups > 1 else ''}"
    launch = call.finish(tiles_m * tiles_n * groups, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    k, dtype = launch.kernel, x.type.dtype.name
    shape = (triple(tuple(image), 1), sizes, triple(tuple(node.operands[1].shape[2:]), 1), triple(op.stride, 1),
             triple(tuple(p[0] for p in op.padding), 0), triple(op.dilation, 1))  # fmt: skip
    numbers = "_".join(str(v) for three in shape for v in three)
    launch.kernel = ConvRingKernel(
        f"{k.name}_{config.bm}x{config.bn}_{config.stages}_{depth}_{numbers}_{dtype}", k.params, k.pid, k.body, acc=made.acc, row=made.row,
        column=made.column, batch=made.batch, a=a.var, b=b.var, core="mma", bm=config.bm, bn=config.bn, tm=config.tm, tn=config.tn,
        stages=config.stages, dtype=dtype, dtype_b=dtype, run=2, image=shape[0], out=shape[1], taps=shape[2], stride=shape[3],
        before=shape[4], dilation=shape[5], channels=depth)  # fmt: skip
    return launch
