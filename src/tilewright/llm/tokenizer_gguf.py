"""The tokenizer a GGUF file describes: byte-level BPE (`gpt2`), SentencePiece by score (`llama`) or unigram (`t5`)."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, overload

import numpy as np

from ..core.errors import FormatError, UnsupportedError
from ..core.extras import need
from ..frontend.gguf import GGUFFile, Metadata
from ..frontend.gguf.metadata import StringArray
from .tokenizer import NORMAL, SpecialIds, Tokenizer, byte_level, sentence_piece
from .tokenizer_library import library_encoder, library_errors

# SentencePiece-style merging by score: of all neighbours that form a token, the pair whose token has the highest score merges first.
# The `tokenizers` library ranks pairs, not tokens, and would need its list of pairs rebuilt from 32 000 to 256 000 tokens at every start
# (and would break ties differently); merging words here needs no preparation, and words repeat, so they are remembered.
SPACE = "▁"
REMEMBERED = 1 << 16
LONGEST = 64  # longer words are not remembered


def splits_at_spaces(tokens: Sequence[str]) -> bool:
    """Whether no token continues over the start of a word, so that words can be merged one by one."""
    joined = "\0".join(tokens)
    return joined.count("\0") == len(tokens) - 1 and re.search(f"[^{SPACE}\0]{SPACE}", joined) is None


class ScoreMerger:
    """Encodes text in which spaces are already `▁`."""

    def __init__(self, tokens: Sequence[str], ids: Mapping[str, int], scores: Sequence[float], unknown: int | None) -> None:
        self._ids = ids
        self._scores = scores
        self._unknown = unknown
        self._word = re.compile(f"{SPACE}*[^{SPACE}]+|{SPACE}+") if splits_at_spaces(tokens) else None
        self._remembered: Callable[[str], tuple[int, ...]] = lru_cache(REMEMBERED)(self._merge)

    def encode(self, text: str) -> list[int]:
        words = self._word.findall(text) if self._word else [text]
        out: list[int] = []
        for word in words:
            out += self._remembered(word) if len(word) <= LONGEST else self._merge(word)
        return out

    def _merge(self, word: str) -> tuple[int, ...]:
        ids, scores = self._ids, self._scores
        pieces = list(word)
        count = len(pieces)
        left, right = list(range(-1, count - 1)), [*range(1, count), -1]
        queue: list[tuple[float, int, int, int]] = []

        def consider(a: int, b: int) -> None:
            if a >= 0 and b >= 0:
                merged = pieces[a] + pieces[b]
                token = ids.get(merged)
                if token is not None:
                    heapq.heappush(queue, (-scores[token], a, b, len(merged)))

        for i in range(count - 1):
            consider(i, i + 1)
        while queue:
            _, a, b, size = heapq.heappop(queue)
            if not pieces[a] or not pieces[b] or len(pieces[a]) + len(pieces[b]) != size:
                continue  # one of the two has merged with another meanwhile
            pieces[a] += pieces[b]
            pieces[b] = ""
            right[a] = right[b]
            if right[b] >= 0:
                left[right[b]] = a
            consider(left[a], a)
            consider(a, right[a])
        return tuple(token for piece in pieces if piece for token in self._tokens(piece))

    def _tokens(self, piece: str) -> list[int]:
        token = self._ids.get(piece)
        if token is not None:
            return [token]
        out = []
        for byte in piece.encode():
            found = self._ids.get(f"<0x{byte:02X}>", self._unknown)
            if found is None:
                raise FormatError(f"tokenizer: no token for {piece!r:.60}: the vocabulary has neither <0x{byte:02X}> nor an unknown token")
            out.append(found)
        return out


# How byte-pair tokenizers cut text into words before merging, by the name in `tokenizer.ggml.pre`.
# Each expression is applied to the pieces that the one before left; matches and the gaps between them become pieces of their own.
CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{TAIL}"
QWEN2 = rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{TAIL}"
QWEN35 = (
    rf"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LEAD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{LEAD}{UPPER}*{LOWER}+|{LEAD}{UPPER}+{LOWER}*|\p{{N}}|{CASED_TAIL}"
GPT4O = rf"{LEAD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{LEAD}{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}|{CASED_TAIL}"
DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class PreTokenizer:
    """`whole_words`: a word that is a token is taken as it is, whatever the merges say. `adds_bos`: unless the file says otherwise."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False


DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"))
_FAMILIES: list[tuple[str, PreTokenizer]] = [
    ("default", DEFAULT),
    ("gpt-2 gpt2 phi-2 jina-es jina-de gigachat a.x-4.0 mellum mpt olmo jais trillion granite-docling exaone4", PreTokenizer((GPT2,))),
    ("smollm starcoder refact command-r codeshell exaone minerva-7b mellum2", PreTokenizer((r"\p{N}", GPT2))),
    ("llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2", PreTokenizer((LLAMA3,), whole_words=True, adds_bos=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((LLAMA3,))),
    ("glm4 glm5", PreTokenizer((LLAMA3,), whole_words=True)),
    ("qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 hunyuan solar-open grok-2", PreTokenizer((QWEN2,))),
    ("qwen35", PreTokenizer((QWEN35,))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"))),
    ("tekken", PreTokenizer((TEKKEN,), whole_words=True, adds_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", PreTokenizer((GPT4O,))),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"))),
    ("deepseek-v3 hunyuan-dense joyai-llm", PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3))),
]
PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: pre for names, pre in _FAMILIES for name in names.split()}


def pre_tokenizer(name: str) -> PreTokenizer:
    found = PRE_TOKENIZERS.get(name)
    if found is None:
        raise UnsupportedError(f"tokenizer: pre-tokenizer {name!r:.60} is not supported; known: {' '.join(PRE_TOKENIZERS)}")
    return found


KEY = "tokenizer.ggml."
Encoder = Callable[[str, bool], list[int]]
PHI3_KEEPS_SPACE = {"<unk>", "<s>", "<|endoftext|>"}


class Vocabulary(Sequence[str]):
    """The texts of tokens, read from the file when they are wanted: as Python strings they would take as much memory as a few layers."""

    def __init__(self, texts: StringArray) -> None:
        self._texts = texts

    def __len__(self) -> int:
        return len(self._texts)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._texts[index] or _empty(index % len(self))

    def __iter__(self) -> Iterator[str]:
        return (text or _empty(i) for i, text in enumerate(self._texts.tolist()))


def _empty(index: int) -> str:
    return f"[EMPTY_{index}]"


def tokenizer_from_gguf(file: GGUFFile) -> Tokenizer:
    """Read the vocabulary and its rules. The encoder itself is made at the first `encode`."""
    m = file.metadata
    model = m.text(KEY + "model")
    tokens = Vocabulary(m.strings(KEY + "tokens"))
    if not len(tokens):
        raise FormatError(f"tokenizer: the vocabulary is empty ({m.source})")
    kinds = _per_token(m, "token_type", len(tokens), "iu")
    common: dict[str, Any] = {
        "tokens": tokens,
        "kinds": kinds if kinds is not None else [NORMAL] * len(tokens),
        "chat_template": m.text("tokenizer.chat_template", "") or None,
        "eats_space": _eats_space(m, tokens),
        "source": m.source,
    }
    if model == "gpt2":
        pre = pre_tokenizer(m.text(KEY + "pre", "default"))
        return Tokenizer(
            **common,
            ids=_special_ids(m, len(tokens), SpecialIds()),
            make_encoder=lambda by_text: _byte_pairs(by_text, m, pre),
            to_bytes=byte_level,
            adds_bos=m.flag(KEY + "add_bos_token", pre.adds_bos),
        )
    scores = _per_token(m, "scores", len(tokens), "fiu")
    weights: Sequence[float] = scores if scores is not None else [0.0] * len(tokens)
    space = m.flag(KEY + "add_space_prefix", model == "llama")
    if model == "llama":
        ids = _special_ids(m, len(tokens), SpecialIds(bos=1, eos=2, unknown=0))
        return Tokenizer(
            **common,
            ids=ids,
            make_encoder=lambda by_text: _score_merges(tokens, by_text, weights, ids, space=space),
            to_bytes=sentence_piece,
            adds_bos=m.flag(KEY + "add_bos_token", True),
            adds_space=space,
        )
    if model == "t5":
        ids = _special_ids(m, len(tokens), SpecialIds(eos=1, unknown=2, padding=0))
        return Tokenizer(
            **common,
            ids=ids,
            make_encoder=lambda _: _unigram(tokens, weights, m, ids, space=space),
            to_bytes=sentence_piece,
            adds_bos=m.flag(KEY + "add_bos_token", False),
            adds_space=space or m.flag(KEY + "remove_extra_whitespaces", False),
        )
    raise UnsupportedError(f"tokenizer: model {model!r:.60} is not supported; known: gpt2 llama t5 ({m.source})")


