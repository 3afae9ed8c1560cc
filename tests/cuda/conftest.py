"""Fresh random inputs for every test of the CUDA target; the seed is in the report of a failure."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def rng(record_property: object) -> np.random.Generator:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    record_property("seed", seed)  # type: ignore[operator]
    return np.random.default_rng(seed)
