"""Arguments that the commands on language models share, and how they load one."""
from __future__ import annotations

import argparse
import shutil
import sys
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from ..llm.generation import Stream
    from ..llm.model import LLM


def model_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "a GGUF file, a folder with config.json and safetensors, smollm2, or owner/name of the Hugging Face Hub"
    parser.add_argument("model", metavar="MODEL", help=kinds)
    parser.add_argument("--context", type=int, metavar="N", help="tokens of prompt and answer (default: the model's, at most 4096)")
    parser.add_argument("--threads", type=int, metavar="N", help="threads (default: TILEWRIGHT_THREADS, else all cores)")
    parser.add_argument("--cache-dtype", default="f16", metavar="T", help="key/value cache: f16, f32, bf16 or q8_0 (default: f16)")


def target_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default="cpu", metavar="T", help="cpu or cuda (default: cpu)")


CONVERSATION = {"temperature": 0.7, "top_k": 40, "top_p": 0.9}  # small models repeat themselves without it
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0}


def sampling_arguments(parser: argparse.ArgumentParser, max_tokens: int | None = None) -> None:
    ends = "when the model ends" if max_tokens is None else str(max_tokens)
    parser.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=f"end after this many tokens (default: {ends})")
    parser.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: 0.7 in a conversation, else 0)")
    parser.add_argument("--top-k", type=int, metavar="K", help="keep the K likeliest; 0: all (default: 40 in a conversation, else 0)")
    parser.add_argument("--top-p", type=float, metavar="P", help="keep the likeliest to this sum (default: 0.9 in a conversation, else 1)")
    parser.add_argument("--min-p", type=float, default=0.0, metavar="P", help="keep those at least P times as likely as the likeliest")
    parser.add_argument("--repetition-penalty", type=float, default=1.0, metavar="R", help="above 1: tokens of the text become less likely")
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end where this text appears (repeatable)")
    parser.add_argument("--adapter", metavar="FILE", help="a LoRA adapter (safetensors)")


def open_llm(args: argparse.Namespace) -> LLM:
    from ..llm.model import load_llm

    llm = load_llm(args.model, context_length=args.context, threads=args.threads, cache_dtype=args.cache_dtype,
                   target=getattr(args, "target", "cpu"))  # fmt: skip
    if getattr(args, "adapter", None):
        llm.use_adapter(llm.load_adapter(args.adapter))
    return llm


def sampling_options(args: argparse.Namespace, conversation: bool) -> dict[str, Any]:
    names = ("max_tokens", "min_p", "repetition_penalty", "seed", "stop")
    given = {n: v for n in GREEDY if (v := getattr(args, n)) is not None}
    return {n: getattr(args, n) for n in names} | (CONVERSATION if conversation else GREEDY) | given


def show(stream: Stream, enough: int | None = None) -> str:
    """Print a stream as it comes, broken between words where a person reads it; Ctrl-C ends it early, and what was said stays. Behind
    `enough` tokens it ends with the sentence."""
    said: list[str] = []
    out, stopped = Wrapped(sys.stdout) if sys.stdout.isatty() else None, ""
    try:
        for piece in stream:
            said.append(piece)
            if out is None:
                print(piece, end="", flush=True)
            else:
                out.write(piece)
            if enough is not None and len(stream.ids) >= enough and "".join(said).rstrip().endswith((".", "!", "?")):
                break
    except KeyboardInterrupt:
        stopped = " [stopped]"
    finally:
        if out is not None:
            out.end()
        print(stopped, end="")
        print(flush=True)  # whatever comes next, an error perhaps, begins on a line of its own
    return "".join(said)

class Wrapped:
    """Text on a terminal, broken between words at its width; a word is shown when its end has come."""

    def __init__(self, out: TextIO, width: int | None = None) -> None:
        self.out, self.word, self.column = out, "", 0
        self.width = shutil.get_terminal_size().columns if width is None else width

    def write(self, text: str) -> None:
        for c in text:
            if c in " \n":
                self.end()
                if c == "\n":
                    self.out.write("\n")
                    self.column = 0
                elif self.column:
                    self.column += 1
                    self.out.write(" ")
                elif c == " ":  # indentation stays
                    self.column = 1
                    self.out.write(" ")
            else:
                self.word += c
        self.out.flush()

    def end(self) -> None:
        """The word that has been held back."""
        if self.column > 1 and self.column + len(self.word) > self.width:
            self.out.write("\n")
            self.column = 0
        self.out.write(self.word)
        self.column += len(self.word)
        self.word = ""


def speed_text(stream: Stream) -> str:
    """Prompt and decode speed and the time to the first token; what could not be measured is left out."""
    parts = [f"prompt {len(stream.prompt)} tokens"]
    if stream.prompt_seconds:
        parts[0] += f" at {stream.prompt_rate:.0f} tok/s"
        parts.append(f"first token after {stream.prompt_seconds * 1e3:.0f} ms")
    decoded = f"{len(stream.ids)} tokens out"
    parts.append(f"{decoded} at {stream.decode_rate:.1f} tok/s" if stream.decode_seconds else decoded)
    if ended := {"context": "the context is full", "length": "ended by --max-tokens"}.get(stream.finish_reason or ""):
        parts.append(ended)
    return ", ".join(parts)


def speeds(stream: Stream) -> None:
    """One line on stderr."""
    print(f"[{speed_text(stream)}]", file=sys.stderr)
