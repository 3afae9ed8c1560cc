"""Resizing and adaptive pooling of the last axes, made of gathers, slices and sums: sizes are static, so are the places they read."""
from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from ...core.dims import Dim, Shape, product
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, Pulled, S, Values, register
from ..families import Composite, N, bf16, f32, f64, i32, require_kind

Tap = tuple[Any, Any]  # the index that each output reads along an axis, and its weight
MODES = ("nearest", "linear", "cubic")
FEW = 256  # most weights of a result that are read one by one; in a product of matrices an infinity reaches what does not read it, too
WHOLE = 64  # loads that a thread of a GPU may wait for, one after the other
SLOPE = -0.75  # the cubic convolution's parameter, as PyTorch has it without antialiasing


def taps(size: int, out: int, mode: str, align: bool, scale: float, real: Any) -> list[Tap]:
    """What each output reads along one axis, in f32 (f64 for f64) as PyTorch computes it. `scale` is input elements an output element; 0:
    by the sizes."""
    i = np.arange(out, dtype=real)
    if mode == "nearest":
        ratio = np.float32(scale if scale else size / out)
        return [(np.minimum(np.floor(i * ratio).astype(np.int64), size - 1), np.ones(out, real))]
    if align:
        at = i * real((size - 1) / (out - 1) if out > 1 else 0)
    else:
        at = (i + real(0.5)) * real(scale if scale else size / out) - real(0.5)
    if mode == "linear":
        at = np.maximum(at, 0)
        low = np.minimum(np.floor(at).astype(np.int64), size - 1)
        w = np.minimum(np.maximum(at - low, 0), 1).astype(real)
        found = [(low, 1 - w), (np.minimum(low + 1, size - 1), w)]
        return found if np.any(w) else found[:1]
    low = np.floor(at).astype(np.int64)
    t = (at - low).astype(real)
    return [(np.clip(low + k - 1, 0, size - 1), cubic_weight(t - real(k - 1))) for k in range(4)]


def cubic_weight(distance: Any, slope: float = SLOPE) -> Any:
    """How much an element at this distance counts in a cubic convolution."""
    x = np.abs(distance)
    near = ((slope + 2) * x - (slope + 3)) * x * x + 1
    far = ((slope * x - 5 * slope) * x + 8 * slope) * x - 4 * slope
    return np.where(x < 1, near, np.where(x < 2, far, 0)).astype(x.dtype)


@register
class Resize(Composite):
    """The last axes of x[..., *sizes] at other sizes: the nearest element, linear between neighbours, or the cubic convolution of four
    (PyTorch's coordinates)."""

    sizes: tuple[int, ...]
    mode: str = "nearest"
    align_corners: bool = False
    scales: tuple[float, ...] = ()
    work = 4
    samples = [S(f32(1, 2, 3, 4), sizes=(6, 8)), S(f32(2, 3, 5, 7), sizes=(8, 3), mode="linear"), S(f64(1, 1, 9), sizes=(4,)),
               S(f32(1, 2, 4, 5), sizes=(7, 9), mode="linear", align_corners=True), S(f32(N, 3, 6), sizes=(13,), mode="linear"),
               S(bf16(1, 2, 3, 3), sizes=(5, 5)), S(f32(1, 1, 3, 4), sizes=(1, 1), mode="linear", align_corners=True),
               S(f32(1, 2, 5, 5), sizes=(7, 7), mode="linear", scales=(0.7, 0.7)), S(f32(1, 1, 2, 3, 4), sizes=(4, 3, 5), mode="linear"),
               S(f32(1, 2, 5, 4), sizes=(9, 3), mode="cubic"), S(f64(1, 2, 7, 3), sizes=(12, 3), mode="cubic", align_corners=True),
               S(f32(1, 1, 37, 5), sizes=(70, 21), mode="linear"), S(f32(1, 2, 70), sizes=(33,), mode="linear"),
               S(f64(1, 3, 40, 3), sizes=(9, 70), mode="cubic"), S(bf16(1, 1, 3, 5), sizes=(7, 40), mode="cubic")]
    errors = [E(f32(2, 3), sizes=(1, 2, 3), match="needs at most one size an axis"),
              E(f32(2, 3), sizes=(0,), match="sizes must be positive"),
              E(f32(2, 3), sizes=(4,), mode="area", match="mode must be nearest, linear or cubic, got mode=area"),
              E(f32(2, 0), sizes=(4,), match="has no value over an empty axis"), E(f32(2, N), sizes=(4,), match="needs static sizes"),
              E(i32(2, 3), sizes=(4,), mode="linear", match="needs float operands")]

    def infer(self, x: TensorType) -> TensorType:
        n = len(self.sizes)
        require(self.mode in MODES, "mode must be nearest, linear or cubic", mode=self.mode)
        require_kind((x,), "fiub" if self.mode == "nearest" else "f")
        require(0 < n <= x.ndim, "needs at most one size an axis", sizes=self.sizes, x=x)
        require(all(s > 0 for s in self.sizes), "sizes must be positive", sizes=self.sizes)
        require(all(isinstance(d, int) for d in x.shape[-n:]), "needs static sizes along the resized axes", x=x)
        require(all(d != 0 for d in x.shape[-n:]), "has no value over an empty axis", x=x)
        return x.with_shape((*x.shape[:-n], *self.sizes))

    def _axes(self, shape: Any, dtype: Any) -> list[tuple[int, list[Tap]]]:
        n = len(self.sizes)
        real = np.float64 if dtype == np.float64 else np.float32
        scales = self.scales or (0.0,) * n
        every = sorted(zip(range(len(shape) - n, len(shape)), shape[-n:], self.sizes, scales, strict=True), key=growth)
        return [(a, taps(d, s, self.mode, self.align_corners, r, real)) for a, d, s, r in every if d != s or r or self.mode != "nearest"]

    def ref(self, x: Any) -> Any:
        if self.mode == "nearest":
            for axis, ((at, _),) in self._axes(x.shape, x.dtype):
                x = np.take(x, at, axis)
            return x
        y = x.astype(np.float64)
        for axis, every in self._axes(x.shape, x.dtype):
            shape = [-1 if a == axis else 1 for a in range(x.ndim)]
            y = sum(np.take(y, at, axis) * w.astype(np.float64).reshape(shape) for at, w in every)
        return y.astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        g = x.node.graph
        for axis, every in self._axes(x.shape, x.dtype.np):
            at, w = (np.stack(parts) for parts in zip(*every, strict=True))
            places = g.constant(at if len(at) > 1 else at[0], "places")
            x = F.one("gather_sum", x, places, g.constant(w, "weights"), axis=axis) if len(at) > 1 else F.gather(x, places, axis)
        return x

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "vjp"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        """What an element counts in each result, with those results."""
        shape = inputs[0].shape
        for axis, every in reversed(self._axes(shape, inputs[0].dtype.np)):
            size, out = shape[axis], g.shape[axis]
            assert isinstance(size, int) and isinstance(out, int)
            table = np.zeros((out, size), compute_dtype(g.dtype).np)
            for at, w in every:
                np.add.at(table, (np.arange(out), at), w)
            g = weighted(g, table, axis)
        return (g,)


