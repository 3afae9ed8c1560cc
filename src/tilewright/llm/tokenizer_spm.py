"""SentencePiece-style merging by score: of all neighbours that form a token, the pair whose token has the highest score merges first.

The `tokenizers` library ranks pairs, not tokens, and would need its list of pairs rebuilt from 32 000 to 256 000 tokens at
every start (and would break ties differently); merging words here needs no preparation, and words repeat, so they are remembered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ..core.errors import FormatError

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
