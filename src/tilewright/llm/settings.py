"""How the next token is chosen: checked once, then handed to the compiled program as two small arrays."""
from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from ..core.errors import InputError

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off. The same seed gives the same text on any
    number of threads; without one each generation draws its own."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        def need(ok: bool, rule: str, value: Any) -> None:
            if not ok:
                raise InputError(f"generate: {rule}, got {value!r}")

        def number(value: Any) -> bool:
            return isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value)

        need(number(self.temperature) and self.temperature >= 0, "temperature must be 0 or more", self.temperature)
        need(isinstance(self.top_k, int) and 0 <= self.top_k < 1 << 31, "top_k must be an integer, 0 or more", self.top_k)
        need(number(self.top_p) and 0 < self.top_p <= 1, "top_p must be in (0, 1]", self.top_p)
        need(number(self.min_p) and 0 <= self.min_p <= 1, "min_p must be in [0, 1]", self.min_p)
        penalty, seed = self.repetition_penalty, self.seed
        need(number(penalty) and penalty > 0, "repetition_penalty must be positive", penalty)
        need(seed is None or (isinstance(seed, int) and -(1 << 63) <= seed < 1 << 63), "seed must be a 64-bit integer", seed)


@dataclass
class Sampler:
    """What the program is given beside the tokens: which tokens were seen, the settings, and top_k, seed and counter."""

    sampling: Sampling
    vocab: int
    seen: Array = field(init=False)
    settings: Array = field(init=False)
    numbers: Array = field(init=False)

    def __post_init__(self) -> None:
        s = self.sampling
        self.seen = np.zeros(self.vocab, np.uint8)
        self.settings = np.array([s.temperature, s.top_p, s.min_p, s.repetition_penalty], np.float32)
        seed = int.from_bytes(os.urandom(8), "little") >> 1 if s.seed is None else s.seed
        self.numbers = np.array([s.top_k, seed, 0], np.int64)

    def note(self, ids: Iterable[int]) -> None:
        """These tokens are part of the text from now on."""
        if self.sampling.repetition_penalty != 1.0:
            self.seen[list(ids)] = 1


def stop_texts(stop: str | Iterable[str]) -> tuple[str, ...]:
    """The texts that end a generation, checked."""
    texts = (stop,) if isinstance(stop, str) or not isinstance(stop, Iterable) else tuple(stop)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise InputError(f"generate: stop must be texts that are not empty, got {text!r}")
    return texts


class StopFilter:
    """Passes text on until one of `stops` appears; holds back what might become one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops, self.held, self.stopped = stops, "", False

    def push(self, text: str) -> str:
        """What can be shown now."""
        if not self.stops:
            return text
        self.held += text
        found = [at for s in self.stops if (at := self.held.find(s)) >= 0]
        if found:
            self.stopped = True
            out, self.held = self.held[: min(found)], ""
            return out
        keep = max((n for s in self.stops for n in range(1, min(len(s), len(self.held) + 1)) if self.held.endswith(s[:n])), default=0)
        out, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        return out

    def finish(self) -> str:
        out, self.held = self.held, ""
        return out
