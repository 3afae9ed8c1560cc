"""Talk to a language model through its own chat template. Ctrl-C ends an answer, an empty line or Ctrl-D the conversation.

    tilewright chat model.gguf --system "Answer in one sentence."
"""
from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from .llm_options import model_arguments, open_llm, sampling_arguments, sampling_options, show, speeds, target_argument

if TYPE_CHECKING:
    from ..llm.generation import Stream
    from ..llm.model import LLM


def arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    target_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--once", metavar="TEXT", help="ask this one question, then leave")
    sampling_arguments(parser, temperature=0.7)


def run(args: argparse.Namespace) -> int:
    from ..core.errors import InputError

    if args.once is not None and not args.once.strip():
        raise InputError("chat: the question is empty; --once needs a text")
    with open_llm(args) as llm:
        talk = Conversation(llm, args)
        if args.once is not None:
            talk.ask(args.once)
            return 0
        while question := _question():
            if not talk.ask(question):
                return 1
    return 0


class Conversation:
    """The messages so far, and a state that holds as much of them as the model has read already."""

    def __init__(self, llm: LLM, args: argparse.Namespace) -> None:
        self.llm, self.options = llm, sampling_options(args)
        self.history = [{"role": "system", "content": args.system}] if args.system else []
        self.state, self.read = llm.start(), list[int]()

    def ask(self, question: str) -> bool:
        """One question and its answer. False: the context is full, and the conversation cannot go on."""
        self.history.append({"role": "user", "content": question})
        stream = self._stream()
        self.history.append({"role": "assistant", "content": show(stream)})
        self.read = [*self.read, *stream.prompt.tolist(), *stream.ids][: self.state.length]
        speeds(stream)
        if stream.finish_reason != "context":
            return True
        limit = self.llm.context_length
        print(f"chat: the context of {limit} tokens is full; start again, perhaps with a larger --context", file=sys.stderr)
        return False

    def _stream(self) -> Stream:
        """Feeds only what the state does not hold yet; one token at least, for its logits."""
        ids = self.llm.chat_ids(self.history)
        same = next((i for i, (a, b) in enumerate(zip(self.read, ids, strict=False)) if a != b), min(len(self.read), len(ids)))
        same = min(same, len(ids) - 1)
        self.state.truncate(same)
        self.read = ids[:same]
        stream = self.llm.generate(ids[same:], state=self.state, **self.options)
        stream.sampler.note(ids[:same])
        return stream


def _question() -> str:
    """A line from the user; empty at the end of the input."""
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        print()
        return ""
