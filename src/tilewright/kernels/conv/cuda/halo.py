"""Convolution with groups of few channels on the tensor cores of every chip: pixels are copied once (`target/cuda/conv/halo.py`).

Serves f16 and bf16 convolutions over one or two spatial axes of known size whose groups have at most 56 channels, results in eights, and
weights that fit in registers, with the region's elementwise consumers as epilogue. Operands lie as volumes (`conv_volume.py`). Groups of
four channels and four results are taken in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....core.dims import divisible
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import identified
from ...launch import Launch, Packed
from ...matmul.cuda.epilogue import Sums, write_results
from ...matmul.cuda.product_epilogue import Matrix
from ...pointwise.copies import copy_launch, fill_launch
from ...region import Operand, Region
from ...template import Foreign, Reason, Template, region_bytes, region_flops
from ..channels_last import channels_last_memory
from ..conv import ConvTemplate
from .channels_last import in_groups, in_pairs
from .hopper import PIECE, TAPS, matrices, packed_weights, weight_operand, windows_of
from .kernels import HaloKernel
from .windows import Windowed


def of_known_size(region: Region, target: TargetSpec) -> Reason | None:
    """Why a region is no convolution that `mma.sync` could serve, whatever its groups are."""
    node = region.anchor
    if node is None or not isinstance(node.op, ConvOp):
        return Foreign("no convolution")
    if any(v.dtype not in (bf16, f16) for v in node.operands) or node.op.transposed:
        return Reason("needs bf16 or f16 operands, not transposed")
    if (other := ConvTemplate().matches(region, target)) is not None:
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
    whole = channels_last_memory(f"{name}.image", type_)
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


MOST = 56  # channels of a group
HELD = 64  # channels of a block
WARPS = 8
REGISTERS = 76  # registers of a warp's weights
SHARED = 100 << 10  # bytes of a block, so that two share an SM


@dataclass(frozen=True)
class Plan:
    """Groups and lines of a block, and the results of a warp."""

    together: int
    lines: int
    wide: int
    per_sm: int = 2


def plan_of(at: Windowed, channels: int, each: int, groups: int, target: TargetSpec) -> Plan | None:
    """`channels` and `each` are a group's channels (whole pieces) and results. None where a warp's weights or a line do not fit."""
    steps = -(-at.taps[0] * at.taps[1] * channels // 16)
    for together in (n for n in range(max(1, HELD // channels), 0, -1) if groups % n == 0):
        for wide in (32, 16, 8):
            per = together * each // wide
            fits = together * each % wide == 0 and (each % wide == 0 or wide % each == 0)
            if not fits or wide // 8 * 2 * steps > REGISTERS or per not in (1, 2, 4, 8):
                continue
            room = min(SHARED, target.l1d - 16 * WARPS * line_bytes(wide))
            _, across = reach_of(at, 1)
            line = across * pitch_of(together * channels)
            most = (room // line - (at.taps[0] - 1) * at.dilation[0] - 1) // at.stride[0] + 1
            if most >= 1:
                return Plan(together, -(-at.out[0] // -(-at.out[0] // most)), wide)
    return None


def reach_of(at: Windowed, lines: int) -> tuple[int, int]:
    """Lines and columns of pixels that so many lines of results read."""
    h, w = ((n - 1) * s + (t - 1) * d + 1 for n, s, t, d in zip((lines, at.out[1]), at.stride, at.taps, at.dilation, strict=True))
    return h, w


def pitch_of(channels: int) -> int:
    """Bytes from pixel to pixel: an odd number of pieces."""
    return (channels // 8 | 1) * 16


def line_bytes(wide: int) -> int:
    """Bytes of a warp's results of one pixel on their way out, and room that moves the next pixel's to other banks."""
    return 2 * wide + 16


class HaloConv(Template):
    key = "halo_conv"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        if (other := of_known_size(region, target)) is not None:
            return other
        node, at = region.anchor, windows_of(region)
        assert node is not None and isinstance(node.op, ConvOp)
        if at is None or len(at.image) == 3 or node.op.groups == 1 or at.taps == (1, 1) or not (in_groups(node) or in_pairs(node)):
            return Reason("groups, one or two spatial axes and more than one tap")
        own, out, x = node.operands[1].shape[1], node.values[0].shape[1], region.operand(node.operands[0])
        if x is None or not all(isinstance(s, int) for s in x.layout.strides):
            return Reason("pixels a known number of bytes apart")
        assert isinstance(own, int) and isinstance(out, int)
        groups = groups_of(node)
        padded, each = -(-own // 8) * 8, out // groups
        if padded > MOST or each % 8:
            return Reason(f"groups of at most {MOST} channels, and results in eights")
        return None if plan_of(at, padded, each, groups, target) else Reason("weights in registers and lines in shared memory")

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return packed_weights(region, TAPS)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node, at = region.anchor, windows_of(region)
        assert node is not None and isinstance(node.op, ConvOp) and at is not None
        x, w = region.operand(node.operands[0]), region.operand(node.operands[1])
        assert x is not None and w is not None
        before, results, leaves, after = matrices(region, node.values[0], target)
        pixels, x = volume(region.name, x, groups_of(node), target)
        weights, w = weight_operand(region.name, w, target, dense=True)
        return [*before, *pixels, *weights, halo_launch(region, at, x, w, results, leaves, target), *after]


def groups_of(node: Node) -> int:
    """Groups, or pairs of them."""
    assert isinstance(node.op, ConvOp)
    return node.op.groups // 2 if in_pairs(node) else node.op.groups


def halo_launch(region: Region, at: Windowed, x: Operand, w: Operand, results: list[Matrix], leaves: dict[Value, Matrix],
                target: TargetSpec) -> Launch:
    node = region.node
    assert isinstance(node.op, ConvOp)
    batch, _, *image, _ = x.layout.shape
    (n, taps, own), groups, paired = w.type.shape, groups_of(node), in_pairs(node)
    assert isinstance(n, int) and isinstance(own, int) and isinstance(taps, int)
    each = n // groups
    plan = plan_of(at, own, each, groups, target)
    assert plan is not None
    m = batch * (at.out[0] * at.out[1])
    call = Call("conv_halo", region.name)

    def view(name: str, at: Matrix, write: bool = False) -> View:
        lay = Layout((1, m, n), (0, at.row, at.column), at.offset)
        return call.view(name, at.operand.type.dtype, at.operand.buffer, lay, write=write)

    outs = [view(f"c{i}", r, write=True) for i, r in enumerate(results)]
    ins = {value: view(f"e{i}", leaf) for i, (value, leaf) in enumerate(leaves.items())}
    s = x.layout.strides
    seen = Layout((batch, *image, x.layout.shape[-1]), (s[0], s[2], s[3], s[4]), x.layout.offset)
    a = call.view("a", x.type.dtype, x.buffer, seen, bake=(0, 1, 2, 3))
    b = call.view("b", w.type.dtype, w.buffer, Layout((n, taps * own), (taps * own, 1), w.layout.offset), bake=(0, 1))
    columns = call.word("n", n)
    made = Sums.of(TileType((16, plan.together * each), f32))
    end = Var(INDEX, "end")
    staged = all(r.by_tma and r.operand.type.dtype.itemsize == 2 for r in results)  # 16 bytes a store
    edges = not staged or any(leaf.row != 0 for leaf in leaves.values())
    write_results(call, region, 1.0, made, outs, ins, (Ix(call.b, end), columns), (1,), edges=edges)
    parts = groups // plan.together
    note = f"mma.sync {plan.lines} lines of {plan.together} of {groups} {'pairs of ' if paired else ''}groups, pixels copied once"
    grid = batch * (-(-at.out[0] // plan.lines) * parts)
    launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    k, dtype = launch.kernel, x.type.dtype.name
    launch.kernel = identified(HaloKernel(
        k.name, k.params, k.pid, k.body, acc=made.acc, row=made.row, column=made.column,
        batch=made.batch, end=end, stored=tuple(v.var for v in outs) if staged else (), a=a.var, b=b.var, image=at.image, out=at.out,
        taps=at.taps, stride=at.stride, before=at.before, dilation=at.dilation, reach=reach_of(at, plan.lines), lines=plan.lines,
        channels=own, each=each, held=own * plan.together, pitch=pitch_of(own * plan.together), results=plan.together * each,
        parts=parts, wide=plan.wide, paired=paired, dtype=dtype, per_sm=plan.per_sm, block=32 * WARPS))  # fmt: skip
    return launch
