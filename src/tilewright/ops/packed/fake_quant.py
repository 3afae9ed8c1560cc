"""Quantization for training: rounding to values of few bits and back in one op, with straight-through derivatives.

Values are symmetric: -q … q with q = 2^(bits-1) - 1 (127, 7, 3, 1 for 8, 4, 3, 2 bits), halves to even. A scale is one number, or one per
index of `axis`. A scale of 0 (an operand of only zeros) counts as 1.

Integer quantized values with a scale and a zero point (one, or one per index of an axis), and products that are made of plain ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim
from ...core.dtypes import DType
from ...core.errors import require
from ...ir.graph import Value
from ...ir.types import TensorType
from .. import functions as F
from ..base import E, MaybeValues, NotSupported, Pulled, S, Values, register
from ..families import Composite, M, N, bf16, f32, f64, i8, i32, i64, require_axis, require_kind, require_one_dtype, show_shape, u8
from ..rows.reductions import wide

ESTIMATORS = ("identity", "clipped", "tanh", "hard_tanh")
BITS = (2, 3, 4, 8)


def largest_value(bits: int) -> int:
    return (1 << (bits - 1)) - 1


def require_quantized(bits: int, axis: int | None, x: TensorType) -> None:
    require_kind((x,), "f")
    require(bits in BITS, "bits must be one of 2 3 4 8", bits=bits)
    if axis is not None:
        require_axis(axis, x.ndim)


def require_scale(scale: TensorType, axis: int | None, x: TensorType) -> None:
    require_one_dtype((x, scale))
    want = () if axis is None else (x.shape[axis],)
    require(scale.shape == want, "the scale must have shape {want}", want=show_shape(want), scale=scale)


def along(scale: Value, axis: int | None, rank: int) -> Value:
    """A scale of one number or one per index of `axis`, broadcast against an operand of `rank` axes."""
    return scale if axis is None else F.reshape(scale, tuple(scale.shape[0] if a == axis else 1 for a in range(rank)))


def along_array(scale: Any, axis: int | None, rank: int) -> Any:
    return scale if axis is None else scale.reshape([-1 if a == axis else 1 for a in range(rank)])


def off_halves(*, bits: int = 8, axis: int | None = None, mode: str = "fixed", decay: float = 0.99) -> Callable[[list[Any]], list[Any]]:
    """For samples: elements whose quotient by the scale is so near a half that f32 and f64 may round it apart become whole multiples."""

    def fit(arrays: list[Any]) -> list[Any]:
        x, *rest = arrays
        for _ in range(4):  # a new maximum gives a new scale
            y = x.astype(np.float64)
            scale = rest[0].astype(np.float64) if rest else np.zeros(())
            if mode != "fixed":
                found = np.max(np.abs(y), axis=tuple(a for a in range(x.ndim) if a != axis)) / largest_value(bits)
                scale = found if mode == "batch" else decay * scale + (1 - decay) * found
            s = along_array(scale, axis, x.ndim)
            quantized = np.rint(y / s)
            x = np.where(np.abs(y / s - quantized) > 0.45, quantized * s, y).astype(x.dtype)
        return [x, *rest]

    return fit


def rounded(x: Value, scale: Value, limit: int) -> Value:
    """x rounded to scale times a code. Operands of 16 bits are wide here: in 16 bits a quotient near a half would round twice."""
    quantized = F.minimum(F.maximum(F.apply("round", F.div(x, scale)), -limit), limit)
    return F.mul(quantized, scale)


def without_zero(scale: Value) -> Value:
    return F.where(F.equal(scale, 0), 1, scale)


@register
class FakeQuantize(Composite):
    """x rounded to few bits and back. The scale is max|x| / q of this operand (`batch`), a given one (`fixed`: second operand), or a
    running mean of those (`ema`: the second operand is the old scale, the second result the new one, which is used). `estimator` is the
    derivative with respect to x: the identity, the identity where nothing was clipped, 1 - tanh(x/s)^2, or max(0, 1 - |x/(q s)|); scales
    have none."""

    bits: int = 8
    axis: int | None = None
    estimator: str = "identity"
    mode: str = "batch"
    decay: float = 0.99
    work = 6
    samples = [S(f32(3, 5), fit=off_halves(mode="batch")),
               S(f32(4, 6), bits=4, axis=0, estimator="clipped", fit=off_halves(bits=4, axis=0, mode="batch")),
               S(f64(2, 3, 4), f64(3), bits=2, axis=1, estimator="tanh", mode="fixed", low=(-2, 0.1), high=(2, 1), fit=off_halves(axis=1)),
               S(f32(3, 4), f32(), bits=3, estimator="hard_tanh", mode="ema", low=(-2, 0.1), high=(2, 1),
                 fit=off_halves(bits=3, mode="ema")),
               S(bf16(4, 3), fit=off_halves(mode="batch")),
               S(f32(3, 7), f32(7), axis=1, mode="ema", decay=0.5, low=(-2, 0.1), high=(2, 1),
                 fit=off_halves(axis=1, mode="ema", decay=0.5)),
               S(f32(3, M), axis=0, bits=4, fit=off_halves(bits=4, axis=0, mode="batch"))]
    errors = [E(f32(3), bits=5, match="bits must be one of 2 3 4 8, got bits=5"), E(f32(3), axis=1, match="axis must be in 0..0"),
              E(f32(3), estimator="sign", match="estimator must be one of"),
              E(f32(3), mode="best", match="mode must be batch, ema or fixed"),
              E(f32(3), mode="fixed", match="mode=fixed takes 2 operands"),
              E(f32(3, 4), f32(3), axis=1, mode="fixed", match="the scale must have shape"),
              E(i32(3), match="needs float operands")]

    def infer(self, x: TensorType, *scale: TensorType) -> TensorType | tuple[TensorType, ...]:
        require_quantized(self.bits, self.axis, x)
        require(self.estimator in ESTIMATORS, "estimator must be one of {known}", known=" ".join(ESTIMATORS), estimator=self.estimator)
        require(self.mode in ("batch", "ema", "fixed"), "mode must be batch, ema or fixed", mode=self.mode)
        count = 1 if self.mode == "batch" else 2
        require(1 + len(scale) == count, "mode={mode} takes {count} operands", mode=self.mode, count=count, operands=1 + len(scale))
        for s in scale:
            require_scale(s, self.axis, x)
        return (x, scale[0]) if self.mode == "ema" else x

    def _measured(self, x: Value) -> Value:
        axes = tuple(a for a in range(len(x.shape)) if a != self.axis)
        return F.div(F.max_(F.abs_(x), axes), float(largest_value(self.bits)))

    def _scale(self, inputs: Values) -> Value:
        if self.mode == "fixed":
            return inputs[1]
        if self.mode == "batch":
            return self._measured(inputs[0])
        return F.add(F.mul(inputs[1], self.decay), F.mul(self._measured(inputs[0]), 1 - self.decay))

    def ref(self, x: Any, *given: Any) -> Any:
        limit, y = largest_value(self.bits), wide(x)
        axes = tuple(a for a in range(x.ndim) if a != self.axis)
        scale = wide(given[0]) if given else np.zeros((), y.dtype)
        if self.mode != "fixed":
            found = (np.max(np.abs(y), axis=axes) if y.size else np.zeros([y.shape[self.axis]] if self.axis is not None else [])) / limit
            scale = found if self.mode == "batch" else self.decay * scale + (1 - self.decay) * found
        s = along_array(np.asarray(np.where(scale == 0, 1, scale)), self.axis, x.ndim)
        out = (np.clip(np.rint(y / s), -limit, limit) * s).astype(x.dtype)
        return (out, np.asarray(scale).astype(x.dtype)) if self.mode == "ema" else out

    def decompose(self, *inputs: Value) -> Value | tuple[Value, ...]:
        dtype, inputs = inputs[0].dtype, tuple(map(F.widened, inputs))
        x, scale = inputs[0], self._scale(inputs)
        out = F.cast(rounded(x, along(without_zero(scale), self.axis, len(x.shape)), largest_value(self.bits)), dtype)
        return (out, F.cast(scale, dtype)) if self.mode == "ema" else out

    def _slope(self, inputs: Values, outputs: Values) -> Value | None:
        if self.estimator == "identity" or (self.estimator == "clipped" and self.mode == "batch"):
            return None  # a scale of max|x| clips nothing, though the largest quotient may round to more than its limit
        x = inputs[0]
        scale = outputs[1] if self.mode == "ema" else self._scale(inputs)
        z = F.div(x, along(without_zero(scale), self.axis, len(x.shape)))
        limit = largest_value(self.bits)
        if self.estimator == "clipped":
            return F.cast(F.less_equal(F.abs_(z), limit), x.dtype)
        if self.estimator == "tanh":
            return F.sub(F.full(x.node.graph, x.shape, 1, x.dtype), F.square(F.tanh(z)))
        return F.maximum(F.sub(F.full(x.node.graph, x.shape, 1, x.dtype), F.abs_(F.div(z, float(limit)))), 0)

    def vjp(self, inputs: Values, outputs: Values, cotangents: MaybeValues, wanted: tuple[bool, ...]) -> MaybeValues:
        g, rest = cotangents[0], (None,) * (len(inputs) - 1)
        slope = None if g is None else self._slope(inputs, outputs)
        return (None if g is None else g if slope is None else F.mul(g, slope), *rest)

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        t, rest = tangents[0], (None,) * (len(outputs) - 1)
        slope = None if t is None else self._slope(inputs, outputs)
        return (None if t is None else t if slope is None else F.mul(t, slope), *rest)


@register
class FakeQuantizeLsq(Composite):
    """x rounded to few bits and back with a learned scale (Esser et al., arXiv:1902.08153): x has the derivative of the identity where
    nothing was clipped, the scale that of the rounding error (of the limit where clipped), times `gradient_scale`."""

    bits: int = 8
    axis: int | None = None
    gradient_scale: float = 1.0
    work = 4
    samples = [S(f32(3, 5), f32(), low=(-2, 0.02), high=(2, 0.1), fit=off_halves()),
               S(f32(4, 6), f32(4), bits=4, axis=0, low=(-2, 0.1), high=(2, 0.3), fit=off_halves(axis=0)),
               S(f64(2, 3, 4), f64(3), bits=2, axis=1, low=(-2, 0.3), high=(2, 1), fit=off_halves(axis=1)),
               S(bf16(5), bf16(), bits=3, low=(-2, 0.3), high=(2, 1), fit=off_halves()),
               S(f32(N, 3), f32(3), axis=1, bits=3, gradient_scale=0.5, low=(-2, 0.3), high=(2, 1), fit=off_halves(axis=1))]
    errors = [E(f32(3), f32(3), match="the scale must have shape"), E(f32(3), f32(), bits=1, match="bits must be one of 2 3 4 8"),
              E(f32(3), f64(), match="operands must have one dtype")]

    def infer(self, x: TensorType, scale: TensorType) -> TensorType:
        require_quantized(self.bits, self.axis, x)
        require_scale(scale, self.axis, x)
        return x

    def ref(self, x: Any, scale: Any) -> Any:
        limit, s = largest_value(self.bits), along_array(wide(scale), self.axis, x.ndim)
        return (np.clip(np.rint(wide(x) / s), -limit, limit) * s).astype(x.dtype)

    def decompose(self, x: Value, scale: Value) -> Value:
        dtype, x, scale = x.dtype, F.widened(x), F.widened(scale)
        return F.cast(rounded(x, along(scale, self.axis, len(x.shape)), largest_value(self.bits)), dtype)

    def _slopes(self, x: Value, scale: Value) -> tuple[Value, Value]:
        limit = largest_value(self.bits)
        z = F.div(x, along(scale, self.axis, len(x.shape)))
        inside = F.less_equal(F.abs_(z), limit)
        error = F.where(inside, F.sub(F.apply("round", z), z), F.mul(F.apply("sign", z), float(limit)))
        return F.cast(inside, x.dtype), error if self.gradient_scale == 1 else F.mul(error, self.gradient_scale)

    def pull(self, inputs: Values, output: Value, g: Value, wanted: tuple[bool, ...]) -> Pulled:
        x, scale = inputs
        through, error = self._slopes(x, scale)
        axes = tuple(a for a in range(len(x.shape)) if a != self.axis)
        return F.mul(g, through) if wanted[0] else None, F.sum_(F.mul(g, error), axes) if wanted[1] else None

    def jvp(self, inputs: Values, outputs: Values, tangents: MaybeValues) -> MaybeValues:
        x, scale = inputs
        through, error = self._slopes(x, scale)
        parts = [] if (t := tangents[0]) is None else [F.mul(t, through)]
        parts += [] if (s := tangents[1]) is None else [F.mul(along(s, self.axis, len(x.shape)), error)]
        return (parts[0] if len(parts) == 1 else F.add(*parts),)


def require_affine(axis: int | None, x: TensorType, scale: TensorType, zero: TensorType) -> None:
    if axis is not None:
        require_axis(axis, x.ndim)
    want = () if axis is None else (x.shape[axis],)
    require_kind((scale,), "f")
    require(zero.dtype is dt.i32, "zero points must be i32", zero=zero)
    for name, v in (("scale", scale), ("zero point", zero)):
        require(v.shape == want, "the {name} must have shape {want}", name=name, want=show_shape(want), value=v)


@register
class Quantize(Composite):
    """round(x / scale) + zero point, halves to even, clamped to the range of an integer dtype."""

    axis: int | None = None
    dtype: DType = dt.i8
    work = 4
    unsupported = {"vjp": NotSupported("its result is an integer; train with fake_quantize"),
                   "jvp": NotSupported("its result is an integer; train with fake_quantize")}
    samples = [S(f32(3, 5), f32(), i32(), low=(-9, 0.01, -9), high=(9, 0.2, 9), fit=off_halves()),
               S(f32(4, 6), f32(6), i32(6), axis=1, dtype=dt.u8, low=(-3, 0.01, 90), high=(9, 0.2, 140), fit=off_halves(axis=1)),
               S(f64(N, 3), f64(3), i32(3), axis=1, low=(-9, 0.01, -9), high=(9, 0.2, 9), fit=off_halves(axis=1))]
    errors = [E(f32(3), f32(3), i32(3), match="the scale must have shape"), E(f32(3), f32(), i64(), match="zero points must be i32"),
              E(f32(3), f32(), i32(), dtype=dt.f32, match="values must be of an integer dtype")]

    def infer(self, x: TensorType, scale: TensorType, zero: TensorType) -> TensorType:
        require_kind((x,), "f")
        require_one_dtype((x, scale))
        require(self.dtype.is_int and self.dtype.itemsize < 4, "values must be of an integer dtype of 8 or 16 bits", dtype=self.dtype)
        require_affine(self.axis, x, scale, zero)
        return x.with_dtype(self.dtype)

    def ref(self, x: Any, scale: Any, zero: Any) -> Any:
        s, z = (along_array(v, self.axis, x.ndim) for v in (scale, zero))
        info = np.iinfo(self.dtype.np)
        return np.clip(np.rint(x / s) + z, info.min, info.max).astype(self.dtype.np)

    def decompose(self, x: Value, scale: Value, zero: Value) -> Value:
        rank, info = len(x.shape), np.iinfo(self.dtype.np)
        quantized = F.add(F.apply("round", F.div(x, along(scale, self.axis, rank))), F.cast(along(zero, self.axis, rank), x.dtype))
        return F.cast(F.minimum(F.maximum(quantized, float(info.min)), float(info.max)), self.dtype)


@register
class Dequantize(Composite):
    """(quantized - zero point) * scale."""

    axis: int | None = None
    work = 2
    samples = [S(i8(3, 5), f32(), i32(), low=(-90, 0.01, -9), high=(90, 0.2, 9)),
               S(u8(4, 6), f32(4), i32(4), axis=0, low=(0, 0.01, 90), high=(200, 0.2, 140)),
               S(i8(N), f64(), i32(), low=(-9, 0.1, -9), high=(9, 1, 9))]
    errors = [E(f32(3), f32(), i32(), match="needs integer operands"),
              E(i8(3), f32(3), i32(), axis=0, match="the zero point must have shape")]

    def infer(self, quantized: TensorType, scale: TensorType, zero: TensorType) -> TensorType:
        require_kind((quantized,), "iu")
        require_affine(self.axis, quantized, scale, zero)
        return quantized.with_dtype(scale.dtype)

    def ref(self, quantized: Any, scale: Any, zero: Any) -> Any:
        s, z = (along_array(v, self.axis, quantized.ndim) for v in (scale, zero))
        return ((quantized.astype(np.int64) - z) * wide(s)).astype(scale.dtype)

    def decompose(self, quantized: Value, scale: Value, zero: Value) -> Value:
        rank = len(quantized.shape)
        whole = F.sub(F.cast(quantized, dt.i32), along(zero, self.axis, rank))
        return F.mul(F.cast(whole, scale.dtype), along(scale, self.axis, rank))


@register
class LoraMatmul(Composite):
    """x @ w + scale * ((x @ a) @ b): a product with a correction of low rank."""

    scale: float = 1.0
    samples = [S(f32(3, 5), f32(5, 7), f32(5, 2), f32(2, 7), scale=0.5), S(f64(4, 3), f64(3, 3), f64(3, 1), f64(1, 3)),
               S(f32(2, N, 4), f32(4, 6), f32(4, 3), f32(3, 6), scale=2.0)]
    errors = [E(f32(3, 5), f32(5, 7), f32(4, 2), f32(2, 7), match="a must be \\[5,r\\] and b \\[r,7\\]"),
              E(f32(3, 5), f32(4, 7), f32(5, 2), f32(2, 7), match="inner sizes differ")]

    def infer(self, x: TensorType, w: TensorType, a: TensorType, b: TensorType) -> TensorType:
        require_kind((x, w, a, b), "f")
        require_one_dtype((x, w, a, b))
        require(x.ndim >= 2 and w.ndim == 2 and x.shape[-1] == w.shape[0], "inner sizes differ, or ranks do not fit", x=x, w=w)
        k, n = w.shape
        ok = a.ndim == b.ndim == 2 and a.shape[0] == k and b.shape[1] == n and a.shape[1] == b.shape[0]
        require(ok, "a must be [{k},r] and b [r,{n}]", k=k, n=n, a=a, b=b)
        return x.with_shape((*x.shape[:-1], n))

    def ref(self, x: Any, w: Any, a: Any, b: Any) -> Any:
        y = wide(x)
        return (y @ wide(w) + self.scale * ((y @ wide(a)) @ wide(b))).astype(x.dtype)

    def decompose(self, x: Value, w: Value, a: Value, b: Value) -> Value:
        return F.add(F.matmul(x, w), F.matmul(F.matmul(x, a), b, alpha=self.scale))

    def flops(self, x: TensorType, w: TensorType, a: TensorType, b: TensorType) -> Dim:
        rows = x.numel // x.shape[-1] if isinstance(x.numel, int) and isinstance(x.shape[-1], int) and x.shape[-1] else x.numel
        return 2 * rows * (w.numel + a.numel + b.numel)
