"""Exact products of 8-bit integers with 32-bit results, and the way back to 8 bits.

`IntMatmul` and `IntConv` are what users write. With one matrix of weights both become a `PackWords` (four values to a word, sixteen rows
side by side; constants are packed at compile time) and an `IntDot`, whose kernel adds four products in one instruction where the CPU can.
"""
from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Shape, ceildiv, product
from ...core.dtypes import DType
from ...core.errors import require
from ...core.needs import require_room
from ...core.target_spec import TargetSpec
from ...core.words import LANES, words_of
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, NotSupported, S, Values, register
from ..families import (
    Composite,
    Contraction,
    General,
    N,
    broadcast_shapes,
    f32,
    i8,
    i32,
    i64,
    require_axis,
    require_kind,
    show_shape,
    u8,
)
from ..packed.fake_quant import along, along_array
from ..structure import Constant, ConstantData, Derived
from .contractions import Conv, Pairs, batched_convolution, batched_product

EXACT = 1 << 24  # integers below it are exact in f32
INTEGERS = NotSupported("its operands are integers, which have no tangents; train with fake_quantize")
LEADING = NotSupported("int_matmul is what is batched; this is what it becomes")


def require_quantized(x: TensorType, w: TensorType) -> None:
    require(x.dtype in (dt.i8, dt.u8), "x must be i8 or u8", x=x)
    require(w.dtype is dt.i8, "weights must be i8", w=w)


@register
class PackWords(General):
    """Weights i8[n, k] as words i32[ceil(n/16), ceil(k/4), 16] of four values along k (zeros outside), and the sum of each row, i32[n]."""

    unsupported = {"vjp": INTEGERS, "jvp": INTEGERS, "batch": LEADING}
    samples = [S(i8(5, 7), low=-128, high=127), S(i8(16, 4), low=-128, high=127), S(i8(33, 64), low=-128, high=127), S(i8(0, 3)),
               S(i8(3, 0)), S(i8(N, 9), low=-128, high=127)]
    errors = [E(u8(3, 4), match="weights must be i8"), E(i8(3), match="needs a matrix")]

    def infer(self, w: TensorType) -> tuple[TensorType, TensorType]:
        require(w.dtype is dt.i8, "weights must be i8", w=w)
        require(w.ndim == 2, "needs a matrix", w=w)
        n, k = w.shape
        return TensorType(dt.i32, (ceildiv(n, LANES), ceildiv(k, 4), LANES)), TensorType(dt.i32, (n,))

    def ref(self, w: Any) -> Any:
        return words_of(w), w.sum(1, dtype=np.int32)

    def flops(self, w: TensorType) -> Dim:
        return w.numel


class Words(Derived):
    """What `PackWords` makes of constant weights."""

    def __init__(self, of: ConstantData) -> None:
        n, k = of.type.shape
        super().__init__(of.name, TensorType(dt.i32, (ceildiv(n, LANES), ceildiv(k, 4), LANES)))
        self.of = of

    def make(self) -> Any:
        return words_of(self.of.array)

    @property
    def place(self) -> Any:
        return "words", self.of.place, self.of.type


