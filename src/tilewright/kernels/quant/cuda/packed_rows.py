"""Rows of packed tables by index and rows rounded to values, on a GPU: a program per block of a row, so that a row is not walked."""

from __future__ import annotations

from ....core.dims import product
from ....core.dtypes import f32
from ....core.target_spec import TargetSpec
from ....ops.packed.products import QGather as QGatherOp
from ....ops.packed.quant_dot import BLOCK, HALF
from ....ops.packed.quant_dot import QuantizeRows as QuantizeRowsOp
from ....ops.quant import FORMATS
from ...call import Call
from ...cuda.groups import ONE_THREAD, on_threads, shared_launch
from ...index.gather import report_index
from ...launch import Launch
from ...pointwise.pointwise import unravel
from ...region import Region, widen
from ...template import Reason, Template, region_bytes, region_flops
from ..quantize import QuantizedViews, store_block
from ..quantized import QGatherTemplate
from ..unpack import Block, Matrix


class CudaQuantizeRows(Template):
    """No rows: no programs."""

    key = "cuda_quantize_rows"
    serves = (QuantizeRowsOp,)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        x = region.operands[0]
        *lead, k = x.type.shape
        assert isinstance(k, int)
        call = Call("quantize_rows", region.name)
        b = call.b
        xv = call.view("x", x.type.dtype, x.buffer, x.layout)
        named = zip(("q", "d", "s"), region.results, strict=True)
        out = QuantizedViews(*(call.view(n, r.type.dtype, r.buffer, r.layout, write=True) for n, r in named))
        row, block = b.pid // (k // BLOCK), b.pid % (k // BLOCK)
        at = unravel(b, row, [call.word(f"d{i}", d) for i, d in enumerate(lead)])
        halves = [widen(b, b.load(xv, (*at, block * BLOCK + half), (HALF,))) for half in range(0, BLOCK, HALF)]
        store_block(b, out, at, block, halves)
        blocks = product(lead) * (k // BLOCK)
        launch = call.finish(blocks, flops=region_flops(region), bytes_=region_bytes(region), note="a program a block")
        launch.kernel = on_threads(launch.kernel, HALF, ONE_THREAD // HALF)
        return [launch]


class CudaQGather(Template):
    """Indices are checked like those of a gather."""

    key = "cuda_qgather"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is not None and isinstance(node.op, QGatherOp) and FORMATS[node.op.format].dtype is not None:
            return Reason(f"numbers of {node.op.format} are read as they are")
        return QGatherTemplate().matches(region, target)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        op, (table, ids, *books), y = region.op(QGatherOp), region.operands, region.results[0]
        call = Call("qgather", region.name)
        b = call.b
        matrix = Matrix(call, table, op.format, op.k, books)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        out = call.view("y", f32, y.buffer, y.layout, write=True)
        error = call.error()
        size = call.word("size", table.type.shape[0])
        blocks = op.k // matrix.elements
        number, block = b.pid // blocks, b.pid % blocks
        at = unravel(b, number, [call.word(f"d{i}", d) for i, d in enumerate(ids.type.shape)])
        wanted = b.to_index(b.load(index, at, ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, number, wanted)
        safe = b.minimum(b.maximum(wanted, 0), size - 1)
        for first, tile in Block(matrix, safe, block * matrix.size).pieces():
            b.store(out, (*at, block * matrix.elements + first), tile)
        moved = region_bytes(region) - table.type.nbytes + y.type.nbytes
        launch = call.finish(product(ids.type.shape) * blocks, flops=region_flops(region), bytes_=moved, note="a program a block")
        return [shared_launch(launch)]
