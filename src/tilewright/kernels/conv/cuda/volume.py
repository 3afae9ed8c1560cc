"""Images as volumes [batch, depth, height, width, channels] with the channels of a group in whole 16-byte pieces."""

from __future__ import annotations

from dataclasses import replace

from ....core.dims import divisible
from ....core.dtypes import bf16, f16
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ...launch import Buffer, Launch
from ...pointwise.copies import copy_launch, fill_launch
from ...region import Operand, Region
from ...template import Reason
from ..channels_last import channels_last
from ..conv import ConvTemplate
from .hopper import PIECE


def of_known_size(region: Region, target: TargetSpec) -> Reason | None:
    """Why a region is no convolution that `mma.sync` could serve, whatever its groups are."""
    node = region.anchor
    if node is None or not isinstance(node.op, ConvOp):
        return Reason("no convolution")
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
