"""The cotangent of a depthwise convolution's weights: for every channel and tap, a product of the result's cotangent with shifted data."""
from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import numpy as np

from ...core.dims import Dim
from ...core.dtypes import compute_dtype
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, S, Values, register
from ..families import Composite, M, N, bf16, f32, f64, i32, require_kind, require_one_dtype

MOST = 64  # taps of a row that one kernel of a GPU has sums for


@register
class TapProducts(Composite):
    """out[c, *k] = sum over n and o of g[n, c, *o] * x[n, c, *(o * stride + k * dilation)] for x[N, C, *s] with zeros around it."""

    whole = True
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] = ()
    samples = [S(f32(2, 3, 9, 21), f32(2, 3, 7, 19), kernel=(3, 3), stride=(1, 1), dilation=(1, 1)),
               S(f64(2, 2, 40), f64(2, 2, 17), kernel=(5,), stride=(2,), dilation=(1,)),
               S(bf16(1, 2, 8, 40), bf16(1, 2, 3, 35), kernel=(2, 3), stride=(2, 1), dilation=(3, 2)),
               S(f32(2, 5, 6, 11), f32(2, 5, 3, 6), kernel=(3, 2), stride=(2, 2), dilation=(1, 3), padding=((1, 1), (2, 2))),
               S(f32(2, 1, 3, 4, 12), f32(2, 1, 2, 3, 1), kernel=(2, 2, 11), stride=(1, 1, 1), dilation=(1, 1, 1)),
               S(f32(0, 2, 5), f32(0, 2, 3), kernel=(3,), stride=(1,), dilation=(1,)),
               S(f32(N, 2, 5), f32(N, 2, 3), kernel=(3,), stride=(1,), dilation=(1,)),
               S(f32(2, 3, 4, M), f32(2, 3, 2, M), kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=((0, 0), (1, 1)))]
    errors = [E(f32(2, 3, 9), f32(2, 3, 9), kernel=(3,), stride=(1,), dilation=(1,), match="the taps leave the data"),
              E(f32(2, 3, 9), f32(2, 4, 7), kernel=(3,), stride=(1,), dilation=(1,), match="needs data and cotangents"),
              E(f32(2, 3, 9), f32(2, 3, 7), kernel=(3, 1), stride=(1,), dilation=(1,), match="needs kernel, stride and"),
              E(i32(2, 3, 9), i32(2, 3, 7), kernel=(3,), stride=(1,), dilation=(1,), match="needs float operands")]

    def infer(self, x: TensorType, g: TensorType) -> TensorType:
        require_kind((x, g), "f")
        require_one_dtype((x, g))
        spatial = x.ndim - 2
        require(x.ndim == g.ndim and spatial >= 1 and x.shape[:2] == g.shape[:2], "needs data and cotangents of as many channels",
                x=x, g=g)
        require(len(self.kernel) == len(self.stride) == len(self.dilation) == spatial, "needs kernel, stride and dilation for {axes} axes",
                axes=spatial, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        require(len(self.pads) == spatial, "needs padding for {axes} axes", axes=spatial, padding=self.padding)
        for d, o, k, s, dil, pair in zip(x.shape[2:], g.shape[2:], self.kernel, self.stride, self.dilation, self.pads, strict=True):
            require_room(d + sum(pair) - 1 - (o - 1) * s - (k - 1) * dil, "the taps leave the data", x=x, g=g, kernel=self.kernel)
        return x.with_shape((x.shape[1], *self.kernel))

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        return self.padding or ((0, 0),) * len(self.kernel)

    def ref(self, x: Any, g: Any) -> Any:
        x = np.pad(x, ((0, 0), (0, 0), *self.pads))
        out = np.zeros((x.shape[1], *self.kernel))
        for tap in cartesian(*(range(k) for k in self.kernel)):
            steps = zip(tap, g.shape[2:], self.stride, self.dilation, strict=True)
            window = x[(slice(None), slice(None), *(slice(k * d, k * d + (o - 1) * s + 1, s) for k, o, s, d in steps))]
            place: Any = (slice(None), *tap)
            out[place] = (window.astype(np.float64) * g).sum((0, *range(2, g.ndim)))
        return out.astype(x.dtype)

    def decompose(self, x: Value, g: Value) -> Value:
        if any(p for pair in self.pads for p in pair):
            before, after = ((0, 0, *(pair[i] for pair in self.pads)) for i in (0, 1))
            x = F.pad(x, before, after)
        sums, axes, dtype = [], (0, *range(2, len(x.shape))), x.dtype
        x, g = (F.cast(v, compute_dtype(dtype)) for v in (x, g))  # sums of small floats are rounded once
        for tap in cartesian(*(range(k) for k in self.kernel)):
            window = x
            for axis, (k, o, s, d) in enumerate(zip(tap, g.shape[2:], self.stride, self.dilation, strict=True), 2):
                window = F.slice_(window, axis, k * d, o, s)
            sums.append(F.reshape(F.sum_(F.mul(window, g), axes), (x.shape[1], 1)))
        return F.cast(F.reshape(F.concat(sums, 1), (x.shape[1], *self.kernel)), dtype)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return target is not None and target.kind == "cuda" and self.kernel[-1] > MOST

    def flops(self, *types: TensorType) -> Dim:
        return 2 * types[1].numel * int(np.prod(self.kernel))
