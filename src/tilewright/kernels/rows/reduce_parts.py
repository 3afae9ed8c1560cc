"""What is left of a reduction whose parts were made by a first launch (reduce.py): a region that reduces the parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...core.dims import Dim, product
from ...ir.graph import Graph, Value
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops import functions as F
from ...ops.pointwise.casts import Cast
from ...ops.rows import reductions as red
from ..region import Operand, Region

if TYPE_CHECKING:
    from .reduce import ReduceKernel


def over_parts(region: Region, kernel: ReduceKernel) -> Region:
    """The reduction of the parts, with everything that follows the anchor."""
    node = kernel.node
    axes, shape = kernel.axes, node.operands[0].shape
    first = axes[0]
    cut = tuple(kernel.chunks if a == first else 1 if a in axes else d for a, d in enumerate(shape))
    # in memory: [outer kept…, chunk, the kept axes that were merged into the last] for columns, [kept…, chunk] for rows
    split = len(kernel.kept)
    merged: Dim = 1
    while kernel.columns and merged != kernel.outer[-1]:
        split -= 1
        merged = shape[kernel.kept[split]] * merged
    order = [*kernel.kept[:split], first, *kernel.kept[split:]]
    packed = Layout.contiguous(tuple(cut[a] for a in order))
    strides = tuple(packed.strides[order.index(a)] if a in order else 0 for a in range(len(shape)))
    parts = Operand(TensorType(kernel.dtype, cut), kernel.temp, Layout(cut, strides))
    body = Graph(region.body.name)
    given = dict(zip(region.body.inputs, region.operands, strict=True))
    env: dict[Value, Value] = {}
    operands = [parts]
    op: Any = node.op
    again = red.Sum if isinstance(op, red.Mean) else type(op)
    made = again(axes=axes, keepdims=op.keepdims)(body.input(parts.type, "parts"))
    if kernel.spread and isinstance(op, red.Mean):  # in chunks it divides, to stay in range; here as a row does, after the last sum
        count = product([shape[a] for a in axes])
        assert isinstance(count, int)
        made = F.div(made, F.scalar(body, count, made.dtype))
    env[node.values[0]] = made if made.dtype is node.values[0].dtype else Cast(dtype=node.values[0].dtype)(made)
    wanted = [v for v in region.body.outputs if region.depends_on_anchor(v)]

    def copy(v: Value) -> Value:
        if v in given and v not in env:
            env[v] = body.input(v.type, v.name)
            operands.append(given[v])
        elif v not in env:
            n = v.node
            made = body.add(n.op, *(copy(x) for x in n.operands), name=n.name, place=n.place)
            env.update(zip(n.values, made.values, strict=True))
        return env[v]

    body.outputs = [copy(v) for v in wanted]
    results = [r for v, r in zip(region.body.outputs, region.results, strict=True) if v in wanted]
    return Region(region.name, body, operands, results, region.place)
