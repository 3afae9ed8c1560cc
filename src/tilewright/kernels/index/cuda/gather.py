"""Lookups of rows on a GPU: the shared kernel, a row on a group of threads, 16 bytes per thread and access."""

from __future__ import annotations

from dataclasses import replace

from ....core.target_spec import TargetSpec
from ....ops.index.indexing import Gather as GatherOp
from ...cuda.groups import Shared, on_threads, vector_width
from ...launch import Launch
from ...matmul.tiling import leaves_of_epilogue
from ...region import Region
from ..gather import Gather

BLOCK = 128  # threads


class CudaGather(Gather):
    """Rows of known length that are long enough for a group; others as the shared template has them."""

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.anchor
        assert node is not None and isinstance(node.op, GatherOp)
        table, shape = region.operand(node.operands[0]), node.values[0].shape
        assert table is not None
        inner = shape[-1] if shape else 1
        places = [o for v in leaves_of_epilogue(region, node.values[0]) if (o := region.operand(v)) is not None]
        layouts = [table.layout, *(r.layout for r in region.results), *(o.layout.expand(shape) for o in places)]
        vector = vector_width([o.type.dtype.itemsize for o in (table, *region.results, *places)], inner, layouts)
        threads = BLOCK if isinstance(inner, int) and inner >= BLOCK * vector else 32
        along = node.op.axis < len(table.type.shape) - 1
        if not isinstance(inner, int) or inner < 32 * vector or table.packed.form != "plain" or not along:
            return Shared(Gather()).build(region, target)
        (launch,) = Gather().build(region, replace(target, vector_bits=32 * threads * vector // 4))  # its tile is four times this wide
        launch.kernel = on_threads(launch.kernel, threads, BLOCK // threads, vector)
        return [launch]
