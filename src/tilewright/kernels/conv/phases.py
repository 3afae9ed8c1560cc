"""Transposed convolutions by phases: results that differ by a multiple of the stride are reached by the same taps, so each phase is a plain
convolution of stride 1 over the input as it is, with the taps of its phase in reverse, and no zero is ever multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations
from math import gcd

from ...core.dims import Dim, Shape, ceildiv
from ...ops.matmul.contractions import Conv as ConvOp

MOST = 32  # phases; more are not worth a launch each


@dataclass(frozen=True)
class Axis:
    """One phase along one axis: results start, start + step … (count of them); taps first, first + hop … (that many), the last one first;
    neighbouring taps read elements `dilation` apart, the first of them `reach` from the result's own number (negative: before it)."""

    start: int
    step: int
    count: Dim
    first: int
    hop: int
    taps: int
    dilation: int
    reach: int

    def behind(self, size: Dim) -> int:
        """How many elements behind an input of this size its last result reads."""
        more = self.count - size
        assert isinstance(more, int)
        return self.reach + (self.taps - 1) * self.dilation + more


def axes_of(op: ConvOp, x: Shape, kernel: Shape, out: Shape) -> list[list[Axis]] | None:
    """The phases along every axis; None where there are too many, or sizes leave open how far they reach."""
    found, total = [], 1
    for size, k, o, s, d, (lo, _) in zip(x, kernel, out, op.stride, op.dilation, op.padding, strict=True):
        count = min(s, o) if isinstance(o, int) else s  # phases of a size that is smaller are empty
        if not (isinstance(k, int) and isinstance(lo, int)):
            return None
        total *= count
        phases = [_phase(r, s, d, k, o, lo) for r in range(count)]
        if total > MOST or not all(isinstance(p.count - size, int) for p in phases):
            return None
        found.append(phases)
    return found


def _phase(r: int, s: int, d: int, k: int, o: Dim, lo: int) -> Axis:
    """Result s * q + r takes element i by tap t where s * q + r + lo = s * i + d * t."""
    g, count = gcd(s, d), ceildiv(o - r, s)
    hop = s // g
    first = next((t for t in range(min(hop, k)) if (r + lo - d * t) % s == 0), k)
    taps = -(-(k - first) // hop)
    nearest = (r + lo - d * first) // s  # by the first tap; later ones reach d / g further back
    return Axis(r, s, count, first, hop, taps, d // g, nearest - (taps - 1) * (d // g) if taps else 0)


def padding_of(axes: list[list[Axis]], x: Shape) -> tuple[tuple[int, int], ...]:
    """Zeros that some phase reads before and behind the input."""
    pads = []
    for phases, size in zip(axes, x, strict=True):
        lo = max((-p.reach for p in phases if p.taps), default=0)
        hi = max((p.behind(size) for p in phases if p.taps), default=0)
        pads.append((max(lo, 0), max(hi, 0)))
    return tuple(pads)


def combined(axes: list[list[Axis]]) -> list[tuple[Axis, ...]]:
    return list(combinations(*axes))
