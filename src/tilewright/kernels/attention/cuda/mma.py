"""Attention with masks, biases and soft caps, and attention on chips without `wgmma`: f16 and bf16, head sizes up to 128 that are multiples
of 8 (`target/cuda/attention/mma.py`). Tiles past an end read zeros, which no row sees; a row that sees nothing gives zeros."""

from __future__ import annotations

from ....core.dims import Dim, at_least, ceildiv
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.graph import Value
from ....ops.attention.backward import AttentionSaved as AttentionSavedOp
from ....ops.attention.forward import Attention as AttentionOp
from ....tile.builder import Ix, Tile, View
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import MmaAttentionKernel, identified
from ...launch import Launch, Word
from ...matmul.tiling import leaves_of_epilogue
from ...region import Evaluator, Operand, Region, narrow
from ...template import Foreign, Reason, Template, alone, region_bytes, region_flops
from ..forward import AttentionTemplate
from .flash import as_rows, suitable

ROWS = 64  # queries of a block


class MmaAttention(Template):
    key = "mma_attention"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or type(node.op) not in (AttentionOp, AttentionSavedOp):
            return Foreign("no attention")
        if isinstance(node.op, AttentionSavedOp):  # made only where this kernel, or a better one, serves it
            return alone(region, AttentionSavedOp)
        q, k, v = node.operands[:3]
        assert isinstance(node.op, AttentionOp)
        if node.op.has_mask and node.op.hidden != float("-inf"):
            return Reason("hidden scores must be -inf")
        if q.dtype not in (bf16, f16) or not q.dtype is k.dtype is v.dtype:
            return Reason("needs bf16 or f16 operands of one dtype")
        d = q.shape[-1]
        if not isinstance(d, int) or d % 8 or not 0 < d <= 128 or d != v.shape[-1]:
            return Reason(f"the head size must be a multiple of 8 up to 128, got {d} and {v.shape[-1]}")
        if any(region.operand(x) is None for x in node.operands):
            return Reason("operands must come from memory")
        if AttentionTemplate().matches(region, target) is not None or not at_least(k.shape[2], 1):
            return Reason("operands must come from memory, and there must be keys")
        return None if suitable(region) else Reason("rows of a multiple of 16 bytes")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        if isinstance(region.node.op, AttentionSavedOp):
            copies, rows = as_rows(region, target)
            return [*copies, attention_launch(rows)]
        return [attention_launch(region)]


def attention_launch(region: Region) -> Launch:
    node = region.node
    assert isinstance(node.op, (AttentionOp, AttentionSavedOp))
    saved = isinstance(node.op, AttentionSavedOp)
    op, out_value = node.op.plain if isinstance(node.op, AttentionSavedOp) else node.op, node.values[0]
    (batch, heads, sq, own), (_, kv_heads, sk, _) = node.operands[0].shape, node.operands[1].shape
    assert isinstance(own, int) and isinstance(heads, int) and isinstance(kv_heads, int)
    d = -(-own // 16) * 16
    call = Call("attention_mma", region.name)
    b = call.b

    def view(name: str, value: Value, shape: tuple[Dim, ...] | None = None) -> View:
        o = region.given(value)
        return call.view(name, o.type.dtype, o.buffer, o.layout if shape is None else o.layout.expand(shape))

    results = list(zip(region.body.outputs, region.results, strict=True))[: 1 if saved else None]
    outs = [call.view(f"o{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, (_, r) in enumerate(results)]
    sums = call.view("sums", f32, region.results[1].buffer, region.results[1].layout, write=True) if saved else None
    ins = {v: view(f"e{i}", v, out_value.shape) for i, v in enumerate(leaves_of_epilogue(region, out_value))}
    q, k, v = (view(name, x) for name, x in zip("qkv", node.operands[:3], strict=True))
    scores = (batch, heads, sq, sk)
    mask = view("mask", node.operands[3], scores) if op.has_mask else None
    bias = view("bias", node.operands[-1], scores) if op.has_bias else None
    rows_left = call.word("rows", sq)
    acc, row, head, item = Var(TileType((ROWS, d), f32), "acc"), Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
    r, h, z = Ix(b, row), Ix(b, head), Ix(b, item)
    columns = None if own == d else own

    def leaf(value: Value, o: Operand) -> Tile:
        *_, sm, sn = ins[value].type.strides
        size = (1 if sm == 0 else ROWS, 1 if sn == 0 else d)
        limit = (rows_left - r if size[0] != 1 else None, columns if size[1] != 1 else None)
        return b.load(ins[value], (z, h, r, 0), size, limit=limit if any(x is not None for x in limit) else None)

    evaluate = Evaluator(b, region, leaf, {out_value: Tile(b, acc)})
    for out, (value, result) in zip(outs, results, strict=True):
        b.store(out, (z, h, r, 0), narrow(b, b.broadcast(evaluate(value), (ROWS, d)), result.type.dtype), limit=(rows_left - r, columns))
    q_tiles = ceildiv(sq, ROWS)
    window: Dim = op.window if op.window is not None else 0
    call._arguments += [Word(x) for x in (sq, sk, op.offset, window, heads, heads // kv_heads, q_tiles)]
    keys = 64 if d <= 64 else 32
    note = f"mma.sync {ROWS}x{keys}, d {d}"
    launch = call.finish(q_tiles * heads * batch, flops=region_flops(region), bytes_=region_bytes(region), note=note)
    kernel, dtype = launch.kernel, node.operands[0].dtype.name
    launch.kernel = identified(MmaAttentionKernel(
        kernel.name, kernel.params, kernel.pid, kernel.body, acc=acc, row=row, head=head, batch=item,
        q=q.var, k=k.var, v=v.var, mask=None if mask is None else mask.var, bias=None if bias is None else bias.var,
        logsumexps=None if sums is None else sums.var, own=own, d=d, keys=keys, causal=op.causal, windowed=op.window is not None,
        softcap=op.softcap or 0.0, nan_rows=op.empty == "nan", scale=op.scale, dtype=dtype))  # fmt: skip
    return launch
