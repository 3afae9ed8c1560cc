"""The reverse pass of attention on Hopper's matrix units: f16 and bf16, head sizes 64 and 128, causal, shared key heads, any lengths.

Three launches: log-sums and δ of every query row, then dQ, then dK and dV. Nothing is saved by the forward pass, and nothing is added
through memory,
so the bits are the same from run to run. Masks, biases, windows, soft caps and the scores' cotangent are not served.
"""

from __future__ import annotations

import hashlib

from ...core.dims import Dim, at_least, ceildiv, divisible
from ...core.dtypes import bf16, f16, f32
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.attention_backward import AttentionBackward as AttentionBackwardOp
from ...tile.builder import Ix, Tile
from ...tile.ir import INDEX, TileType, Var
from ..call import Call
from ..copies import copy_launch
from ..launch import Buffer, Launch, Word
from ..region import Operand, Region, narrow
from ..template import Reason, Template, alone, region_bytes, region_flops
from .kernel import FlashBackKernel, TensorMap

CONSUMERS = 2
OWN, STREAMED = 64 * CONSUMERS, 64  # rows of a block's own matrices, of a streamed tile
HEAD_SIZES = (64, 128)
STAGES = {64: 4, 128: 3}


class HopperAttentionBackward(Template):
    key = "hopper_attention_backward"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        why = alone(region, AttentionBackwardOp)
        if why is not None:
            return why
        if target.cpu != "sm_90a":
            return Reason(f"needs sm_90a, got {target.cpu}")
        assert region.anchor is not None and isinstance(region.anchor.op, AttentionBackwardOp)
        op, (q, k, v, *_) = region.anchor.op, region.anchor.operands
        if op.has_mask or op.has_bias or op.with_scores or op.softcap is not None or op.window is not None:
            return Reason("masks, biases, windows and soft caps are not fused here")
        if q.dtype not in (bf16, f16) or q.shape[-1] not in HEAD_SIZES or q.shape[-1] != v.shape[-1]:
            return Reason(f"needs bf16 or f16 and a head size of {HEAD_SIZES}, got {q.dtype} and {q.shape[-1]}")
        good = all(region.operand(x) is not None for x in region.anchor.operands) and all(_even(r) for r in region.results)
        return None if good and at_least(k.shape[2], 1) else Reason("operands must come from memory, and there must be keys")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        copies: list[Launch] = []
        operands = []
        for i, o in enumerate(region.operands):
            if not _rows(o):
                buffer = Buffer(f"{region.name}.rows{i}", "temp", o.type.nbytes)
                rows = Operand(o.type, buffer, Layout.contiguous(o.type.shape))
                copies.append(copy_launch(buffer.name, o, rows, target, "copy: the copy engine wants rows of a multiple of 16 bytes"))
                o = rows
            operands.append(o)
        return [*copies, *Backward(Region(region.name, region.body, operands, region.results, region.place)).launches()]


def _rows(o: Operand) -> bool:
    lay = o.layout
    return lay.strides[-1] == 1 and divisible(lay.offset, 8) and all(divisible(s, 8) and s != 0 for s in lay.strides[:-1])


def _even(o: Operand) -> bool:
    return o.layout.strides[-1] == 1 and all(divisible(s, 2) for s in (o.layout.offset, *o.layout.strides[:-1]))


class Backward:
    def __init__(self, region: Region) -> None:
        node = region.anchor
        assert node is not None and isinstance(node.op, AttentionBackwardOp)
        self.region, self.op = region, node.op
        self.q, self.k, self.v, self.g = (o for x in node.operands if (o := region.operand(x)) is not None)
        (self.batch, heads, self.sq, d), (_, kv, self.sk, _) = self.q.type.shape, self.k.type.shape
        assert isinstance(heads, int) and isinstance(kv, int) and isinstance(d, int)
        self.heads, self.kv_heads, self.d = heads, kv, d
        self.padded: Dim = ceildiv(self.sq, OWN) * OWN
        size = self.batch * heads * self.padded * 4
        self.stats = [Buffer(f"{region.name}.{n}", "temp", size) for n in ("log_sums", "delta")]

    def launches(self) -> list[Launch]:
        dq, dk, dv = self.region.results
        return [self._launch("stats", []), self._launch("dq", [dq]), self._launch("dkv", [dv, dk])]

    def _launch(self, mode: str, outs: list[Operand]) -> Launch:
        turned, d = mode == "dkv", self.d
        call = Call(f"flash_{mode}", f"{self.region.name}.{mode}")
        b = call.b
        own, streamed = ((self.k, self.v), (self.q, self.g)) if turned else ((self.q, self.g), (self.k, self.v))
        maps = []
        for i, (o, rows) in enumerate((*((o, OWN) for o in own), *((o, STREAMED) for o in streamed))):
            word = len(call._arguments)
            call.view(f"m{i}", o.type.dtype, o.buffer, o.layout)
            n, h, s, depth = o.type.shape
            steps = tuple(x * 2 for x in reversed(o.layout.strides[:-1]))
            maps.append(TensorMap(word, o.type.dtype, (depth, s, h, n), steps, (64, rows, 1, 1), 128))
        lay = Layout.contiguous((self.batch, self.heads, self.padded))
        lse, delta = (call.view(n, f32, x, lay, write=mode == "stats") for n, x in zip(("lse", "delta"), self.stats, strict=True))
        rows_left = call.word("rows", self.sk if turned else self.sq)
        sums = tuple(Var(TileType((64, d), f32), f"sum{i}") for i in range(len(outs)))
        row, head, item = Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
        r, h_, z = Ix(b, row), Ix(b, head), Ix(b, item)
        for i, (out, total) in enumerate(zip(outs, sums, strict=True)):
            view = call.view(f"d{i}", out.type.dtype, out.buffer, out.layout, write=True)
            b.store(view, (z, h_, r, 0), narrow(b, Tile(b, total), out.type.dtype), limit=(rows_left - r, None))
        tiles = ceildiv(self.sk if turned else self.sq, OWN)
        heads = self.kv_heads if turned else self.heads
        words = (self.sq, self.sk, self.op.offset, heads, self.heads // self.kv_heads, tiles, self.padded)
        call._arguments += [Word(x) for x in words]
        whole = mode == "dq"
        launch = call.finish(
            tiles * heads * self.batch,
            flops=region_flops(self.region) if whole else 0,
            bytes_=region_bytes(self.region) if whole else 0,
            note=f"wgmma {OWN}x{STREAMED}, d {d}",
        )
        k = launch.kernel
        scale = hashlib.blake2b(repr(float(self.op.scale)).encode(), digest_size=4).hexdigest()
        dtype = self.q.type.dtype.name
        launch.kernel = FlashBackKernel(
            f"{k.name}_{d}{'c' if self.op.causal else ''}_{scale}_{dtype}", k.params, k.pid, k.body, mode=mode, sums=sums, row=row,
            head=head, batch=item, lse=lse.var, delta=delta.var, d=d, consumers=CONSUMERS, stages=STAGES[d], causal=self.op.causal,
            scale=self.op.scale, dtype=dtype, maps=tuple(maps))  # fmt: skip
        return launch
