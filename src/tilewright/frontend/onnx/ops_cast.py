"""Conversions between element types, and quantization.

Quantized products are written as what they mean: values in 8 bits, an integer product in i32 (`int_matmul`, `int_conv`), zero points taken
out by sums, one multiplication by the scales, and rounding back to quantized values. A later pass finds these by their ops.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from .elements import Elem, decoding, encoding
from .ops_nn import product_of, windows
from .registry import Context, NeedsData, NeedsHost, axis_of, elem_number, static
from .tables import op, rows


@op("CastLike")
def cast_like(c: Context, x: Value, like: Any, *, saturate: int = 1, round_mode: str = "up") -> Value:
    from .importer import Strings

    if isinstance(like, Strings):
        raise NeedsHost("it makes strings")
    return convert(c, x, c.elem(like), saturate=bool(saturate), round_mode=round_mode)


def decoded(c: Context, x: Value, e: Elem) -> Value:
    """The numbers that quantized values stand for, in f32."""
    return F.gather(c.constant(decoding(e.number), "values"), x, 0)


def convert(c: Context, x: Value, to: Elem, *, saturate: bool = True, round_mode: str = "up") -> Value:
    """x in another element type."""
    have = c.elem(x)
    if have is to:
        return x
    if have.kind == "coded":
        x = decoded(c, x, have)
    elif have.kind == "narrow":
        x = O.Reshape(shape=x.shape)(x)  # a value of its own: what it holds is plain numbers from here on
    if to.kind == "coded":
        wide = F.cast(x, dt.f32)
        return c.typed(power_of_two(c, wide, round_mode, saturate) if to.name == "f8e8m0" else encoded(c, wide, to, saturate), to)
    if to.kind == "narrow":
        return c.typed(narrowed(c, x, to), to)
    if to.held in (dt.f8e4m3, dt.f8e5m2) and x.dtype is not to.held:
        return small_float(c, x, to.held, saturate)
    if x.dtype.kind == "f" and to.held.kind == "u" and to.held.itemsize < 8:
        return F.cast(F.cast(x, dt.i64), to.held)  # negative numbers wrap, as they do in C on most machines
    return F.cast(x, to.held)


def narrowed(c: Context, x: Value, to: Elem) -> Value:
    """An integer of few bits: its lowest bits, signed or not."""
    bits = 4 if "4" in to.name else 2
    whole = F.cast(F.cast(x, dt.i32), dt.u8) if x.dtype.is_float else F.cast(x, dt.u8)
    low = F.one("bitwise_and", whole, (1 << bits) - 1)
    if to.held is dt.u8:
        return low
    signed = F.cast(low, dt.i8)
    return F.where(F.greater_equal(signed, 1 << (bits - 1)), F.sub(signed, 1 << bits), signed)


def encoded(c: Context, x: Value, to: Elem, saturate: bool) -> Value:
    """The quantized values of f32 numbers in a float type of few bits: nearest, halves to even; too large ones saturate or become NaN."""
    limits, quantized = encoding(to.number)
    size = F.abs_(x)
    # The number of limits that are <= |x|: a sum over comparisons, in as few bits as it needs.
    spread = F.reshape(size, (*size.shape, 1))
    count = F.sum_(F.cast(F.greater_equal(spread, c.constant(limits)), dt.i32), (len(size.shape),))
    top = len(quantized) - 1
    code = F.gather(c.constant(quantized), F.minimum(count, top), 0)
    has_nan = to.name.endswith("fnuz")
    sign = 0x80 if has_nan else 0x8
    negative = F.one("signbit", x)
    if has_nan:  # there is no negative zero: its code is NaN
        negative = F.logical_and(negative, F.greater(F.cast(code, dt.i32), 0))
        nan = F.one("is_nan", x)
        if not saturate:
            nan = F.logical_or(nan, F.greater(count, top))
        code = F.where(negative, F.one("bitwise_or", code, sign), code)
        return F.where(nan, 0x80, code)
    return F.where(F.logical_and(negative, F.logical_not(F.one("is_nan", x))), F.one("bitwise_or", code, sign), code)


def power_of_two(c: Context, x: Value, mode: str, saturate: bool) -> Value:
    """The exponents of f32 numbers, with a bias of 127; 255 is NaN. `mode` says which power a number between two takes."""
    size = F.abs_(x)
    exponents = np.arange(-127, 128).astype(np.float64)
    powers = 2.0**exponents
    if mode == "up":
        limits = np.nextafter(powers[:-1].astype(np.float32), np.float32(np.inf))
    elif mode == "down":
        limits = powers[1:].astype(np.float32)
    else:  # the nearest, halves up
        limits = (powers[:-1] * 1.5).astype(np.float32)
    spread = F.reshape(size, (*size.shape, 1))
    count = F.sum_(F.cast(F.greater_equal(spread, c.constant(limits)), dt.i32), (len(size.shape),))
    beyond = F.greater(size, float(2.0**127)) if mode == "up" else F.greater_equal(size, float(np.inf))
    if mode == "nearest":
        beyond = F.greater_equal(size, float(np.float32(1.5 * 2.0**127)))
    code = F.cast(count, dt.u8)
    code = F.where(beyond, 254 if saturate else 255, code)
    return F.where(F.one("is_nan", x), 255, code)


def small_float(c: Context, x: Value, dtype: DType, saturate: bool) -> Value:
    """f8e4m3 or f8e5m2; numbers beyond the largest become it, or NaN (f8e4m3) or an infinity (f8e5m2)."""
    wide = F.cast(x, dt.f32)
    top = 448.0 if dtype is dt.f8e4m3 else 57344.0
    if saturate:
        kept = F.minimum(F.maximum(wide, -top), top)
        return F.cast(F.where(F.one("is_nan", wide), wide, kept), dtype)
    if dtype is dt.f8e4m3:
        limit = 464.0  # what rounds to 448 at most
        return F.cast(F.where(F.greater(F.abs_(wide), limit), float("nan"), wide), dtype)
    return F.cast(wide, dtype)


# --- scales and zero points -----------------------------------------------------------------------------------------------------------


def spread(c: Context, s: Value, x: Value, axis: int, block: int) -> Value:
    """A scale or zero point (one, one an index of `axis`, or one a block of `axis`) with x's rank, to broadcast."""
    rank = len(x.shape)
    if s.shape in ((), (1,)):
        return F.reshape(s, ())
    at = axis_of(axis, rank)
    if len(s.shape) == 1 and not block:
        return F.reshape(s, tuple(s.shape[0] if a == at else 1 for a in range(rank)))
    if len(s.shape) != rank:
        raise ShapeError(f"a scale a block needs the rank of its data, got {s.type} for {x.type}")
    if s.shape == x.shape:
        return s
    n, count = x.shape[at], s.shape[at]
    size = block or -(-n // count)
    wide = F.expand(F.reshape(s, (*s.shape[: at + 1], 1, *s.shape[at + 1 :])), (*s.shape[: at + 1], size, *s.shape[at + 1 :]))
    flat = F.reshape(wide, (*s.shape[:at], count * size, *s.shape[at + 1 :]))
    return flat if count * size == n else F.slice_(flat, at, 0, n)


def affine(c: Context, scale: Value, zero: Value | None, quantized: Elem) -> tuple[Value, Value] | None:
    """Scale and zero point as `quantize` and `dequantize` take them, which passes know; None for what is more than one scale in f32 for
    integers of 8 or 16 bits."""
    if quantized.kind != "plain" or not quantized.held.is_int or quantized.held.itemsize > 2 or scale.dtype is not dt.f32:
        return None
    if any(v.shape not in ((), (1,)) for v in (scale, zero) if v is not None):
        return None
    point = c.constant(np.int32(0)) if zero is None else F.cast(F.reshape(zero, ()), dt.i32)
    return F.reshape(scale, ()), point


@op("DequantizeLinear")
def dequantize(c: Context, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1, block_size: int = 0,
               output_dtype: int = 0) -> Value:
    have = c.elem(x)
    to = elem_number(output_dtype).held if output_dtype else scale_dtype(c, scale)
    if (numbers := affine(c, scale, zero, have)) is not None and to is dt.f32:
        return F.emit(O.Dequantize(), x, *numbers)
    factor = wide_scale(c, scale)
    s = spread(c, factor, x, axis, block_size)
    if have.kind == "coded" or have.held.is_float:
        wide = decoded(c, x, have) if have.kind == "coded" else F.cast(x, dt.f32)
        if zero is not None:
            z = decoded(c, zero, have) if have.kind == "coded" else F.cast(zero, dt.f32)
            wide = F.sub(wide, spread(c, z, x, axis, block_size))
    else:
        whole = F.cast(x, dt.i32) if have.held.itemsize < 4 else x
        if zero is not None:
            whole = F.sub(whole, F.cast(spread(c, zero, x, axis, block_size), whole.dtype))
        wide = F.cast(whole, dt.f32)
    return F.cast(F.mul(wide, F.cast(s, dt.f32)), to)


def scale_dtype(c: Context, scale: Value) -> DType:
    """The dtype that a scale gives to its product: that of the scale, f32 for powers of two."""
    return dt.f32 if c.elem(scale).kind == "coded" else scale.dtype


def wide_scale(c: Context, scale: Value) -> Value:
    e = c.elem(scale)
    return decoded(c, scale, e) if e.kind == "coded" else scale


@op("QuantizeLinear")
def quantize(c: Context, x: Value, scale: Value, zero: Value | None = None, *, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
             saturate: int = 1, precision: int = 0) -> Value:
    to = c.elem(zero) if zero is not None else elem_number(output_dtype or 2)
    if (numbers := affine(c, scale, zero, to)) is not None and x.dtype is dt.f32:
        return c.typed(O.Quantize(dtype=to.held)(x, *numbers), to)
    factor = wide_scale(c, scale)
    wide = F.cast(x, dt.f32)
    q = F.div(wide, F.cast(spread(c, factor, x, axis, block_size), dt.f32))
    return to_quantized(c, q, zero, to, x, axis, block_size, bool(saturate))


def to_quantized(c: Context, q: Value, zero: Value | None, to: Elem, x: Value, axis: int, block: int, saturate: bool) -> Value:
    """Rounded to an integer type with its zero point added and saturated, or converted to a float type."""
    if to.kind == "coded" or to.held.is_float:
        if zero is not None:
            z = decoded(c, zero, to) if to.kind == "coded" else F.cast(zero, dt.f32)
            q = F.add(q, spread(c, z, x, axis, block))
        if to.kind == "coded":
            return c.typed(encoded(c, q, to, saturate), to)
        return small_float(c, q, to.held, saturate)
    q = F.one("round", q)
    if zero is not None:
        q = F.add(q, F.cast(spread(c, zero, x, axis, block), dt.f32))
    low, high = to.limits
    return c.typed(F.cast(F.minimum(F.maximum(q, float(low)), float(high)), to.held), to)


@op("DynamicQuantizeLinear")
def dynamic_quantize(c: Context, x: Value) -> Any:
    axes = tuple(range(len(x.shape)))
    top, low = F.maximum(F.max_(x, axes), 0.0), F.minimum(F.one("min", x, axes=axes), 0.0)
    scale = F.div(F.sub(top, low), 255.0)
    scale = F.where(F.equal(scale, 0.0), 1.0, scale)  # zeros alone have scale 1, as ONNX Runtime has it
    zero = F.minimum(F.maximum(F.one("round", F.div(F.neg(low), scale)), 0.0), 255.0)
    quantized = F.minimum(F.maximum(F.add(F.one("round", F.div(x, scale)), zero), 0.0), 255.0)
    return F.cast(quantized, dt.u8), scale, F.cast(zero, dt.u8)


# --- integer products -----------------------------------------------------------------------------------------------------------------


def signed_weights(c: Context, w: Value) -> tuple[Value, int]:
    """Weights as i8 and what was subtracted from them: u8 quantized values are moved by 128."""
    if w.dtype is dt.i8:
        return w, 0
    found = c.contents.weights(w)
    if found is not None:
        return c.constant((found ^ 128).view(np.int8), w.node.name), 128
    return F.cast(F.sub(F.cast(w, dt.i16), 128), dt.i8), 128


def is_zero(c: Context, z: Value | None) -> bool:
    if z is None:
        return True
    found = c.known(z)
    return found is not None and found.dtype != object and not np.any(found)


def integer_matmul(c: Context, a: Value, b: Value, za: Value | None, zb: Value | None) -> Value:
    """(a - za) @ (b - zb) in i32. za: one, or one a row; zb: one, or one a column."""
    return product_of(a, b, lambda left, right: _integer_product(c, left, right, za, zb))


def _integer_product(c: Context, left: Value, right: Value, za: Value | None, zb: Value | None) -> Value:
    quantized, moved = signed_weights(c, right)
    total = O.IntMatmul()(left, quantized) if len(quantized.shape) == 2 else _wide_product(left, quantized)
    k = left.shape[-1]
    zero_b = None if is_zero(c, zb) and not moved else F.sub(F.cast(zb, dt.i32) if zb is not None else c.scalar(0, dt.i32), moved)
    if zero_b is not None:  # the sums of a's rows times the zero points of b
        zero_b = F.reshape(zero_b, () if zero_b.shape in ((), (1,)) else (*zero_b.shape[:-1], 1, zero_b.shape[-1])
                           if len(zero_b.shape) == 1 else zero_b.shape)
        rows = F.sum_(F.cast(left, dt.i32), (len(left.shape) - 1,), keepdims=True)
        total = F.sub(total, F.mul(rows, zero_b))
    if not is_zero(c, za):
        assert za is not None
        zero_a = F.cast(za, dt.i32)
        zero_a = F.reshape(zero_a, () if zero_a.shape in ((), (1,)) else (*zero_a.shape, 1) if len(zero_a.shape) == 1 else zero_a.shape)
        weights = c.contents.weights(quantized)
        columns = F.sum_(F.cast(quantized, dt.i32), (len(quantized.shape) - 2,), keepdims=True) if weights is None else \
            c.constant(weights.sum(-2, dtype=np.int32, keepdims=True), "columns")
        part = columns if zero_b is None else F.sub(columns, F.mul(zero_b, c.scalar(k, dt.i32)))
        total = F.sub(total, F.mul(zero_a, part))
    return total


def _wide_product(a: Value, b: Value) -> Value:
    """A product of stacks of matrices."""
    return F.matmul(F.cast(a, dt.i32), F.cast(b, dt.i32))


def integer_conv(c: Context, x: Value, w: Value, zx: Value | None, zw: Value | None, **attrs: Any) -> Value:
    """The convolution of (x - zx) with (w - zw) in i32."""
    kernel = static(w.shape[2:], "the kernel's size")
    n = len(kernel)
    strides, dilations, pads = (attrs.get(name) for name in ("strides", "dilations", "pads"))
    stride, dil, padding = windows(x, kernel, strides, dilations, pads, attrs.get("auto_pad", "NOTSET"))
    groups = attrs.get("group", 1)
    quantized, moved = signed_weights(c, w)
    if zx is not None and zx.shape not in ((), (1,)):
        raise UnsupportedError("the zero point of a convolution's input must be one number")
    found = None if zx is None else c.known(zx)
    late = F.cast(F.reshape(zx, ()), dt.i32) if zx is not None and found is None else None  # known at the call
    border = 0 if found is None else int(found.reshape(-1)[0])
    total: Value = O.IntConv(stride=stride, padding=padding, dilation=dil, groups=groups, border=border)(x, quantized)
    sizes, outs = x.shape[2:], total.shape[2:]

    def inside(taps: Any) -> Value:
        """Sums of taps[M, ...] over the places of each window that lie in x."""
        for i, (size, out) in enumerate(zip(static(sizes, "the input's size"), static(outs, "the result's size"), strict=True)):
            at = np.arange(out)[:, None] * stride[i] - padding[i][0] + np.arange(kernel[i]) * dil[i]
            taps = np.moveaxis(np.tensordot(taps, ((at >= 0) & (at < size)).astype(np.int64), ([1 + i], [1])), -1, 1 + i)
        return c.constant(taps.astype(np.int32), "inside")

    if late is not None:
        array = c.contents.weights(quantized)
        if array is None or not all(isinstance(d, int) for d in (*sizes, *outs)):
            raise NeedsData(zx, "the zero point of a convolution's input is what stands around it, and depends on data")
        total = F.sub(total, F.mul(inside(array.sum(1, dtype=np.int64)), late))
    if border:  # every tap of a window saw `border` where the true value is 0
        sums = F.sum_(F.cast(quantized, dt.i32), tuple(range(1, n + 2)))
        total = F.sub(total, F.mul(F.reshape(sums, (sums.shape[0], *(1,) * n)), border))
    if moved or not is_zero(c, zw):
        zero = F.sub(F.cast(zw, dt.i32) if zw is not None else c.scalar(0, dt.i32), moved)
        zero = F.reshape(zero, () if zero.shape in ((), (1,)) else (zero.shape[0], *(1,) * n))
        ones = c.constant(np.ones((groups, x.shape[1] // groups, *kernel), np.int8), "ones")
        seen = O.IntConv(stride=stride, padding=padding, dilation=dil, groups=groups, border=border)(x, ones)
        taps = (x.shape[1] // groups) * int(np.prod(kernel))
        seen = F.sub(seen, border * taps) if border else seen
        if late is not None:
            seen = F.sub(seen, F.mul(inside(np.full((1, *kernel), x.shape[1] // groups, np.int64)), late))
        if groups > 1:
            each = quantized.shape[0] // groups
            spreads = F.expand(F.reshape(seen, (seen.shape[0], groups, 1, *seen.shape[2:])), (seen.shape[0], groups, each, *seen.shape[2:]))
            seen = F.reshape(spreads, (seen.shape[0], groups * each, *seen.shape[2:]))
        total = F.sub(total, F.mul(seen, zero))
    return total


def requantized(c: Context, total: Value, factor: Value, zero: Value | None, to: Elem) -> Value:
    """i32 sums times a factor, rounded to quantized values."""
    q = F.one("round", F.mul(F.cast(total, dt.f32), factor))
    if zero is not None:
        q = F.add(q, F.cast(zero, dt.f32))
    low, high = to.limits
    return F.cast(F.minimum(F.maximum(q, float(low)), float(high)), to.held)


@op("QLinearConv")
def qlinear_conv(c: Context, x: Value, sx: Value, zx: Value, w: Value, sw: Value, zw: Value, sy: Value, zy: Value,
                 bias: Value | None = None, **attrs: Any) -> Value:
    n = len(x.shape) - 2
    total = integer_conv(c, x, w, zx, zw, **attrs)
    if bias is not None:
        total = F.add(total, F.reshape(bias, (bias.shape[0], *(1,) * n)))
    scale = F.reshape(sw, () if sw.shape in ((), (1,)) else (sw.shape[0], *(1,) * n))
    factor = F.div(F.mul(F.reshape(sx, ()), scale), F.reshape(sy, ()))
    return requantized(c, total, factor, F.reshape(zy, ()), c.elem(zy))


@op("QLinearMatMul")
def qlinear_matmul(c: Context, a: Value, sa: Value, za: Value, b: Value, sb: Value, zb: Value, sy: Value, zy: Value) -> Value:
    total = integer_matmul(c, a, b, za, zb)
    factor = F.div(F.mul(F.cast(_rows(sa), dt.f32), F.cast(_columns(sb), dt.f32)), F.cast(_rows(sy), dt.f32))
    return requantized(c, total, factor, F.reshape(zy, ()) if zy.shape in ((), (1,)) else _rows(zy), c.elem(zy))


def _rows(s: Value) -> Value:
    """One number, or one a row."""
    return F.reshape(s, ()) if s.shape in ((), (1,)) else F.reshape(s, (*s.shape, 1)) if len(s.shape) == 1 else s


def _columns(s: Value) -> Value:
    return F.reshape(s, ()) if s.shape in ((), (1,)) else s


rows({
    "Cast": lambda c, x, *, to, saturate=1, round_mode='up': convert(c, x, elem_number(to), saturate=bool(saturate), round_mode=round_mode),
    "MatMulInteger": lambda c, a, b, za=None, zb=None: integer_matmul(c, a, b, za, zb),
    "ConvInteger": lambda c, x, w, zx=None, zw=None, **attrs: integer_conv(c, x, w, zx, zw, **attrs),
})
