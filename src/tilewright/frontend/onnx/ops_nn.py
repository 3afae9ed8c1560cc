"""Products, convolutions, pools and normalisation."""
from __future__ import annotations

from collections.abc import Callable
from itertools import product as cartesian
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Expr, product
from ...core.dtypes import compute_dtype
from ...core.errors import UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.index.pad_edges import fold
from .registry import Context, Unequal, axis_of, limited, static
from .tables import op, rows


def product_of(a: Value, b: Value, multiply: Callable[[Value, Value], Value] = F.matmul) -> Value:
    """NumPy's matmul: vectors are rows or columns that vanish again."""
    la, lb = len(a.shape), len(b.shape)
    out = multiply(F.reshape(a, (1, a.shape[0])) if la == 1 else a, F.reshape(b, (b.shape[0], 1)) if lb == 1 else b)
    if la == 1 and lb == 1:
        return F.reshape(out, ())
    if la == 1:
        return F.reshape(out, (*out.shape[:-2], out.shape[-1]))
    return F.reshape(out, out.shape[:-1]) if lb == 1 else out


@op("Gemm")
def gemm(c: Context, a: Value, b: Value, bias: Value | None = None, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0,
         transB: int = 0, broadcast: int = 0) -> Value:
    if a.dtype.is_float:
        out = F.matmul(a, b, transpose_a=bool(transA), transpose_b=bool(transB), alpha=alpha)
    else:
        out = F.matmul(a, b, transpose_a=bool(transA), transpose_b=bool(transB))
        out = out if alpha == 1.0 else F.cast(F.mul(F.cast(out, dt.f64), alpha), a.dtype)
    if bias is None or beta == 0:
        return out
    if beta != 1.0:
        bias = F.mul(bias, beta) if bias.dtype.is_float else F.cast(F.mul(F.cast(bias, dt.f64), beta), bias.dtype)
    return F.add(out, bias)


# --- windows -------------------------------------------------------------------------------------------------------------------------


