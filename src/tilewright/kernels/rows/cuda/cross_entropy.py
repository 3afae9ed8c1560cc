"""Cross-entropy of rows of logits on a GPU: a row is read once and stays in registers for its maximum, its sum of exponentials and the
label's logit. One launch; the loss and the logsumexp leave it. Labels are checked like the indices of a gather.
"""

from __future__ import annotations

from ....core.dims import product
from ....core.target_spec import TargetSpec
from ....ops.rows.losses import SoftmaxCrossEntropy
from ...call import Call
from ...cuda.groups import on_threads, vector_width
from ...index.gather import report_index
from ...launch import Launch
from ...pointwise.pointwise import unravel
from ...region import Region, narrow, widen
from ...template import Reason, Template, region_bytes, region_flops
from .rows import BLOCK, MOST_THREADS

PER_THREAD = 64  # elements of a row in one thread's registers: 32 took 34.8 us where 64 took 32.6 (8192 rows of 8192 bf16, H200)
LOG2E = 1.4426950408889634


class CudaCrossEntropy(Template):
    """Rows that fit in registers (`Decompose` leaves no others as one op)."""

    key = "cuda_cross_entropy"
    serves = (SoftmaxCrossEntropy,)

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        known = isinstance(region.operands[0].type.shape[-1], int)
        return None if known else Reason("the number of classes must be known")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x, ids = region.operands
        *lead, n = x.type.shape
        assert isinstance(n, int)
        vector = vector_width([x.type.dtype.itemsize], n, [x.layout])
        threads = 1
        while threads < MOST_THREADS and threads * (PER_THREAD if threads >= 32 else vector) < n:
            threads *= 2
        step = threads * vector
        tile = -(-n // step) * step
        call = Call("cross_entropy", region.name)
        b = call.b
        logits = call.view("x", x.type.dtype, x.buffer, x.layout)
        labels = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        outs = [call.view(f"y{i}", r.type.dtype, r.buffer, r.layout, write=True) for i, r in enumerate(region.results)]
        error = call.error()
        at = unravel(b, b.pid, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        limit = None if tile == n else (n,)
        row = widen(b, b.load(logits, (*at, 0), (tile,), limit=limit, other=float("-inf")))
        wanted = b.to_index(b.load(labels, at, ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, n)):
            with b.if_(bad):
                report_index(b, error, b.pid, wanted)
        label = widen(b, b.load(logits, (*at, b.minimum(b.maximum(wanted, 0), n - 1)), ()))
        top = b.reduce("max", row)
        top = b.select(b.unary("isinf", top), 0.0, top)
        # the largest term is 1, and the error of a power grows more slowly than its term shrinks
        parts = b.unary("exp2", (row - top) * LOG2E, short=True)
        total = b.unary("log", b.reduce("sum", parts)) + top
        for value, view, r in zip((total - label, total), outs, region.results, strict=False):
            b.store(view, at, narrow(b, b.reshape(value, ()), r.type.dtype))
        launch = call.finish(product(lead), flops=region_flops(region), bytes_=region_bytes(region), streams=True)
        launch.kernel = on_threads(launch.kernel, threads, max(1, BLOCK // threads) if threads <= 32 else 1, vector)
        return [launch]
