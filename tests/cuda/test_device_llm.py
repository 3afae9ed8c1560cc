"""A whole model on a GPU against what llama.cpp said to the same file: skipped without a GPU, or without the file.

`tests/llm/cut_model.py` and `tests/llm/reference_tokens.py` make `build/llm/cut.gguf` and what belongs to it, where llama.cpp is.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tests.llm.reference_tokens import CONTEXT, compare
from tilewright.runtime.cuda import driver as cuda_driver

MODEL = Path(os.environ.get("TILEWRIGHT_CUT_MODEL", Path(__file__).parents[2] / "build" / "llm" / "cut.gguf"))
WHY = cuda_driver.available()
FAR = 0.06  # how far logits may be: the CPU target is at 0.008 to 0.013 on average and at most at 0.025


@pytest.mark.skipif(bool(WHY), reason=f"no GPU: {WHY}")
@pytest.mark.skipif(not MODEL.is_file(), reason="no build/llm/cut.gguf: see tests/llm/reference_tokens.py")
@pytest.mark.parametrize("cache", ["f16", "f32"])
def test_tokens_and_logits_are_those_of_llama_cpp(cache: str) -> None:
    llm, recorded = tw.load_llm(MODEL, context_length=CONTEXT, target="cuda", cache_dtype=cache), np.load(MODEL.with_suffix(".npz"))
    for found in compare(llm, recorded):
        assert not found.wrong and found.errors.max() <= FAR, found
    drawn = ["".join(llm.generate("Once upon a time", max_tokens=16, temperature=0.8, top_k=40, top_p=0.9, seed=3)) for _ in range(2)]
    assert drawn[0] == drawn[1]
