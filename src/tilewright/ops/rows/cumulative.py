"""Running sums and products along an axis (inclusive or exclusive, from the front or from the back), running extremes and logsumexps."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, E, MaybeValues, Pulled, S, Sample, Traits, Values, register
from ..families import N, Reduction, bf16, boolean, f16, f32, f64, i32, i64, require_axis, require_kind
from .reductions import wide


def running_samples() -> list[Sample]:
    flags = [(e, r) for e in (False, True) for r in (False, True)]
    return [*(S(f32(3, 37), axis=1, exclusive=e, reverse=r) for e, r in flags),
            *(S(f32(37, 3), axis=0, exclusive=e, reverse=r) for e, r in flags),
            S(f32(3, 5), axis=1), S(i64(7), axis=0), S(f64(2, 3, 4), axis=1), S(f32(0, 2), axis=0), S(f32(2, 0), axis=1, exclusive=True),
            S(bf16(2, 5), axis=1), S(f16(9), axis=0, reverse=True), S(i32(3, 4, 5), axis=1, exclusive=True), S(f32(1, 3), axis=0)]


class Running(Reduction):
    """The result at i combines the elements up to i (before i when exclusive; from i on when reverse)."""

    samples = running_samples()
    errors = [E(f32(3), axis=1, match="axis must be in 0..0, got axis=1"),
              E(boolean(3), axis=0, match="needs float or integer operands; cast first")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "fiu")
        require_axis(getattr(self, "axis"), x.ndim)  # noqa: B009 - each op declares it
        return x

    def fold(self, ufunc: Any, x: Any, start: int) -> Any:
        me: Any = self
        y = np.flip(wide(x), me.axis) if me.reverse else wide(x)
        out = ufunc.accumulate(y, axis=me.axis, dtype=y.dtype)
        if me.exclusive:
            first = np.full((*x.shape[: me.axis], min(1, x.shape[me.axis]), *x.shape[me.axis + 1 :]), start, y.dtype)
            out = np.concatenate([first, np.delete(out, -1, axis=me.axis) if x.shape[me.axis] else out], axis=me.axis)
        return (np.flip(out, me.axis) if me.reverse else out).astype(x.dtype)


@register
class CumSum(Running):
    """Running sum along one axis."""

    fusion = ""
    axis: int
    exclusive: bool = False
    reverse: bool = False
    traits = Traits(linear=True)
    samples = [*running_samples(), S(f32(N), axis=0), S(f32(2, N), axis=1, reverse=True), S(f32(N, 3), axis=0, exclusive=True)]

    def ref(self, x: Any) -> Any:
        return self.fold(np.add, x, 0)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        return (replace(self, reverse=not self.reverse)(g),)


@register
class CumProd(Running):
    """Running product along one axis. Derivatives go through a product by doubling, which stays right where an element is 0."""

    fusion = ""
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def ref(self, x: Any) -> Any:
        return self.fold(np.multiply, x, 1)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "batch"

    def decompose(self, x: Value) -> Value:
        n, axis = x.shape[self.axis], self.axis
        if not isinstance(n, int):
            raise UnsupportedError(f"cum_prod: its derivative needs a static size along the axis, got {n}")
        if n == 0:
            return x
        none = (0,) * len(x.shape)

        def shifted(y: Value, by: int) -> Value:
            lo = tuple(by if a == axis else 0 for a in range(len(x.shape)))
            return F.pad(F.slice_(y, axis, 0, n - by), lo, none, 1)

        y = F.flip(x, (axis,)) if self.reverse else x
        step = 1
        while step < n:
            y = F.mul(shifted(y, step), y)
            step *= 2
        if self.exclusive:
            y = shifted(y, 1)
        return F.flip(y, (axis,)) if self.reverse else y


class RunningExtreme(Reduction):
    """The best element so far and its index. Of equals the last is taken; NaN is better than all."""

    fusion = ""
    later: Any = None  # whether an element replaces the best one before it
    samples = [S(f32(3, 37), axis=1), S(f32(37, 3), axis=0), S(i64(7), axis=0), S(f64(2, 3, 4), axis=1), S(f32(0, 2), axis=0),
               S(f32(2, 0), axis=1), S(bf16(2, 5), axis=1), S(f16(9), axis=0), S(i32(3, 4, 5), axis=1), S(f32(1, 3), axis=0),
               S(f32(2, N), axis=1), S(f32(N, 3), axis=0)]
    errors = Running.errors

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require_kind((x,), "fiu")
        require_axis(getattr(self, "axis"), x.ndim)  # noqa: B009 - each op declares it
        return x, x.with_dtype(dt.i64)

    def ref(self, x: Any) -> Any:
        me: Any = self
        y = np.moveaxis(x, me.axis, 0)
        best, where = y.copy(), np.zeros(y.shape, np.int64)
        for i in range(1, len(y)):
            wins = type(self).later(y[i], best[i - 1]) | (y[i] != y[i])
            best[i], where[i] = np.where(wins, y[i], best[i - 1]), np.where(wins, i, where[i - 1])
        return np.moveaxis(best, 0, me.axis), np.moveaxis(where, 0, me.axis)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        if cotangents[0] is None:
            return (None,)
        me: Any = self
        picked: Any = REGISTRY["gather_along_axis"]
        given: MaybeValues = picked(axis=me.axis).vjp((inputs[0], outputs[1]), outputs[:1], cotangents[:1], (True, False))
        return given[:1]

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        me: Any = self
        assert tangents[0] is not None
        return F.apply("gather_along_axis", tangents[0], outputs[1], axis=me.axis), None


@register
class CumMax(RunningExtreme):
    """The largest element so far along one axis, and where the last of its equals stands."""

    later = np.greater_equal
    axis: int


@register
class CumMin(RunningExtreme):
    """The smallest element so far along one axis, and where the last of its equals stands."""

    later = np.less_equal
    axis: int


@register
class LogCumSumExp(Reduction):
    """The logarithm of the running sum of exponentials along one axis. Derivatives go through pairs joined by doubling."""

    fusion = ""
    axis: int
    samples = [S(f32(3, 37), axis=1), S(f32(37, 3), axis=0), S(f64(2, 3, 4), axis=1), S(f32(0, 2), axis=0), S(bf16(2, 5), axis=1),
               S(f16(9), axis=0), S(f32(1, 3), axis=0)]
    errors = [E(f32(3), axis=1, match="axis must be in 0..0, got axis=1"),
              E(i32(3), axis=0, match="needs float operands; cast first")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_axis(self.axis, x.ndim)
        return x

    def ref(self, x: Any) -> Any:
        y = x.astype(np.float64)
        return np.logaddexp.accumulate(y, axis=self.axis).astype(x.dtype) if y.shape[self.axis] else x

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "batch"

    def decompose(self, x: Value) -> Value:
        n, axis, step = x.shape[self.axis], self.axis, 1
        if not isinstance(n, int):
            raise UnsupportedError(f"log_cum_sum_exp: its derivative needs a static size along the axis, got {n}")
        while step < n:
            old, new = F.slice_(x, axis, 0, n - step), F.slice_(x, axis, step, n - step)
            gap = F.where(F.equal(old, new), 0.0, F.sub(old, new))  # of infinities of one sign no difference is taken
            total = F.add(F.maximum(old, new), F.one("log1p", F.exp(F.neg(F.one("abs", gap)))))
            x = F.concat([F.slice_(x, axis, 0, step), total], axis)
            step *= 2
        return x
