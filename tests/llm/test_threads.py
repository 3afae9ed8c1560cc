"""What the docstrings of LLM, State and Stream promise between threads, under a scheduler that switches often and sleeps at random."""
from __future__ import annotations

import copy
import pickle
import random
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.llm.quantized_model import model
from tests.shaken import at_once
from tilewright.core.errors import InputError, UnsupportedError
from tilewright.llm.batch import BatchCall
from tilewright.llm.model import LLM
from tilewright.runtime.state import StatefulCall

THREADS, ROUNDS = 5, 12
PROMPTS = [[3, 1, 4], [20], [7, 7, 7, 99, 100], [50, 60], [11, 12, 13], [90, 5]]
WAYS: list[dict[str, Any]] = [{"max_tokens": 9}, {"max_tokens": 7, "temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2, "seed": 5}]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with model() as found:
        yield found


@pytest.fixture
def switching(monkeypatch: pytest.MonkeyPatch) -> Iterator[random.Random]:
    """Threads switch every few microseconds, and sleep for a random while before and behind native calls."""
    chance = random.Random(int(fresh_rng().integers(1 << 32)))

    def around(cls: type, name: str) -> None:
        plain: Callable[..., Any] = getattr(cls, name)

        def hooked(*args: Any, **kwargs: Any) -> Any:
            time.sleep(chance.random() * 3e-4)
            try:
                return plain(*args, **kwargs)
            finally:
                time.sleep(chance.random() * 3e-4)

        monkeypatch.setattr(cls, name, hooked)

    around(StatefulCall, "__call__")
    around(BatchCall, "__call__")
    around(LLM, "check")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield chance
    sys.setswitchinterval(before)


def test_every_text_is_the_one_that_it_is_alone(llm: LLM, switching: random.Random) -> None:
    texts = {(i, w): "".join(llm.generate(p, **way)) for i, p in enumerate(PROMPTS) for w, way in enumerate(WAYS)}
    prefix = llm.start()
    llm.feed(prefix, [9, 8, 7, 6])
    after = {i: llm.feed(prefix.copy(), p) for i, p in enumerate(PROMPTS)}

    def alone(i: int, w: int, _: random.Random) -> None:
        assert "".join(llm.generate(PROMPTS[i], **WAYS[w])) == texts[i, w]

    def batch(i: int, w: int, rng: random.Random) -> None:
        chosen = [(i + k) % len(PROMPTS) for k in range(rng.randint(1, 5))]
        assert llm.generate_batch([PROMPTS[k] for k in chosen], **WAYS[w]) == [texts[k, w] for k in chosen]

    def cancelled(i: int, w: int, rng: random.Random) -> None:
        stream = llm.generate(PROMPTS[i], **WAYS[w])
        pieces = [next(stream) for _ in range(rng.randint(1, 3))]
        assert texts[i, w].startswith("".join(pieces))
        state, fed = stream.state, [*PROMPTS[i], *stream.ids[:-1]]
        assert state.length == len(fed)
        assert np.array_equal(llm.feed(state, [stream.ids[-1]]), llm.feed(llm.start(), [*fed, stream.ids[-1]]))

    def copied(i: int, w: int, rng: random.Random) -> None:
        mine = prefix.copy()
        assert np.array_equal(llm.feed(mine, PROMPTS[i]), after[i])
        mine.truncate(4)
        assert np.array_equal(llm.feed(mine, PROMPTS[i]), after[i])

    def work(number: int) -> None:
        rng = random.Random(switching.random() + number)
        for _ in range(ROUNDS):
            rng.choice((alone, batch, cancelled, copied))(rng.randrange(len(PROMPTS)), rng.randrange(len(WAYS)), rng)

    at_once(THREADS, work)
    assert prefix.length == 4


def test_calls_on_one_state_wait_for_each_other(llm: LLM, switching: random.Random) -> None:
    """Whole calls, in some order, never more than fits; copies are those of a moment between two calls."""
    state, order, full = llm.start(), [], []

    def work(number: int) -> None:
        mine = [number + 1] * 4
        for _ in range(20):
            try:
                with state.lock:  # a call and its note belong together
                    llm.feed(state, mine)
                    order.extend(mine)
            except InputError as e:
                full.append(str(e))
            other = state.copy()
            assert other.length % 4 == 0

    at_once(THREADS, work)
    assert state.length == len(order) == llm.context_length
    assert full and all("the context of 256 tokens is full" in text for text in full)
    state.truncate(40)
    assert np.array_equal(llm.feed(state, [5]), llm.feed(llm.start(), [*order[:40], 5]))


def test_one_state_without_a_lock_of_ones_own_never_overflows(llm: LLM, switching: random.Random) -> None:
    state = llm.start()

    def work(_: int) -> None:
        for _ in range(40):
            try:
                llm.feed(state, [1, 2])
            except InputError:
                return

    at_once(THREADS, work)
    assert state.length == llm.context_length


def test_a_stream_whose_state_somebody_else_uses_says_so(llm: LLM) -> None:
    for meddle in (lambda s: llm.feed(s, [4]), lambda s: s.truncate(1), lambda s: list(llm.generate([4], max_tokens=1, state=s))):
        state = llm.start()
        stream = llm.generate([3, 1], max_tokens=8, state=state)
        next(stream)
        meddle(state)
        with pytest.raises(InputError, match="somebody else has fed or truncated the state of this stream"):
            next(stream)
    one = llm.generate([3, 1], max_tokens=4, state=state)
    two = llm.generate([3, 1], max_tokens=4, state=state)
    list(one)
    with pytest.raises(InputError, match="give each stream a state of its own"):
        next(two)


def test_threads_that_share_a_stream_get_each_piece_once(llm: LLM, switching: random.Random) -> None:
    want = list(llm.generate([3, 1], max_tokens=30))
    stream, got = llm.generate([3, 1], max_tokens=30), list[str]()

    def work(_: int) -> None:
        for piece in stream:
            got.append(piece)

    at_once(THREADS, work)
    assert sorted(got) == sorted(want)
    assert stream.state.length == len(stream.ids) + 1 == 31


def test_a_batch_program_is_compiled_once_whoever_asks_first(switching: random.Random) -> None:
    with model(seed=1) as llm:
        compiled = []
        plain = llm._call._compile_for

        def counted(wanted: Any) -> Any:
            compiled.append(wanted)
            return plain(wanted)

        llm._call._compile_for = counted
        want = ["".join(llm.generate(p, max_tokens=5)) for p in PROMPTS[:2]]
        results: dict[int, list[str]] = {}
        at_once(THREADS, lambda n: results.update({n: llm.generate_batch(PROMPTS[:2], max_tokens=5)}))
        assert list(results.values()) == [want] * THREADS
        assert compiled == [2]


def test_a_state_for_several_prompts_is_refused(llm: LLM) -> None:
    state = llm.start()
    with pytest.raises(InputError, match="a state holds one sequence, got it for 2 prompts"):
        llm.generate_batch([[1], [2]], max_tokens=3, state=state)
    assert llm.generate_batch([[1]], max_tokens=3, state=state) == ["".join(llm.generate([1], max_tokens=3))]
    with pytest.raises(InputError, match="prompts must be a list of texts or tokens, got one str"):
        llm.generate_batch("one")
    with pytest.raises(InputError, match=r"state must be one that start\(\) made, got dict"):
        llm.generate([1], state={})  # type: ignore[arg-type]


def test_copies_share_no_memory(llm: LLM) -> None:
    """Copies by the module `copy` are states of their own; a model, a stream and pickles of anything are refused."""
    state = llm.start()
    llm.feed(state, [3, 1])
    others = [copy.copy(state), copy.deepcopy([state])[0]]
    want = llm.feed(state, [4])
    for other in others:
        llm.feed(other.copy(), [9, 9])
        assert other.length == 2 and np.array_equal(llm.feed(other, [4]), want)
    for thing in (llm, llm.generate([1], max_tokens=1)):
        for how in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(UnsupportedError, match="copied"):
                how(thing)
    with pytest.raises(UnsupportedError, match="state: cannot be pickled"):
        pickle.dumps(state)


def test_a_closed_model_says_so_in_every_thread(switching: random.Random) -> None:
    llm, said = model(seed=2), list[str]()
    want = "".join(llm.generate([3, 1], max_tokens=8))

    def work(number: int) -> None:
        if number == 0:
            time.sleep(0.02)
            llm.close()
            return
        while True:
            try:
                assert "".join(llm.generate([3, 1], max_tokens=8)) == want
            except InputError as e:
                said.append(str(e))
                return

    at_once(THREADS, work)
    assert len(said) == THREADS - 1 and all("is closed" in text for text in said)
