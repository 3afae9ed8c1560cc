"""Attributes of ops against the types that their classes declare: text of a graph may say anything."""
from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

from ..core.dims import readable
from ..core.errors import ParseError

Hint = Any
_HINTS: dict[Any, dict[str, Hint]] = {}


def check_attributes(op: Any) -> None:
    """ParseError unless every attribute has its declared type. A whole number may stand for a float, true and false for numbers."""
    kind: Any = type(op)
    hints = _HINTS.get(kind)
    if hints is None:
        hints = _HINTS[kind] = typing.get_type_hints(kind)
    for f in dataclasses.fields(op):
        value = getattr(op, f.name)
        if not _fits(value, hints[f.name]):
            raise ParseError(f"{op.name}: attribute {f.name} must be {_shown(hints[f.name])}, got {value!r:.60}")


def _fits(value: Any, hint: Hint) -> bool:
    origin: Any = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, h) for h in typing.get_args(hint))
    if origin is tuple:
        inner = typing.get_args(hint)
        if not isinstance(value, tuple):
            return False
        if inner[-1:] == (...,):
            return all(_fits(v, inner[0]) for v in value)
        return len(value) == len(inner) and all(map(_fits, value, inner))
    if hint is Any:
        return True
    if hint is float:
        return isinstance(value, (float, int))
    if hint in (int, bool):
        return isinstance(value, int) and readable(value) == value
    return isinstance(value, hint)


def _shown(hint: Hint) -> str:
    return hint.__name__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint).replace("tilewright.core.dims.", "")
