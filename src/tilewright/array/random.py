"""`tw.random`: random numbers with explicit keys, inside traced functions and on plain arrays."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..transform.lib.random import FUNCTIONS
from ..transform.trace import python_type, tracing
from .functions import eager

TRACED = frozenset({"data", "minval", "maxval", "p", "seed"})  # arguments whose numbers change from call to call: nothing is compiled anew


def _eager(fn: Callable[..., Any]) -> Callable[..., Any]:
    compiled, signature = eager(fn), inspect.signature(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if tracing():
            return fn(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        return compiled(**{name: _array(x) if name in TRACED else x for name, x in given.items()})

    return call


def _array(x: Any) -> Any:
    """A Python number as an array; integers wrap at 64 bits, as keys do."""
    own = python_type(x)
    if own is None:
        return x
    return np.asarray(((x + (1 << 63)) % (1 << 64)) - (1 << 63) if own.is_int else x, own.np)


for _name, _fn in FUNCTIONS.items():
    globals()[_name] = _eager(_fn)
__all__ = sorted(FUNCTIONS)
