"""Shapes: views, slices, joins, padding, and values that are made from sizes."""
from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.dims import Dim, Expr, at_least, bounds, ceildiv, maximum, minimum, product
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Value
from ...ops import functions as F
from .registry import Context, Unequal, axes_of, axis_of, elem_number, limited, static
from .tables import op, rows


@op("Shape")
def shape(c: Context, x: Value, *, start: int = 0, end: int | None = None) -> Value:
    n = len(x.shape)
    first = max(0, min(n, start + n if start < 0 else start))
    last = n if end is None else max(0, min(n, end + n if end < 0 else end))
    return c.vector(x.shape[first : max(first, last)])


@op("Size")
def size(c: Context, x: Value) -> Value:
    return c.scalar(x.type.numel, dt.i64)


@op("Constant")
def constant(c: Context, *, value: Any = None, value_float: float | None = None, value_floats: Any = None, value_int: int | None = None,
             value_ints: Any = None, value_string: Any = None, value_strings: Any = None, sparse_value: Any = None) -> Any:
    builder = c.builder  # type: ignore[attr-defined]
    if value_string is not None or value_strings is not None:
        return builder.lift(np.array(value_string if value_strings is None else value_strings, object), "text")
    if sparse_value is not None:
        from .importer import dense

        return builder.lift(dense(builder.source, sparse_value), "const")
    for given, kind in ((value_float, np.float32), (value_floats, np.float32), (value_int, np.int64), (value_ints, np.int64)):
        if given is not None:
            return c.constant(np.array(given, kind))
    if value is None:
        raise ShapeError("a Constant has no value")
    return builder.lift(value, c.outputs[0])


@op("ConstantOfShape")
def constant_of_shape(c: Context, shape_: Value, *, value: Any = None) -> Value:
    dims = c.dims(shape_, "the shape")
    fill = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(-1)
    first = c.builder.lift(fill[:1].reshape(()), "fill")  # type: ignore[attr-defined]
    return c.typed(F.expand(first, tuple(dims)), c.elem(first))


@op("ConstantFill", "GivenTensorFill", until=8)
def constant_fill(c: Context, x: Value | None = None, *, value: float = 0.0, dtype: int = 1, shape: Any = None,
                  input_as_shape: int = 0, extra_shape: Any = ()) -> Value:
    dims = list(shape) if x is None else c.dims(x, "the shape") if input_as_shape else list(x.shape)
    return c.full([*dims, *extra_shape], value, elem_number(dtype).held)


@op("Reshape")
def reshape(c: Context, x: Value, shape: Any, *, allowzero: int = 0) -> Value:
    return reshaped(x, c.dims(shape, "the shape"), bool(allowzero))


