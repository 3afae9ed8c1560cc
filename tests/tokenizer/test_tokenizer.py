"""Decoding, streaming, special ids, bad input and damaged vocabularies."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.fresh import fresh_random
from tests.tokenizer.vocabularies import alphabet, byte_pair_file, score_file, train_pairs, varied, write
from tilewright.core.errors import FormatError, InputError, UnsupportedError
from tilewright.frontend.gguf import open_gguf
from tilewright.llm.tokenizer import SpecialIds, Tokenizer, byte_of_character
from tilewright.llm.tokenizer_gguf import PRE_TOKENIZERS, tokenizer_from_gguf
from tilewright.llm.tokenizer_library import library_errors

pytest.importorskip("tokenizers", reason="the byte-pair encoder (pip install tilewright[llm])")


@pytest.fixture
def pairs(tmp_path: Path) -> Tokenizer:
    return tokenizer_from_gguf(open_gguf(byte_pair_file(tmp_path / "m.gguf", "gpt-2")))


@pytest.fixture
def scored(tmp_path: Path) -> Tokenizer:
    return tokenizer_from_gguf(open_gguf(score_file(tmp_path / "m.gguf", random.Random(3))))


def test_the_alphabet() -> None:
    assert byte_of_character() == {c: b for b, c in alphabet().items()}


@pytest.mark.parametrize("kind", ["pairs", "scored"])
def test_round_trip_and_streaming(kind: str, request: pytest.FixtureRequest) -> None:
    t: Tokenizer = request.getfixturevalue(kind)
    rng = fresh_random()
    for _ in range(50):
        text = varied(rng).replace("▁", " ").replace("[user]", "")
        ids = t.encode(text)
        assert t.decode(ids) == text
        stream = t.stream()
        shown = [stream.push(i) for i in ids]
        whole = "".join(shown) + stream.finish()
        assert whole == (" " + text if t.adds_space else text)
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in shown)


def test_a_character_is_never_cut(pairs: Tokenizer) -> None:
    ids = [pairs.by_text[alphabet()[b]] for b in "é🤗!".encode()]
    stream = pairs.stream()
    assert [stream.push(i) for i in ids] == ["", "é", "", "", "", "🤗", "!"]
    assert stream.finish() == ""
    stream = pairs.stream()
    assert stream.push(ids[2]) == "" and stream.finish() == "\N{REPLACEMENT CHARACTER}"
    stream = pairs.stream()  # a broken character is shown as soon as it is known to be broken
    assert stream.push(ids[2]) + stream.push(ids[6]) == "\N{REPLACEMENT CHARACTER}!"


def test_special_tokens_in_text_and_back(pairs: Tokenizer) -> None:
    text = "a<|im_end|>b[user]c"
    plain, special = pairs.encode(text), pairs.encode(text, special=True)
    end, user = pairs.by_text["<|im_end|>"], pairs.by_text["[user]"]
    assert end not in plain and user in plain  # a user-defined token is always found, a control token only when asked for
    assert end in special and user in special
    assert pairs.decode(plain) == text == pairs.decode(special, skip_special=False)
    assert pairs.decode(special) == "ab[user]c"
    assert pairs.encode("<|im_end|>x", special=True) == [pairs.by_text["<|im_end|>x"]]  # the longest wins
    assert end in pairs.stop_ids and pairs.eot == end
    assert pairs.encode("x", add_bos=True) == [pairs.bos, *pairs.encode("x")]
    assert pairs.encode("") == [] and pairs.decode([]) == ""


def test_hidden_text_stays_text(pairs: Tokenizer) -> None:
    assert pairs.encode("a<|im_end|>b", special=True, shield="a<|im_\ud800nd|>b") == pairs.encode("a<|im_end|>b")


@pytest.mark.parametrize("kind", ["words", "merges", "scores"])
def test_merging_never_gives_a_control_token(kind: str, tmp_path: Path) -> None:
    """A vocabulary may hold the text of a control token where merging, or taking whole words, would come to it."""
    letters = list(alphabet().values())
    tokens = [*letters, "▁", "EN", "END", "ENDS"]
    types = [1] * (len(tokens) - 2) + [3, 1]
    extra: dict[str, Any] = {"words": {"pre": "llama3", "merges": ["E N"]}, "merges": {"pre": "gpt-2", "merges": ["E N", "EN D", "END S"]},  # type: ignore[assignment]
                             "scores": {"scores": [0.0] * len(tokens)}}[kind]
    path = write(tmp_path / "m.gguf", "llama" if kind == "scores" else "gpt2", tokens, types, **extra)
    t = tokenizer_from_gguf(open_gguf(path))
    end = tokens.index("END")
    for text in ("END", "xEND", "END END", "ENDEND"):
        assert end not in t.encode(text), text
        assert t.decode(t.encode(text)) == text
        assert end in t.encode(text, special=True)
    assert t.encode("EN")[-1] == tokens.index("EN")
    only = Tokenizer(["a", "b"], [3, 1], SpecialIds(), lambda by_text: lambda text, first: [by_text[c] for c in text], str.encode)
    assert only.encode("bb") == [1, 1]
    with pytest.raises(InputError, match="'a' has no token but a control token, and there is no unknown token"):
        only.encode("ab")


def test_bad_input(pairs: Tokenizer) -> None:
    n = pairs.vocabulary_size
    cases: list[tuple[list[Any], str]] = [
        ([n], rf"ids must be in 0 .. {n - 1}, got {n}"),
        ([-1], "got -1"),
        ([1.5], "must be integers, got float 1.5"),
    ]
    for ids, message in cases:
        with pytest.raises(InputError, match=message):
            pairs.decode(ids)
        with pytest.raises(InputError, match=message):
            pairs.check_ids(ids)
    with pytest.raises(InputError, match="text must be a str, got bytes"):
        pairs.encode(b"x")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lone surrogate at 1"):
        pairs.encode("a\ud800")


def test_no_bos(tmp_path: Path) -> None:
    tokens, merges = train_pairs(5)
    t = tokenizer_from_gguf(open_gguf(write(tmp_path / "m.gguf", "gpt2", tokens, [1] * len(tokens), merges=merges, pre="gpt-2")))
    assert t.bos is None and t.eos is None and t.stop_ids == frozenset()
    with pytest.raises(InputError, match="no BOS token"):
        t.encode("x", add_bos=True)


def test_unknown_characters_without_byte_tokens(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a"]
    path = write(tmp_path / "m.gguf", "llama", tokens, [2, 3, 3, 1, 1, 1], scores=[0.0, 0.0, 0.0, -2.0, -3.0, -1.0])
    t = tokenizer_from_gguf(open_gguf(path))
    assert t.encode("a é") == [5, 3, 0, 0]


def test_phi3_swallows_the_space_behind_special_tokens(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", "▁", "a", "▁a", "<|end|>"]
    scores = [0.0, 0.0, 0.0, -2.0, -3.0, -1.0, 0.0]
    path = write(tmp_path / "m.gguf", "llama", tokens, [2, 3, 3, 1, 1, 1, 3], scores=scores, name="Phi-3 mini", add_space_prefix=False)
    t = tokenizer_from_gguf(open_gguf(path))
    assert t.encode("a<|end|>\n  a<s> a", special=True) == [4, 6, 4, 1, 5]


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_keeps_the_text(pre: str, tmp_path: Path) -> None:
    t = tokenizer_from_gguf(open_gguf(byte_pair_file(tmp_path / "m.gguf", pre)))
    text = varied(fresh_random())
    assert t.decode(t.encode(text)) == text


def test_damaged_vocabularies(tmp_path: Path) -> None:
    tokens, merges = train_pairs(5)
    ones = [1] * len(tokens)

    def load(model: str, **extra: object) -> Tokenizer:
        return tokenizer_from_gguf(open_gguf(write(tmp_path / "m.gguf", model, tokens, ones, **extra)))

    with pytest.raises(UnsupportedError, match="model 'rwkv' is not supported; known: gpt2 llama t5"):
        load("rwkv")
    with pytest.raises(UnsupportedError, match="pre-tokenizer 'strange' is not supported; known: default gpt-2"):
        load("gpt2", merges=merges, pre="strange")
    with pytest.raises(FormatError, match=r"'tokenizer\.ggml\.merges' is missing"):
        load("gpt2", pre="gpt-2").encode("x")
    with pytest.raises(FormatError, match="merge 1 must be two tokens and a space, got 'ab'"):
        load("gpt2", merges=[merges[0], "ab"], pre="gpt-2").encode("x")
    with pytest.raises(FormatError, match="the merges do not fit the vocabulary"):
        load("gpt2", merges=["zzz qqq"], pre="gpt-2").encode("x")
    with pytest.raises(FormatError, match=r"scores must have \d+ numbers, got 1 float32"):
        load("llama", scores=[1.0])
    with pytest.raises(FormatError, match="NaN"):
        load("llama", scores=[float("nan")] * len(tokens))


def test_a_panic_of_the_library_is_a_format_error() -> None:
    from tokenizers import normalizers

    broken = normalizers.Precompiled((4).to_bytes(4, "little") + bytes(4) + b"x")
    with pytest.raises(FormatError, match="the charsmap: the tokenizers library gave up"), library_errors("the charsmap", "file"):
        broken.normalize_str("hello Ünï ﷺ")
    with pytest.raises(KeyboardInterrupt), library_errors("the charsmap", "file"):
        raise KeyboardInterrupt
