"""Small vocabularies as GGUF files: byte-pair ones trained on the spot, and SentencePiece-like ones with random scores."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

TEXT = (
    "The quick brown fox jumps over the lazy dog. It's 12345 o'clock; they'll've said \"WE'RE fine\"!\n\n  Indented\tcode: x_1 = y**2 // 3 "
    "Ünïcödé straße naïve café — “quotes” … 日本語のテキスト 中文 한국어 Привет мир ελληνικά עברית العربية 🤗👩‍👩‍👧 é\r\n   trailing   "
)


def varied(rng: random.Random, length: int = 400) -> str:
    """Pieces of TEXT, ASCII noise and odd characters, shuffled."""
    out = ""
    while len(out) < length:
        kind = rng.randrange(5)
        at = rng.randrange(len(TEXT))
        if kind < 3:
            out += TEXT[at : at + rng.randrange(1, 40)]
        elif kind == 3:
            out += "".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 8)))
        else:
            out += rng.choice([" ", "  ", "\n", "\n\n ", "\t", "'S", "'ll", "0", "007", "é", "ß", "▁", "…", "🤗"])
    return out


def alphabet() -> dict[int, str]:
    """GPT-2's bytes as characters, from its published definition."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(extra)}}


def train_pairs(count: int) -> tuple[list[str], list[str]]:
    """(tokens, merges) of a byte-pair vocabulary learned from TEXT."""
    table = alphabet()
    words = [[table[b] for b in (" " + w).encode()] for w in TEXT.split()] + [[table[b] for b in w.encode()] for w in TEXT.split()]
    tokens, merges = list(table.values()), []
    for _ in range(count):
        pairs = Counter(p for w in words for p in zip(w, w[1:], strict=False))
        if not pairs:
            break
        (a, b), _n = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))
        merges.append(f"{a} {b}")
        if a + b not in tokens:
            tokens.append(a + b)
        for w in words:
            i = 0
            while i < len(w) - 1:
                if (w[i], w[i + 1]) == (a, b):
                    w[i : i + 2] = [a + b]
                i += 1
    return tokens, merges


def write(path: Path, model: str, tokens: list[str], types: list[int], **extra: Any) -> Path:
    """A file that llama.cpp, too, can open for its vocabulary."""
    gguf = pytest.importorskip("gguf", reason="writes the files (pip install tilewright[dev])")
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(extra.get("name", "small"))
    for key, value in {"context_length": 64, "embedding_length": 32, "block_count": 1, "feed_forward_length": 32, "head_count": 1}.items():
        getattr(writer, f"add_{key}")(value)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    if "pre" in extra:
        writer.add_tokenizer_pre(extra["pre"])
    if "merges" in extra:
        writer.add_token_merges(extra["merges"])
    if "scores" in extra:
        writer.add_token_scores(extra["scores"])
    if "template" in extra:
        writer.add_chat_template(extra["template"])
    for key in ("bos", "eos", "unk", "eot"):
        if key in extra:
            getattr(writer, f"add_{key}_token_id")(extra[key])
    for key in ("add_bos_token", "add_space_prefix", "remove_extra_whitespaces"):
        if key in extra:
            getattr(writer, f"add_{key}")(extra[key])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_pair_file(path: Path, pre: str) -> Path:
    tokens, merges = train_pairs(300)
    special = ["<|start|x>", "<|im_end|>", "<|im_end|>x", "[user]"]
    types = [1] * len(tokens) + [3, 3, 3, 4]
    n = len(tokens)
    return write(path, "gpt2", tokens + special, types, pre=pre, merges=merges, bos=n, eos=n + 1)


def score_file(path: Path, rng: random.Random, *, space: bool = True, across: bool = False) -> Path:
    """Pieces of TEXT with random scores (few distinct ones, so that ties occur), and the 256 byte tokens."""
    text = TEXT.replace(" ", "▁")
    pieces: dict[str, None] = dict.fromkeys(sorted(set(text) - set("日本🤗")))
    while len(pieces) < 700:
        at = rng.randrange(len(text))
        piece = text[at : at + rng.randrange(2, 7)]
        if across or "▁" not in piece.lstrip("▁"):
            pieces[piece] = None
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces, "[user]"]
    types = [2, 3, 3, *[6] * 256, *[1] * len(pieces), 4]
    scores = [0.0] * 259 + [-float(rng.randrange(200)) for _ in pieces] + [0.0]
    return write(path, "llama", tokens, types, scores=scores, bos=1, eos=2, unk=0, add_space_prefix=space)


def unigram_file(path: Path, rng: random.Random, *, space: bool, tidy: bool) -> Path:
    """Pieces of TEXT with random log probabilities; some characters are in none of them."""
    text = TEXT.replace(" ", "▁")
    pieces: dict[str, None] = dict.fromkeys(sorted(set(text) - set("日本🤗")))
    while len(pieces) < 500:
        at = rng.randrange(len(text))
        pieces[text[at : at + rng.randrange(2, 7)]] = None
    scores = [0.0] * 3 + [-1 - 10 * rng.random() for _ in pieces]
    tokens, types = ["<pad>", "</s>", "<unk>", *pieces], [3, 3, 2, *[1] * len(pieces)]
    return write(path, "t5", tokens, types, scores=scores, eos=1, unk=2, add_space_prefix=space, remove_extra_whitespaces=tidy)
