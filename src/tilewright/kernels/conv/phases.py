"""Transposed convolutions by phases: results that differ by a multiple of the stride are reached by the same taps, so each phase is a plain
convolution of stride 1 over the input as it is, with the taps of its phase in reverse, and no zero is ever multiplied."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product as combinations
from math import gcd

from ...core.dims import Shape
from ...ops.matmul.contractions import Conv as ConvOp

MOST = 32  # phases; more are not worth a launch each


@dataclass(frozen=True)
class Axis:
    """One phase along one axis: results start, start + step … (count of them); taps first, first + hop … (that many), the last one first;
    neighbouring taps read elements `dilation` apart, the first of them `reach` from the result's own number (negative: before it)."""

    start: int
    step: int
    count: int
    first: int
    hop: int
    taps: int
    dilation: int
    reach: int


def axes_of(op: ConvOp, x: Shape, kernel: Shape, out: Shape) -> list[list[Axis]] | None:
    """The phases along every axis; None where sizes are not known or there are too many phases."""
    found, total = [], 1
    for size, k, o, s, d, (lo, _) in zip(x, kernel, out, op.stride, op.dilation, op.padding, strict=True):
        if not all(isinstance(n, int) for n in (size, k, o, lo)):
            return None
        assert isinstance(k, int) and isinstance(o, int) and isinstance(lo, int)
        total *= min(s, o)
        if total > MOST:
            return None
        found.append([_phase(r, s, d, k, o, lo) for r in range(min(s, o))])
    return found


def _phase(r: int, s: int, d: int, k: int, o: int, lo: int) -> Axis:
    """Result s * q + r takes element i by tap t where s * q + r + lo = s * i + d * t."""
    g, count = gcd(s, d), -(-(o - r) // s)
    hop = s // g
    first = next((t for t in range(min(hop, k)) if (r + lo - d * t) % s == 0), k)
    taps = -(-(k - first) // hop)
    nearest = (r + lo - d * first) // s  # by the first tap; later ones reach d / g further back
    return Axis(r, s, count, first, hop, taps, d // g, nearest - (taps - 1) * (d // g) if taps else 0)


def padding_of(axes: list[list[Axis]], x: Shape) -> tuple[tuple[int, int], ...]:
    """Zeros that some phase reads before and behind the input."""
    pads = []
    for phases, size in zip(axes, x, strict=True):
        assert isinstance(size, int)
        lo = max((-p.reach for p in phases if p.taps), default=0)
        hi = max((p.reach + (p.taps - 1) * p.dilation + p.count - size for p in phases if p.taps), default=0)
        pads.append((max(lo, 0), max(hi, 0)))
    return tuple(pads)


def combined(axes: list[list[Axis]]) -> list[tuple[Axis, ...]]:
    return list(combinations(*axes))
