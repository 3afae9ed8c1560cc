"""One program for every length: 300 prompts of random length compile nothing and leave the process as large as it was."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import llvmlite.binding
import numpy as np
import pytest

import tilewright as tw
from tilewright.llm.tiny import write_tiny_model


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_random_lengths_neither_compile_nor_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = tw.load_llm(write_tiny_model(tmp_path / "m.gguf", context=600), context_length=600)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something was compiled")

    monkeypatch.setattr(llvmlite.binding, "parse_assembly", never)
    monkeypatch.setattr(llm, "_compile_for", never)
    rng = np.random.default_rng()
    after_20 = 0
    for i in range(300):
        ids = rng.integers(0, llm.vocab, int(rng.integers(1, 601)))
        assert np.isfinite(llm.feed(llm.start(), ids)).all()
        if i == 19:
            after_20 = resident()
    assert resident() - after_20 <= 16 << 20