def _per_token(m: Metadata, name: str, count: int, kinds: str) -> list[Any] | None:
    """An array with one number per token, as a list; None when the file has none."""
    if KEY + name not in m:
        return None
    values = m.numbers(KEY + name)
    if values.dtype.kind not in kinds or len(values) < count:
        raise FormatError(f"tokenizer: {KEY + name} must have {count} numbers, got {len(values)} {values.dtype.name} ({m.source})")
    if not np.isfinite(values).all():
        raise FormatError(f"tokenizer: {KEY + name} has a NaN or an infinity ({m.source})")
    found: list[Any] = values[:count].tolist()
    return found


def _special_ids(m: Metadata, count: int, default: SpecialIds) -> SpecialIds:
    def read(name: str, otherwise: int | None) -> int | None:
        value = m.integer(f"{KEY}{name}_token_id", -1 if otherwise is None else otherwise)
        return value if 0 <= value < count else None

    end_of_message = read("eom", None)
    return SpecialIds(
        bos=read("bos", default.bos),
        eos=read("eos", default.eos),
        eot=read("eot", default.eot),
        unknown=read("unknown", default.unknown),
        padding=read("padding", default.padding),
        others=() if end_of_message is None else (end_of_message,),
    )


def _eats_space(m: Metadata, tokens: Sequence[str]) -> frozenset[str]:
    """Phi-3's special tokens swallow the space behind them; nothing in the file but the model's name says so."""
    name = m.text("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    return frozenset(t for t in tokens if t.startswith("<") and t.endswith(">")) - PHI3_KEEPS_SPACE


def _byte_pairs(by_text: Mapping[str, int], m: Metadata, pre: PreTokenizer) -> Encoder:
    need("tokenizers", "tokenizer")
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    merges: list[tuple[str, str]] = []
    for i, line in enumerate(m.strings(KEY + "merges").tolist()):
        left, found, right = line.partition(" ")
        if not (left and found and right):
            raise FormatError(f"tokenizer: merge {i} must be two tokens and a space, got {line!r:.60} ({m.source})")
        merges.append((left, right))
    with library_errors("the merges do not fit the vocabulary", m.source):
        fast = Tokenizer(models.BPE(vocab=dict(by_text), merges=merges, ignore_merges=pre.whole_words))
    cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in pre.patterns]
    fast.pre_tokenizer = pre_tokenizers.Sequence([*cuts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return library_encoder(fast, m.source)


def _score_merges(tokens: Sequence[str], by_text: Mapping[str, int], scores: Sequence[float], ids: SpecialIds, *, space: bool) -> Encoder:
    merger = ScoreMerger(tokens, by_text, scores, ids.unknown)

    def encode(text: str, first: bool) -> list[int]:
        return merger.encode((" " + text if space and first else text).replace(" ", SPACE))

    return encode


def _unigram(tokens: Sequence[str], scores: Sequence[float], m: Metadata, ids: SpecialIds, *, space: bool) -> Encoder:
    need("tokenizers", "tokenizer")
    from tokenizers import Tokenizer, models, normalizers

    entries = [(t, float(s)) for t, s in zip(tokens, scores, strict=True)]
    charsmap = m.numbers(KEY + "precompiled_charsmap").tobytes() if KEY + "precompiled_charsmap" in m else b""
    with library_errors("the vocabulary is damaged", m.source):
        inner = library_encoder(Tokenizer(models.Unigram(entries, ids.unknown, "<0x00>" in tokens)), m.source)
        normalise = normalizers.Precompiled(charsmap).normalize_str if charsmap else str
    tidy = m.flag(KEY + "remove_extra_whitespaces", False)

    def encode(text: str, first: bool) -> list[int]:
        with library_errors(f"{KEY}precompiled_charsmap is damaged", m.source):
            clean = normalise(text)
        if tidy:  # one space before every word, none behind the last
            clean = "".join(SPACE + word for word in clean.split(" ") if word)
        elif space and clean.strip(" "):
            clean = SPACE + clean
        return inner(clean.replace(" ", SPACE), first)

    return encode
