"""The functions that traced code calls (`tw.exp`, `tw.sum`): NumPy's names and meanings, each appends ops to the innermost trace."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...core.errors import ParseError
from . import (
    complex,  # noqa: A004
    contractions,
    creation,
    elementwise,
    indexing,
    ordering,
    quantized,
    reductions,
    shapes,
    special,
    splats,
    windows,
)

MODULES = (elementwise, reductions, shapes, indexing, contractions, creation, special, complex, quantized, ordering, windows, splats)
ALIASES = elementwise.ALIASES
FUNCTIONS: dict[str, Callable[..., Any]] = {}
for _module in MODULES:
    if _twice := FUNCTIONS.keys() & _module.FUNCTIONS.keys():
        raise ParseError(f"tw.{min(_twice)} is made twice, by an op or a module and by {_module.__name__}; choose another public name")
    FUNCTIONS |= _module.FUNCTIONS


def function(name: str) -> Callable[..., Any] | None:
    """A function by one of its names; of ops that were registered after this module was read, too."""
    if ALIASES.get(name, name) not in FUNCTIONS:
        elementwise.enter_ops()
        FUNCTIONS.update({n: fn for n, fn in elementwise.FUNCTIONS.items() if n not in FUNCTIONS})
    return FUNCTIONS.get(ALIASES.get(name, name))
