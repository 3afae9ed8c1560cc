"""Packed models, whose activations are rounded to values: the same bits however cut, on any number of threads, alone or in a batch."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.llm.tiny import write_tiny_model

IDS = [int(i) for i in np.random.default_rng(3).integers(0, 250, 40)]


@pytest.mark.parametrize(("name", "cache"), [("Q4_1", "f16"), ("Q8_0", "q8_0"), ("Q5_0", "f32")])
def test_bits_do_not_depend_on_the_company(name: str, cache: str, tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "m.gguf", format=name)
    llm, one = (tw.load_llm(path, cache_dtype=cache, threads=n) for n in (None, 1))
    whole = llm.feed(llm.start(), IDS)
    assert np.array_equal(one.feed(one.start(), IDS), whole)
    for cuts in ([1] * 40, [39, 1], [6, 7, 13, 14], [1, 39]):
        state, at = llm.start(), 0
        for n in cuts:
            last = llm.feed(state, IDS[at : at + n])
            at += n
        assert np.array_equal(last, whole), cuts
    prompts = [IDS[:3], IDS[5:20], IDS[7:8]]
    assert llm.generate_batch(prompts, max_tokens=7) == ["".join(llm.generate(p, max_tokens=7)) for p in prompts]


OFTEN = ("Q4_1", "Q8_0", "BF16")


@pytest.mark.parametrize("name", [*OFTEN, *(pytest.param(n, marks=pytest.mark.slow) for n in ("Q4_0", "Q5_0", "Q5_1", "F16"))])
def test_a_packed_model_is_close_to_its_numbers(name: str, tmp_path: Path) -> None:
    """The same random weights in F32: what remains is the rounding of weights and activations."""
    packed, plain = (tw.load_llm(write_tiny_model(tmp_path / f"{n}.gguf", format=n, layers=1), cache_dtype="f32") for n in (name, "F32"))
    got, want = (llm.feed(llm.start(), IDS) for llm in (packed, plain))
    cosine = float(got.astype(np.float64) @ want / np.linalg.norm(got) / np.linalg.norm(want))
    limit = {"Q4_0": 0.2, "Q4_1": 0.2, "Q5_0": 0.08, "Q5_1": 0.08}.get(name, 2e-3)
    assert 1e-8 < 1 - cosine < limit
