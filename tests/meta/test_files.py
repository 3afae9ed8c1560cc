"""Files stay short, carry a docstring, and name no machine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.meta.source import PACKAGE, ROOT, python_files, tracked

LIMIT = 600
# Absolute paths that only exist on somebody's machine. Written in pieces, so that this file passes its own test.
MACHINE = re.compile(
    r"(?<![\w.:/])/(?:" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + "me", "Us" + "ers", "fa" + "rm", "opt/t" + "w"]) + r")/[\w.]"
)


def test_no_file_is_long() -> None:
    lengths = sorted(((len(p.read_text().splitlines()), str(p.relative_to(ROOT))) for p in python_files()), reverse=True)
    longest = "\n".join(f"{n:5d} {name}" for n, name in lengths[:10])
    assert lengths[0][0] <= LIMIT, f"a file is one thought of at most {LIMIT} lines; the longest:\n{longest}"


def test_every_module_says_what_it_is_for() -> None:
    begins = re.compile(r'(\s*#[^\n]*\n)*\s*[rR]?"""\s*[^\s"]|\s*$')
    silent = [str(p.relative_to(ROOT)) for p in python_files() if not begins.match(p.read_text())]
    assert not silent, f"no module docstring: {silent}"


def test_no_machine_paths() -> None:
    found = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        found += [
            f"{path.relative_to(ROOT)}:{i}: {line.strip()[:80]}" for i, line in enumerate(text.splitlines(), 1) if MACHINE.search(line)
        ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "bad"),
    [("cd /ho" + "me/me/x", True), ("see /ro" + "ot/.cache", True), ("https://x.org/ho" + "me/page", False), ("~/.cache", False)],
)
def test_the_path_check_sees_one(line: str, bad: bool) -> None:
    assert bool(MACHINE.search(line)) is bad


def test_no_leftovers() -> None:
    """Work that is not done is an issue or a sentence in docs/status.md, not a marker in the code."""
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    found = [
        f"{p.relative_to(ROOT)}:{i}" for p in python_files() for i, line in enumerate(p.read_text().splitlines(), 1) if marker.search(line)
    ]
    assert not found, f"markers: {found}"


def test_the_package_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()
    assert Path(ROOT / "LICENSE").read_text().lstrip().startswith("Apache License")
