"""The gated delta rule on a GPU: a warp keeps some columns of a head's memory in registers and walks time.

Rows past the depth and columns past the last are read as zeros, which change no sum. The operands of the next step are loaded while this
one is computed.
"""

from __future__ import annotations

from ....core.dims import bounds
from ....core.target_spec import TargetSpec
from ....ops.scan.delta_net import GatedDeltaRule as GatedDeltaRuleOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.tiled import aligned, tiled
from ...launch import Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..delta_net import NAMES, working

ELEMENTS = 1024  # elements of the memory that a warp keeps


class CudaDeltaRule(Template):
    key = "gated_delta_rule_warps"
    serves = (GatedDeltaRuleOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        depth = region.operands[0].type.shape[3]
        if not isinstance(depth, int) or not 0 < depth <= ELEMENTS // 2:
            return Reason(f"a warp keeps columns of at most {ELEMENTS // 2} numbers, got {depth}")
        return None

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, operands = region.op(GatedDeltaRuleOp), [region.given(v) for v in region.node.operands]
        groups, depth = operands[0].type.shape[1], operands[0].type.shape[3]
        batch, heads, length, wide = operands[2].type.shape
        assert isinstance(depth, int) and isinstance(wide, int)
        rows = 1 << (depth - 1).bit_length()
        columns = min(ELEMENTS // rows, 32, 1 << max(wide - 1, 1).bit_length())
        dtype = working(operands[0].type.dtype)
        call = Call("gated_delta_rule", region.name)
        b = call.b
        views = {n: call.view(n, o.type.dtype, o.buffer, o.layout) for n, o in zip(NAMES, operands, strict=True)}
        out, last = (call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in zip(("o", "last"), region.results, strict=True))
        steps, head_count = call.word("length", length), call.word("heads", heads)
        blocks = -(-wide // columns)
        rest, column = b.pid // blocks, b.pid % blocks * columns
        at = (rest // head_count, rest % head_count)
        share = heads // groups if isinstance(heads, int) and isinstance(groups, int) else 1
        group = (at[0], at[1] // share)
        down = None if rows == depth else depth
        across = None if wide % columns == 0 else wide - column
        inside = None if down is None and across is None else (down, across)

        def loaded(t: Ix | int) -> list[Tile]:
            """q and k as columns, v as a row, g and beta."""
            q, k = (b.load(views[n], (*group, t, 0), (rows, 1), None if down is None else (down, None), axes=(3, 2)) for n in "qk")
            v = b.load(views["v"], (*at, t, column), (1, columns), None if across is None else (None, across))
            return [q, k, v, *(b.load(views[n], (*at, t), ()) for n in ("g", "beta"))]

        ahead = bounds(length)[0] >= 1  # else there may be nothing to load
        first = b.cast(b.load(views["s"], (*at, 0, column), (rows, columns), inside), dtype)
        with b.loop(0, steps, 1, [first, *(loaded(0) if ahead else [])]) as time:
            s, *given = time.carried
            coming = loaded(b.minimum(time.index + 1, steps - 1)) if ahead else []
            q, k, v, g, beta = (b.cast(x, dtype) for x in (given or loaded(time.index)))
            s = s * b.unary("exp", g)
            new = (v - b.reduce("sum", s * k, 0) if op.delta else v) * beta
            s = b.fma(b.broadcast(k, (rows, columns)), b.broadcast(new, (rows, columns)), s)
            read = b.reduce("sum", s * q, 0) * op.scale
            b.store(out, (*at, time.index, column), b.cast(read, out.type.dtype), limit=None if across is None else (None, across))
            time.next(s, *coming)
        b.store(last, (*at, 0, column), b.cast(time.results[0], last.type.dtype), limit=inside)
        state, after = operands[-1], region.results[1]
        pairs = [(state.buffer, after.buffer)] if state.layout == after.layout else []
        launch = call.finish(batch * heads * blocks, flops=region_flops(region), bytes_=region_bytes(region), inplace=pairs,
                             note=f"{rows}x{columns} of the memory a warp")
        vectors = {n: aligned(o.layout, wide) for n, o in (("v", operands[2]), ("s", state), ("o", region.results[0]), ("last", after))}
        return [tiled(launch, warps=1, vectors=vectors)]
