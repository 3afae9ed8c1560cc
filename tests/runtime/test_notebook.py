"""Graphs and reports in notebooks: HTML that parses, with every node and launch in it, and nothing unescaped."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np

import tilewright as tw
from tilewright.core import html


class Cells(HTMLParser):
    """The text of every cell, and tags that are open at the end."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.cells += [""] if tag in ("td", "th", "pre") else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells[-1] += data


def test_tables_escape_what_they_show() -> None:
    seen = Cells(html.table(("a", "b"), [["<script>", "1 & 2"]], (0,)) + html.lines(["x < y"]))
    assert seen.cells == ["a", "b", "<script>", "1 & 2", "x < y"] and not seen.open


def test_graphs_and_reports() -> None:
    f = tw.jit(lambda x: tw.softmax(tw.tanh(x) @ x.T, axis=-1))
    session = f.lower(np.zeros((5, 7), np.float32))
    graph, report = session.model.graph, session.report()
    for value in (graph, report):
        seen = Cells(value._repr_html_())
        assert not seen.open and len(seen.cells) > 8
    text = Cells(graph._repr_html_()).cells
    assert all(f"%{n.name}" in text for n in graph.nodes if len(n.values) == 1)
    launches = Cells(report._repr_html_()).cells
    assert all(row["name"] in launches for row in report.data["launches"])
