"""Code, tests and documentation use the field's words, comments are sentences or name what they stand beside, and prose wraps at 100."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.meta.source import ROOT, python_files, tracked

# What a reader of Triton, CUTLASS, oneDNN or llama.cpp calls otherwise.
OTHERWISE = {
    "meeting": "barrier", "copy engine": "TMA", "matrix units?": "tensor cores", "multiprocessors?": "SM", "reverse pass": "backward pass",
    "log-sums": "logsumexp", "whole numbers?": "integers", "straighten(?:ed|s)?": "contiguous", "channels by themselves": "depthwise",
    "short way": "fast path", "under way": "in flight", "threads (?:meet|have met)": "barrier", "hands back": "release",
}  # fmt: skip
WORD = re.compile(rf"\b(?:{'|'.join(OTHERWISE)})\b", re.IGNORECASE)
FRAGMENT = re.compile(r'(?:"""|\S  # )of ', re.IGNORECASE)
PROSE = (".md",)
SELF = Path(__file__)


def wrapped(text: str) -> list[int]:
    """Numbers of the lines of prose that are too long: not tables, headings, pictures or code."""
    found, code = list[int](), False
    for i, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and len(line) > 100 and not line.lstrip().startswith(("|", "#", "![")) and not line.startswith("    "):
            found.append(i)
    return found


def test_words_of_the_field() -> None:
    found = [
        f"{p.relative_to(ROOT)}:{i}: {m[0]!r}"
        for p in tracked()
        if p.suffix in (".py", *PROSE) and p != SELF
        for i, line in enumerate(p.read_text().splitlines(), 1)
        if (m := WORD.search(line))
    ]
    assert not found, f"{found}; write {OTHERWISE}"


def test_comments_name_their_subject() -> None:
    lines = [(p, i, x) for p in python_files() if p != SELF for i, x in enumerate(p.read_text().splitlines(), 1)]
    found = [f"{p.relative_to(ROOT)}:{i}" for p, i, x in lines if FRAGMENT.search(x)]
    assert not found, f"begin with 'of': {found}"


def test_prose_wraps_at_100_columns() -> None:
    found = [f"{p.relative_to(ROOT)}:{i}" for p in tracked() if p.suffix in PROSE for i in wrapped(p.read_text())]
    assert not found, found


@pytest.mark.parametrize(("line", "seen"), [("x = 1  # of a tile", True), ('    """Of a tile."""', True), ("x = 1  # a tile of x", False)])
def test_fragments_are_seen(line: str, seen: bool) -> None:
    assert bool(FRAGMENT.search(line)) is seen and WORD.search("a copy engine") and wrapped("a " * 60) == [1]
