"""Every architecture against transformers, token by token with its cache, and cut in different ways: the same bits."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.llm.families import VOCAB, configs, make, ours, reference, relative

NAMES = list(configs())


@pytest.fixture(scope="module", params=[n if i % 2 == 0 else pytest.param(n, marks=pytest.mark.slow) for i, n in enumerate(NAMES)])
def pair(request: Any) -> Any:
    model = make(request.param)
    return request.param, model, ours(model)


def test_logits_are_those_of_transformers(pair: Any) -> None:
    name, model, llm = pair
    ids = [int(i) for i in np.random.default_rng(len(name)).integers(0, VOCAB, 23)]
    want = reference(model, ids)
    state = llm.start()
    for i, token in enumerate(ids):
        assert relative(llm.feed(state, [token]), want[i]) < 2e-5, f"{name}, position {i}"
    assert state.length == len(ids)


def test_cuts_do_not_change_a_bit(pair: Any) -> None:
    _, _, llm = pair
    rng = np.random.default_rng(7)
    ids = [int(i) for i in rng.integers(0, VOCAB, 31)]
    whole = llm.feed(llm.start(), ids)
    for cuts in ([1] * 31, [30, 1], [2, 7, 22], [16, 15]):
        state, at = llm.start(), 0
        for n in cuts:
            got = llm.feed(state, ids[at : at + n])
            at += n
        assert np.array_equal(got, whole), cuts


def test_a_prefix_is_reused(pair: Any) -> None:
    _, _, llm = pair
    prefix, tails = [5, 9, 2, 77, 31], ([4, 8], [100, 3, 6])
    base = llm.start()
    llm.feed(base, prefix)
    for tail in tails:
        state = base.copy()
        got = llm.feed(state, tail)
        assert np.array_equal(got, llm.feed(llm.start(), prefix + tail))
        state.truncate(len(prefix))
        assert np.array_equal(llm.feed(state, tail), got)
    assert base.length == len(prefix)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 1e-3), ("bf16", 1e-2), ("q8_0", 1e-2)])
def test_a_small_cache_stays_close(dtype: str, tolerance: float) -> None:
    model = make("wide_heads")
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    want = reference(model, ids)[-1]
    llm = ours(model, cache_dtype=dtype)
    whole = llm.feed(llm.start(), ids)
    assert 1e-6 < relative(whole, want) < tolerance
    state = llm.start()
    for token in ids:
        got = llm.feed(state, [token])
    assert np.array_equal(got, whole)


def test_a_wrong_rope_would_be_noticed() -> None:
    """The comparison can fail: with another base the logits differ far more than the tolerance."""
    model = make("llama")
    llm = ours(model)
    model.config.rope_parameters["rope_theta"] = 100.0
    other = ours(model)
    ids = list(range(3, 20))
    assert relative(other.feed(other.start(), ids), llm.feed(llm.start(), ids)) > 1e-3
