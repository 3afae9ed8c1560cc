"""The inspect page: self-contained, well-formed, escaped, and its pictures put things where the data say."""

from __future__ import annotations

import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.cli.inspection import kind_of
from tilewright.cli.page import html
from tilewright.cli.page.data import Block, Box, Inspection, KernelText, Stage, Step
from tilewright.cli.page.html import HEIGHT, LEFT, TEXT_LIMIT, TOP, WIDTH, Repeat, arena_svg, folded, graph_svg, layered, page, repeated
from tilewright.cli.page.roofline import roofline_svg
from tilewright.ops.base import REGISTRY


@pytest.fixture
def data() -> Inspection:
    made = Inspection("block <4x128>", "cpu, 2 cores", facts=[("one call", "1.2 ms")], peak_flops=2e11, peak_bandwidth=2e10)
    made.boxes = [
        Box("x", "input", "x", "f32[4,8]"),
        Box("ln", "norm", "layer_norm", "f32[4,8]", "a & b", ("x",)),
        Box("mm", "matmul", "matmul + x", "f32[4,8]", "", ("ln", "x")),
    ]
    made.steps = [
        Step(0, "ln", "norm", "k<0>", "ln", 4, 1000, 256, 2e-6, 0.5, serial=True),
        Step(1, "mm", "matmul", "k1", "mm", 1, 2048, 512, 6e-6, 0.25, barrier=True, note="copy"),
    ]
    made.kernels = {
        "k<0>": KernelText("k<0>", "tile %a < %b\n", "define void @k\n", "ret\n"),
        "k1": KernelText("k1", "t" * (TEXT_LIMIT + 5), "", ""),
    }
    made.arena_bytes, made.blocks = 1024, [Block("ln", 0, 512, 0, 1, "norm"), Block("tmp", 512, 512, 1, 1, "matmul")]
    made.stages = [Stage("import", "%x = input\n", 3), Stage("fuse", "%y = fused\n", 2, 0.001, (("epilogue", 2),))]
    made.compile_stages = [("passes", 0.01)]
    return made


def test_the_page_needs_nothing_else(data: Inspection) -> None:
    text = page(data)
    assert not re.search(r"(?:src|href)=[\"'](?!#)", text), "refers to another file"
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert text.startswith("<!doctype html>")
    assert "prefers-color-scheme" in text


def test_names_are_escaped(data: Inspection) -> None:
    text = page(data)
    assert "block &lt;4x128&gt;" in text
    assert "<4x128>" not in text
    assert "k<0>" not in text
    assert "a &amp; b" in text


def test_long_texts_are_cut_and_say_so(data: Inspection) -> None:
    assert "5 more characters: see the file beside this page" in page(data)


def test_the_body_is_well_formed(data: Inspection) -> None:
    body = re.search(r"<main>.*</main>", page(data), re.S)
    assert body
    text = body[0].replace("class=n", 'class="n"').replace(" hidden>", ' hidden="">')
    assert len(ET.fromstring(text).findall("section")) == 7


