"""`tw.random`: random numbers with explicit keys, inside traced functions and on plain arrays."""
from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.errors import TraceError
from ..transform.lib.random import FUNCTIONS
from ..transform.trace import python_type, tracing
from .api.base import FLOAT, give, known
from .arrays import Array, own, plain
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


class Generator:
    """NumPy's generator with its distributions by their names (`normal`, `integers`, `choice`, `shuffle` ...). They give Arrays on the
    host, floats in the default dtype unless `dtype` says another. It has a state: inside traced functions use keys."""

    def __init__(self, seed: Any = None) -> None:
        self._generator = np.random.default_rng(plain(seed))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._generator, name)
        if not callable(found):
            return found

        @functools.wraps(found)
        def draw(*args: Any, dtype: Any = None, **options: Any) -> Any:
            if tracing():
                raise TraceError(f"random.{name}: a generator with a state would draw once, while the function is traced; use tw.random "
                                 "with a key")
            if name == "shuffle":
                x, *rest = args
                return found(own(x) if type(x) is Array else x, *rest, **options)
            if dtype is not None and known(dtype, name).kind != "f":
                options["dtype"] = known(dtype, name)
            made = found(*plain(args), **plain(options))
            if isinstance(made, (bytes, list)):
                return made
            made = np.asarray(made)
            return give(made.astype(FLOAT if dtype is None else known(dtype, name), copy=False) if made.dtype.kind == "f" else made)

        return draw


def default_rng(seed: Any = None) -> Generator:
    """A generator with a state, as NumPy's: `tw.random.default_rng(0).normal(size=3)`."""
    return Generator(seed)


for _name, _fn in FUNCTIONS.items():
    globals()[_name] = _eager(_fn)
__all__ = sorted([*FUNCTIONS, "default_rng"])