@register
class IntDot(Contraction):
    """Windows of x[..., *spatial, c] (i8 or u8, c a multiple of 4) times packed weights: i32[..., *out, n]. The windows have the sizes
    `kernel` along the spatial axes; none: a matrix product. For i8 the sums stand in for what adding 128 to every code brings in."""

    fusion = "contraction"
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    unsupported = {"vjp": INTEGERS, "jvp": INTEGERS, "batch": LEADING}
    samples = [S(i8(3, 8), i32(1, 2, 16), i32(5), low=(-128, -2e9, -99), high=(127, 2e9, 99)),
               S(u8(2, 7, 4), i32(3, 1, 16), i32(33), low=(0, -2e9, -99), high=(255, 2e9, 99)),
               S(i8(2, 5, 6, 4), i32(1, 6, 16), i32(16), kernel=(3, 2), stride=(2, 1), dilation=(1, 2), low=(-128, -2e9, -99),
                 high=(127, 2e9, 99)),
               S(i8(N, 12), i32(2, 3, 16), i32(17), low=(-128, -2e9, -99), high=(127, 2e9, 99)),
               S(u8(2, 9, 8), i32(1, 6, 16), i32(3), kernel=(3,), stride=(1,), dilation=(1,), low=(0, -2e9, -99), high=(255, 2e9, 99))]
    errors = [E(i32(3, 8), i32(1, 2, 16), i32(5), match="x must be i8 or u8"),
              E(i8(3, 7), i32(1, 2, 16), i32(5), match="the last dim of x must be a known multiple of 4"),
              E(i8(3, 8), i32(1, 3, 16), i32(5), match=r"words must be i32\[1,2,16\]"),
              E(i8(3, 8), i32(1, 2, 16), i64(5), match="sums must be i32"),
              E(i8(2, 4), i32(1, 3, 16), i32(5), kernel=(3,), stride=(1,), dilation=(1,), match="the windows do not fit"),
              E(i8(4, 4), i32(1, 3, 16), i32(5), kernel=(3,), stride=(0,), dilation=(1,), match="stride and dilation must be positive")]

    def out_shape(self, x: Shape) -> Shape:
        rank = len(self.kernel)
        out = list(x[: len(x) - 1 - rank])
        for d, k, s, dil in zip(x[len(x) - 1 - rank : -1], self.kernel, self.stride, self.dilation, strict=True):
            room = d - dil * (k - 1) - 1
            require_room(room, "the windows do not fit", size=d, kernel=k, dilation=dil)
            out.append(room // s + 1)
        return tuple(out)

    def infer(self, x: TensorType, words: TensorType, sums: TensorType) -> TensorType:
        require(x.dtype in (dt.i8, dt.u8), "x must be i8 or u8", x=x)
        rank = len(self.kernel)
        require(len(self.stride) == len(self.dilation) == rank and x.ndim > rank, "needs a stride and a dilation a window axis, and x of "
                "higher rank", x=x, kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        require(all(n >= 1 for n in (*self.kernel, *self.stride, *self.dilation)), "kernel, stride and dilation must be positive",
                kernel=self.kernel, stride=self.stride, dilation=self.dilation)
        c = x.shape[-1]
        require(isinstance(c, int) and c % 4 == 0, "the last dim of x must be a known multiple of 4", x=x)
        require(sums.dtype is dt.i32 and sums.ndim == 1, "sums must be i32[n]", sums=sums)
        n = sums.shape[0]
        want = (ceildiv(n, LANES), product(self.kernel) * c // 4, LANES)
        require(words.dtype is dt.i32 and words.shape == want, "words must be i32{want}", want=show_shape(want), words=words)
        return TensorType(dt.i32, (*self.out_shape(x.shape), n))

    def ref(self, x: Any, words: Any, sums: Any) -> Any:
        n, taps, rank = len(sums), product(self.kernel), len(self.kernel)
        integers = np.ascontiguousarray(words).view(np.int8).reshape(*words.shape, 4).swapaxes(1, 2).reshape(words.shape[0] * LANES, -1)[:n]
        spatial = tuple(range(x.ndim - 1 - rank, x.ndim - 1))
        lead = x.shape[: x.ndim - 1 - rank]
        if rank:
            reach = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
            view: Any = np.lib.stride_tricks.sliding_window_view(x, reach, axis=spatial)
            steps: list[Any] = [slice(None, None, s) for s in self.stride]
            gaps: list[Any] = [slice(None, None, d) for d in self.dilation]
            view = view[(..., *steps, slice(None), *gaps)]  # [..., *out, c, *kernel]
            rows: Any = np.moveaxis(view, len(lead) + rank, -1)
        else:
            rows = x
        shift = 128 if x.dtype == np.int8 else 0
        rows = rows.reshape(*self.out_shape(x.shape), taps * x.shape[-1]).astype(np.int64) + shift
        return (rows @ integers.T.astype(np.int64) - shift * sums.astype(np.int64)).astype(np.int32)

    def flops(self, x: TensorType, words: TensorType, sums: TensorType) -> Dim:
        return 2 * self.infer(x, words, sums).numel * product(self.kernel) * x.shape[-1]


def packed_dot(x: Value, rows: Value, **windows: Any) -> Value:
    """x with its last axis filled to a multiple of 4, times the rows of a matrix."""
    words, sums = F.apply("pack_words", rows)
    out = F.apply("int_dot", x, words, sums, **windows)
    assert isinstance(out, Value)
    return out


def filled(x: Value, size: int) -> Value:
    """Zeros behind the last axis up to a multiple of 4."""
    rank = len(x.shape)
    return F.pad(x, (0,) * rank, (*(0,) * (rank - 1), -size % 4), 0)


@register
class IntMatmul(Composite):
    """a @ b in integers: a i8 or u8, b i8, result i32 (exact, wrapping beyond 32 bits). b may be stored transposed."""

    transpose_b: bool = False
    unsupported = {"vjp": INTEGERS, "jvp": INTEGERS}
    samples = [S(i8(3, 5), i8(5, 4), low=-128, high=127), S(u8(3, 70), i8(33, 70), transpose_b=True, low=(0, -128), high=(255, 127)),
               S(i8(2, 3, 4), i8(4, 6), low=-128, high=127), S(i8(N, 64), i8(16, 64), transpose_b=True, low=-128, high=127),
               S(i8(2, 1, 3, 4), i8(5, 4, 2), low=-128, high=127), S(i8(2, 0), i8(0, 3)), S(i8(0, 4), i8(4, 3)),
               S(i8(3, N), i8(N, 2), low=-128, high=127)]
    errors = [E(f32(3, 5), i8(5, 4), match="x must be i8 or u8"), E(i8(3, 5), u8(5, 4), match="weights must be i8"),
              E(i8(3, 5), i8(4, 5), match="inner sizes differ: 5 != 4"), E(i8(3), i8(3, 2), match="needs operands of rank 2 or more")]

    def infer(self, a: TensorType, b: TensorType) -> TensorType:
        require_quantized(a, b)
        require(a.ndim >= 2 and b.ndim >= 2, "needs operands of rank 2 or more", a=a, b=b)
        k, n = b.shape[-2:][::-1] if self.transpose_b else b.shape[-2:]
        require(a.shape[-1] == k, "inner sizes differ: {left} != {k}", left=a.shape[-1], k=k, a=a, b=b)
        return TensorType(dt.i32, (*broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], n))

    def ref(self, a: Any, b: Any) -> Any:
        b = np.swapaxes(b, -1, -2) if self.transpose_b else b
        return np.matmul(a.astype(np.int32), b.astype(np.int32))

    def decompose(self, a: Value, b: Value) -> Value:
        k = a.shape[-1]
        if len(b.shape) > 2 or not isinstance(k, int) or k == 0:  # a stack of matrices, or a length that is not known
            return F.matmul(F.cast(a, dt.i32), F.cast(b, dt.i32), transpose_b=self.transpose_b)
        return packed_dot(filled(a, k), b if self.transpose_b else F.transpose(b, (1, 0)))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return batched_product(self, inputs, batched, True)

    def flops(self, a: TensorType, b: TensorType) -> Dim:
        return 2 * self.infer(a, b).numel * a.shape[-1]


@register
class IntConv(Composite):
    """Convolution of x[N,C,*s] (i8 or u8) with w[O,C/groups,*k] (i8) in integers: i32. `border` is what stands around x: its zero
    point."""

    fusion = "contraction"
    stride: tuple[int, ...]
    padding: Pairs
    dilation: tuple[int, ...]
    groups: int = 1
    border: int = 0
    transposed: ClassVar[bool] = False
    output_padding: ClassVar[tuple[int, ...]] = ()
    unsupported = {"vjp": INTEGERS, "jvp": INTEGERS}
    samples = [S(i8(2, 3, 7, 6), i8(4, 3, 3, 2), stride=(2, 1), padding=((1, 1), (0, 1)), dilation=(1, 2), low=-128, high=127),
               S(u8(1, 4, 9), i8(6, 2, 3), stride=(1,), padding=((1, 1),), dilation=(1,), groups=2, border=9, low=(0, -128),
                 high=(255, 127)),
               S(i8(1, 6, 5, 5), i8(6, 1, 3, 3), stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=6, border=-7, low=-128,
                 high=127),
               S(i8(N, 8, 4, 4), i8(17, 8, 1, 1), stride=(1, 1), padding=((0, 0), (0, 0)), dilation=(1, 1), low=-128, high=127),
               S(u8(2, 5, 6, 7), i8(9, 5, 3, 2), stride=(2, 1), padding=((1, 0), (1, 1)), dilation=(1, 2), border=77, low=(0, -128),
                 high=(255, 127)),
               S(u8(1, 6, 7), i8(6, 1, 3), stride=(2,), padding=((1, 1),), dilation=(1,), groups=6, border=3, low=(0, -128),
                 high=(255, 127)),
               S(i8(1, 600, 2), i8(2, 300, 2), stride=(1,), padding=((0, 0),), dilation=(1,), groups=2, low=-128, high=127)]
    errors = [E(f32(1, 3, 5), i8(2, 3, 3), stride=(1,), padding=((0, 0),), dilation=(1,), match="x must be i8 or u8"),
              E(i8(1, 3, 5), i8(2, 4, 3), stride=(1,), padding=((0, 0),), dilation=(1,), match="w must have 3 input channels a group"),
              E(i8(1, 3, 5), i8(2, 3, 3), stride=(1,), padding=((0, -1),), dilation=(1,), match="padding must not be negative"),
              E(u8(1, 3, 5), i8(2, 3, 3), stride=(1,), padding=((0, 0),), dilation=(1,), border=-1, match="border must be a value of u8"),
              E(i8(1, 3, N), i8(2, 3, 3), stride=(1,), padding=((0, 0),), dilation=(1,), groups=0, match="groups")]

    def _plain(self) -> Conv:
        made: Conv = Conv(stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups)
        return made

    def infer(self, x: TensorType, w: TensorType) -> TensorType:
        require_quantized(x, w)
        require(all(p >= 0 for pair in self.padding for p in pair), "padding must not be negative", padding=self.padding)
        info = np.iinfo(x.dtype.np)
        require(info.min <= self.border <= info.max, "border must be a value of {dtype}", dtype=x.dtype, border=self.border)
        return self._plain().infer(x.with_dtype(dt.f32), w.with_dtype(dt.f32)).with_dtype(dt.i32)

    def decomposes(self, operands: Values, target: TargetSpec | None) -> bool:
        return not ((target is None or target.kind == "cpu") and self.direct(*operands))

    def direct(self, x: Value, w: Value) -> bool:
        """Whether a kernel reads channels as they lie: unsigned values by constant weights, whole words of channels a group (one group is
        copied where it has others), or every channel by itself."""
        channels, results, groups = x.shape[1], w.shape[0], self.groups
        constant = isinstance(w.op, Constant) and all(isinstance(d, int) for d in w.shape) and isinstance(channels, int)
        return x.dtype is dt.u8 and constant and (groups == 1 or channels // groups % 4 == 0 or groups == channels == results)

    def _around(self, x: Any) -> Any:
        return np.pad(x, ((0, 0), (0, 0), *self.padding), constant_values=self.border)

    def ref(self, x: Any, w: Any) -> Any:
        bare = Conv(stride=self.stride, padding=((0, 0),) * len(self.stride), dilation=self.dilation, groups=self.groups)
        return np.rint(bare.ref(self._around(x).astype(np.float64), w.astype(np.float64))).astype(np.int32)

    def decompose(self, x: Value, w: Value) -> Value:
        lo, hi = zip(*self.padding, strict=True)
        bare = Conv(stride=self.stride, padding=((0, 0),) * len(self.stride), dilation=self.dilation, groups=self.groups)
        depth = product(w.shape[1:])
        if self.groups > 1 and isinstance(depth, int) and depth * 128 * 255 < EXACT:  # sums of few products are exact in f32
            return F.cast(bare(F.cast(F.pad(x, (0, 0, *lo), (0, 0, *hi), self.border), dt.f32), F.cast(w, dt.f32)), dt.i32)
        if self.groups > 1:
            c, o = x.shape[1] // self.groups, w.shape[0] // self.groups
            assert isinstance(c, int) and isinstance(o, int)
            parts = [self._windows(F.slice_(x, 1, g * c, c), F.slice_(w, 0, g * o, o)) for g in range(self.groups)]
            return F.concat(parts, 1)
        return self._windows(x, w)

    def _windows(self, x: Value, w: Value) -> Value:
        """Channels last, a multiple of four of them: a window's quantized values are then runs of words."""
        rank = len(self.stride)
        c = w.shape[1]
        assert isinstance(c, int)
        lo, hi = zip(*self.padding, strict=True)
        rows = F.pad(F.transpose(x, (0, *range(2, rank + 2), 1)), (0, *lo, 0), (0, *hi, -c % 4), self.border)
        taps = filled(F.transpose(w, (0, *range(2, rank + 2), 1)), c)
        matrix = F.reshape(taps, (w.shape[0], product(taps.shape[1:])))
        out = packed_dot(rows, matrix, kernel=tuple(w.shape[2:]), stride=self.stride, dilation=self.dilation)
        return F.transpose(out, (0, rank + 1, *range(1, rank + 1)))

    def batch(self, inputs: Values, batched: tuple[bool, ...], size: Dim) -> Values:
        return batched_convolution(self, inputs, batched, size)

    def flops(self, x: TensorType, w: TensorType) -> Dim:
        return 2 * self.infer(x, w).numel * product(w.shape[1:])


@register
class Requantize(Composite):
    """round(acc * multiplier) + zero point, halves to even, clamped to an integer dtype: from the i32 results of a product to the values of
    the next one. The multiplier is s_x s_w / s_y, one or one per index of `axis`. Computed in the multiplier's dtype."""

    axis: int | None = None
    dtype: DType = dt.i8
    work = 4
    unsupported = {"vjp": INTEGERS, "jvp": INTEGERS}
    samples = [S(i32(3, 5), f32(), i32(), low=(-9000, 0.001, -9), high=(9000, 0.02, 9)),
               S(i32(2, 4, 3), f32(4), i32(4), axis=1, dtype=dt.u8, low=(-9000, 0.001, 90), high=(9000, 0.02, 140)),
               S(i32(N, 3), f32(3), i32(3), axis=1, low=(-9000, 0.001, -9), high=(9000, 0.02, 9))]
    errors = [E(f32(3), f32(), i32(), match="accumulators must be i32"), E(i32(3), i32(), i32(), match="needs float operands"),
              E(i32(3), f32(3), i32(), axis=0, match="the zero point must have shape"),
              E(i32(3), f32(), i32(), dtype=dt.f32, match="values must be of an integer dtype")]

    def infer(self, acc: TensorType, multiplier: TensorType, zero: TensorType) -> TensorType:
        require(acc.dtype is dt.i32, "accumulators must be i32", acc=acc)
        require_kind((multiplier,), "f")
        require_kind((zero,), "i")
        require(self.dtype.is_int and self.dtype.itemsize < 4, "values must be of an integer dtype of 8 or 16 bits", dtype=self.dtype)
        if self.axis is not None:
            require_axis(self.axis, acc.ndim)
        want = () if self.axis is None else (acc.shape[self.axis],)
        for name, v in (("multiplier", multiplier), ("zero point", zero)):
            require(v.shape == want, "the {name} must have shape {want}", name=name, want=show_shape(want), value=v)
        return acc.with_dtype(self.dtype)

    def ref(self, acc: Any, multiplier: Any, zero: Any) -> Any:
        m, z = (along_array(v, self.axis, acc.ndim) for v in (multiplier, zero))
        info = np.iinfo(self.dtype.np)
        return np.clip(np.rint(acc.astype(m.dtype) * m) + z, info.min, info.max).astype(self.dtype.np)

    def decompose(self, acc: Value, multiplier: Value, zero: Value) -> Value:
        rank, info = len(acc.shape), np.iinfo(self.dtype.np)
        scaled = F.mul(F.cast(acc, multiplier.dtype), along(multiplier, self.axis, rank))
        integers = F.add(F.apply("round", scaled), F.cast(along(zero, self.axis, rank), multiplier.dtype))
        return F.cast(F.minimum(F.maximum(integers, float(info.min)), float(info.max)), self.dtype)
