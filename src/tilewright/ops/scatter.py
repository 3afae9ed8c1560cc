"""Adding rows at indices: the transpose of the gathers."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.dims import Dim
from ..core.errors import require
from ..ir.graph import Value
from ..ir.types import TensorType
from . import functions as F
from .base import E, MaybeValues, S, Values, register
from .families import General, N, bf16, f32, f64, i32, i64, require_axis, require_kind, require_one_dtype, show_shape
from .indexing import check_indices, merge_cases, require_ids


@register
class ScatterAdd(General):
    """x with `updates` added at `ids` along an axis: for every index i, out[..., ids[i], ...] += updates[..., i, ...]. Updates of one row
    are added in the order of the indices, so the sum has the same bits every time."""

    axis: int = 0
    samples = [S(f32(3, 4), i64(5), f32(5, 4), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(4, 3), i32(2, 2), f32(4, 2, 2), axis=1, low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(7), i64(3, 4), f32(3, 4), low=(-2, 0, -2), high=(2, 6, 2)), S(f64(3), i64(), f64(), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(5, 70), i64(N), f32(N, 70), low=(-2, 0, -2), high=(2, 4, 2)), S(f32(3, 2), i64(0), f32(0, 2)),
               S(i64(4, 2), i64(3), i64(3, 2), low=(-2, 0, -2), high=(2, 3, 2)),
               S(bf16(3, 2), i64(4), bf16(4, 2), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(2, 3, N), i64(5), f32(2, 5, N), axis=1, low=(-2, 0, -2), high=(2, 2, 2))]
    errors = [E(f32(3, 4), f32(5), f32(5, 4), match="indices must be integers, got ids=f32"),
              E(f32(3), i64(2), f32(2), axis=1, match="axis must be in 0..0, got axis=1"),
              E(f32(3, 4), i64(5), f32(5, 3), match=r"updates must have shape \[5,4\], got updates=f32\[5,3\]"),
              E(f32(3), i64(2), f64(2), match="operands must have one dtype")]

    def infer(self, x: TensorType, ids: TensorType, updates: TensorType) -> TensorType:
        require_kind((x, updates), "fiu")
        require_one_dtype((x, updates))
        require_axis(self.axis, x.ndim)
        require_ids(ids)
        want = (*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :])
        require(updates.shape == want, "updates must have shape {want}", want=show_shape(want), updates=updates)
        return x

    def ref(self, x: Any, ids: Any, updates: Any) -> Any:
        check_indices(self.name, ids, x.shape[self.axis], self.axis)
        out = np.moveaxis(x, self.axis, 0).astype(np.float64 if x.dtype.kind not in "iu" else x.dtype)
        places = tuple(range(self.axis, self.axis + ids.ndim))
        np.add.at(out, ids, np.moveaxis(updates, places, tuple(range(ids.ndim))).astype(out.dtype))
        return np.ascontiguousarray(np.moveaxis(out, 0, self.axis)).astype(x.dtype)

    def flops(self, x: TensorType, ids: TensorType, updates: TensorType) -> Dim:
        return updates.numel

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g = cotangents[0]
        assert g is not None
        return g, None, F.gather(g, inputs[1], self.axis) if wanted[2] else None

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, updates = (F.zeros(inputs[i]) if (t := tangents[i]) is None else t for i in (0, 2))
        return (self(x, inputs[1], updates),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x, updates = (F.broadcast_batch(inputs[i], batched[i], size) for i in (0, 2))
        ids = inputs[1]
        if not batched[1]:
            return (ScatterAdd(axis=self.axis + 1)(x, ids, updates),)
        rows, merged = merge_cases(x, ids, self.axis)
        k, lead = len(ids.shape) - 1, self.axis
        picked = [0, *range(1 + lead, 1 + lead + k)]
        order = (*picked, *(a for a in range(len(updates.shape)) if a not in picked))
        out: Value = ScatterAdd(axis=0)(rows, merged, F.transpose(updates, order))
        apart = F.reshape(out, (size, x.shape[lead + 1], *out.shape[1:]))
        back = (0, *range(2, 2 + lead), 1, *range(2 + lead, len(apart.shape)))
        return (F.transpose(apart, back),)
