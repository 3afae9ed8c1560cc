"""The page itself: cards, pictures, the table of launches, and every text in folds. One string, no external resource."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from ..console import nbytes, seconds
from .arena import arena_svg
from .data import KINDS, Box, Inspection, KernelText, Stage, Step
from .folds import layers
from .graph import graph_svg
from .roofline import roofline_svg
from .units import attribute, count, percent

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
    head = "".join(
        f"<th{' class=n' if numeric else ''}>{name}</th>"
        for name, numeric in (
            ("#", True),
            ("launch", False),
            ("programs", True),
            ("flops", True),
            ("bytes", True),
            ("time", True),
            ("predicted", True),
            ("share", True),
            ("roofline", True),
            ("where", False),
            ("", False),
        )
    )
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
    return f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'


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
