"""The cotangent of a convolution's weights: for every pair of channels of a group and every tap, a product of the result's cotangent with
shifted data, over all images and pixels."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.dims import Dim, bounds, product
from ...core.dtypes import bf16 as bfloat16
from ...core.dtypes import f16 as half
from ...core.dtypes import f32 as single
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...ir.graph import Value
from ...ir.types import TensorType
from ..base import E, S, Values, register
from ..families import Composite, bf16, f32, f64, i32, require_kind, require_one_dtype
from .contractions import by_convolution, by_taps

REACH = {1: 127, 2: 127, 3: 15}  # places that a kernel's windows may reach from their first tap, by axes
STEP = 8  # between windows, at most
LEAST = 280  # operations an element of f32
FEW = 8  # channels


@register
class WeightGradient(Composite):
    """out[o, c, *k] = sum over n and p of g[n, o, *p] * x[n, c', *(p * stride + k * dilation - padding)]; c' is channel c of o's group."""

    whole = True
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    groups: int = 1
    samples = [S(f32(2, 6, 9, 8), f32(2, 4, 5, 8), kernel=(2, 3), stride=(2, 1), dilation=(1, 1), padding=((1, 1), (1, 1)), groups=2),
               S(f64(3, 2, 40), f64(3, 3, 17), kernel=(5,), stride=(2,), dilation=(2,), padding=((0, 1),)),
               S(bf16(2, 8, 5, 6), bf16(2, 8, 5, 6), kernel=(3, 3), stride=(1, 1), dilation=(1, 1), padding=((1, 1), (1, 1)), groups=4),
               S(f32(0, 2, 5), f32(0, 2, 3), kernel=(3,), stride=(1,), dilation=(1,), padding=((0, 0),))]
    errors = [E(f32(2, 3, 9), f32(2, 3, 9), kernel=(3,), stride=(1,), dilation=(1,), padding=((0, 0),), match="the taps leave the data"),
              E(f32(2, 3, 9), f32(3, 3, 7), kernel=(3,), stride=(1,), dilation=(1,), padding=((0, 0),), match="needs data and cotangents"),
              E(f32(2, 3, 9), f32(2, 4, 7), kernel=(3,), stride=(1,), dilation=(1,), padding=((0, 0),), groups=2, match="into 2"),
              E(f32(2, 3, 9), f32(2, 3, 7), kernel=(3, 1), stride=(1,), dilation=(1,), padding=((0, 0),), match="needs kernel, stride,"),
              E(i32(2, 3, 9), i32(2, 3, 7), kernel=(3,), stride=(1,), dilation=(1,), padding=((0, 0),), match="needs float operands")]

    def infer(self, x: TensorType, g: TensorType) -> TensorType:
        require_kind((x, g), "f")
        require_one_dtype((x, g))
        spatial = x.ndim - 2
        require(x.ndim == g.ndim and spatial >= 1 and x.shape[0] == g.shape[0], "needs data and cotangents of as many images", x=x, g=g)
        require(len(self.kernel) == len(self.stride) == len(self.dilation) == len(self.padding) == spatial,
                "needs kernel, stride, dilation and padding for {axes} axes", axes=spatial, kernel=self.kernel)
        channels = [d for d in (x.shape[1], g.shape[1]) if isinstance(d, int)]
        require(all(d % self.groups == 0 for d in channels), "channels must divide into {groups} groups", groups=self.groups, x=x, g=g)
        for d, o, k, s, dil, pair in zip(x.shape[2:], g.shape[2:], self.kernel, self.stride, self.dilation, self.padding, strict=True):
            require_room(d + sum(pair) - 1 - (o - 1) * s - (k - 1) * dil, "the taps leave the data", x=x, g=g, kernel=self.kernel)
        return x.with_shape((g.shape[1], x.shape[1] // self.groups, *self.kernel))

    def ref(self, x: Any, g: Any) -> Any:
        n, (c, o) = self.groups, (x.shape[1], g.shape[1])
        x = np.pad(x, ((0, 0), (0, 0), *self.padding)).astype(np.float64)
        pixels = int(np.prod(g.shape[2:]))
        left = g.astype(np.float64).reshape(g.shape[0], n, o // n, pixels)
        out = np.zeros((o, c // n, *self.kernel))
        for tap in np.ndindex(*self.kernel):
            steps = zip(tap, g.shape[2:], self.stride, self.dilation, strict=True)
            window = x[(slice(None), slice(None), *(slice(k * d, k * d + (m - 1) * s + 1, s) for k, m, s, d in steps))]
            right = window.reshape(g.shape[0], n, c // n, pixels)
            out[(slice(None), slice(None), *tap)] = np.einsum("ngop,ngcp->goc", left, right).reshape(o, c // n)
        return out.astype(g.dtype)

    def decompose(self, x: Value, g: Value) -> Value:
        known = all(isinstance(d, int) for d in (*x.shape, *g.shape))
        return (by_convolution if known else by_taps)(x, g, self.infer(x.type, g.type).shape, self)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        """Hopper's tensor cores have it whole, where a tensor map can say its windows."""
        x, g = operands
        sizes = (*x.shape[1:], *g.shape[1:])
        if target is None or target.cpu != "sm_90a" or not all(isinstance(d, int) and d for d in sizes):
            return True
        wide = x.dtype is single and target.has("tf32-conv") and isinstance(x.shape[0], int) and self._pays(x.type, g.type)
        if not wide and x.dtype not in (bfloat16, half):
            return True
        far, reach = REACH.get(len(self.kernel), 0), [d * (k - 1) for d, k in zip(self.dilation, self.kernel, strict=True)]
        pads = [p for pair in self.padding for p in pair]
        return not all(isinstance(p, int) for p in pads) or max(*reach, *pads) > far or max(self.stride) > STEP

    def _pays(self, x: TensorType, g: TensorType) -> bool:
        """Whether products of f32 as two bf16 are worth the pass that makes them: measured on an H200."""
        small = self.groups > 1 or (isinstance(x.shape[1], int) and x.shape[1] < FEW)  # what others gather element by element
        return small or bounds(self.flops(x, g) - LEAST * (x.numel + g.numel))[0] >= 0

    def flops(self, x: TensorType, g: TensorType) -> Dim:
        return 2 * g.numel * product((x.shape[1] // self.groups, *self.kernel))
