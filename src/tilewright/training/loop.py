"""The training loop: batches go through a step, checkpoints are written, a person sees the loss and the speed.

A step is `step(state, batch) -> (state, loss)`, most often jitted with its state donated. An interrupt (Ctrl-C, or SIGTERM from a batch
system) never lands inside a step, where donated memory is half new and half old: it is noted, the step ends, the state is saved, and `fit`
returns. A second Ctrl-C raises KeyboardInterrupt at once.
"""
from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType
from typing import Any

from ..core.errors import ConfigError, InputError
from .bar import Bar, progress_bar
from .folder import CheckpointFolder

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Batches = Callable[[int], Any] | Iterable[Any]


@dataclass(frozen=True)
class Fitted:
    """What `fit` ended with. `step` counts all steps, those before a resume included."""

    state: Any
    step: int
    loss: float | None
    interrupted: bool


def fit(step: Callable[[Any, Any], tuple[Any, Any]], state: Any, batches: Batches, *, steps: int | None = None,
        checkpoints: CheckpointFolder | None = None, every: int = 1000, resume: bool = True, metadata: Mapping[str, Any] | None = None,
        progress: bool = True, on_step: Callable[[int, float, Any], None] | None = None) -> Fitted:
    """Run `state, loss = step(state, batch)` until `steps` steps are done (in all, those before a resume included) or the batches end.

    `batches` is a function of the step's number (from 0), or an iterable, of which a resumed run skips what was used. With `checkpoints`
    the state is saved every so many steps, at the end and on an interrupt; with `resume` the run goes on from the newest one, with the
    same numbers, bit for bit, as if it had not stopped. `on_step(number, loss, state)` is called after each step, `number` from 1; the
    state's arrays are overwritten by the next step where they are donated. The bar is drawn on a terminal only.
    """
    if every < 1 or (steps is not None and steps < 0):
        raise ConfigError(f"fit: every must be at least 1 and steps not negative, got every={every}, steps={steps}")
    if steps is None and callable(batches):
        raise ConfigError("fit: batches as a function never end; give steps=")
    done, saved = 0, -1
    if checkpoints is not None and checkpoints.steps:
        if not resume:
            raise ConfigError(f"fit: a new run must not mix with an old one, got resume=False and steps {checkpoints.steps} in "
                              f"{checkpoints.path}; give another folder")
        kept = checkpoints.load(state)
        state, done, saved = kept.tree, kept.step, kept.step
    loss: float | None = None
    with _noted() as stop, progress_bar(steps, done, enabled=progress) as bar:
        for batch in _from(batches, done, steps):
            state, value = _result(step(state, batch))
            done, loss = done + 1, float(value)
            bar.show(done, loss)
            if on_step is not None:
                on_step(done, loss, state)
            if checkpoints is not None and done % every == 0:
                saved = _save(checkpoints, state, done, metadata, bar)
            if stop.is_set():
                break
        if checkpoints is not None and saved != done:
            _save(checkpoints, state, done, metadata, bar)
    return Fitted(state, done, loss, stop.is_set())


def _from(batches: Batches, start: int, steps: int | None) -> Iterator[Any]:
    if callable(batches):
        assert steps is not None
        return (batches(i) for i in range(start, steps))
    return islice(iter(batches), start, None if steps is None else max(start, steps))


def _result(made: Any) -> tuple[Any, Any]:
    if not isinstance(made, tuple) or len(made) != 2:
        got = f"a tuple of {len(made)}" if isinstance(made, tuple) else f"a {type(made).__name__}"
        raise InputError(f"fit: a step must return (state, loss), got {got}; put parameters and optimizer state into one tuple or dict")
    return made


def _save(checkpoints: CheckpointFolder, state: Any, step: int, metadata: Mapping[str, Any] | None, bar: Bar) -> int:
    bar.note(f"saving step {step}")
    checkpoints.save(state, step=step, metadata=metadata)
    bar.note("")
    return step


@contextmanager
def _noted() -> Iterator[threading.Event]:
    """Inside, an interrupt sets the event; a second one is an ordinary KeyboardInterrupt. Handlers exist in the main thread alone."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = {s: signal.getsignal(s) for s in SIGNALS}
    ours = [s for s, handler in before.items() if handler not in (signal.SIG_IGN, None)]  # ignored ones stay ignored (nohup)
    for s in ours:
        signal.signal(s, note)
    try:
        yield stop
    finally:
        for s in ours:
            signal.signal(s, before[s])
