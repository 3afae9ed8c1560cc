"""The picture of the final graph: one box a node or fused region, its share of the time as a bar, edges between them."""

from __future__ import annotations

from html import escape

from .data import Inspection, Step
from .folds import folded
from .layered import layered
from .roofline import tip
from .units import attribute

BOX_W, BOX_H, GAP_X, GAP_Y = 210, 46, 26, 30
LIMIT = 400  # boxes; above it the picture helps nobody and the text files do


def graph_svg(data: Inspection) -> str:
    """An SVG of the graph, or a sentence where it would be empty or too large to read."""
    if not data.boxes:
        return '<p class="quiet">The graph has no nodes.</p>'
    boxes = folded(data)
    if len(boxes) > LIMIT:
        return f'<p class="quiet">{len(boxes)} nodes are too many for a picture; the graph folder has the text after every pass.</p>'
    drawing = layered([b.name for b in boxes], {b.name: b.sources for b in boxes})
    low = min(x for x in [*drawing.column.values(), *(p[0] for e in drawing.edges.values() for p in e)])
    high = max(x for x in [*drawing.column.values(), *(p[0] for e in drawing.edges.values() for p in e)])
    width, height = (high - low + 1) * (BOX_W + GAP_X) + 8, (max(drawing.rank.values()) + 1) * (BOX_H + GAP_Y)
    by_name: dict[str, list[Step]] = {}
    drawn = {b.name for b in boxes}
    for step in data.steps:
        by_name.setdefault(step.box if step.box in drawn else "repeated layers", []).append(step)
    total = sum(s.seconds or 0.0 for s in data.steps)

    def centre(column: float) -> float:
        return (column - low + 0.5) * (BOX_W + GAP_X) + 4

    def top(rank: int) -> float:
        return rank * (BOX_H + GAP_Y) + 4

    parts = [
        (
            f'<svg class="graph" width="{width:.0f}" height="{height:.0f}" '
            f'viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="graph">'
        )
    ]
    for points in drawing.edges.values():
        d = ""
        for (xa, ra), (xb, rb) in zip(points, points[1:], strict=False):
            x1, y1, x2, y2 = centre(xa), top(ra) + BOX_H, centre(xb), top(rb)
            d += (
                f"M{x1:.1f} {y1:.1f}" if not d else f"L{x1:.1f} {y1:.1f}"
            ) + f"C{x1:.1f} {y1 + GAP_Y * 0.6:.1f} {x2:.1f} {y2 - GAP_Y * 0.6:.1f} {x2:.1f} {y2:.1f}"
        parts.append(f'<path class="edge" d="{d}"/>')
    for box in boxes:
        x, y = centre(drawing.column[box.name]) - BOX_W / 2, top(drawing.rank[box.name])
        steps = by_name.get(box.name, [])
        share = sum(s.seconds or 0.0 for s in steps) / total if total else 0.0
        text = "\n".join(filter(None, [f"{box.name}: {box.type}", box.detail, *(tip(s) for s in steps[:8])]))
        parts.append(
            f'<g class="box k-{box.kind}" data-tip="{attribute(text)}"><title>{escape(text)}</title>'
            f'<rect class="body" x="{x:.1f}" y="{y:.1f}" width="{BOX_W}" height="{BOX_H}" rx="7"/>'
            f'<rect class="edge-mark" x="{x:.1f}" y="{y + 6:.1f}" width="4" height="{BOX_H - 12}" rx="2"/>'
            f'<text class="name" x="{x + 12:.1f}" y="{y + 19:.1f}">{escape(_fit(box.title, 29))}</text>'
            f'<text class="type" x="{x + 12:.1f}" y="{y + 35:.1f}">{escape(_fit(box.type, 24))}</text>'
        )
        if share >= 0.001:
            parts.append(
                f'<text class="share" x="{x + BOX_W - 8:.1f}" y="{y + 35:.1f}" text-anchor="end">{100 * share:.1f} %</text>'
                f'<rect class="bar" x="{x + 12:.1f}" y="{y + BOX_H - 5:.1f}" '
                f'width="{max(1.0, (BOX_W - 20) * share):.1f}" height="2.5" rx="1"/>'
            )
        parts.append("</g>")
    parts.append("</svg>")
    return f'<div class="scroll">{"".join(parts)}</div>'


def _fit(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
