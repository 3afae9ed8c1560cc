"""Convolution of every channel by itself on a GPU: multiply-adds over 16 bytes of channels a thread, values that lie channels last.

A program has a few neighbouring pixels of a row of the results and walks the rows of taps that are inside the image: a pixel of a row is
read once for all windows of the program that it lies in, one outside the image reads as zeros. Weights are [taps, channels], laid out
before the first run where they are constants. The region's elementwise consumers are the epilogue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from ....core.dims import Dim, product
from ....core.dtypes import compute_dtype
from ....core.target_spec import TargetSpec
from ....ir.graph import Node, Value
from ....ir.layout import Layout
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...launch import Buffer, Launch, Packed
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch
from ...pointwise.cuda.pointwise import evaluator, group
from ...pointwise.pointwise import unravel
from ...region import Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..channels_last import channels_last
from ..conv import ConvTemplate
from .channels_last import depthwise
from .hopper import packed_weights
from .pool import inside_flag

PIXELS = (8, 7, 4)  # of a program, along the innermost axis: the first that divides it where windows overlap, else the last (measured)
BLOCK = 128  # threads
BY_CHANNEL = Packed("taps", 1, transposed=True)


class DepthwiseConv(Template):
    key = "depthwise_conv"
    serves = (ConvOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        if (other := ConvTemplate().matches(region, target)) is not None:
            return other
        return None if depthwise(node) else Reason("every channel by itself, in f16 or bf16, up to three axes of known size, few taps")

    def packs(self, region: Region, target: TargetSpec) -> dict[int, Packed]:
        return packed_weights(region, BY_CHANNEL)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        x, w = region.operand(node.operands[0]), region.operand(node.operands[1])
        assert x is not None and w is not None
        before: list[Launch] = []
        after: list[Launch] = []

        def elsewhere(o: Operand, name: str) -> Operand:
            return Operand(o.type, Buffer(f"{region.name}.{name}", "temp", o.type.nbytes), channels_last(o.type.shape))

        if x.layout.strides[1] != 1:
            there = elsewhere(x, "image")
            before.append(copy_launch(f"{region.name}.pixels", x, there, target, "channels last for a convolution"))
            x = there
        if w.packed.form != "taps":
            whole = Operand(w.type, Buffer(f"{region.name}.weights", "temp", w.type.nbytes), _transposed(w.type))
            before.append(copy_launch(f"{region.name}.taps", w, whole, target, "weights of every channel side by side"))
            w = whole
        else:
            w = replace(w, layout=_transposed(w.type))
        results: list[Operand] = []
        for i, r in enumerate(region.results):
            results.append(r if r.layout.strides[1] == 1 else elsewhere(r, f"result{i}"))
            if results[-1] is not r:
                after.append(copy_launch(f"{region.name}.out{i}", results[-1], r, target, "a result that does not lie channels last"))
        return [*before, depthwise_launch(region, node, x, w, results), *after]


def _transposed(type_: TensorType) -> Layout:
    """[O, 1, taps…] that lies [taps…, O]."""
    out, _, *kernel = type_.shape
    lay = Layout.contiguous((*kernel, 1, out))
    n = len(kernel)
    return lay.permute((n + 1, n, *range(n)))


def depthwise_launch(region: Region, node: Node, x: Operand, w: Operand, results: list[Operand]) -> Launch:
    op, value = node.op, node.values[0]
    assert isinstance(op, ConvOp)
    n, channels = len(op.stride), value.shape[1]
    assert isinstance(channels, int)
    order = (0, *range(2, n + 2), 1)
    kernel = [d for d in node.operands[1].shape[2:] if isinstance(d, int)]
    out = [d for d in value.shape[2:] if isinstance(d, int)]
    sizes = [d for d in x.type.shape[2:] if isinstance(d, int)]
    per = min(next((p for p in PIXELS if out[-1] % p == 0 and op.stride[-1] == 1), PIXELS[-1]), out[-1])
    source, outs = x.layout.permute(order), [r.layout.permute(order) for r in results]
    weights = Layout((*kernel, channels), (*(math.prod(kernel[i + 1 :]) * channels for i in range(n)), 1), w.layout.offset)
    read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
    leaves = {v: o.layout.expand(value.shape).permute(order) for v, o in read.items()}
    items = [o.type.dtype.itemsize for o in (x, *results)]
    vector = vector_width(items, channels, [source, weights, *outs, *leaves.values()])
    lanes = -(-channels // vector)
    threads = next((t for t in (32, 16, 8, 4, 2) if -(-lanes // t) * t <= lanes * 9 / 8), min(BLOCK, group(channels, vector)[0]))
    tile = threads * vector
    call = Call("conv_depthwise", region.name)
    b = call.b
    xv = call.view("x", x.type.dtype, x.buffer, source)
    wv = call.view("w", w.type.dtype, w.buffer, weights)
    ins = {v: call.view(f"e{i}", read[v].type.dtype, read[v].buffer, lay) for i, (v, lay) in enumerate(leaves.items())}
    yvs = [call.view(f"c{i}", r.type.dtype, r.buffer, lay, write=True) for i, (r, lay) in enumerate(zip(results, outs, strict=True))]
    every, stretches = call.word("channels", channels), -(-channels // tile)
    columns = -(-out[-1] // per)
    image, *rows, column = unravel(b, b.pid // stretches, [call.word("batch", value.shape[0]), *out[:-1], columns])
    start = b.pid % stretches * tile
    left = every - start
    whole = channels % tile == 0
    edge = None if whole else (left,)
    # along the innermost axis: where a program reads, and how many channels of that count; None: all, it is inside the image
    first, (lo, _), stride = column * per, op.padding[-1], op.stride[-1]
    reads = _reads(per, kernel[-1], stride, op.dilation[-1])
    safe = lo == 0 and (columns - 1) * per * stride + max(reads) < sizes[-1]
    spots = {i: first * stride + (i - lo) for i in reads}
    limits = {i: edge if safe else (left * (inside_flag(b, q + 1) * inside_flag(b, sizes[-1] - q)),) for i, q in spots.items()}

    def row(at: tuple[Ix | int, ...], taps: tuple[Ix | int, ...], sums: list[Tile]) -> list[Tile]:
        """Adds a row of taps, from a row of the image."""
        sums = list(sums)
        pixels = {i: widen(b, b.load(xv, (image, *at, q, start), (tile,), limit=limits[i])) for i, q in spots.items()}
        factors = [widen(b, b.load(wv, (*taps, t, start), (tile,), limit=edge)) for t in range(kernel[-1])]
        for i, pairs in reads.items():
            for o, t in pairs:
                sums[o] = b.fma(pixels[i], factors[t], sums[o])
        return sums

    def rows_of(axis: int, at: tuple[Ix | int, ...], taps: tuple[Ix | int, ...], sums: list[Tile]) -> list[Tile]:
        """Adds all taps of the other axes that are inside the image."""
        if axis == n - 1:
            return row(at, taps, sums)
        (lo, _), dilation = op.padding[axis], op.dilation[axis]
        begin = rows[axis] * op.stride[axis] - lo
        low, high = (b.ceildiv(q, dilation) for q in (0 - begin, sizes[axis] - begin))
        with b.loop(b.maximum(low, 0), b.minimum(high, kernel[axis]), 1, sums) as loop:
            loop.next(*rows_of(axis + 1, (*at, begin + loop.index * dilation), (*taps, loop.index), list(loop.carried)))
        return list(loop.results)

    sums = rows_of(0, (), (), [b.full((tile,), 0.0, compute_dtype(x.type.dtype))] * per)
    shared: dict[Value, Tile] = {}  # what the epilogue reads of channels only
    for place, total in enumerate(sums):
        spot = (*rows, first + place)
        limit = edge if out[-1] % per == 0 else (left * inside_flag(b, out[-1] - first - place),)

        def leaf(v: Value, _: Operand, spot: tuple[Ix | int, ...] = spot, limit: tuple[Ix | int] | None = limit) -> Tile:
            lay = leaves[v]
            size = 1 if lay.strides[-1] == 0 else tile
            if any(s != 0 for s in lay.strides[:-1]):
                return b.load(ins[v], (image, *spot, start), (size,), limit=limit)  # of one number, too: pixels may be past the edge
            if v not in shared:
                shared[v] = b.load(ins[v], (*(0,) * (n + 1), start), (size,), limit=None if size == 1 else edge)
            return shared[v]

        evaluate = evaluator(region)(b, region, leaf, {value: total})
        for view, v, r in zip(yvs, region.body.outputs, results, strict=True):
            b.store(view, (image, *spot, start), narrow(b, b.broadcast(evaluate(v), (tile,)), r.type.dtype), limit=limit)
    grid: Dim = product((value.shape[0], *out[:-1])) * columns * stretches
    launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{per} pixels a program")
    launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, vector)
    return launch


def _reads(per: int, taps: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """Place (from the program's first) -> the (result, tap) pairs that read it, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for o, t in itertools.product(range(per), range(taps)):
        found.setdefault(o * stride + t * dilation, []).append((o, t))
    return dict(sorted(found.items()))
