"""Models with a recurrent memory: long prompts, what a state can go back to, failed calls, many sequences, folders."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.llm.families import VOCAB, make, ours, reference, relative
from tests.llm.test_loading import make_folder
from tilewright.core.errors import InputError

PROMPT = [int(i) for i in np.random.default_rng(3).integers(3, VOCAB, 300)]


@pytest.fixture(scope="module", params=["mamba", "falcon_h1"])
def pair(request: Any) -> Any:
    model = make(request.param)
    return model, ours(model, context_length=400 if request.param == "mamba" else 64)


def test_a_prompt_of_several_chunks() -> None:
    model = make("mamba")
    llm = ours(model, context_length=400)
    state = llm.start()
    whole = llm.feed(state, PROMPT)
    assert relative(whole, reference(model, PROMPT)[-1]) < 1e-4
    other = llm.start()
    for first in range(0, 300, 77):
        got = llm.feed(other, PROMPT[first : first + 77])
    assert np.array_equal(got, whole)
    assert state.nbytes == llm.start().nbytes < 30_000, "the memory of a recurrence does not grow with the context"


def test_what_a_state_can_go_back_to(pair: Any) -> None:
    _, llm = pair
    state = llm.start()
    llm.feed(state, PROMPT[:9])
    kept = state.copy()
    want = llm.feed(state, PROMPT[9:14])
    with pytest.raises(InputError, match=r"recurrent memory, which cannot go back to 5 of 14 elements; it can be truncated to 0, to 9, "
                                         r"where the last call began, and no other length: keep a copy\(\)"):
        state.truncate(5)
    assert state.length == 14
    state.truncate(14)
    state.truncate(9)
    assert np.array_equal(llm.feed(state, PROMPT[9:14]), want)
    assert kept.length == 9
    assert np.array_equal(llm.feed(kept, PROMPT[9:14]), want)
    state.truncate(0)
    assert np.array_equal(llm.feed(state, PROMPT[:14]), want)
    with pytest.raises(InputError, match=r"it can be truncated to 0 and no other length"):
        state.truncate(3)
    with pytest.raises(InputError, match=r"can be truncated to 0\.\.14 elements, got 15"):
        state.truncate(15)


def test_a_call_that_fails_leaves_the_state(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, llm = pair
    state = llm.start()
    llm.feed(state, PROMPT[:7])
    call, *rest = llm._using

    def broken(*args: Any) -> None:
        call(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr(llm, "_using", (broken, *rest))
        with pytest.raises(KeyboardInterrupt):
            llm.feed(state, PROMPT[7:20])
    assert state.length == 7
    assert np.array_equal(llm.feed(state, PROMPT[7:20]), llm.feed(llm.start(), PROMPT[:20]))


def test_sequences_side_by_side(pair: Any) -> None:
    """As many as do not fill the lanes of a program, and one that ends before the others."""
    _, llm = pair
    prompts = [PROMPT[i : i + 2 + 3 * i] for i in range(3)]
    alone = ["".join(llm.generate(p, max_tokens=9)) for p in prompts]
    assert llm.generate_batch(prompts, max_tokens=9) == alone
    assert len(set(alone)) == 3
    hot = {"max_tokens": 9, "temperature": 0.9, "seed": 5, "repetition_penalty": 1.2}
    assert llm.generate_batch(prompts, **hot) == ["".join(llm.generate(p, **hot)) for p in prompts]


@pytest.mark.slow
def test_a_program_is_not_shared_with_other_numbers() -> None:
    """Programs are stored with small tensors as constants: a model that differs in these alone has one of its own."""
    model = make("mamba")
    for change in ("A_log", "conv1d.weight", "D"):
        before = ours(model)
        with torch.no_grad():
            next(p for name, p in model.named_parameters() if name.endswith(change)).mul_(1.7)
        after = ours(model)
        want = reference(model, PROMPT[:9])[-1]
        assert relative(after.feed(after.start(), PROMPT[:9]), want) < 2e-5 < relative(before.feed(before.start(), PROMPT[:9]), want)


@pytest.mark.parametrize("kind", ["mamba", "qwen3next", *(pytest.param(n, marks=pytest.mark.slow) for n in ("mamba2", "falcon_h1"))])
def test_folders(kind: str, tmp_path: Path) -> None:
    model = make_folder(tmp_path, kind)
    llm = tw.load_llm(tmp_path, cache_dtype="f32", context_length=64)
    ids = llm.encode("Hello, World")
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0, -1].numpy()
    assert relative(llm.feed(llm.start(), ids), want) < 2e-5
    state = llm.start()
    first = "".join(llm.chat([{"role": "user", "content": "Hi"}], max_tokens=5, state=state))
    assert first == "".join(llm.chat([{"role": "user", "content": "Hi"}], max_tokens=5))
    assert state.length > 5
