"""Programs of jitted and eager functions: a bounded number is kept, a forgotten one is freed and compiled again when it comes back."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.array import functions, programs


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "KEPT", 8)


def mappings() -> int:
    with open("/proc/self/maps") as file:
        return len(file.readlines())


def test_many_shapes_of_an_eager_function_keep_few_programs() -> None:
    tw.softmax(np.ones(3, np.float32))
    before = mappings()
    for n in range(1, 60):
        x = fresh_rng().standard_normal(n).astype(np.float32)
        e = np.exp(x.astype(np.float64))
        np.testing.assert_allclose(tw.softmax(x), e / e.sum(), rtol=3e-6, atol=1e-7)
    assert len(functions._EAGER._kept) <= 8
    assert mappings() < before + 60, "every shape keeps mappings of its own"


def test_all_eager_functions_share_one_bound() -> None:
    for n in range(1, 20):
        tw.softmax(np.ones(n, np.float32)), tw.log_softmax(np.ones((n, 2), np.float32)), tw.logsumexp(np.ones(n, np.float64))
    assert len(functions._EAGER._kept) <= 8


def test_a_forgotten_program_is_freed_at_once_and_compiled_again() -> None:
    f = tw.jit(lambda x: x * 2 + 1)
    dead = weakref.ref(f.lower(np.ones(1, np.float32)).executable)
    code = weakref.ref(dead().code.library._image)  # type: ignore[union-attr]
    f(np.ones(1, np.float32))
    gc.disable()
    try:
        for n in range(2, 12):
            f(np.ones(n, np.float32))
        assert dead() is None and code() is None, "only a collection of cycles frees it"
    finally:
        gc.enable()
    assert repr(f).endswith(": 8 signatures>")
    np.testing.assert_array_equal(f(np.ones(1, np.float32)), [3.0])


def test_the_lately_used_are_kept() -> None:
    f = tw.jit(lambda x: x + 1)
    first = f.lower(np.ones(1, np.float32))
    for n in range(2, 30):
        f(np.ones(n, np.float32))
        assert f.lower(np.ones(1, np.float32)) is first


def test_clear_forgets_the_programs_of_one_function_only() -> None:
    tw.tanh(np.ones(5, np.float32))
    f = tw.jit(lambda x: x + 1)
    f(np.ones(5, np.float32))
    kept = len(functions._EAGER._kept)
    f.clear()
    assert "0 signatures" in repr(f) and len(functions._EAGER._kept) == kept
    np.testing.assert_array_equal(f(np.zeros(5, np.float32)), np.ones(5))


def test_programs_are_forgotten_while_other_threads_run_them() -> None:
    f = tw.jit(lambda x: (x * x).sum() + x.shape[0])
    wrong: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                n = int(rng.integers(1, 40))
                if f(np.full(n, 2.0, np.float32)) != 5 * n:
                    wrong.append(n)
        except Exception as e:
            wrong.append(e)

    seeds = [int(s) for s in fresh_rng().integers(2**32, size=4)]
    threads = [threading.Thread(target=work, args=(s,)) for s in seeds]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
