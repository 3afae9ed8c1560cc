"""Writing rows at indices: adding them (the transpose of the gathers), overwriting, and combining by product, maximum or minimum.

Updates of one row are taken in the order of the indices, first to last, so results have the same bits every time: an overwritten row holds
its last update.

Writing elements at indices along one axis, every row with indices of its own: the transpose of gathering along an axis, and overwriting.

Updates of one element are taken in the order of the indices along the axis, first to last.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, bounds, product
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, Pulled, S, Values, register
from ..families import Composite, General, N, bf16, boolean, f32, f64, i32, i64, require_axis, require_kind, require_one_dtype, show_shape
from .indexing import GatherAlongAxis, check_indices, merge_cases, require_ids


def some_order(arrays: list[Any]) -> list[Any]:
    """Operands whose second one is an order of random rows of the first, and whose fourth one names rows of the third."""
    x, words, updates, *read = arrays
    rows = np.sort(np.abs(words) % len(x))
    named = [np.abs(ids) % len(updates) if i == 0 else ids for i, ids in enumerate(read)]
    return [x, rows << 32 | np.argsort(words, kind="stable"), updates, *named]


BAD = [E(f32(3, 4), f32(5), f32(5, 4), match="indices must be integers, got ids=f32"),
       E(f32(3), i64(2), f32(2), axis=1, match="axis must be in 0..0, got axis=1"),
       E(f32(3, 4), i64(5), f32(5, 3), match=r"updates must have shape \[5,4\], got updates=f32\[5,3\]"),
       E(f32(3), i64(2), f64(2), match="operands must have one dtype")]


class ScatterRows(General):
    """x[..., n, ...], ids of any shape, updates[..., *ids.shape, ...]. Subclasses declare `axis`."""

    faults = True
    kinds: ClassVar[str] = "fiu"
    axis: int

    def infer(self, x: TensorType, ids: TensorType, updates: TensorType) -> TensorType:
        require_kind((x, updates), self.kinds)
        require_one_dtype((x, updates))
        require_axis(self.axis, x.ndim)
        require_ids(ids)
        want = (*x.shape[: self.axis], *ids.shape, *x.shape[self.axis + 1 :])
        require(updates.shape == want, "updates must have shape {want}", want=show_shape(want), updates=updates)
        return x

    def combine(self, out: Any, ids: Any, updates: Any) -> None:
        """out[ids[i]] takes updates[i] for every i in order, in place (NumPy)."""
        raise NotImplementedError

    def ref(self, x: Any, ids: Any, updates: Any) -> Any:
        check_indices(self.name, ids, x.shape[self.axis], self.axis)
        out = np.moveaxis(x, self.axis, 0).astype(np.float64 if x.dtype.kind not in "iub" else x.dtype)
        places = tuple(range(self.axis, self.axis + ids.ndim))
        self.combine(out, ids, np.moveaxis(updates, places, tuple(range(ids.ndim))).astype(out.dtype))
        return np.ascontiguousarray(np.moveaxis(out, 0, self.axis)).astype(x.dtype)

    def flops(self, x: TensorType, ids: TensorType, updates: TensorType) -> Dim:
        return updates.numel

    def _along(self, axis: int) -> Any:
        changed: dict[str, Any] = {"axis": axis}
        return dataclasses.replace(self, **changed)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        x, updates = (F.broadcast_batch(inputs[i], batched[i], size) for i in (0, 2))
        ids = inputs[1]
        if not batched[1]:
            return (self._along(self.axis + 1)(x, ids, updates),)
        rows, merged = merge_cases(x, ids, self.axis)
        k, lead = len(ids.shape) - 1, self.axis
        picked = [0, *range(1 + lead, 1 + lead + k)]
        order = (*picked, *(a for a in range(len(updates.shape)) if a not in picked))
        out: Value = self._along(0)(rows, merged, F.transpose(updates, order))
        apart = F.reshape(out, (size, x.shape[lead + 1], *out.shape[1:]))
        back = (0, *range(2, 2 + lead), 1, *range(2 + lead, len(apart.shape)))
        return (F.transpose(apart, back),)


@register
class ScatterAdd(ScatterRows):
    """x with `updates` added at `ids` along an axis: for every index i, out[..., ids[i], ...] += updates[..., i, ...]. Updates of one row
    are added in the order of the indices, so the sum has the same bits every time."""

    complex = "parts"
    axis: int = 0
    samples = [S(f32(3, 4), i64(5), f32(5, 4), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(4, 3), i32(2, 2), f32(4, 2, 2), axis=1, low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(7), i64(3, 4), f32(3, 4), low=(-2, 0, -2), high=(2, 6, 2)), S(f64(3), i64(), f64(), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(5, 70), i64(N), f32(N, 70), low=(-2, 0, -2), high=(2, 4, 2)), S(f32(3, 2), i64(0), f32(0, 2)),
               S(i64(4, 2), i64(3), i64(3, 2), low=(-2, 0, -2), high=(2, 3, 2)),
               S(bf16(3, 2), i64(4), bf16(4, 2), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(2, 3, N), i64(5), f32(2, 5, N), axis=1, low=(-2, 0, -2), high=(2, 2, 2))]
    errors = BAD

    def combine(self, out: Any, ids: Any, updates: Any) -> None:
        np.add.at(out, ids, updates)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return g, None, F.gather(g, inputs[1], self.axis) if wanted[2] else None

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, updates = (F.zeros(inputs[i]) if (t := tangents[i]) is None else t for i in (0, 2))
        return (self(x, inputs[1], updates),)


MODES: dict[str, Any] = {"mul": np.multiply, "max": np.maximum, "min": np.minimum}


@register
class Scatter(ScatterRows):
    """x with rows at `ids` overwritten (`mode="set"`: of several updates of a row the last one stays) or combined with the updates by
    product, maximum or minimum ("mul", "max", "min")."""

    axis: int = 0
    mode: str = "set"
    kinds = "fiub"
    samples = [S(f32(3, 4), i64(5), f32(5, 4), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(5, 70), i64(N), f32(N, 70), low=(-2, 0, -2), high=(2, 4, 2)),
               S(f64(7), i32(3, 2), f64(3, 2), low=(-2, 0, -2), high=(2, 6, 2)), S(boolean(4), i64(2), boolean(2), low=0, high=3),
               S(i64(2, 4, 2), i64(3), i64(2, 3, 2), axis=1, low=(-2, 0, -2), high=(2, 3, 2)),
               S(f32(3, 2), i64(0), f32(0, 2)), S(bf16(3, 2), i64(4), bf16(4, 2), low=(-2, 0, -2), high=(2, 2, 2)),
               S(f32(3, 4), i64(5), f32(5, 4), mode="max", low=(-2, 0, -2), high=(2, 2, 2)),
               S(f64(4), i64(6), f64(6), mode="min", low=(-2, 0, -2), high=(2, 3, 2)),
               S(f64(2, 3), i64(5), f64(2, 5), axis=1, mode="mul", low=(-2, 0, -2), high=(2, 2, 2)),
               S(i64(4), i64(6), i64(6), mode="mul", low=(-2, 0, -2), high=(2, 3, 2))]
    errors = [*BAD, E(f32(3), i64(2), f32(2), mode="sub", match="mode must be one of set mul max min, got mode=sub"),
              E(boolean(3), i64(2), boolean(2), mode="mul", match="bools can only be set, got mode=mul")]

    def infer(self, x: TensorType, ids: TensorType, updates: TensorType) -> TensorType:
        require(self.mode in ("set", *MODES), "mode must be one of set mul max min", mode=self.mode)
        require(self.mode == "set" or not x.dtype.is_bool, "bools can only be set", mode=self.mode)
        return super().infer(x, ids, updates)

    def combine(self, out: Any, ids: Any, updates: Any) -> None:
        if self.mode != "set":
            MODES[self.mode].at(out, ids, updates)
            return
        for at in np.ndindex(*ids.shape):
            out[ids[at]] = updates[at]

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        ids = inputs[1]
        share, by_x, by_updates = self._partials(inputs, output)
        g = g if share is None else F.mul(g, share)
        return F.mul(g, by_x), None, F.mul(F.gather(g, ids, self.axis), by_updates) if wanted[2] else None

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, updates = (F.zeros(inputs[i]) if (t := tangents[i]) is None else t for i in (0, 2))
        share, by_x, by_updates = self._partials(inputs, outputs[0])
        total = F.scatter_add(F.mul(x, by_x), inputs[1], F.mul(updates, by_updates), self.axis)
        return (total if share is None else F.mul(total, share),)

    def _partials(self, inputs: Values, out: Value) -> tuple[Value | None, Value, Value]:
        """(a factor of each result or None, the derivative by x, by updates)."""
        x, ids, updates = inputs
        axis = self.axis
        if self.mode == "set":
            return None, Scatter(axis=axis)(F.full(x.node.graph, x.shape, 1, x.dtype), ids, F.zeros(updates)), self._last(x, ids, updates)
        if self.mode == "mul":
            return (None, *self._products(x, ids, updates))
        by_x = F.cast(F.equal(x, out), x.dtype)  # ties share
        by_updates = F.cast(F.equal(updates, F.gather(out, ids, axis)), x.dtype)
        return F.one("reciprocal", F.maximum(F.scatter_add(by_x, ids, by_updates, axis), 1)), by_x, by_updates

    def _last(self, x: Value, ids: Value, updates: Value) -> Value:
        """1 for updates that stay, 0 for those that a later one overwrites."""
        graph, n = x.node.graph, product(ids.shape)
        order = F.reshape(F.iota(graph, (n,), 0, dt.i64), ids.shape)
        stays: Value = Scatter()(F.full(graph, (x.shape[self.axis],), -1, dt.i64), ids, order)
        hit = F.cast(F.equal(F.gather(stays, ids, 0), order), updates.dtype)
        after = len(x.shape) - self.axis - 1
        return F.reshape(hit, (*ids.shape, *(1,) * after))

    def _products(self, x: Value, ids: Value, updates: Value) -> tuple[Value, Value]:
        """The product of all other factors, for each: by division where no factor is 0, else 0 unless it is the only zero."""
        axis = self.axis
        zero_x, zero_u = (F.cast(F.equal(v, 0), x.dtype) for v in (x, updates))
        zeros = F.scatter_add(zero_x, ids, zero_u, axis)
        safe_x, safe_u = (F.where(F.equal(v, 0), 1, v) for v in (x, updates))
        whole: Value = dataclasses.replace(self)(safe_x, ids, safe_u)  # the product of the factors that are not 0

        def others(safe: Value, zero: Value, whole: Value, zeros: Value) -> Value:
            return F.where(F.equal(zeros, zero), F.div(whole, safe), 0)

        return others(safe_x, zero_x, whole, zeros), others(safe_u, zero_u, F.gather(whole, ids, axis), F.gather(zeros, ids, axis))


@register
class IndexOrder(Composite):
    """Words (row << 32 | place) of the indices in the order of the rows that they name, equal ones in the order of their places: what
    scatters with the same indices share. With `steps` an index names an element along `axis`, and its row is that element's place in
    memory: the position of the index, with the index itself on the axis, times the steps."""

    whole = True
    faults = True
    rows: Dim
    axis: int = 0
    steps: tuple[int, ...] = ()
    samples = [S(i64(7), rows=4, low=0, high=3), S(i32(3, 5), rows=300, low=0, high=299), S(i64(N), rows=9, low=0, high=8),
               S(i64(3, 5), rows=4, axis=1, steps=(4, 1), low=0, high=3), S(i32(2, 5, 3), rows=9, axis=1, steps=(27, 3, 1), low=0, high=8)]
    errors = [E(f32(5), rows=3, match="indices must be integers"), E(i64(5), rows=0, match="rows must be at least 1, got rows=0"),
              E(i64(5), rows=3, steps=(3, 1), match="needs a step for each axis of the indices, got steps=\\(3, 1\\)")]

    def infer(self, ids: TensorType) -> TensorType:
        require_ids(ids)
        require(self.rows != 0, "rows must be at least 1", rows=self.rows)
        require(len(self.steps) in (0, ids.ndim), "needs a step for each axis of the indices", steps=self.steps)
        return TensorType(dt.i64, (ids.numel,))

    def ref(self, ids: Any) -> Any:
        assert isinstance(self.rows, int)
        check_indices(self.name, ids, self.rows, 0)
        row = ids.astype(np.int64)
        if self.steps:
            places = [row if a == self.axis else at for a, at in enumerate(np.indices(ids.shape))]
            row = np.asarray(sum(at * step for at, step in zip(places, self.steps, strict=True)))
        return np.sort(row.reshape(-1) << 32 | np.arange(ids.size))

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is None or target.kind != "cuda"

    def decompose(self, ids: Value) -> Value:
        graph, count = ids.node.graph, product(ids.shape)
        rows = F.gather(F.iota(graph, (self.rows,), 0, dt.i64), F.reshape(ids, (count,)), 0)
        if self.steps:
            named = F.reshape(rows, ids.shape)
            places = [named if a == self.axis else F.iota(graph, ids.shape, a, dt.i64) for a in range(len(self.steps))]
            rows = F.reshape(functools.reduce(F.add, (F.mul(p, step) for p, step in zip(places, self.steps, strict=True))), (count,))
        high = F.one("bitwise_left_shift", rows, F.scalar(graph, 32, dt.i64))
        words: Value = F.apply("sort", F.add(high, F.iota(graph, (count,), 0, dt.i64)), axis=0)[0]
        return words


@register
class ScatterOrdered(Composite):
    """`ScatterAdd` (mode "add") or `Scatter` of rows [n, w] into x [m, w] at indices that an `index_order` gives. With `ids` [n] the rows
    are those that ids name of a table [t, w], each times its factor ([n, 1] or [n, w]) where there is one: messages along the edges of a
    graph, which are not written."""

    whole = True
    faults = True
    mode: str = "add"
    samples = [S(f32(5, 6), i64(7), f32(7, 6), fit=some_order), S(bf16(3, 2), i64(4), bf16(4, 2), fit=some_order),
               S(i64(4, 2), i64(9), i64(9, 2), mode="mul", fit=some_order), S(f32(5, 1), i64(N), f32(N, 1), mode="max", fit=some_order),
               S(f64(5, 2), i64(9), f64(9, 2), mode="set", fit=some_order), S(f32(5, 3), i64(7), f32(4, 3), i64(7), fit=some_order),
               S(f32(5, 8), i64(N), f32(4, 8), i32(N), f32(N, 1), fit=some_order),
               S(f64(5, 3), i64(7), f64(4, 3), i64(7), f64(7, 3), mode="max", fit=some_order)]
    errors = [E(f32(3), i64(2), f32(2), match="needs rows"), E(f32(3, 2), i64(2), f64(2, 2), match="operands must have one dtype"),
              E(f32(3, 2), i64(2), f32(2, 2), mode="sub", match="mode must be one of add set mul max min, got mode=sub"),
              E(f32(3, 2), i64(2), f32(4, 2), match="needs rows"), E(f32(3, 2), i64(2), f32(4, 2), i64(3), match="needs rows"),
              E(f32(3, 2), i64(2), f32(4, 2), f32(2), match="indices must be integers"),
              E(f32(3, 2), i64(2), f32(4, 2), i64(2), f32(2, 3), match="factors must be")]

    def infer(self, x: TensorType, words: TensorType, updates: TensorType, *read: TensorType) -> TensorType:
        require(self.mode in ("add", "set", *MODES), "mode must be one of add set mul max min", mode=self.mode)
        require_one_dtype((x, updates, *read[1:]))
        for ids in read[:1]:
            require_ids(ids)
        rows = read[0].shape if read else updates.shape[:1]
        require(x.ndim == updates.ndim == 2 and rows == words.shape and updates.shape[1] == x.shape[1],
                "needs rows [m, w], words [n] and updates [n, w], or a table [t, w] and ids [n]", x=x, words=words, updates=updates)
        for factor in read[1:]:
            require(factor.shape in ((*words.shape, 1), (*words.shape, x.shape[1])), "factors must be [n, 1] or [n, w]", factor=factor)
        return x

    @property
    def plain(self) -> ScatterRows:
        return ScatterAdd() if self.mode == "add" else Scatter(mode=self.mode)

    def ref(self, x: Any, words: Any, updates: Any, *read: Any) -> Any:
        for ids in read[:1]:
            check_indices("gather", ids, len(updates), 0)
            updates = np.take(updates, ids, axis=0)
        for factor in read[1:]:
            updates = updates * factor
        return self.plain.ref(x, words >> 32, updates[words & (1 << 32) - 1])

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is None or target.kind != "cuda"

    def decompose(self, x: Value, words: Value, updates: Value, *read: Value) -> Value:
        graph = x.node.graph
        row = F.one("bitwise_right_shift", words, F.scalar(graph, 32, dt.i64))
        place = F.one("bitwise_and", words, F.scalar(graph, (1 << 32) - 1, dt.i64))
        for ids in read[:1]:
            updates = F.gather(updates, ids, 0)
        for factor in read[1:]:
            updates = F.mul(updates, factor)
        made: Value = self.plain(x, row, F.gather(updates, place, 0))
        return made

    def flops(self, x: TensorType, words: TensorType, updates: TensorType, *read: TensorType) -> Dim:
        return words.numel * x.shape[1] * max(1, len(read))


def some_places(arrays: list[Any]) -> list[Any]:
    """Indices of which no two are equal."""
    x, ids, updates = arrays
    return [x, np.argsort(ids, kind="stable"), updates]


@register
class ScatterAlong(General):
    """x with out[i, ids[i,j,k], k] += updates[i,j,k] for every j in order (with `axis` in the middle), or = with mode "set", of which the
    last one stays. Other dims of ids are not longer than x's. `unique`: no two indices along the axis are known to be equal."""

    complex = "parts"
    faults = True
    axis: int
    mode: str = "add"
    unique: bool = False
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
               S(i64(7), i64(7), i64(7), axis=0, mode="set", unique=True, fit=some_places),
               S(f32(9), i64(5), f32(5), axis=0, mode="set", unique=True, fit=some_places),
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

    @property
    def alone(self) -> bool:
        """Whether every update that overwrites stays."""
        return self.mode == "set" and self.unique

    def claimed(self, x: TensorType, ids: TensorType) -> bool:
        """Whether updates that overwrite need no order: of those that are alone there is no other, and the last one of an element is
        found by a number for each element of x, unless there are few for that."""
        alone = self.alone or ids.shape[self.axis] == 1
        return self.mode == "set" and (alone or bounds(x.numel)[1] <= 8 * bounds(ids.numel)[0])

    def flops(self, x: TensorType, ids: TensorType, updates: TensorType) -> Dim:
        return updates.numel

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        ids, updates = inputs[1], inputs[2]
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
