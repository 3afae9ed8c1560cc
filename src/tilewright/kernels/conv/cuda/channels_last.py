"""Which convolutions want channels last in a GPU's memory (`../channels_last.py`): those that the tensor cores serve."""

from __future__ import annotations

from math import prod

from ....core.dtypes import bf16, f16, f32
from ....ir.graph import Node, Value
from ....ops.index.weighted import WeightedGather
from ....ops.matmul.contractions import Conv
from ....ops.rows.norms import LayerNorm
from ....ops.rows.pooling import MaxPoolBackward, MaxPoolIndices
from ..channels_last import FOLLOWS
from .depthwise_tiles import in_runs, large_depthwise
from .weight_gradient import is_weight_gradient

LEAST = 8  # channels of a group: fewer leave the tensor cores idle
FEW = 64  # bytes of a pixel
MOST_TAPS = 64  # the most taps of a channel by itself: they are spelled out


def wants(node: Node) -> bool:
    op = node.op
    if isinstance(op, WeightedGather):
        return True
    if not isinstance(op, Conv) or node.operands[0].dtype not in (bf16, f16, f32) or is_weight_gradient(node):
        return False
    return op.groups == 1 or in_groups(node) or in_pairs(node) or depthwise(node)


def follows(node: Node) -> bool:
    """Norms do where they are over whole images, of which there are few: their blocks take any rows of pixels. Large windows of single
    channels do where a block has many channels."""
    if large_depthwise(node):
        return in_runs(node)
    if isinstance(node.op, LayerNorm):
        return node.op.naxes == len(node.operands[0].shape) - 1
    return isinstance(node.op, (*FOLLOWS, MaxPoolIndices, MaxPoolBackward))


def in_pieces(v: Value) -> bool:
    """Whether the channels of a pixel are read and written side by side: few that are no whole pieces of 16 bytes, or an odd number of 16
    bits, leave one by one, and a convolution copies them anyway. Pools with places would be copied before and behind."""
    if isinstance(v.op, (MaxPoolIndices, MaxPoolBackward)):
        return True
    channels, item = v.shape[1] if len(v.shape) > 1 else 0, v.dtype.itemsize
    return not isinstance(channels, int) or channels * item % 16 == 0 or (channels * item >= FEW and channels * item % 4 == 0)


def depthwise(node: Node, *, several: bool = False) -> bool:
    """Whether a convolution of every channel by itself (`several`: with any number of results each) has a kernel for values that lie
    channels last."""
    op, (x, w), out = node.op, node.operands, node.values[0]
    assert isinstance(op, Conv)
    if op.transposed or x.dtype not in (bf16, f16, f32) or w.dtype != x.dtype or op.groups == 1 or not 3 <= len(x.shape) <= 5:
        return False
    sizes = (*x.shape[1:], *w.shape, *out.shape[1:], *(p for pair in op.padding for p in pair))
    if not all(isinstance(d, int) and d >= 0 for d in sizes) or 0 in (*x.shape[1:], *w.shape, *out.shape[1:]):
        return False
    same = x.shape[1] == op.groups and (several or x.shape[1] == out.shape[1])
    return same and prod(d for d in w.shape[2:] if isinstance(d, int)) <= MOST_TAPS


def in_groups(node: Node) -> bool:
    """Whether the tensor cores serve a convolution's groups: eight channels and more (or all of them), results in pairs."""
    op, (channels, results) = node.op, (node.operands[0].shape[1], node.values[0].shape[1])
    assert isinstance(op, Conv)
    if not isinstance(channels, int) or not isinstance(results, int) or results // op.groups % 2:
        return False
    return op.groups == 1 or (channels // op.groups >= LEAST and results // op.groups >= LEAST)


def in_pairs(node: Node) -> bool:
    """Whether pairs of groups, of four channels and four results each, are as good as groups of eight: over one or two axes."""
    op, (channels, results) = node.op, (node.operands[0].shape[1], node.values[0].shape[1])
    assert isinstance(op, Conv)
    half = LEAST // 2
    return op.groups % 2 == 0 and channels == results == half * op.groups and len(op.stride) <= 2
