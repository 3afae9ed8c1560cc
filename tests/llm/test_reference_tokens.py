"""The tools that carry a model's words to another machine: a cut file is the model's first layers, and a wrong token is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.llm.cut_model import cut
from tests.llm.reference_tokens import judge
from tilewright.llm.loading import open_model
from tilewright.llm.tiny import write_tiny_model


def test_a_cut_file_is_the_first_layers(tmp_path: Path) -> None:
    whole, part = write_tiny_model(tmp_path / "whole.gguf", format="Q4_0", layers=3, context=32), tmp_path / "part.gguf"
    cut(whole, part, 2)
    config, weights, tokenizer = open_model(whole)
    short, fewer, same = open_model(part)
    assert short == replace(config, layers=2) and same.encode("abc ß") == tokenizer.encode("abc ß")
    assert set(fewer.tensors) == {name for name in weights.tensors if not name.startswith("blk.2.")}
    for name, tensor in fewer.tensors.items():
        np.testing.assert_array_equal(tensor.data, weights.tensors[name].data)
    with pytest.raises(AssertionError, match="4 layers of 3"):
        cut(whole, part, 4)


def test_another_token_is_wrong_only_where_the_margin_says_so() -> None:
    want = np.array([[0, 1, 5], [0, 1, 1.1]], np.float32)
    got = want + np.array([[0, 0.2, -0.2], [0, 0.2, -0.2]], np.float32)
    margins = np.array([4, 0.1], np.float32)
    close = judge(got, want, margins, [2, 2])
    assert close.wrong == [] and close.equal == 1  # the second step chose the other, by less than the difference
    far = judge(got[:, ::-1] + 0, want[:, ::-1] + 0, margins, [2, 0])
    assert far.wrong == [0]
