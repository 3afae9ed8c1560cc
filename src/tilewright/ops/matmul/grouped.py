"""Products of rows with the matrix of their group (experts): rows lie in the order of their groups, or each names its matrix."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, Pulled, S, Values, register
from ..families import Bilinear, Composite, N, bf16, f32, f64, i32, i64, require_kind, require_one_dtype
from ..index.indexing import check_indices, require_ids
from ..rows.reductions import wide


def bounds_of(ends: Any, rows: int) -> list[tuple[int, int]]:
    """First and one past the last row of each group: a group never begins before its predecessor's end, nor ends beyond the rows."""
    found, start = [], 0
    for end in np.asarray(ends).tolist():
        stop = min(max(int(end), start), rows)
        found.append((start, stop))
        start = stop
    return found


def some_ends(arrays: list[Any]) -> list[Any]:
    """Drawn numbers as the ends of groups."""
    return [*arrays[:2], np.sort(arrays[2])]


def require_ends(ends: TensorType, groups: Dim | None = None) -> None:
    require(ends.ndim == 1 and ends.dtype in (dt.i32, dt.i64), "ends must be i32 or i64, one a group", ends=ends)
    require(groups is None or ends.shape[0] == groups, "needs one end a matrix", ends=ends, groups=groups)


def group_of_rows(ends: Value, rows: Dim) -> Value:
    """i64[rows]: how many groups end at or before each row, hence its group's number; the number of groups past the last."""
    at = F.iota(ends.node.graph, (rows, 1), 0, dt.i64)
    return F.sum_(F.cast(F.less_equal(F.reshape(F.cast(ends, dt.i64), (1, ends.shape[0])), at), dt.i64), (1,))


@register
class GroupedGemm(Bilinear):
    """Rows of x[M,K] in the order of their groups, times their group's matrix of w[G,K,N] (w[G,N,K] with transpose_b): rows ends[g-1] to
    ends[g] - 1 times w[g]. Rows past the last end give 0."""

    fusion = "contraction"
    transpose_b: bool = False
    samples = [S(f32(9, 5), f32(4, 5, 6), i64(4), low=(-2, -2, 0), high=(2, 2, 9), fit=some_ends),
               S(f32(30, 70), f32(3, 9, 70), i32(3), transpose_b=True, low=(-2, -2, 0), high=(2, 2, 30), fit=some_ends),
               S(f64(7, 3), f64(2, 3, 1), i32(2), low=(-2, -2, 0), high=(2, 2, 7), fit=some_ends),
               S(f32(N, 4), f32(3, 4, 5), i64(3), low=(-2, -2, 0), high=(2, 2, 16), fit=some_ends),
               S(bf16(6, 3), bf16(2, 3, 4), i64(2), low=(-2, -2, 0), high=(2, 2, 6), fit=some_ends),
               S(f32(0, 4), f32(2, 4, 5), i64(2), low=(-2, -2, 0), high=(2, 2, 0)),
               S(f32(3, 0), f32(2, 0, 5), i64(2), low=0, high=3, fit=some_ends)]
    errors = [E(f32(5, 3), f32(4, 2, 6), i64(4), match="inner sizes differ"),
              E(f32(5, 3), f32(4, 6, 3), i64(4), match="inner sizes differ"),
              E(f32(5, 3), f64(4, 3, 6), i64(4), match="operands must have one dtype"),
              E(f32(5, 3), f32(4, 3, 6), i64(5), match="needs one end a matrix"),
              E(f32(5, 3), f32(4, 3, 6), f32(4), match="ends must be i32 or i64")]

    def infer(self, x: TensorType, w: TensorType, ends: TensorType) -> TensorType:
        require_kind((x, w), "f")
        require_one_dtype((x, w))
        ok = x.ndim == 2 and w.ndim == 3
        require(ok and x.shape[1] == w.shape[2 if self.transpose_b else 1], "inner sizes differ, or ranks do not fit", x=x, w=w)
        require_ends(ends, w.shape[0])
        return x.with_shape((x.shape[0], w.shape[1 if self.transpose_b else 2]))

    def ref(self, x: Any, w: Any, ends: Any) -> Any:
        matrices = np.swapaxes(w, 1, 2) if self.transpose_b else w
        out = np.zeros((x.shape[0], matrices.shape[2]))
        for (start, stop), matrix in zip(bounds_of(ends, x.shape[0]), matrices, strict=True):
            out[start:stop] = wide(x[start:stop]) @ wide(matrix)
        return out.astype(x.dtype)

    def flops(self, x: TensorType, w: TensorType, ends: TensorType) -> Dim:
        return 2 * x.numel * w.shape[1 if self.transpose_b else 2]

    def decompose(self, x: Value, w: Value, ends: Value) -> Value:
        """A matrix for each row: the meaning, for transforms without a rule of their own."""
        (m, k), groups, g = x.shape, w.shape[0], x.node.graph
        at = group_of_rows(ends, m)
        none = F.reshape(F.equal(at, F.dim_value(g, groups, dt.i64)), (m, 1))
        own = F.gather(w, F.minimum(at, F.dim_value(g, groups - 1, dt.i64)), 0)
        row = F.matmul(F.reshape(x, (m, 1, k)), own, transpose_b=self.transpose_b)
        return F.where(none, 0, F.reshape(row, (m, row.shape[2])))

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "batch"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, w, ends = inputs
        to_x: Value | None = GroupedGemm(transpose_b=not self.transpose_b)(g, w, ends) if wanted[0] else None
        to_w: Value | None = GroupedOuter()(*((g, x) if self.transpose_b else (x, g)), ends) if wanted[1] else None
        return to_x, to_w, None


