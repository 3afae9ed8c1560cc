"""The programs of `arrays` where every Array counts as a large one: results in memory that is used again, temporaries and operands that
give theirs to a result, threads that share the work. What a result's memory held before is spoilt."""

from __future__ import annotations

import dataclasses
from functools import cache
from multiprocessing import parent_process

import pytest

from tilewright.array import lazy, machine, operators
from tilewright.runtime import eager_host as H

from . import arrays
from .engine.reuse import reused

LIMITS = {"NATIVE_BYTES": 1, "SHARED_BYTES": 1}


@cache
def _limited() -> None:
    """Native code leaves all to the Python forms: in a process of a campaign, before there is any."""
    if parent_process() is not None and not machine.machine.cache_info().currsize:
        H.CONSTANTS.update(LIMITS)
        machine.THREADED, machine.STREAMED = 64, 256


def check(case: arrays.Case) -> None:
    _limited()
    with reused(True), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lazy, "HELD", 1)
        patch.setattr(operators, "REUSED", 1)
        arrays.check(case)


CAMPAIGN = dataclasses.replace(arrays.CAMPAIGN, check=check)
