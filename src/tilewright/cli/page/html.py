"""The page itself: cards, pictures, the table of launches, and every text in folds. One string, no external resource."""

from __future__ import annotations

from html import escape
from importlib.resources import files

from ..console import nbytes, seconds
from .arena import arena_svg
from .data import KINDS, Inspection, KernelText, Stage, Step
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
                "arithmetic, or the level of the memory that the data fits in.",
                f'<div class="panel scroll">{_launches(data)}</div>',
            ),
            _section(
                "roofline",
                "Roofline",
                "One dot a launch, larger where more time goes. The dashed lines are what this machine can do "
                "with data from memory (strong) and from its caches (faint).",
                f'<div class="panel">{roofline_svg(data)}</div>',
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
        for i, n in (("graph", "graph"), ("kernels", "schedule"), ("arena", "arena"), ("code", "kernels"), ("passes", "passes"))
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(data.title)} · tilewright</title><style>{_resource('page.css')}</style></head><body>"
        f"<header><h1>{escape(data.title)}</h1><p>{escape(data.machine)}</p>"
        f'<nav>{links}<button id="theme" title="light or dark">◐</button></nav></header>'
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
            ("share", True),
            ("roofline", True),
            ("", False),
        )
    )
    return f'<table class="sort"><thead><tr>{head}</tr></thead><tbody>{"".join(_row(s, total) for s in data.steps)}</tbody></table>'


def _row(s: Step, total: float) -> str:
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
        + cell(share, percent(share), share)
        + cell(s.roofline, f"{percent(s.roofline)} {s.bound}".rstrip(), s.roofline)
        + f'<td class="w">{escape(note)}</td></tr>'
    )


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
