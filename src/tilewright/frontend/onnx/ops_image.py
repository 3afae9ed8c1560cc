"""Images: resizing in every mode, sampling at given places, regions of interest, deformable convolution."""
from __future__ import annotations

from functools import partial
from itertools import product as cartesian
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dims import Dim, Expr
from ...core.dtypes import compute_dtype
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from ...ops.index.weighted import grid_sample as sample_grid
from ...ops.index.weighted import sample, spots
from ...ops.rows.resize import cubic_weight
from .registry import Context, NeedsData, axis_of, limited, static
from .tables import op, rows

Array = np.ndarray[Any, Any]


# --- Resize --------------------------------------------------------------------------------------------------------------------------


def _source(i: Any, size: int, out: float, scale: float, mode: str, roi: tuple[float, float] | None) -> Any:
    """Where each output element lies among the input's. `out` is the length that the scale gives, before it is cut to an integer."""
    match mode:
        case "align_corners":
            return i * (size - 1) / (out - 1) if out != 1 else i * 0.0
        case "asymmetric":
            return i / scale
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if out > 1 else i * 0.0
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjustment = int(out) / (size * scale)
            center = size / 2
            return center * (1 - adjustment) + (i + 0.5) / scale - 0.5
        case "tf_half_pixel_for_nn":
            return (i + 0.5) / scale
        case "tf_crop_and_resize":
            assert roi is not None
            start, end = roi
            if out > 1:
                return start * (size - 1) + i * (end - start) * (size - 1) / (out - 1)
            return np.full_like(i, 0.5 * (start + end) * (size - 1))
    raise UnsupportedError(f"the coordinate mode {mode!r} of Resize is not known")


def _nearest(at: Any, mode: str) -> Any:
    match mode:
        case "round_prefer_floor":
            return np.ceil(at - 0.5)
        case "round_prefer_ceil":
            return np.floor(at + 0.5)
        case "floor" | "simple":
            return np.floor(at)
        case "ceil":
            return np.ceil(at)
    raise UnsupportedError(f"the rounding mode {mode!r} of Resize is not known")


def _kernel(mode: str, a: float) -> tuple[Any, int]:
    """A kernel's weight at a distance, and how far it reaches."""
    def linear(d: Any) -> Any:
        return np.maximum(1 - np.abs(d), 0.0)

    return (linear, 1) if mode == "linear" else (partial(cubic_weight, slope=a), 2)


def weights(at: Array, size: int, scale: float, mode: str, *, cubic: float, antialias: bool, exclude: bool) -> tuple[Array, Array]:
    """[out, taps]: which elements count for each place, and how much. Elements outside are those at the border."""
    kernel, reach = _kernel(mode, cubic)
    stretch = min(scale, 1.0) if antialias else 1.0
    span = reach / stretch
    taps = 2 * int(np.ceil(span)) + (1 if antialias and stretch < 1 else 0)
    first = np.floor(at).astype(np.int64) - (int(np.ceil(span)) - 1) - (1 if antialias and stretch < 1 else 0)
    count = taps + (2 if antialias and stretch < 1 else 0)
    index = first[:, None] + np.arange(count)[None, :]
    share = kernel((index - at[:, None]) * stretch)
    outside = (index < 0) | (index >= size)
    if exclude:
        share = np.where(outside, 0.0, share)
    total = share.sum(1, keepdims=True)
    if exclude or antialias:
        share = share / np.where(total == 0, 1, total)
    return np.clip(index, 0, size - 1), share


def _weighted(c: Context, x: Value, axis: int, index: Array, share: Array) -> Value:
    """Sums of elements along one axis with constant weights."""
    used = np.flatnonzero(np.any(share != 0, 0))
    total: Value | None = None
    shape = [-1 if a == axis else 1 for a in range(len(x.shape))]
    if len(used) > 8:  # many taps: a product with a matrix
        table = np.zeros((share.shape[0], x.shape[axis]))
        np.add.at(table, (np.arange(len(table))[:, None], index), share)
        order = [*(a for a in range(len(x.shape)) if a != axis), axis]
        moved = F.matmul(F.transpose(x, order), c.constant(table.astype(x.dtype.np)), transpose_b=True)
        back = list(range(len(x.shape) - 1))
        back.insert(axis, len(x.shape) - 1)
        return F.transpose(moved, back)
    for k in used:
        part = F.mul(F.gather(x, c.constant(index[:, k]), axis), c.constant(share[:, k].reshape(shape).astype(x.dtype.np)))
        total = part if total is None else F.add(total, part)
    return total if total is not None else F.mul(F.gather(x, c.constant(index[:, 0]), axis), 0.0)


