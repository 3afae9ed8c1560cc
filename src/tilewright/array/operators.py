"""The operators and methods of `Array`: the functions of `functions.py`, which is imported when the first of them is used."""
from __future__ import annotations

import opcode
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.errors import ArgumentError
from ..core.tensors import is_tensor
from .arrays import ALONE, Array, is_alone, ready, shown

Fn = Callable[..., Any]
_refs = sys.getrefcount

OPERATORS = {"add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "remainder",
             "pow": "pow", "matmul": "matmul", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
             "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift"}
COMPARISONS = {"eq": "equal", "ne": "not_equal", "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal"}
SINGLE = {"neg": "negative", "pos": "positive", "abs": "abs", "invert": "bitwise_invert"}
METHODS = ("sum", "prod", "max", "min", "mean", "std", "var", "all", "any", "argmax", "argmin", "cumsum", "cumprod", "sort", "argsort",
           "clip", "round", "conj", "repeat", "nonzero", "dot", "trace", "take", "real", "imag")


def _operand(x: Any) -> bool:
    return isinstance(x, (Array, bool, int, float, complex, np.ndarray, np.generic, list)) or is_tensor(x)


_api: Any = None


def _install() -> None:
    """Operators and methods are the functions of `functions.py`, which is imported when the first of them is used."""

    def function(name: str) -> Fn:
        global _api
        if _api is None:
            from . import functions

            _api = functions.OFFERED
        found: Fn = _api[name]
        return found

    def binary(name: str) -> tuple[Fn, Fn, Fn]:
        def forward(self: Array, other: Any) -> Any:
            return placed(function(name), self, other) if _operand(other) else NotImplemented

        def backward(self: Array, other: Any) -> Any:
            return placed(function(name), other, self) if _operand(other) else NotImplemented

        def inplace(self: Array, other: Any) -> Any:
            if not _operand(other):
                return NotImplemented
            if self.device != "cpu":
                from .cuda.calls import update as update_on_device

                return update_on_device(name, self, other)
            from . import functions

            ready(self)
            if is_alone(self):
                return update(self, functions.in_place(name, self, other, self), name)
            return update(self, placed(function(name), self, other), name)

        return forward, backward, inplace

    for short, name in OPERATORS.items():
        for prefix, fn in zip(("", "r", "i"), binary(name), strict=True):
            fn.__name__ = fn.__qualname__ = f"__{prefix}{short}__"
            setattr(Array, fn.__name__, fn)
    Array.__divmod__ = lambda x, y: function("divmod")(x, y) if _operand(y) else NotImplemented
    Array.__rdivmod__ = lambda x, y: function("divmod")(y, x) if _operand(y) else NotImplemented
    for short, name in COMPARISONS.items():
        setattr(Array, f"__{short}__", binary(name)[0])
    for short, name in SINGLE.items():
        setattr(Array, f"__{short}__", lambda self, name=name: function(name)(self))

    def method(name: str) -> Fn:
        def call(self: Array, *args: Any, **kwargs: Any) -> Any:
            return function(name)(self, *args, **kwargs)

        call.__name__, call.__doc__ = name, f"See `tw.{name}`."
        return call

    for name in METHODS:
        made = method(name)
        setattr(Array, name, property(made) if name in ("real", "imag") else made)


def operator_of(name: str) -> Fn:
    """The function of an operator whose operands may come in either order. A large operand that only the expression holds gives its memory
    to the result."""
    functions: Any = None

    def call(x: Any, y: Any) -> Any:
        nonlocal functions
        if functions is None:
            from . import functions
        if (type(x) is not Array and not _operand(x)) or (type(y) is not Array and not _operand(y)):
            return NotImplemented
        temporary = x if type(x) is Array and _refs(x) == ALONE else y if type(y) is Array and _refs(y) == ALONE else None
        if temporary is not None and hasattr(temporary, "_a") and temporary._a.nbytes >= REUSED and is_alone(temporary):
            frame = sys._getframe(1)
            if frame.f_code.co_code[frame.f_lasti] == _BINARY_OP:  # an operator in Python code: nothing else can hold the operand
                return functions.in_place(name, x, y, temporary)
        return placed(functions.API[name], x, y)

    return call


def placed(fn: Fn, *args: Any) -> Any:
    """fn(*args); an error about the arguments names the user's line."""
    try:
        return fn(*args)
    except (ArgumentError, MemoryError, OverflowError) as e:
        from .functions import told

        raise told(fn.__name__, e) from None


RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # the order of kinds of dtypes
REUSED = 1 << 20  # bytes from which the memory of a temporary is used again
_BINARY_OP = opcode.opmap.get("BINARY_OP", -1) if sys.version_info < (3, 14) else -1  # 3.14 borrows references to locals


def update(x: Array, made: Array, name: str) -> Array:
    """`x op= y`: the result becomes x's value. It keeps x's shape and dtype."""
    old, new = ready(x), ready(made)
    if old.shape != new.shape:
        raise ArgumentError(f"{name}: an in-place operator keeps the shape, got {shown(old)} and a result {shown(new)}")
    if new is not old:
        check_dtype(name, old, new)
        x._a = new if new.dtype == old.dtype else new.astype(old.dtype)
    return x


def check_dtype(name: str, x: Any, made: Any) -> None:
    """An in-place operator does not turn floats into integers by itself."""
    if RANK[dt.dtype(made.dtype).kind] > RANK[dt.dtype(x.dtype).kind]:
        raise ArgumentError(f"{name}: an in-place operator keeps the dtype, got {shown(x)} and a result {shown(made)}; write x = x + y, or "
                            "use .astype first")


_install()
