"""Errors inside loops: the loop ends with the iteration that failed, on any number of threads, and the error is the first one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.core import dtypes as dt
from tilewright.core.errors import ExecutionError
from tilewright.core.pytree import flatten
from tilewright.ir.types import TensorType
from tilewright.runtime.native.layout import BARRIER, CHECKS
from tilewright.transform.trace import Leaf, trace

STEPS = 200_000  # what a loop that does not stop would run to; the values of a failed kernel keep all of them going
WIDE = 70_000  # enough for a second thread


def in_the_body(x: Any) -> Any:
    def body(c: Any) -> Any:
        i, y = c
        return i + 1, y + x // (3 - i)

    return tw.while_loop(lambda c: (c[0] < STEPS) & (c[1][0] < 10**6), body, (np.int64(0), x))


def in_the_condition(x: Any) -> Any:
    return tw.while_loop(lambda c: (c[0] < STEPS) & ((x // (3 - c[0])).sum() < 10**12), lambda c: (c[0] + 1, c[1] + 1), (np.int64(0), x))


def before_the_loop(x: Any) -> Any:
    d = x // (x - x)
    return tw.while_loop(lambda c: (c[0] < STEPS) & (c[1].sum() * 0 == 0), lambda c: (c[0] + 1, c[1] + d), (np.int64(0), x))


def in_an_inner_loop(x: Any) -> Any:
    def body(i: Any, c: Any) -> Any:
        return c[0] + 1, tw.fori_loop(0, 5, lambda k, y: y + x // (8 - i * 5 - k), c[1])

    return tw.fori_loop(0, STEPS, body, (np.int64(0), x))


def an_index(x: Any) -> Any:
    return tw.fori_loop(0, STEPS, lambda i, c: (c[0] + 1, tw.take(c[1], (x - x) + i * (x.shape[0] // 4))), (np.int64(0), x))


def a_scan(x: Any) -> Any:
    def step(c: Any, i: Any) -> Any:
        return (c[0] + 1, c[1] + x // (3 - i)), None

    return tw.scan(step, (np.int64(0), x), tw.arange(STEPS))[0]


CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], str]] = {  # iterations that ran, what failed
    "body": (in_the_body, (4,), "floor_divide: integers are not divided by 0, got 1 and 0"),
    "condition": (in_the_condition, (3, 4), "floor_divide: integers are not divided by 0, got 1 and 0"),
    "before": (before_the_loop, (0,), "floor_divide: integers are not divided by 0, got 1 and 0"),
    "inner": (in_an_inner_loop, (2,), "floor_divide: integers are not divided by 0, got 1 and 0"),
    "index": (an_index, (5,), "take: index out of range, got"),
    "scan": (a_scan, (4,), "floor_divide: integers are not divided by 0, got 1 and 0")}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [4, WIDE])
@pytest.mark.parametrize("case", CASES)
def test_a_loop_ends_with_the_iteration_that_failed(case: str, size: int, threads: int) -> None:
    fn, ran, message = CASES[case]
    leaves = [Leaf(TensorType(dt.i64, (size,)))]
    session = tw.compile(trace(fn, flatten((tuple(leaves), {}))[1], leaves).graph, threads=threads)
    for _ in range(3):  # the session stays usable, and says the same again
        count, out = np.full((), -1), np.zeros(size, np.int64)
        with pytest.raises(ExecutionError, match=message):
            session(np.ones(size, np.int64), out=(count, out))
        assert int(count) in ran


def test_threads_meet_where_they_decide() -> None:
    """The wide loops above really run on two threads: their rows check and have a barrier."""
    leaves = [Leaf(TensorType(dt.i64, (WIDE,)))]
    session = tw.compile(trace(in_the_body, flatten((tuple(leaves), {}))[1], leaves).graph, threads=2)
    workspace = session.take()
    flags = workspace.instance(()).thunks[:, 3]
    assert (flags & (CHECKS | BARRIER) == CHECKS | BARRIER).sum() == 1


def test_a_loop_that_cannot_fail_does_not_look() -> None:
    leaves = [Leaf(TensorType(dt.f32, (8,)))]
    graph = trace(lambda x: tw.fori_loop(0, 9, lambda i, c: tw.sin(c), x), flatten((tuple(leaves), {}))[1], leaves).graph
    session = tw.compile(graph)
    assert not (session.take().instance(()).thunks[:, 3] & CHECKS).any()


@pytest.mark.parametrize("loop", [lambda body, x: tw.scan(lambda c, _: (body(c), None), x, length=0)[0],
                                  lambda body, x: tw.fori_loop(0, 0, lambda _, c: body(c), x),
                                  lambda body, x: tw.while_loop(lambda c: c.sum() > 99, body, x)], ids=["scan", "fori", "while"])
@pytest.mark.parametrize("fault", [lambda x: x // x, lambda x: x % x, lambda x: tw.take(x, x - 5)], ids=["divide", "modulo", "take"])
def test_a_loop_that_never_runs_finds_nothing(loop: Any, fault: Any) -> None:
    """What a body computes from values around it alone is no less its own."""
    x = np.arange(4)
    np.testing.assert_array_equal(tw.jit(lambda x: loop(lambda c: c + fault(x), x))(x), x)
    with pytest.raises(ExecutionError, match=r"not divided by 0|out of range"):
        tw.jit(lambda x: tw.fori_loop(0, 1, lambda _, c: c + fault(x), x))(x)
