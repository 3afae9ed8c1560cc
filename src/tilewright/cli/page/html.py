"""The page itself: cards, pictures, the table of launches, and every text in folds. One string, no external resource."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from html import escape
from importlib.resources import files

from ..console import nbytes, seconds
from .data import KINDS, Box, Inspection, KernelText, Stage, Step
from .roofline import roofline_svg, tip
from .units import attribute, byte_ticks, count, percent


@dataclass(frozen=True)
class Repeat:
    """`count` copies of `period` items, the first of which begins at `first`."""

    first: int
    period: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.period * self.count


def layers(data: Inspection) -> Repeat | None:
    """The repetition among the launches of a schedule."""
    return repeated([(s.kernel, s.grid, s.flops) for s in data.steps])


def folded(data: Inspection) -> list[Box]:
    """The boxes of the graph, with all copies of a layer but the first as one box."""
    again = layers(data)
    if again is None:
        return data.boxes
    hidden = {s.box for s in data.steps[again.first + again.period : again.end]} - {s.box for s in data.steps[: again.first + again.period]}
    readers: dict[str, set[str]] = {}
    for b in data.boxes:
        for s in b.sources:
            readers.setdefault(s, set()).add(b.name)
    for b in data.boxes:  # caches of the folded layers, in and out
        if (b.kind == "input" and readers.get(b.name, {""}) <= hidden) or (b.kind == "output" and set(b.sources) <= hidden):
            hidden.add(b.name)
    name = "repeated layers"
    sources = dict.fromkeys(s for b in data.boxes if b.name in hidden for s in b.sources if s not in hidden)
    fold = Box(name, "other", f"… {again.count - 1} times more", f"{len(hidden)} boxes", "the same launches again", tuple(sources))
    shown = {b.name: replace(b, sources=tuple(dict.fromkeys(name if s in hidden else s for s in b.sources)))
             for b in data.boxes if b.name not in hidden} | {name: fold}  # fmt: skip
    try:
        return [shown[n] for n in TopologicalSorter({n: b.sources for n, b in shown.items()}).static_order()]
    except CycleError:  # something shown lies between two folded layers
        return data.boxes


def repeated(keys: Sequence[Hashable], least: int = 3) -> Repeat | None:
    """The repetition of a run of at least two items that covers most of `keys`, the shortest period first; None below `least` copies.

    >>> repeated("xababababy")
    Repeat(first=1, period=2, count=4)
    """
    best: Repeat | None = None
    for period in range(2, len(keys) // least + 1):
        start = 0
        while start + least * period <= len(keys):
            end = start + period
            while end < len(keys) and keys[end] == keys[end - period]:
                end += 1
            count = (end - start) // period
            if count >= least and (best is None or count * period > best.count * best.period):
                best = Repeat(start, period, count)
            start = max(start + 1, end - period + 1)
    return best


Key = tuple[str, int]  # (node, 0), or (edge name, rank) for a dummy point


@dataclass(frozen=True)
class Drawing:
    """Columns (centres, in units of box widths) and ranks of the nodes, and for each edge the points it passes."""

    column: dict[str, float]
    rank: dict[str, int]
    edges: dict[tuple[str, str], list[tuple[float, int]]]


def layered(nodes: Sequence[str], sources: Mapping[str, Sequence[str]], sweeps: int = 6) -> Drawing:
    """Place `nodes` (in topological order), each reading its `sources`.

    >>> layered(["a", "b"], {"b": ["a"]}).rank
    {'a': 0, 'b': 1}
    """
    rank: dict[str, int] = {}
    for n in nodes:
        rank[n] = max((rank[s] + 1 for s in sources.get(n, ())), default=0)
    for n in reversed(nodes):  # a source of data sits just above its first reader
        readers = [rank[m] for m in nodes if n in sources.get(m, ())] if not sources.get(n) else []
        if readers:
            rank[n] = max(rank[n], min(readers) - 1)
    rows: list[list[Key]] = [[] for _ in range(max(rank.values(), default=-1) + 1)]
    above: dict[Key, list[Key]] = {}
    below: dict[Key, list[Key]] = {}
    paths: dict[tuple[str, str], list[Key]] = {}
    for n in nodes:
        rows[rank[n]].append((n, 0))
    for n in nodes:
        for s in dict.fromkeys(sources.get(n, ())):
            path: list[Key] = [(s, 0), *((f"{s}→{n}", r) for r in range(rank[s] + 1, rank[n])), (n, 0)]
            paths[s, n] = path
            for key in path[1:-1]:
                rows[key[1]].append(key)
            for up, down in zip(path, path[1:], strict=False):
                above.setdefault(down, []).append(up)
                below.setdefault(up, []).append(down)
    for sweep in range(sweeps):
        _sort(rows if sweep % 2 == 0 else rows[::-1], above if sweep % 2 == 0 else below)
    x = _columns(rows, above, below)
    points = {e: [(x[k], rank[k[0]] if k[0] in rank else k[1]) for k in path] for e, path in paths.items()}
    return Drawing({n: x[n, 0] for n in nodes}, rank, points)


def _sort(rows: Sequence[list[Key]], neighbours: Mapping[Key, list[Key]]) -> None:
    """Order each row by the mean position of its neighbours in the row before."""
    place: dict[Key, float] = {}
    for row in rows:
        wish = {k: _mean([place[n] for n in neighbours.get(k, []) if n in place], i) for i, k in enumerate(row)}
        row.sort(key=lambda k: wish[k])
        place.update({k: i - (len(row) - 1) / 2 for i, k in enumerate(row)})


def _columns(rows: Sequence[list[Key]], above: Mapping[Key, list[Key]], below: Mapping[Key, list[Key]]) -> dict[Key, float]:
    """Pull every point towards its neighbours, keeping the order of its row and a distance of one box (less for dummies)."""
    width = {k: 1.0 if k[1] == 0 and "→" not in k[0] else 0.35 for row in rows for k in row}
    x: dict[Key, float] = {}
    for row in rows:
        at = 0.0
        for k in row:
            x[k] = at + width[k] / 2
            at += width[k]
        for k in row:
            x[k] -= at / 2
    for turn in range(12):
        for row in rows if turn % 2 == 0 else rows[::-1]:
            wish = [_mean([x[n] for n in (*above.get(k, []), *below.get(k, []))], x[k]) for k in row]
            for k, w in zip(row, _spread(wish, [width[k] for k in row]), strict=True):
                x[k] = w
    return x


def _spread(wish: list[float], width: list[float]) -> list[float]:
    """Positions in order, at least the widths apart, near the wishes: the mean of a push from the left and one from the right."""
    left, right = wish[:], wish[:]
    for i in range(1, len(wish)):
        left[i] = max(left[i], left[i - 1] + (width[i - 1] + width[i]) / 2)
    for i in reversed(range(len(wish) - 1)):
        right[i] = min(right[i], right[i + 1] - (width[i] + width[i + 1]) / 2)
    return [(a + b) / 2 for a, b in zip(left, right, strict=True)]


def _mean(values: list[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


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


TEXT_LIMIT = 60_000  # characters of one text shown in the page; the files beside it are whole


def page(data: Inspection) -> str:
    """The whole document."""
    body = "".join(
        [
            _cards(data),
            _section(
                "graph",
                "Graph",
                "The graph after all passes: one box a node or fused region, with its share of the run time. Hover for details.",
                _legend(data) + f'<div class="panel">{graph_svg(data)}</div>',
            ),
            _section(
                "kernels",
                "Schedule",
                "Launches in order. The share of the roofline is the "
                "best possible time for these flops and bytes on this machine over the measured one; the word behind it says what bounds: "
                "arithmetic, or the level of the memory that the data fits in. Click a column to sort, a launch for its kernel.",
                _findings(data) + f'<div class="panel scroll">{_launches(data)}</div>',
            ),
            _section(
                "roofline",
                "Roofline",
                "One dot a launch, larger where more time goes. The dashed lines are what this machine can do "
                "with data from memory (strong) and from its caches (faint).",
                f'<div class="panel">{roofline_svg(data)}</div>',
            ),
            _section(
                "places",
                "Modules and lines",
                "Where the time goes in the model as it was written.",
                _places(data),
            ),
            _section(
                "arena",
                "Arena",
                f"Memory of all intermediate values: {nbytes(data.arena_bytes)}"
                + (f", at least {nbytes(data.arena_bound)} with these lifetimes" if data.arena_bound else "")
                + (f"; {data.arena_note}" if data.arena_note else "")
                + ".",
                f'<div class="panel">{arena_svg(data)}</div>',
            ),
            _section(
                "code",
                "Kernels",
                "Each kernel once: tile IR, LLVM IR, assembly.",
                f'<div class="panel">{"".join(_kernel(k) for k in data.kernels.values())}</div>',
            ),
            _section(
                "passes",
                "Passes",
                "The graph after each pass, with the rules that fired.",
                f'<div class="panel">{"".join(_stage(s) for s in data.stages)}</div>',
            ),
        ]
    )
    links = "".join(
        f'<a href="#{i}">{n}</a>'
        for i, n in (("graph", "graph"), ("kernels", "schedule"), ("places", "modules"), ("arena", "arena"), ("code", "kernels"),
                     ("passes", "passes"))
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(data.title)} · tilewright</title><style>{_resource('page.css')}</style></head><body>"
        f"<header><h1>{escape(data.title)}</h1><p>{escape(data.machine)}</p>"
        f'<nav><input id="find" type="search" placeholder="search" aria-label="search launches, modules, kernels and passes">'
        f'{links}<button id="theme" title="light or dark">◐</button></nav></header>'
        f"<main>{body}<footer>Written by <code>tilewright inspect</code>.</footer></main>"
        f'<div id="tip"></div><script>{_resource("page.js")}</script></body></html>'
    )


def _section(key: str, title: str, line: str, content: str) -> str:
    return f'<section id="{key}"><h2>{title}</h2><p class="quiet">{escape(line)}</p>{content}</section>'


def _cards(data: Inspection) -> str:
    cards = "".join(f'<div class="card"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in data.facts)
    stages = " · ".join(f"{escape(name)} {seconds(s)}" for name, s in data.compile_stages)
    return f'<div class="cards">{cards}</div>' + (f'<p class="quiet">compile: {stages}</p>' if stages else "")


def _legend(data: Inspection) -> str:
    used = {b.kind for b in data.boxes} | {s.kind for s in data.steps}
    return '<div class="legend">' + "".join(f'<span class="k-{k}"><i></i>{k}</span>' for k in (*KINDS, "input") if k in used) + "</div>"


def _findings(data: Inspection) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in data.findings)
    return f"<p>Far from the roofline, and a part of the call that matters:</p><ul>{items}</ul>" if items else ""


def _launches(data: Inspection) -> str:
    total = sum(s.seconds or 0.0 for s in data.steps)
    titles = ("#", "launch", "programs", "flops", "bytes", "time", "predicted", "share", "roofline", "where", "")
    head = "".join(f"<th{'' if name in ('launch', 'where', '') else ' class=n'}>{name}</th>" for name in titles)
    where = {b.name: b for b in data.boxes}
    rows = [_row(s, total, where.get(s.box)) for s in data.steps]
    again = layers(data)
    if again is not None:  # the first layer is shown, the others open with a click
        first, last = again.first + again.period, again.end
        spent = sum(s.seconds or 0.0 for s in data.steps[first:last])
        text = (f"the same {again.period} launches {again.count - 1} times more (#{first}–#{last - 1}), {seconds(spent)}, "
                f"{percent(spent / total if total else None)}")
        fold = f'<tr class="fold"><td></td><td colspan="10"><button>▸ {text}</button></td></tr>'
        hidden = [r.replace('<tr class="', '<tr hidden="" class="again ', 1) for r in rows[first:last]]
        rows = [*rows[:first], fold, *hidden, *rows[last:]]
    known = any(map(_where, data.boxes))
    return f'<table class="sort{"" if known else " nowhere"}"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


def _places(data: Inspection) -> str:
    """Time by module and by line of the model's source, most first."""
    total = sum(s.seconds or 0.0 for s in data.steps)
    of_box = {b.name: b for b in data.boxes}
    spent: dict[tuple[str, str], list[Step]] = {}
    for s in data.steps:
        if (box := of_box.get(s.box)) is not None:
            for key in (("module", box.module), ("line", box.place)):
                if key[1]:
                    spent.setdefault(key, []).append(s)
    parts = []
    for kind, title in (("line", "line of the source"), ("module", "module")):
        own = {name: steps for (k, name), steps in spent.items() if k == kind}
        rows = sorted(((sum(s.seconds or 0.0 for s in steps), name, len(steps)) for name, steps in own.items()), reverse=True)
        cells = "".join(
            f'<tr id="{kind[0]}-{attribute(name)}"><td>{escape(name)}</td>'
            f'<td class="w"><code>{escape(data.lines.get(name, ""))}</code></td>'
            f'<td class="n" data-v="{n}">{n}</td><td class="n" data-v="{t}">{seconds(t)}</td>'
            f'<td class="n" data-v="{t}">{percent(t / total if total else None)}</td></tr>'
            for t, name, n in rows
        )
        if rows:
            parts.append(f'<div class="panel scroll places"><table class="sort"><thead><tr><th>{title}</th><th></th>'
                         f"<th class=n>launches</th><th class=n>time</th><th class=n>share</th></tr></thead>"
                         f"<tbody>{cells}</tbody></table></div>")
    return "".join(parts) or '<p class="quiet">This model knows no modules and no lines of a source.</p>'


