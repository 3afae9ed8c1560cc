"""Talk to a language model through its own chat template. Ctrl-C ends an answer, an empty line or Ctrl-D the conversation.

    tilewright chat model.gguf --system "Answer in one sentence."
"""
from __future__ import annotations

import argparse

from .llm_options import model_arguments, open_llm, sampling_arguments, sampling_options, show, speeds


def arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    parser.add_argument("--once", metavar="TEXT", help="ask this one question, then leave")
    sampling_arguments(parser, temperature=0.7)


def run(args: argparse.Namespace) -> int:
    with open_llm(args) as llm:
        history = [{"role": "system", "content": args.system}] if args.system else []
        while True:
            question = args.once or _ask()
            if not question:
                return 0
            history.append({"role": "user", "content": question})
            stream = llm.chat(history, **sampling_options(args))
            history.append({"role": "assistant", "content": show(stream)})
            speeds(stream)
            if args.once:
                return 0


def _ask() -> str:
    try:
        return input("> ").strip()
    except EOFError:
        print()
        return ""
