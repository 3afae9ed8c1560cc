"""Ctrl-C inside a loop: a handler that raises nothing changes no result, one that raises ends the loop.

A kernel of the loop's body is put behind a function that raises the signal itself at one iteration, so nothing is timed.
"""
from __future__ import annotations

import ctypes
import signal
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.array import functions  # noqa: F401  gives traced values their operators
from tilewright.core import dtypes as dt
from tilewright.core.dims import sym
from tilewright.core.pytree import flatten
from tilewright.ir.types import TensorType
from tilewright.plan import control
from tilewright.runtime import workspace as workspaces
from tilewright.runtime.native import layout as L
from tilewright.transform.trace import Leaf, leaf_of, trace

WIDE = (1 << 14, 16)
ROW = 8192  # one program adds it up, several copy it
Kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


def scanned(count: int) -> Callable[..., Any]:
    """A short loop that thread 0 runs alone, then work for all threads on its carry: which of two buffers that is depends on the count."""
    return lambda c, x: x * 2 + tw.fori_loop(0, count, lambda i, c: c[::-1] * 0.5 + 1, c)


def searched(c: Any, x: Any) -> Any:
    return x * 2 + tw.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1][::-1] * 0.5 + 1), (0, c))[1]


def nested(c: Any, x: Any) -> Any:
    inner = lambda i, c: tw.fori_loop(0, 3, lambda j, c: c[::-1] * 0.5 + 1, c)
    return x * 2 + tw.fori_loop(0, 3, inner, c)


def twice(c: Any, x: Any) -> Any:
    """A second loop, whose counter is the first one's word."""
    return scanned(5)(scanned(11)(c, x)[0], x)


def added(c: Any, x: Any) -> Any:
    """How often the loop goes is known at the call: threads that went around it find its carry by that count."""
    return tw.scan(lambda c, v: (tw.cumsum(c, axis=0), None), c, x)[0]


CASES: dict[str, tuple[Callable[..., Any], int]] = {
    "odd": (scanned(9), 9), "even": (scanned(8), 8), "while": (searched, 9), "nested": (nested, 9), "twice": (twice, 11),
    "odd length": (added, 9), "even length": (added, 8)}


def rounds(c: Any, n: int) -> Any:
    return c if n == 0 else rounds(c[::-1] * np.float32(0.5) + np.float32(1), n - 1)


def want(case: str, c: Any, x: Any) -> Any:
    if "length" in case:
        return c if len(x) == 0 else np.cumsum(want(case, c, x[1:]))
    if case == "twice":
        return x * 2 + rounds((x * 2 + rounds(c, 11))[0], 5)
    return x * 2 + rounds(c, CASES[case][1])


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """A handler of the user's that raises nothing."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGINT, before)


def ringing(session: tw.Session, key: tuple[int, ...], iterations: set[int]) -> tuple[Any, list[int]]:
    """The session's workspace with a body kernel that raises SIGINT in these of its runs, and the list of its runs."""
    workspace = session.take()
    thunks = workspace.instance(key).thunks
    kinds = (thunks[:, L.THUNK_FLAGS] >> L.KIND_SHIFT).tolist()
    first, last = kinds.index(L.KINDS["loop"]), kinds.index(L.KINDS["next"])
    row = next(r for r in range(last, first, -1) if kinds[r] == L.KINDS["kernel"])
    assert thunks[row, L.THUNK_FLAGS] & L.SERIAL
    kernel = Kernel(int(thunks[row, L.THUNK_FN]))
    runs: list[int] = []

    def ring(*words: int) -> None:
        runs.append(len(runs))
        if runs[-1] in iterations:
            signal.raise_signal(signal.SIGINT)
        kernel(*words)

    replaced = Kernel(ring)
    thunks[row, L.THUNK_FN] = ctypes.cast(replaced, ctypes.c_void_p).value
    session.give(workspace)
    return replaced, runs


def loop(case: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> tuple[tw.Session, list[Any], tuple[int, ...]]:
    """The session of a case, arguments, and the values of its symbols."""
    monkeypatch.setattr(workspaces, "LONG_NS", 0)  # only calls that are expected to take long look out for the signal ...
    monkeypatch.setattr(workspaces, "WAKE_NS", 0)
    monkeypatch.setattr(control, "LONG_COUNT", 2)  # ... and only loops that are stop inside
    rng = fresh_rng()
    fn, count = CASES[case]
    if "length" in case:
        args = [rng.integers(-9, 9, ROW), np.zeros(count)]
        leaves = [leaf_of(args[0]), Leaf(TensorType(dt.f64, (sym("S", 1, 64),)))]
    else:
        args = [rng.uniform(-1, 1, shape).astype(np.float32) for shape in (WIDE[1:], WIDE)]
        leaves = [leaf_of(a) for a in args]
    graph = trace(fn, flatten((tuple(leaves), {}))[1], leaves).graph
    return tw.compile(graph, threads=threads), args, (count,) if "length" in case else ()


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_goes_on_where_it_was(case: str, threads: int, noted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    session, args, key = loop(case, threads, monkeypatch)
    rings = {1, 2, 5}
    kept, runs = ringing(session, key, rings)
    count = CASES[case][1]
    for _ in range(3):
        runs.clear()
        noted.clear()
        np.testing.assert_allclose(session(*args), want(case, *args), rtol=1e-5, atol=1e-5)
        assert len(runs) == count and len(noted) == len([r for r in rings if r < count])
    assert kept is not None


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_ends(case: str, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python raises from a handler once it is back in Python, so the one here only asks for that: it raises where the call comes back."""
    session, args, key = loop(case, threads, monkeypatch)
    kept, runs = ringing(session, key, {1})
    settle = session.settle

    def raising(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, lambda *_: None)
    monkeypatch.setattr(session, "settle", raising)
    with pytest.raises(KeyboardInterrupt):
        session(*args)
    assert len(runs) == 2
    signal.signal(signal.SIGINT, before)
    monkeypatch.setattr(session, "settle", settle)
    np.testing.assert_allclose(session(*args), want(case, *args), rtol=1e-5, atol=1e-5)  # with a workspace of its own
    assert kept is not None
