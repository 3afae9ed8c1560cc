"""Talk to a language model through its own chat template.

    tilewright chat smollm2
    tilewright chat model.gguf --system "Answer in one sentence."

Ctrl-C ends an answer; /bye or Ctrl-D ends the conversation; /help lists the other commands.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.config import user_folder
from ..core.errors import FileError, InputError
from ..core.files import write_file
from .llm_options import model_arguments, open_llm, sampling_arguments, sampling_options, show, speeds, target_argument

if TYPE_CHECKING:
    from ..llm.generation import Stream
    from ..llm.model import LLM

HELP = """/help        this list
/clear       forget the conversation; the system text stays
/save FILE   write the conversation as JSON
/bye         leave (Ctrl-D does, too)
Ctrl-C ends an answer that is too long."""
HISTORY = 1000  # lines of the user that the next conversation can recall


def arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    target_argument(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--once", metavar="TEXT", help="ask this one question, then leave")
    sampling_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.once is not None and not args.once.strip():
        raise InputError("chat: the question is empty; --once needs a text")
    with open_llm(args) as llm:
        talk = Conversation(llm, args)
        if args.once is not None:
            talk.ask(args.once)
            return 0
        if sys.stdin.isatty():
            print(f"{llm.name}: ask anything; /help lists the commands, /bye leaves.")
        with recalled():
            for line in questions():
                if line.startswith("/"):
                    if not talk.command(line):
                        return 0
                elif line and not talk.ask(line):
                    return 1
    return 0


class Conversation:
    """The messages so far, and a state that holds as much of them as the model has read already."""

    def __init__(self, llm: LLM, args: argparse.Namespace) -> None:
        self.llm, self.options = llm, sampling_options(args, conversation=True)
        self.first = [{"role": "system", "content": args.system}] if args.system else []
        self.history = list(self.first)
        self.state, self.read = llm.start(), list[int]()

    def ask(self, question: str) -> bool:
        """One question and its answer. False: the context is full, and the conversation cannot go on."""
        self.history.append({"role": "user", "content": question})
        try:
            stream = self._stream()
        except InputError as e:  # a question that the rest of the context does not hold
            del self.history[-1]
            if not sys.stdin.isatty():
                raise
            print(f"{e}\nThe question is not part of the conversation; /clear begins a new one.", file=sys.stderr)
            return True
        self.history.append({"role": "assistant", "content": show(stream)})
        self.read = [*self.read, *stream.prompt.tolist(), *stream.ids][: self.state.length]
        speeds(stream)
        if stream.finish_reason != "context":
            return True
        if sys.stdin.isatty():
            print(f"The context of {self.llm.context_length} tokens is full; /clear begins a new conversation.", file=sys.stderr)
            return True
        limit = self.llm.context_length
        print(f"chat: the context of {limit} tokens is full; start again, perhaps with a larger --context", file=sys.stderr)
        return False

    def command(self, line: str) -> bool:
        """One of the commands. False: leave."""
        word, _, rest = line.partition(" ")
        if word in ("/bye", "/exit", "/quit"):
            return False
        if word == "/clear":
            self.history, self.read = list(self.first), []
            self.state.truncate(0)
            print("A new conversation.")
        elif word == "/save":
            self.save(rest.strip())
        else:
            print(HELP if word == "/help" else f"There is no command {word}.\n{HELP}")
        return True

    def save(self, name: str) -> None:
        if not name:
            print("/save needs a file: /save talk.json")
            return
        try:
            write_file(name, json.dumps(self.history, indent=1, ensure_ascii=False).encode(), subject="chat")
        except FileError as e:
            print(e)
        else:
            print(f"{name}: {len(self.history)} messages")

    def _stream(self) -> Stream:
        """Feeds only what the state does not hold yet; one token at least, for its logits."""
        ids = self.llm.chat_ids(self.history)
        same = next((i for i, (a, b) in enumerate(zip(self.read, ids, strict=False)) if a != b), min(len(self.read), len(ids)))
        same = self.state.rewind(min(same, len(ids) - 1))
        self.read = ids[:same]
        stream = self.llm.generate(ids[same:], state=self.state, **self.options)
        stream.sampler.note(ids[:same])
        return stream


@contextlib.contextmanager
def recalled() -> Iterator[None]:
    """Line editing, and the lines of earlier conversations behind the arrow keys, where a person types."""
    try:
        import readline
    except ImportError:  # a Python without it edits no lines
        yield
        return
    base = user_folder("XDG_STATE_HOME", ".local/state")
    file = None if base is None or not sys.stdin.isatty() else Path(base, "tilewright", "chat_history")
    if file is None:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(file)
    try:
        yield
    finally:
        readline.set_history_length(HISTORY)
        with contextlib.suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            readline.write_history_file(file)
            file.chmod(0o600)


def questions() -> Iterator[str]:
    """Lines from the user, without blanks around them, until the input ends."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:  # a line that is given up
            print()
