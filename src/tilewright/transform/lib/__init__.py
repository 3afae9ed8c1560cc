"""The functions that traced code calls (`tw.exp`, `tw.sum`): NumPy's names and meanings, each appends ops to the innermost trace."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import (
    complex,  # noqa: A004
    contractions,
    counting,
    creation,
    elementwise,
    indexing,
    losses,
    ordering,
    quantised,
    recurrent,
    reductions,
    shapes,
    special,
    splats,
    windows,
)

ALIASES = {**elementwise.ALIASES, **special.ALIASES}  # NumPy's names for functions that have another one here
MODULES = (elementwise, reductions, shapes, indexing, contractions, creation, losses, special, complex, quantised, recurrent, counting,
           ordering, windows, splats)
FUNCTIONS: dict[str, Callable[..., Any]] = {name: fn for m in MODULES for name, fn in m.FUNCTIONS.items()}
