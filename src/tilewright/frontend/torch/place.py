"""Where in the user's source an FX node comes from."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LAYERS = "site-packages/torch/nn/modules/"  # a model of nothing but torch's layers has no other lines
_OWN = re.compile(r"^torch/|site-packages/torch/|tilewright/frontend/torch/|<eval_with_key>|<frozen")


def place_of(node: Any) -> str:
    """`file:line` of the innermost frame outside torch, else of a layer of torch.nn, or "" when export recorded none."""
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
    frames = _FRAME.findall(trace)[::-1]
    for path, line in [f for f in frames if not _OWN.search(f[0])] or [f for f in frames if _LAYERS in f[0]]:
        _, inside, package = path.rpartition("/site-packages/")
        return f"{package if inside else path.rsplit('/', 1)[-1]}:{line}"
    return ""
