"""Index arrays and masks of Arrays on a GPU. Every such index is rows of a matrix at flat positions: the indexed axes go in front, the
indices of several axes become one, and one program of run-time sizes gathers or scatters the rows. Masks are positions that are found on
the device; only their number comes to the host.
"""
from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from ...core.errors import ArgumentError
from ...core.tensors import is_tensor
from ..arrays import Array, plain, shown
from ..trees import rewrapped
from . import elementwise as kernels
from . import placed as P
from .placed import Placed

Fn = Callable[..., Any]
POSITION = "where(less(i0,i2),add(i0,i1),i0)"  # the position of indices i0 of an axis of i1 elements; negative ones count from the end
BOUNDED = "where(logical_or(less(i0,negative(i1)),greater_equal(i0,i1)),i3,POSITION)"


@functools.cache
def program(name: str) -> Fn:
    """A program of run-time sizes, compiled once for each dtype."""
    from ...transform.lib import function
    from ..jit import Jit

    def of(named: str) -> Fn:
        found = function(named)
        assert found is not None
        return found

    def gather(x: Any, ids: Any) -> Any:
        return x[ids]

    def where(mask: Any) -> Any:
        """The positions at which a mask holds, behind each other, and the running count."""
        n = mask.shape[0]
        count = of("cumsum")(of("astype")(mask, "i64"), axis=0)
        target = of("where")(mask, count - 1, n)
        return of("scatter")(of("zeros")((n + 1,), "i64"), target, of("arange")(n), mode="set"), count

    sizes: dict[str, Any] = {"x": {0: "A", 1: "R"}, "ids": {0: "N"}}
    if name == "gather":
        return Jit(gather, dynamic=sizes)
    if name == "where":
        return Jit(where, dynamic={"mask": {0: "N"}})

    def scatter(x: Any, ids: Any, rows: Any) -> Any:
        return of("scatter_add")(x, ids, rows) if name == "add" else of("scatter")(x, ids, rows, mode=name)

    scatter.__name__ = f"scatter_{name}"
    return Jit(scatter, dynamic=sizes | {"rows": {0: "N", 1: "R"}})


def gathered(x: Array, ids: Array) -> Array:
    """Rows of a matrix."""
    if not ids.size or not x.shape[1]:
        return P.wrap(P.empty((ids.size, x.shape[1]), x.dtype))
    made: Array = rewrapped(program("gather")(*plain([x, ids])))
    return made


def scattered(x: Array, ids: Array, rows: Array, mode: str) -> Array:
    """A matrix with rows changed: "set", "add", "mul", "min" or "max". Of rows that are set twice the last one stays."""
    if not ids.size or not x.shape[1]:
        return x
    made: Array = rewrapped(program(mode)(*plain([x, ids, rows])))
    return made


def flat_nonzero(mask: Array) -> Array:
    """The positions at which a mask of one axis holds."""
    if not mask.size:
        return P.wrap(P.empty((0,), np.dtype(np.int64)))
    found, count = rewrapped(program("where")(*plain([mask])))
    return found[: int(count[-1])]  # type: ignore[no-any-return]


def nonzero(x: Array) -> tuple[Array, ...]:
    """The indices at which elements are not zero, an Array for each axis."""
    mask = x if x.dtype == np.bool_ else x != 0
    return unraveled(flat_nonzero(mask.reshape(-1)), x.shape)


def unraveled(ids: Array, shape: Sequence[int]) -> tuple[Array, ...]:
    found = []
    for n in shape[:0:-1]:
        found.append(ids % max(n, 1))
        ids = ids // max(n, 1)
    return (ids, *found[::-1])


