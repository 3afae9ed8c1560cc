"""The documentation is true: its code runs, its links lead somewhere, its generated parts are up to date."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.meta.source import DOCS, PACKAGE, ROOT
from tilewright.cli.main import parser
from tilewright.core.config import table

HISTORIES = ("status.md",)  # these may name what is gone
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *DOCS.rglob("*.md")])
KNOWN = {"python", "bash", "text"}  # a block is run (python), a command line (bash), or neither (text): nothing is skipped in silence


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """(line, language, text) of each fenced block."""
    found, inside, language, start = [], list[str](), "", 0
    fenced = False
    for i, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            if fenced:
                found.append((start, language, "\n".join(inside) + "\n"))
            fenced, language, start, inside = not fenced, line[3:].strip(), i, []
        elif fenced:
            inside.append(line)
    assert not fenced, f"{page.name}: a block is never closed"
    return found


def test_blocks_say_what_they_are() -> None:
    wrong = [f"{p.name}:{line} {language!r}" for p in PAGES for line, language, _ in blocks(p) if language not in KNOWN]
    assert not wrong, f"fenced blocks must be one of {sorted(KNOWN)}: {wrong}"


@pytest.mark.parametrize("page", [p for p in PAGES if any(language == "python" for _, language, _ in blocks(p))], ids=lambda p: str(p.name))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, in order, in one namespace, as a reader would paste them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for line, language, text in blocks(page):
        if language == "python":
            exec(compile("\n" * line + text, str(page), "exec"), names)
    assert len(names) > 1


def commands(page: Path) -> list[list[str]]:
    """The words of every command in a page's blocks of shell."""
    lines = [line for _, language, text in blocks(page) if language == "bash" for line in text.splitlines()]
    found: list[list[str]] = []
    for line in lines:
        words = shlex.split(line, comments=True)
        for word in ["&&", *words] if words else []:
            if word == "&&" or word == "make":  # two columns of targets may share a line
                found.append([])
            if word != "&&":
                found[-1].append(word)
    return [words for words in found if words]


@pytest.mark.parametrize("page", [p for p in PAGES if any(language == "bash" for _, language, _ in blocks(p))], ids=lambda p: str(p.name))
def test_commands_exist(page: Path) -> None:
    """Targets of the Makefile, options of the command line, scripts, extras of the package: what a reader would paste is taken."""
    makefile, project = (ROOT / "Makefile").read_text(), tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for name, *rest in commands(page):
        if name == "make":
            settings = {word.partition("=")[0] for word in rest[1:]}
            assert re.search(rf"^{rest[0]}:", makefile, re.M), f"make {rest[0]}"
            assert settings <= set(re.findall(r"\$\((\w+)\)", makefile)), f"make {rest}"
        elif name == "tilewright":
            try:
                parser().parse_args(rest)
            except SystemExit:
                pytest.fail(f"not taken: tilewright {' '.join(rest)}")
        elif name == "python":
            assert (ROOT / rest[0]).is_file(), rest[0]
        else:
            assert name in ("pip", "git", "cd"), name
            extras = {e for word in rest for found in re.findall(r"\[(.*)\]", word) for e in found.split(",")}
            assert extras <= set(project["optional-dependencies"]), extras


@pytest.mark.parametrize("line", ["make nothing", "make demo NOSUCH=1", "tilewright chat a b", "python benchmarks/none.py", "curl x"])
def test_a_wrong_command_is_noticed(line: str, tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text(f"```bash\n{line}\n```\n")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test_commands_exist(page)


def test_a_wrong_block_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("```python\nx = 1\n```\ntext\n```python\nassert x == 2\n```\n")
    with pytest.raises(AssertionError):
        test_python_blocks_run(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """To a file that exists, and in it to a heading that exists."""
    for target, heading in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text()):
        if target.startswith("http"):
            continue
        place = page.parent / target if target else page
        assert place.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in headings(place), f"{page.name}: {target}#{heading}; there are {sorted(headings(place))}"


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and mkdocs make them."""
    lines = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S).splitlines()
    return {re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", line.lstrip("#").strip().lower())) for line in lines if line.startswith("#")}


def test_a_wrong_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n\n[right](#a-heading) [wrong](#no-heading)\n")
    with pytest.raises(AssertionError, match="no-heading"):
        test_links_lead_somewhere(page)


def test_every_page_is_in_the_navigation_and_on_the_first_page() -> None:
    """The site's menu names every page once; the manual's first page links every other one, and the internals' first page theirs."""
    menu = re.findall(r"[\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.M)
    written = {str(p.relative_to(DOCS)) for p in DOCS.rglob("*.md")}
    assert sorted(n for n in menu if not n.startswith("api/")) == sorted(written)
    for first in (DOCS / "README.md", DOCS / "internals" / "README.md"):
        below = {p for p in first.parent.rglob("*.md") if p != first and (first.parent.name == "internals" or "internals" not in p.parts)}
        text = first.read_text()
        assert not [p.name for p in below if f"({p.relative_to(first.parent)})" not in text]
    readme = (ROOT / "README.md").read_text()
    assert "docs/README.md" in readme and "docs/internals/README.md" in readme


@pytest.mark.parametrize("page", [p for p in PAGES if p.name not in HISTORIES], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    known = [f"/{p}" for p in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()]
    names = re.findall(r"`([\w./-]+\.py)`|python ((?:benchmarks|examples)/\w+\.py)", page.read_text())
    missing = [name for pair in names for name in pair if name and not any(p.endswith(f"/{name}") for p in known)]
    assert set(missing) <= {"convert_hf_to_gguf.py", "benchmarks/NAME.py"}, "llama.cpp's, and a place for any name"


def test_the_figures_of_the_readme_are_in_the_page_that_each_links() -> None:
    text = (ROOT / "README.md").read_text()
    table = text.partition("<!-- figures: begin -->")[2].partition("<!-- figures: end -->")[0]
    found = re.findall(r"\[([\d., sto]+)\]\((docs/[\w/-]+\.md)#", text)
    assert len(found) == table.count("\n| "), "one in each row below the heading, and the time of a start"
    for figures, page in found:
        for figure in re.findall(r"\d+\.\d+", figures):
            assert re.search(rf"(?<![\d.]){re.escape(figure)}(?![\d.])", (ROOT / page).read_text()), f"{figure} is not in {page}"


def test_nothing_points_outside_the_repository() -> None:
    assert not [p.name for p in [*PAGES, ROOT / "Makefile"] if "../sha" + "red" in p.read_text()]


@pytest.mark.parametrize("name", sorted(p.stem for p in (DOCS / "pictures").glob("*.svg")))
def test_pictures_show_the_tables(name: str) -> None:
    assert tool("plots").pictures()[f"{name}.svg"] == (DOCS / "pictures" / f"{name}.svg").read_text(), "run `python docs/tools/plots.py`"


def test_the_reference_has_every_public_name() -> None:
    """Signatures and docstrings of everything; examples are run by `make docs`, some of them here."""
    reference = tool("reference")
    found = reference.pages(examples=("softmax", "where", "random.key", "scatter", "optim.linear", "linalg.ormqr"))
    for page, text in (("functions", ">>> tw.scatter(x, "), ("optim", ">>> tw.optim.linear(0.1, "), ("linalg", ">>> tw.linalg.ormqr(")):
        assert text in found[page]
    assert "tw.digest" in found["compile"]
    assert "### tw.softmax" in found["functions"] and ">>> tw.softmax(A)" in found["functions"] and "## tw.linalg.solve" in found["linalg"]
    assert set(found) == set(re.findall(r"api/(\w+)\.md", (ROOT / "mkdocs.yml").read_text()))


def test_the_reference_needs_no_torch() -> None:
    """`make docs` installs none."""
    code = "import sys; sys.modules['torch'] = None; import tilewright as tw; [getattr(tw, name) for name in tw.__all__]"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)})
    assert done.returncode == 0, done.stderr


