"""Attention on Hopper's tensor cores: f16 and bf16, head sizes up to 128 that are multiples of 8, causal, windows, masks, biases, soft
caps, shared key heads, any lengths.

Other head sizes go to other templates. Tiles past an end read zeros, which the softmax masks out; heads are computed as 64 or 128 wide,
what is past their own size being zeros too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....core.dims import Dim, at_least, ceildiv, divisible, minimum
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ir.layout import Layout
from ....ops.attention.backward import AttentionSaved as AttentionSavedOp
from ....ops.attention.forward import Attention as AttentionOp
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import PLANS, FlashKernel, TensorMap, forward, identified
from ...launch import Buffer, Launch, Word
from ...matmul.tiling import leaves_of_epilogue
from ...pointwise.copies import copy_launch
from ...region import Evaluator, Operand, Region, narrow
from ...template import Foreign, Reason, Template, alone, region_bytes, region_flops
from ..forward import AttentionTemplate

TRIED = 24  # sizes of a group


def lengths(sq: int, sk: int, rows: int, keys: int, offset: int, window: int | None) -> list[int]:
    """Tiles of keys that each block of rows of a causal head sees."""
    found = []
    for first in range(0, sq, rows):
        limit = max(min(sk, min(first + rows, sq) + offset), 0)
        low = max(first + offset - window + 1, 0) // keys if window is not None else 0
        found.append(max(-(-limit // keys) - low, 0))
    return found


def heads_together(tiles: Sequence[int], lines: int, most: int, cores: int, per_sm: int) -> int:
    """How many heads have their long rows before their short ones: `tiles` of a head's blocks of rows from its first row on, `lines`
    heads in all, `most` of which fit.

    Blocks of the grid take every n-th piece (`flash._position`), heads come in groups, and in a group longer rows come first. As many heads
    as keep their keys and values in L2 is one rule; but a group whose pieces are nearly a multiple of the grid gives one block all the long
    rows (causal 8x16x1024x64 in groups of 24 heads: the fullest SM has 15 % more than its share). So groups that fit are tried on paper,
    and the largest is taken whose fullest SM is within 1 % of the best. A piece costs its tiles of keys and one more.

    >>> heads_together([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8], lines=128, most=24, cores=132, per_sm=2)
    22
    """
    most = max(1, min(most, lines))
    grid = min(len(tiles) * lines, cores * per_sm)
    if grid < cores * per_sm:
        return most  # every block has one piece
    costs = np.array(tiles[::-1], np.float64) + 1
    found = []
    for size in range(most, 0, -max(1, most // TRIED)):
        whole, rest = divmod(lines, size)
        order = np.concatenate([np.tile(np.repeat(costs, size), whole), np.repeat(costs, rest)])
        padded = np.zeros(-(-len(order) // grid) * grid)
        padded[: len(order)] = order
        of_blocks = padded.reshape(-1, grid).sum(0)
        found.append((of_blocks.reshape(per_sm, cores).sum(0).max(), size))  # an SM has blocks i, i + cores, …
    best = min(found)[0]
    return next(size for load, size in found if load <= 1.01 * best)


HEAD_SIZES = tuple(PLANS)  # head sizes of the kernels


def padded(d: Dim) -> int:
    """The head size of the kernel that serves this one, or 0."""
    return next((size for size in HEAD_SIZES if isinstance(d, int) and 0 < d <= size and d % 8 == 0), 0)


class HopperAttention(Template):
    key = "hopper_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in (AttentionOp, AttentionSavedOp):
            return Foreign("no attention")
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        if isinstance(node.op, AttentionSavedOp):  # made only where this kernel serves it
            return alone(region, AttentionSavedOp)
        op = node.op
        assert isinstance(op, AttentionOp)
        q, k, v = node.operands[:3]
        if op.has_mask and op.hidden != float("-inf"):
            return Reason("hidden scores must be -inf")
        if q.dtype not in (bf16, f16) or not q.dtype is k.dtype is v.dtype:
            return Reason("needs bf16 or f16 operands of one dtype")
        if not padded(q.shape[-1]) or q.shape[-1] != v.shape[-1]:
            return Reason(f"the head size must be a multiple of 8 up to {HEAD_SIZES[-1]}, got {q.shape[-1]} and {v.shape[-1]}")
        if AttentionTemplate().matches(region, target) is not None or not at_least(k.shape[2], 1):
            return Reason("operands must come from memory, and there must be keys")
        return None if suitable(region) else Reason("rows of a multiple of 16 bytes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if isinstance(region.node.op, AttentionSavedOp):
            copies, rows = as_rows(region, target)
            return [*copies, flash_launch(rows, target)]
        return [flash_launch(region, target)]


def as_rows(region: Region, target: TargetSpec) -> tuple[list[Launch], Region]:
    """The region over operands that TMA can read, and the copies that make them so."""
    copies: list[Launch] = []
    operands = []
    op, inputs = region.node.op, region.node.operands
    beside = 3 + getattr(op, "has_mask", False) + getattr(op, "has_bias", False)
    free = [region.operand(v) for v in inputs[3:beside]]  # a mask and a bias are read by threads
    for i, o in enumerate(region.operands):
        if len(o.type.shape) == 4 and not is_rows(o.layout) and not any(o is x for x in free):
            buffer = Buffer(f"{region.name}.rows{i}", "temp", o.type.nbytes)
            rows = Operand(o.type, buffer, Layout.contiguous(o.type.shape))
            copies.append(copy_launch(buffer.name, o, rows, target, "copy: TMA wants rows of a multiple of 16 bytes"))
            o = rows
        operands.append(o)
    return copies, Region(region.name, region.body, operands, region.results, region.place)


def is_rows(lay: Layout) -> bool:
    whole = lay.strides[-1] == 1 and divisible(lay.offset, 8) and all(divisible(s, 8) and s != 0 for s in lay.strides[:-1])
    return whole and forward(*lay.strides)


def suitable(region: Region) -> bool:
    places = [region.operand(v) for v in region.node.operands[:3]]
    if any(o is None for o in places):
        return False
    reads = all(is_rows(o.layout) for o in places if o is not None)
    out = region.results[0].type.shape
    others = [region.operand(v) for v in leaves_of_epilogue(region, region.node.values[0])]
    lays = [r.layout for r in region.results] + [o.layout.expand(out) for o in others if o is not None]
    return reads and all(x.strides[-1] in (0, 1) and all(divisible(s, 2) for s in (x.offset, *x.strides[:-1])) for x in lays)


def flash_launch(region: Region, target: TargetSpec) -> Launch:
    node = region.node
    assert isinstance(node.op, (AttentionOp, AttentionSavedOp))
    saved = isinstance(node.op, AttentionSavedOp)
    op, out_value = node.op.plain if isinstance(node.op, AttentionSavedOp) else node.op, node.values[0]
    places = [region.operand(v) for v in node.operands[:3]]
    (batch, heads, sq, own), (_, kv_heads, sk, _) = node.operands[0].shape, node.operands[1].shape
    d = padded(own)
    plan = PLANS[d]
    rows = 64 * plan.consumers
    assert isinstance(own, int) and isinstance(heads, int) and isinstance(kv_heads, int)
    columns = None if own == d else own
    call = Call("flash", region.name)
    b = call.b
    results = list(zip(region.body.outputs, region.results, strict=True))[: 1 if saved else None]
    outs = [call.view(f"o{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, (_, r) in enumerate(results)]
    sums = call.view("sums", f32, region.results[1].buffer, region.results[1].layout, write=True) if saved else None
    ins: dict[Value, View] = {}
    for i, v in enumerate(leaves_of_epilogue(region, out_value)):
        beside = region.given(v)
        ins[v] = call.view(f"e{i}", beside.type.dtype, beside.buffer, beside.layout.expand(out_value.shape))
    maps = []
    for name, o, size in zip("qkv", places, (rows, plan.keys, plan.keys), strict=True):
        assert o is not None
        word = len(call._arguments)
        call.view(name, o.type.dtype, o.buffer, o.layout)
        n, h, s, depth = o.type.shape
        steps = tuple(x * 2 for x in reversed(o.layout.strides[:-1]))
        maps.append(TensorMap(word, o.type.dtype, (depth, s, h, n), steps, (64, size, 1, 1), 128))
    views, together = {}, 2 if divisible(sk, 2) else 1
    for name, value in zip(("mask", "bias"), op._extras(node.operands[3:]), strict=True):
        if value is not None and (o := region.operand(value)) is not None:
            lay = o.layout.expand((batch, heads, sq, sk))
            views[name] = call.view(name, o.type.dtype, o.buffer, lay).var
            if lay.strides[-1] != 1 or not all(divisible(x, 2) for x in (lay.offset, *lay.strides[:-1])):
                together = 1
    rows_left = call.word("rows", sq)
    acc, row, head, item = Var(TileType((64, d), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
    r, h_, z = Ix(b, row), Ix(b, head), Ix(b, item)

    def leaf(v: Value, o: Operand) -> Tile:
        *_, sm, sn = ins[v].type.strides
        size = (1 if sm == 0 else 64, 1 if sn == 0 else d)
        limit = (rows_left - r if size[0] != 1 else None, columns if size[1] != 1 else None)
        return b.load(ins[v], (z, h_, r, 0), size, limit=limit if any(x is not None for x in limit) else None)

    evaluate = Evaluator(b, region, leaf, {out_value: Tile(b, acc)})
    for view, (v, result) in zip(outs, results, strict=True):
        b.store(view, (z, h_, r, 0), narrow(b, b.broadcast(evaluate(v), (64, d)), result.type.dtype), limit=(rows_left - r, columns))
    q_tiles = ceildiv(sq, rows)
    window: Dim = op.window if op.window is not None else 0
    works = q_tiles * heads * batch
    lines = heads * batch
    chunk = 1
    if op.causal:
        fit = max(1, plan.kept * (heads // kv_heads) // (4 * d * sk)) if isinstance(sk, int) else heads // kv_heads
        chunk = fit
        if isinstance(lines, int) and isinstance(sq, int) and isinstance(sk, int) and isinstance(op.offset, int):
            tiles = lengths(sq, sk, rows, plan.keys, op.offset, op.window)
            chunk = heads_together(tiles, lines, fit, target.cores, plan.per_sm)
    words = (sq, sk, op.offset, window, heads, heads // kv_heads, q_tiles, works, minimum(chunk, lines), lines)
    call._arguments += [Word(x) for x in words]
    launch = call.finish(
        minimum(works, target.cores * plan.per_sm),
        flops=region_flops(region),
        bytes_=region_bytes(region),
        note=f"wgmma {rows}x{plan.keys}, d {d}",
    )
    k = launch.kernel
    cap = op.softcap
    empty = op.empty == "nan"
    dtype = node.operands[0].dtype.name
    launch.kernel = identified(FlashKernel(
        k.name, k.params, k.pid, k.body, acc=acc, row=row, head=head,
        batch=item, logsumexps=None if sums is None else sums.var, d=d, softcap=cap, mask=views.get("mask"), bias=views.get("bias"),
        nan_rows=empty, together=together, causal=op.causal, windowed=op.window is not None, scale=op.scale, dtype=dtype, maps=tuple(maps),
        plan=plan))  # fmt: skip
    return launch