def resized(c: Context, x: Value, scales: list[float | None], sizes: list[Dim], rois: Any, *, mode: str, coordinates: str, nearest: str,
            cubic: float, exclude: bool, antialias: bool, extrapolation: float) -> Value:
    kind = x.dtype
    wide = compute_dtype(kind) if kind.is_float else dt.f32
    y = x if mode == "nearest" else F.cast(x, wide)
    outside: Value | None = None
    for axis, (scale, out) in enumerate(zip(scales, sizes, strict=True)):
        size = x.shape[axis]
        if out == size and (scale is None or scale == 1) and (rois is None or coordinates != "tf_crop_and_resize"):
            continue
        if not isinstance(size, int) or not isinstance(out, int):
            if antialias:
                raise UnsupportedError(f"Resize of the symbolic size {size} with antialias")
            y = _unsized(c, y, axis, scale, out, mode=mode, coordinates=coordinates, nearest=nearest)
            continue
        limited(out, 1 << 24, "a size of a resized image")
        if size == 0:
            raise ShapeError(f"an empty axis of {x.type} cannot be resized")
        ratio = out / size if scale is None else scale
        roi = None if rois is None else (float(rois[axis]), float(rois[len(sizes) + axis]))
        at = _source(np.arange(out, dtype=np.float64), size, out if scale is None else size * scale, ratio, coordinates, roi)
        if mode == "nearest":
            index = np.clip(_nearest(at, nearest), 0, size - 1).astype(np.int64)
            if not np.array_equal(index, np.arange(size)):
                y = F.gather(y, c.constant(index), axis)
        else:
            y = _weighted(c, y, axis, *weights(at, size, ratio, mode, cubic=cubic, antialias=antialias, exclude=exclude))
        if coordinates == "tf_crop_and_resize":
            bad = c.constant(((at < 0) | (at > size - 1)).reshape([-1 if a == axis else 1 for a in range(len(x.shape))]))
            outside = bad if outside is None else F.logical_or(outside, bad)
    if not kind.is_float and mode != "nearest":
        info = np.iinfo(kind.np)
        y = F.minimum(F.maximum(F.one("round", y), float(info.min)), float(info.max))
    y = F.cast(y, kind)
    return y if outside is None else F.where(outside, extrapolation, y)


def _unsized(c: Context, x: Value, axis: int, scale: float | None, out: Dim, *, mode: str, coordinates: str, nearest: str) -> Value:
    """One axis whose sizes are symbols: places and shares are computed by the call."""
    def real(d: Dim) -> Value:
        return c.scalar(d, dt.f64)

    size = x.shape[axis]
    last = F.sub(real(size), 1.0)
    ratio: Any = F.div(real(out), real(size)) if scale is None else scale
    i = F.cast(F.iota(c.graph, (out,), 0, dt.i64), dt.f64)
    match coordinates:
        case "asymmetric":
            at = F.div(i, ratio)
        case "half_pixel" | "pytorch_half_pixel":
            at = F.sub(F.div(F.add(i, 0.5), ratio), 0.5)
            if coordinates == "pytorch_half_pixel":
                at = F.where(F.greater(real(out), 1.0), at, 0.0)
        case "align_corners":
            at = F.div(F.mul(i, last), F.maximum(F.sub(real(out) if scale is None else F.mul(real(size), scale), 1.0), 1.0))
        case _:
            raise UnsupportedError(f"Resize of the symbolic size {size} in the coordinate mode {coordinates}")

    def taken(place: Value) -> Value:
        return F.gather(x, F.cast(F.minimum(F.maximum(place, 0.0), last), dt.i64), axis)

    if mode == "nearest":
        shift = {"round_prefer_floor": -0.5, "round_prefer_ceil": 0.5}.get(nearest, 0.0)
        return taken(F.one("ceil" if nearest in ("ceil", "round_prefer_floor") else "floor", F.add(at, shift)))
    if mode != "linear":
        raise UnsupportedError(f"Resize of the symbolic size {size} in the mode {mode}")
    first = F.one("floor", at)
    share = F.reshape(F.cast(F.sub(at, first), x.dtype), [out if a == axis else 1 for a in range(len(x.shape))])
    return F.add(F.mul(taken(first), F.sub(1.0, share)), F.mul(taken(F.add(first, 1.0)), share))


