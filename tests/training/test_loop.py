"""The training loop: a run that stops and goes on has the bits of one that did not, and an interrupt saves."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tests.shaken import HANG
from tilewright.core.errors import CheckpointError, ConfigError, InputError

rng = fresh_rng()
DATA = rng.normal(size=(64, 6)).astype(np.float32)
OPT = tw.optim.adamw(tw.optim.cosine(0.05, 30))


@pytest.fixture(autouse=True)
def usual_signals() -> Iterator[None]:
    """A test runner in the background may have been started with interrupts ignored."""
    before = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for s, handler in before.items():
        signal.signal(s, handler)


def loss_of(params: Any, x: Any) -> Any:
    hidden = tw.tanh(x @ params["w"] + params["b"])
    return tw.mean(tw.square(hidden @ params["v"] - x))


@tw.jit(donate=0)
def step(state: Any, x: Any) -> Any:
    params, kept = state
    loss, grads = tw.value_and_grad(loss_of)(params, x)
    return OPT.update(params, grads, kept), loss


def fresh(seed: int = 3) -> Any:
    r = np.random.default_rng(seed)
    params = {"w": r.normal(size=(6, 4)).astype(np.float32), "b": np.zeros(4, np.float32), "v": r.normal(size=(4, 6)).astype(np.float32)}
    return params, OPT.init(params)


def batch(i: int) -> Any:
    return DATA[i * 7 % 50 :][:9]


def flat(tree: Any) -> list[bytes]:
    from tilewright.core.pytree import flatten

    return [np.asarray(x).tobytes() for x in flatten(tree)[0]]


def test_a_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    losses: list[float] = []
    whole = tw.training.fit(step, fresh(), batch, steps=20, on_step=lambda n, loss, state: losses.append(loss))
    assert whole.step == 20 and not whole.interrupted and losses[-1] == whole.loss < losses[0]  # type: ignore[operator]
    folder = tw.training.CheckpointFolder(tmp_path / "run", keep=2)
    part = tw.training.fit(step, fresh(), batch, steps=13, checkpoints=folder, every=5)
    assert folder.steps == [10, 13] and part.step == 13
    step.clear()  # as in a new process: traced and compiled again
    rest = tw.training.fit(step, fresh(seed=99), batch, steps=20, checkpoints=folder, every=5, metadata={"run": 1})
    assert flat(rest.state) == flat(whole.state) and rest.loss == whole.loss
    assert folder.steps == [15, 20] and folder.load().metadata == {"run": 1}
    again = tw.training.fit(step, fresh(), batch, steps=20, checkpoints=folder)
    assert again.step == 20 and again.loss is None and flat(again.state) == flat(whole.state)


def test_batches_of_an_iterable_are_skipped_when_a_run_goes_on(tmp_path: Path) -> None:
    batches = [batch(i) for i in range(6)]
    whole = tw.training.fit(step, fresh(), batches)
    folder = tw.training.CheckpointFolder(tmp_path)
    tw.training.fit(step, fresh(), (b for b in batches), steps=2, checkpoints=folder)
    rest = tw.training.fit(step, fresh(), iter(batches), checkpoints=folder)
    assert (whole.step, rest.step) == (6, 6)
    assert flat(rest.state) == flat(whole.state)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_saves_and_stops(tmp_path: Path, number: int) -> None:
    folder = tw.training.CheckpointFolder(tmp_path)
    before = signal.getsignal(number)

    def interrupt(n: int, loss: float, state: Any) -> None:
        if n == 3:
            os.kill(os.getpid(), number)

    done = tw.training.fit(step, fresh(), batch, steps=100, checkpoints=folder, on_step=interrupt)
    assert done.interrupted and done.step == 3 and folder.steps == [3]
    assert signal.getsignal(number) is before
    rest = tw.training.fit(step, fresh(), batch, steps=6, checkpoints=folder)
    assert flat(rest.state) == flat(tw.training.fit(step, fresh(), batch, steps=6).state)


def test_an_impatient_user_gets_out_at_once() -> None:
    def interrupt(n: int, loss: float, state: Any) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        tw.training.fit(step, fresh(), batch, steps=100, on_step=interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_inside_a_step_leaves_no_half_step() -> None:
    """The step is one long native call with its state donated: what is returned is what that many whole steps give."""
    w = (rng.normal(size=(128, 128)) / 12).astype(np.float32)

    @tw.jit(donate=0)
    def long_step(state: Any, x: Any) -> Any:
        made = tw.fori_loop(0, 300, lambda i, s: tw.tanh(s @ w), state)
        return made, tw.mean(made)

    def begin() -> Any:
        return np.ones((128, 128), np.float32)

    tw.training.fit(long_step, begin(), lambda i: None, steps=1)  # compiled
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))

    def first(n: int, loss: float, state: Any) -> None:
        if n == 1:  # not before: until `fit` listens, the signal would end the suite
            timer.start()

    done = tw.training.fit(long_step, begin(), lambda i: None, steps=100_000, on_step=first)
    timer.join()
    assert done.interrupted and 1 <= done.step < 100_000
    assert flat(done.state) == flat(tw.training.fit(long_step, begin(), lambda i: None, steps=done.step).state)


def test_other_threads_may_train() -> None:
    found: list[Any] = []
    worker = threading.Thread(target=lambda: found.append(tw.training.fit(step, fresh(), batch, steps=3)))
    worker.start()
    worker.join(HANG)
    assert flat(found[0].state) == flat(tw.training.fit(step, fresh(), batch, steps=3).state)


def test_the_bar(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console
    from rich.progress import Progress, TextColumn

    from tilewright.training.bar import RichBar

    tw.training.fit(step, fresh(), batch, steps=3)
    assert capfd.readouterr() == ("", ""), "piped, it must be silent"
    out = StringIO()
    columns = [TextColumn("{task.completed} {task.fields[loss]} {task.fields[speed]} {task.fields[note]}")]
    clock = iter(np.arange(0.0, 1000.0, 0.25))
    with Progress(*columns, console=Console(file=out, force_terminal=True), auto_refresh=False, get_time=lambda: float(next(clock))) as p:
        bar = RichBar(p, 10, 2)
        for n in (3, 4, 5):
            bar.show(n, 0.125 * n)
        bar.note("saving step 5")
        fields = p.tasks[0].fields
        assert p.tasks[0].completed == 5 and fields["loss"] == "loss 0.625" and fields["note"] == "saving step 5"
        assert fields["speed"].endswith(" steps/s") and float(fields["speed"].split()[0]) > 0


def test_a_person_sees_the_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    tw.training.fit(step, fresh(), batch, steps=3)
    assert "training" in screen.getvalue() and "3/3" in screen.getvalue() and "loss" in screen.getvalue()


def test_bad_calls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fit: batches as a function never end; give steps="):
        tw.training.fit(step, fresh(), batch)
    with pytest.raises(ConfigError, match="every must be at least 1"):
        tw.training.fit(step, fresh(), batch, steps=1, every=0)
    with pytest.raises(InputError, match=r"a step must return \(state, loss\), got a tuple of 3"):
        tw.training.fit(lambda s, b: (s, b, 0), fresh(), batch, steps=1)  # type: ignore[arg-type, return-value]
    folder = tw.training.CheckpointFolder(tmp_path)
    folder.save({"other": np.zeros(3)}, step=1)
    with pytest.raises(CheckpointError, match=r"of another model, got .* missing in the file: 0/w"):
        tw.training.fit(step, fresh(), batch, steps=3, checkpoints=folder)
    with pytest.raises(ConfigError, match="a new run must not mix with an old one"):
        tw.training.fit(step, fresh(), batch, steps=3, checkpoints=folder, resume=False)
    assert folder.steps == [1]
