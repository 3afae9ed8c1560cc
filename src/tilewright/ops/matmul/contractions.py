"""Contractions: matrix product and convolution.

Distances between all rows of two matrices, from the differences: products would cancel where rows are near each other.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import product as cartesian
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Shape, product
from ...core.dtypes import DType
from ...core.errors import UnsupportedError, require
from ...core.needs import require_room
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, Op, Pulled, S, Values, register
from ..families import (
    Bilinear,
    Composite,
    M,
    N,
    aligned,
    bf16,
    boolean,
    broadcast_shapes,
    f8e4m3,
    f8e5m2,
    f16,
    f32,
    f64,
    i8,
    i32,
    require_kind,
    require_one_dtype,
    u8,
)
from ..views import Slice, spread_apart

Pairs = tuple[tuple[int, int], ...]


@register
class Matmul(Bilinear):
    """alpha * a @ b over the last two axes; leading axes broadcast. A flag says that the operand is stored transposed. Operands of eight
    bits may have a result of another dtype: floats (of both eight-bit formats) f32, f16 or bf16, integers (u8 or i8 by i8) i32.
    `recurrent`: of a recurrent layer, whose f32 operands are rounded where those of convolutions are."""

    complex, fusion = "rule", "contraction"
    transpose_a: bool = False
    transpose_b: bool = False
    alpha: float = 1.0
    dtype: DType | None = None
    recurrent: bool = False
    samples = [S(f32(3, 5), f32(5, 4)), S(f32(5, 3), f32(4, 5), transpose_a=True, transpose_b=True, alpha=0.5),
               S(f32(2, 1, 3, 4), f32(5, 4, 2)), S(f64(2, 3), f64(3, 1)), S(f32(N, 4), f32(3, 4), transpose_b=True),
               S(f32(0, 3), f32(3, 2)), S(f32(2, 0), f32(0, 3)), S(bf16(3, 9), bf16(9, 2)), S(f16(3, 4), f16(4, 2)),
               S(i32(2, 3), i32(3, 2)), S(f32(3, 9), f16(9, 2)), S(f32(N, M, 3), f32(1, 3, 2)),
               S(f32(37, 41), f32(37, 33), transpose_a=True), S(f8e4m3(3, 9), f8e5m2(2, 9), transpose_b=True, dtype=dt.f32),
               S(f8e4m3(5, 7), f8e4m3(7, 4), dtype=dt.bf16, alpha=0.5), S(u8(3, 9), i8(9, 5), dtype=dt.i32, low=(0, -128), high=(255, 127))]
    errors = [E(f32(8, 64), f32(32, 16), match=r"inner sizes differ: 64 != 32 for"),
              E(f32(8, 64), f32(16, 64), match="inner sizes differ: 64 != 16; did you mean transpose_b=True"),
              E(f32(3), f32(3, 2), match="needs operands of rank 2 or more"), E(f32(2, 3), f64(3, 2), match="operands must have one dtype"),
              E(boolean(2, 3), boolean(3, 2), match="needs float or integer operands"),
              E(f32(2, 3, 4), f32(3, 4, 5), match="shapes do not broadcast"),
              E(i32(2, 3), i32(3, 2), alpha=0.5, match="alpha needs float operands"),
              E(f32(2, 3), f32(3, 2), dtype=dt.bf16, match="a result of another dtype needs operands of eight bits"),
              E(f8e4m3(2, 3), f8e4m3(3, 2), dtype=dt.i32, match="the result of eight-bit floats must be f32, f16 or bf16"),
              E(i8(2, 3), u8(3, 2), dtype=dt.i32, match="the result of integers of eight bits")]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_kind((a, b), "fiuc")
        if self.dtype is not None and not a.dtype is b.dtype is self.dtype:
            dtype = self._wide(a, b, self.dtype)
        else:
            stored = a.dtype is dt.f32 and b.dtype in (dt.f16, dt.bf16)  # a weight may be kept in a smaller float
            dtype = a.dtype if stored else require_one_dtype((a, b))
        require(self.alpha == 1.0 or dtype.kind in "fc", "alpha needs float operands", dtype=dtype, alpha=self.alpha)
        require(a.ndim >= 2 and b.ndim >= 2, "needs operands of rank 2 or more", a=a, b=b)
        m, k = a.shape[-2:][::-1] if self.transpose_a else a.shape[-2:]
        k2, n = b.shape[-2:][::-1] if self.transpose_b else b.shape[-2:]
        hint = f"; did you mean transpose_b={not self.transpose_b}?" if k == n else ""
        require(k == k2, "inner sizes differ: {k} != {k2}{hint}", k=k, k2=k2, hint=hint)
        return TensorType(dtype, (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), m, n))

    @staticmethod
    def _wide(a: TensorType, b: TensorType, dtype: DType) -> DType:
        """The result's dtype where it is named."""
        small = all(x.dtype.itemsize == 1 for x in (a, b)) and a.dtype.is_float == b.dtype.is_float
        require(small, "a result of another dtype needs operands of eight bits", a=a, b=b, dtype=dtype)
        if a.dtype.is_float:
            require(dtype in (dt.f32, dt.f16, dt.bf16), "the result of eight-bit floats must be f32, f16 or bf16", dtype=dtype)
        else:
            require(dtype is dt.i32 and b.dtype is dt.i8, "the result of integers of eight bits is i32, by a matrix of i8", a=a, b=b,
                    dtype=dtype)
        return dtype

    def ref(self, a: Any, b: Any) -> Any:
        a = np.swapaxes(a, -1, -2) if self.transpose_a else a
        b = np.swapaxes(b, -1, -2) if self.transpose_b else b
        if self.dtype is not None:
            wide: Any = np.float64 if self.dtype.is_float else np.int32
            out = np.matmul(a.astype(wide), b.astype(wide))
            return (out * self.alpha if self.alpha != 1.0 else out).astype(self.dtype.np)
        out = np.matmul(a, b.astype(a.dtype))
        return out if self.alpha == 1.0 else (out * self.alpha).astype(out.dtype)

    def flops(self, a: TensorType, b: TensorType) -> Dim:
        return 2 * self.infer(a, b).numel * a.shape[-2 if self.transpose_a else -1]

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        a, b = inputs
        return (self._left(a, b, g) if wanted[0] else None, self._right(a, b, g) if wanted[1] else None)

    def _left(self, a: Value, b: Value, g: Value) -> Value:
        """g @ b.T, or its transpose where a is stored transposed."""
        wide = F.cast(b, g.dtype)
        if self.transpose_a:
            out = F.matmul(wide, g, transpose_a=self.transpose_b, transpose_b=True, alpha=self.alpha)
        else:
            out = F.matmul(g, wide, transpose_b=not self.transpose_b, alpha=self.alpha)
        return F.cast(out, a.dtype)

    def _right(self, a: Value, b: Value, g: Value) -> Value:
        """a.T @ g, or its transpose. A matrix b that all leading axes of a share is one product over all rows."""
        a = F.cast(a, g.dtype)
        if len(b.shape) == 2 and not self.transpose_a:
            a, g = (F.reshape(v, (product(v.shape[:-1]), v.shape[-1])) for v in (a, g))
        if self.transpose_b:
            out = F.matmul(g, a, transpose_a=True, transpose_b=self.transpose_a, alpha=self.alpha)
        else:
            out = F.matmul(a, g, transpose_a=not self.transpose_a, alpha=self.alpha)
        return F.cast(out, b.dtype)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return batched_product(self, inputs, batched, not self.transpose_a)


