"""The picture of the arena: steps from left to right, bytes from the floor up, one rectangle per buffer."""

from __future__ import annotations

from html import escape

from ..console import nbytes
from .data import Inspection
from .units import attribute, byte_ticks

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 1120, 380, 76, 34, 10


def arena_svg(data: Inspection) -> str:
    """An SVG of the arena; a sentence when nothing needs one."""
    if not data.blocks or not data.arena_bytes:
        return '<p class="quiet">No intermediate buffer: every value lives in registers, inputs or outputs.</p>'
    steps = max(len(data.steps), max(b.last for b in data.blocks) + 1)
    inner_w, inner_h = WIDTH - LEFT - 8, HEIGHT - BOTTOM - TOP
    top = data.arena_bytes

    def x(step: float) -> float:
        return LEFT + step / steps * inner_w

    def y(offset: float) -> float:
        return TOP + inner_h * (1 - offset / top)

    parts = [f'<svg class="arena" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="arena: bytes over steps">']
    for tick in byte_ticks(top):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
            f'<text class="axis" x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{nbytes(tick)}</text>'
        )
    every = max(1, -(-steps // 20))
    for step in range(0, steps, every):
        parts.append(f'<text class="axis" x="{x(step + 0.5):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step}</text>')
    parts.append(f'<text class="axis" x="{LEFT + inner_w / 2:.0f}" y="{HEIGHT - 3}" text-anchor="middle">step of the schedule</text>')
    for block in sorted(data.blocks, key=lambda b: -b.size):
        left, width = x(block.first), max(1.0, x(block.last + 1) - x(block.first))
        height = max(1.0, y(block.offset) - y(block.offset + block.size))
        tip = (
            f"{block.name}\n{nbytes(block.size)} at {nbytes(block.offset)} … {nbytes(block.offset + block.size)}\n"
            f"steps {block.first} … {block.last}{_readers(data, block.first, block.last)}"
        )
        parts.append(
            f'<rect class="block k-{block.kind}" x="{left:.1f}" y="{y(block.offset + block.size):.1f}" '
            f'width="{width:.1f}" height="{height:.1f}" '
            f'rx="2" data-tip="{attribute(tip)}"><title>{escape(tip)}</title></rect>'
        )
        if width > 64 and height > 15:
            label = block.name if len(block.name) * 6.6 < width - 10 else block.name[: max(1, int((width - 16) / 6.6))] + "…"
            parts.append(f'<text class="label" x="{left + 6:.1f}" y="{y(block.offset + block.size) + 12:.1f}">{escape(label)}</text>')
    parts.append("</svg>")
    return "".join(parts)


def _readers(data: Inspection, first: int, last: int) -> str:
    if first >= len(data.steps) or last >= len(data.steps):
        return ""
    return f"\nwritten by {data.steps[first].name}\nlast used by {data.steps[last].name}"
