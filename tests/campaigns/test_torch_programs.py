"""The random functions of PyTorch: what rounding decides is left open, other numbers are not, and what reads memory it did not write is
noticed."""

from __future__ import annotations

import numpy as np
import torch

import tilewright as tw
from tilewright.runtime import outputs

from .engine.reuse import reused
from .programs.program import Step
from .torch_programs import Function, Given, Wired, differs, planned, results, settled
from .torch_sizes import CAMPAIGN as SIZES
from .torch_sizes import Sized

LAYER_NORM, NONZERO = (0, 0, 0, 0, 0, 0, 915794), (840535, 420140, 490186, 768183, 18166, 193773, 203937, 700093)


def counting(sizes: tuple[tuple[int, int], ...]) -> Sized:
    """How many elements of integers, less their mean, are not zero: where one of them is the mean, rounding says."""
    steps = (Step(2, "wide", (0, 0), LAYER_NORM), Step(5, "reduce", (2, 0), NONZERO))
    return Sized(Function((Given(8, (-2,), 0), Given(0, (), 0)), steps, 1, True, False, 161627817), sizes)


def test_a_count_that_rounding_decides_may_be_another() -> None:
    assert SIZES.check is not None
    SIZES.check(counting(((9, 5), (0, 8), (4, 0), (0, 7))))


def test_a_count_that_rounding_does_not_decide_may_not() -> None:
    f = Function((Given(8, (7,), 0),), (Step(1, "reduce", (0, 0), NONZERO),), 0, False, False, 161627817)  # 5 of 7, exactly
    plan, outs, unit = planned(f)
    (want, *_), *moved = (results(f, Wired(p, outs), k, unit) for k, p in ((0, plan), (1, plan), (2, plan), (0, settled(plan))))
    assert int(want) == 5 and differs(want, want, [m[0] for m in moved], unit, 0.0) is None
    assert differs(want + 1, want, [m[0] for m in moved], unit, 0.0) is not None


def test_small_results_come_from_spoilt_memory_that_is_used_again() -> None:
    x = torch.randn(3, 5)
    with reused(True) as spoilt:
        session, places = tw.compile(lambda a: torch.softmax(a @ a.T, 1) @ a, (x,)), set()
        for _ in range(4):
            got = session(x)
            torch.testing.assert_close(got, torch.softmax(x @ x.T, 1) @ x)
            places.add(got.data_ptr())
            del got
            spoilt()
        workspace = session.take()
        assert len(places) == 1 and np.isnan(workspace._arena.array(np.float32, (workspace._arena.nbytes // 4,))).all()
        assert np.isnan(outputs.recycler(session.interface.outputs[0], (3, 5), False)()).all()
