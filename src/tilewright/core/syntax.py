"""Syntax trees of Python's text, in any thread.

Python 3.11 counts the depth of the tree that it builds in one place for all threads: a tree is refused with a SystemError about that
depth when another thread builds one at the same time. Our own threads take turns; a tree that other code disturbed is built again.
"""
from __future__ import annotations

import _thread
import ast
import os
from typing import Any

_turn = _thread.RLock()  # reentrant: building a tree may collect garbage, and that may run anything
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_turn._at_fork_reinit)  # type: ignore[attr-defined]
ATTEMPTS = 100


def parse_python(text: str, mode: str = "exec") -> Any:
    """`ast.parse`, whatever other threads parse."""
    with _turn:
        for _ in range(ATTEMPTS - 1):
            try:
                return ast.parse(text, mode=mode)
            except SystemError:
                continue
        return ast.parse(text, mode=mode)
