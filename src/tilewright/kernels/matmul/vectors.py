"""Products of one or two columns, or of one row with a matrix of the call (GEMV), as reductions: the matrix is read as it lies, whichever
way that is, and not packed. Tiles of rows and columns would leave most lanes of registers empty. An element has the bits of a reduction
over its products, whatever the number of the others."""
from __future__ import annotations

import numpy as np

from ...core.dims import at_least, product
from ...core.dtypes import compute_dtype, f32, f64
from ...core.target_spec import TargetSpec
from ...ir.graph import Graph, Value
from ...ops.matmul.contractions import Matmul as MatmulOp
from ...ops.pointwise.binary import Mul
from ...ops.rows.reductions import Sum
from ...ops.views import Reshape, Transpose
from ..launch import Launch
from ..region import Region
from ..rows.reduce import Reduce
from ..rows.rows import Rows
from ..template import Foreign, Reason, Template

FEWEST_ROWS, SHORTEST = 64, 16  # the fewest rows and the shortest K of a product of two columns


class VectorProducts(Template):
    """Tails and zero sizes are the reduction's."""

    key = "vector_products"

    def matches(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.anchor
        if node is None or not isinstance(node.op, MatmulOp) or region.tail is not None:
            return Foreign("no matmul")
        (a, b), out = node.operands, node.values[0]
        if not a.dtype is b.dtype is out.dtype or compute_dtype(out.dtype) not in (f32, f64):
            return Reason("not floats of one dtype")
        if out.dtype.itemsize < 4 and node.op.alpha != 1:
            return Reason("a factor would be rounded")
        m, n = out.shape[-2:]
        k = a.shape[-2 if node.op.transpose_a else -1]
        columns = n == 1 or (n == 2 and at_least(m, FEWEST_ROWS) and at_least(k, SHORTEST))
        if not columns and (m != 1 or product(out.shape[:-2]) != product(b.shape[:-2])):
            return Reason("neither few columns nor one row for every matrix")
        matrix = region.operand(a if columns else b)
        if matrix is None or (matrix.data is not None and not columns):
            return Reason("the matrix is a constant, or computed in the region")
        return None if 1 in matrix.layout.strides[-2:] else Reason("neither rows nor columns lie along memory")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        assert isinstance(node.op, MatmulOp)
        body, env = Graph(region.body.name), dict[Value, Value]()
        region.body.copy_into(body, env, region.body.nodes[: region.body.nodes.index(node)])
        a, b = (env[v] for v in node.operands)
        a, b = _swapped(a) if node.op.transpose_a else a, b if node.op.transpose_b else _swapped(b)  # [M, K] and [N, K]
        products = Mul()(_with_axis(a, -2), _with_axis(b, -3))
        total = Sum(axes=(len(products.shape) - 1,))(products)
        if node.op.alpha != 1:
            total = Mul()(total, body.constant(np.asarray(node.op.alpha, total.dtype.np), "alpha"))
        env[node.values[0]] = total
        region.body.copy_into(body, env)
        body.take_ends(region.body, env)
        made = Region(region.name, body, region.operands, region.results, region.place)
        template: Template = Reduce() if Reduce().matches(made, target) is None else Rows()
        return template.build(made, target)


def _with_axis(x: Value, axis: int) -> Value:
    """x with an axis of one element, counted from behind in the result."""
    at = len(x.shape) + 1 + axis
    out: Value = Reshape(shape=(*x.shape[:at], 1, *x.shape[at:]))(x)
    return out


def _swapped(x: Value) -> Value:
    rank = len(x.shape)
    out: Value = Transpose(perm=(*range(rank - 2), rank - 1, rank - 2))(x)
    return out
