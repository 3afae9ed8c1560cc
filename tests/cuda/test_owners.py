"""Sessions on a GPU among threads, on chips newer than their code, and memory that is short for a while (fake driver)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import CUresult, fake_gpu
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.core.errors import ExecutionError
from tilewright.ops.composites import Softmax
from tilewright.runtime import cuda_driver, cuda_executable

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_only_kernels_that_wait_start_early(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for older chips has no word for it: on newer ones, too, it starts when the kernel before has ended."""
    edges: list[bool] = []
    monkeypatch.setattr(cuda_driver, "after", lambda graph, before, node, *, early: edges.append(early))
    with fake_gpu((9, 0), run=False):
        session: Any = tw.compile(graph(lambda x: (Softmax(axis=1)(x), Softmax(axis=0)(x)), (f32, (16, 16))), target=arch)
        session(np.zeros((16, 16), np.float32))
        assert len(session.executable.program.launches) == 2
        assert all(("griddepcontrol.wait" in text) == (arch == "sm_90a") for text in session.ptx().values())
    assert edges == [arch == "sm_90a"]


def test_memory_that_is_short_at_the_first_call() -> None:
    with fake_gpu() as gpu, pytest.MonkeyPatch.context() as patch:
        g = graph(lambda x: x, (f32, (2, 4)))
        g.outputs = [o.Sub()(g.inputs[0], g.constant(1 - X))]
        session: Any = tw.compile(g, target="cuda")
        patch.setattr(gpu, "cuMemAlloc", lambda nbytes: (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None))
        with pytest.raises(ExecutionError, match="cuMemAlloc failed with CUDA_ERROR_OUT_OF_MEMORY"):
            session(X)
        patch.undo()
        np.testing.assert_array_equal(session(X).numpy(), 2 * X - 1)


def test_a_node_that_did_not_hear_of_a_position() -> None:
    """The next call at the same position tells it again."""
    p = sym("P", 0, 9)
    told: list[int] = []
    with fake_gpu((9, 0), run=False) as gpu:
        step: Any = object.__new__(cuda_executable.Step)
        step.following, step.map_dims, step.maps, step.seen = [(0, 0, -1, p)], (), [], ()
        step.words = np.zeros(1, np.int64)
        step.moving = []
        schedule = cuda_executable.Schedule({}, cuda_driver.Memory(8), [step], 0)
        schedule.handle = 1

        def update(handle: int) -> None:
            told.append(int(step.words[0]))
            if len(told) == 1:
                raise ExecutionError("as the driver does")

        step.update = update
        with pytest.raises(ExecutionError, match="as the driver does"):
            schedule.follow({"P": 3}, [], 0)
        for position in (3, 3, 4):
            schedule.follow({"P": position}, [], 0)
        assert told == [3, 3, 4] and gpu.memory.kept
