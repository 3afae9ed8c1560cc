"""The pictures of docs/benchmarks.md, drawn from its own tables: `python docs/tools/plots.py` writes docs/pictures/*.svg."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1]
AHEAD, BEHIND, OTHER, INK, FAINT = "#1f8a7a", "#c2622d", "#9aa5a9", "#223", "#d8dcdd"


def table(name: str) -> list[list[str]]:
    """Cells of the rows between the markers of a table."""
    text = (DOCS / "benchmarks.md").read_text()
    found = re.search(rf"<!-- {name} table: begin -->\n(.*?)<!-- {name} table: end -->", text, re.S)
    assert found, f"benchmarks.md has no table {name!r}"
    return [[c.strip() for c in line.strip("|").split("|")] for line in found[1].splitlines()[2:]]


def svg(width: int, height: int, parts: Sequence[str], title: str) -> str:
    style = "text{font:12px system-ui,sans-serif;fill:" + INK + "} .s{font-size:10.5px} .h{font-size:14px;font-weight:600}"
    inside = "\n".join(parts)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">\n'
            f"<title>{escape(title)}</title><style>{style}</style>\n"
            f'<rect width="{width}" height="{height}" fill="#fff"/>\n{inside}\n</svg>\n')


def bar(x: float, y: float, width: float, height: float, color: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height:.1f}" fill="{color}"/>'


def text(x: float, y: float, what: str, anchor: str = "start", kind: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{f" class={chr(34)}{kind}{chr(34)}" if kind else ""}>{escape(what)}</text>'


def line(x: float, top: float, bottom: float, color: str) -> str:
    return f'<line x1="{x:.1f}" y1="{top:.1f}" x2="{x:.1f}" y2="{bottom:.1f}" stroke="{color}"/>'


def ratios(title: str, rows: Sequence[tuple[str, float, str]], ticks: Sequence[float], columns: int = 1, step: int = 19) -> str:
    """Bars on a logarithmic scale that begin at 1: to the right we are faster, to the left slower."""
    low, high = math.log(ticks[0]), math.log(ticks[-1])
    per = -(-len(rows) // columns)
    label, plot, note = 150, 300 if columns == 1 else 170, 130 if columns == 1 else 46
    wide, top = label + plot + note, 52
    bottom = top + per * step
    at = lambda column, v: column * wide + label + plot * (math.log(min(max(v, ticks[0]), ticks[-1])) - low) / (high - low)
    parts = [text(10, 20, title, kind="h")]
    for c in range(columns):
        for t in ticks:
            parts += [line(at(c, t), top - 6, bottom, INK if t == 1 else FAINT), text(at(c, t), top - 10, f"{t:g}", "middle", "s")]
    for i, (name, value, remark) in enumerate(rows):
        c, y = i // per, top + i % per * step
        left, right = sorted((at(c, 1), at(c, value)))
        parts += [text(c * wide + label - 6, y + step * 0.72, name, "end", "" if step > 16 else "s"),
                  bar(left, y + 2, right - left, step - 5, AHEAD if value >= 1 else BEHIND),
                  text(at(c, max(value, 1)) + 4, y + step * 0.72, f"{value:.2f}{remark}", kind="s")]
    return svg(columns * wide, bottom + 12, parts, title)


def pairs(title: str, groups: Sequence[tuple[str, Sequence[tuple[str, float, float]]]]) -> str:
    """For each group a panel of two bars a row: ours above the other's."""
    parts, x, step = [text(10, 20, title, kind="h")], 0, 34
    height = 56 + step * max(len(rows) for _, rows in groups) + 26
    for name, rows in groups:
        most = max(max(a, b) for _, a, b in rows)
        parts.append(text(x + 70, 44, name))
        for i, (label, ours, theirs) in enumerate(rows):
            y = 54 + i * step
            parts.append(text(x + 64, y + 17, label, "end"))
            for k, (value, color) in enumerate(((ours, AHEAD), (theirs, OTHER))):
                end = x + 70 + 220 * value / most
                parts += [bar(x + 70, y + k * 13, end - x - 70, 11, color), text(end + 5, y + k * 13 + 10, f"{value:.0f}", kind="s")]
        x += 340
    y = height - 10
    parts += [bar(70, y - 10, 11, 11, AHEAD), text(86, y, "Tilewright"), bar(170, y - 10, 11, 11, OTHER), text(186, y, "llama.cpp")]
    return svg(x, height, parts, title)


def number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell)
    assert found, cell
    return float(found[0])


def pictures() -> dict[str, str]:
    """file name -> SVG."""
    inference = [(r[0], number(r[3]), f"  {r[2].split()[1]}") for r in table("inference")]
    llm = [r for r in table("llm") if "again" not in r[0]]
    ops = sorted(((r[0], number(r[3]), "") for r in table("ops")), key=lambda r: -r[1])
    speed = lambda a, b: [(r[0], number(r[a]), number(r[b])) for r in llm]
    return {
        "inference.svg": ratios("Times as fast as the fastest peer (named behind the bar)", inference, (0.7, 1, 1.5, 2, 3, 4)),
        "llm.svg": pairs("SmolLM2-135M, tokens a second on 2 threads", (("prompt of 512", speed(1, 2)), ("decode", speed(4, 5)))),
        "ops.svg": ratios("Times as fast as PyTorch, op by op", ops, (0.7, 1, 2, 5, 10, 35), columns=3, step=15),
    }


if __name__ == "__main__":
    for name, content in pictures().items():
        (DOCS / "pictures" / name).write_text(content)
        print(DOCS / "pictures" / name)
