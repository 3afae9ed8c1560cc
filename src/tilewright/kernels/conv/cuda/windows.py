"""The geometry of a convolution over one to three spatial axes of known size, as TMA walks it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ....core.dims import Dim
from ....ir.types import TensorType
from ....ops.matmul.contractions import Conv as ConvOp

FARTHEST = {2: 127, 3: 15}  # places a window may reach from its first tap: what a tensor map over so many axes can say
Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Windowed:
    """A convolution over [batch, height, width, channels]; sizes are (height, width), or (depth, height, width) with one axis more."""

    image: Sizes
    out: Sizes
    taps: Sizes
    stride: Sizes
    before: Sizes
    after: Sizes
    dilation: Sizes

    @staticmethod
    def of(op: ConvOp, x: TensorType, w: TensorType, out: TensorType) -> Windowed | None:
        """None where sizes are not known or there are more than three spatial axes."""
        spatial = x.ndim - 2
        sizes = (*x.shape[2:], *out.shape[2:], *w.shape[1:])
        if spatial not in (1, 2, 3) or not all(isinstance(d, int) for d in sizes):
            return None
        if not all(isinstance(p, int) and p >= 0 for pair in op.padding for p in pair):
            return None

        def pair(values: tuple[Dim, ...], fill: int) -> Sizes:
            return (fill,) * (2 - spatial) + tuple(v for v in values if isinstance(v, int))

        lo, hi = tuple(p[0] for p in op.padding), tuple(p[1] for p in op.padding)
        return Windowed(pair(x.shape[2:], 1), pair(out.shape[2:], 1), pair(w.shape[2:], 1), pair(op.stride, 1), pair(lo, 0),
                        pair(hi, 0), pair(op.dilation, 1))  # fmt: skip

    @property
    def fits(self) -> bool:
        """Whether a tensor map can say it."""
        reach = [d * (t - 1) for d, t in zip(self.dilation, self.taps, strict=True)]
        far = FARTHEST[len(self.image)]
        small = max(*reach, *self.before, *self.after) <= far and min(self.upper) >= -far - 1
        return small and all(s <= 8 for s in self.stride) and all(d > 0 for d in (*self.image, *self.out, *self.taps))

    @property
    def planes(self) -> int:
        """Taps along the axis before lines and pixels."""
        return self.taps[0] if len(self.taps) == 3 else 1

    def inner(self, axes: int) -> Windowed:
        """The same over the last axes alone."""
        return Windowed(*(getattr(self, f.name)[-axes:] for f in fields(self)))

    @property
    def plain(self) -> bool:
        """A product over pixels."""
        return {*self.taps, *self.stride} == {1} and {*self.before, *self.after} == {0}

    @property
    def upper(self) -> Sizes:
        return tuple(hi - d * (t - 1) for hi, d, t in zip(self.after, self.dilation, self.taps, strict=True))
