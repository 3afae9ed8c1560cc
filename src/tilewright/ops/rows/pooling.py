"""Pooling over the trailing spatial axes of x[N,C,*s]; the number of kernel sizes says how many axes those are.

Max pooling that also says where: the flat index of each window's largest element within the spatial axes.

The backward pass of max pooling: every window adds its cotangent where its largest element stood.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as cartesian
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Shape, ceildiv, maximum, minimum, product
from ...core.dtypes import DType
from ...core.errors import UnsupportedError, require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import REGISTRY, E, MaybeValues, Op, Pulled, S, Traits, Values, register
from ..families import Composite, General, M, bf16, f32, f64, i32, i64, require_kind
from ..matmul.contractions import Conv
from ..views import Slice

Pairs = tuple[tuple[int, int], ...]


Ints = tuple[int, ...]


def pooled(sizes: Shape, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints, ceil_mode: bool) -> Shape:
    """Output sizes; in ceil mode a last window must still start inside the input or its front padding."""
    n = len(kernel)
    require(n == len(stride) == len(padding) == len(dilation) and 1 <= n <= len(sizes),
            "needs one kernel size, stride, padding and dilation a spatial axis", kernel=kernel, stride=stride, padding=padding,
            dilation=dilation)
    require(all(v > 0 for v in (*kernel, *stride, *dilation)), "kernel, stride and dilation must be positive", kernel=kernel, stride=stride,
            dilation=dilation)
    reach = [dil * (k - 1) + 1 for k, dil in zip(kernel, dilation, strict=True)]
    require(all(0 <= 2 * p <= r for pair, r in zip(padding, reach, strict=True) for p in pair), "padding must be at most half the kernel",
            padding=padding, kernel=kernel, dilation=dilation)
    out: list[Dim] = []
    for d, k, s, (lo, hi), dil in zip(sizes[-n:], kernel, stride, padding, dilation, strict=True):
        room = d + lo + hi - dil * (k - 1) - 1 + (s - 1 if ceil_mode else 0)  # in ceil mode a window may go beyond the padding
        require_room(room, "the kernel does not fit the padded input", size=d, kernel=k, padding=(lo, hi))
        out.append(minimum(room // s + 1, ceildiv(d + lo, s)) if ceil_mode else room // s + 1)
    return (*sizes[:-n], *out)


def fitted(sizes: Shape, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints) -> tuple[Ints, Ints]:
    """Kernel and stride with the same results in ceil mode: a window that is larger than its padded input is the only one of its axis and
    ends with the input."""
    found = []
    for d, k, s, (lo, hi), dil in zip(sizes[-len(kernel) :], kernel, stride, padding, dilation, strict=True):
        whole = d + lo + hi
        larger = isinstance(whole, int) and 0 < whole <= dil * (k - 1) < whole + s - 1
        found.append((-(-(whole - 1) // dil) + 1, max(s, whole + dil)) if larger and isinstance(whole, int) else (k, s))
    return tuple(k for k, _ in found), tuple(s for _, s in found)


def windows(x: Any, out: Any, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints, fill: Any) -> Any:
    """For each kernel tap the strided window of x that it reads, stacked in front; outside x stands `fill`."""
    lead = x.ndim - len(kernel)
    reach = [(n - 1) * s + dil * (k - 1) + 1 for n, s, k, dil in zip(out, stride, kernel, dilation, strict=True)]
    pads = [(lo, max(r - d - lo, 0)) for r, d, (lo, _) in zip(reach, x.shape[lead:], padding, strict=True)]
    padded = np.pad(x, [(0, 0)] * lead + pads, constant_values=fill)
    taps = []
    for tap in cartesian(*(range(k) for k in kernel)):
        places = zip(tap, dilation, out, stride, strict=True)
        where: tuple[Any, ...] = (..., *(slice(t * dil, t * dil + (n - 1) * s + 1, s) for t, dil, n, s in places))
        taps.append(padded[where])
    return np.stack(taps)


class Taps:
    """What each kernel tap reads, as slices of the padded operand: for derivatives, which must name the element that a window took."""

    def __init__(self, x: Value, y: Value, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints) -> None:
        n = len(kernel)
        lead, out, self.shape = x.shape[:-n], y.shape[-n:], x.shape
        ends = [(o - 1) * s + dil * (k - 1) + 1 - lo - d
                for o, s, dil, k, (lo, _), d in zip(out, stride, dilation, kernel, padding, x.shape[-n:], strict=True)]
        self.lo = (*(0,) * len(lead), *(lo for lo, _ in padding))
        self.hi = (*(0,) * len(lead), *(maximum(hi, 0) for hi in ends))
        steps = (*(1,) * len(lead), *stride)
        self.slices = [Slice(starts=(*(0,) * len(lead), *(t * dil for t, dil in zip(tap, dilation, strict=True))), sizes=(*lead, *out),
                             steps=steps) for tap in cartesian(*(range(k) for k in kernel))]

    def padded(self, x: Value, value: float) -> Value:
        return F.pad(x, self.lo, self.hi, value)

    def inside(self, x: Value) -> Value:
        """A padded value without its padding."""
        for axis, (start, d) in enumerate(zip(self.lo, self.shape, strict=True)):
            x = x if x.shape[axis] == d else F.slice_(x, axis, start, d)
        return x


@dataclass(frozen=True, repr=False, eq=False)
class Pooling(General):
    """One result for each window over the last axes."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    cases = True

    @property
    def window(self) -> tuple[Ints, Ints, Pairs, Ints]:
        return self.kernel, self.stride, self.padding, self.dilation

    def pooled(self, sizes: Shape) -> Shape:
        return pooled(sizes, *self.window, self.ceil_mode)

    def taps(self, x: Any, fill: Any) -> Any:
        """What each kernel tap reads of an array, stacked in front."""
        return windows(x, self.pooled(x.shape)[-len(self.kernel) :], *self.window, fill)

    def infer(self, x: TensorType) -> Any:
        require_kind((x,), "fiu")
        return x.with_shape(self.pooled(x.shape))

    def flops(self, x: TensorType) -> Dim:
        return product(self.pooled(x.shape)) * product(self.kernel)


