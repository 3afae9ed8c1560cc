"""Where a node comes from, as text: `model.py:12`, or `take at model.py:12` where what the user called has another name than the op.

The second form is given to ops that may find bad data while they run, so that the error names what the user wrote.
"""
from __future__ import annotations

_AT = " at "


def within(op: str, place: str) -> str:
    """The place of a node that stands for (a part of) `op`; the outermost op is the one that the user wrote."""
    return place if _AT in place else f"{op}{_AT}{place}"


def split(place: str) -> tuple[str, str]:
    """What the user wrote ("" where the node's own op is it) and the line."""
    op, at, line = place.partition(_AT)
    return (op, line) if at else ("", place)