def test_repeated_layers_are_folded_and_launches_lead_to_their_places(data: Inspection) -> None:
    """Four equal layers of two launches between two other launches: one is shown, three are folded, in the table and in the graph."""
    data.boxes, data.steps = [Box("x", "input", "x", "f32[4]")], []
    for i, kind in enumerate(["a", *"bc" * 4, "d"]):
        data.boxes.append(Box(f"n{i}", "other", kind, "f32[4]", "", (data.boxes[-1].name,), f"model.py:{i}", f"layers.{i}"))
        data.steps.append(Step(i, f"n{i}", "other", kind, f"n{i}", seconds=1e-6))
    data.boxes = [Box("cache", "input", "cache", "f32[4]"), *data.boxes, Box("output 1", "output", "output 1", "f32[4]", "", ("n5",))]
    at = next(i for i, b in enumerate(data.boxes) if b.name == "n5")
    data.boxes[at] = replace(data.boxes[at], sources=("n4", "cache"))
    data.lines = {"model.py:3": "x = self.first(x) < 1"}
    assert [b.name for b in folded(data)] == ["x", "n0", "n1", "n2", "repeated layers", "n9"]
    assert [b.sources for b in folded(data)[-2:]] == [("n2",), ("repeated layers",)]
    text = page(data)
    assert text.count('class="again ') == 6 and "the same 2 launches 3 times more (#3–#8), 6.0 us, 60.0 %" in text
    assert 'href="#l-model.py:3"' in text and '<tr id="l-model.py:3">' in text and "x = self.first(x) &lt; 1" in text
    assert 'href="#m-layers.3"' in text and '<tr id="m-layers.3">' in text and 'id="find"' in text
    assert repeated("abcabd") is None and repeated("xyxyxyz") == Repeat(0, 2, 3)


def test_arena_rectangles_are_where_the_buffers_are(data: Inspection) -> None:
    rects = {r.get("data-tip", "").split("\n")[0]: r for r in ET.fromstring(arena_svg(data)).iter("rect")}
    low, high = rects["ln"], rects["tmp"]
    middle = (float(low.get("y", 0)), float(high.get("y", 0)) + float(high.get("height", 0)))
    assert middle[0] == pytest.approx(middle[1], abs=0.2), "one ends where the other begins"
    assert float(low.get("x", 0)) == LEFT
    assert float(high.get("x", 0)) + float(high.get("width", 0)) == pytest.approx(WIDTH - 8, abs=0.2)
    assert float(high.get("y", 0)) == TOP
    assert float(low.get("y", 0)) + float(low.get("height", 0)) < HEIGHT
    assert "written by ln\nlast used by mm" in low.get("data-tip", "")


def test_dots_stay_under_the_roof(data: Inspection) -> None:
    picture = ET.fromstring(roofline_svg(data))
    assert len(list(picture.iter("circle"))) == 2
    roof = min(float(p.split(",")[1]) for p in next(picture.iter("polyline")).get("points", "").split())
    assert all(float(c.get("cy", 0)) >= roof for c in picture.iter("circle"))
    assert data.peak_bandwidth is not None
    data.caches = [("L1", 8 * data.peak_bandwidth), ("L2", 3 * data.peak_bandwidth)]
    roofs = [p.get("points", "").split() for p in ET.fromstring(roofline_svg(data)).iter("polyline")]
    left = [float(points[0].split(",")[1]) for points in roofs]
    assert left == sorted(left), "the faster a level, the higher its roof"
    assert len({points[2] for points in roofs}) == 1, "all end in the same ceiling"


def test_nothing_to_draw_is_said_in_words() -> None:
    empty = Inspection("identity", "cpu")
    assert "registers" in arena_svg(empty)
    assert "Not measured" in roofline_svg(empty)
    assert "no nodes" in graph_svg(empty)
    many = Inspection("big", "cpu", boxes=[Box(f"n{i}", "other", "x", "f32[]") for i in range(500)])
    assert "500 nodes are too many" in graph_svg(many)
    assert page(empty)


def test_graph_boxes_show_their_share(data: Inspection) -> None:
    text = graph_svg(data)
    assert "75.0 %" in text
    assert "25.0 %" in text
    assert text.count('class="edge"') == 3


