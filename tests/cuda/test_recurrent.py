"""Language models with a recurrent memory on the CUDA target: on the stand-in for the driver, and on a GPU where there is one."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

from tests.cuda.fake_driver import fake_gpu
from tests.llm.families import make, ours, relative
from tilewright.core.errors import InputError
from tilewright.runtime.cuda import driver as cuda_driver

WHY = cuda_driver.available()
on_gpu = pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
IDS = [5, 9, 13, 7, 21]


def check(kind: str, gpu: contextlib.AbstractContextManager[Any]) -> None:
    """Logits of the CPU's program for a prompt and a token; states are copied, and go back to nothing or to where the last call began."""
    model = make(kind)
    cpu = ours(model)
    state = cpu.start()
    want = [cpu.feed(state, IDS[:3]), cpu.feed(state, IDS[3:4])]
    with gpu:
        llm = ours(model, target="cuda")
        state = llm.start()
        prompt = llm.feed(state, IDS[:3])
        copy = state.copy()
        token = llm.feed(state, IDS[3:4])
        assert relative(prompt, want[0]) < 1e-5 and relative(token, want[1]) < 1e-5
        np.testing.assert_array_equal(llm.feed(copy, IDS[3:4]), token)
        with pytest.raises(InputError, match=r"cannot go back to 1 of 4 elements; it can be truncated to 0, to 3, where the last call"):
            state.truncate(1)
        state.truncate(3)
        np.testing.assert_array_equal(llm.feed(state, IDS[3:4]), token)
        state.truncate(0)
        np.testing.assert_array_equal(llm.feed(state, IDS[:3]), prompt)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mamba", "mamba2", "falcon_h1"])
def test_the_stand_in_gives_the_logits_of_the_cpu(kind: str) -> None:
    check(kind, fake_gpu())


@on_gpu
@pytest.mark.parametrize("kind", ["mamba", "mamba2", "falcon_h1", "qwen3next"])
def test_a_gpu_gives_the_logits_of_the_cpu(kind: str) -> None:
    check(kind, contextlib.nullcontext())
