"""Pooling over the trailing spatial axes of x[N,C,*s]; the number of kernel sizes says how many axes those are."""
from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import numpy as np

from ..core.dims import Dim, Shape, ceildiv, minimum, product
from ..core.errors import require
from ..ir.types import TensorType
from .base import E, S, register
from .families import General, M, bf16, f32, f64, i32, provably_negative, require_kind

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
    require(all(0 <= 2 * p <= k for pair, k in zip(padding, kernel, strict=True) for p in pair), "padding must be at most half the kernel",
            padding=padding, kernel=kernel)
    out: list[Dim] = []
    for d, k, s, (lo, hi), dil in zip(sizes[-n:], kernel, stride, padding, dilation, strict=True):
        room = d + lo + hi - dil * (k - 1) - 1
        require(not provably_negative(room), "the kernel does not fit the padded input", size=d, kernel=k, padding=(lo, hi))
        out.append(minimum((room + s - 1) // s + 1, ceildiv(d + lo, s)) if ceil_mode else room // s + 1)
    return (*sizes[:-n], *out)


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


@register
class MaxPool(General):
    """Largest element of each window; padding never wins; NaN does."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    ceil_mode: bool = False
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0)), dilation=(1, 1)),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(2,)),
               S(f64(1, 1, 5, 5), kernel=(2, 2), stride=(2, 2), padding=((0, 0), (0, 0)), dilation=(1, 1), ceil_mode=True),
               S(f32(M, 2, 4), kernel=(2,), stride=(2,), padding=((0, 0),), dilation=(1,)),
               S(bf16(1, 1, 6), kernel=(3,), stride=(1,), padding=((1, 1),), dilation=(1,)),
               S(f32(1, 2, M + 3), kernel=(3,), stride=(2,), padding=((1, 1),), dilation=(1,), ceil_mode=True)]
    errors = [E(f32(1, 1, 4), kernel=(2,), stride=(1,), padding=((2, 2),), dilation=(1,), match="padding must be at most half the kernel"),
              E(f32(1, 1, 4), kernel=(5,), stride=(1,), padding=((0, 0),), dilation=(1,), match="the kernel does not fit the padded input"),
              E(f32(1, 1, 4), kernel=(2, 2), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="needs one kernel size, stride, padding and dilation a spatial axis"),
              E(f32(1, 1, 4), kernel=(2,), stride=(0,), padding=((0, 0),), dilation=(1,),
                match="kernel, stride and dilation must be positive")]

    def infer(self, x: TensorType) -> TensorType:
        require_kind((x,), "fiu")
        return x.with_shape(pooled(x.shape, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode))

    def ref(self, x: Any) -> Any:
        out = pooled(x.shape, self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)[-len(self.kernel) :]
        lowest = -np.inf if x.dtype.kind not in "iu" else np.iinfo(x.dtype).min
        return np.max(windows(x, out, self.kernel, self.stride, self.padding, self.dilation, lowest), axis=0)

    def flops(self, x: TensorType) -> Dim:
        return self.infer(x).numel * product(self.kernel)


@register
class AvgPool(General):
    """Mean of each window; the divisor counts padding (but nothing beyond it) or only elements of x."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: Pairs
    ceil_mode: bool = False
    count_include_pad: bool = True
    samples = [S(f32(1, 2, 6, 7), kernel=(3, 2), stride=(2, 2), padding=((1, 1), (0, 0))),
               S(f32(2, 3, 8), kernel=(3,), stride=(2,), padding=((1, 1),), count_include_pad=False),
               S(f64(1, 1, 5, 6), kernel=(2, 3), stride=(2, 2), padding=((0, 0), (1, 1)), ceil_mode=True),
               S(f32(1, 1, 5, 6), kernel=(2, 3), stride=(2, 2), padding=((1, 1), (1, 1)), ceil_mode=True, count_include_pad=False),
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
        spatial = np.ones(x.shape[-len(self.kernel) :])
        if self.count_include_pad:
            spatial = np.pad(spatial, self.padding, constant_values=1)
        unpadded = ((0, 0),) * len(self.kernel) if self.count_include_pad else self.padding
        count = np.sum(windows(spatial, out, self.kernel, self.stride, unpadded, ones, 0), axis=0)
        with np.errstate(invalid="ignore"):
            return (total / count).astype(x.dtype)

    def flops(self, x: TensorType) -> Dim:
        return self.infer(x).numel * (product(self.kernel) + 1)
