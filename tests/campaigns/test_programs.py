"""Random programs themselves: every shrunk one still means something, the printed test is that program, and a broken subject is noticed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tilewright import ops as o
from tilewright.ops import Tanh
from tilewright.ops import functions as F

from . import exact, loops, modules, smooth
from .engine.campaign import Invalid
from .engine.shrink import smaller
from .programs import modules as layers
from .programs.program import JIT, KEEP, Input, Program, Step, needed

ADD = Step(1, "arithmetic", (0, 0), (1,))  # v0 - v0
SUB = Program((Input("i32", (3,)),), (ADD,), (("S", 0), ("T", 0)), 0, JIT, 0, ())


@pytest.mark.parametrize("campaign", [exact, loops, smooth])
def test_every_shrunk_program_means_something(campaign: Any) -> None:
    """Whatever is dropped or made smaller resolves, or is no program."""
    rng, tried = fresh_rng(), 0
    for _ in range(4):
        for candidate in smaller(campaign.draw(rng), KEEP):
            try:
                campaign.prepared(candidate)
                tried += 1
            except Invalid:
                continue
            if tried % 40 == 39:
                break
    assert tried > 20


def test_programs_use_their_ops() -> None:
    """Some of each op's draws apply: a program of ops that are all left out tests nothing."""
    rng = fresh_rng()
    for campaign, least in ((exact, 3.0), (loops, 3.0), (smooth, 3.0)):
        counts = []
        for _ in range(40):
            builder, outputs, *_ = campaign.prepared(campaign.draw(rng))
            counts.append(len(needed(builder.calls, [v.number for v in outputs])))
        assert np.mean(counts) > least, campaign.__name__


@pytest.mark.parametrize("way", range(4))
def test_the_printed_test_is_the_program(way: int) -> None:
    """Source that runs, passes, and would fail with other numbers."""
    steps = (Step(1, "arithmetic", (0, 0), (0,)), Step(2, "permute", (1,), (1,)))
    program = Program((Input("i32", (3, 2)),), steps, SUB.sizes, 0, way, 0, ())
    source = exact.show(program)
    space: dict[str, Any] = {}
    exec(source, space)
    space["test_exact_case"]()
    exec(source.replace("[-8,", "[-7,"), space)
    with pytest.raises(AssertionError):
        space["test_exact_case"]()


def test_a_loop_is_printed_with_its_body() -> None:
    body = (Step(3, "arithmetic", (0, 2), (0,)),)
    program = Program((Input("i64", (2,)),), (Step(1, "repeat", (0,), (3,), body),), SUB.sizes, 0, JIT, 0, ())
    source = loops.show(program)
    assert "tw.fori_loop(0, 3, f" in source and "        def f" in source
    space: dict[str, Any] = {}
    exec(source, space)
    space["test_loops_case"]()


def test_a_wrong_kernel_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jitted: an eager function has one kernel for all shapes, which this process may have made already."""

    def program(n: int) -> Program:
        return Program((Input("i32", (n,)), Input("i32", (n,))), (Step(2, "arithmetic", (0, 1), (1,)),), SUB.sizes, 3, JIT, 0, ())

    exact.check(program(11))
    monkeypatch.setattr(o.Sub, "lower", lambda self, t, x, y: t.binary("sub", y, x))
    with pytest.raises(AssertionError):
        exact.check(program(13))


def test_a_missing_error_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program((Input("i64", (3,)),), (Step(1, "wild_take", (0, 0), ()),), SUB.sizes, 0, JIT, 0, ())
    loops.check(program)
    monkeypatch.setattr(loops, "run", lambda program, builder, outputs, given: [[np.zeros(3, np.int64)]])
    with pytest.raises(AssertionError, match="bad data, and no ExecutionError"):
        loops.check(program)


@pytest.mark.parametrize("way", range(len(smooth.WAYS)))
def test_a_wrong_derivative_is_noticed(way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program((Input("f64", (3,)),), (Step(1, "unary", (0,), (1,)),), (), 5, way, 0, ())
    smooth.check(program)
    if smooth.WAYS[way] not in ("value", "vmap"):
        monkeypatch.setattr(Tanh, "derivative", lambda self, x, y: F.sub(1.001, F.square(y)))
        with pytest.raises(AssertionError):
            smooth.check(program)


def test_a_wrong_module_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net = layers.Net("rows", 4, (Step(1, "activation", (0,), (3,)),), (3, 1, 1), "float32", (True, False, False), 1, 0, ())
    monkeypatch.setattr(Tanh, "tile", "erf")
    with pytest.raises(AssertionError, match="of the largest value, allowed"):
        modules.check(net)
