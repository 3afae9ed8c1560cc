"""Shapes: views, permutations, slices, joins and repeats. Result shapes come from torch, so symbolic ones are exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .... import ops as O
from ....core import dtypes as dt
from ....core.dims import Dim, Expr, at_least, maximum, minimum, product
from ....core.errors import UnsupportedError
from ....ir.graph import Value
from .registry import Context, aten, axis_of


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
    "view_copy.default",
    "unsqueeze_copy.default",
    "squeeze_copy.dims",
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
        return c.emit(O.Bitcast(dtype=c.dtype, source=x.dtype), x)
    bits = {n: dt.dtype(f"u{8 * n}") for n in (1, 2, 4, 8)}
    x = x if x.dtype is bits[before] else c.emit(O.Bitcast(dtype=bits[before], source=x.dtype), x)
    parts, wide = max(before, after) // min(before, after), bits[max(before, after)]
    shifts = c.emit(O.Mul(), c.emit(O.Iota(shape=(parts,), axis=0, dtype=wide)), c.scalar(8 * min(before, after), wide))
    if before > after:  # the lowest bits come first
        x = c.cast(c.emit(O.BitwiseRightShift(), c.reshape(x, (*x.shape, 1)), shifts), bits[after])
    else:
        x = c.emit(O.BitwiseLeftShift(), c.cast(c.reshape(x, (*c.shape, parts)), wide), shifts)
        x = c.emit(O.Sum(axes=(len(c.shape),)), x)
    x = c.reshape(x, c.shape)
    return x if c.dtype is x.dtype else c.emit(O.Bitcast(dtype=c.dtype, source=x.dtype), x)


@aten("expand.default", "expand_as.default", "broadcast_to.default", "expand_copy.default")
def expand(c: Context, x: Value, *_: Any, **__: Any) -> Value:
    return c.expand(x, c.shape)


@aten("permute.default", "permute_copy.default")
def permute(c: Context, x: Value, dims: Sequence[int]) -> Value:
    return c.transpose(x, [axis_of(d, len(x.shape)) for d in dims])


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


@aten("movedim.intlist", "movedim.int", "moveaxis.intlist", "moveaxis.int")
def movedim(c: Context, x: Value, source: Any, destination: Any) -> Value:
    n = len(x.shape)
    src = [axis_of(a, n) for a in (source if isinstance(source, (list, tuple)) else [source])]
    dst = [axis_of(a, n) for a in (destination if isinstance(destination, (list, tuple)) else [destination])]
    rest = iter([a for a in range(n) if a not in src])
    return c.transpose(x, [src[dst.index(i)] if i in dst else next(rest) for i in range(n)])


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


@aten("slice.Tensor", "slice_copy.Tensor")
def slice_(c: Context, x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    axis = axis_of(dim, len(x.shape))
    return c.slice(x, axis, bound(start, x.shape[axis], 0), c.shape[axis], step)


@aten("narrow.default")
def narrow(c: Context, x: Value, dim: int, start: Any, length: Any) -> Value:
    return slice_(c, x, dim, start)


@aten("select.int", "select_copy.int")
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
    "split_copy.Tensor",
    "split_with_sizes_copy.default",
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


@aten("repeat_interleave.self_int")
def repeat_interleave(c: Context, x: Value, repeats: Any, dim: int | None = None, *, output_size: Any = None) -> Value:
    if dim is None:
        x, dim = c.reshape(x, (product(x.shape),)), 0
    axis = axis_of(dim, len(x.shape))
    wide = (*x.shape[: axis + 1], repeats, *x.shape[axis + 1 :])
    return c.reshape(c.expand(c.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :])), wide), c.shape)


@aten("meshgrid.default", "meshgrid.indexing")
def meshgrid(c: Context, tensors: Sequence[Value], *, indexing: str = "ij") -> tuple[Value, ...]:
    n = len(tensors)
    axes = [1, 0, *range(2, n)] if indexing == "xy" and n > 1 else list(range(n))
    shapes = c.shapes()
    return tuple(
        c.expand(c.reshape(x, [x.type.numel if axis == k else 1 for k in range(n)]), s)
        for x, axis, s in zip(tensors, axes, shapes, strict=True)
    )


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


@aten("pad.default")
def pad(c: Context, x: Value, pads: Sequence[Any], mode: str = "constant", value: float | None = None) -> Any:
    if mode == "circular":
        return _circular(c, x, pads)
    return constant_pad(c, x, pads, 0 if value is None else value) if mode == "constant" else NotImplemented


def _circular(c: Context, x: Value, pads: Sequence[Any]) -> Value:
    """What goes out at one end comes in at the other; negative widths cut."""
    for i in range(len(pads) // 2):
        axis, before, after = len(x.shape) - 1 - i, pads[2 * i], pads[2 * i + 1]
        start, stop = max(-before, 0), x.shape[axis] - max(-after, 0)
        x = c.slice(x, axis, start, stop - start)
        parts = [c.slice(x, axis, x.shape[axis] - before, before)] if before > 0 else []
        parts += [x, c.slice(x, axis, 0, after)] if after > 0 else [x]
        x = parts[0] if len(parts) == 1 else c.emit(O.Concat(axis=axis), *parts)
    return x


@aten("constant_pad_nd.default")
def constant_pad(c: Context, x: Value, pads: Sequence[Any], value: Any = 0) -> Value:
    n = len(x.shape)
    lo: list[Dim] = [0] * n
    hi: list[Dim] = [0] * n
    for i in range(len(pads) // 2):
        axis = n - 1 - i
        before, after = pads[2 * i], pads[2 * i + 1]
        cut = [-p if isinstance(p, int) and p < 0 else 0 for p in (before, after)]
        if any(cut):
            x = c.slice(x, axis, cut[0], x.shape[axis] - cut[0] - cut[1])
        lo[axis], hi[axis] = (0 if k else p for k, p in zip(cut, (before, after), strict=True))
    if not any(isinstance(p, Expr) or p for p in (*lo, *hi)):
        return x
    return c.emit(O.Pad(lo=tuple(lo), hi=tuple(hi), value=value), x)


@aten("diff.default")
def diff(c: Context, x: Value, n: int = 1, dim: int = -1, prepend: Value | None = None, append: Value | None = None) -> Value:
    if n == 0:
        return x
    axis = axis_of(dim, len(x.shape))
    parts = [v for v in (prepend, x, append) if v is not None]
    if len(parts) > 1:
        x = c.emit(O.Concat(axis=axis), *(c.cast(v, c.dtype) for v in parts))
    for _ in range(n if not isinstance(x.shape[axis], int) else min(n, x.shape[axis])):
        size = x.shape[axis] - 1
        x = c.emit(O.NotEqual() if x.dtype.is_bool else O.Sub(), c.slice(x, axis, 1, size), c.slice(x, axis, 0, size))
    return x


@aten("slice_scatter.default")
def slice_scatter(c: Context, x: Value, src: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    if step != 1:
        return NotImplemented
    axis = axis_of(dim, len(x.shape))
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