def _row(s: Step, total: float, box: Box | None) -> str:
    def cell(value: float | None, shown: str, bar: float | None = None) -> str:
        meter = f'<span class="meter"><i style="width:{100 * min(1.0, max(0.0, bar)):.1f}%"></i></span>' if bar is not None else ""
        return f'<td class="n" data-v="{-1 if value is None else value}">{shown}{meter}</td>'

    share = s.seconds / total if s.seconds is not None and total else None
    flags = [f for f, on in (("after a barrier", s.barrier), ("one thread", s.serial)) if on]
    note = "; ".join([*flags, *([s.note] if s.note else [])])
    return (
        f'<tr class="k-{s.kind}"><td class="n">{s.index}</td>'
        f'<td><i class="k"></i><a href="#k-{attribute(s.kernel)}">{escape(s.name)}</a></td>'
        + cell(s.grid, str(s.grid))
        + cell(s.flops, count(s.flops))
        + cell(s.bytes, nbytes(s.bytes))
        + cell(s.seconds, "–" if s.seconds is None else seconds(s.seconds))
        + cell(s.predicted, "–" if s.predicted is None else seconds(s.predicted))
        + cell(share, percent(share), share)
        + cell(s.roofline, f"{percent(s.roofline)} {s.bound}".rstrip(), s.roofline)
        + f'<td class="w">{_where(box)}</td><td class="w">{escape(note)}</td></tr>'
    )