def growth(axis: tuple[int, Any, int, Any]) -> tuple[float, int]:
    """Axes that shrink come first, outer ones first; of those that grow the inner ones: what lies along memory is the most work."""
    place, size, out, _ = axis
    return out / size, -place if out > size else place


def weighted(x: Value, table: Any, axis: int) -> Value:
    """x @ table along an axis: few weights that are not 0 in a column are read where they are."""
    held = table != 0
    count, graph = int(held.sum(0).max(initial=0)), x.node.graph
    if count == 0:
        return F.full(graph, (*x.shape[:axis], table.shape[1], *x.shape[axis + 1 :]), 0, x.dtype)
    if count > FEW:
        if axis == len(x.shape) - 1:
            return F.cast(F.matmul(F.widened(x), graph.constant(table, "weights")), x.dtype)
        flat = F.reshape(F.widened(x), (*x.shape[: axis + 1], product(x.shape[axis + 1 :])))
        y = F.matmul(graph.constant(table.T.copy(), "weights"), flat)
        return F.cast(F.reshape(y, (*x.shape[:axis], table.shape[1], *x.shape[axis + 1 :])), x.dtype)
    at = np.argsort(~held, axis=0, kind="stable")[:count]  # those that are not 0 first
    found = held.sum(0)
    last = np.maximum(found, 1) - 1
    at = np.take_along_axis(at, np.minimum(np.arange(count)[:, None], last), 0)  # a column of fewer reads its last one again, for a share
    shares = np.take_along_axis(table, at, 0) / np.where(np.arange(count)[:, None] < last, 1, count - last).astype(table.dtype)
    y = F.one("gather_sum", x, graph.constant(at, "places"), graph.constant(shares, "weights"), axis=axis)
    if found.all():
        return y
    return F.where(F.reshape(graph.constant(found > 0, "read"), (table.shape[1], *(1,) * (len(x.shape) - 1 - axis))), y, 0)


