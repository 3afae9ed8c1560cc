"""Convolution of every channel by itself on a GPU (`by_channel.py`): values that lie channels last. Weights are [taps, channels], laid out
before the first run where they are constants. The region's elementwise consumers are the epilogue.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from ....core.dims import Dim
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile
from ...launch import Buffer, Launch, Packed
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch
from ...pointwise.cuda.pointwise import evaluator
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template
from ..channels_last import channels_last_memory
from ..conv import ConvTemplate
from .by_channel import Windows
from .channels_last import depthwise
from .hopper import packed_weights

BY_CHANNEL = Packed("taps", 1, transposed=True)


class DepthwiseConv(Template):
    key = "depthwise_conv"
    serves = (ConvOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if (other := ConvTemplate().matches(region, target)) is not None:
            return other
        why = "every channel by itself, in f16, bf16 or f32, up to three axes of known size, few taps"
        return None if depthwise(node, several=True) else Reason(why)

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return packed_weights(region, BY_CHANNEL)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        x, w = region.operand(node.operands[0]), region.operand(node.operands[1])
        assert x is not None and w is not None
        before: list[Launch] = []
        after: list[Launch] = []

        if x.layout.strides[1] != 1:
            there = channels_last_memory(f"{region.name}.image", x.type)
            before.append(copy_launch(f"{region.name}.pixels", x, there, target, "channels last for a convolution"))
            x = there
        if x.type.shape[1] != node.values[0].shape[1]:
            x, more = _repeated(region.name, x, node.values[0].shape[1], target)
            before += more
        if w.packed.form != "taps":
            whole = Operand(w.type, Buffer(f"{region.name}.weights", "temp", w.type.nbytes), _transposed(w.type))
            before.append(copy_launch(f"{region.name}.taps", w, whole, target, "weights of every channel side by side"))
            w = whole
        else:
            w = replace(w, layout=_transposed(w.type))
        results: list[Operand] = []
        for i, r in enumerate(region.results):
            results.append(r if r.layout.strides[1] == 1 else channels_last_memory(f"{region.name}.result{i}", r.type))
            if results[-1] is not r:
                after.append(copy_launch(f"{region.name}.out{i}", results[-1], r, target, "a result that does not lie channels last"))
        return [*before, depthwise_launch(region, node, x, w, results), *after]


def _repeated(name: str, x: Operand, results: Dim, target: TargetSpec) -> tuple[Operand, list[Launch]]:
    """Every channel as often as it has results."""
    n, channels, *sizes = x.type.shape
    assert isinstance(channels, int) and isinstance(results, int)
    there, times = channels_last_memory(f"{name}.repeated", x.type.with_shape((n, results, *sizes))), results // channels
    parts = [Operand(x.type, there.buffer, there.layout.slice(1, i, channels, times)) for i in range(times)]
    return there, [copy_launch(f"{name}.repeat", x, part, target, "channels for each of their results") for part in parts]


def _transposed(type_: TensorType) -> Layout:
    """[O, 1, taps…] that lies [taps…, O]."""
    out, _, *kernel = type_.shape
    lay = Layout.contiguous((*kernel, 1, out))
    n = len(kernel)
    return lay.permute((n + 1, n, *range(n)))


def depthwise_launch(region: Region, node: Node, x: Operand, w: Operand, results: list[Operand]) -> Launch:
    op, value = node.op, node.values[0]
    assert isinstance(op, ConvOp)
    n, channels, kernel = len(op.stride), value.shape[1], [d for d in node.operands[1].shape[2:] if isinstance(d, int)]
    order = (0, *range(2, n + 2), 1)
    weights = Layout((*kernel, channels), (*(math.prod(kernel[i + 1 :]) * channels for i in range(n)), 1), w.layout.offset)
    read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
    leaves = {v: o.layout.expand(value.shape).permute(order) for v, o in read.items()}
    at = Windows("conv_depthwise", region, x, results, kernel, op.stride, op.padding, op.dilation, [weights, *leaves.values()])
    b, tile = at.b, at.tile
    factors = b.subview(at.call.view("w", w.type.dtype, w.buffer, weights, bake=(n - 1,)), (*(0,) * n, at.start), tuple(range(n + 1)))
    ins = {v: at.call.view(f"e{i}", read[v].type.dtype, read[v].buffer, lay) for i, (v, lay) in enumerate(leaves.items())}

    def row(taps: tuple[Ix | int, ...], pixel: Callable[[int], Tile], sums: list[Tile]) -> list[Tile]:
        along: dict[int, Tile] = {}
        for i, pairs in at.reads.items():
            x = pixel(i)
            for o, t in pairs:
                if t not in along:
                    along[t] = widen(b, b.load(factors, (*taps, t, 0), (tile,), limit=at.edge))
                sums[o] = b.fma(x, along[t], sums[o])
        return sums

    shared: dict[Value, Tile] = {}  # what the epilogue reads of channels only
    for total, (spot, limit) in zip(at.fold(row), at.places(), strict=True):

        def leaf(v: Value, _: Operand, spot: tuple[Ix | int, ...] = spot, limit: tuple[Ix | int] | None = limit) -> Tile:
            lay = leaves[v]
            size = 1 if lay.strides[-1] == 0 else tile
            if any(s != 0 for s in lay.strides[:-1]):
                return b.load(ins[v], (at.image, *spot, at.start), (size,), limit=limit)  # one number, too: pixels may be past the edge
            if v not in shared:
                shared[v] = b.load(ins[v], (*(0,) * (n + 1), at.start), (size,), limit=None if size == 1 else at.edge)
            return shared[v]

        evaluate = evaluator(region)(b, region, leaf, {value: total})
        for view, v, r in zip(at.results, region.body.outputs, results, strict=True):
            b.store(view, (at.image, *spot, at.start), narrow(b, b.broadcast(evaluate(v), (tile,)), r.type.dtype), limit=limit)
    return at.launch()
