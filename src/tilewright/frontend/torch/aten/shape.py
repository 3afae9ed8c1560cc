"""Shapes: views, permutations, slices, joins and repeats. Result shapes come from torch, so symbolic ones are exact.

Ops whose results have sizes that depend on data, in memory of a known capacity: each gives its results and how many rows they have.

Rows behind the count repeat rows that exist (indices there are 0), so that whatever reads them stays inside its operands. A count that is
larger than the capacity is the caller's to report; the results then hold the first rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, Expr, at_least, maximum, minimum, product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .index import index as index_by
from .registry import Context, aten, axis_of, rows


@aten(
    "view.default",
    "reshape.default",
    "_unsafe_view.default",
    "flatten.using_ints",
    "unflatten.int",
    "view_as.default",
    "reshape_as.default",
    "unsqueeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "_reshape_alias.default",
    "ravel.default",
    "atleast_1d.default",
    "atleast_2d.default",
)
def view(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    return c.reshape(x, c.shape)


@aten("view.dtype")
def view_dtype(c: Context, x: Value, dtype: Any) -> Value:
    """The same memory as another dtype; elements along the last axis are taken apart or joined where its size differs."""
    if c.dtype is x.dtype:
        return x
    if not {x.dtype.kind, c.dtype.kind} <= set("iuf"):
        raise UnsupportedError(f"memory of {x.dtype} cannot be seen as {c.dtype}")
    before, after = x.dtype.itemsize, c.dtype.itemsize
    if before == after:
        return c.emit(O.Bitcast(source=x.dtype, dtype=c.dtype), x)
    bits = {n: dt.dtype(f"u{8 * n}") for n in (1, 2, 4, 8)}
    x = x if x.dtype is bits[before] else c.emit(O.Bitcast(source=x.dtype, dtype=bits[before]), x)
    parts, wide = max(before, after) // min(before, after), bits[max(before, after)]
    shifts = c.emit(O.Mul(), c.emit(O.Iota(shape=(parts,), axis=0, dtype=wide)), c.scalar(8 * min(before, after), wide))
    if before > after:  # the lowest bits come first
        x = c.cast(c.emit(O.BitwiseRightShift(), c.reshape(x, (*x.shape, 1)), shifts), bits[after])
    else:
        x = c.emit(O.BitwiseLeftShift(), c.cast(c.reshape(x, (*c.shape, parts)), wide), shifts)
        x = c.emit(O.Sum(axes=(len(c.shape),)), x)
    x = c.reshape(x, c.shape)
    return x if c.dtype is x.dtype else c.emit(O.Bitcast(source=x.dtype, dtype=c.dtype), x)


@aten("transpose.int", "transpose.default", "swapaxes.default", "swapdims.default")
def transpose(c: Context, x: Value, dim0: int, dim1: int) -> Value:
    perm = list(range(len(x.shape)))
    if perm:
        a, b = axis_of(dim0, len(perm)), axis_of(dim1, len(perm))
        perm[a], perm[b] = perm[b], perm[a]
    return c.transpose(x, perm)


@aten("t.default", "numpy_T.default", "mT.default", "matrix_H.default", "adjoint.default")
def t(c: Context, x: Value) -> Value:
    perm = list(range(len(x.shape)))
    return c.transpose(x, [*perm[:-2], *reversed(perm[-2:])])


def bound(index: Any, size: Dim, default: Dim) -> Dim:
    """A slice bound as torch reads it: negative counts from the end, and it is clamped to 0..size."""
    if index is None:
        return default
    if isinstance(index, int):
        if index < 0:
            index = size + index
        elif isinstance(size, Expr) and index >= 2**62:
            return size
        if isinstance(index, int) and isinstance(size, int):
            return max(0, min(index, size))
    elif not at_least(index, 0):
        raise UnsupportedError(f"a slice bound {index} that may be negative is not supported")
    return minimum(maximum(index, 0), size)


@aten("slice.Tensor")
def slice_(c: Context, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = axis_of(dim, len(x.shape))
    return c.slice(x, axis, bound(start, x.shape[axis], 0), c.shape[axis], step)


@aten("select.int")
def select(c: Context, x: Value, dim: int, index: Any) -> Value:
    axis = axis_of(dim, len(x.shape))
    start = x.shape[axis] + index if isinstance(index, int) and index < 0 else index
    return c.reshape(c.slice(x, axis, start, 1), c.shape)


@aten(
    "split.Tensor",
    "split.sizes",
    "split_with_sizes.default",
    "chunk.default",
    "tensor_split.sections",
    "tensor_split.indices",
    "unsafe_split.Tensor",
    "unsafe_chunk.default",
)
def split(c: Context, x: Value, _sizes: Any, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, len(x.shape))
    sizes = tuple(s[axis] for s in c.shapes())
    if len(sizes) == 1:
        return (x,)
    return c.emit_all(O.Split(axis=axis, sizes=sizes), x)


@aten("unbind.int")
def unbind(c: Context, x: Value, dim: int = 0) -> tuple[Value, ...]:
    axis = axis_of(dim, len(x.shape))
    shapes = c.shapes()
    if not shapes:
        return ()
    return tuple(c.reshape(c.slice(x, axis, i, 1), s) for i, s in enumerate(shapes))


@aten("cat.default", "concat.default", "concatenate.default")
def cat(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    kept = [c.cast(v, c.dtype) for v in tensors if v.shape != (0,)] or [c.cast(tensors[0], c.dtype)]
    axis = axis_of(dim, len(kept[0].shape))
    return kept[0] if len(kept) == 1 else c.emit(O.Concat(axis=axis), *kept)


@aten("stack.default")
def stack(c: Context, tensors: Sequence[Value], dim: int = 0) -> Value:
    axis = axis_of(dim, len(tensors[0].shape) + 1)
    parts = [c.reshape(c.cast(v, c.dtype), (*v.shape[:axis], 1, *v.shape[axis:])) for v in tensors]
    return parts[0] if len(parts) == 1 else c.emit(O.Concat(axis=axis), *parts)


@aten("repeat.default", "tile.default")
def repeat(c: Context, x: Value, repeats: Sequence[Any]) -> Value:
    lead = len(repeats) - len(x.shape)
    if lead < 0:
        repeats, lead = [*[1] * -lead, *repeats], 0
    dims = (*[1] * lead, *x.shape)
    if all(isinstance(r, int) and r == 1 for r in repeats):
        return c.reshape(x, dims)
    inner = c.reshape(x, [d for n in dims for d in (1, n)])
    wide = c.expand(inner, [d for r, n in zip(repeats, dims, strict=True) for d in (r, n)])
    return c.reshape(wide, c.shape)


@aten("flip.default")
def flip(c: Context, x: Value, dims: Sequence[int]) -> Value:
    axes = tuple(sorted(axis_of(d, len(x.shape)) for d in dims))
    return c.emit(O.Flip(axes=axes), x) if axes and x.shape else x


@aten("roll.default")
def roll(c: Context, x: Value, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return NotImplemented
    for shift, dim in zip(shifts, dims, strict=True):
        axis = axis_of(dim, len(x.shape))
        size = x.shape[axis]
        if not isinstance(size, int) or not isinstance(shift, int):
            return NotImplemented
        at = -shift % size if size else 0
        if at:
            x = c.emit(O.Concat(axis=axis), c.slice(x, axis, at, size - at), c.slice(x, axis, 0, at))
    return x


MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}  # torch's names and NumPy's


def edge_pad(c: Context, x: Value, pads: Sequence[Any], mode: str) -> Value:
    """Padding with elements of x itself. Negative widths cut before what is left wraps, and after x is mirrored or its edges repeated."""
    cut = [minimum(p, 0) if mode != "wrap" else 0 for p in pads]
    x, lo, hi = _cut(c, x, [p - n for n, p in zip(cut, pads, strict=True)])
    return _cut(c, c.emit(O.PadEdges(lo=lo, hi=hi, mode=mode), x) if any(d != 0 for d in (*lo, *hi)) else x, cut)[0]


for _rank in (1, 2, 3):
    for _name, _mode in (("reflection", "reflect"), ("replication", "edge")):

        @aten(f"{_name}_pad{_rank}d.default")
        def by_rank(c: Context, x: Value, pads: Sequence[Any], mode: str = _mode) -> Value:
            return edge_pad(c, x, pads, mode)


@aten("constant_pad_nd.default")
def constant_pad(c: Context, x: Value, pads: Sequence[Any], value: Any = 0) -> Value:
    x, lo, hi = _cut(c, x, pads)
    return c.emit(O.Pad(lo=lo, hi=hi, value=value), x) if any(d != 0 for d in (*lo, *hi)) else x


def _cut(c: Context, x: Value, pads: Sequence[Any]) -> tuple[Value, tuple[Dim, ...], tuple[Dim, ...]]:
    """x without what negative widths take away, and the other widths, before and after each axis."""
    n = len(x.shape)
    lo: list[Dim] = [0] * n
    hi: list[Dim] = [0] * n
    for i in range(len(pads) // 2):
        axis = n - 1 - i
        before, after = pads[2 * i], pads[2 * i + 1]
        cut = [maximum(-p, 0) for p in (before, after)]  # a width may be of either sign, from call to call
        if cut != [0, 0]:
            x = c.slice(x, axis, cut[0], x.shape[axis] - cut[0] - cut[1])
        lo[axis], hi[axis] = before + cut[0], after + cut[1]
    return x, tuple(lo), tuple(hi)


@aten("slice_scatter.default")
def slice_scatter(c: Context, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    axis = axis_of(dim, len(x.shape))
    if step != 1:
        if not all(isinstance(d, int) for d in (step, x.shape[axis], src.shape[axis])):
            return NotImplemented
        return c.emit(O.UpdateSlice(axis=axis, start=bound(start, x.shape[axis], 0), step=step), x, c.cast(src, x.dtype))
    return replaced(c, x, src, axis, bound(start, x.shape[axis], 0))


@aten("select_scatter.default")
def select_scatter(c: Context, x: Value, src: Value, dim: int, index: Any) -> Value:
    axis = axis_of(dim, len(x.shape))
    start = x.shape[axis] + index if isinstance(index, int) and index < 0 else index
    return replaced(c, x, c.reshape(src, (*x.shape[:axis], 1, *x.shape[axis + 1 :])), axis, start)


def replaced(c: Context, x: Value, src: Value, axis: int, start: Dim) -> Value:
    """x with `src` written over its slice that begins at `start` along `axis`."""
    src = c.cast(src, x.dtype)
    size, end = x.shape[axis], start + src.shape[axis]
    parts = [] if start == 0 else [c.slice(x, axis, 0, start)]
    parts.append(src)
    if end != size:
        parts.append(c.slice(x, axis, end, size - end))
    return src if len(parts) == 1 else c.emit(O.Concat(axis=axis), *parts)


rows({
    "expand.default expand_as.default broadcast_to.default": lambda c, x, *_, **__: c.expand(x, c.shape),
    "permute.default": lambda c, x, dims: c.transpose(x, [axis_of(d, len(x.shape)) for d in dims]),
    "narrow.default": lambda c, x, dim, start, length: slice_(c, x, dim, start),
    "pad.default": lambda c, x, pads, mode='constant', value=None:
        constant_pad(c, x, pads, 0 if value is None else value) if mode == "constant" else edge_pad(c, x, pads, MODES[mode]),
})


Sized = tuple[Any, Value]  # results, count
SIZED: dict[str, tuple[Callable[..., Sized], Callable[..., Dim | None]]] = {}  # op -> what makes it, and its largest size


def sized(*names: str, most: Callable[..., Dim | None]) -> Callable[[Callable[..., Sized]], Callable[..., Sized]]:
    def enter(fn: Callable[..., Sized]) -> Callable[..., Sized]:
        SIZED.update(dict.fromkeys(names, (fn, most)))
        return fn

    return enter


def chosen(c: Context, hit: Value, size: Dim) -> tuple[Value, Value]:
    """Places of the first `size` True elements of a vector, in order, then zeros; and how many are True."""
    n = hit.shape[0]
    ones = c.cast(hit, dt.i64)
    rank = c.emit(O.Sub(), c.emit(O.CumSum(axis=0), ones), c.scalar(1, dt.i64))
    last = c.scalar(size, dt.i64)  # one place more takes what is not wanted
    to = c.emit(O.Minimum(), c.emit(O.Where(), hit, rank, last), last)
    iota = c.emit(O.Iota(shape=(n,), axis=0, dtype=dt.i64))
    found = c.emit(O.ScatterAdd(axis=0), c.expand(c.scalar(0, dt.i64), (size + 1,)), to, iota)
    return c.slice(found, 0, 0, size), c.emit(O.Sum(axes=(0,)), ones)


def columns(c: Context, flat: Value, shape: tuple[Dim, ...]) -> list[Value]:
    """The index on each axis from places in a tensor of this shape."""
    found = []
    for a in range(len(shape)):
        step, width = (maximum(d, 1) for d in (product(shape[a + 1 :]), shape[a]))  # nothing is found where a symbolic size is 0
        found.append(c.emit(O.Remainder(), c.emit(O.FloorDivide(), flat, c.scalar(step, dt.i64)), c.scalar(width, dt.i64)))
    return found


def truth(c: Context, x: Value) -> Value:
    """A vector: which elements are not 0."""
    hit = x if x.dtype.is_bool else c.emit(O.NotEqual(), x, c.scalar(0, x.dtype))
    return c.reshape(hit, (product(x.shape),))


def _mask(indices: Sequence[Value | None]) -> Value:
    found = [i for i in indices if i is not None]
    if len(found) != 1 or not (found[0].dtype.is_bool or found[0].dtype is dt.u8):
        raise UnsupportedError("a boolean mask among other indices is not supported")
    return found[0]


@sized("nonzero.default", most=lambda x: product(x.shape))
def nonzero(c: Context, size: Dim, x: Value) -> Sized:
    if not x.shape:
        raise UnsupportedError("nonzero of a rank-0 tensor is not supported")
    flat, count = chosen(c, truth(c, x), size)
    found = [c.reshape(v, (size, 1)) for v in columns(c, flat, x.shape)]
    return found[0] if len(found) == 1 else c.emit(O.Concat(axis=1), *found), count


@sized("index.Tensor", most=lambda x, indices: product(_mask(indices).shape))
def index(c: Context, size: Dim, x: Value, indices: Sequence[Value | None]) -> Sized:
    mask = _mask(indices)
    flat, count = chosen(c, truth(c, mask), size)
    before = list(indices).index(mask)
    return index_by(c, x, [*(None for _ in range(before)), *columns(c, flat, mask.shape)]), count


@sized("masked_select.default", most=lambda x, mask: None if x.shape != mask.shape else product(x.shape))
def masked_select(c: Context, size: Dim, x: Value, mask: Value) -> Sized:
    flat, count = chosen(c, truth(c, mask), size)
    return c.emit(O.Gather(axis=0), c.reshape(x, (product(x.shape),)), flat), count


def _groups(c: Context, size: Dim, flat: Value, order: Value | None, shape: Sequence[Dim], inverse: bool, counts: bool) -> Sized:
    """One element of each run of equal ones; which run each element is in, and how long runs are."""
    n = flat.shape[0]
    if n == 0 or not isinstance(n, int):
        raise UnsupportedError("unique needs a known number of elements, of at least 1")
    differs = c.emit(O.NotEqual(), c.slice(flat, 0, 1, n - 1), c.slice(flat, 0, 0, n - 1))
    first = c.emit(O.Pad(lo=(1,), hi=(0,), value=1), c.cast(differs, dt.i64))
    at, count = chosen(c, c.cast(first, dt.bool_), size)
    group = c.emit(O.Sub(), c.emit(O.CumSum(axis=0), first), c.scalar(1, dt.i64))
    zeros, ones = (c.expand(c.scalar(k, dt.i64), (n,)) for k in (0, 1))
    where = group if order is None else c.emit(O.ScatterAdd(axis=0), zeros, order, group)
    room = c.expand(c.scalar(0, dt.i64), (size + 1,))
    many = c.emit(O.ScatterAdd(axis=0), room, c.emit(O.Minimum(), group, c.scalar(size, dt.i64)), ones) if counts else None
    return (c.emit(O.Gather(axis=0), flat, at), c.reshape(where, shape) if inverse else None,
            None if many is None else c.slice(many, 0, 0, size)), count


@sized("_unique2.default", most=lambda x, *_: product(x.shape))
def unique(c: Context, size: Dim, x: Value, sorted_: bool = True, inverse: bool = False, counts: bool = False) -> Sized:
    flat = c.reshape(x, (product(x.shape),))
    order = c.emit(O.ArgSort(axis=0), c.cast(flat, dt.i32) if x.dtype.is_bool else flat)
    return _groups(c, size, c.emit(O.Gather(axis=0), flat, order), order, x.shape, inverse, counts)


@sized("unique_consecutive.default", most=lambda x, *_: product(x.shape))
def unique_consecutive(c: Context, size: Dim, x: Value, inverse: bool = False, counts: bool = False, dim: int | None = None) -> Sized:
    if dim is not None:
        raise UnsupportedError("unique_consecutive along an axis is not supported")
    return _groups(c, size, c.reshape(x, (product(x.shape),)), None, x.shape, inverse, counts)


@sized("repeat_interleave.Tensor", most=lambda repeats: None)
def repeat_interleave(c: Context, size: Dim, repeats: Value) -> Sized:
    n = repeats.shape[0]
    if n == 0:
        raise UnsupportedError("repeat_interleave of nothing is not supported")
    ends = c.emit(O.CumSum(axis=0), c.cast(repeats, dt.i64))
    room = c.expand(c.scalar(0, dt.i64), (size + 1,))
    marks = c.emit(O.ScatterAdd(axis=0), room, c.emit(O.Minimum(), ends, c.scalar(size, dt.i64)), c.expand(c.scalar(1, dt.i64), (n,)))
    rows = c.emit(O.CumSum(axis=0), c.slice(marks, 0, 0, size))  # how many rows end at or before each place
    rows = c.emit(O.Minimum(), rows, c.scalar(n - 1, dt.i64))
    return c.cast(rows, repeats.dtype), c.emit(O.Sum(axes=(0,)), c.cast(repeats, dt.i64))
