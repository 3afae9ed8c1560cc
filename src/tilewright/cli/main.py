"""The `tilewright` command: reads the arguments, runs one subcommand, turns our errors into one line and an exit code.

Exit codes: 0 all right, 1 the command found a problem or an error of ours, 2 wrong usage, 130 interrupted.
A subcommand's module is imported when the command line is read; what it needs, when it runs: `tilewright --help` takes 0.2 s.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import faulthandler
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from ..core.errors import TilewrightError

COMMANDS = {
    "demo": "compile a language model and stream an answer, or a small block (core dependencies only)",
    "bench": "time an ONNX file beside ONNX Runtime and OpenVINO",
    "run": "run an ONNX file or a saved session on arrays from files",
    "inspect": "write a model's graphs, kernels, code and memory picture to a folder",
    "chat": "talk to a language model (GGUF file or Hugging Face folder)",
    "generate": "continue a prompt with a language model",
    "bench-llm": "prompt and decode speed of a language model, and its share of the memory bandwidth",
    "quantize": "write a GGUF model with its matrices in another format (Q4_K, Q6_K, Q8_0 ...)",
    "splat": "draw scenes of Gaussian splats, train them from photographs, show them in a browser",
    "digest": "the number that stands for a saved session, to pin it with tw.load(path, digest=...)",
    "doctor": "what this machine offers, and what is missing",
    "warm": "compile the kernels of eager functions ahead, into the code cache",
    "cache": "list, clear or locate the code cache",
}


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tilewright")
    except PackageNotFoundError:
        return "(not installed)"


def _module(command: str) -> ModuleType:
    return import_module(f".{command.replace('-', '_')}", __package__)


class Parser(argparse.ArgumentParser):
    """A parser that says for itself what it does not know, with the nearest thing that it does."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            options = [name for action in self._actions for name in action.option_strings]
            near = [f"; did you mean {names[0]}?" for word in rest if (names := difflib.get_close_matches(word.partition("=")[0], options))]
            self.error(f"unrecognized arguments: {' '.join(rest)}{near[0] if near else ''}")
        return found, rest


def parser() -> Parser:
    """The whole command line as one argparse parser. Each command's module adds its own arguments."""
    top = Parser(prog="tilewright", description="A tensor compiler and runtime for CPUs and NVIDIA GPUs.")
    top.add_argument("--version", action="version", version=f"tilewright {_version()}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        module = _module(name)
        module.arguments(
            commands.add_parser(name, help=line, description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        )
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if sys.stdout is None:
        print("tilewright: standard output is closed", file=sys.stderr)
        return 1
    try:
        try:
            return _run(list(sys.argv[1:] if argv is None else argv))
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # `tilewright doctor | head`: the reader left, and nothing is wrong
        return _silence(0)
    except OSError as e:
        if e.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF):
            raise
        print(f"tilewright: cannot write: {e}", file=sys.stderr)
        return _silence(1)


def _silence(code: int) -> int:
    """Nothing more is written to standard output, also not what Python still holds when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _run(words: list[str]) -> int:
    if words[:1] == ["bench"] and (code := _module("bench").of_repository(words[1:])) is not None:
        return cast(int, code)
    if not words:
        parser().print_help()
        return 2
    if (word := words[0]) not in COMMANDS and not word.startswith("-") and (near := difflib.get_close_matches(word, COMMANDS, 1)):
        print(f"tilewright: there is no command {word!r}; did you mean {near[0]}?", file=sys.stderr)
        return 2
    args = parser().parse_args(words)
    module = _module(args.command)
    if not faulthandler.is_enabled():
        faulthandler.enable(2)  # a crash in native code then names its kernel, see runtime/crash.py
    try:
        return cast(int, module.run(args))
    except TilewrightError as e:
        print(f"tilewright {args.command}: {type(e).__name__}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
