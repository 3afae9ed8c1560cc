"""Choosing a token from each row of logits on a GPU: one block a row, whatever the settings (the target's `sample`).

Thresholds are found by counting: 1,024 counters in shared memory for ten bits of the probabilities at a time. Masses are integers
(units of 2^-40 of the largest probability), so that sums do not depend on their order: the same bits from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ....core.dims import product
from ....core.dtypes import f32, i32
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.index.sampling import Sample as SampleOp
from ....tile.ir import Var
from ...call import Call
from ...cuda.kernel import SimtKernel, identified
from ...launch import Buffer, Launch
from ...region import Operand, Region
from ...template import Reason, Template, region_bytes, region_flops

THREADS = 1024
LISTED = 8192  # tokens that go on in a list of their own, once a filter has left no more
MOST = 1 << 20  # logits: two rounds of 1,024 counters find one


@dataclass(eq=False)
class SampleKernel(SimtKernel):
    """The views are of contiguous memory, block after block: `kept` has room for every logit, `listed` and `ids` for `LISTED` a row."""

    logits: Var | None = None
    seen: Var | None = None
    settings: Var | None = None
    numbers: Var | None = None
    out: Var | None = None
    error: Var | None = None
    kept: Var | None = None
    listed: Var | None = None
    ids: Var | None = None
    size: int = 1

    @property
    def block(self) -> int:
        return THREADS


class CudaSample(Template):
    key = "cuda_sample"
    serves = (SampleOp,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        places = [region.operand(v) for v in region.node.operands]
        if any(o is None or not contiguous(o) for o in places):
            return Reason("operands must be contiguous and come from memory")
        size = region.node.operands[0].shape[-1]
        return None if isinstance(size, int) and size <= MOST else Reason(f"at most {MOST} logits, got {size}")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        *lead, size = region.node.operands[0].shape
        assert isinstance(size, int)
        rows = product(lead)
        call = Call("sample_block", region.name)
        views: dict[str, Any] = {}
        for name, value in zip(("logits", "seen", "settings", "numbers"), region.node.operands, strict=True):
            o = region.given(value)
            views[name] = call.view(name, o.type.dtype, o.buffer, o.layout).var
        result = region.results[0]
        views["out"] = call.view("out", result.type.dtype, result.buffer, result.layout, write=True).var
        views["error"] = call.error().var
        for name, dtype, count in (("kept", f32, size), ("listed", f32, LISTED), ("ids", i32, LISTED)):
            buffer = Buffer(f"{region.name}.{name}", "temp", rows * count * dtype.itemsize)
            views[name] = call.view(name, dtype, buffer, Layout.contiguous((rows, count)), write=True).var
        launch = call.finish(rows, flops=region_flops(region), bytes_=region_bytes(region), note="one block a row")
        k = launch.kernel
        launch.kernel = identified(SampleKernel(k.name, k.params, k.pid, k.body, size=size, **views))
        return [launch]


def contiguous(o: Operand) -> bool:
    dense = Layout.contiguous(o.type.shape).strides
    return all(s == want or d == 1 for s, want, d in zip(o.layout.strides, dense, o.type.shape, strict=True))
