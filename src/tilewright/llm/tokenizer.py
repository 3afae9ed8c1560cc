"""Tokenizers: text to token ids and back, built from what a model file says about itself.

    tokenizer = tokenizer_from_gguf(open_gguf(path))     # or tokenizer_from_folder(open_folder(path))
    ids = tokenizer.encode("Hello"); tokenizer.decode(ids)

Plain text never becomes a control token unless `special=True`, as in llama.cpp: a user cannot end the system's turn.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ..core.errors import InputError
from ..runtime.memory import trim
from .tokenizer_pieces import StreamDecoder
from .tokenizer_special import BYTE, CONTROL, END_OF_TURN, NORMAL, UNKNOWN, USER_DEFINED, Special, longest_first, partition, stop_ids


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