def pads_of(x: Value, kernel: Any, strides: Any, dilations: Any, pads: Any, auto_pad: str) -> tuple[tuple[Any, Any], ...]:
    """(before, after) of every spatial axis."""
    n = len(kernel)
    if auto_pad == "VALID":
        return ((0, 0),) * n
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        out = []
        open_ = [(d // s * s, d) for d, s in zip(x.shape[2:], strides, strict=True) if not isinstance(d, int) and d // s * s != d]
        if open_:
            raise Unequal(f"auto_pad {auto_pad} with strides and the symbolic sizes {', '.join(str(d) for _, d in open_)}", *open_)
        for d, k, s, dil in zip(x.shape[2:], kernel, strides, dilations, strict=True):
            if not isinstance(d, int):
                total = max(dil * (k - 1) + 1 - s, 0)
            else:
                total = max((-(-d // s) - 1) * s + dil * (k - 1) + 1 - d, 0)
            small = total // 2
            out.append((small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small))
        return tuple(out)
    given = list(pads) if pads is not None else [0] * (2 * n)
    return tuple((given[i], given[n + i]) for i in range(n))


def windows(x: Value, kernel: Any, strides: Any, dilations: Any, pads: Any, auto_pad: str) -> tuple[Any, Any, Any]:
    """Strides, dilations and padding of every spatial axis."""
    stride, dil = (tuple(v or (1,) * len(kernel)) for v in (strides, dilations))
    return stride, dil, pads_of(x, kernel, stride, dil, pads, auto_pad)


@op("Conv")
def conv(c: Context, x: Value, w: Value, bias: Value | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None, group: int = 1,
         kernel_shape: Any = None, pads: Any = None, strides: Any = None) -> Value:
    stride, dil, padding = windows(x, static(w.shape[2:], "the kernel's size"), strides, dilations, pads, auto_pad)
    out = O.Conv(stride=stride, padding=padding, dilation=dil, groups=group)(x, w)
    return out if bias is None else F.add(out, channelwise(bias, len(x.shape)))


@op("ConvTranspose")
def conv_transpose(c: Context, x: Value, w: Value, bias: Value | None = None, *, auto_pad: str = "NOTSET", dilations: Any = None,
                   group: int = 1, kernel_shape: Any = None, output_padding: Any = None, output_shape: Any = None, pads: Any = None,
                   strides: Any = None) -> Value:
    kernel = static(w.shape[2:], "the kernel's size")
    n = len(kernel)
    stride, dil = tuple(strides or (1,) * n), tuple(dilations or (1,) * n)
    extra = list(output_padding or (0,) * n)
    if output_shape is not None or auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        sizes = static(x.shape[2:], "the spatial sizes of ConvTranspose with an output shape")
        wanted = list(output_shape)[-n:] if output_shape is not None else [d * s for d, s in zip(sizes, stride, strict=True)]
        padding = []
        for i in range(n):
            total = stride[i] * (sizes[i] - 1) + extra[i] + (kernel[i] - 1) * dil[i] + 1 - wanted[i]
            if total < 0:  # the result is larger than what the kernel reaches
                extra[i] -= total
                total = 0
            small = total // 2
            padding.append((small, total - small) if auto_pad == "SAME_UPPER" else (total - small, small))
    else:
        padding = list(pads_of(x, kernel, stride, dil, pads, "NOTSET" if auto_pad == "NOTSET" else auto_pad))
    beyond = [max(e - max(s, d) + 1, 0) for e, s, d in zip(extra, stride, dil, strict=True)]
    if any(beyond):
        extra = [e - b for e, b in zip(extra, beyond, strict=True)]
    out = O.Conv(stride=stride, padding=tuple(padding), dilation=dil, groups=group, transposed=True, output_padding=tuple(extra))(x, w)
    if any(beyond):
        out = F.pad(out, [0] * (n + 2), [0, 0, *beyond])
    return out if bias is None else F.add(out, channelwise(bias, len(x.shape)))


def _ceil_padded(x: Value, kernel: Any, stride: Any, dil: Any, padding: Any) -> list[int]:
    """What must be added at the end of every axis so that the last, partial window is whole. A window that would begin in the padding
    behind the input does not count."""
    more = []
    for d, k, s, e, (lo, hi) in zip(x.shape[2:], kernel, stride, dil, padding, strict=True):
        if not isinstance(d, int):
            raise UnsupportedError(f"ceil_mode with the symbolic size {d}")
        reach = e * (k - 1) + 1
        count = -(-(d + lo + hi - reach) // s) + 1
        if (count - 1) * s >= d + lo:
            count -= 1
        more.append(max((count - 1) * s + reach - (d + lo + hi), 0))
    return more


def _taps(x: Value, kernel: Any, stride: Any, dil: Any, padding: Any, fill: Any) -> list[Value]:
    """For each tap of the kernel the elements that it reads, over all windows."""
    limited(product(list(kernel)), 4096, "the number of elements of a window")
    lead = len(x.shape) - len(kernel)
    lo, hi = [0] * lead + [a for a, _ in padding], [0] * lead + [b for _, b in padding]
    wide = F.pad(x, lo, hi, fill)
    out = [(d - e * (k - 1) - 1) // s + 1 for d, k, s, e in zip(wide.shape[lead:], kernel, stride, dil, strict=True)]
    found = []
    for tap in cartesian(*(range(k) for k in kernel)):
        starts = (*(0,) * lead, *(t * e for t, e in zip(tap, dil, strict=True)))
        found.append(O.Slice(starts=starts, sizes=(*wide.shape[:lead], *out), steps=(*(1,) * lead, *stride))(wide))
    return found


def _reduce(values: list[Value], name: str) -> Value:
    total = values[0]
    for v in values[1:]:
        total = F.one(name, total, v)
    return total


def _simple(padding: Any, kernel: Any, dil: Any) -> bool:
    """Whether our pools take this padding: at most half of a window."""
    return all(0 <= 2 * p <= e * (k - 1) + 1 for pair, k, e in zip(padding, kernel, dil, strict=True) for p in pair)


@op("MaxPool")
def max_pool(c: Context, x: Value, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
             pads: Any = None, storage_order: int = 0, strides: Any = None) -> Any:
    kernel = tuple(kernel_shape)
    stride, dil, padding = windows(x, kernel, strides, dilations, pads, auto_pad)
    if c.wanted(1):
        return _max_pool_indices(c, x, kernel, stride, dil, padding, bool(ceil_mode), storage_order)
    symbolic = any(isinstance(d, Expr) for d in x.shape[2:])
    if _simple(padding, kernel, dil) and (symbolic or not ceil_mode):
        return O.MaxPool(kernel=kernel, stride=stride, padding=padding, dilation=dil, ceil_mode=bool(ceil_mode))(x)
    if ceil_mode:
        more = _ceil_padded(x, kernel, stride, dil, padding)
        padding = tuple((lo, hi + m) for (lo, hi), m in zip(padding, more, strict=True))
        if _simple(padding, kernel, dil):
            return O.MaxPool(kernel=kernel, stride=stride, padding=padding, dilation=dil)(x)
    least: Any = -np.inf if x.dtype.is_float else int(np.iinfo(x.dtype.np).min)
    return _reduce(_taps(x, kernel, stride, dil, padding, least), "maximum")


def _max_pool_indices(c: Context, x: Value, kernel: Any, stride: Any, dil: Any, padding: Any, ceil: bool, order: int) -> Any:
    if ceil:
        more = _ceil_padded(x, kernel, stride, dil, padding)
        padding = tuple((lo, hi + m) for (lo, hi), m in zip(padding, more, strict=True))
    sizes = static(x.shape[2:], "the spatial sizes of MaxPool with indices")
    places = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes)
    if order:
        places = np.arange(int(np.prod(sizes)), dtype=np.int64).reshape(sizes[::-1]).transpose()
    least: Any = -np.inf if x.dtype.is_float else int(np.iinfo(x.dtype.np).min)
    values = _taps(x, kernel, stride, dil, padding, least)
    spots = _taps(c.constant(places.reshape((1, 1, *sizes))), kernel, stride, dil, padding, -1)
    best, at = values[0], F.expand(spots[0], values[0].shape)
    for v, s in zip(values[1:], spots[1:], strict=True):
        wins = F.logical_or(F.greater(v, best), F.logical_and(F.less(at, 0), F.greater_equal(s, 0)))
        best, at = F.where(wins, v, best), F.where(wins, s, at)
    lead = x.shape[0] * x.shape[1]
    first = F.mul(F.iota(c.graph, (lead, *(1,) * len(sizes)), 0, dt.i64), int(np.prod(sizes)))
    return best, F.add(at, F.reshape(first, (*x.shape[:2], *(1,) * len(sizes))))


@op("AveragePool")
def average_pool(c: Context, x: Value, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, count_include_pad: int = 0,
                 dilations: Any = None, pads: Any = None, strides: Any = None) -> Value:
    kernel = tuple(kernel_shape)
    stride, dil, padding = windows(x, kernel, strides, dilations, pads, auto_pad)
    if _simple(padding, kernel, dil) and not ceil_mode and all(e == 1 for e in dil):
        return F.emit(O.AvgPool(kernel=kernel, stride=stride, padding=padding, count_include_pad=bool(count_include_pad)), x)
    more = _ceil_padded(x, kernel, stride, dil, padding) if ceil_mode else [0] * len(kernel)
    wide = tuple((lo, hi + m) for (lo, hi), m in zip(padding, more, strict=True))
    total = _reduce(_taps(x, kernel, stride, dil, wide, 0.0), "add")
    ones = c.full((1, 1, *x.shape[2:]), 1.0, x.dtype)
    if count_include_pad:
        ones = F.pad(ones, [0, 0, *(lo for lo, _ in padding)], [0, 0, *(hi for _, hi in padding)], 1.0)
        wide = tuple((0, m) for m in more)
    return F.div(total, _reduce(_taps(ones, kernel, stride, dil, wide, 0.0), "add"))


@op("LpPool")
def lp_pool(c: Context, x: Value, *, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = None,
            p: float = 2, pads: Any = None, strides: Any = None) -> Value:
    kernel = tuple(kernel_shape)
    stride, dil, padding = windows(x, kernel, strides, dilations, pads, auto_pad)
    if ceil_mode:
        more = _ceil_padded(x, kernel, stride, dil, padding)
        padding = tuple((lo, hi + m) for (lo, hi), m in zip(padding, more, strict=True))
    power = F.pow_(F.abs_(x), float(p))
    return F.pow_(_reduce(_taps(power, kernel, stride, dil, padding, 0.0), "add"), 1.0 / p)


@op("Col2Im")
def col2im(c: Context, x: Value, image: Value, block: Value, *, dilations: Any = None, pads: Any = None, strides: Any = None) -> Value:
    sizes, kernel = c.ints(image, "the image's shape"), c.ints(block, "the block's shape")
    n = len(sizes)
    stride, dil, pad = strides or [1] * n, dilations or [1] * n, pads or [0] * (2 * n)
    limited(int(np.prod(kernel)), 4096, "the number of elements of a block")
    padding = tuple(zip(pad[:n], pad[n:], strict=True))
    return fold(x, tuple(sizes), tuple(kernel), stride=tuple(stride), dilation=tuple(dil), padding=padding)


# --- normalisation -------------------------------------------------------------------------------------------------------------------


def channelwise(v: Value, rank: int) -> Value:
    """A vector over axis 1 of a tensor of this rank."""
    return F.reshape(v, (v.shape[0], *(1,) * (rank - 2)))


@op("BatchNormalization")
def batch_norm(c: Context, x: Value, scale: Value, bias: Value, mean: Value, var: Value, *, epsilon: float = 1e-5, momentum: float = 0.9,
               training_mode: int = 0, spatial: int = 1, is_test: int = 1) -> Any:
    if not spatial:
        raise UnsupportedError("BatchNormalization with spatial=0 is not supported")
    if c.version < 7 and not is_test:
        training_mode = 1
    if not training_mode:
        same = {v.dtype for v in (x, scale, bias, mean, var)} == {x.dtype} and len(x.shape) >= 2
        if same:
            return O.BatchNorm(eps=epsilon, affine="both")(x, mean, var, scale, bias)
        wide = compute_dtype(mean.dtype)
        y = F.mul(F.sub(F.cast(x, wide), _c(mean, x, wide)), F.rsqrt(F.add(_c(var, x, wide), epsilon)))
        return F.cast(F.add(F.mul(y, _c(scale, x, wide)), _c(bias, x, wide)), x.dtype)
    axes = (0, *range(2, len(x.shape)))
    wide = compute_dtype(mean.dtype)
    xs = F.cast(x, wide)
    now = F.mean(xs, axes)
    spread = O.Var(axes=axes, correction=0.0)(xs)
    y = F.mul(F.sub(xs, _c(now, x, wide)), F.rsqrt(F.add(_c(spread, x, wide), epsilon)))
    y = F.cast(F.add(F.mul(y, _c(scale, x, wide)), _c(bias, x, wide)), x.dtype)
    def mixed(old: Value, new: Value) -> Value:
        return F.cast(F.add(F.mul(F.cast(old, wide), momentum), F.mul(new, 1 - momentum)), old.dtype)

    return y, mixed(mean, now), mixed(var, spread)


def _c(v: Value, x: Value, wide: Any) -> Value:
    return F.cast(channelwise(v, max(len(x.shape), 2)), wide)


@op("InstanceNormalization")
def instance_norm(c: Context, x: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5) -> Value:
    channels = x.shape[1]
    source = x.node.operands[0] if isinstance(x.op, O.Reshape) else None
    grouped = source is not None and len(x.shape) == 3 and len(source.shape) >= 3 and source.shape[0] == x.shape[0]
    if grouped and source is not None and _is_neutral(c, scale, bias):
        # Groups of channels as channels: how files write a norm over groups.
        whole = source.shape[1]
        if isinstance(whole, int) and isinstance(channels, int) and whole % channels == 0:
            return F.reshape(F.emit(O.GroupNorm(groups=channels, eps=epsilon), source), x.shape)
    return F.emit(O.GroupNorm(groups=channels, eps=epsilon, affine="both"), x, scale, bias)


def _is_neutral(c: Context, scale: Value, bias: Value) -> bool:
    known = [c.known(v) for v in (scale, bias)]
    return known[0] is not None and known[1] is not None and bool(np.all(known[0] == 1)) and not np.any(known[1])


@op("GroupNormalization", since=21)
def group_norm(c: Context, x: Value, scale: Value, bias: Value, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    return F.emit(O.GroupNorm(groups=num_groups, eps=epsilon, affine="both"), x, scale, bias)


@op("LayerNormalization")
def layer_norm(c: Context, x: Value, scale: Value, bias: Value | None = None, *, axis: int = -1, epsilon: float = 1e-5,
               stash_type: int = 1) -> Any:
    at = axis_of(axis, len(x.shape))
    axes = tuple(range(at, len(x.shape)))
    plain = scale.shape == x.shape[at:] and (bias is None or bias.shape == x.shape[at:])
    if not c.wanted(1) and not c.wanted(2) and plain and scale.dtype is x.dtype:
        extra = (scale,) if bias is None else (scale, bias)
        return O.LayerNorm(eps=epsilon, naxes=len(axes), affine="weight" if bias is None else "both")(x, *extra)
    wide = compute_dtype(x.dtype)
    xs = F.cast(x, wide)
    mean = F.mean(xs, axes, keepdims=True)
    inverse = F.rsqrt(F.add(O.Var(axes=axes, keepdims=True, correction=0.0)(xs), epsilon))
    y = F.mul(F.cast(F.mul(F.sub(xs, mean), inverse), x.dtype), scale)
    return (y if bias is None else F.add(y, bias)), mean, inverse


@op("RMSNormalization")
def rms_norm(c: Context, x: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Value:
    at = axis_of(axis, len(x.shape))
    n = len(x.shape) - at
    if scale.shape == x.shape[at:] and scale.dtype is x.dtype:
        return F.emit(O.RmsNorm(eps=epsilon, naxes=n, affine="weight"), x, scale)
    wide = compute_dtype(x.dtype)
    y = O.RmsNorm(eps=epsilon, naxes=n)(F.cast(x, wide))
    return F.mul(F.cast(y, scale.dtype), scale)


@op("LpNormalization")
def lp_norm(c: Context, x: Value, *, axis: int = -1, p: int = 2) -> Value:
    at = axis_of(axis, len(x.shape))
    if p == 1:
        size = F.sum_(F.abs_(x), (at,), keepdims=True)
    else:
        size = F.sqrt(F.sum_(F.square(x), (at,), keepdims=True))
    return F.where(F.equal(size, 0.0), 0.0, F.div(x, size))


@op("MeanVarianceNormalization")
def mean_variance_norm(c: Context, x: Value, *, axes: Any = (0, 2, 3)) -> Value:
    at = tuple(sorted(axis_of(a, len(x.shape)) for a in axes))
    mean = F.mean(x, at, keepdims=True)
    spread = F.sub(F.mean(F.square(x), at, keepdims=True), F.square(mean))
    return F.div(F.sub(x, mean), F.add(F.sqrt(spread), 1e-9))


@op("LRN")
def lrn(c: Context, x: Value, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Value:
    lo = (limited(size, 4096, "the size of LRN") - 1) // 2
    n = len(x.shape)
    wide = F.pad(F.square(x), [0, lo, *(0,) * (n - 2)], [0, size - 1 - lo, *(0,) * (n - 2)])
    total = _reduce([F.slice_(wide, 1, i, x.shape[1]) for i in range(size)], "add")
    return F.div(x, F.pow_(F.add(F.mul(total, alpha / size), bias), beta))


@op("Dropout", until=11)
def dropout1(c: Context, x: Value, *, ratio: float = 0.5, is_test: int = 1) -> Any:
    ones = c.full(x.shape, True, dt.bool_)
    return x, ones if c.version >= 10 else F.cast(ones, x.dtype)


@op("Dropout", since=12)
def dropout(c: Context, x: Value, ratio: Value | None = None, training: Value | None = None, *, seed: int | None = None) -> Any:
    from ...ops.random.draws import bernoulli

    ones = c.full(x.shape, True, dt.bool_)
    train = False if training is None else bool(c.scalar_of(training, "training_mode"))
    if not train:
        return x, ones
    rate = 0.5 if ratio is None else float(c.scalar_of(ratio, "the ratio"))
    if rate == 0:
        return x, ones
    keep = bernoulli(c.key(seed), c.scalar(1 - rate, dt.f32), x.shape)
    return F.where(keep, F.mul(x, 1 / (1 - rate)), 0.0), keep


rows({
    "MatMul": lambda c, a, b: product_of(a, b),
})
