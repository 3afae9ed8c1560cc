"""The code cache: `list` its entries, `clear` it, or print its `path`.

The folder is TILEWRIGHT_CACHE_DIR, or tilewright in the user's cache folder. Clearing is always safe: code is compiled again.
"""

from __future__ import annotations

import argparse
import sys
import time


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=("list", "clear", "path"), default="list", help="what to do (default: list)")


def run(args: argparse.Namespace) -> int:
    from ..target.cpu.cache import CodeCache
    from .console import console, nbytes, table

    cache = CodeCache()
    if cache.folder is None:
        print("tilewright cache: " + "; ".join(cache.notes), file=sys.stderr)
        return 1
    entries = cache.entries()
    total = sum(e.nbytes for e in entries)
    if args.action == "path":
        print(cache.folder)
    elif args.action == "clear":
        removed = cache.clear()
        print(f"{removed} entries deleted, {nbytes(total)}")
        return 0 if removed == len(entries) else 1
    else:
        out = console()
        if entries:
            rows = [(e.key, nbytes(e.nbytes), _age(time.time() - e.used)) for e in reversed(entries)]
            out.print(table("", ("kernel", ">size", ">last used"), rows))
        out.print(f"{len(entries)} entries, {nbytes(total)} of {nbytes(cache.limit)} in {cache.folder}", soft_wrap=True)
    return 0


def _age(s: float) -> str:
    """`3 h ago`.

    >>> _age(5), _age(7200), _age(200000)
    ('5 s ago', '2 h ago', '2 d ago')
    """
    for limit, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if s >= limit:
            return f"{s / limit:.0f} {unit} ago"
    return f"{max(0.0, s):.0f} s ago"