def tool(name: str) -> Any:
    """A module of docs/tools."""
    import importlib

    sys.path.insert(0, str(DOCS / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def test_paths_in_the_documentation_exist() -> None:
    for page in PAGES:
        for path in re.findall(r"`((?:src|tests|benchmarks)/[\w./-]+)`", page.read_text()):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def pass_table() -> list[str]:
    from tilewright.passes.pipeline import pipeline
    from tilewright.target.cuda.device import cuda_target

    rows = ["| pass | leaves behind | can be off |", "|---|---|---|"]
    cpu, gpu = list(pipeline()), list(pipeline(cuda_target()))
    known = {p.name for p in gpu}
    for p in reversed(cpu):  # what runs on CPUs alone stands before what follows it there
        if p.name not in known:
            gpu.insert(next(i for i, q in enumerate(gpu) if q.name == cpu[cpu.index(p) + 1].name), p)
    for p in gpu:
        after = " ".join((p.__doc__ or "").split()).partition("After: ")[2].replace("|", "\\|")
        assert after, f"{p.name} has no contract (Before: … After: …)"
        where = " (CPU)" if p.name not in known else "" if p.name in {q.name for q in cpu} else " (GPU)"
        rows.append(f"| `{p.name}`{where} | {after} | {'yes' if p.optional else 'no'} |")
    return rows


def format_table() -> list[str]:
    """Every packed format, and what multiplies it."""
    from tilewright.ops.packed.quant_dot import FORMATS as INTEGERS
    from tilewright.ops.packed.quant_dot import GPU_FORMATS
    from tilewright.ops.quant import FORMATS
    from tilewright.passes.lower_quantized import FLOATS

    rows = ["| format | bits a weight | block | product |", "|---|---|---|---|"]
    for name, f in FORMATS.items():
        kernel = "matmul on the file's numbers" if name in FLOATS else "rows unpacked into a tile"
        kernel += ", on a GPU int8 activations" if name in GPU_FORMATS else ""
        kernel = "int8 activations" if name in INTEGERS else kernel
        rows.append(f"| `{name}` | {8 * f.bytes / f.elements:g} | {f.elements} | {kernel} |")
    return rows


@pytest.mark.parametrize(
    ("name", "page", "rows"),
    [
        ("config", "configuration.md", lambda: list(table())),
        ("pass", "internals/passes.md", pass_table),
        ("format", "language-models.md", format_table),
    ],
)
def test_generated_tables_are_up_to_date(name: str, page: str, rows: Callable[[], list[str]], request: pytest.FixtureRequest) -> None:
    path = DOCS / page
    pattern = re.compile(rf"(<!-- {name} table: begin -->\n).*?(<!-- {name} table: end -->)", re.S)
    text = path.read_text()
    assert pattern.search(text), "the markers are gone"
    wanted = pattern.sub(lambda m: m[1] + "\n".join(rows()) + "\n" + m[2], text)
    if request.config.getoption("--update-goldens"):
        path.write_text(wanted)
        text = wanted
    assert text == wanted, "out of date; run `make tables`"
    assert text.count("\n| `") >= 5


def test_every_setting_read_from_the_environment_is_in_the_table() -> None:
    documented = set(re.findall(r"TILEWRIGHT_[A-Z_]+", "\n".join(table())))
    used = {name for p in PACKAGE.rglob("*.py") if p.name != "config.py" for name in re.findall(r"TILEWRIGHT_[A-Z_]*[A-Z]", p.read_text())}
    assert used <= documented, f"not in core/config.py: {used - documented}"
