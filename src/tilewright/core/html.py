"""Small pieces of HTML for notebooks: tables of text, escaped, that look the same on a light and on a dark page."""
from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

STYLE = "border-collapse:collapse;font-family:monospace;font-size:90%"
CELL = "padding:1px 8px;border:none;text-align:"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> str:
    """A table; the columns in `left` are words, the others numbers."""

    def line(cells: Sequence[str], tag: str) -> str:
        made = (f'<{tag} style="{CELL}{"left" if k in left else "right"}">{escape(c)}</{tag}>' for k, c in enumerate(cells))
        return f"<tr>{''.join(made)}</tr>"

    body = "".join(line(r, "td") for r in rows)
    return f'<table style="{STYLE}"><thead>{line(columns, "th")}</thead><tbody>{body}</tbody></table>'


def lines(texts: Sequence[str]) -> str:
    """Lines of text as they are."""
    return f"<pre>{escape(chr(10).join(texts))}</pre>"
