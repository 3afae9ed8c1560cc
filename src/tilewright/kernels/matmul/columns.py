"""Products of matrices with one column each (a matrix times a vector) as reductions: the matrix is read once, as it lies, and not packed.
A row's sum has the bits of a reduction over its products, whatever the number of rows."""
from __future__ import annotations

from ...core.dtypes import f32, f64
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Value
from ...ops.matmul.contractions import Matmul as MatmulOp
from ...ops.pointwise.binary import Mul
from ...ops.rows.reductions import Sum
from ...ops.views import Transpose
from ..launch import Launch
from ..region import Region
from ..rows.reduce import Reduce
from ..rows.rows import Rows
from ..template import Reason, Template


class ColumnProducts(Template):
    """Tails and zero sizes are the reduction's."""

    key = "column_products"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, MatmulOp) or region.tail is not None:
            return Reason("no matmul")
        op, (a, b), out = node.op, node.operands, node.values[0]
        if out.shape[-1] != 1 or op.alpha != 1 or not a.dtype is b.dtype is out.dtype or a.dtype not in (f32, f64):
            return Reason("not a matrix of floats times one column")
        matrix = region.operand(a)
        return None if matrix is not None and 1 in matrix.layout.strides[-2:] else Reason("neither rows nor columns lie along memory")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        assert region.anchor is not None and isinstance(region.anchor.op, MatmulOp)
        body, env = Graph(region.body.name), dict[Value, Value]()
        region.body.copy_into(body, env, region.body.nodes[: region.body.nodes.index(region.anchor)])
        a, b = (env[v] for v in region.anchor.operands)
        products = Mul()(_swapped(a) if region.anchor.op.transpose_a else a, b if region.anchor.op.transpose_b else _swapped(b))
        env[region.anchor.values[0]] = Sum(axes=(len(products.shape) - 1,), keepdims=True)(products)
        region.body.copy_into(body, env)
        body.take_ends(region.body, env)
        made = Region(region.name, body, region.operands, region.results, region.place)
        template: Template = Reduce() if Reduce().matches(made, target) is None else Rows()
        return template.build(made, target)


def _swapped(x: Value) -> Value:
    rank = len(x.shape)
    out: Value = Transpose(perm=(*range(rank - 2), rank - 1, rank - 2))(x)
    return out
