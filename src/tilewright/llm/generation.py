"""Text from a model, piece by piece: feed the prompt, then one native call per token.

A stream never shows half a character nor the beginning of a stop text. Leaving it early (or Ctrl-C) leaves the state with every token
that was fed, ready to go on.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.errors import InputError, UnsupportedError
from ..runtime.state import State
from .settings import Sampler, Sampling, StopFilter

if TYPE_CHECKING:
    from .batch import BatchCall
    from .model import LLM

Array = np.ndarray[Any, Any]


class Stream(Iterator[str]):
    """An iterator over pieces of text. `ids` are the tokens so far, `finish_reason` is "stop", "length" (max_tokens), "context"
    (the context is full) or None; the times are seconds.

    Threads that share a stream take its pieces in turns, each piece once. Its state is its own from the call that made it to its end:
    when anybody else feeds or truncates that state meanwhile, the stream's next step is an InputError. Leaving a stream, in whatever
    thread, cancels it; nothing runs between two pieces.
    """

    def __reduce__(self) -> Any:
        raise UnsupportedError("stream: cannot be copied or pickled; its text so far is that of `ids`")

    def __init__(self, llm: LLM, prompt: Array, sampling: Sampling, max_tokens: int | None, stops: tuple[str, ...], state: State) -> None:
        with llm.held(state):
            length, self._serial = state.length, state.serial
        room = llm.context_length - length - len(prompt)
        if room < 0:
            raise InputError(f"generate: the prompt has {len(prompt)} tokens and {length} are in the context already, which holds "
                             f"{llm.context_length}; shorten it, or load the model with a larger context_length")
        if max_tokens is not None and (not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 0):
            raise InputError(f"generate: max_tokens must be an integer, 0 or more, got {max_tokens!r}")
        self.llm, self.state, self.prompt = llm, state, prompt
        self.ids: list[int] = []
        self.finish_reason: str | None = None
        self.prompt_seconds = self.decode_seconds = 0.0
        self.max_tokens = room + 1 if max_tokens is None else min(max_tokens, room + 1)  # the last token is shown, not fed
        self._limit = "length" if max_tokens is not None and max_tokens <= room + 1 else "context"
        self.sampler = Sampler(sampling, llm.vocab)
        self.sampler.note(prompt.tolist())
        self._text, self._filter = llm.tokenizer.stream(), StopFilter(stops)
        self._logits = llm.logits_room()
        self._one = np.empty(1, np.int64)
        self.ends = llm.stop_ids()
        self._turn = Lock()

    def __next__(self) -> str:
        """The next piece that is not empty."""
        with self._turn:
            while self.finish_reason is None:
                piece = self.step()
                if piece:
                    return piece
        raise StopIteration

    def expect(self) -> None:
        """Raise unless the state is as this stream left it. The caller holds the state's lock, here and for `note`."""
        if self.state.serial != self._serial:
            raise InputError("generate: somebody else has fed or truncated the state of this stream; give each stream a state of its own")

    def note(self) -> None:
        """The state is as this stream wants it."""
        self._serial = self.state.serial

    def _advance(self, ids: Array) -> int:
        with self.state.lock:
            self.expect()
            try:
                return self.llm.advance(self.state, ids, self.sampler, self._logits)
            finally:
                self.note()

    def step(self) -> str:
        """One token: the text that can be shown now, perhaps none."""
        if len(self.ids) >= self.max_tokens:
            return self._end(self._limit)
        if not self.ids:
            began = time.perf_counter()
            token = self._advance(self.prompt)
            self.prompt_seconds = time.perf_counter() - began
        else:
            self._one[0] = self.ids[-1]
            began = time.perf_counter()
            token = self._advance(self._one)
            self.decode_seconds += time.perf_counter() - began
        return self.accept(token)

    def accept(self, token: int) -> str:
        """Take the next token, wherever it was chosen: the text that can be shown now."""
        if token in self.ends:
            return self._end("stop")
        self.ids.append(token)
        self.sampler.note((token,))
        shown = self._filter.push(self._text.push(token))
        if self._filter.stopped:
            self.finish_reason = "stop"
        return shown

    def _end(self, reason: str) -> str:
        self.finish_reason = reason
        return self._filter.push(self._text.finish()) + ("" if self._filter.stopped else self._filter.finish())

    @property
    def has_room(self) -> bool:
        return self.state.length < self.llm.context_length

    @property
    def prompt_rate(self) -> float:
        """Prompt tokens a second."""
        return len(self.prompt) / self.prompt_seconds if self.prompt_seconds else 0.0

    @property
    def decode_rate(self) -> float:
        """Generated tokens a second, without the first, which the prompt gives."""
        return max(0, len(self.ids) - 1) / self.decode_seconds if self.decode_seconds else 0.0


def generate_together(streams: list[Stream], batch: Callable[[int], BatchCall | None]) -> list[str]:
    """Advance all streams until each has ended, as many as possible in one call."""
    texts = [s.step() for s in streams]  # the prompts, one by one
    while active := [i for i, s in enumerate(streams) if s.finish_reason is None]:
        call = batch(len(active))
        ready = [i for i in active if len(streams[i].ids) < streams[i].max_tokens and streams[i].has_room]
        for i in active:
            if call is None or i not in ready:
                texts[i] += streams[i].step()
        if call is None:
            continue
        for first in range(0, len(ready), call.lanes):
            group = ready[first : first + call.lanes]
            for i, token in zip(group, call([streams[i] for i in group]), strict=True):
                texts[i] += streams[i].accept(token)
    return texts
