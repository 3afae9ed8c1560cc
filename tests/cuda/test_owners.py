"""Sessions on a GPU among threads, on chips newer than their code, and memory that is short for a while (fake driver)."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
import tilewright.ops as o
from tests.cuda.fake_driver import CUresult, fake_gpu
from tests.cuda.launching import graph
from tilewright.core.dims import sym
from tilewright.core.dtypes import f32
from tilewright.core.errors import ExecutionError, InputError
from tilewright.ops.rows.norms import Softmax
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda import executable as cuda_executable
from tilewright.runtime.cuda import session as cuda_session
from tilewright.runtime.cuda.fastcall import fast_call

X = np.arange(8, dtype=np.float32).reshape(2, 4)


def negative() -> Any:
    return tw.compile(graph(lambda x: o.Neg()(x), (f32, (2, 4))), target="cuda")


def elsewhere(work: Callable[[], Any]) -> Any:
    """The result of `work` in a thread that has never had the context."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as e:
            found.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_only_kernels_that_wait_start_early(arch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code for older chips has no word for it: on newer ones, too, it starts when the previous kernel has ended."""
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


def test_threads_without_the_context_wait_and_free() -> None:
    with fake_gpu() as gpu:
        held = len(gpu.memory.kept)
        sessions = [negative()]
        sessions[0](X)
        assert elsewhere(sessions[0].synchronize) is None
        gc.collect()
        assert len(gpu.memory.kept) > held

        def drop() -> None:
            sessions.clear()
            gc.collect()

        assert elsewhere(drop) is None and len(gpu.memory.kept) == held


def test_first_calls_of_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """They end with one fast path: the machine code of another would not hear of new streams."""
    with fake_gpu() as gpu:
        meet, made, run = threading.Barrier(2), list[Any](), cuda_session.CudaSession._run

        def make(*args: Any) -> Any:
            sleep(0.1)  # the other one comes by
            made.append(fast_call(*args))
            return made[-1]

        monkeypatch.setattr(cuda_session.CudaSession, "_run", lambda *args: (run(*args), meet.wait())[0])
        monkeypatch.setattr(cuda_session, "fast_call", make)
        session = negative()
        threads = [threading.Thread(target=session, args=(X,)) for _ in range(2)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(made) == 1 and session._fast is made[0] and gpu.launches


def test_a_session_that_is_closed_during_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_gpu():
        session, run = negative(), cuda_session.CudaSession._run
        monkeypatch.setattr(cuda_session.CudaSession, "_run", lambda self, *args: (run(self, *args), self.close())[0])
        y = session(X)
        np.testing.assert_array_equal(y.numpy(), -X)
        monkeypatch.undo()
        with pytest.raises(InputError, match="g is closed"):
            session(y)


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


def test_an_error_that_another_thread_raises_first() -> None:
    with fake_gpu():
        session = negative()
        session(X)
        seen = iter((1, 0, 0, 0, 0, 0, 0, 0))  # there at the first look, gone at the next
        words = type("Words", (), {"__getitem__": lambda self, i: next(seen)})()
        session.executable.errors = SimpleNamespace(count=4, words=words, clear=lambda: None)
        session.synchronize()
        assert next(seen) == 0
