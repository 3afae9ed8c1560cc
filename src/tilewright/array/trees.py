"""Arrays in nested arguments and results: one device for all, NumPy's arrays of the same memory and back."""
from __future__ import annotations

from typing import Any

import numpy as np

from ..core.errors import ArgumentError
from ..core.pytree import flatten, mapped
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
    return mapped(lambda x: ready(x) if type(x) is Array else x, tree)


def own_tree(tree: Any) -> Any:
    """As `plain`, with memory that may be written."""
    def owned(x: Any) -> Any:
        if type(x) is not Array:
            return x
        return own(x) if x.device == "cpu" else device_calls().device_array(x, own=True)

    return mapped(owned, tree)


def _rewrapped(x: Any) -> Any:
    if isinstance(x, (np.ndarray, np.generic)):
        return wrapped(x)
    return device_calls().of_device_array(x) if type(x).__name__ == "DeviceArray" else x


def rewrapped(tree: Any) -> Any:
    """The opposite of `plain`."""
    return mapped(_rewrapped, tree)
