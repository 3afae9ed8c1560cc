"""Fresh random inputs for every test of the CUDA target."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fresh import fresh_rng


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_rng()
