"""Our ids are llama.cpp's ids: SmolLM2's own vocabulary, and small ones for each pre-tokenizer and for merging by score."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tests.fresh import fresh_random
from tests.gguf.files import smollm
from tests.tokenizer.vocabularies import byte_pair_file, score_file, unigram_file, varied
from tilewright.frontend.gguf import open_gguf
from tilewright.llm.tokenizer import Tokenizer
from tilewright.llm.tokenizer_gguf import tokenizer_from_gguf

llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python is the oracle; it is not installed")


def both(path: Path) -> tuple[Tokenizer, Any]:
    return tokenizer_from_gguf(open_gguf(path)), llama_cpp.Llama(str(path), vocab_only=True, verbose=False)


def theirs(llama: Any, text: str, *, special: bool = False) -> list[int]:
    ids: list[int] = llama.tokenize(text.encode(), add_bos=False, special=special)
    return ids


def assert_agreement(ours: Tokenizer, llama: Any, text: str) -> None:
    for special in (False, True):
        want = theirs(llama, text, special=special)
        got = ours.encode(text, special=special)
        if got != want:
            at = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), min(len(got), len(want)))
            pieces = [ours.tokens[i] for i in got[max(0, at - 2) : at + 4]], [ours.tokens[i] for i in want[max(0, at - 2) : at + 4]]
            raise AssertionError(f"special={special}, token {at}: ours {pieces[0]}, llama.cpp {pieces[1]}")


@pytest.fixture(scope="module")
def smol() -> tuple[Tokenizer, Any]:
    return both(smollm())


def library_docs() -> str:
    """English of many kinds that every Python has."""
    import argparse
    import collections
    import decimal
    import inspect
    import logging
    import tarfile

    parts = [inspect.getdoc(v) or "" for m in (argparse, collections, decimal, logging, tarfile) for v in vars(m).values()]
    return "\n\n".join(parts)


def test_smollm_on_english(smol: tuple[Tokenizer, Any]) -> None:
    text = library_docs()
    assert len(text) > 20_000
    assert_agreement(*smol, text)
    assert smol[0].decode(smol[0].encode(text)) == text


def test_smollm_on_odd_text(smol: tuple[Tokenizer, Any]) -> None:
    rng = fresh_random()
    for _ in range(60):
        assert_agreement(*smol, varied(rng))
    assert_agreement(*smol, "<|im_start|>user\n<|im_end|><|im_end|>\n <|endoftext|>x<repo_name>")
    assert smol[0].encode("") == []


def test_smollm_special_tokens(smol: tuple[Tokenizer, Any]) -> None:
    ours, llama = smol
    vocab = llama._model.vocab
    assert (ours.bos, ours.eos) == (llama.token_bos(), llama.token_eos())
    assert ours.eot is not None and ours.tokens[ours.eot] == "<|im_end|>"  # llama.cpp takes whichever its hash table shows first
    assert ours.vocabulary_size == llama.n_vocab()
    assert ours.stop_ids == {i for i in range(llama.n_vocab()) if llama_cpp.llama_vocab_is_eog(vocab, i)}


def test_smollm_pieces(smol: tuple[Tokenizer, Any]) -> None:
    ours, llama = smol
    vocab, buffer = llama._model.vocab, ctypes.create_string_buffer(256)
    for special in (False, True):
        for i in range(0, ours.vocabulary_size, 7 if special else 5):
            size = llama_cpp.llama_token_to_piece(vocab, i, buffer, 256, 0, special)
            assert ours.piece(i, skip_special=not special) == buffer.raw[:size], i


# Where llama.cpp rewrites an expression for its own engine (tekken, gpt-4o), only the original is tested, in test_tokenizer.py.
PRE = ["default", "gpt-2", "smollm", "llama-bpe", "qwen2", "qwen35", "falcon", "deepseek-coder", "deepseek-v3", "glm4", "dbrx"]


@pytest.mark.parametrize("pre", PRE)
def test_pre_tokenizers(pre: str, tmp_path: Path) -> None:
    ours, llama = both(byte_pair_file(tmp_path / "m.gguf", pre))
    rng = fresh_random()
    for _ in range(40):
        text = varied(rng)
        if rng.random() < 0.5:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["<|im_end|>", "<|im_end|>x", "[user]", " [user] "]) + text[at:]
        assert_agreement(ours, llama, text)


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize("across", [True, False])
def test_merging_by_score(space: bool, across: bool, tmp_path: Path) -> None:
    rng = fresh_random()
    ours, llama = both(score_file(tmp_path / "m.gguf", rng, space=space, across=across))
    assert (ours.bos, ours.eos, ours.adds_space) == (1, 2, space)
    for _ in range(60):
        text = varied(rng)
        if rng.random() < 0.5:
            at = rng.randrange(len(text))
            text = text[:at] + rng.choice(["</s>", "<s>", "[user]", " [user] "]) + text[at:]
        assert_agreement(ours, llama, text)
    plain = varied(rng).replace("▁", " ")
    assert ours.decode(ours.encode(plain)) == plain


@pytest.mark.parametrize("space", [True, False])
@pytest.mark.parametrize("tidy", [True, False])
def test_unigram(space: bool, tidy: bool, tmp_path: Path) -> None:
    rng = fresh_random()
    ours, llama = both(unigram_file(tmp_path / "m.gguf", rng, space=space, tidy=tidy))
    for _ in range(60):
        assert_agreement(ours, llama, varied(rng))
