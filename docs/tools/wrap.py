"""Wrap the prose of Markdown files at 100 columns: `python docs/tools/wrap.py FILE…` (without files all of docs/ that people write;
--check only names them).

Tables, code, headings, HTML and pictures stay as they are, and so does a paragraph whose lines are short enough.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 100
DOCS = Path(__file__).resolve().parents[1]
ITEM = re.compile(r"(\s*(?:[-*]|\d+\.)\s+)")


def wrapped(text: str) -> str:
    out, paragraph, fenced = list[str](), list[str](), False

    def flush() -> None:
        if any(len(line) > WIDTH for line in paragraph):
            item = ITEM.match(paragraph[0])
            first = item[1] if item else re.match(r"\s*", paragraph[0])[0]  # type: ignore[index]
            words = " ".join(line.strip() for line in [paragraph[0][len(first):], *paragraph[1:]])
            out.extend(textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=" " * len(first), break_long_words=False,
                                     break_on_hyphens=False))
        else:
            out.extend(paragraph)
        paragraph.clear()

    for line in text.splitlines():
        code = line.startswith("    ") and not paragraph
        plain = fenced or code or not line.strip() or line.lstrip().startswith(("|", "#", "<", "![", "```"))
        if line.lstrip().startswith("```"):
            fenced = not fenced
        if plain:
            flush()
            out.append(line)
        else:
            if ITEM.match(line):
                flush()
            paragraph.append(line)
    flush()
    return "\n".join(out) + "\n"


def main() -> int:
    check = "--check" in sys.argv
    written = (f for f in DOCS.rglob("*.md") if "never by hand" not in f.read_text())
    files = [Path(a) for a in sys.argv[1:] if a != "--check"] or sorted(written)
    long = [f for f in files if wrapped(f.read_text()) != f.read_text()]
    for file in long:
        print(file)
        if not check:
            file.write_text(wrapped(file.read_text()))
    return 1 if check and long else 0


if __name__ == "__main__":
    sys.exit(main())