def lowest(dtype: Any) -> Any:
    """What never wins."""
    return -np.inf if dtype.kind not in "iu" else np.iinfo(dtype).min


@register
class MaxPool(Pooling):
    """Largest element of each window; padding never wins; NaN does."""

    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0)), dilation=(1, 1)),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(2,)),
               S(f64(1, 1, 5, 5), kernel=(2, 2), stride=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), ceil_mode=True),
               S(f32(M, 2, 4), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,)),
               S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,)),
               S(f32(1, 2, M + 3), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(1,), ceil_mode=True),
               S(f32(1, 2, 3, 4), kernel=(5, 2), stride=(6, 3), padding=((0, 0), (1, 1)), dilation=(1, 2), ceil_mode=True)]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((2, 2),), dilation=(1,), match="padding must be at most half the kernel"),
              E(f32(1, 1, 4), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), match="the kernel does not fit the padded input"),
              E(f32(1, 1, 4), kernel=(2, 2), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="needs one kernel size, stride, padding and dilation a spatial axis"),
              E(f32(1, 1, 4), kernel=(2,), stride=(0,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive")]

    def ref(self, x: Any) -> Any:
        return np.max(self.taps(x, lowest(x.dtype)), axis=0)

    def _indices(self) -> Op:
        return REGISTRY["max_pool_indices"](**self.attrs())

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        return (F.apply("max_pool_backward", g, self._indices()(x)[1], sizes=x.shape[-len(self.kernel) :], **self.attrs()),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        return self._indices().jvp(inputs, self._indices()(inputs[0]), tangents)[:1]


@register
class Pool(Pooling):
    """Sum, smallest or product of each window; padding adds 0, never wins, multiplies by 1. NaN wins. Integers wrap around."""

    kind: str = "sum"
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0)), dilation=(1, 1)),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(2,), kind="min"),
               S(f64(1, 1, 5, 5), kernel=(2, 2), stride=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), ceil_mode=True, kind="prod"),
               S(f32(M, 2, 40), kernel=(2,), stride=(1,), padding=((1, 1),), dilation=(1,), kind="prod"),
               S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,)),
               S(i32(1, 2, 9), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(1,), kind="min", low=-9, high=9),
               S(f32(1, 2, 4, 3, 5), kernel=(2, 1, 2), stride=(1, 1, 2), padding=((1, 1), (0, 0), (0, 1)), dilation=(2, 1, 1))]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((2, 2),), dilation=(1,), match="padding must be at most half the kernel"),
              E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((0, 0),), dilation=(1,), kind="or", match="kind must be sum, min or prod")]

    def infer(self, x: TensorType) -> TensorType:
        require(self.kind in ("sum", "min", "prod"), "kind must be sum, min or prod", kind=self.kind)
        out: TensorType = super().infer(x)
        return out

    def ref(self, x: Any) -> Any:
        whole = x.dtype.kind in "iu"
        fill = {"sum": 0, "prod": 1, "min": np.iinfo(x.dtype).max if whole else np.inf}[self.kind]
        join: Any = {"sum": np.sum, "prod": np.prod, "min": np.min}[self.kind]
        return join(self.taps(x if whole else x.astype(np.float64), fill), axis=0).astype(x.dtype)

    def _largest(self) -> MaxPool:
        return MaxPool(*self.window, self.ceil_mode)

    def _others(self, x: Value, y: Value) -> tuple[Taps, list[tuple[Slice, Value | None]]]:
        """For each tap the product of the other taps of its window; None where there is no other."""
        taps = Taps(x, y, *self.window)
        padded = taps.padded(x, 1)
        seen = [tap(padded) for tap in taps.slices]

        def running(values: list[Value]) -> list[Value | None]:
            out: list[Value | None] = [None]
            for v in values[:-1]:
                out.append(v if out[-1] is None else F.mul(out[-1], v))
            return out

        sides = zip(running(seen), reversed(running(seen[::-1])), strict=True)
        return taps, [(tap, b if a is None else a if b is None else F.mul(a, b)) for tap, (a, b) in zip(taps.slices, sides, strict=True)]

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        x, g, y = inputs[0], cotangents[0], outputs[0]
        assert g is not None
        if self.kind == "sum":
            return (spread(x, g, *self.window),)
        if self.kind == "min":
            return self._largest().vjp((F.neg(x),), (F.neg(y),), cotangents, wanted)
        taps, found = self._others(x, y)
        total = None
        for tap, others in found:
            part = tap.transposed(taps.padded(x, 0), g if others is None else F.mul(g, others))
            total = part if total is None else F.add(total, part)
        assert total is not None
        return (taps.inside(total),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, t, y = inputs[0], tangents[0], outputs[0]
        assert t is not None
        if self.kind == "sum":
            return (self(t),)
        if self.kind == "min":
            return self._largest().jvp((F.neg(x),), (F.neg(y),), tangents)
        taps, found = self._others(x, y)
        moved, total = taps.padded(t, 0), F.zeros(y)
        for tap, others in found:
            total = F.add(total, tap(moved) if others is None else F.mul(tap(moved), others))
        return (total,)


def spread(x: Value, g: Value, kernel: Ints, stride: Ints, padding: Pairs, dilation: Ints) -> Value:
    """The cotangent of x where every window's result is the sum of its elements."""
    n = len(kernel)
    single = F.reshape(g, (product(x.shape[:-n]), 1, *g.shape[-n:]))
    ends = [(o - 1) * s - lo + dil * (k - 1) + 1 - d
            for o, s, (lo, _), k, dil, d in zip(g.shape[-n:], stride, padding, kernel, dilation, x.shape[-n:], strict=True)]
    # of sizes that vary, windows reach beyond nothing (there is no padding): what they leave is added behind
    left = [0 if isinstance(e, int) else -e for e in ends]
    known = [e if isinstance(e, int) else 0 for e in ends]
    if any(d != 0 and p != (0, 0) for d, p in zip(left, padding, strict=True)):
        raise UnsupportedError(f"pool: has a derivative for known sizes only, got {x.type}")
    if kernel == stride and not any(map(any, padding)) and set(dilation) == {1} and all(hi <= 0 for hi in known):  # one window an element
        apart = tuple(d for o in g.shape[-n:] for d in (o, 1))
        wide = tuple(d for o, k in zip(g.shape[-n:], kernel, strict=True) for d in (o, k))
        lead = x.shape[:-n]
        each = F.expand(F.reshape(g, (*lead, *apart)), (*lead, *wide))
        made = F.reshape(each, (*lead, *(o * k for o, k in zip(g.shape[-n:], kernel, strict=True))))
        behind = tuple(rest - hi for rest, hi in zip(left, known, strict=True))
        return F.pad(made, (0,) * len(x.shape), (*(0,) * len(lead), *behind))
    whole = tuple((lo, max(hi, 0)) for (lo, _), hi in zip(padding, known, strict=True))
    conv = Conv(stride=stride, padding=whole, dilation=dilation, transposed=True, output_padding=tuple(max(-hi, 0) for hi in known))
    made = F.pad(conv(single, F.full(x.node.graph, (1, 1, *kernel), 1, x.dtype)), (0,) * (n + 2), (0, 0, *left))
    return F.reshape(made, x.shape)


@register
class AvgPool(General):
    """Mean of each window; the divisor counts padding (but nothing beyond it) or only elements of x."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    ceil_mode: bool = False
    count_include_pad: bool = True
    cases = True
    traits = Traits(linear=True)
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0))),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), count_include_pad=False),
               S(f64(1, 1, 5, 6), kernel=(2, 3), stride=(2, 2), padding=((0, 0), (1, 1)), ceil_mode=True),
               S(f32(1, 1, 5, 6), kernel=(2, 3), stride=(2, 2), padding=((1, 1), (1, 1)), ceil_mode=True, count_include_pad=False),
               S(f32(1, 2, 3, 4), kernel=(5, 3), stride=(6, 3), padding=((0, 0), (1, 1)), ceil_mode=True),
               S(f32(M, 2, 4), kernel=(4,), stride=(4,), padding=((0, 0),)), S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),))]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((2, 2),), match="padding must be at most half the kernel"),
              E(i32(1, 1, 4), kernel=(2,), stride=(1,), padding=((0, 0),), match="needs float operands; cast first")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "f")
        return x.with_shape(pooled(x.shape, self.kernel, self.stride, self.padding, (1,) * len(self.kernel), self.ceil_mode))

    def ref(self, x: Any) -> Any:
        ones = (1,) * len(self.kernel)
        out = pooled(x.shape, self.kernel, self.stride, self.padding, ones, self.ceil_mode)[-len(self.kernel) :]
        total = np.sum(windows(x.astype(np.float64), out, self.kernel, self.stride, self.padding, ones, 0), axis=0)
        with np.errstate(invalid="ignore"):
            return (total / self._divisors(x.shape[-len(self.kernel) :], out)).astype(x.dtype)

    def _divisors(self, sizes: Any, out: Any) -> Any:
        spatial = np.ones(sizes)
        if self.count_include_pad:
            spatial = np.pad(spatial, self.padding, constant_values=1)
        unpadded = ((0, 0),) * len(self.kernel) if self.count_include_pad else self.padding
        return np.sum(windows(spatial, out, self.kernel, self.stride, unpadded, (1,) * len(self.kernel), 0), axis=0)

    def flops(self, x: TensorType) -> Dim:
        return self.infer(x).numel * (product(self.kernel) + 1)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        shared = F.div(g, x.node.graph.constant(self._counts(x).astype(x.dtype.np)))
        return (spread(x, shared, self.kernel, self.stride, self.padding, (1,) * len(self.kernel)),)

    def _counts(self, x: Value) -> Any:
        """How many elements each window averages."""
        sizes = x.shape[-len(self.kernel) :]
        if not self.ceil_mode and all(p == (0, 0) for p in self.padding):
            return np.asarray(product(self.kernel))
        if not all(isinstance(d, int) for d in sizes):
            raise UnsupportedError(f"avg_pool: has a derivative for known sizes only, got {x.type}")
        out = pooled(sizes, self.kernel, self.stride, self.padding, (1,) * len(self.kernel), self.ceil_mode)
        return self._divisors(sizes, out)


@register
class MaxPoolIndices(Pooling):
    """Largest element of each window and its flat index in the spatial axes; the first of equals; NaN wins; padding never does."""

    dtype: DType = dt.i64
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0)), dilation=(1, 1)),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(2,), dtype=dt.i32),
               S(f64(1, 1, 5, 5), kernel=(2, 2), stride=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), ceil_mode=True),
               S(f32(M, 2, 40), kernel=(2,), stride=(1,), padding=((0, 0),), dilation=(1,)),
               S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,)),
               S(f32(1, 1, 3, 4, 5), kernel=(2, 2, 2), stride=(1, 2, 1), padding=((1, 1), (0, 0), (1, 1)), dilation=(1, 1, 1))]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(0,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive"),
              E(f32(1, 1, 4), kernel=(0,), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive"),
              E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((0, 0),), dilation=(1,), dtype=dt.f32,
                match="indices must be of an integer"),
              E(f32(1, 1, 0), kernel=(2,), stride=(1,), padding=((1, 1),), dilation=(1,), match="has no value over an empty axis")]

    def infer(self, x: TensorType) -> tuple[TensorType, TensorType]:
        require(self.dtype.is_int, "indices must be of an integer dtype", dtype=self.dtype)
        out = super().infer(x)
        for d in x.shape[-len(self.kernel) :]:
            require_room(d - 1, "has no value over an empty axis", x=x)
        return out, out.with_dtype(self.dtype)

    def ref(self, x: Any) -> Any:
        n = len(self.kernel)
        taps = self.taps(x, lowest(x.dtype))
        where = self.taps(np.broadcast_to(np.arange(np.prod(x.shape[-n:])).reshape(x.shape[-n:]), x.shape), -1)
        best = np.argmax(np.where(where < 0, np.asarray(lowest(x.dtype), taps.dtype), taps), axis=0)[None]
        first = np.where(np.take_along_axis(where, best, 0) < 0, np.where(where < 0, np.iinfo(np.int64).max, where).min(0), 0)
        index = np.maximum(np.take_along_axis(where, best, 0), first)[0]
        return np.take_along_axis(taps, best, 0)[0], index.astype(self.dtype.np)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        x, g, n = inputs[0], cotangents[0], len(self.kernel)
        if g is None:
            return (None,)
        lead = x.shape[:-n]
        rows = (product(lead), product(x.shape[-n:]))
        flat = F.reshape(x, rows)
        picked: Any = REGISTRY["gather_along_axis"]
        small = (rows[0], product(g.shape[-n:]))
        y, where, given_g = (F.reshape(v, small) for v in (*outputs, g))
        given = picked(axis=1).vjp((flat, where), (y,), (given_g,), (True, False))
        return (F.reshape(given[0], x.shape),)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t, n = tangents[0], len(self.kernel)
        assert t is not None
        small = (product(t.shape[:-n]), product(outputs[0].shape[-n:]))
        flat = F.reshape(t, (small[0], product(t.shape[-n:])))
        return F.reshape(F.apply("gather_along_axis", flat, F.reshape(outputs[1], small), axis=1), outputs[0].shape), None


MOST = 64  # windows around an element that one kernel looks at
CHANNELS = 8  # from which a CPU looks at them


@register
class MaxPoolBackward(Composite):
    """out[..., *p] = the sum of g[..., *o] over windows o with indices[..., *o] = the flat place of p among `sizes`; windows are those of
    max pooling, which bounds the places that a window can name."""

    whole = True
    sizes: Shape
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    samples = [S(f32(1, 2, 2, 2), i64(1, 2, 2, 2), sizes=(5, 5), kernel=(4, 4), stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1),
                 low=(-2, 11), high=(2, 13)),
               S(f64(2, 3, 2), i32(2, 3, 2), sizes=(6,), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), low=(-2, 1),
                 high=(2, 4)),
               S(bf16(M, 3), i64(M, 3), sizes=(8,), kernel=(5,), stride=(2,), padding=((1, 1),), dilation=(1,), low=(-2, 3), high=(2, 3)),
               S(f32(2, 9, 2), i64(2, 9, 2), sizes=(6,), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), low=(-2, 1),
                 high=(2, 4))]
    errors = [E(f32(1, 3), i64(1, 4), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match="indices must have the shape of the cotangent"),
              E(f32(1, 4), i64(1, 4), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match=r"the cotangent must have the windows of the pool \(3,\)"),
              E(f32(1, 3), f32(1, 3), sizes=(6,), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,),
                match="indices must be integers")]

    def infer(self, g: TensorType, indices: TensorType) -> TensorType:
        n = len(self.kernel)
        require_kind((g,), "fiu")
        require(indices.dtype.is_int, "indices must be integers", indices=indices)
        require(g.shape == indices.shape, "indices must have the shape of the cotangent", g=g, indices=indices)
        want = pooled((*g.shape[:-n], *self.sizes), self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)[-n:]
        require(g.shape[-n:] == want, "the cotangent must have the windows of the pool {want}", want=want, g=g)
        return g.with_shape((*g.shape[:-n], *self.sizes))

    def ref(self, g: Any, indices: Any) -> Any:
        n = len(self.kernel)
        rows, windows = int(np.prod(g.shape[:-n])), int(np.prod(g.shape[-n:]))
        wide = np.float64 if g.dtype.kind not in "iu" else g.dtype
        out = np.zeros((rows, product(self.sizes)), wide)
        at: Any = (np.arange(rows)[:, None], indices.reshape(rows, windows))
        np.add.at(out, at, g.reshape(rows, windows).astype(wide))
        return out.astype(g.dtype).reshape(*g.shape[:-n], *self.sizes)

    def decompose(self, g: Value, indices: Value) -> Value:
        n = len(self.kernel)
        rows, windows = product(g.shape[:-n]), product(g.shape[-n:])
        flat = F.full(g.node.graph, (rows, product(self.sizes)), 0, g.dtype)
        small = (rows, windows)
        total = F.apply("scatter_along", flat, F.reshape(indices, small), F.reshape(g, small), axis=1)
        return F.reshape(total, (*g.shape[:-n], *self.sizes))

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """On a CPU channels run along registers, which takes some."""
        g = operands[0].shape
        several = len(g) == 2 + len(self.kernel) and isinstance(g[1], int) and g[1] >= CHANNELS
        own = target is not None and (target.kind == "cuda" or (target.kind == "cpu" and several))
        return not own or product(self.reach) > MOST

    @property
    def reach(self) -> tuple[int, ...]:
        """How many windows of an axis an element can be in."""
        return tuple(-(-((k - 1) * d + 1) // s) for k, s, d in zip(self.kernel, self.stride, self.dilation, strict=True))

    def flops(self, *types: TensorType) -> Dim:
        return self.infer(*types).numel * product(self.reach)
