"""The progress bar of a training run: step, loss, steps per second and the time that is left. Nothing at all unless a person watches."""
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Bar:
    """Shows nothing."""

    def show(self, step: int, loss: float) -> None:
        """After a step."""

    def note(self, text: str) -> None:
        """What happens besides training; empty when it is over."""


class RichBar(Bar):
    """A line on the terminal, drawn at most ten times a second."""

    def __init__(self, progress: Any, steps: int | None, done: int) -> None:
        self.progress = progress
        self.task = progress.add_task("training", total=steps, completed=done, loss="", speed="", note="")
        self.start: float | None = None

    def show(self, step: int, loss: float) -> None:
        now = self.progress.get_time()
        if self.start is None:  # the first step compiles: it does not count for the speed
            self.start, self.first = now, step
        seconds = now - self.start
        speed = f"{(step - self.first) / seconds:.3g} steps/s" if seconds > 0 else ""
        self.progress.update(self.task, completed=step, loss=f"loss {loss:.4g}", speed=speed)

    def note(self, text: str) -> None:
        self.progress.update(self.task, note=text)


@contextmanager
def progress_bar(steps: int | None, done: int, *, enabled: bool = True) -> Iterator[Bar]:
    """A bar on stderr; a silent one when it is piped, when CI is set, or when it is not wanted."""
    if not enabled or os.environ.get("CI") or not sys.stderr.isatty():
        yield Bar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[loss]}"),
               TextColumn("{task.fields[speed]}"), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=Console(stderr=True, highlight=False)) as progress:
        yield RichBar(progress, steps, done)