def batched_product(op: Op, inputs: Values, batched: tuple[bool, ...], rows: bool) -> Values:
    """A matrix product of several cases. Where `rows` lie in front of the shared axis, a stack of matrices times one is one product."""
    one = rows and batched == (True, False) and len(inputs[1].shape) == 2
    return (op(*(inputs if one else aligned(inputs, batched))),)


@register
class Conv(Bilinear):
    """Convolution (cross-correlation) x[N,C,*s] with w[O,C/groups,*k]; transposed: w[C,O/groups,*k], the gradient of the plain one."""

    fusion = "contraction"
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int = 1
    transposed: bool = False
    output_padding: tuple[int, ...] = ()
    samples = [S(f32(2, 3, 7, 6), f32(4, 3, 3, 2), stride=(2, 1), padding=((1, 1), (0, 1)), dilation=(1, 2)),
               S(f32(1, 4, 9), f32(6, 2, 3), stride=(1,), padding=((1, 1),), dilation=(1,), groups=2),
               S(f64(1, 2, 4, 4), f64(3, 2, 1, 1), stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1)),
               S(f32(2, 4, 5), f32(4, 3, 3), stride=(2,), padding=((1, 1),), dilation=(1,), groups=2, transposed=True, output_padding=(1,)),
               S(f32(1, 2, 3, 4), f32(2, 3, 2, 2), stride=(2, 2), padding=((0, 0), (1, 1)), dilation=(1, 2), transposed=True),
               S(f64(2, 2, 3, 4, 2), f64(2, 1, 2, 5, 1), stride=(3, 2, 4), padding=((1, 1), (2, 2), (0, 0)), dilation=(3, 1, 2), groups=2,
                 transposed=True, output_padding=(1, 0, 3)),
               S(f32(N, 2, 3, 40), f32(2, 9, 3, 4), stride=(1, 2), padding=((1, 1), (1, 1)), dilation=(2, 1), transposed=True),
               S(f32(M, 3, 8, 8), f32(2, 3, 4, 4), stride=(4, 4), padding=((0, 0), (0, 0)), dilation=(1, 1)),
               S(bf16(1, 3, 5), bf16(2, 3, 2), stride=(1,), padding=((0, 0),), dilation=(1,)),
               S(f32(1, 2, 2, 3, 3), f32(2, 2, 2, 2, 2), stride=(1, 1, 1), padding=((0, 0), (1, 0), (0, 0)), dilation=(1, 1, 1)),
               S(f32(1, 3, M + 2), f32(2, 3, 3), stride=(2,), padding=((0, 0),), dilation=(1,))]
    errors = [E(f32(1, 3, 5), f32(2, 4, 3), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="w must have 3 input channels a group, got w=f32"),
              E(f32(1, 3, 5), f32(2, 3, 7), stride=(1,), padding=((0, 0),), dilation=(1,),
                match="the kernel does not fit the padded input"),
              E(f32(1, 3, 5), f32(2, 3, 3), stride=(1, 1), padding=((0, 0),), dilation=(1,),
                match="needs stride, padding and dilation for 1 spatial axes"),
              E(f32(1, 3, 5), f32(4, 1, 3), stride=(1,), padding=((0, 0),), dilation=(1,), groups=2,
                match="channels must divide into 2 groups"),
              E(f32(1, 3, 5), f64(2, 3, 3), stride=(1,), padding=((0, 0),), dilation=(1,), match="operands must have one dtype"),
              E(f32(3, 5), f32(2, 3), stride=(), padding=(), dilation=(), match="needs x and w of one rank, 3 or more"),
              E(f32(1, 3, 5), f32(2, 3, 3), stride=(0,), padding=((0, 0),), dilation=(1,), match="stride and dilation must be positive")]

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        require_kind((x, w), "f")
        dtype = require_one_dtype((x, w))
        spatial = x.ndim - 2
        require(x.ndim == w.ndim and spatial >= 1, "needs x and w of one rank, 3 or more", x=x, w=w)
        ok = len(self.stride) == len(self.padding) == len(self.dilation) == spatial and len(self.output_padding) in (0, spatial)
        require(ok, "needs stride, padding and dilation for {spatial} spatial axes", spatial=spatial, stride=self.stride,
                padding=self.padding, dilation=self.dilation)
        require(all(s > 0 for s in (*self.stride, *self.dilation)), "stride and dilation must be positive", stride=self.stride,
                dilation=self.dilation)
        channels, g = x.shape[1], self.groups
        shared = w.shape[0] if self.transposed else channels
        require(g > 0 and isinstance(channels, int) and channels % g == 0 and isinstance(w.shape[0], int) and w.shape[0] % g == 0,
                "channels must divide into {g} groups", g=g, x=x, w=w)
        want = channels if self.transposed else channels // g
        got = shared if self.transposed else w.shape[1]
        require(got == want, "w must have {want} input channels a group", want=want, w=w)
        out = w.shape[1] * g if self.transposed else w.shape[0]
        return TensorType(dtype, (x.shape[0], out, *self._spatial(x.shape[2:], w.shape[2:])))

    def _spatial(self, sizes: Shape, kernel: Shape) -> Shape:
        out: list[Dim] = []
        extra = self.output_padding or (0,) * len(sizes)
        for d, k, s, (lo, hi), dil, more in zip(sizes, kernel, self.stride, self.padding, self.dilation, extra, strict=True):
            if self.transposed:
                size = (d - 1) * s - lo - hi + dil * (k - 1) + more + 1
                require_room(size, "the padding is larger than the result", size=d, kernel=k, padding=(lo, hi), dilation=dil)
                out.append(size)
                continue
            room = d + lo + hi - dil * (k - 1) - 1
            require_room(room, "the kernel does not fit the padded input", size=d, kernel=k, padding=(lo, hi), dilation=dil)
            out.append(room // s + 1)
        return tuple(out)

    def ref(self, x: Any, w: Any) -> Any:
        if not self.transposed:
            return correlate(x, w, self.stride, self.padding, self.dilation, self.groups)
        # The gradient of a convolution is one with stride 1 on x spread out by stride, with w's taps reversed.
        spread = np.zeros((*x.shape[:2], *((d - 1) * s + 1 for d, s in zip(x.shape[2:], self.stride, strict=True))), x.dtype)
        spread[(slice(None), slice(None), *(slice(None, None, s) for s in self.stride))] = x
        reach = [dil * (k - 1) for dil, k in zip(self.dilation, w.shape[2:], strict=True)]
        extra = self.output_padding or (0,) * len(reach)
        pads = tuple((r - lo, r - hi + e) for r, (lo, hi), e in zip(reach, self.padding, extra, strict=True))
        g = self.groups
        flipped = np.flip(w, axis=tuple(range(2, w.ndim))).reshape(g, w.shape[0] // g, *w.shape[1:])
        swapped = np.swapaxes(flipped, 1, 2).reshape(g * w.shape[1], w.shape[0] // g, *w.shape[2:])
        crop = tuple((max(-lo, 0), max(-hi, 0)) for lo, hi in pads)
        spread = spread[(slice(None), slice(None), *(slice(lo, d - hi) for (lo, hi), d in zip(crop, spread.shape[2:], strict=True)))]
        pads = tuple((max(lo, 0), max(hi, 0)) for lo, hi in pads)
        return correlate(spread, swapped, (1,) * len(reach), pads, self.dilation, g)

    def flops(self, x: TensorType, w: TensorType) -> Dim:
        if self.transposed:
            return 2 * x.numel * product(w.shape[1:])
        return 2 * self.infer(x, w).numel * product(w.shape[1:])

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, w = inputs
        several = self._several(x, w)
        if several == 1:
            return (self._data(x, w, g) if wanted[0] else None, self._weight(x, w, g) if wanted[1] else None)
        # every result by a channel of its own: those that share one add up
        n, channels, *sizes = x.shape
        split = (n, channels, several, *sizes)
        wide = F.reshape(F.expand(F.reshape(x, (n, channels, 1, *sizes)), split), (n, channels * several, *sizes))
        apart = dataclasses.replace(self, groups=self.groups * several)
        back = F.sum_(F.reshape(apart._data(wide, w, g), split), (2,)) if wanted[0] else None
        return back, apart._weight(wide, w, g) if wanted[1] else None

    def _several(self, x: Value, w: Value) -> int:
        """Results of every channel, where each reads one channel alone; else 1."""
        channels, results = x.shape[1], w.shape[0]
        alone = not self.transposed and isinstance(channels, int) and isinstance(results, int) and self.groups == channels > 1
        return results // channels if alone and w.shape[1] == 1 and channels else 1

    def _data(self, x: Value, w: Value, g: Value) -> Value:
        """The transposed convolution is the gradient of the plain one, and the other way round."""
        if self.transposed:
            out: Value = dataclasses.replace(self, transposed=False, output_padding=())(g, w)
            return cropped(out, x.shape)
        ones = (1,) * len(self.stride)
        by_itself = self._depthwise(x, w)
        if self.groups > 1 and (by_itself or self.stride == ones) and (pads := self._pads_back(x, w, g)):
            taps = F.flip(w if by_itself else self._swapped(w), tuple(range(2, len(w.shape))))
            return F.emit(dataclasses.replace(self, stride=ones, padding=pads), spread_apart(g, (1, 1, *self.stride)), taps)
        back = dataclasses.replace(self, transposed=True, output_padding=())
        made = back._spatial(g.shape[2:], w.shape[2:])
        missing = tuple(d - m for d, m in zip(x.shape[2:], made, strict=True))
        if all(isinstance(d, int) for d in missing):
            return F.emit(dataclasses.replace(back, output_padding=missing), g, w)
        # a symbolic size: all that windows reach, zeros for up to stride - 1 elements behind, of which as many as x has
        whole: Value = dataclasses.replace(back, padding=tuple((lo, 0) for lo, _ in self.padding))(g, w)
        behind = (max(s - 1 - hi, 0) for s, (_, hi) in zip(self.stride, self.padding, strict=True))
        return cropped(F.pad(whole, (0,) * len(x.shape), (0, 0, *behind)), x.shape)

    def _swapped(self, w: Value) -> Value:
        """Weights [O, C/groups, …] as [C, O/groups, …]."""
        (out, inner, *taps), n = w.shape, self.groups
        apart = F.transpose(F.reshape(w, (n, out // n, inner, *taps)), (0, 2, 1, *range(3, len(taps) + 3)))
        return F.reshape(apart, (n * inner, out // n, *taps))

    def _pads_back(self, x: Value, w: Value, g: Value) -> Pairs:
        """The padding of the convolution of the spread cotangent with the taps reversed; none where a size is unknown or it would cut."""
        pads = []
        for d, k, o, s, (lo, _), dil in zip(x.shape[2:], w.shape[2:], g.shape[2:], self.stride, self.padding, self.dilation, strict=True):
            if not (isinstance(d, int) and isinstance(k, int) and isinstance(o, int)):
                return ()
            pads.append((dil * (k - 1) - lo, d - (o - 1) * s - 1 + lo))
        return tuple(pads) if all(min(p) >= 0 for p in pads) else ()

    def _depthwise(self, x: Value, w: Value) -> bool:
        return self.groups == x.shape[1] == w.shape[0] and w.shape[1] == 1 and self.groups > 1

    def _weight(self, x: Value, w: Value, g: Value) -> Value:
        data, taps = (g, x) if self.transposed else (x, g)
        kernel = tuple(k for k in w.shape[2:] if isinstance(k, int))
        if self._depthwise(x, w) and len(kernel) == len(self.stride):
            made = F.one("tap_products", data, taps, kernel=kernel, stride=self.stride, dilation=self.dilation, padding=self.padding)
            return F.reshape(made, w.shape)
        if len(kernel) == len(self.stride):
            return F.one("weight_gradient", data, taps, kernel=kernel, stride=self.stride, dilation=self.dilation, padding=self.padding,
                         groups=self.groups)
        return by_convolution(data, taps, w.shape, self)

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return batched_convolution(self, inputs, batched, size)


def batched_convolution(op: Any, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
    """A convolution of several cases: a longer batch where they share the weights, else each case is a group of channels."""
    x, w = inputs
    if not batched[1]:
        out = op(F.reshape(x, (size * x.shape[1], *x.shape[2:])), w)
        return (F.reshape(out, (size, x.shape[1], *out.shape[1:])),)
    if not isinstance(size, int):
        raise UnsupportedError(f"{op.name}: a batch of kernels needs a known size, got {size}")
    x = F.broadcast_batch(x, batched[0], size)  # [size, N, C, ...] -> [N, size * C, ...]
    swapped = F.transpose(x, (1, 0, *range(2, len(x.shape))))
    n, _, c = swapped.shape[:3]
    wide = dataclasses.replace(op, groups=op.groups * size)
    out = wide(F.reshape(swapped, (n, size * c, *swapped.shape[3:])), F.reshape(w, (size * w.shape[1], *w.shape[2:])))
    apart = F.reshape(out, (n, size, out.shape[1] // size, *out.shape[2:]))
    return (F.transpose(apart, (1, 0, *range(2, len(apart.shape)))),)


def cropped(x: Value, shape: Shape) -> Value:
    """The first elements of each axis."""
    for axis, d in enumerate(shape):
        x = x if x.shape[axis] == d else F.slice_(x, axis, 0, d)
    return x


def by_convolution(data: Value, taps: Value, shape: Shape, op: Any) -> Value:
    """The gradient of weights of this shape: a convolution of the input with the cotangent, whose batch is the sum and whose stride and
    dilation change places."""
    groups, n, kernel = op.groups, data.shape[0], shape[2:]
    inner = data.shape[1] // groups
    order = tuple(range(3, len(data.shape) + 1))
    grouped = F.transpose(F.reshape(data, (n, groups, inner, *data.shape[2:])), (2, 1, 0, *order))
    stacked = F.reshape(grouped, (inner, groups * n, *data.shape[2:]))
    swapped = F.transpose(taps, (1, 0, *range(2, len(taps.shape))))
    padding = list(op.padding)
    for a, (k, o, s, d, (lo, hi)) in enumerate(zip(kernel, taps.shape[2:], op.stride, op.dilation, op.padding, strict=True)):
        size = stacked.shape[2 + a]
        if isinstance(size, int) and isinstance(o, int) and isinstance(k, int) and isinstance(lo, int) and isinstance(hi, int):
            more = size + lo + hi - ((k - 1) * d + (o - 1) * s + 1)  # pixels behind the last window, which would be further taps
            padding[a] = lo, max(hi - more, 0)
            if more > hi:
                stacked = F.slice_(stacked, 2 + a, 0, size + hi - more)
    conv = Conv(stride=op.dilation, padding=tuple(padding), dilation=op.stride, groups=groups)
    out = conv(stacked, swapped)  # [inner, channels of taps, at least the kernel]
    return cropped(F.transpose(out, (1, 0, *range(2, len(out.shape)))), shape)


def by_taps(data: Value, taps: Value, shape: Shape, op: Any) -> Value:
    """The same where sizes vary: a product over all pixels of the batch for every tap of the kernel."""
    def rows(v: Value) -> Value:  # [groups, channels of a group, batch * pixels]
        split = F.transpose(v, (1, 0, *range(2, len(v.shape))))
        return F.reshape(split, (op.groups, v.shape[1] // op.groups, product((v.shape[0], *v.shape[2:]))))

    padded = F.pad(data, (0, 0, *(lo for lo, _ in op.padding)), (0, 0, *(hi for _, hi in op.padding)))
    left, found = rows(taps), []
    for place in cartesian(*map(range, op.kernel)):
        window = F.emit(Slice(starts=(0, 0, *(i * d for i, d in zip(place, op.dilation, strict=True))),
                              sizes=(*data.shape[:2], *taps.shape[2:]), steps=(1, 1, *op.stride)), padded)
        found.append(F.reshape(F.matmul(left, rows(window), transpose_b=True), (*shape[:2], 1)))
    return F.reshape(found[0] if len(found) == 1 else F.concat(found, 2), shape)


def correlate(x: Any, w: Any, stride: tuple[int, ...], padding: Pairs, dilation: tuple[int, ...], groups: int) -> Any:
    """Sum over kernel taps of a strided window of x times that tap's matrix; accumulated in f64."""
    padded = np.pad(x, ((0, 0), (0, 0), *padding)).astype(np.float64)
    kernel = w.shape[2:]
    out = [(d - dil * (k - 1) - 1) // s + 1 for d, k, s, dil in zip(padded.shape[2:], kernel, stride, dilation, strict=True)]
    batch, channels = x.shape[:2]
    total = np.zeros((batch, groups, w.shape[0] // groups, *out))
    taps = w.astype(np.float64).reshape(groups, w.shape[0] // groups, *w.shape[1:])
    for tap in cartesian(*(range(k) for k in kernel)):
        places = zip(tap, dilation, out, stride, strict=True)
        window = padded[(slice(None), slice(None), *(slice(t * dil, t * dil + (n - 1) * s + 1, s) for t, dil, n, s in places))]
        grouped = window.reshape(batch, groups, channels // groups, *out)
        total += np.einsum("ngc...,goc->ngo...", grouped, taps[(slice(None), slice(None), slice(None), *tap)])
    return total.reshape(batch, w.shape[0], *out).astype(x.dtype)


@register
class PairSums(Composite):
    """out[…, i, j] = sum over k of |a[…, i, k] - b[…, j, k]| ** power (1 or 2), or the largest (power inf)."""

    whole = True
    power: float
    samples = [*(S(f32(2, 5, 7), f32(2, 9, 7), power=p) for p in (1.0, 2.0, math.inf)), S(f64(3, 70), f64(19, 70), power=2.0),
               S(bf16(2, 3), bf16(4, 3), power=1.0), S(f32(0, 3), f32(4, 3), power=2.0), S(f32(3, 0), f32(4, 0), power=2.0),
               S(f32(N, 4), f32(5, 4), power=2.0)]
    errors = [E(f32(3, 4), f32(3, 5), power=2.0, match="needs rows of one length"),
              E(f32(3, 4), f32(3, 4), power=3.0, match="power must be 1, 2 or inf"),
              E(i32(3, 4), i32(3, 4), power=2.0, match="needs float operands"), E(f32(2, 3, 4), f32(3, 4), power=2.0, match="needs rows")]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_kind((a, b), "f")
        require_one_dtype((a, b))
        require(self.power in (1.0, 2.0, math.inf), "power must be 1, 2 or inf", power=self.power)
        require(a.ndim == b.ndim >= 2 and a.shape[:-2] == b.shape[:-2] and a.shape[-1] == b.shape[-1],
                "needs rows of one length, in batches of one shape", a=a, b=b)
        return a.with_shape((*a.shape[:-1], b.shape[-2]))

    def ref(self, a: Any, b: Any) -> Any:
        gap = np.abs(a.astype(np.float64)[..., :, None, :] - b.astype(np.float64)[..., None, :, :])
        if self.power == math.inf:
            return np.max(gap, -1, initial=0.0).astype(a.dtype)
        return np.sum(gap**self.power, -1).astype(a.dtype)

    def decompose(self, a: Value, b: Value) -> Value:
        left, right = F.reshape(a, (*a.shape[:-1], 1, a.shape[-1])), F.reshape(b, (*b.shape[:-2], 1, *b.shape[-2:]))
        gap, last = F.sub(left, right), (len(a.shape),)
        if self.power == math.inf:
            return F.max_(F.abs_(gap), last)
        return F.sum_(F.square(gap) if self.power == 2 else F.abs_(gap), last)

    def flops(self, *types: TensorType) -> Dim:
        return 3 * types[0].numel * types[1].shape[-2]