@register
class GroupedOuter(Bilinear):
    """[G,K,N]: for each group of rows, x[M,K] of these transposed, times y[M,N] of these: the derivative of `GroupedGemm` to w."""

    samples = [S(f32(9, 5), f32(9, 6), i64(4), low=(-2, -2, 0), high=(2, 2, 9), fit=some_ends),
               S(f32(90, 17), f32(90, 70), i32(3), low=(-2, -2, 0), high=(2, 2, 90), fit=some_ends),
               S(f64(7, 3), f64(7, 1), i32(2), low=(-2, -2, 0), high=(2, 2, 7), fit=some_ends),
               S(f32(N, 4), f32(N, 5), i64(3), low=(-2, -2, 0), high=(2, 2, 16), fit=some_ends),
               S(bf16(6, 3), bf16(6, 4), i64(2), low=(-2, -2, 0), high=(2, 2, 6), fit=some_ends),
               S(f32(0, 4), f32(0, 5), i64(2), low=(-2, -2, 0), high=(2, 2, 0))]
    errors = [E(f32(5, 3), f32(4, 6), i64(4), match="row counts differ"),
              E(f32(5, 3), f64(5, 6), i64(4), match="operands must have one dtype"),
              E(f32(5, 3), f32(5, 6), f32(4), match="ends must be i32 or i64")]

    def infer(self, x: TensorType, y: TensorType, ends: TensorType) -> TensorType:
        require_kind((x, y), "f")
        require_one_dtype((x, y))
        require(x.ndim == y.ndim == 2 and x.shape[0] == y.shape[0], "row counts differ, or ranks do not fit", x=x, y=y)
        require_ends(ends)
        return x.with_shape((ends.shape[0], x.shape[1], y.shape[1]))

    def ref(self, x: Any, y: Any, ends: Any) -> Any:
        parts = [wide(x[a:b]).T @ wide(y[a:b]) for a, b in bounds_of(ends, x.shape[0])]
        return np.stack(parts).astype(x.dtype) if parts else np.zeros((0, x.shape[1], y.shape[1]), x.dtype)

    def flops(self, x: TensorType, y: TensorType, ends: TensorType) -> Dim:
        return 2 * x.numel * y.shape[1]

    def decompose(self, x: Value, y: Value, ends: Value) -> Value:
        """The rows of the other groups as zeros."""
        (m, k), groups = x.shape, ends.shape[0]
        at = F.reshape(group_of_rows(ends, m), (1, 1, m))
        own = F.equal(at, F.iota(x.node.graph, (groups, 1, 1), 0, dt.i64))
        return F.matmul(F.where(own, F.reshape(F.transpose(x, (1, 0)), (1, k, m)), 0), y)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule == "batch"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, y, ends = inputs
        to_x: Value | None = GroupedGemm(transpose_b=True)(y, g, ends) if wanted[0] else None
        to_y: Value | None = GroupedGemm()(x, g, ends) if wanted[1] else None
        return to_x, to_y, None


@register
class GroupedMatmul(Composite):
    """Row i of x times matrix ids[i] of a stack: out[i] = x[i] @ w[ids[i]] (w[ids[i]] transposed with transpose_b)."""

    transpose_b: bool = False
    faults = True
    samples = [S(f32(5, 3), f32(4, 3, 6), i64(5), low=(-2, -2, 0), high=(2, 2, 3)),
               S(f64(2, 3), f64(2, 3, 1), i32(2), low=(-2, -2, 0), high=(2, 2, 1)),
               S(f32(6, 3), f32(2, 7, 3), i64(6), transpose_b=True, low=(-2, -2, 0), high=(2, 2, 1)),
               S(f32(N, 4), f32(3, 4, 5), i64(N), low=(-2, -2, 0), high=(2, 2, 2))]
    errors = [E(f32(5, 3), f32(4, 2, 6), i64(5), match="inner sizes differ"),
              E(f32(5, 3), f32(4, 3, 6), i64(4), match="needs one index a row"),
              E(f32(5, 3), f32(4, 3, 6), f32(5), match="indices must be integers")]

    def infer(self, x: TensorType, w: TensorType, ids: TensorType) -> TensorType:
        require_ids(ids)
        require(x.ndim == 2 and ids.shape == x.shape[:1], "needs one index a row", x=x, ids=ids)
        return GroupedGemm(transpose_b=self.transpose_b).infer(x, w, TensorType(dt.i64, w.shape[:1]))

    def ref(self, x: Any, w: Any, ids: Any) -> Any:
        check_indices(self.name, ids, w.shape[0], 0)
        matrices = np.swapaxes(w, 1, 2) if self.transpose_b else w
        return np.einsum("mk,mkn->mn", wide(x), wide(matrices)[ids]).astype(x.dtype)

    def decompose(self, x: Value, w: Value, ids: Value) -> Value:
        """Rows in the order of their matrices, one product, and back. The ids go through a lookup, which checks them."""
        g, groups = x.node.graph, w.shape[0]
        known = F.gather(F.iota(g, (groups,), 0, dt.i32), ids, 0)
        order = F.one("arg_sort", known, axis=0, dtype=dt.i32)
        every = F.iota(g, (groups, 1), 0, dt.i32)
        ends = F.sum_(F.cast(F.less_equal(F.reshape(known, (1, x.shape[0])), every), dt.i32), (1,))
        out = GroupedGemm(transpose_b=self.transpose_b)(F.gather(x, order, 0), w, ends)
        return F.gather(out, F.one("arg_sort", order, axis=0, dtype=dt.i32), 0)

    def flops(self, x: TensorType, w: TensorType, ids: TensorType) -> Dim:
        return 2 * x.numel * w.shape[1 if self.transpose_b else 2]