@op("Resize", since=11)
def resize(c: Context, x: Value, roi: Value | None = None, scales: Value | None = None, sizes: Value | None = None, *,
           antialias: int = 0, axes: Any = None, coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
           exclude_outside: int = 0, extrapolation_value: float = 0.0, keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
           nearest_mode: str = "round_prefer_floor") -> Value:
    n = len(x.shape)
    at = list(range(n)) if axes is None else [axis_of(a, n) for a in axes]
    factors: list[float | None] = [None] * n
    out: list[Dim] = list(x.shape)
    empty = scales is None or scales.type.numel == 0
    if not empty:
        assert scales is not None
        for a, s in zip(at, c.array(scales, "the scales").reshape(-1), strict=True):
            factors[a] = float(s)
            d = x.shape[a]
            out[a] = int(np.floor(d * float(s))) if isinstance(d, int) else d * int(s) if s == int(s) else _symbolic_size(d, s)
    else:
        if sizes is None:
            raise ShapeError("Resize needs scales or sizes")
        wanted = c.dims(sizes, "the sizes")
        for a, d in zip(at, wanted, strict=True):
            out[a] = d
        if keep_aspect_ratio_policy != "stretch":
            have = static([x.shape[a] for a in at], "sizes of Resize that keeps the aspect ratio")
            pick = min if keep_aspect_ratio_policy == "not_larger" else max
            ratio = pick(float(d) / h for d, h in zip(static(wanted, "sizes"), have, strict=True))
            for a, h in zip(at, have, strict=True):
                out[a], factors[a] = int(np.floor(ratio * h + 0.5)), ratio
    rois = None
    if coordinate_transformation_mode == "tf_crop_and_resize":
        assert roi is not None
        given = c.array(roi, "the region").reshape(-1)
        rois = np.concatenate([np.zeros(n), np.ones(n)])
        for k, a in enumerate(at):
            rois[a], rois[n + a] = given[k], given[len(at) + k]
    return resized(c, x, factors, out, rois, mode=mode, coordinates=coordinate_transformation_mode, nearest=nearest_mode,
                   cubic=cubic_coeff_a, exclude=bool(exclude_outside), antialias=bool(antialias), extrapolation=extrapolation_value)


def _symbolic_size(d: Expr, scale: float) -> Dim:
    inverse = 1 / scale
    if inverse == int(inverse):
        return d // int(inverse)
    raise UnsupportedError(f"a symbolic size {d} scaled by {scale}")


@op("Resize", since=10, until=10)
@op("Upsample", since=7)
def resize10(c: Context, x: Value, scales: Any, *, mode: str = "nearest") -> Value:
    return _upsampled(c, x, [float(s) for s in c.array(scales, "the scales").reshape(-1)], mode)


@op("Upsample", until=6)
def upsample1(c: Context, x: Value, *, height_scale: float, width_scale: float, mode: str = "nearest") -> Value:
    return _upsampled(c, x, [1.0, 1.0, height_scale, width_scale], mode)


def _upsampled(c: Context, x: Value, scales: list[float], mode: str) -> Value:
    sizes: list[Dim] = [int(np.floor(d * s)) if isinstance(d, int) else d * int(s) for d, s in zip(x.shape, scales, strict=True)]
    return resized(c, x, list(scales), sizes, None, mode="linear" if mode == "bilinear" else mode, coordinates="asymmetric",
                   nearest="floor", cubic=-0.75, exclude=False, antialias=False, extrapolation=0.0)


# --- sampling ------------------------------------------------------------------------------------------------------------------------


