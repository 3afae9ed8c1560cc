"""Several sequences in one call: the texts, and the bits, of each alone."""
from __future__ import annotations

import pytest

from tests.llm.families import make, ours

PROMPTS = [[3, 1, 4], [20], [7, 7, 7, 7, 7, 99, 100], [50, 60], [11, 12, 13]]


@pytest.mark.parametrize("name", ["llama", "mixtral", *(pytest.param(n, marks=pytest.mark.slow) for n in ("gemma3", "gpt2"))])
def test_a_batch_is_its_sequences_alone(name: str) -> None:
    llm = ours(make(name))
    for count in (2, 3, 5):
        for options in ({"max_tokens": 9}, {"max_tokens": 6, "temperature": 0.9, "top_k": 30, "repetition_penalty": 1.2, "seed": 5}):
            alone = ["".join(llm.generate(p, **options)) for p in PROMPTS[:count]]
            assert llm.generate_batch(PROMPTS[:count], **options) == alone
    assert sorted(llm._batches) == [2, 4, 8]


def test_a_batch_of_one_and_of_none() -> None:
    llm = ours(make("llama"))
    assert llm.generate_batch([]) == []
    assert llm.generate_batch([[5, 6]], max_tokens=4) == ["".join(llm.generate([5, 6], max_tokens=4))]
    assert not llm._batches
