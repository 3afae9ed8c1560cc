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
    sampling_arguments(parser, max_tokens=512)
    parser.add_argument("--chat", action="store_true", help="ask the prompt as a question, through the model's chat template")
    parser.add_argument("--quiet", action="store_true", help="no lines about the template and the speed")


def run(args: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with open_llm(args) as llm:
        options = sampling_options(args, conversation=args.chat)
        stream = llm.chat([{"role": "user", "content": prompt}], **options) if args.chat else llm.generate(prompt, **options)
        show(stream)
        if not args.quiet:
            speeds(stream)
            if not args.chat and llm.tokenizer.chat_template:
                said = "the prompt was continued without the model's chat template" if stream.ids else "the model had nothing to add"
                print(f"[{said}; --chat asks it as a question]", file=sys.stderr)
    return 0
