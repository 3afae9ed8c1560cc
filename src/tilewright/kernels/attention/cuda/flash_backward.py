"""The backward pass of attention on Hopper's tensor cores: f16 and bf16, head sizes up to 128 that are multiples of 8, causal, windows,
masks, biases, soft caps, shared key heads, any lengths.

Logsumexps and δ of query rows come from what the forward pass saved, or, of plain attention with head sizes 64 and 128, from a sweep of
their own; then one sweep gives dQ, dK, dV and, for a bias, the scores' cotangent (`attention_grad.py`).
"""

from __future__ import annotations

from ....core.dims import Dim, at_least, ceildiv, divisible
from ....core.dtypes import bf16, f16, f32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.attention.backward import AttentionBackward as AttentionBackwardOp
from ...call import Call
from ...cuda.kernel import TensorMap, identified
from ...launch import Buffer, Launch, Word
from ...pointwise.copies import fill_launch
from ...region import Operand, Region
from ...template import Reason, Template, region_bytes, region_flops
from .flash import as_rows, padded
from .flash_kernels import FlashStatsKernel
from .flash_launches import Sweep, partial

CONSUMERS = 2
OWN, STREAMED = 64 * CONSUMERS, 64  # rows of a block's own matrices, of a streamed tile
STAGES = {64: 4, 128: 3}


class HopperAttentionBackward(Template):
    key = "hopper_attention_backward"
    serves = (AttentionBackwardOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        op, q = region.op(AttentionBackwardOp), region.node.operands[0]
        plain = not (op.has_mask or op.has_bias or op.with_scores) and op.softcap is None and op.window is None
        if not op.saved and not (plain and q.shape[-1] in STAGES):
            return Reason("masks, biases, soft caps, windows and head sizes other than 64 and 128 need the saved logsumexps")
        return tensor_cores(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        copies, rows = as_rows(region, target)
        return [*copies, *Backward(rows).launches(target)]


def tensor_cores(region: Region) -> Reason | None:
    """Why a backward pass is none for the tensor cores of any chip, or None."""
    q, k, v, *_ = region.node.operands
    if q.dtype not in (bf16, f16) or not padded(q.shape[-1]) or q.shape[-1] != v.shape[-1]:
        return Reason(f"needs bf16 or f16 and a head size that is a multiple of 8 up to 128, got {q.dtype} and {q.shape[-1]}")
    good = all(region.operand(x) is not None for x in region.node.operands) and all(_even(r) for r in region.results[:3])
    return None if good and at_least(k.shape[2], 1) else Reason("operands must come from memory, and there must be keys")


def _even(o: Operand) -> bool:
    return o.layout.strides[-1] == 1 and all(divisible(s, 2) for s in (o.layout.offset, *o.layout.strides[:-1]))


class Backward:
    def __init__(self, region: Region) -> None:
        node = region.node
        assert isinstance(node.op, AttentionBackwardOp)
        self.region, self.op = region, node.op
        operands = [o for x in node.operands if (o := region.operand(x)) is not None]
        self.q, self.k, self.v, self.g = (*operands[:3], operands[-1])
        self.saved = operands[-3:-1] if node.op.saved else []
        extras = node.op.forward._extras(tuple(operands[3 : 3 + node.op.has_mask + node.op.has_bias]))
        self.extras = {name: o for name, o in zip(("mask", "bias"), extras, strict=True) if o is not None}
        (self.batch, heads, self.sq, d), (_, kv, self.sk, _) = self.q.type.shape, self.k.type.shape
        assert isinstance(heads, int) and isinstance(kv, int) and isinstance(d, int)
        self.heads, self.kv_heads, self.d = heads, kv, d
        self.padded: Dim = ceildiv(self.sq, OWN) * OWN
        size = self.batch * heads * self.padded * 4
        self.stats = [Buffer(f"{region.name}.{n}", "temp", size) for n in ("logsumexps", "delta")]

    def launches(self, target: TargetSpec) -> list[Launch]:
        results, op = list(self.region.results), self.op
        sweep = Sweep(self.region.name, op, [self.q, self.k, self.v, self.g], self.extras, self.stats, self.padded, target.cores)
        before = [sweep.rows(*self.saved)] if self.saved else [self._statistics(), sweep.clear(target)]
        if op.with_scores and partial(op):
            before.append(fill_launch(f"{self.region.name}.unseen", 0, results[3], target))
        return [*before, *sweep.launches(results, region_flops(self.region), region_bytes(self.region))]

    def _statistics(self) -> Launch:
        """Logsumexps and δ, where nothing was saved."""
        call, d = Call("flash_stats", f"{self.region.name}.stats"), self.d
        maps = []
        for i, (o, rows) in enumerate(((self.q, OWN), (self.g, OWN), (self.k, STREAMED), (self.v, STREAMED))):
            word = len(call._arguments)
            call.view(f"m{i}", o.type.dtype, o.buffer, o.layout)
            n, h, s, depth = o.type.shape
            steps = tuple(x * 2 for x in reversed(o.layout.strides[:-1]))
            maps.append(TensorMap(word, o.type.dtype, (depth, s, h, n), steps, (64, rows, 1, 1), 128))
        lay = Layout.contiguous((self.batch, self.heads, self.padded))
        lse, delta = (call.view(n, f32, x, lay, write=True) for n, x in zip(("lse", "delta"), self.stats, strict=True))
        tiles = ceildiv(self.sq, OWN)
        words = (self.sq, self.sk, self.op.offset, self.heads, self.heads // self.kv_heads, tiles, self.padded)
        call._arguments += [Word(x) for x in words]
        launch = call.finish(tiles * self.heads * self.batch, note=f"wgmma {OWN}x{STREAMED}, d {d}")
        k = launch.kernel
        dtype = self.q.type.dtype.name
        launch.kernel = identified(FlashStatsKernel(
            k.name, k.params, k.pid, k.body, lse=lse.var, delta=delta.var, d=d,
            consumers=CONSUMERS, stages=STAGES[d], causal=self.op.causal, scale=self.op.scale, dtype=dtype, maps=tuple(maps)))  # fmt: skip
        return launch