def ranges(size: int, out: int) -> list[tuple[int, int]]:
    """Start and end of each window of an adaptive pool."""
    return [(i * size // out, -(-(i + 1) * size // out)) for i in range(out)]


@register
class AdaptivePool(Composite):
    """Pools of the last axes that give the asked sizes: window i of n reads elements floor(i d / n) … ceil((i + 1) d / n). The windows
    that read an element are such a window themselves, so the derivative of a sum is the sum from the one size to the other."""

    sizes: tuple[int, ...]
    kind: str = "mean"
    work = 2
    samples = [S(f32(1, 2, 7, 5), sizes=(3, 2)), S(f32(2, 3, 6), sizes=(4,), kind="max"), S(f64(1, 2, 5, 4), sizes=(5, 1)),
               S(f32(N, 2, 9), sizes=(4,)), S(bf16(1, 2, 5), sizes=(2,)), S(f32(2, 3), sizes=(5,), kind="max"),
               S(f32(2, 5, 4), sizes=(7, 8), kind="sum"), S(f64(3, 9), sizes=(4,), kind="sum"),
               S(f32(2, 9), sizes=(7,), kind="max"), S(bf16(2, 9), sizes=(5,))]
    errors = [E(f32(2, 3), sizes=(2,), kind="min", match="kind must be mean, sum or max, got kind=min"),
              E(f32(2, 3), sizes=(0,), match="sizes must be positive"), E(f32(2, N), sizes=(2,), match="needs static sizes"),
              E(f32(2, 0), sizes=(2,), match="has no value over an empty axis"), E(i32(2, 3), sizes=(2,), match="needs float operands")]

    def infer(self, x: TensorType) -> TensorType:
        n = len(self.sizes)
        require(self.kind in ("mean", "sum", "max"), "kind must be mean, sum or max", kind=self.kind)
        require_kind((x,), "f")
        require(0 < n <= x.ndim and all(s > 0 for s in self.sizes), "sizes must be positive, at most one an axis", sizes=self.sizes)
        require(all(isinstance(d, int) for d in x.shape[-n:]), "needs static sizes along the pooled axes", x=x)
        require(all(d != 0 for d in x.shape[-n:]), "has no value over an empty axis", x=x)
        return x.with_shape((*x.shape[:-n], *self.sizes))

    def ref(self, x: Any) -> Any:
        y = x.astype(np.float64)
        for axis, out in zip(range(x.ndim - len(self.sizes), x.ndim), self.sizes, strict=True):
            fold: Any = {"mean": np.mean, "sum": np.sum, "max": np.max}[self.kind]
            parts = [fold(np.take(y, np.arange(a, b), axis), axis=axis, keepdims=True) for a, b in ranges(x.shape[axis], out)]
            y = np.concatenate(parts, axis)
        return y.astype(x.dtype)

    def decompose(self, x: Value) -> Value:
        for axis, out in zip(range(len(x.shape) - len(self.sizes), len(x.shape)), self.sizes, strict=True):
            size = x.shape[axis]
            assert isinstance(size, int)
            if size == out:
                continue
            fold = {"mean": F.mean, "sum": F.sum_, "max": F.max_}[self.kind]
            windows = ranges(size, out)
            if size % out and (self.kind == "sum" or max(b - a for a, b in windows) < out):  # the first of each window, the second…
                x = self._taps(x, axis, windows)
            elif size % out == 0:  # equal windows, side by side
                cut: tuple[Dim, ...] = (*x.shape[:axis], out, size // out, *x.shape[axis + 1 :])
                x = fold(F.reshape(x, cut), (axis + 1,))
            else:
                x = F.concat([fold(F.slice_(x, axis, a, b - a), (axis,), keepdims=True) for a, b in windows], axis)
        return x

    def _taps(self, x: Value, axis: int, windows: list[tuple[int, int]]) -> Value:
        graph, shape, total = x.node.graph, tuple(len(windows) if a == axis else 1 for a in range(len(x.shape))), None
        for t in range(max(b - a for a, b in windows)):
            inside = np.array([a + t < b for a, b in windows])
            part = F.gather(x, graph.constant(np.array([min(a + t, b - 1) for a, b in windows]), "places"), axis)
            if self.kind == "max":  # the last of a shorter window once more
                total = part if total is None else F.maximum(total, part)
                continue
            part = F.widened(part)
            part = part if inside.all() else F.where(F.reshape(graph.constant(inside, "inside"), shape), part, 0)
            total = part if total is None else F.add(total, part)
        assert total is not None
        if self.kind == "mean":
            counts = np.array([b - a for a, b in windows], total.dtype.np)
            total = F.div(total, F.reshape(graph.constant(counts, "counts"), shape))
        return F.cast(total, x.dtype)

    def spans(self, x: Shape) -> list[int]:
        """Elements of the longest window along each axis."""
        sizes = x[-len(self.sizes) :]
        return [max(b - a for a, b in ranges(d, out)) for d, out in zip(sizes, self.sizes, strict=True) if isinstance(d, int)]

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """A GPU has a kernel whose threads have a result each: for windows whose rows they read at once, or that are short."""
        if target is None or target.kind != "cuda":
            return True
        shape, spans = operands[0].shape, self.spans(operands[0].shape)
        short = all(isinstance(d, int) and d * out < 1 << 31 for d, out in zip(shape[-len(spans) :], self.sizes, strict=True))
        return not short or prod(spans) > WHOLE * (spans[-1] if spans[-1] <= WHOLE // 2 else 1)

    def expands(self, rule: str, active: tuple[bool, ...]) -> bool:
        return rule != "vjp" or self.kind == "max"

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x = inputs[0]
        sizes = tuple(d for d in x.shape[-len(self.sizes) :] if isinstance(d, int))
        if self.kind == "mean":
            count = np.ones((), compute_dtype(x.dtype).np)
            for d, out in zip(sizes, self.sizes, strict=True):
                count = count[..., None] * np.array([b - a for a, b in ranges(d, out)], count.dtype)
            g = F.cast(F.mul(F.widened(g), x.node.graph.constant((1 / count).astype(count.dtype), "shares")), x.dtype)
        return (replace(self, sizes=sizes, kind="sum")(g),)
