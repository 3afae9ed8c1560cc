"""From token ids back to text: the bytes of each token, and a decoder that never shows half a character."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable
from functools import cache

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
