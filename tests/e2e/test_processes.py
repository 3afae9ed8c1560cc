"""Threads and processes: many callers of one session, fork, exit, saved sessions in a process without torch, damaged files."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.e2e.compare import assert_close, eager
from tests.e2e.families import FAMILIES, imported, module_of
from tests.shaken import HANG, at_once
from tilewright.compile import compile_graph, target_spec
from tilewright.core.errors import FormatError

SAVED = ["mlp", "block", "gpt2", "bert", "convnet"]


def compiled(name: str, threads: int | None = 2) -> tw.Session:
    found = imported(name, dynamic=True)
    return compile_graph(found.graph, found.signature, target_spec("cpu"), threads=threads)


@pytest.mark.parametrize("name", ["block", "gpt2"])
def test_eight_callers_of_one_session(name: str) -> None:
    session, family = compiled(name), FAMILIES[name]
    calls = [family.args(b, s) for b, s in [(1, 1), (1, 64), (3, 17), (2, 33), (8, 9), (1, 40), (2, 2), (5, 21)]]
    wants = [session(*args) for args in calls]
    for args, want in zip(calls, wants, strict=True):
        assert_close(want, eager(module_of(name), args))

    def work(i: int) -> None:
        for k in range(40):
            j = (i + k) % len(calls)
            assert torch.equal(session(*calls[j]), wants[j])

    at_once(8, work)


def test_callers_of_several_sessions_and_one_that_closes() -> None:
    sessions = {n: compiled(n) for n in ("mlp", "block", "gpt2")}
    args = {n: FAMILIES[n].args(2, 20) for n in sessions}
    wants = {n: s(*args[n]) for n, s in sessions.items()}

    def work(i: int) -> None:
        name = list(sessions)[i % 3]
        for _ in range(30):
            assert torch.equal(sessions[name](*args[name]), wants[name])
        with compiled("mlp", threads=1 + i % 3) as own:
            assert torch.equal(own(*args["mlp"]), wants["mlp"])

    at_once(6, work)


def test_compiles_in_several_threads() -> None:
    args = FAMILIES["block"].args(2, 9)
    want = compiled("block")(*args)

    def work(i: int) -> None:
        assert torch.equal(compiled("block", threads=1 + i % 3)(*args), want)

    at_once(4, work)


def test_bad_calls_beside_good_ones() -> None:
    """An error in one caller's workspace is not seen by another caller."""
    session = compiled("gpt2")
    good = FAMILIES["gpt2"].args(2, 12)
    bad = good[0].clone()
    bad[1, 5] = 1000
    want = session(*good)

    def work(i: int) -> None:
        for _ in range(30):
            if i % 2:
                with pytest.raises(tw.ExecutionError, match="got 1000 at position 17"):
                    session(bad)
            else:
                assert torch.equal(session(*good), want)

    at_once(6, work)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_fork() -> None:
    """A forked child has no workers; it computes the same bits, starts its own, and the parent goes on."""
    session = compiled("block", threads=2)
    args = FAMILIES["block"].args(3, 30)
    want = session(*args)
    for _ in range(3):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                good = all(torch.equal(session(*args), want) for _ in range(20))
                code = 0 if good and torch.equal(compiled("block", threads=3)(*args), want) else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert torch.equal(session(*args), want)


CHILD = """
import sys, numpy as np
import tilewright as tw
path, data = sys.argv[1:]
session = tw.load(path)
stored = np.load(data)
names = sorted(n for n in stored.files if n.startswith("in"))
for _ in range(2):
    out = session(*(stored[n] for n in names))
assert isinstance(out, np.ndarray), type(out)
assert np.array_equal(out, stored["out"]), float(np.abs(out - stored["out"]).max())
assert session.model.notes == [], session.model.notes
assert "torch" not in sys.modules
print("same bits without torch")
"""


