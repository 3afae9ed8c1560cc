"""Tokenizers: text to token ids and back, built from what a model file says about itself.

    tokenizer = tokenizer_from_gguf(open_gguf(path))     # or tokenizer_from_folder(open_folder(path))
    ids = tokenizer.encode("Hello"); tokenizer.decode(ids)

Plain text never becomes a control token unless `special=True`, as in llama.cpp: a user cannot end the system's turn.
"""

from __future__ import annotations

import codecs
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from ..core.errors import InputError
from ..runtime.memory import trim

BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@cache
def byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: every byte as a printable character."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in plain}
    rest = [b for b in range(256) if b not in set(plain)]
    return table | {chr(256 + i): b for i, b in enumerate(rest)}


def byte_level(text: str) -> bytes:
    """A byte-level token's bytes; a character outside the alphabet stands for itself."""
    table = byte_of_character()
    try:
        return bytes([table[c] for c in text])
    except KeyError:
        return b"".join(bytes([table[c]]) if c in table else c.encode(errors="replace") for c in text)


def sentence_piece(text: str) -> bytes:
    """A SentencePiece token's bytes: `▁` is a space, `<0x0A>` a byte."""
    byte = BYTE_TOKEN.fullmatch(text)
    if byte:
        return bytes([int(byte[1], 16)])
    return text.replace("▁", " ").encode(errors="replace")


class StreamDecoder:
    """Decodes token by token. `push` returns the text that has become certain; bytes of an unfinished character wait.

        stream = tokenizer.stream()
        "".join(stream.push(i) for i in ids) + stream.finish()
    """

    def __init__(self, piece: Callable[[int], bytes]) -> None:
        self._piece = piece
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        return self._decoder.decode(self._piece(token))

    def finish(self) -> str:
        """What is left when no token follows: a replacement character if a character was cut."""
        return self._decoder.decode(b"", final=True)


# Kinds of tokens in `tokenizer.ggml.token_type`.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Files often name one end token only; these texts end a turn or a document wherever they are tokens (as in llama.cpp).
END_OF_TURN = ("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>", "[EOT]",
               "<｜end▁of▁sentence｜>", "<end_of_utterance>")  # fmt: skip
END_OF_GENERATION = (*END_OF_TURN, "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>",
                     "<|tool_response>", "[e~[")  # fmt: skip
