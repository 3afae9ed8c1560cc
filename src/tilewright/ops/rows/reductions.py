"""Reductions along axes. References accumulate f32 in f64, so that they are better than what they judge.

Several sums over all axes but one, computed together: what a batch norm needs of its input, forward and backward. A GPU reads the
operands once for all of them; elsewhere they are reductions of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, bounds, product
from ...core.dtypes import DType
from ...core.errors import UnsupportedError, require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, S, Sample, Traits, Values, register
from ..families import (
    Composite,
    M,
    N,
    Reduction,
    bf16,
    boolean,
    f16,
    f32,
    f64,
    i32,
    reduced_shape,
    require_axes,
    require_axis,
    require_kind,
    require_one_dtype,
)

AXES = [E(f32(2, 3), axes=(2,), match=r"axes must be distinct, ascending and in 0..1, got axes=\(2,\)"),
        E(f32(2, 3), axes=(1, 0), match="axes must be distinct, ascending")]


def wide(x: Any) -> Any:
    """f32 as f64; anything else as it is."""
    return x.astype(np.float64) if x.dtype == np.float32 else x


def uneven(arrays: list[Any]) -> list[Any]:
    """For samples of norms: rows that are nearly constant, of which a norm keeps the rounding only, are spread about their mean."""
    x = arrays[0].astype(np.float64)
    d = x - np.mean(x, -1, keepdims=True)
    more = np.maximum(0.5 / np.maximum(np.std(x, -1, keepdims=True), 1e-3) - 1, 0)
    return [(x + more * d).astype(arrays[0].dtype), *arrays[1:]]


def axis_samples(*more: TensorType) -> list[Sample]:
    types = (f32(3, 5), f64(4, 2), bf16(3, 7), f16(2, 5), *more)
    return [*(S(x, axes=(1,)) for x in types), S(f32(2, 3, 4), axes=(0, 2), keepdims=True), S(f32(3), axes=(0,)), S(f32(2, 3), axes=()),
            S(f32(0, 3), axes=(1,)), S(f32(N, 3), axes=(1,), keepdims=True), S(f32(2, M), axes=(1,))]


def spread(axes: tuple[int, ...], x: Value, g: Value | None) -> Value:
    """A reduction's cotangent on every element of its operand x."""
    assert g is not None
    return F.expand(F.reshape(g, reduced_shape(x.shape, axes, True)), x.shape)


def extreme_mask(axes: tuple[int, ...], x: Value, y: Value) -> Value:
    """1 / n on each of the n elements that are the extreme, 0 elsewhere."""
    hit = F.cast(F.equal(x, F.reshape(y, reduced_shape(x.shape, axes, True))), x.dtype)
    return F.div(hit, F.sum_(hit, axes, keepdims=True))


