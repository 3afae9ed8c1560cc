"""Running sums and products along an axis (inclusive or exclusive, from the front or from the back), linear recurrences, running extremes
and logsumexps."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.errors import UnsupportedError, require
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
        require_kind((x,), "fiuc" if self.complex else "fiu")
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

    complex = "parts"
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
    """Running product along one axis. Its derivatives are recurrences, which stay right where an element is 0."""

    fusion = ""
    axis: int
    exclusive: bool = False
    reverse: bool = False

    def ref(self, x: Any) -> Any:
        return self.fold(np.multiply, x, 1)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """The products before an element, times how much of the cotangents comes back to it: s = g + (the next element) * (the next s)."""
        x, back = inputs[0], not self.reverse
        g = beside(g, self.axis, back=back) if self.exclusive else g
        rest = LinearRecurrence(axis=self.axis, reverse=back)(beside(x, self.axis, back=back), g)
        before: Value = replace(self, exclusive=True)(x)
        lost = F.logical_and(F.equal(before, 0), F.one("is_inf", rest))  # nothing comes back through a zero, however much it was
        return (F.mul(before, F.where(lost, 0, rest)),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, t = inputs[0], tangents[0]
        assert t is not None
        before = outputs[0] if self.exclusive else replace(self, exclusive=True)(x)
        made: Value = LinearRecurrence(axis=self.axis, reverse=self.reverse)(x, F.mul(t, before))
        return (beside(made, self.axis, back=self.reverse) if self.exclusive else made,)


def beside(x: Value, axis: int, *, back: bool) -> Value:
    """The element before each one (behind it with `back`); 0 beyond the ends."""
    n, rank = x.shape[axis], len(x.shape)
    if not isinstance(n, int):
        raise UnsupportedError(f"the derivative of a running product or recurrence needs a static size along the axis, got {n}")
    if n == 0:
        return x
    one, none = tuple(int(a == axis) for a in range(rank)), (0,) * rank
    return F.pad(F.slice_(x, axis, int(back), n - 1), none if back else one, one if back else none, 0)


@register
class LinearRecurrence(Reduction):
    """h[i] = a[i] * h[i - 1] + b[i] along one axis, from 0 on (h[i] = a[i] * h[i + 1] + b[i] when reverse)."""

    fusion = ""
    axis: int
    reverse: bool = False
    samples = [S(f32(3, 37), f32(3, 37), axis=1), S(f32(37, 3), f32(37, 3), axis=0, reverse=True), S(f64(2, 3, 4), f64(2, 3, 4), axis=1),
               S(f32(0, 2), f32(0, 2), axis=0), S(f32(2, 0), f32(2, 0), axis=1), S(bf16(2, 5), bf16(2, 5), axis=1, reverse=True),
               S(f16(9), f16(9), axis=0), S(f32(1, 3), f32(1, 3), axis=0)]
    errors = [E(f32(3), f32(3), axis=1, match="axis must be in 0..0, got axis=1"),
              E(i32(3), i32(3), axis=0, match="needs float operands; cast first"),
              E(f32(3), f32(4), axis=0, match="needs factors and terms of one type")]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_kind((a, b), "f")
        require(a == b, "needs factors and terms of one type", a=a, b=b)
        require_axis(self.axis, a.ndim)
        return b

    def ref(self, a: Any, b: Any) -> Any:
        dtype = b.dtype
        a, b = (np.moveaxis(np.flip(x, self.axis) if self.reverse else x, self.axis, 0).astype(np.float64) for x in (a, b))
        out = b.copy()
        for i in range(1, len(out)):
            out[i] = a[i] * out[i - 1] + b[i]
        out = np.moveaxis(out, 0, self.axis).astype(dtype)
        return np.flip(out, self.axis) if self.reverse else out

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        back = not self.reverse
        rest: Value = replace(self, reverse=back)(beside(inputs[0], self.axis, back=back), g)
        return F.mul(rest, beside(output, self.axis, back=self.reverse)) if wanted[0] else None, rest

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        ta, tb = tangents
        moved = None if ta is None else F.mul(ta, beside(outputs[0], self.axis, back=self.reverse))
        side = tb if moved is None else moved if tb is None else F.add(moved, tb)
        assert side is not None
        return (self(inputs[0], side),)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        a, b = (x if m else F.expand(F.reshape(x, (1, *x.shape)), (size, *x.shape)) for x, m in zip(inputs, batched, strict=True))
        return (replace(self, axis=self.axis + 1)(a, b),)


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
            gap = F.where(F.equal(old, new), 0.0, F.sub(old, new))  # infinities of one sign have no difference
            total = F.add(F.maximum(old, new), F.one("log1p", F.exp(F.neg(F.one("abs", gap)))))
            x = F.concat([F.slice_(x, axis, 0, step), total], axis)
            step *= 2
        return x