@op("RoiAlign")
def roi_align(c: Context, x: Value, rois: Value, batch: Value, *, coordinate_transformation_mode: str | None = None, mode: str = "avg",
              output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0) -> Value:
    transform = coordinate_transformation_mode or ("half_pixel" if c.version >= 16 else "output_half_pixel")
    h, w = static(x.shape[2:], "the image's sizes in RoiAlign")
    ch, count = x.shape[1], rois.shape[0]
    offset = 0.5 if transform == "half_pixel" else 0.0
    x1, y1, x2, y2 = (F.sub(F.mul(F.reshape(F.slice_(rois, 1, i, 1), (count,)), spatial_scale), offset) for i in range(4))
    rw, rh = F.sub(x2, x1), F.sub(y2, y1)
    if transform == "output_half_pixel":
        rw, rh = F.maximum(rw, 1.0), F.maximum(rh, 1.0)
    if sampling_ratio > 0:
        ny = nx = sampling_ratio
    else:  # as many samples as the largest region needs; each region's own number of them counts
        known = [c.known(v) for v in (rh, rw)]
        if any(k is None for k in known):
            raise NeedsData(rois, "the samples of RoiAlign depend on its regions")
        sizes = [int(np.ceil(np.max(k) / o)) if k is not None and k.size else 1 for k, o in zip(known, (output_height, output_width),
                                                                                                strict=True)]
        each = [np.ceil(k / o) for k, o in zip(known, (output_height, output_width), strict=True) if k is not None]
        if any(e.size and np.any(e != e.flat[0]) for e in each):
            return _regions_one_by_one(c, x, rois, batch, transform, mode, output_height, output_width, spatial_scale)
        ny, nx = (max(s, 1) for s in sizes)

    def lines(start: Value, extent: Value, bins: int, samples: int) -> Value:
        steps = (np.arange(bins * samples) + 0.5) / (samples * bins)
        places = c.constant(steps.astype(x.dtype.np).reshape(1, -1))
        return F.add(F.reshape(start, (count, 1)), F.mul(F.reshape(extent, (count, 1)), places))

    ys, xs = lines(y1, rh, output_height, ny), lines(x1, rw, output_width, nx)
    a, b = ys.shape[1], xs.shape[1]
    py = F.reshape(F.expand(F.reshape(ys, (count, a, 1)), (count, a, b)), (count, a * b))
    px = F.reshape(F.expand(F.reshape(xs, (count, 1, b)), (count, a, b)), (count, a * b))
    outside = F.logical_or(F.logical_or(F.less(py, -1.0), F.greater(py, float(h))), F.logical_or(F.less(px, -1.0), F.greater(px, float(w))))
    py = F.minimum(F.maximum(py, 0.0), float(h - 1))
    px = F.minimum(F.maximum(px, 0.0), float(w - 1))
    images = F.gather(F.reshape(x, (x.shape[0], ch, h * w)), batch, 0)
    if mode == "max":  # the largest of the four weighted neighbours counts
        out = _largest_at(images, [py, px], (h, w))
    else:
        out = sample(images, [py, px], (h, w))
    out = F.where(F.reshape(outside, (count, 1, a * b)), 0.0, out)
    out = F.reshape(out, (count, ch, output_height, ny, output_width, nx))
    return F.mean(out, (3, 5)) if mode == "avg" else F.max_(out, (3, 5))


def _largest_at(image: Value, at: list[Value], sizes: Any) -> Value:
    n, p = at[0].shape
    at = [F.reshape(v, (n, 1, p)) for v in at]
    floors = [F.one("floor", v) for v in at]
    shares = [F.sub(v, f) for v, f in zip(at, floors, strict=True)]
    total = None
    for corner in cartesian((0, 1), repeat=2):
        near = spots([F.add(f, 1.0) if b else f for f, b in zip(floors, corner, strict=True)], sizes)
        parts = [s if b else F.sub(1.0, s) for s, b in zip(shares, corner, strict=True)]
        part = F.one("weighted_gather", image, near, F.mul(*parts))
        total = part if total is None else F.maximum(total, part)
    assert total is not None
    return total


def _regions_one_by_one(c: Context, x: Value, rois: Value, batch: Value, transform: str, mode: str, height: int, width: int,
                        scale: float) -> Value:
    """Regions that need different numbers of samples."""
    (count,) = static((rois.shape[0],), "the number of regions")
    parts = [roi_align(c, x, F.slice_(rois, 0, i, 1), F.slice_(batch, 0, i, 1), coordinate_transformation_mode=transform, mode=mode,
                       output_height=height, output_width=width, spatial_scale=scale) for i in range(count)]
    return parts[0] if count == 1 else F.concat(parts, 0)


