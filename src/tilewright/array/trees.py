"""Arrays in nested arguments and results: one device for all, NumPy's arrays of the same memory and back."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from ..core.pytree import flatten
from .arrays import Array, device_calls, own, ready, shown, wrapped


def check_devices(tree: Any, what: str) -> None:
    """Arrays among arguments lie on one device; those without axes may lie on the host."""
    arrays = [x for x in flatten(tree)[0] if type(x) is Array]
    there = next((x for x in arrays if x.device != "cpu"), None)
    here = None if there is None else next((x for x in arrays if x.device == "cpu" and x.ndim), None)
    if there is not None and here is not None:
        raise ArgumentError(f"{what}: the arguments lie on different devices, got {shown(here)} on cpu and {shown(there)} on cuda; move "
                            "one of them, x.to('cuda') or x.to('cpu')")


def unwrapped(tree: Any) -> Any:
    """As `plain`, of results that nobody else holds: the memory may be written."""
    if type(tree) is Array:
        return ready(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(unwrapped, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(unwrapped, tree))
    return tree


def own_tree(tree: Any) -> Any:
    """As `plain`, with memory that may be written."""
    if type(tree) is Array:
        return own(tree) if tree.device == "cpu" else device_calls().device_array(tree, own=True)
    if type(tree) in (list, tuple):
        return type(tree)(map(own_tree, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(own_tree, tree))
    return {k: own_tree(v) for k, v in tree.items()} if type(tree) is dict else tree


def rewrapped(tree: Any) -> Any:
    """The opposite of `plain`."""
    if isinstance(tree, (np.ndarray, np.generic)):
        return wrapped(tree)
    if type(tree).__name__ == "DeviceArray":
        return device_calls().of_device_array(tree)
    if type(tree) in (list, tuple):
        return type(tree)(map(rewrapped, tree))
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*map(rewrapped, tree))
    if type(tree) is dict:
        return {k: rewrapped(v) for k, v in tree.items()}
    return tree
