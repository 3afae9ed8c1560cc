"""Writing elements at indices along one axis, every row with indices of its own: the transpose of gathering along an axis, and overwriting.

Updates of one element are taken in the order of the indices along the axis, first to last."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, bounds
from ...core.errors import require
from ...core.needs import require_room
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Values, register
from ..families import General, N, bf16, boolean, f32, f64, i32, i64, require_axis, require_kind, require_one_dtype
from .indexing import GatherAlongAxis, check_indices, require_ids


def claimed(x: TensorType, ids: TensorType, axis: int) -> bool:
    """Whether updates that overwrite find the last one of an element by a number for each element of x: of one a row there is no other,
    and of few that would be more than they are."""
    return ids.shape[axis] == 1 or bounds(x.numel)[1] <= 8 * bounds(ids.numel)[0]


@register
class ScatterAlong(General):
    """x with out[i, ids[i,j,k], k] += updates[i,j,k] for every j in order (with `axis` in the middle), or = with mode "set", of which the
    last one stays. Other dims of ids are not longer than x's."""

    complex = "parts"
    faults = True
    axis: int
    mode: str = "add"
    cases = True
    samples = [S(f32(3, 4), i64(3, 5), f32(3, 5), axis=1, low=(-2, 0, -2), high=(2, 3, 2)),
               S(f32(3, 4), i64(5, 4), f32(5, 4), axis=0, low=(-2, 0, -2), high=(2, 2, 2)),
               S(f64(3, 4, 5), i32(2, 6, 5), f64(2, 6, 5), axis=1, low=(-2, 0, -2), high=(2, 3, 2)),
               S(f32(N, 70), i64(N, 33), f32(N, 33), axis=1, low=(-2, 0, -2), high=(2, 69, 2)),
               S(bf16(3, 40), i64(3, 50), bf16(3, 50), axis=1, low=(-2, 0, -2), high=(2, 39, 2)),
               S(i64(3, 4), i64(2, 5), i64(2, 5), axis=1, low=(-2, 0, -2), high=(2, 3, 2)),
               S(f32(3, 4), i64(3, 6), f32(3, 6), axis=1, mode="set", low=(-2, 0, -2), high=(2, 3, 2)),
               S(boolean(4, 3), i64(2, 3), boolean(2, 3), axis=0, mode="set", low=0, high=3),
               S(f64(70, 3), i64(20, 2), f64(20, 2), axis=0, mode="set", low=(-2, 0, -2), high=(2, 69, 2)),
               S(f32(3, 4), i64(3, 0), f32(3, 0), axis=1), S(f32(0, 4), i64(0, 2), f32(0, 2), axis=1)]
    errors = [E(f32(3, 4), i64(3), f32(3), axis=1, match="x and ids must have one rank"),
              E(f32(3, 4), i64(4, 1), f32(4, 1), axis=1, match="ids must not be longer than x on axis 0, got x=3, ids=4"),
              E(f32(3), f32(3), f32(3), axis=0, match="indices must be integers"), E(f32(3), i64(2), f64(2), axis=0, match="one dtype"),
              E(f32(3), i64(2), f32(1), axis=0, match="updates must have the shape of ids"),
              E(f32(3), i64(2), f32(2), axis=0, mode="sub", match="mode must be add or set, got mode=sub"),
              E(boolean(3), i64(2), boolean(2), axis=0, match="needs float or integer operands")]

    def infer(self, x: TensorType, ids: TensorType, updates: TensorType) -> TensorType:
        require(self.mode in ("add", "set"), "mode must be add or set", mode=self.mode)
        require_kind((x, updates), "fiub" if self.mode == "set" else "fiu")
        require_one_dtype((x, updates))
        require_axis(self.axis, x.ndim)
        require_ids(ids)
        require(x.ndim == ids.ndim, "x and ids must have one rank", x=x, ids=ids)
        require(updates.shape == ids.shape, "updates must have the shape of ids", updates=updates, ids=ids)
        for a, (d, n) in enumerate(zip(x.shape, ids.shape, strict=True)):
            require_room(0 if a == self.axis else d - n, "ids must not be longer than x on axis {a}", a=a, x=d, ids=n)
        return x

    def ref(self, x: Any, ids: Any, updates: Any) -> Any:
        check_indices(self.name, ids, x.shape[self.axis], self.axis)
        out = x.astype(np.float64 if x.dtype.kind not in "iub" else x.dtype)
        for at in np.ndindex(*ids.shape):
            place = (*at[: self.axis], ids[at], *at[self.axis + 1 :])
            out[place] = updates[at] if self.mode == "set" else out[place] + updates[at].astype(out.dtype)
        return out.astype(x.dtype)

    def flops(self, x: TensorType, ids: TensorType, updates: TensorType) -> Dim:
        return updates.numel

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g, ids, updates = cotangents[0], inputs[1], inputs[2]
        assert g is not None
        back: Value = GatherAlongAxis(axis=self.axis)(g, ids)
        if self.mode == "add":
            return g, None, back
        kept: Value = ScatterAlong(axis=self.axis, mode="set")(g, ids, F.zeros(updates))
        return kept, None, F.mul(back, self._last(inputs[0], ids, updates)) if wanted[2] else None

    def _last(self, x: Value, ids: Value, updates: Value) -> Value:
        """1 for updates that stay, 0 for those that a later one overwrites."""
        graph = x.node.graph
        order = F.iota(graph, ids.shape, self.axis, dt.i64)
        stays: Value = ScatterAlong(axis=self.axis, mode="set")(F.full(graph, x.shape, -1, dt.i64), ids, order)
        found: Value = GatherAlongAxis(axis=self.axis)(stays, ids)
        return F.cast(F.equal(found, order), updates.dtype)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, updates = (F.zeros(inputs[i]) if (t := tangents[i]) is None else t for i in (0, 2))
        return (self(x, inputs[1], updates),)
