"""Convolution of every channel by itself on a GPU: multiply-adds over 16 bytes of channels a thread, values that lie channels last.

A program has a few neighbouring pixels of the results, so that a pixel is read once for all windows of the program that it lies in; a tap
outside the image reads zeros. Weights are [taps, channels], laid out before the first run where they are constants. The region's
elementwise consumers are the epilogue.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from ....core.dims import Dim, ceildiv, product
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
from ...pointwise.cuda.pointwise import BLOCK, group
from ...pointwise.pointwise import unravel
from ...region import Evaluator, Operand, Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..channels_last import channels_last
from ..conv import ConvTemplate
from .channels_last import depthwise
from .hopper import packed_weights
from .pool import inside_flag

FEW = 9  # taps
PIXELS = {True: (1, 2, 4), False: (1, 1, 4)}  # of a program along the spatial axes, the innermost last; with few taps, or many
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
    order = (0, *range(2, n + 2), 1)
    kernel = [d for d in node.operands[1].shape[2:] if isinstance(d, int)]
    out = [d for d in value.shape[2:] if isinstance(d, int)]
    sizes = [d for d in x.type.shape[2:] if isinstance(d, int)]
    per = [min(p, d) for p, d in zip(PIXELS[math.prod(kernel) <= FEW][3 - n :], out, strict=True)]
    source, outs = x.layout.permute(order), [r.layout.permute(order) for r in results]
    weights = Layout((math.prod(kernel), channels), (channels, 1), w.layout.offset)
    read = {v: o for v in leaves_of_epilogue(region, value) if (o := region.operand(v)) is not None}
    leaves = {v: o.layout.expand(value.shape).permute(order) for v, o in read.items()}
    items = [o.type.dtype.itemsize for o in (x, *results)]
    vector = vector_width(items, channels, [source, weights, *outs, *leaves.values()])
    threads, pieces = group(channels, vector)
    tile = threads * vector * pieces
    call = Call("conv_depthwise", region.name)
    b = call.b
    xv = call.view("x", x.type.dtype, x.buffer, source)
    wv = call.view("w", w.type.dtype, w.buffer, weights)
    ins = {v: call.view(f"e{i}", read[v].type.dtype, read[v].buffer, lay) for i, (v, lay) in enumerate(leaves.items())}
    yvs = [call.view(f"c{i}", r.type.dtype, r.buffer, lay, write=True) for i, (r, lay) in enumerate(zip(results, outs, strict=True))]
    blocks = [-(-d // p) for d, p in zip(out, per, strict=True)]
    dims: list[Ix | int] = [call.word("batch", value.shape[0]), *blocks]
    every = call.word("channels", channels)
    stretches = b.ceildiv(every, tile)
    image, *corner = unravel(b, b.pid // stretches, dims)
    start = b.pid % stretches * tile
    left = every - start
    whole = isinstance(channels, int) and channels % tile == 0
    first = [c * p for c, p in zip(corner, per, strict=True)]  # pixel of the results
    edge = None if whole else (left,)
    taps = [widen(b, b.load(wv, (t, start), (tile,), limit=edge)) for t in range(math.prod(kernel))]
    sums: dict[tuple[int, ...], Tile] = {}
    reads = [_reads(p, k, s, d) for p, k, s, d in zip(per, kernel, op.stride, op.dilation, strict=True)]
    places: list[dict[int, tuple[Ix | int, Ix | int | None]]] = []  # where, and 1 inside the image; None: it is inside
    for f, s, (lo, _), size, count, p, used in zip(first, op.stride, op.padding, sizes, blocks, per, reads, strict=True):
        assert isinstance(lo, int)
        safe = lo == 0 and (count - 1) * p * s + max(used) < size
        at = {i: f * s + (i - lo) for i in used}
        places.append({i: (q, None if safe else inside_flag(b, q + 1) * inside_flag(b, size - q)) for i, q in at.items()})
    for from_first in itertools.product(*reads):
        here = [place[i] for place, i in zip(places, from_first, strict=True)]
        inside: Ix | int = left
        for _, flag in here:
            inside = inside if flag is None else inside * flag
        safe = whole and all(flag is None for _, flag in here)
        pixel = widen(b, b.load(xv, (image, *(q for q, _ in here), start), (tile,), limit=None if safe else (inside,)))
        for pairs in itertools.product(*(used[i] for used, i in zip(reads, from_first, strict=True))):
            target, tap = tuple(o for o, _ in pairs), 0
            for (_, t), k in zip(pairs, kernel, strict=True):
                tap = tap * k + t
            sums[target] = b.fma(pixel, taps[tap], sums[target]) if target in sums else pixel * taps[tap]
    shared: dict[Value, Tile] = {}  # what the epilogue reads of channels only
    for target in itertools.product(*(range(p) for p in per)):
        spot = [f + o for f, o in zip(first, target, strict=True)]
        bound: Ix | int = left
        for q, size, p in zip(spot, out, per, strict=True):
            bound = bound * inside_flag(b, size - q) if size % p else bound
        limit = None if whole and bound is left else (bound,)

        def leaf(v: Value, _: Operand, spot: list[Ix | int] = spot, limit: tuple[Ix | int] | None = limit) -> Tile:
            lay = leaves[v]
            size = 1 if lay.strides[-1] == 0 else tile
            if any(s != 0 for s in lay.strides[:-1]):
                return b.load(ins[v], (image, *spot, start), (size,), limit=limit)  # of one number, too: pixels may be past the edge
            if v not in shared:
                shared[v] = b.load(ins[v], (*(0,) * (n + 1), start), (size,), limit=None if size == 1 else edge)
            return shared[v]

        evaluate = Evaluator(b, region, leaf, {value: sums[target]})
        for view, v, r in zip(yvs, region.body.outputs, results, strict=True):
            b.store(view, (image, *spot, start), narrow(b, b.broadcast(evaluate(v), (tile,)), r.type.dtype), limit=limit)
    grid: Dim = product((value.shape[0], *blocks)) * ceildiv(channels, tile)
    launch = call.finish(grid, flops=region_flops(region), bytes_=region_bytes(region), note=f"{'x'.join(map(str, per))} pixels a program")
    launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads if threads <= 32 else 1, vector)
    return launch


def _reads(per: int, taps: int, stride: int, dilation: int) -> dict[int, list[tuple[int, int]]]:
    """Place (from the program's first) -> the (result, tap) pairs that read it, in order."""
    found: dict[int, list[tuple[int, int]]] = {}
    for o, t in itertools.product(range(per), range(taps)):
        found.setdefault(o * stride + t * dilation, []).append((o, t))
    return dict(sorted(found.items()))
