"""Ctrl-C during a native call. Kernels raise the signal themselves, so that it always comes at the same place and nothing is timed."""
from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.session import handmade
from tests.session.handmade import at, chain, put, words
from tilewright.runtime.workspace import LONG_NS

N = 4096
RAISE = """  %last = icmp eq i64 %i, {at}
  br i1 %last, label %ring, label %on
ring:
  %told = call i32 @raise(i32 2)
  br label %on
on:
"""


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """`signal`: a copy whose first program raises SIGINT; `late`: the same in the last program, which another thread may run."""
    for name, program in (("signal", 0), ("late", N - 1)):
        body = RAISE.format(at=program) + at("a", "x", "%i") + put("y", "%i", "%a")
        monkeypatch.setitem(handmade.BODIES, name, (words("x", "y"), body))
    emit = handmade.emit
    monkeypatch.setattr(handmade, "emit", lambda kernel, target: "declare i32 @raise(i32)\n" + emit(kernel, target))


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """A handler of the user's that raises nothing."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def default() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


X = np.arange(N, dtype=np.float32)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kind", ["signal", "late"])
def test_the_call_stops_between_kernels(default: None, kind: str, threads: int) -> None:
    session = chain(f"double {kind} reverse reverse reverse double", N, threads=threads)
    y = np.full(N, -1, np.float32)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            session(X, out=y)
        assert (y == -1).all(), "the last kernel ran although the signal came before"
        with pytest.raises(KeyboardInterrupt):
            session(X)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    good = chain("double reverse double", N, threads=threads)
    np.testing.assert_array_equal(good(X), X[::-1] * 4)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_handler_that_raises_nothing_changes_no_result(noted: list[int], threads: int) -> None:
    """Also in place, where running a kernel twice would show."""
    noted.clear()
    session = chain("double signal double double signal reverse late double", N, threads=threads, inplace=True)
    for n in range(1, 4):
        np.testing.assert_array_equal(session(X), X[::-1] * 16)
        assert len(noted) == 3 * n


def test_the_sessions_after_an_interrupt(default: None) -> None:
    """A workspace is lost with the interrupted call, nothing else."""
    session = chain("double signal double", N, threads=2)
    with pytest.raises(KeyboardInterrupt):
        session(X)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    np.testing.assert_array_equal(session(X), X * 4)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("handler", [signal.SIG_IGN, "python"])
def test_other_threads_finish_their_calls(handler: Any, noted: list[int]) -> None:
    if handler is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    session = chain("double signal reverse double", N, threads=2)
    results: list[Any] = []
    caller = threading.Thread(target=lambda: results.extend(session(X) for _ in range(5)))
    caller.start()
    quiet = chain("double reverse double", N, threads=2)
    for _ in range(50):  # the main thread's own long calls meanwhile
        np.testing.assert_array_equal(quiet(X), X[::-1] * 4)
    caller.join()
    assert len(results) == 5
    assert all(np.array_equal(r, X[::-1] * 4) for r in results)
    assert bool(noted) is (handler != signal.SIG_IGN)


def test_short_calls_do_not_touch_the_handler(noted: list[int]) -> None:
    """They finish, and Python's handler runs after them."""
    noted.clear()
    session = chain("double signal double", N, flops=10, threads=1)
    assert session.executable is not None
    workspace = session.take()
    assert workspace.instance(()).nanoseconds < LONG_NS
    session.give(workspace)
    np.testing.assert_array_equal(session(X), X * 4)
    assert noted == [signal.SIGINT]
