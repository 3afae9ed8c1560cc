"""Output of the commands: one console, tables that survive a pipe, and progress that is silent unless a person watches."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.table import Table


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise  # the command line answers it (main.py); rich ends with exit code 1


def console() -> Console:
    """A console on stdout. Piped, it neither colours nor wraps: a line of a table stays one line."""
    reconfigure = getattr(sys.stdout, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")  # an ASCII terminal shows a question mark instead of ending the command
    out = _Console(highlight=False)
    return out if out.is_terminal else _Console(highlight=False, width=200, no_color=True)


def command() -> str:
    """How this command is called from where the user is: its name alone where the shell finds it, else its path, or as a module."""
    if shutil.which("tilewright"):
        return "tilewright"
    called = sys.argv[0]
    return os.path.relpath(called) if os.path.basename(called).startswith("tilewright") else "python -m tilewright"


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A plain table; a column whose name starts with `>` is right-aligned."""
    made = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        header_style="dim",
        show_header=any(columns),
    )
    for name in columns:
        made.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


class Step(Protocol):
    """Called with what is being done now."""

    def __call__(self, text: str) -> None: ...


def _silent(text: str) -> None:
    del text


@contextmanager
def progress(what: str) -> Iterator[Step]:
    """A spinner on stderr while long work runs; nothing at all when stderr is not a terminal or CI is set."""
    err = Console(stderr=True, highlight=False)
    if not err.is_terminal or os.environ.get("CI"):
        yield _silent
        return
    with err.status(what) as status:
        yield lambda text: status.update(f"{what}: {text}")


def nbytes(n: float) -> str:
    """`12.5 MiB`.

    >>> nbytes(0), nbytes(1536), nbytes(5 << 20)
    ('0 B', '1.5 KiB', '5.0 MiB')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("unreachable")


def stages(seconds_of: Mapping[str, float]) -> str:
    """Where the time of a compile went, without what took less than a hundredth of it; nothing ran where all of it came from the cache.

    >>> stages({"open": 0.02, "passes": 0.31, "code": 4.6, "pack": 3e-6}), stages({})
    ('passes 310 ms, code 4.6 s', 'from the cache')
    """
    total = sum(seconds_of.values())
    return (
        ", ".join(f"{name} {f'{s:.1f} s' if s >= 1 else f'{1e3 * s:.0f} ms'}" for name, s in seconds_of.items() if s >= 0.01 * total)
        or "from the cache"
    )


def seconds(s: float) -> str:
    """`1.25 ms`.

    >>> seconds(2.5), seconds(0.00125), seconds(3e-6)
    ('2.50 s', '1.25 ms', '3.0 us')
    """
    return f"{s:.2f} s" if s >= 1 else f"{s * 1e3:.2f} ms" if s >= 1e-3 else f"{s * 1e6:.1f} us"
