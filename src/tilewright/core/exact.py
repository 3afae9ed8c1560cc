"""When two values are one value to a compiler: floats by their bits, so that -0.0 is not 0.0 and NaN is itself, and numbers of one type.

Python's `==` says otherwise, and so do dicts: everything that keys, caches or compares constants by value goes through `key_of` or `same`.
"""
from __future__ import annotations

import struct
from collections.abc import Hashable
from typing import Any

import numpy as np

_BITS = struct.Struct("d").pack


def key_of(value: Any) -> Hashable:
    """What stands for `value` in a dict.

    >>> key_of(-0.0) == key_of(0.0), key_of(float("nan")) == key_of(float("nan")), key_of((1, 0.0)) == key_of((True, 0.0))
    (False, True, False)
    """
    kind = type(value)
    if kind is float:
        return kind, _BITS(value)
    if kind is complex:
        return kind, _BITS(value.real), _BITS(value.imag)
    if kind is tuple:
        return kind, tuple(map(key_of, value))
    if isinstance(value, np.generic) and value.dtype.kind != "O":
        return kind, value.dtype, value.tobytes()
    return kind, value


def same(a: Any, b: Any) -> bool:
    """Whether a and b are one value."""
    return a is b or bool(key_of(a) == key_of(b))


def fields_key(instance: Any) -> Hashable:
    """The key of a dataclass: its class and the keys of its fields."""
    from dataclasses import fields

    return type(instance), *(key_of(getattr(instance, f.name)) for f in fields(instance))