END_OF_FILE = (("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
               ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"), ("<|file_sep|>",))  # fmt: skip
C_SPACE = " \t\n\v\f\r"


@dataclass(frozen=True)
class Special:
    """A token that is looked for in text. `always`: also in plain text (user-defined ones). `eats_space`: and the space behind it."""

    text: str
    id: int
    always: bool
    eats_space: bool = False


def longest_first(specials: Iterable[Special]) -> tuple[Special, ...]:
    return tuple(sorted(specials, key=lambda s: -len(s.text.encode())))


def partition(text: str, specials: tuple[Special, ...], *, everything: bool, shield: str | None = None) -> list[str | int]:
    """Cut `text` at special tokens, longer ones first: pieces of text, and ids. Without `everything` control tokens stay text.

    `shield` is the text with other characters wherever it must not be read as a control token.
    """
    parts: list[range | int] = [range(len(text))] if text else []
    for special in specials:
        seen = text if special.always or shield is None else shield
        if (everything or special.always) and special.text in seen:
            parts = [piece for part in parts for piece in (_cut(text, seen, part, special) if isinstance(part, range) else [part])]
    return [text[part.start : part.stop] if isinstance(part, range) else part for part in parts]


def _cut(text: str, seen: str, part: range, special: Special) -> list[range | int]:
    parts: list[range | int] = []
    start = part.start
    while (at := seen.find(special.text, start, part.stop)) >= 0:
        if at > start:
            parts.append(range(start, at))
        parts.append(special.id)
        start = at + len(special.text)
        while special.eats_space and start < part.stop and text[start] in C_SPACE:
            start += 1
    return [*parts, range(start, part.stop)] if start < part.stop else parts


def stop_ids(ids: Mapping[str, int], named: Iterable[int | None]) -> frozenset[int]:
    """Every token after which a model has nothing more to say."""
    found = {i for i in named if i is not None}
    found |= {ids[t] for t in END_OF_GENERATION if t in ids}
    for family in END_OF_FILE:
        found |= {ids[t] for t in family if t in ids}
    harmony = {t for t in ("<|return|>", "<|call|>", "<|calls|>", "<|flush|>") if t in ids}
    if harmony >= {"<|return|>", "<|call|>"} or harmony >= {"<|calls|>", "<|flush|>"}:
        found.discard(ids.get("<|end|>", -1))  # there it only ends a part of an answer
    return frozenset(found)


@dataclass(frozen=True)
class SpecialIds:
    """Ids that the file names; None where it names none."""

    bos: int | None = None
    eos: int | None = None
    eot: int | None = None
    unknown: int | None = None
    padding: int | None = None
    others: tuple[int, ...] = ()  # more tokens that end a generation


@dataclass(eq=False)
class Tokenizer:
    """One model's tokenizer. `tokens[i]` is the text of token i as the file spells it, `kinds[i]` what sort it is.

    `encode_text(text, first)` encodes text without special tokens; `first` says that it stands at the start or behind a special one.
    """

    tokens: Sequence[str]
    kinds: Sequence[int]
    ids: SpecialIds
    make_encoder: Callable[[Mapping[str, int]], Callable[[str, bool], list[int]]] = field(repr=False)
    to_bytes: Callable[[str], bytes] = field(repr=False)
    adds_bos: bool = False  # the model expects a BOS token at the start
    adds_space: bool = False  # a space is put before the text, and taken away again by decode
    eats_space: frozenset[str] = frozenset()  # special tokens that swallow the space behind them
    chat_template: str | None = field(default=None, repr=False)
    source: str = field(default="", repr=False)  # the file or folder it was read from
    size: int = 0  # tokens of the model; those beyond the vocabulary have no text

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary_size} tokens, bos={self.bos}, eos={self.eos}, eot={self.eot})"

    @property
    def vocabulary_size(self) -> int:
        return len(self.tokens)

    @property
    def bos(self) -> int | None:
        return self.ids.bos

    @property
    def eos(self) -> int | None:
        return self.ids.eos

    @cached_property
    def eot(self) -> int | None:
        """The token that ends a turn: named by the file, or found by its text."""
        if self.ids.eot is not None:
            return self.ids.eot
        return next((self.by_text[t] for t in END_OF_TURN if t in self.by_text), None)

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Tokens after which a generation ends."""
        return stop_ids(self.by_text, (self.ids.eos, self.eot, *self.ids.others))

    @cached_property
    def by_text(self) -> Mapping[str, int]:
        return {text: i for i, text in enumerate(self.tokens)}

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Tokens that decode leaves out: control tokens, unknown ones, and those whose text ends a generation, whatever their kind."""
        return frozenset(i for i, kind in enumerate(self.kinds) if kind in (CONTROL, UNKNOWN)) | stop_ids(self.by_text, ())

    @cached_property
    def _specials(self) -> tuple[Special, ...]:
        user = {i for i, kind in enumerate(self.kinds) if kind == USER_DEFINED} - self.special_ids
        found = (Special(self.tokens[i], i, i in user, self.tokens[i] in self.eats_space) for i in user | self.special_ids)
        return longest_first(s for s in found if s.text)

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """Texts that only `special=True` turns into tokens, longest first."""
        return tuple(s.text for s in self._specials if not s.always)

    @cached_property
    def _control(self) -> frozenset[int]:
        """Tokens that text without special tokens is never encoded to."""
        return frozenset(i for i in self.special_ids if self.kinds[i] != UNKNOWN and i != self.ids.unknown)

    @cached_property
    def _encoder(self) -> Callable[[str, bool], list[int]]:
        made = self.make_encoder(self.by_text)
        _ = self._specials, self.stop_ids  # what else is made from the table of texts, which then goes, with lists of merges and the like
        self.__dict__.pop("by_text", None)
        trim()
        return made

    def encode(self, text: str, *, add_bos: bool = False, special: bool = False, shield: str | None = None) -> list[int]:
        """Token ids of `text`. With `special`, the texts of control tokens (`<|im_start|>`) become those tokens.

        `shield` is the text with other characters wherever it must not be read as a control token.
        """
        if not isinstance(text, str):
            raise InputError(f"encode: text must be a str, got {type(text).__name__}")
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise InputError(f"encode: text has a lone surrogate at {e.start}, which is no character; replace it first") from e
        out: list[int] = []
        if add_bos:
            if self.bos is None:
                raise InputError("encode: this tokenizer has no BOS token; leave add_bos away")
            out.append(self.bos)
        first = True
        for part in partition(text, self._specials, everything=special, shield=shield):
            out += (part,) if isinstance(part, int) else self._plain(part, first)
            first = isinstance(part, int)
        return out

    def _plain(self, text: str, first: bool) -> list[int]:
        """Tokens of text without special ones. A vocabulary may reach a control token by merging, too: its text is then cut in two."""
        ids = self._encoder(text, first)
        if self._control.isdisjoint(ids):
            return ids
        out: list[int] = []
        for i in ids:
            meant = self.to_bytes(self.tokens[i]).decode(errors="replace") if i in self._control else ""
            if not meant or meant not in text:  # not a control token, or the one for what is unknown
                out.append(i)
            elif len(meant) > 1:
                out += self._plain(meant[:1], False) + self._plain(meant[1:], False)
            elif self.ids.unknown is not None:
                out.append(self.ids.unknown)
            else:
                raise InputError(f"encode: {meant!r} has no token but a control token, and there is no unknown token")
        return out

    def piece(self, token: int, *, skip_special: bool = True) -> bytes:
        """The bytes that one token stands for; perhaps a part of a character."""
        index = self._check(token)
        if index >= len(self.tokens):
            return b""
        if index in self.special_ids:
            return b"" if skip_special else self.tokens[index].encode(errors="replace")
        kind = self.kinds[index]
        if kind == USER_DEFINED:
            return self.tokens[index].encode(errors="replace")
        return self.to_bytes(self.tokens[index]) if kind in (NORMAL, BYTE) else b""

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of `ids`; bytes that are no character become U+FFFD."""
        raw = b"".join(self.piece(i, skip_special=skip_special) for i in ids)
        if self.adds_space and raw.startswith(b" "):
            raw = raw[1:]
        return raw.decode(errors="replace")

    def stream(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder for tokens that arrive one by one."""
        return StreamDecoder(lambda token: self.piece(token, skip_special=skip_special))

    def check_ids(self, ids: Iterable[Any]) -> list[int]:
        """`ids` as a list of ints, each inside the vocabulary."""
        return [self._check(i) for i in ids]

    def _check(self, token: Any) -> int:
        try:
            index = operator.index(token)
        except TypeError as e:
            raise InputError(f"tokens: ids must be integers, got {type(token).__name__} {token!r:.40}") from e
        count = max(len(self.tokens), self.size)
        if not 0 <= index < count:
            raise InputError(f"tokens: ids must be in 0 .. {count - 1}, got {index}")
        return index


__all__ = ["SpecialIds", "StreamDecoder", "Tokenizer"]
