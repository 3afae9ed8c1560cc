"""Fresh random inputs for every test of the CUDA target, and the drivers that tests of Arrays run on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest

from tests.cuda.fake_driver import FakeDriver, fake_gpu
from tests.fresh import fresh_rng
from tilewright.array.jit import Jit
from tilewright.runtime.cuda import driver as cuda_driver


@pytest.fixture
def rng() -> np.random.Generator:
    return fresh_rng()


FAR = 1 << 46  # nothing of the host lies there


@pytest.fixture(params=["emulated", *([] if cuda_driver.available() else ["real"])], scope="module")
def machine(request: pytest.FixtureRequest) -> Iterator[FakeDriver | None]:
    """One driver for all tests: library functions keep what they have compiled for it."""
    with fake_gpu(shift=FAR) if request.param == "emulated" else nullcontext() as fake:
        yield fake
        for x in gc.get_objects():
            if type(x) is Jit:
                x.clear()


@pytest.fixture
def gpu(machine: FakeDriver | None) -> FakeDriver | None:
    if machine is not None:
        machine.launches.clear()
        machine.waits.clear()
    return machine


@pytest.fixture
def fake(gpu: FakeDriver | None) -> FakeDriver:
    if gpu is None:
        pytest.skip("what the driver was asked for is known of the emulated one")
    return gpu
