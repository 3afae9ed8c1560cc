"""Reductions of Arrays on a GPU with run-time sizes, and kernels of eager functions from the cache on disk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.fake_driver import FakeDriver
from tests.cuda.launching import numbers, put
from tilewright.array.cuda import elementwise as kernels
from tilewright.array.cuda import placed as P
from tilewright.array.cuda import reductions

REDUCED: dict[str, tuple[tuple[int, ...], Any, Any]] = {  # shape, view, axis
    "one row": ((300,), lambda a: a, None), "few elements": ((7,), lambda a: a, None), "even": ((512,), lambda a: a, None),
    "rows": ((3, 70), lambda a: a, 1), "long rows": ((2, 700), lambda a: a, -1), "columns": ((40, 70), lambda a: a, 0),
    "middle": ((3, 45, 33), lambda a: a, 1), "apart": ((3, 5, 4), lambda a: a, (0, 2)), "all": ((2, 3, 4), lambda a: a, None),
    "transposed": ((40, 30), lambda a: a.T, 0), "transposed rows": ((40, 30), lambda a: a.T, 1),
    "steps": ((80, 9), lambda a: a[::2, ::3], 1),
    "backwards": ((33, 20), lambda a: a[::-1, ::-1], 0), "windows": ((1, 50), lambda a: a[0, 10:41], 0),
    "four axes": ((2, 3, 4, 30), lambda a: a.transpose(2, 0, 3, 1), (0, 2)), "a row of ones": ((6, 1), lambda a: a, 1),
}


@pytest.mark.parametrize("name", REDUCED)
def test_reductions(gpu: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for limit, value in {"LONG": 256, "CHUNK": 64}.items():  # rows are long sooner
        monkeypatch.setattr(reductions, limit, value)
    shape, view, axis = REDUCED[name]
    a = view(numbers(*shape) / 4 + 1)
    for fn, dtype, tolerance in (("sum", "f32", 1e-5), ("max", "f32", 0), ("mean", "f16", 2e-3), ("sum", "i32", 0), ("any", "bool", 0)):
        host = tw.asarray(np.array(a)).astype(dtype)
        memory = np.zeros(shape, host.dtype)
        view(memory)[...] = host.numpy()
        x = view(put(memory))
        for keepdims in (False, True):
            got, want = getattr(tw, fn)(x, axis=axis, keepdims=keepdims), getattr(tw, fn)(host, axis=axis, keepdims=keepdims)
            assert (got.device, got.shape, got.dtype) == ("cuda", want.shape, want.dtype)
            np.testing.assert_allclose(got.numpy().astype(np.float64), want.numpy().astype(np.float64), rtol=tolerance)


TALL: dict[str, tuple[tuple[int, ...], Any, Any]] = {
    "shared by blocks": ((1100, 37), lambda a: a, 0), "narrow": ((900, 3), lambda a: a, 0),
    "narrow, several": ((2, 601, 5), lambda a: a, 1),
    "aligned": ((600, 48), lambda a: a, 0), "steps": ((530, 18), lambda a: a[:, ::2], 0),
    "backwards": ((530, 9), lambda a: a[::-1, ::-1], 0),
    "kept apart": ((3, 70, 11), lambda a: a.transpose(2, 0, 1), 2), "repeated": ((1, 90), lambda a: a.expand(520, 90), 0),
    "few rows": ((5, 300), lambda a: a, 0), "narrow window": ((600, 9), lambda a: a[:, 2:5], 0),
}


@pytest.mark.parametrize("name", TALL)
def test_reductions_of_columns(gpu: Any, name: str) -> None:
    shape, view, axis = TALL[name]
    for fn, dtype, tolerance in (("sum", "f32", 2e-6), ("mean", "f16", 2e-3), ("sum", "bf16", 1e-2), ("prod", "i32", 0), ("sum", "u8", 0),
                                 ("max", "i16", 0), ("min", "f64", 0), ("any", "bool", 0), ("all", "f32", 0), ("mean", "f32", 2e-6)):
        host = tw.asarray(numbers(*shape) + 3).astype(dtype)
        x, host = view(host.to("cuda")), view(host)
        got, want = getattr(tw, fn)(x, axis=axis), getattr(tw, fn)(host, axis=axis)
        assert (got.device, got.shape, got.dtype) == ("cuda", want.shape, want.dtype)
        np.testing.assert_allclose(got.astype("f64").numpy(), want.astype("f64").numpy(), rtol=tolerance, err_msg=f"{fn} {dtype}")


def test_reductions_compile_nothing_for_a_new_shape(fake: FakeDriver) -> None:
    tw.sum(put(numbers(3, 71)), axis=1)
    before = reductions._kernel.cache_info().misses
    for rows, columns in ((5, 81), (2, 93), (9, 77)):
        a = numbers(rows, columns)
        np.testing.assert_allclose(tw.sum(put(a), axis=1).numpy(), a.sum(1), rtol=1e-5, atol=1e-5)
    assert reductions._kernel.cache_info().misses == before
    assert tw.mean(put(a), 0, True).shape == (1, 77)


def test_kernels_come_from_the_cache_on_disk(fake: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    a = numbers(3, 50)

    def results() -> list[Any]:
        x = put(a)
        return [tw.tanh(x).numpy(), (x[:, ::2] * 2).numpy(), tw.sum(x, axis=0).numpy(), (put(np.int32([7, 8])) // 2).numpy()]  # type: ignore[arg-type]

    def forget() -> None:
        P.state().plans.clear()
        for cached in (kernels._kernel, kernels._result_dtype, kernels._body, reductions._kernel):
            cached.cache_clear()

    forget()
    first = results()
    forget()
    seen: list[str] = []
    real = kernels.run_pipeline  # type: ignore[attr-defined]
    monkeypatch.setattr(kernels, "run_pipeline", lambda graph, *args, **kwargs: (seen.append(graph.name), real(graph, *args, **kwargs))[1])  # type: ignore[func-returns-value]
    for got, want in zip(results(), first, strict=True):
        np.testing.assert_array_equal(got, want)
    assert set(seen) <= {"floor_divide"}, "only what may fail is made in each process"
