"""Where the elements of a value lie inside its storage root: offset and signed strides, in elements."""
from __future__ import annotations

from dataclasses import dataclass

from ..core.dims import Dim, Shape, product


def row_major(shape: Shape) -> tuple[Dim, ...]:
    """Strides of a contiguous row-major tensor."""
    strides: list[Dim] = []
    step: Dim = 1
    for d in reversed(shape):
        strides.append(step)
        step = step * d
    return tuple(reversed(strides))


@dataclass(frozen=True)
class Layout:
    """A strided window: element `i` is at `offset + sum(i[k] * strides[k])` of the root."""

    shape: Shape
    strides: tuple[Dim, ...]
    offset: Dim = 0

    @staticmethod
    def contiguous(shape: Shape) -> Layout:
        return Layout(tuple(shape), row_major(shape))

    @property
    def is_contiguous(self) -> bool:
        want = row_major(self.shape)
        return all(d == 1 or s == w for d, s, w in zip(self.shape, self.strides, want, strict=True))

    def dense(self) -> Layout:
        """The same shape without gaps, with axes in this layout's order (row-major where strides are not known)."""
        known = all(isinstance(s, int) for s in self.strides)
        order = sorted(range(len(self.shape)), key=lambda i: -abs(int(self.strides[i])) if known else i)
        back = tuple(order.index(i) for i in range(len(order)))
        return Layout.contiguous(tuple(self.shape[i] for i in order)).permute(back)

    def permute(self, perm: tuple[int, ...]) -> Layout:
        return Layout(tuple(self.shape[p] for p in perm), tuple(self.strides[p] for p in perm), self.offset)

    def expand(self, shape: Shape) -> Layout:
        """Broadcast to `shape` (NumPy rules): new and stretched axes get stride 0."""
        lead = len(shape) - len(self.shape)
        strides = [0] * lead + [0 if d == 1 and n != 1 else s for d, n, s in zip(self.shape, shape[lead:], self.strides, strict=True)]
        return Layout(tuple(shape), tuple(strides), self.offset)

    def slice(self, axis: int, start: Dim, size: Dim, step: int = 1) -> Layout:
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = size, strides[axis] * step
        return Layout(tuple(shape), tuple(strides), offset)

    def flip(self, axis: int) -> Layout:
        return self.slice(axis, self.shape[axis] - 1, self.shape[axis], -1)

    def reshape(self, shape: Shape) -> Layout | None:
        """The same elements in the same order under another shape, or None when no strides describe that.

        Axes are matched in groups of equal product; inside a group the old axes must be mergeable (stride[i] ==
        stride[i+1] * shape[i+1]).
        """
        if self.is_contiguous:
            return Layout(tuple(shape), row_major(shape), self.offset)
        old = [(d, s) for d, s in zip(self.shape, self.strides, strict=True) if d != 1]
        strides: list[Dim] = [0] * len(shape)
        i = 0
        j = 0
        new = [(k, d) for k, d in enumerate(shape) if d != 1]
        while i < len(old) or j < len(new):
            if i >= len(old) or j >= len(new):
                return None
            i_end, j_end = i + 1, j + 1
            a: Dim = old[i][0]
            b: Dim = new[j][1]
            while a != b:
                if i_end < len(old) and (j_end >= len(new) or _smaller(a, b)):
                    a = a * old[i_end][0]
                    i_end += 1
                elif j_end < len(new):
                    b = b * new[j_end][1]
                    j_end += 1
                else:
                    return None
            for (_, s0), (d1, s1) in zip(old[i : i_end - 1], old[i + 1 : i_end], strict=True):
                if s0 != s1 * d1:
                    return None
            step = old[i_end - 1][1]
            for k, d in reversed(new[j:j_end]):
                strides[k] = step
                step = step * d
            i, j = i_end, j_end
        return Layout(tuple(shape), tuple(strides), self.offset)

    @property
    def extent(self) -> Dim:
        """Elements from the root's start to one past the last element reached (non-negative strides only)."""
        return self.offset + sum(((d - 1) * s for d, s in zip(self.shape, self.strides, strict=True)), 0 * product(self.shape)) + 1


def _smaller(a: Dim, b: Dim) -> bool:
    """a < b as far as it can be told: by numbers, or by a having fewer symbols than b."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, int):
        return True
    if isinstance(b, int):
        return False
    return len(str(a)) < len(str(b))
