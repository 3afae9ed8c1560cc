"""Attention on Hopper's matrix units: f16 and bf16, head sizes up to 128 that are multiples of 8, causal, windows, shared key heads, any
lengths.

Masks, biases, soft caps and other head sizes go to the shared template. Tiles past an end read zeros, which the softmax masks out; heads
are computed as 64 or 128 wide, what is past their own size being zeros too.
"""

from __future__ import annotations

import hashlib

from ...core.dims import Dim, at_least, ceildiv, divisible, minimum
from ...core.dtypes import bf16, f16, f32
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ops.attention import Attention as AttentionOp
from ...tile.builder import Ix, Tile, View
from ...tile.ir import INDEX, TileType, Var
from ..attention import Attention
from ..call import Call
from ..launch import Launch, Word
from ..region import Evaluator, Operand, Region, narrow
from ..template import Reason, Template, region_bytes, region_flops
from ..tiling import leaves_of_epilogue
from .groups import Shared
from .kernel import FlashKernel, TensorMap

KEYS = 128
PER_SM = {64: 2, 128: 1}  # blocks of a multiprocessor
CONSUMERS = {64: 1, 128: 2}  # by head size; three for 64 was slower (measured)
HEAD_SIZES = (64, 128)  # of the kernels


def padded(d: Dim) -> int:
    """The head size of the kernel that serves this one, or 0."""
    return next((size for size in HEAD_SIZES if isinstance(d, int) and 0 < d <= size and d % 8 == 0), 0)


class HopperAttention(Template):
    key = "hopper_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) is not AttentionOp:
            return Reason("no attention")
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        op = node.op
        if op.has_mask or op.has_bias or op.softcap is not None:
            return Reason("masks, biases and soft caps are not fused here")
        q, k, v = node.operands[:3]
        if q.dtype not in (bf16, f16) or not q.dtype is k.dtype is v.dtype:
            return Reason("needs bf16 or f16 operands of one dtype")
        if not padded(q.shape[-1]) or q.shape[-1] != v.shape[-1]:
            return Reason(f"the head size must be a multiple of 8 up to {HEAD_SIZES[-1]}, got {q.shape[-1]} and {v.shape[-1]}")
        if Attention().matches(region, target) is not None or not at_least(k.shape[2], 1):
            return Reason("operands must come from memory, and there must be keys")
        return None if suitable(region) else Reason("rows of a multiple of 16 bytes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [flash_launch(region, target)] if suitable(region) else Shared(Attention()).build(region, target)


def suitable(region: Region) -> bool:
    assert region.anchor is not None
    places = [region.operand(v) for v in region.anchor.operands[:3]]
    if any(o is None for o in places):
        return False
    reads = all(
        o.layout.strides[-1] == 1 and divisible(o.layout.offset, 8) and all(divisible(s, 8) and s != 0 for s in o.layout.strides[:-1])
        for o in places
        if o is not None
    )
    out = region.results[0].type.shape
    others = [region.operand(v) for v in leaves_of_epilogue(region, region.anchor.values[0])]
    lays = [r.layout for r in region.results] + [o.layout.expand(out) for o in others if o is not None]
    return reads and all(x.strides[-1] in (0, 1) and all(divisible(s, 2) for s in (x.offset, *x.strides[:-1])) for x in lays)


def flash_launch(region: Region, target: TargetSpec) -> Launch:
    node = region.anchor
    assert node is not None and isinstance(node.op, AttentionOp)
    op, out_value = node.op, node.values[0]
    places = [region.operand(v) for v in node.operands[:3]]
    (batch, heads, sq, own), (_, kv_heads, sk, _) = node.operands[0].shape, node.operands[1].shape
    d = padded(own)
    assert isinstance(own, int) and isinstance(heads, int) and isinstance(kv_heads, int)
    columns = None if own == d else own
    call = Call("flash", region.name)
    b = call.b
    outs = [call.view(f"o{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
    ins: dict[Value, View] = {}
    for i, v in enumerate(leaves_of_epilogue(region, out_value)):
        o = region.operand(v)
        assert o is not None
        ins[v] = call.view(f"e{i}", o.type.dtype, o.buffer, o.layout.expand(out_value.shape))
    maps = []
    for name, o, rows in zip("qkv", places, (64 * CONSUMERS[d], KEYS, KEYS), strict=True):
        assert o is not None
        word = len(call._arguments)
        call.view(name, o.type.dtype, o.buffer, o.layout)
        n, h, s, depth = o.type.shape
        steps = tuple(x * 2 for x in reversed(o.layout.strides[:-1]))
        maps.append(TensorMap(word, o.type.dtype, (depth, s, h, n), steps, (64, rows, 1, 1), 128))
    rows_left = call.word("rows", sq)
    acc, row, head, item = Var(TileType((64, d), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
    r, h_, z = Ix(b, row), Ix(b, head), Ix(b, item)

    def leaf(v: Value, o: Operand) -> Tile:
        *_, sm, sn = ins[v].type.strides
        size = (1 if sm == 0 else 64, 1 if sn == 0 else d)
        limit = (rows_left - r if size[0] != 1 else None, columns if size[1] != 1 else None)
        return b.load(ins[v], (z, h_, r, 0), size, limit=limit if any(x is not None for x in limit) else None)

    evaluate = Evaluator(b, region, leaf, {out_value: Tile(b, acc)})
    for view, v, result in zip(outs, region.body.outputs, region.results, strict=True):
        b.store(view, (z, h_, r, 0), narrow(b, b.broadcast(evaluate(v), (64, d)), result.type.dtype), limit=(rows_left - r, columns))
    q_tiles = ceildiv(sq, 64 * CONSUMERS[d])
    window: Dim = op.window if op.window is not None else 0
    works = q_tiles * heads * batch
    call._arguments += [Word(x) for x in (sq, sk, op.offset, window, heads, heads // kv_heads, q_tiles, works)]
    stages = 2
    launch = call.finish(
        minimum(works, target.cores * PER_SM[d]),
        flops=region_flops(region),
        bytes_=region_bytes(region),
        note=f"wgmma {64 * CONSUMERS[d]}x{KEYS}, d {d}",
    )
    k = launch.kernel
    flags = f"{'c' if op.causal else ''}{'w' if op.window is not None else ''}"
    dtype = node.operands[0].dtype.name
    scale = hashlib.blake2b(repr(float(op.scale)).encode(), digest_size=4).hexdigest()
    launch.kernel = FlashKernel(
        f"{k.name}_{d}_{stages}{flags}_{scale}_{dtype}", k.params, k.pid, k.body, acc=acc, row=row, head=head, batch=item, d=d,
        keys=KEYS, consumers=CONSUMERS[d], per_sm=PER_SM[d],
        stages=stages, causal=op.causal, windowed=op.window is not None, scale=op.scale, dtype=dtype, maps=tuple(maps))  # fmt: skip
    return launch