def reshaped(x: Value, dims: list[Dim], keep_zero: bool) -> Value:
    """0 copies a size, -1 takes what is left."""
    out = [x.shape[i] if d == 0 and not keep_zero and i < len(x.shape) else d for i, d in enumerate(dims)]
    if any(isinstance(d, int) and d == -1 for d in out):
        rest = product([d for d in out if not (isinstance(d, int) and d == -1)])
        whole = product(x.shape)
        if rest == 0:
            raise ShapeError(f"the shape {dims} leaves nothing to tell -1 from, for {x.type}")
        out = [whole // rest if isinstance(d, int) and d == -1 else d for d in out]
    return _shaped(x, out)


def _shaped(x: Value, dims: list[Dim]) -> Value:
    try:
        return F.reshape(x, tuple(dims))
    except ShapeError as e:
        have, want = product(x.shape), product(dims)
        if isinstance(have, int) and isinstance(want, int):
            raise
        raise Unequal(str(e), (have, want)) from None


@op("Flatten")
def flatten(c: Context, x: Value, *, axis: int = 1) -> Value:
    at = axis + len(x.shape) if axis < 0 else axis
    return F.reshape(x, (product(x.shape[:at]), product(x.shape[at:])))


@op("Squeeze")
def squeeze(c: Context, x: Value, axes: Any = None) -> Value:
    if axes is None:
        static([d for d in x.shape if bounds(d)[0] <= 1 <= bounds(d)[1]], "a size that may be 1 and is squeezed then")
    gone = {a for a, d in enumerate(x.shape) if d == 1} if axes is None else set(axes_of(c.ints(axes, "the axes"), len(x.shape)))
    for a in gone:
        if isinstance(x.shape[a], int) and x.shape[a] != 1:
            raise ShapeError(f"axis {a} of {x.type} has more than one element and cannot be squeezed")
    return _shaped(x, [d for a, d in enumerate(x.shape) if a not in gone])


@op("Unsqueeze")
def unsqueeze(c: Context, x: Value, axes: Any) -> Value:
    given = c.ints(axes, "the axes")
    new = {axis_of(a, len(x.shape) + len(given)) for a in given}
    if len(new) != len(given):
        raise ShapeError(f"the axes {given} name one axis twice")
    rest = iter(x.shape)
    return F.reshape(x, tuple(1 if a in new else next(rest) for a in range(len(x.shape) + len(new))))


@op("Expand")
def expand(c: Context, x: Value, wanted: Value) -> Value:
    dims = c.dims(wanted, "the shape")
    have = (*(1,) * (len(dims) - len(x.shape)), *x.shape)
    dims = [*(1,) * (len(x.shape) - len(dims)), *dims]
    out = []
    for h, d in zip(have, dims, strict=True):
        out.append(d if h == 1 else h)
        if h != 1 and d not in (1, h):
            if isinstance(h, int) and isinstance(d, int):
                raise ShapeError(f"{x.type} does not broadcast to {dims}")
            raise UnsupportedError(f"{x.type} broadcast to {dims}: whether {h} and {d} agree is not known")
    return F.expand(F.reshape(x, have), tuple(out))


@op("Tile", since=6)
def tile(c: Context, x: Value, repeats: Value) -> Value:
    return tiled(x, c.dims(repeats, "the repeats"))


@op("Tile", until=5)
def tile1(c: Context, x: Value, tiles: Value, axis: Value) -> Value:
    at = int(c.scalar_of(axis, "the axis"))
    return tiled(x, [c.dims(tiles, "the tiles")[0] if a == at else 1 for a in range(len(x.shape))])


def tiled(x: Value, times: list[Dim]) -> Value:
    if all(isinstance(t, int) and t == 1 for t in times):
        return x
    inner = F.reshape(x, tuple(d for n in x.shape for d in (1, n)))
    wide = F.expand(inner, tuple(d for t, n in zip(times, x.shape, strict=True) for d in (t, n)))
    return F.reshape(wide, tuple(t * n for t, n in zip(times, x.shape, strict=True)))


@op("Concat")
def concat(c: Context, *xs: Value, axis: int = 1) -> Value:
    at = axis_of(axis, len(xs[0].shape))
    return xs[0] if len(xs) == 1 else F.concat(list(xs), at)


@op("Split")
def split(c: Context, x: Value, split: Any = None, *, axis: int = 0, num_outputs: int | None = None) -> tuple[Value, ...]:
    at = axis_of(axis, len(x.shape))
    if split is not None:
        sizes = c.dims(split, "the lengths")
    else:
        n = len(c.outputs) if num_outputs is None else limited(num_outputs, 1 << 16, "the number of parts")
        if n < 1:
            raise ShapeError("a split needs at least one part")
        whole = x.shape[at]
        each = ceildiv(whole, n)
        sizes = [each] * (n - 1) + [whole - each * (n - 1)]
    return F.split(x, at, sizes) if len(sizes) > 1 else (x,)


@op("Slice")
def slice_(c: Context, x: Value, starts: Any, ends: Any, axes: Any = None, steps: Value | None = None) -> Value:
    return sliced(x, c.dims(starts, "the starts"), c.dims(ends, "the ends"), None if axes is None else c.ints(axes, "the axes"),
                  None if steps is None else c.ints(steps, "the steps"))


MANY = 1 << 24  # elements of a table that is made with the graph
FAR = 10**9  # an end that files write for "to the end"


def _bound(i: Dim, n: Dim, low: Dim, high: Dim) -> Dim:
    """A start or end counted from the end where it is negative, kept within low..high."""
    if isinstance(i, int):
        if i >= FAR and isinstance(n, Expr):
            return high
        if i <= -FAR:
            return low
        i = n + i if i < 0 else i
    else:
        least, most = bounds(i)
        if most < 0:
            i = n + i
        elif least < 0:
            raise UnsupportedError(f"a slice bound {i} that may be negative")
    return minimum(maximum(i, low), high)


def sliced(x: Value, starts: list[Dim], ends: list[Dim], axes: Any, steps: Any) -> Value:
    axes = list(range(len(starts))) if axes is None else [axis_of(a, len(x.shape)) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    first: list[Dim] = [0] * len(x.shape)
    sizes: list[Dim] = list(x.shape)
    strides = [1] * len(x.shape)
    flips = []
    for a, start, end, step in zip(axes, starts, ends, steps, strict=True):
        n = x.shape[a]
        if step == 0:
            raise ShapeError("a step of a slice must not be 0")
        if step < 0:  # from the back: the same slice of the flipped axis
            flips.append(a)
            top = _bound(start, n, -1 if isinstance(n, int) and n == 0 else 0, n - 1)
            stop = -1 if isinstance(end, int) and end <= -FAR else _bound(end, n, -1, n - 1)
            first[a], span, strides[a] = n - 1 - top, top - stop, -step
        else:
            begin = _bound(start, n, 0, n)
            first[a], span, strides[a] = begin, _bound(end, n, 0, n) - begin, step
        sizes[a] = maximum(ceildiv(maximum(span, 0), strides[a]), 0)
        if sizes[a] == 0:
            first[a] = 0
    x = F.flip(x, sorted(flips)) if flips else x
    if tuple(sizes) == x.shape and not any(isinstance(f, Expr) or f for f in first) and all(s == 1 for s in strides):
        return x
    return F.one("slice", x, starts=tuple(first), sizes=tuple(sizes), steps=tuple(strides))


@op("Pad")
def pad(c: Context, x: Value, pads: Any = None, value: Any = None, axes: Value | None = None, *, mode: str = "constant",
        paddings: Any = None) -> Value:
    n = len(x.shape)
    given = c.dims(pads if paddings is None else paddings, "the pads")
    if axes is not None:
        at = [axis_of(a, n) for a in c.ints(axes, "the axes")]
        every: list[Dim] = [0] * (2 * n)
        for k, a in enumerate(at):
            every[a], every[n + a] = given[k], given[len(at) + k]
        given = every
    return padded(c, x, given, mode, value if value is None or isinstance(value, Value) else c.scalar(value, x.dtype))


def padded(c: Context, x: Value, pads: list[Dim], mode: str, value: Value | None) -> Value:
    n = len(x.shape)
    lo, hi = list(pads[:n]), list(pads[n:])
    for a in range(n):  # negative widths cut
        cut = [-p if isinstance(p, int) and p < 0 else 0 for p in (lo[a], hi[a])]
        if any(cut):
            x = F.slice_(x, a, cut[0], x.shape[a] - cut[0] - cut[1])
            lo[a], hi[a] = (0 if k else p for k, p in zip(cut, (lo[a], hi[a]), strict=True))
    if not any(isinstance(p, Expr) or p for p in (*lo, *hi)):
        return x
    if mode == "constant":
        known = None if value is None else c.known(value)
        if value is None or (known is not None and known.dtype != object):
            fill: Any = 0 if known is None else known.reshape(-1)[0].item()
            return F.pad(x, lo, hi, fill)
        assert value is not None
        inside = F.pad(c.full(x.shape, True, dt.bool_), lo, hi, False)
        return F.where(inside, F.pad(x, lo, hi), F.reshape(value, ()))
    if mode in ("reflect", "edge", "wrap") and _within(x.shape, lo, hi, mode):
        return F.one("pad_edges", x, lo=tuple(lo), hi=tuple(hi), mode=mode)
    for a in range(n):
        if lo[a] == 0 and hi[a] == 0:
            continue
        if not all(isinstance(d, int) for d in (lo[a], hi[a], x.shape[a])):
            x = F.gather(x, _padding_places(c, x.shape[a], lo[a], hi[a], mode), a)
            continue
        before, after, length = static((lo[a], hi[a], x.shape[a]), "sizes and pads of a padding by reflection")
        limited(before + after + length, MANY, "the size of a padding by reflection")
        at = np.arange(-before, length + after)
        if mode == "edge":
            at = np.clip(at, 0, length - 1)
        elif mode == "wrap":
            at = at % length
        elif mode == "reflect":
            period = max(2 * (length - 1), 1)
            at = np.abs((at + (length - 1) * 0) % period)
            at = np.where(at >= length, period - at, at)
        else:
            raise UnsupportedError(f"the padding mode {mode!r} is not supported")
        x = F.gather(x, c.constant(at.astype(np.int64)), a)
    return x


def _within(shape: Any, lo: Any, hi: Any, mode: str) -> bool:
    """Whether an axis has all the elements that are added at its ends once."""
    less = {"reflect": 1, "wrap": 0}.get(mode)
    return all(at_least(p, 0) and (p == 0 or at_least(n - 1 if less is None else n - less - p, 0))
               for n, *ends in zip(shape, lo, hi, strict=True) for p in ends)


def _padding_places(c: Context, size: Dim, before: Dim, after: Dim, mode: str) -> Value:
    """Where each element of a padded axis of any size comes from; a reflection reaches at most to the other end."""
    at = O_iota(c, size + before + after, -1 * before, 1, dt.i64)
    last = c.scalar(size - 1, dt.i64)
    if mode == "edge":
        return F.minimum(F.maximum(at, 0), last)
    if mode == "wrap":
        return F.one("remainder", at, c.scalar(size, dt.i64))
    if mode != "reflect":
        raise UnsupportedError(f"the padding mode {mode!r} is not supported")
    at = F.abs_(at)
    return F.where(F.greater(at, last), F.sub(F.mul(last, 2), at), at)


@op("Range")
def range_(c: Context, start: Value, limit: Value, delta: Value) -> Value:
    dtype = start.dtype
    if dtype.is_int:
        (a,), (b,), (k,) = (c.dims(v, "the ends") for v in (start, limit, delta))
        if isinstance(k, int) and k != 0:
            count = ceildiv(b - a, k) if k > 0 else ceildiv(a - b, -k)
            return O_iota(c, maximum(count, 0), a, k, dtype)
        raise UnsupportedError("a Range whose step is symbolic or 0")
    first, last, step = (c.scalar_of(v, "the ends") for v in (start, limit, delta))
    steps = (last - first) / step if step else np.inf
    count = limited(np.ceil(max(steps, 0)) if np.isfinite(steps) else -1, MANY, "the number of elements of a Range of floats")
    return c.constant((first + step * np.arange(count)).astype(dtype.np))


def O_iota(c: Context, count: Dim, start: Dim, step: int, dtype: Any) -> Value:
    return c.graph.add(O.Iota(shape=(count,), axis=0, dtype=dtype, start=start, step=step)).value


@op("EyeLike")
def eye_like(c: Context, x: Value, *, dtype: int | None = None, k: int = 0) -> Value:
    e = elem_number(dtype) if dtype is not None else c.elem(x)
    rows = F.iota(c.graph, (x.shape[0], 1), 0, dt.i64, start=k)
    return F.cast(F.equal(rows, F.iota(c.graph, (1, x.shape[1]), 1, dt.i64)), e.held)


@op("Trilu")
def trilu(c: Context, x: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    shift = 0 if k is None else int(c.scalar_of(k, "the diagonal"))
    rows = F.iota(c.graph, (x.shape[-2], 1), 0, dt.i64, start=shift)
    columns = F.iota(c.graph, (1, x.shape[-1]), 1, dt.i64)
    return F.where(F.greater_equal(columns, rows) if upper else F.less_equal(columns, rows), x, 0)


@op("DepthToSpace")
def depth_to_space(c: Context, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    b, ch, h, w = x.shape
    s = blocksize
    if mode == "DCR":
        y = F.transpose(F.reshape(x, (b, s, s, ch // (s * s), h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = F.transpose(F.reshape(x, (b, ch // (s * s), s, s, h, w)), (0, 1, 4, 2, 5, 3))
    return F.reshape(y, (b, ch // (s * s), h * s, w * s))


@op("SpaceToDepth")
def space_to_depth(c: Context, x: Value, *, blocksize: int, mode: str = "DCR") -> Value:
    b, ch, h, w = x.shape
    s = blocksize
    y = F.transpose(F.reshape(x, (b, ch, h // s, s, w // s, s)), (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
    return F.reshape(y, (b, ch * s * s, h // s, w // s))


@op("ReverseSequence")
def reverse_sequence(c: Context, x: Value, lengths: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    n = x.shape[time_axis]
    t = F.iota(c.graph, tuple(n if a == time_axis else 1 for a in range(len(x.shape))), time_axis, dt.i64)
    count = F.reshape(F.cast(lengths, dt.i64), tuple(x.shape[a] if a == batch_axis else 1 for a in range(len(x.shape))))
    at = F.where(F.less(t, count), F.sub(F.sub(count, 1), t), t)
    return F.emit(O.GatherAlongAxis(axis=time_axis), x, F.expand(at, x.shape))


@op("CenterCropPad")
def center_crop_pad(c: Context, x: Value, wanted: Value, *, axes: Any = None) -> Value:
    dims = c.dims(wanted, "the shape")
    at = range(len(x.shape)) if axes is None else [axis_of(a, len(x.shape)) for a in axes]
    for a, d in zip(at, dims, strict=True):
        have = x.shape[a]
        if isinstance(have, int) and isinstance(d, int) and have > d:
            x = F.slice_(x, a, (have - d) // 2, d)
        elif have != d:
            if not at_least(d - have, 0):
                raise UnsupportedError(f"whether {have} is cropped or padded to {d} is not known")
            lo = (d - have) // 2
            zeros = [0] * len(x.shape)
            x = F.pad(x, [lo if k == a else z for k, z in enumerate(zeros)], [d - have - lo if k == a else z for k, z in enumerate(zeros)])
    return x


rows({
    "Identity": lambda c, x: x,
    "Transpose": lambda c, x, *, perm=None: F.transpose(x, list(reversed(range(len(x.shape)))) if perm is None else perm),
})
