"""Where in the user's source an FX node comes from."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_OWN = re.compile(r"^torch/|site-packages/torch/|tilewright/frontend/torch/|<eval_with_key>|<frozen")


def place_of(node: Any) -> str:
    """`file:line` of the innermost frame outside torch, or "" when export recorded none."""
    trace = node.meta.get("stack_trace")
    return _parse(trace) if trace else ""


def module_of(node: Any) -> str:
    """` in layers.0.mlp`: the module whose forward the node comes from; "" for the outermost or where export recorded none."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    path = re.sub(r"^L\['self'\]\.?", "", path)
    return f" in {path}" if path else ""


@lru_cache(maxsize=4096)
def _parse(trace: str) -> str:
    for path, line in reversed(_FRAME.findall(trace)):
        if not _OWN.search(path):
            _, inside, package = path.rpartition("/site-packages/")
            return f"{package if inside else path.rsplit('/', 1)[-1]}:{line}"
    return ""
