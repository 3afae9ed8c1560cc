"""The backward pass of attention on chips without `wgmma`: f16 and bf16, head sizes up to 128 that are multiples of 8, causal, windows,
masks, biases, soft caps, shared key heads, any lengths (`target/cuda/attention/mma_grad.py`). The forward pass has saved its logsumexps."""

from __future__ import annotations

from typing import Any

from ....core.dims import Dim, ceildiv
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.attention.backward import AttentionBackward as AttentionBackwardOp
from ....tile.builder import Ix, Tile
from ....tile.ir import INDEX, TileType, Var
from ...call import Call
from ...cuda.kernel import identified
from ...launch import Buffer, Launch, Word
from ...pointwise.copies import fill_launch
from ...region import Operand, Region, narrow
from ...template import Reason, Template, region_bytes, region_flops
from .flash import as_rows
from .flash_backward import tensor_cores
from .flash_kernels import MmaGradKernel
from .flash_launches import partial, parts_of, row_statistics, shares

OWN = 64  # rows of a block


class MmaAttentionBackward(Template):
    key = "mma_attention_backward"
    serves = (AttentionBackwardOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return tensor_cores(region) if region.op(AttentionBackwardOp).saved else Reason("needs the saved logsumexps")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        copies, rows = as_rows(region, target)
        return [*copies, *Backward(rows).launches(target)]


class Backward:
    def __init__(self, region: Region) -> None:
        node = region.node
        assert isinstance(node.op, AttentionBackwardOp)
        self.region, self.op = region, node.op
        operands = [o for x in node.operands if (o := region.operand(x)) is not None]
        beside = 3 + node.op.has_mask + node.op.has_bias
        self.places = dict(zip("qkvg", (*operands[:3], operands[-1]), strict=True))
        self.saved = operands[-3:-1]
        extras = node.op.forward._extras(tuple(operands[3:beside]))
        self.extras = {name: o for name, o in zip(("mask", "bias"), extras, strict=True) if o is not None}
        (self.batch, heads, self.sq, own), (_, kv, self.sk, _) = operands[0].type.shape, operands[1].type.shape
        assert isinstance(heads, int) and isinstance(kv, int) and isinstance(own, int)
        self.heads, self.kv_heads, self.own, self.d = heads, kv, own, -(-own // 16) * 16
        self.padded: Dim = ceildiv(self.sq, OWN) * OWN
        size = self.batch * heads * self.padded * 4
        self.stats = [Buffer(f"{region.name}.{n}", "temp", size) for n in ("logsumexps", "delta")]
        self.split = 1  # parts of the query heads that share a key head

    def launches(self, target: TargetSpec) -> list[Launch]:
        (dq, dk, dv, *scores), op, name = self.region.results, self.op, self.region.name
        share = 1 << max(self.own - 1, 7).bit_length()
        result, sums = self.saved
        found = [row_statistics(name, self.places["g"], result, sums, self.stats, self.padded, share)]
        if op.with_scores and partial(op):
            found.append(fill_launch(f"{name}.unseen", 0, scores[0], target))
        self.split = parts_of(op, self.heads // self.kv_heads, self.batch * self.kv_heads * ceildiv(self.sk, OWN), target.cores)
        parts, added = shares(name, [dk, dv], self.split)
        return [*found, self._half("keys", parts[::-1], []), *added, self._half("queries", [dq], scores)]

    def _half(self, mode: str, results: list[Operand], scores: list[Operand]) -> Launch:
        op, d, own, region = self.op, self.d, self.own, self.region
        of_keys = mode == "keys"
        call = Call("mma_grad", f"{region.name}.{mode}")
        b = call.b
        views: dict[str, Any] = {n: call.view(n, o.type.dtype, o.buffer, o.layout).var for n, o in self.places.items()}
        lay, pairs = Layout.contiguous((self.batch, self.heads, self.padded)), (self.batch, self.heads, self.sq, self.sk)
        views |= {n: call.view(n, f32, x, lay).var for n, x in zip(("lse", "delta"), self.stats, strict=True)}
        views |= {n: call.view(n, o.type.dtype, o.buffer, o.layout.expand(pairs)).var for n, o in self.extras.items()}
        for o in scores:
            views["scores"] = call.view("scores", o.type.dtype, o.buffer, o.layout, write=True).var
            if partial(op):
                call.also_reads(o.buffer)  # where nobody sees anything it stays as it was
        rows = self.sk if of_keys else self.sq
        rows_left = call.word("rows", rows)
        sums = tuple(Var(TileType((OWN, d), f32), f"sum{i}") for i in range(len(results)))
        row, head, item = Var(INDEX, "row"), Var(INDEX, "head"), Var(INDEX, "batch")
        r, h, z = Ix(b, row), Ix(b, head), Ix(b, item)
        for i, (out, total) in enumerate(zip(results, sums, strict=True)):
            view = call.view(f"d{i}", out.type.dtype, out.buffer, out.layout, write=True)
            limit = (rows_left - r, None if own == d else own)
            b.store(view, (z, h, r, 0), narrow(b, Tile(b, total), out.type.dtype), limit=limit)
        tiles, window = ceildiv(rows, OWN), op.window if op.window is not None else 0
        split = self.split if of_keys else 1
        lines = self.kv_heads * split
        words: tuple[Dim, ...] = (self.sq, self.sk, op.offset, window, self.heads, self.heads // lines, tiles, self.padded, split)
        call._arguments += [Word(x) for x in words]
        tile = (64 if d <= 64 else 32) // (2 if of_keys and self.extras else 1)  # two sums and what changes scores leave few registers
        count = tiles * self.batch * (lines if of_keys else self.heads)
        share = region_flops(region) * (4 if of_keys else 3) // 5
        note = f"mma.sync {OWN}x{tile}, d {d}, {'dK and dV' if of_keys else 'dQ'}"
        launch = call.finish(count, flops=share, bytes_=region_bytes(region), note=note)
        kernel, dtype = launch.kernel, self.places["q"].type.dtype.name
        launch.kernel = identified(MmaGradKernel(
            kernel.name, kernel.params, kernel.pid, kernel.body, mode=mode, sums=sums, row=row,
            head=head, batch=item, own=own, d=d, tile=tile, causal=op.causal, windowed=op.window is not None, softcap=op.softcap,
            scale=op.scale, dtype=dtype, **views))  # fmt: skip
        return launch
