"""The selective scan on a GPU: a warp keeps the states of a few channels in registers and walks time.

States past the last and channels past the last are read as zeros, which change no sum. The operands of the next step are loaded while this
one is computed.
"""

from __future__ import annotations

from ....core.dims import bounds, ceildiv
from ....core.target_spec import TargetSpec
from ....ops.scan.selective_scan import SelectiveScan as SelectiveScanOp
from ....tile.builder import Ix, Tile
from ...call import Call
from ...cuda.tiled import tiled
from ...launch import Launch
from ...region import Region
from ...template import Reason, Template, region_bytes, region_flops
from ..delta_net import working

ELEMENTS = 128  # elements of the states that a warp keeps, where a channel has fewer


class CudaSelectiveScan(Template):
    key = "selective_scan_warps"
    serves = (SelectiveScanOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        n = region.operands[2].type.shape[1]
        return None if isinstance(n, int) and 0 < n <= 1024 else Reason(f"a warp keeps states of at most 1024 numbers, got {n}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        gated, operands = region.op(SelectiveScanOp).gated, [region.given(v) for v in region.node.operands]
        (batch, length, d), n = operands[0].type.shape, operands[2].type.shape[1]
        assert isinstance(n, int)
        rows = 1 << (n - 1).bit_length()
        columns = max(ELEMENTS // rows, 1)
        dtype = working(operands[0].type.dtype)
        call = Call("selective_scan", region.name)
        b = call.b
        names = ("x", "delta", "a", "b", "c", "skip", *(("z",) if gated else ()), "h")
        views = {name: call.view(name, o.type.dtype, o.buffer, o.layout) for name, o in zip(names, operands, strict=True)}
        results = zip(("y", "last"), region.results, strict=True)
        out, last = (call.view(name, r.type.dtype, r.buffer, r.layout, write=True) for name, r in results)
        steps, blocks = call.word("length", length), ceildiv(d, columns)
        count = call.word("blocks", blocks)
        at, channel = b.pid // count, b.pid % count * columns
        down = None if rows == n else n
        across = None if isinstance(d, int) and d % columns == 0 else b.minimum(call.word("d", d) - channel, columns)

        def limit(*sizes: Ix | int | None) -> tuple[Ix | int | None, ...] | None:
            return None if all(s is None for s in sizes) else sizes

        def loaded(t: Ix | int) -> list[Tile]:
            """b and c as columns, x, delta and z as rows."""
            columns_of = [b.load(views[name], (at, t, 0), (rows, 1), limit(down, None), axes=(2, 1)) for name in "bc"]
            kinds = ("x", "delta", "z") if gated else ("x", "delta")
            return [*columns_of, *(b.load(views[name], (at, t, channel), (1, columns), limit(None, across)) for name in kinds)]

        a = b.cast(b.load(views["a"], (channel, 0), (rows, columns), limit(down, across), axes=(1, 0)), dtype)
        skip = b.cast(b.load(views["skip"], (channel,), (columns,), limit(across)), dtype)
        first = b.cast(b.load(views["h"], (at, channel, 0), (rows, columns), limit(down, across), axes=(2, 1)), dtype)
        ahead = bounds(length)[0] >= 1  # else there may be nothing to load
        with b.loop(0, steps, 1, [first, *(loaded(0) if ahead else [])]) as time:
            h, *given = time.carried
            coming = loaded(b.minimum(time.index + 1, steps - 1)) if ahead else []
            rate, read, x, delta, *z = (b.cast(v, dtype) for v in (given or loaded(time.index)))
            h = b.fma(b.unary("exp", delta * a), h, delta * x * rate)
            y = b.reduce("sum", h * read, 0) + b.reshape(skip, (1, columns)) * x
            if z:
                y = y * b.binary("div", z[0], b.unary("exp", z[0] * -1.0) + 1.0)
            b.store(out, (at, time.index, channel), b.cast(y, out.type.dtype), limit=limit(None, across))
            time.next(h, *coming)
        b.store(last, (at, channel, 0), b.cast(time.results[0], last.type.dtype), limit=limit(down, across), axes=(2, 1))
        pairs = [(operands[-1].buffer, region.results[1].buffer)] if operands[-1].layout == region.results[1].layout else []
        launch = call.finish(batch * blocks, flops=region_flops(region), bytes_=region_bytes(region), inplace=pairs,
                             note=f"states of {columns} channels a warp")
        return [tiled(launch, warps=1)]
