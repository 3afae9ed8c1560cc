"""The barrier analyser on random PTX (`tests/cuda/test_barrier_fuzz.py`): what goes wrong is found, and what all threads share is no
alarm."""

from __future__ import annotations

import random

import numpy as np

from tests.cuda.test_barrier_fuzz import Program
from tilewright.target.cuda.safety.barrier_safety import check

from .engine.campaign import Campaign


def case(rng: np.random.Generator) -> None:
    pick = random.Random(int(rng.integers(1 << 62)))
    for _ in range(40):
        program = Program(pick, "%tid.x")
        ways = [[program.barriers(t, c) for t in range(11)] for c in range(2)]
        if all(None not in block for block in ways) and any(way != block[0] for block in ways for way in block):
            assert check(program.text()), program.text()
        program = Program(pick, str(rng.choice(["%ctaid.x", "%nctaid.x"])))
        assert not check(program.text()), program.text()


CAMPAIGN = Campaign(case=case, quick=8)
