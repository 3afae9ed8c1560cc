"""Language models of transformers through the backend: caches in and out, and `generate` over a static cache."""
from __future__ import annotations

import pytest
import torch

from tilewright.dynamo.backend import watching

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow


def small() -> dict[str, int]:
    return {"bos_token_id": 1, "eos_token_id": 2, "vocab_size": 100}


def test_a_cache_goes_in_and_comes_out() -> None:
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, n_positions=64, **small())).eval()
    compiled, ids = torch.compile(model, backend="tilewright"), torch.randint(3, 100, (1, 5))
    with torch.no_grad(), watching() as found:
        mine, theirs = compiled(ids, use_cache=True), model(ids, use_cache=True)
        torch.testing.assert_close(mine.logits, theirs.logits, rtol=1e-4, atol=1e-5)
        token = torch.randint(3, 100, (1, 1))
        mine, theirs = (call(token, past_key_values=out.past_key_values) for call, out in ((compiled, mine), (model, theirs)))
        torch.testing.assert_close(mine.logits, theirs.logits, rtol=1e-4, atol=1e-5)
    assert [c.splits for c in found] == [0, 0]


def test_generate_over_a_static_cache() -> None:
    config = transformers.LlamaConfig(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, hidden_size=32,
                                      intermediate_size=64, max_position_embeddings=64, **small())
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.randint(3, 100, (1, 5))
    want = model.generate(ids, max_new_tokens=12, do_sample=False)
    model.forward = torch.compile(model.forward, backend="tilewright")
    with watching() as found:
        for _ in range(2):
            assert torch.equal(model.generate(ids, max_new_tokens=12, do_sample=False, cache_implementation="static"), want)
    assert [c.splits for c in found] == [0, 0]  # one graph for the prompt, one for all tokens after it