class Index:
    """An index with arrays in it, of an Array: `view` has the indexed axes in front, as one axis of rows; `ids` are the rows."""

    def __init__(self, x: Array, key: Any) -> None:
        keys = self._expanded(x, key)
        parts = tuple(k if k is None or isinstance(k, slice) else None if isinstance(k, bool) else slice(None) for k in keys)
        self.basic = P.wrap(Placed(P.of(x).header[(*parts, ...)], P.of(x).stream))  # type: ignore[union-attr]
        self.parts = parts
        axes = [i for i, k in enumerate(keys) if not (k is None or isinstance(k, slice))]
        arrays = [self._array(keys[i], self.basic.shape[i], i) for i in axes]
        try:
            shape = np.broadcast_shapes(*(a.shape for a in arrays))
        except ValueError:
            raise IndexError(f"index: the index arrays do not broadcast, got {' '.join(map(shown, arrays))}") from None
        sizes = [self.basic.shape[i] for i in axes]
        ids: Any = None
        for a, n in zip(arrays, sizes, strict=True):
            at = _position(a, n, prod(sizes) if len(axes) > 1 else None)
            ids = at if ids is None else ids * n + at
        self.shape = shape  # the shape of the indices
        self.ids: Array = (ids if ids.shape == shape else ids.expand(*shape)).reshape(-1)
        rest = [i for i in range(self.basic.ndim) if i not in axes]
        self.order, self.sizes = [*axes, *rest], sizes
        self.rest = tuple(self.basic.shape[i] for i in rest)
        together = axes == list(range(axes[0], axes[0] + len(axes)))
        self.first = axes[0] if together else 0  # where the axes of the indices go in the result

    def _expanded(self, x: Array, key: Any) -> list[Any]:
        """A key for each axis: masks as positions, all axes that are not named as whole slices."""
        from .calls import leaf

        keys: list[Any] = []
        masks: list[tuple[int, Any]] = []
        for k in key if type(key) is tuple else (key,):
            if isinstance(k, (bool, np.bool_)):  # a mask without axes: one element of a new one, or none
                keys.append(bool(k))
            elif isinstance(k, (Array, np.ndarray, list)) or is_tensor(k):
                a = np.asarray(plain(k)) if isinstance(k, list) else leaf(k, "index") if not isinstance(k, np.ndarray) else k
                a = int(a) if not a.ndim and a.dtype.kind in "iu" else a
                if isinstance(a, int):
                    keys.append(a)
                elif a.dtype == np.bool_ and not a.ndim:
                    keys.append(bool(a))
                elif a.dtype == np.bool_:
                    masks.append((len(keys), a))
                    keys += nonzero(a) if isinstance(a, Array) else list(np.nonzero(a))
                else:
                    keys.append(np.asarray(a, np.int64) if not a.size and isinstance(a, np.ndarray) else a)
            elif k is None or k is Ellipsis or isinstance(k, slice):
                keys.append(k)
            else:
                keys.append(operator.index(k))
        used = sum(map(_names_axis, keys))
        if used > x.ndim:
            raise IndexError(f"index: {used} indices for {shown(x)}")
        dots = next((i for i, k in enumerate(keys) if k is Ellipsis), len(keys))
        for i, mask in masks:
            at = sum(map(_names_axis, keys[:i])) + (i > dots) * (x.ndim - used)
            if x.shape[at : at + mask.ndim] != mask.shape:
                raise IndexError(f"index: a mask has the shape of the axes it stands for, got {shown(mask)} for {shown(x)}")
        return [*keys[:dots], *[slice(None)] * (x.ndim - used), *keys[dots + 1 :]]

    def _array(self, k: Any, n: int, axis: int) -> Array:
        """Indices on the device; those of the host are checked first."""
        found: Any = np.zeros(int(k), np.int64) if isinstance(k, bool) else k if isinstance(k, Array) else np.asarray(k)
        if found.dtype.kind not in "iu":
            raise IndexError(f"index: indices are integers or bools, got {shown(found)}")
        if isinstance(found, Array):
            return found.astype(np.int64, copy=False)
        bad = np.flatnonzero((found < -n) | (found >= n))
        if bad.size:
            raise IndexError(f"index: {found.flat[bad[0]]} is out of range for axis {axis} of {shown(self.basic)}")
        return P.wrap(P.uploaded(found.astype(np.int64)))

    def rows(self) -> Array:
        """The Array as a matrix of rows."""
        turned = self.basic.transpose(self.order) if self.order != list(range(self.basic.ndim)) else self.basic
        return turned.reshape(prod(self.sizes), prod(self.rest))

    def result(self) -> Array:
        made = gathered(self.rows(), self.ids).reshape((*self.shape, *self.rest))
        if not self.first or not self.rest:
            return made
        n, k = len(self.shape), self.first
        return made.transpose([*range(n, n + k), *range(n), *range(n + k, made.ndim)])

    def changed(self, x: Array, value: Array, mode: str) -> Array:
        """x with these elements changed by a value that broadcasts to them."""
        n, k = len(self.shape), self.first
        shape = (*self.rest[:k], *self.shape, *self.rest[k:])
        while value.ndim > len(shape) and value.shape[0] == 1:
            value = value[0]
        try:
            wide = value.expand(*shape)
        except ValueError:
            raise ArgumentError(f"setitem: {shown(value)} does not broadcast to elements of shape {shape} of {shown(x)}") from None
        wide = wide.transpose([*range(k, k + n), *range(k), *range(k + n, len(shape))]) if k else wide
        made = scattered(self.rows(), self.ids, wide.reshape(self.ids.size, prod(self.rest)), mode)
        made = made.reshape((*self.sizes, *self.rest))
        made = made.transpose([int(i) for i in np.argsort(self.order)])
        if all(p == slice(None) for p in self.parts):
            return made.reshape(x.shape)
        whole = x.copy()
        whole[tuple(p for p in self.parts if p is not None)] = made.reshape([s for s, p in zip(made.shape, self.parts, strict=True)
                                                                             if p is not None])
        return whole


def _names_axis(k: Any) -> bool:
    return k is not None and k is not Ellipsis and not isinstance(k, bool)


def _position(ids: Array, n: int, out: int | None) -> Array:
    """Indices of an axis of n elements from its start; `out` takes the place of those that are out of range."""
    words = [P.of(ids), *(P.number(v, np.dtype(np.int64)) for v in (n, 0, out) if v is not None)]
    made = kernels.run(POSITION if out is None else BOUNDED.replace("POSITION", POSITION), words)  # type: ignore[arg-type]
    assert made is not None
    return P.wrap(made)