def _where(box: Box | None) -> str:
    """The module and the line that a launch comes from, as links to their rows."""
    if box is None:
        return ""
    known = (("m", box.module), ("l", box.place))
    return " ".join(f'<a href="#{key}-{attribute(name)}">{escape(name)}</a>' for key, name in known if name)


def _kernel(k: KernelText) -> str:
    panes = [("tile IR", k.tile), ("LLVM IR", k.llvm), ("assembly", k.assembly)]
    buttons = "".join(f'<button class="{"on" if i == 0 else ""}">{name}</button>' for i, (name, _) in enumerate(panes))
    texts = "".join(f"<pre{' hidden' if i else ''}>{escape(_cut(text))}</pre>" for i, (_, text) in enumerate(panes))
    sizes = f"{k.tile.count(chr(10))} lines of tile IR, {k.assembly.count(chr(10))} of assembly"
    head = f'<details id="k-{attribute(k.name)}"><summary>{escape(k.name)}<span>{sizes}</span></summary>'
    return f'{head}<div class="tabs">{buttons}</div>{texts}</details>'


def _stage(s: Stage) -> str:
    rules = ", ".join(f"{name} ×{n}" for name, n in s.rules)
    line = f"{s.nodes} nodes" + (f", {seconds(s.seconds)}" if s.seconds else "") + (f" · {escape(rules)}" if rules else "")
    return f"<details><summary>{escape(s.name)}<span>{line}</span></summary><pre>{escape(_cut(s.text))}</pre></details>"


def _cut(text: str) -> str:
    return (
        text
        if len(text) <= TEXT_LIMIT
        else text[:TEXT_LIMIT] + f"\n… {len(text) - TEXT_LIMIT} more characters: see the file beside this page"
    )


def _resource(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