@dataclass(frozen=True, repr=False, eq=False)
class AxesReduction(Reduction):
    """A reduction over a set of axes with one result of the operand's dtype. `weights` gives its derivatives."""

    axes: tuple[int, ...]
    keepdims: bool = False
    kinds: ClassVar[str] = "fiu"
    empty_ok: ClassVar[bool] = True
    reference: ClassVar[str] = ""  # NumPy's function, where that is the whole reference

    def ref(self, x: Any) -> Any:
        return getattr(np, self.reference)(x, axis=self.axes, keepdims=self.keepdims)

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), self.kinds + "c" * bool(self.complex))
        require_axes(self.axes, x.ndim)
        if not self.empty_ok:
            for a in self.axes:
                require_room(x.shape[a] - 1, "has no value over an empty axis", axes=self.axes)
        return x.with_shape(reduced_shape(x.shape, self.axes, self.keepdims))

    def weights(self, x: Value, y: Value) -> Value:
        """The derivative of the result y that each element of x is part of."""
        raise UnsupportedError(f"{self.name}: has no derivative{self._why('vjp')}")

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        return (F.mul(spread(self.axes, inputs[0], cotangents[0]), self.weights(inputs[0], outputs[0])),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        if self.traits.linear:
            return super().jvp(inputs, outputs, tangents)
        assert tangents[0] is not None
        return (F.sum_(F.mul(tangents[0], self.weights(inputs[0], outputs[0])), self.axes, keepdims=self.keepdims),)


@register
class Sum(AxesReduction):
    """Sum along axes; 0 over nothing."""

    complex = "parts"
    traits = Traits(reduction=True, linear=True)
    samples = [*axis_samples(i32(2, 3)), S(f32(3, 0), axes=(1,))]
    errors = [*AXES, E(boolean(2, 3), axes=(0,), match="needs float or integer operands; cast first, got dtype=bool")]

    def ref(self, x: Any) -> Any:
        return np.sum(wide(x), axis=self.axes, keepdims=self.keepdims, dtype=wide(x).dtype).astype(x.dtype)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        return (spread(self.axes, inputs[0], cotangents[0]),)


@register
class Mean(AxesReduction):
    """Mean along axes; NaN over nothing."""

    complex = "parts"
    kinds = "f"
    traits = Traits(reduction=True, linear=True)
    samples = axis_samples()
    errors = [*AXES, E(i32(2, 3), axes=(0,), match="needs float operands; cast first")]

    def ref(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            count = prod(x.shape[a] for a in self.axes)
            return (np.sum(wide(x), axis=self.axes, keepdims=self.keepdims) / np.float64(count)).astype(x.dtype)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        x, = inputs
        return (F.div(spread(self.axes, x, cotangents[0]), F.count(x, self.axes)),)


class ExtremeReduction(AxesReduction):
    empty_ok = False
    samples = axis_samples(i32(2, 3))
    errors = [*AXES, E(f32(3, 0), axes=(1,), match=r"has no value over an empty axis, got axes=\(1,\)")]

    def weights(self, x: Value, y: Value) -> Value:
        return extreme_mask(self.axes, x, y)


@register
class Max(ExtremeReduction):
    """Largest along axes; NaN when there is one."""

    reference = "max"


@register
class Min(ExtremeReduction):
    """Smallest along axes; NaN when there is one."""

    reference = "min"


@register
class Prod(AxesReduction):
    """Product along axes; 1 over nothing."""

    complex = "rule"
    samples = [*axis_samples(i32(2, 3)), S(f32(3, 0), axes=(1,))]
    errors = [*AXES, E(boolean(2, 3), axes=(0,), match="needs float or integer operands")]

    def ref(self, x: Any) -> Any:
        return np.prod(wide(x), axis=self.axes, keepdims=self.keepdims, dtype=wide(x).dtype).astype(x.dtype)

    def weights(self, x: Value, y: Value) -> Value:
        """The product of all elements but each one, which must not divide by a zero element."""
        zero = F.equal(x, 0)
        zeros = F.sum_(F.cast(zero, x.dtype), self.axes, keepdims=True)
        rest = Prod(axes=self.axes, keepdims=True)(F.where(zero, 1, x))
        without = F.where(F.equal(zeros, 0), F.div(rest, F.where(zero, 1, x)), 0)
        return F.where(F.logical_and(zero, F.equal(zeros, 1)), rest, without)


class TruthReduction(AxesReduction):
    kinds = "b"
    samples = [S(boolean(3, 5), axes=(1,)), S(boolean(2, 3), axes=(0, 1), keepdims=True), S(boolean(2, 0), axes=(1,)),
               S(boolean(N, 2), axes=(1,))]
    errors = [E(f32(2), axes=(0,), match="needs bool operands; cast first, got dtype=f32")]


@register
class Any_(TruthReduction):
    """True where any element is; False over nothing."""

    name, reference = "any", "any"


@register
class All(TruthReduction):
    """True where all elements are; True over nothing."""

    reference = "all"


@dataclass(frozen=True, repr=False, eq=False)
class ArgReduction(Reduction):
    """The index of an extreme along one axis; ties and NaN take the smaller index."""

    axis: int
    keepdims: bool = False
    dtype: DType = dt.i64
    reference: ClassVar[str] = ""
    samples = [S(f32(3, 5), axis=1), S(f32(3, 5), axis=0, keepdims=True), S(i32(9), axis=0), S(f32(N, 4), axis=1), S(f64(2, M), axis=1),
               S(bf16(3, 4), axis=1), S(f32(0, 3), axis=1), S(f32(2, 70, 3), axis=1, dtype=dt.i32), S(i32(2, 67), axis=1)]
    errors = [E(f32(3), axis=1, match="axis must be in 0..0, got axis=1"),
              E(f32(3), axis=0, dtype=dt.f32, match="indices must be of an integer dtype"),
              E(f32(2, 0), axis=1, match="has no value over an empty axis"),
              E(boolean(3), axis=0, match="needs float or integer operands")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "fiu")
        require_axis(self.axis, x.ndim)
        require_room(x.shape[self.axis] - 1, "has no value over an empty axis", axis=self.axis)
        require(self.dtype.is_int, "indices must be of an integer dtype", dtype=self.dtype)
        return TensorType(self.dtype, reduced_shape(x.shape, (self.axis,), self.keepdims))

    def ref(self, x: Any) -> Any:
        return getattr(np, self.reference)(x, axis=self.axis, keepdims=self.keepdims).astype(self.dtype.np)


@register
class ArgMax(ArgReduction):
    """Index of the largest element."""

    reference = "argmax"


@register
class ArgMin(ArgReduction):
    """Index of the smallest element."""

    reference = "argmin"


@register
class Var(AxesReduction):
    """Variance: squared deviations summed, divided by count - correction."""

    correction: float = 1.0
    work = 4
    kinds = "f"
    traits = Traits(reduction=True, composite=True)
    samples = [S(f32(3, 5), axes=(1,)), S(f64(2, 3, 4), axes=(0, 2), keepdims=True, correction=0.0),
               S(f32(N, 4), axes=(1,), correction=0.0), S(bf16(3, 6), axes=(1,)), S(f32(2, 3), axes=(1,), correction=0.5)]
    errors = [*AXES, E(i32(2, 3), axes=(0,), match="needs float operands; cast first")]

    def ref(self, x: Any) -> Any:
        with np.errstate(all="ignore"):
            y = wide(x)
            count = prod(x.shape[a] for a in self.axes)
            d = y - np.mean(y, axis=self.axes, keepdims=True)
            return (np.sum(d * d, axis=self.axes, keepdims=self.keepdims) / np.float64(max(count - self.correction, 0.0))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        count = product([x.shape[a] for a in self.axes])
        d = F.sub(x, F.mean(x, self.axes, keepdims=True))
        total = F.sum_(F.square(d), self.axes, keepdims=self.keepdims)
        if isinstance(count, int):
            return F.div(total, max(count - self.correction, 0.0))
        n = F.dim_value(x.node.graph, count, x.dtype)
        return F.div(total, F.maximum(F.sub(n, self.correction), 0.0))

    def weights(self, x: Value, y: Value) -> Value:
        return F.mul(self.deviations(x), 2)

    def deviations(self, x: Value) -> Value:
        """What each element is off the mean, over count - correction."""
        n = F.count(x, self.axes)
        over = F.maximum(F.sub(n, self.correction), 0.0) if isinstance(n, Value) else max(n - self.correction, 0.0)
        return F.div(F.sub(x, F.mean(x, self.axes, keepdims=True)), over)


@register
class Std(Var):
    """Standard deviation: the square root of the variance. Where all elements are equal its derivative is 0, as PyTorch has it."""

    def ref(self, x: Any) -> Any:
        return np.sqrt(super().ref(wide(x).astype(np.float64))).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        return F.sqrt(super().decompose(x))

    def weights(self, x: Value, y: Value) -> Value:
        y = F.reshape(y, reduced_shape(x.shape, self.axes, True))
        none = F.equal(y, 0)
        return F.where(none, 0, F.div(self.deviations(x), F.where(none, 1, y)))


@register
class LogSumExp(AxesReduction):
    """log(sum(exp(x))) along axes, without overflow; -inf over only -inf."""

    work = 4
    kinds = "f"
    empty_ok = False
    traits = Traits(reduction=True, composite=True)
    samples = axis_samples()
    errors = [*AXES, E(i32(2, 3), axes=(0,), match="needs float operands; cast first")]

    def ref(self, x: Any) -> Any:
        y = wide(x)
        top = np.max(y, axis=self.axes, keepdims=True)
        safe = np.where(np.isinf(top), 0, top)
        with np.errstate(divide="ignore"):
            out = np.log(np.sum(np.exp(y - safe), axis=self.axes, keepdims=True)) + safe
        shape: Any = reduced_shape(x.shape, self.axes, self.keepdims)
        return np.reshape(out, shape).astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        top = F.max_(x, self.axes, keepdims=True)
        safe = F.where(F.apply("is_inf", top), 0.0, top)
        out = F.add(F.log(F.sum_(F.exp(F.sub(x, safe)), self.axes, keepdims=True)), safe)
        return F.reshape(out, reduced_shape(x.shape, self.axes, self.keepdims))

    def weights(self, x: Value, y: Value) -> Value:
        """exp(x - y): each element's part of the sum."""
        return F.exp(F.sub(x, F.reshape(y, reduced_shape(x.shape, self.axes, True))))


@dataclass(frozen=True, eq=False)
class OverOthers(Composite):
    """Results have one element for each of axis `axis` of the operands, which are of one type."""

    fusion = "reduction"
    axis: int = 1
    errors = [E(f32(2, 3), axis=2, match="axis must be in 0..1, got axis=2"), E(i32(2, 3), match="needs float operands"),
              E(f32(3), axis=0, match="needs two axes or more")]

    def vectors(self, count: int, *types: TensorType) -> tuple[TensorType, ...]:
        """The types of `count` results."""
        require_kind(types, "f")
        require_one_dtype(types)
        x = types[0]
        require(x.ndim >= 2, "needs two axes or more", x=x)
        require(0 <= self.axis < x.ndim, "axis must be in 0..{last}", last=x.ndim - 1, axis=self.axis)
        require(all(t.shape == x.shape for t in types), "operands must have one shape", types=types)
        return (x.with_shape((x.shape[self.axis],)),) * count

    def axes(self, rank: int) -> tuple[int, ...]:
        return tuple(a for a in range(rank) if a != self.axis)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        x = operands[0].type
        gpu = target is not None and target.kind == "cuda"
        return not gpu or x.dtype.itemsize != 4 or len(x.shape) > 5 or bounds(product(x.shape))[0] == 0


@register
class ChannelSums(OverOthers):
    """The sum of each operand over all axes but one."""

    samples = [S(f32(2, 3, 4, 5), f32(2, 3, 4, 5)), S(f32(70, 9), f32(70, 9), f32(70, 9)), S(f64(3, 2, 5), axis=2), S(bf16(4, 3), axis=0),
               S(f32(N, 3, 2), f32(N, 3, 2)), S(f32(2, 0, 3)), S(f32(0, 2))]
    errors = [*OverOthers.errors, E(f32(2, 3), f32(3, 2), match="operands must have one shape")]

    def infer(self, *types: TensorType) -> tuple[TensorType, ...]:
        return self.vectors(len(types), *types)

    def flops(self, *types: TensorType) -> Dim:
        return len(types) * types[0].numel

    def ref(self, *arrays: Any) -> Any:
        return tuple(np.sum(wide(x), axis=self.axes(x.ndim)).astype(x.dtype) for x in arrays)

    def decompose(self, *values: Value) -> tuple[Value, ...]:
        return tuple(F.sum_(v, self.axes(len(v.shape))) for v in values)


@register
class Moments(OverOthers):
    """The mean over all axes but one, and the variance (over n)."""

    samples = [S(f32(2, 3, 4, 5)), S(f32(70, 9)), S(f64(3, 2, 5), axis=2), S(bf16(4, 3), axis=0), S(f32(M, 3, 2)),
               S(f32(9, 2, M), low=100, high=101)]

    def infer(self, x: TensorType) -> tuple[TensorType, ...]:
        return self.vectors(2, x)

    def ref(self, x: Any) -> Any:
        axes = self.axes(x.ndim)
        return np.mean(wide(x), axis=axes).astype(x.dtype), np.var(wide(x), axis=axes).astype(x.dtype)

    def decompose(self, x: Value) -> tuple[Value, ...]:
        axes = self.axes(len(x.shape))
        return F.mean(x, axes), F.one("var", x, axes=axes, correction=0.0)

    def flops(self, x: TensorType) -> Dim:
        return 4 * x.numel