@op("MaxRoiPool")
def max_roi_pool(c: Context, x: Value, rois: Value, *, pooled_shape: Any, spatial_scale: float = 1.0) -> Value:
    known = c.array(rois, "the regions")
    ph, pw = pooled_shape
    rows = []
    for r in known:
        x1, y1, x2, y2 = (int(np.round(v * spatial_scale)) for v in r[1:])
        bh, bw = max(y2 - y1 + 1, 1) / ph, max(x2 - x1 + 1, 1) / pw
        image = F.slice_(x, 0, int(r[0]), 1)
        cells = []
        for i, j in cartesian(range(ph), range(pw)):
            t, b = (min(max(v, 0), x.shape[2]) for v in (y1 + int(np.floor(i * bh)), y1 + int(np.ceil((i + 1) * bh))))
            left, right = (min(max(v, 0), x.shape[3]) for v in (x1 + int(np.floor(j * bw)), x1 + int(np.ceil((j + 1) * bw))))
            if b <= t or right <= left:
                cells.append(c.full((1, x.shape[1], 1), 0.0, x.dtype))
                continue
            part = F.slice_(F.slice_(image, 2, t, b - t), 3, left, right - left)
            cells.append(F.reshape(F.max_(part, (2, 3)), (1, x.shape[1], 1)))
        rows.append(F.reshape(F.concat(cells, 2), (1, x.shape[1], ph, pw)))
    return rows[0] if len(rows) == 1 else F.concat(rows, 0)


@op("DeformConv")
def deform_conv(c: Context, x: Value, w: Value, offset: Value, bias: Value | None = None, mask: Value | None = None, *,
                dilations: Any = None, group: int = 1, kernel_shape: Any = None, offset_group: int = 1, pads: Any = None,
                strides: Any = None) -> Value:
    n, ch, h, width = x.shape
    oc, _, kh, kw = static(w.shape, "the kernel's sizes")
    stride, dil, pad = strides or [1, 1], dilations or [1, 1], pads or [0, 0, 0, 0]
    oh, ow = offset.shape[2:]
    og, taps = offset_group, kh * kw
    shift = F.reshape(offset, (n, og, taps, 2, oh, ow))
    tap = np.stack(np.meshgrid(np.arange(kh) * dil[0], np.arange(kw) * dil[1], indexing="ij")).reshape(2, taps)
    places = []
    for axis, (size, s, p) in enumerate(((oh, stride[0], pad[0]), (ow, stride[1], pad[1]))):
        shape = [1, 1, 1, 1, 1]
        shape[3 + axis] = size
        base = F.reshape(F.sub(F.mul(F.iota(c.graph, (size,), 0, dt.i64), s), p), tuple(shape))
        base = F.add(F.cast(base, x.dtype), c.constant(tap[axis].reshape(1, 1, taps, 1, 1).astype(x.dtype.np)))
        moved = F.reshape(F.slice_(shift, 3, axis, 1), (n, og, taps, oh, ow))
        places.append(F.reshape(F.add(moved, base), (n * og, taps * oh * ow)))
    image = F.reshape(x, (n * og, ch // og, h * width))
    found = sample(image, places, (h, width))
    columns = F.reshape(found, (n, og, ch // og, taps, oh * ow))
    if mask is not None:
        columns = F.mul(columns, F.reshape(mask, (n, og, 1, taps, oh * ow)))
    columns = F.reshape(columns, (n, group, (ch // group) * taps, oh * ow))
    kernel = F.reshape(w, (group, oc // group, (ch // group) * taps))
    out = F.reshape(F.matmul(kernel, columns), (n, oc, oh, ow))
    return out if bias is None else F.add(out, F.reshape(bias, (oc, 1, 1)))


rows({
    "GridSample": lambda c, x, grid, *, align_corners=0, mode='linear', padding_mode='zeros':
        sample_grid(x, grid, mode=mode.removeprefix("bi"), padding=padding_mode, align=bool(align_corners)),
})
