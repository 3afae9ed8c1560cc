"""The roofline picture: flops per byte against flops per second, the machine's roof, one dot per launch."""

from __future__ import annotations

import math
from html import escape

from ..console import nbytes, seconds
from .data import Inspection, Step
from .units import attribute, count, percent

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 1120, 340, 76, 38, 14
RIGHT = 24  # room for half of the last tick


def roofline_svg(data: Inspection) -> str:
    """An SVG with log axes, or a sentence when nothing was measured."""
    measured = [s for s in data.steps if s.seconds and s.flops > 0 and s.bytes > 0]
    if not measured or not data.peak_flops or not data.peak_bandwidth:
        return '<p class="quiet">Not measured: no launch was timed, or the machine\'s ceilings are unknown.</p>'
    peak, bandwidth = data.peak_flops, data.peak_bandwidth
    points = [(s, s.flops / s.bytes, s.flops / (s.seconds or 1.0)) for s in measured]
    ridge = peak / bandwidth
    x0, x1 = _decades([p[1] for p in points] + [ridge])
    y0, y1 = _decades([p[2] for p in points] + [peak])
    inner_w, inner_h = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP

    def x(v: float) -> float:
        return LEFT + (math.log10(v) - x0) / (x1 - x0) * inner_w

    def y(v: float) -> float:
        return TOP + (1 - (math.log10(v) - y0) / (y1 - y0)) * inner_h

    parts = [
        f'<svg class="roofline" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="roofline">',
        f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{inner_w}" height="{inner_h}"/></clipPath>',
    ]
    for e in range(x0, x1 + 1):
        parts.append(
            f'<line class="grid" x1="{x(10.0**e):.1f}" x2="{x(10.0**e):.1f}" y1="{TOP}" y2="{TOP + inner_h}"/>'
            f'<text class="axis" x="{x(10.0**e):.1f}" y="{HEIGHT - 21}" text-anchor="middle">{_plain(10.0**e)}</text>'
        )
    for e in range(y0, y1 + 1):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{LEFT + inner_w}" y1="{y(10.0**e):.1f}" y2="{y(10.0**e):.1f}"/>'
            f'<text class="axis" x="{LEFT - 8}" y="{y(10.0**e) + 4:.1f}" text-anchor="end">{count(10.0**e)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{LEFT + inner_w / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">flops per byte (flop/s upwards)</text>'
    )
    low = 10.0**x0
    for name, rate in [*data.caches, ("memory", bandwidth)]:
        parts.append(
            f'<polyline class="roof{"" if name == "memory" else " cache"}" clip-path="url(#plot)" '
            f'points="{x(low):.1f},{y(low * rate):.1f} {x(peak / rate):.1f},{y(peak):.1f} {x(10.0**x1):.1f},{y(peak):.1f}">'
            f"<title>{escape(name)}: {nbytes(rate)}/s</title></polyline>"
        )
    longest = max(s.seconds or 0.0 for s in measured)
    for step, intensity, rate in sorted(points, key=lambda p: -(p[0].seconds or 0.0)):
        radius = 4 + 9 * math.sqrt((step.seconds or 0.0) / longest)
        parts.append(
            f'<circle class="dot k-{step.kind}" cx="{x(intensity):.1f}" cy="{y(rate):.1f}" r="{radius:.1f}" '
            f'data-tip="{attribute(tip(step))}">'
            f"<title>{escape(tip(step))}</title></circle>"
        )
    parts.append("</svg>")
    return "".join(parts)


def tip(step: Step) -> str:
    """What hovering over a launch says."""
    time = "not measured" if step.seconds is None else seconds(step.seconds)
    rate = f"\n{count(step.flops / step.seconds)}flop/s, {nbytes(step.bytes / step.seconds)}/s" if step.seconds else ""
    bound = f" ({step.bound})" if step.bound else ""
    return (
        f"{step.index}: {step.name}\n{time}, {percent(step.roofline)} of the roofline{bound}{rate}\n"
        f"{count(step.flops)} flops, {nbytes(step.bytes)}"
    )


def _decades(values: list[float]) -> tuple[int, int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) + 1e-9)
    return low, max(high, low + 1)


def _plain(v: float) -> str:
    return f"{v:g}"
