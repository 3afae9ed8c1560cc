"""Continue a prompt with a language model; the text appears as it is generated, the speed behind it on stderr.

    tilewright generate model.gguf "Once upon a time" --max-tokens 64 --temperature 0.7 --seed 1
"""
from __future__ import annotations

import argparse
import sys

from .llm_options import model_arguments, open_llm, sampling_arguments, sampling_options, show, speeds, target_argument


def arguments(parser: argparse.ArgumentParser) -> None:
    model_arguments(parser)
    target_argument(parser)
    parser.add_argument("prompt", help="the text to continue; - reads it from the input")
    sampling_arguments(parser, temperature=0.0)
    parser.add_argument("--quiet", action="store_true", help="no line about the speed")


def run(args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with open_llm(args) as llm:
        stream = llm.generate(prompt, **sampling_options(args))
        show(stream)
        if not args.quiet:
            speeds(stream)
    return 0
