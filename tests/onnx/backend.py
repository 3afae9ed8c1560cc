"""ONNX's own backend tests: cases with inputs and results, run through `tw.compile` and compared as the suite's runner does."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import onnx.backend.test
from onnx.backend.base import Backend, BackendRep

import tilewright as tw

RANDOM = "the expected numbers come from another generator of random numbers"
EXCLUDED = {
    **dict.fromkeys(("test_bernoulli", "test_bernoulli_double", "test_bernoulli_double_expanded", "test_bernoulli_expanded",
                     "test_bernoulli_seed", "test_bernoulli_seed_expanded", "test_training_dropout", "test_training_dropout_default",
                     "test_training_dropout_default_mask", "test_training_dropout_mask"), RANDOM),
    "test_loop16_seq_none": "the suite's runner cannot compare a scalar inside a sequence",
}  # fmt: skip


class Rep(BackendRep):
    def __init__(self, session: Any) -> None:
        self.session = session

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        out = self.session(*inputs)
        return out if isinstance(out, tuple) else (out,)


class Candidate(Backend):
    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **_: Any) -> Rep:
        return Rep(tw.compile(model))

    @classmethod
    def supports_device(cls, device: str) -> bool:
        return device == "CPU"


@cache
def cases() -> dict[str, Any]:
    """name -> (class, method name) of every case for the CPU."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = onnx.backend.test.BackendTest(Candidate, __name__).test_cases
    return {name.removesuffix("_cpu"): (kind, name) for kind in found.values() for name in dir(kind) if name.endswith("_cpu")}


def run_case(name: str) -> bool:
    """True; raises where a result differs from the expected one."""
    kind, method = cases()[name]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        getattr(kind(method), method)()
    return True
