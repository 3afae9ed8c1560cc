"""Sizes, indices and numbers beyond 64 bits, and objects that describe memory that there is not: errors of ours, at once."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.core.errors import ArgumentError, AxisError, InputError, RangeError, ShapeError
from tilewright.runtime.dlpack import NAME, Managed

HUGE = 1 << 70
X = np.arange(12, dtype=np.float32).reshape(3, 4)
CALLS: dict[str, Callable[[Any], Any]] = {
    "asarray": lambda _: tw.asarray(HUGE), "full": lambda _: tw.full(3, HUGE),
    "full i64": lambda _: tw.full(3, HUGE, tw.int64),
    "add": lambda i: i + HUGE, "shift": lambda i: i << HUGE, "power": lambda i: i ** HUGE, "floats": lambda _: tw.asarray(X) + 10**400,
    "repeat": lambda _: tw.repeat(X, HUGE), "tile": lambda _: tw.tile(X, HUGE), "diagonal": lambda _: tw.diagonal(X, HUGE),
    "trace": lambda _: tw.trace(X, HUGE), "unravel_index": lambda _: tw.unravel_index(HUGE, (3, 4)),
    "nan_to_num": lambda _: tw.nan_to_num(X, nan=10**400), "setitem": lambda i: i.__setitem__(0, HUGE),
}  # fmt: skip
INDICES: dict[str, Callable[[Any], Any]] = {
    "getitem": lambda i: i[HUGE], "getitem 5": lambda i: i[5], "tuple": lambda _: tw.asarray(X)[0, 9],
    "array": lambda i: i[tw.asarray([7])],
    "setitem": lambda i: i.__setitem__(HUGE, 1), "setitem 5": lambda i: i.__setitem__(5, 1), "at": lambda i: i.at[HUGE].set(1),
    "at 5": lambda i: i.at[5].add(1), "insert": lambda _: tw.insert(X, HUGE, 1), "delete": lambda _: tw.delete(X, HUGE),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_numbers_beyond_64_bits(name: str) -> None:
    with pytest.raises(RangeError):
        CALLS[name](tw.asarray([1, 2]))


@pytest.mark.parametrize("name", INDICES)
def test_indices_that_are_not_there(name: str) -> None:
    with pytest.raises(AxisError, match=r"[0-9]+ is out of bounds|valid indices"):
        INDICES[name](tw.asarray([1, 2]))


def test_iteration_ends() -> None:
    assert [int(v) for v in tw.asarray([4, 5])] == [4, 5] and 5 in tw.asarray([4, 5])


def test_what_would_not_end_does() -> None:
    assert tw.diff(X, HUGE).shape == (3, 0)
    assert tw.diff(X[:0], 2).shape == (0, 2)
    assert tw.diff(X, 5, prepend=X).tolist() == np.diff(X, 5, prepend=X).tolist()
    with pytest.raises(ShapeError, match=r"round: decimals must be in -308..308"):
        tw.round(X, HUGE)
    with pytest.raises(ShapeError, match="fori_loop: bounds that are Python ints are at most"):
        tw.jit(lambda a: tw.fori_loop(0, HUGE, lambda i, s: s + a, a))(X)
    with pytest.raises(ShapeError, match="a result has at most"):
        tw.jit(lambda a: tw.arange(HUGE) + a[0, 0])(X)


@pytest.mark.parametrize("first, last, step", [(0, 7, 2), (7, 0, -3), (3, 3, 1), (5, 1, 2), (-4, 5, 3)])
def test_traced_ranges_are_numpys(first: int, last: int, step: int) -> None:
    assert tw.jit(lambda a: tw.arange(first, last, step) + a)(np.int64(0)).tolist() == np.arange(first, last, step).tolist()


class Lies:
    """A capsule with a plain tensor of three floats, but for what is given."""

    def __init__(self, *, ndim: int = 1, shape: tuple[int, ...] = (3,), strides: tuple[int, ...] | None = None, data: int | None = None,
                 sized: bool = True, device: Any = (1, 0)) -> None:  # fmt: skip
        self.device, self.memory, self.managed = device, (ctypes.c_float * 3)(1, 2, 3), Managed()
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        t = self.managed.tensor
        t.data, t.device_type, t.ndim = ctypes.addressof(self.memory) if data is None else data, 1, ndim
        t.code, t.bits, t.lanes = 2, 32, 1
        if sized:
            t.shape = self.shape
        if self.strides is not None:
            t.strides = self.strides
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        self.capsule = new(ctypes.addressof(self.managed), NAME, None)

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> Any:
        return self.device


def test_a_capsule_that_tells_the_truth() -> None:
    assert tw.from_dlpack(Lies()).tolist() == [1, 2, 3]


@pytest.mark.parametrize("how", [
    {"ndim": 70, "shape": (1,) * 70}, {"ndim": -1}, {"ndim": 1 << 30}, {"sized": False}, {"shape": (-3,)}, {"data": 0},
    {"ndim": 2, "shape": (1 << 62, 1 << 62)}, {"strides": (1 << 62,)}, {"device": None}, {"device": ("a", "b")}, {"device": ()},
], ids=str)  # fmt: skip
def test_capsules_that_lie(how: dict[str, Any]) -> None:
    for take in (tw.from_dlpack, tw.asarray):
        with pytest.raises(InputError, match=r"capsule|must give two integers"):
            take(Lies(**how))


def test_new_errors_are_pythons_too() -> None:
    assert issubclass(RangeError, OverflowError) and issubclass(RangeError, ArgumentError)
