"""The geometry of a convolution over one or two spatial axes of known size, as the copy engine walks it."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.dims import Dim
from ...ir.types import TensorType
from ...ops.contractions import Conv as ConvOp

FARTHEST = 127  # places a window may reach from its first tap: what a tensor map can say


@dataclass(frozen=True)
class Windowed:
    """A convolution over [batch, height, width, channels]; pairs are (height, width)."""

    image: tuple[int, int]
    out: tuple[int, int]
    taps: tuple[int, int]
    stride: tuple[int, int]
    before: tuple[int, int]
    after: tuple[int, int]
    dilation: tuple[int, int]

    @staticmethod
    def of(op: ConvOp, x: TensorType, w: TensorType, out: TensorType) -> Windowed | None:
        """None where sizes are not known or there are more than two spatial axes."""
        spatial = x.ndim - 2
        sizes = (*x.shape[2:], *out.shape[2:], *w.shape[1:])
        if spatial not in (1, 2) or not all(isinstance(d, int) for d in sizes):
            return None
        if not all(isinstance(p, int) and p >= 0 for pair in op.padding for p in pair):
            return None

        def pair(values: tuple[Dim, ...], fill: int) -> tuple[int, int]:
            a, b = (fill,) * (2 - spatial) + tuple(v for v in values if isinstance(v, int))
            return a, b

        lo, hi = tuple(p[0] for p in op.padding), tuple(p[1] for p in op.padding)
        return Windowed(pair(x.shape[2:], 1), pair(out.shape[2:], 1), pair(w.shape[2:], 1), pair(op.stride, 1), pair(lo, 0),
                        pair(hi, 0), pair(op.dilation, 1))  # fmt: skip

    @property
    def fits(self) -> bool:
        """Whether a tensor map can say it."""
        reach = [d * (t - 1) for d, t in zip(self.dilation, self.taps, strict=True)]
        small = all(r <= FARTHEST and lo <= FARTHEST and hi <= FARTHEST for r, lo, hi in zip(reach, self.before, self.after, strict=True))
        return small and all(s <= 8 for s in self.stride) and all(d > 0 for d in (*self.image, *self.out, *self.taps))

    @property
    def plain(self) -> bool:
        """A product over pixels."""
        return self.taps == (1, 1) and self.stride == (1, 1) and self.before == (0, 0) and self.after == (0, 0)

    @property
    def upper(self) -> tuple[int, int]:
        h, w = (hi - d * (t - 1) for hi, d, t in zip(self.after, self.dilation, self.taps, strict=True))
        return h, w