def child(code: str, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", code, *argv], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **env}, check=False)


@pytest.mark.parametrize("name", SAVED)
def test_a_saved_session_in_a_fresh_process(name: str, tmp_path: Path) -> None:
    session = compiled(name)
    args = FAMILIES[name].args(2, 11)
    want = session(*args)
    session.save(tmp_path / "model.tw")
    loaded = tw.load(tmp_path / "model.tw")
    assert torch.equal(loaded(*args), want)
    np.savez(tmp_path / "data.npz", out=want.numpy(), **{f"in{i}": a.numpy() for i, a in enumerate(args)})
    cache = tmp_path / "cache"  # another cache folder, without code: the key does not depend on it
    done = child(CHILD, str(tmp_path / "model.tw"), str(tmp_path / "data.npz"), TILEWRIGHT_CACHE_DIR=str(cache))
    assert (done.returncode, done.stdout.strip()) == (0, "same bits without torch"), done.stderr
    objects = [entry for entry in cache.glob("*.o") if b"\x7fELF" in entry.read_bytes()[:256]]
    assert len(objects) == 1, "only the runtime itself is compiled"


@pytest.mark.parametrize("level", ["baseline", "avx2"])
def test_a_saved_session_on_another_cpu_compiles_from_its_graph(level: str, tmp_path: Path) -> None:
    args = FAMILIES["gpt2"].args(2, 11)
    session = compiled("gpt2")
    session.save(tmp_path / "model.tw")
    np.savez(tmp_path / "data.npz", out=session(*args).numpy(), in0=args[0].numpy())
    code = CHILD.replace("assert np.array_equal(out, stored[\"out\"])", "assert np.abs(out - stored[\"out\"]).max() < 1e-4")
    code = code.replace("assert session.model.notes == []", "assert 'another kind of CPU' in session.model.notes[0]")
    done = child(code, str(tmp_path / "model.tw"), str(tmp_path / "data.npz"), TILEWRIGHT_CPU=level)
    assert (done.returncode, done.stdout.strip()) == (0, "same bits without torch"), done.stderr


def test_a_damaged_file(tmp_path: Path) -> None:
    """Cut or changed anywhere: an error of ours or, in the weights, other numbers; never a crash, and the next load works."""
    session = compiled("block")
    args = FAMILIES["block"].args(1, 5)
    want = session(*args)
    session.save(tmp_path / "good.tw")
    raw = (tmp_path / "good.tw").read_bytes()
    rng = random.Random(1)
    bad = tmp_path / "bad.tw"
    messages: list[str] = []
    for _ in range(40):
        if rng.random() < 0.4:
            bad.write_bytes(raw[: rng.randrange(len(raw))])
        else:
            at = rng.randrange(len(raw))
            bad.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << rng.randrange(8))]) + raw[at + 1 :])
        try:
            tw.load(bad)(*args)
        except FormatError as e:
            messages.append(str(e))
    assert len(messages) > 10
    assert all(m.startswith("archive: ") for m in messages)
    for junk in (b"", b"not a session", os.urandom(5000), raw[:8] + b"\xff" * 100):
        bad.write_bytes(junk)
        with pytest.raises(FormatError, match=r"^archive: .*bad\.tw"):
            tw.load(bad)
    with pytest.raises((FormatError, FileNotFoundError), match=r"missing\.tw"):
        tw.load(tmp_path / "missing.tw")
    assert torch.equal(tw.load(tmp_path / "good.tw")(*args), want)


EXIT = """
import atexit, threading, time, torch, tilewright as tw
session = tw.compile(torch.nn.Linear(64, 64), (torch.randn(256, 64),), threads=3)
session(torch.randn(256, 64))
x = torch.randn(256, 64){kind}
square = torch.randn(1500, 1500, dtype=torch.float64)
def forever():
    while True:
        session(x)
        {between}
for _ in range({callers}):
    threading.Thread(target=forever, daemon=True).start()
atexit.register(lambda: session(x))
{atlast}
print("end")
"""
PATIENT = "from tilewright.runtime import session as module; module.PATIENCE = 1e9"


@pytest.mark.parametrize(("callers", "kind", "between"), [(0, "", ""), (2, ".numpy()", ""), (2, "", ""), (2, "", "square @ square")])
def test_a_process_ends_with_workers_and_callers_alive(callers: int, kind: str, between: str) -> None:
    """PyTorch aborts where Python takes a thread away inside it, so calls end first, and what threads do between two of them. However long
    that takes on a loaded machine."""
    done = child(EXIT.format(callers=callers, kind=kind, between=between, atlast=PATIENT))
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_a_process_does_not_wait_for_threads_that_wait() -> None:
    """However they wait, and were it for ever."""
    waits = ("time.sleep(1e6)", "threading.Event().wait()", "any(threading.Event().wait(1e-3) for _ in iter(int, 1))")
    start = "; ".join(f"threading.Thread(target=lambda: {wait}, daemon=True).start()" for wait in waits)
    done = child(EXIT.format(callers=0, kind="", between="", atlast=f"{start}; {PATIENT}"))
    assert (done.returncode, done.stdout.strip()) == (0, "end"), done.stderr


def test_the_reference_target_can_be_saved(tmp_path: Path) -> None:
    found = imported("mlp", dynamic=True)
    session = compile_graph(found.graph, found.signature, target_spec("reference"))
    args = FAMILIES["mlp"].args(2, 1)
    session.save(tmp_path / "reference.tw")
    assert_close(tw.load(tmp_path / "reference.tw")(*args), session(*args))