@given(st.integers(1, 14).flatmap(lambda n: st.tuples(*(st.sets(st.integers(0, max(0, i - 1)), max_size=3) for i in range(n)))))
def test_layered_drawing_is_sound(parents: tuple[set[int], ...]) -> None:
    """Readers lie below their sources; boxes of one rank do not overlap; an edge passes each rank once."""
    nodes = [f"n{i}" for i in range(len(parents))]
    sources = {f"n{i}": [f"n{p}" for p in sorted(ps) if p < i] for i, ps in enumerate(parents)}
    drawing = layered(nodes, sources)
    for n, ps in sources.items():
        for p in ps:
            assert drawing.rank[p] < drawing.rank[n]
            assert [r for _, r in drawing.edges[p, n]] == list(range(drawing.rank[p], drawing.rank[n] + 1))
    for rank in set(drawing.rank.values()):
        columns = sorted(drawing.column[n] for n in nodes if drawing.rank[n] == rank)
        assert all(b - a >= 0.999 for a, b in zip(columns, columns[1:], strict=False)), columns


@pytest.mark.parametrize(("name", "kind"), [
    ("matmul", "matmul"), ("qdot", "matmul"), ("qmatmul", "matmul"), ("int_conv", "conv"), ("q8_attention", "attention"),
    ("add", "pointwise"), ("log_softmax", "softmax"), ("rms_norm", "norm"), ("batch_norm", "norm"),
    ("qgather", "gather"), ("arg_max", "reduction"),
    ("concat", "copy"), ("sort", "other"),
])  # fmt: skip
def test_kinds_follow_from_the_ops(name: str, kind: str) -> None:
    assert kind_of(SimpleNamespace(op=REGISTRY[name])) == kind  # type: ignore[arg-type]


BROWSER = """
const cell = v => ({dataset: {}, textContent: v});
const row = (kind, ...values) => { const classes = new Set([kind]); return {cells: values.map(cell), textContent: values.join(" "),
 hidden: kind == "again", classList: {contains: c => classes.has(c), remove: c => classes.delete(c)}} };
const table = (columns, rows) => { const t = {rows};
 rows.forEach(r => r.remove = () => { t.rows = t.rows.filter(x => x != r) });
 t.tBodies = [{get rows() { return t.rows }, append(r) { t.rows = [...t.rows.filter(x => x != r), r] },
  querySelector: () => t.rows.find(r => r.classList.contains("fold")) }];
 t.heads = columns.map((c, i) => ({cellIndex: i, dataset: {}, closest: () => t})); return t };
const tables = [table(["name", "us"], [row("", "a", "1"), row("fold", "twice more"), row("again", "b", "9"), row("again", "c", "2")]),
 table(["where", "count"], [row("", "x", "3"), row("", "y", "11"), row("", "z", "7")])];
const all = () => tables.flatMap(t => t.rows), is = kind => r => r.classList.contains(kind);
const fold = {textContent: "> twice", get isConnected() { return all().some(is("fold")) }};
const element = () => ({dataset: {}, style: {}, addEventListener() {}}), find = element();
global.document = {documentElement: element(), getElementById: id => id == "find" ? find : element(),
 querySelector: q => q == "tr.fold button" ? fold : null,
 querySelectorAll: q => q == "table.sort th" ? tables.flatMap(t => t.heads) : q == "table.sort tbody tr" ? all()
  : q == "tr.again" ? all().filter(is("again")) : []};
global.matchMedia = () => ({matches: false}); global.addEventListener = () => {}; global.location = {hash: ""};
require(process.argv[1]);
const shown = t => console.log(tables[t].rows.filter(r => !r.hidden).map(r => r.cells[0].textContent[0]).join(""));
const search = text => find.oninput({target: {value: text}});
tables[1].heads[1].onclick(); shown(1);
shown(0); search("9"); shown(0); search(""); shown(0);
tables[0].heads[1].onclick(); shown(0); search("2"); shown(0); search(""); shown(0);
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_tables_are_sorted_searched_and_unfolded() -> None:
    """The page has several tables: a heading is the column of its number in its own. Layers are folded (`t` is the row that says so) until
    the table is sorted; a search looks into folded ones, and what it hid comes back."""
    script = Path(html.__file__).with_name("page.js")
    done = subprocess.run(["node", "-e", BROWSER, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["yzx", "at", "b", "at", "bca", "c", "bca"], done.stderr
