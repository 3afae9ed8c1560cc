"""Text from a model: sampling settings, stops, limits, states and every way to ask wrongly."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.llm.families import VOCAB, make, ours, reference
from tilewright.core.errors import ExecutionError, InputError
from tilewright.llm.settings import StopFilter


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")


@pytest.fixture(scope="module")
def llm(model: Any) -> Any:
    return ours(model)


def test_greedy_is_what_transformers_generates(model: Any, llm: Any) -> None:
    ids = [4, 8, 15, 16]
    stream = llm.generate(ids, max_tokens=12)
    "".join(stream)
    want = list(ids)
    for _ in range(12):
        token = int(reference(model, want)[-1].argmax())
        if token in llm.stop_ids():
            break
        want.append(token)
    assert stream.ids == want[len(ids) :]
    assert stream.finish_reason in ("length", "stop")


def test_a_seed_gives_the_same_text_on_any_number_of_threads(model: Any, llm: Any) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 1.1, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "seed": 3}
    first = list(llm.generate([9, 9], **options))
    assert list(llm.generate([9, 9], **options)) == first
    assert list(ours(model, threads=1).generate([9, 9], **options)) == first
    assert list(llm.generate([9, 9], **{**options, "seed": 4})) != first


def test_a_stop_text_ends_before_it(llm: Any) -> None:
    whole = "".join(llm.generate([30, 31], max_tokens=12))
    middle = whole[4:6]
    stream = llm.generate([30, 31], max_tokens=12, stop=[middle])
    assert "".join(stream) == whole[: whole.index(middle)]
    assert stream.finish_reason == "stop"


def test_the_stop_filter_holds_back_what_might_be_a_stop() -> None:
    f = StopFilter(("abc", "x"))
    assert [f.push(p) for p in ("12a", "b", "d", "ab")] == ["12", "", "abd", ""]
    assert f.finish() == "ab"
    f = StopFilter(("abc",))
    assert f.push("zab") + f.push("cde") == "z"
    assert f.stopped


def test_a_stream_goes_on_in_its_state(llm: Any) -> None:
    state = llm.start()
    first = llm.generate([1, 7, 3], max_tokens=5, state=state)
    list(first)
    assert state.length == 3 + 4, "the last token was shown, not fed"
    assert np.array_equal(llm.feed(state, [first.ids[-1]]), llm.feed(llm.start(), [1, 7, 3, *first.ids]))


@pytest.mark.parametrize(("options", "message"), [
    ({"temperature": -1}, "temperature must be 0 or more"), ({"temperature": float("nan")}, "temperature must be"),
    ({"top_k": -1}, "top_k must be"), ({"top_p": 0}, "top_p must be in"), ({"min_p": 2}, "min_p must be"),
    ({"repetition_penalty": 0}, "repetition_penalty must be positive"), ({"seed": 1 << 70}, "seed must be a 64-bit"),
    ({"max_tokens": -1}, "max_tokens must be"), ({"stop": [""]}, "stop must be texts"), ({"stop": 5}, "stop must be texts"),
    ({"stop": None}, "stop must be texts"),
])
def test_a_setting_that_makes_no_sense(llm: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        llm.generate([1], **options)


def test_tokens_that_make_no_sense(llm: Any) -> None:
    state = llm.start()
    for ids, message in (([], "at least one token"), ([VOCAB], f"in 0..{VOCAB - 1}, got {VOCAB} at position 0"),
                         ([3, -1], "got -1 at position 1"), ([1.5], "flat sequence of integers"), ([[1]], "flat sequence of integers")):
        with pytest.raises(InputError, match=message):
            llm.feed(state, ids)
    assert state.length == 0
    with pytest.raises(InputError, match="the prompt is empty"):
        llm.generate("")


def test_the_context_has_an_end(llm: Any) -> None:
    state = llm.start()
    llm.feed(state, [1] * 64)
    with pytest.raises(InputError, match="the context of 64 tokens is full: 64 in use, 1 more wanted"):
        llm.feed(state, [1])
    assert state.length == 64
    state.truncate(60)
    llm.feed(state, [1] * 4)
    with pytest.raises(InputError, match="the prompt has 65 tokens"):
        llm.generate([1] * 65)
    with pytest.raises(InputError, match=r"truncated to 0..64 elements, got 65"):
        state.truncate(65)


def test_a_generation_fills_the_context_exactly(llm: Any) -> None:
    for most, reason in ((None, "context"), (1000, "context"), (6, "context"), (5, "length"), (0, "length")):
        stream = llm.generate([1] * 60, max_tokens=most)
        stream.ends = frozenset()
        list(stream)
        assert len(stream.ids) == (5 if most is None else min(most, 5))
        assert stream.state.length == (64 if most != 0 else 0)
        assert stream.finish_reason == reason


def test_logits_that_are_not_numbers_are_an_error() -> None:
    broken = make("llama")
    broken.model.embed_tokens.weight.data[7] = float("nan")
    llm = ours(broken)
    state = llm.start()
    llm.feed(state, [3])
    with pytest.raises(ExecutionError, match="sample: the largest logit is NaN or infinite"):
        llm.feed(state, [7])
    assert state.length == 1


def test_a_state_of_another_model_is_refused(llm: Any) -> None:
    other = ours(make("gpt2"))
    with pytest.raises(InputError, match="belongs to another model"):
        llm.feed(other.start(), [1])


def test_an_interrupt_leaves_the_state_as_it_was(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    state = llm.start()
    want = llm.feed(state.copy(), [5, 6])
    llm.feed(state, [5])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(llm.session._pool, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.feed(state, [6])
    assert state.length == 1
    assert np.array_equal(llm.feed(state, [6]), want)


def test_many_states_live_at_once(llm: Any) -> None:
    states = [llm.start() for _ in range(5)]
    for step in range(4):
        for i, state in enumerate(states):
            got = llm.feed(state, [10 * i + step])
            assert np.array_equal(got, llm.feed(llm.start(), [10 * i + s for s in range(step + 1)]))
