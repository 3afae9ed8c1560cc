"""Products of one column or of one row with a matrix of the call (GEMV) as reductions: the matrix is read once, as it lies, whichever way
that is, and not packed. An element has the bits of a reduction over its products, whatever the number of the others. Constant matrices
are packed (`matmul.py`), and few rows or columns of the call beside one another are products of tiles (`narrow.py`)."""
from __future__ import annotations

from ...core.dtypes import compute_dtype, f32, f64
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


class VectorProducts(Template):
    """Tails and zero sizes are the reduction's."""

    key = "vector_products"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, MatmulOp) or region.tail is not None:
            return Reason("no matmul")
        op, (a, b), out = node.op, node.operands, node.values[0]
        if op.alpha != 1 or not a.dtype is b.dtype is out.dtype or compute_dtype(a.dtype) not in (f32, f64):
            return Reason("not floats of one dtype")
        column = out.shape[-1] == 1
        if not column and (out.shape[-2] != 1 or out.shape[:-2] != b.shape[:-2]):
            return Reason("neither one column nor one row for every matrix")
        matrix = region.operand(a if column else b)
        if matrix is None or (matrix.data is not None and not column):
            return Reason("the matrix is a constant, or computed in the region")
        return None if 1 in matrix.layout.strides[-2:] else Reason("neither rows nor columns lie along memory")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        assert isinstance(node.op, MatmulOp)
        body, env = Graph(region.body.name), dict[Value, Value]()
        region.body.copy_into(body, env, region.body.nodes[: region.body.nodes.index(node)])
        a, b = (env[v] for v in node.operands)
        if node.values[0].shape[-1] == 1:  # [M, K] by a row [1, K]
            products, axis = Mul()(_swapped(a) if node.op.transpose_a else a, b if node.op.transpose_b else _swapped(b)), -1
        else:  # a column [K, 1] by [K, N]
            products, axis = Mul()(a if node.op.transpose_a else _swapped(a), _swapped(b) if node.op.transpose_b else b), -2
        env[node.values[0]] = Sum(axes=(len(products.shape) + axis,), keepdims=True)(products)
        region.body.copy_into(body, env)
        body.take_ends(region.body, env)
        made = Region(region.name, body, region.operands, region.results, region.place)
        template: Template = Reduce() if Reduce().matches(made, target) is None else Rows()
        return template.build(made, target)


def _swapped(x: Value) -> Value:
    rank = len(x.shape)
    out: Value = Transpose(perm=(*range(rank - 2), rank - 1, rank - 2))(x)
    return out
