"""What a type rule asks of sizes: at once where the size is a number, of every call where it is a symbol.

A rule such as "no maximum over an empty axis" is `require_room(size - 1, ...)`. It raises when the room is negative for every value of the
symbols. When it is negative for some of them, whoever collects (`ir/windows.py`, at compile time) learns the room and the text, and a
call with such a shape raises the same error.
"""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from .dims import Dim, bounds
from .errors import complaint, require

Need = tuple[Dim, str, str]  # a dim that must not be negative, what to say when it is, and the user's line

_found: ContextVar[list[tuple[Dim, str]] | None] = ContextVar("found", default=None)


def require_room(room: Dim, rule: str, **values: Any) -> None:
    """Raise ShapeError as `require` does when `room` is negative; note it where that depends on symbols."""
    low, high = bounds(room)
    if low >= 0:
        return
    require(high >= 0, rule, **values)
    found = _found.get()
    if found is not None:
        found.append((room, complaint(rule, values)))


@contextmanager
def collected() -> Iterator[list[tuple[Dim, str]]]:
    """The rooms and texts that rules note inside this block."""
    found: list[tuple[Dim, str]] = []
    token = _found.set(found)
    try:
        yield found
    finally:
        _found.reset(token)
