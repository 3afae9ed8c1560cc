"""The digest of a saved session: a number that stands for every byte of the file that is used, which is checked first.

tw.load(path, digest="...") runs the machine code of the file with that digest, whoever wrote it, and refuses every other file.
"""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL.tw", help="a file that session.save wrote")


def run(args: argparse.Namespace) -> int:
    from ..runtime.archive.session import digest

    print(digest(args.model))
    return 0
