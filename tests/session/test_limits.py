"""A system that gives no threads or no memory: calls go on with what there is, or say what was too large, and the next call works."""

from __future__ import annotations

import _thread
import mmap
import os
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tilewright as tw
from tests.shaken import HANG
from tilewright.build import ahead
from tilewright.compile import Stages
from tilewright.core.workers import Workers, spawn
from tilewright.runtime import pool, workspace
from tilewright.runtime.memory import Allocation, OutOfMemory
from tilewright.target.cpu import jit
from tilewright.target.cpu.host import host_target

ROOT = Path(__file__).parents[2]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.usefixtures("no_threads")
def test_a_model_compiles_and_runs_without_threads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))  # nothing is there: all is compiled
    monkeypatch.setenv("TILEWRIGHT_COMPILE_THREADS", "4")
    monkeypatch.setattr(ahead, "LEAST", 1)
    monkeypatch.setattr(pool, "_pool", made := pool.Pool())
    model = torch.nn.Sequential(torch.nn.Linear(2048, 600), torch.nn.GELU(), torch.nn.Linear(600, 5)).eval()
    x = torch.randn(70, 2048)
    session = tw.compile(model, (x,), threads=3, progress=True)
    for _ in range(3):
        torch.testing.assert_close(session(x), model(x).detach(), rtol=1e-4, atol=1e-5)
    assert made.workers == 0 and session.threads == 3
    assert "threads: the system gives 1 of 3 threads (ulimit -u, pids.max); calls run on those" in session.report().data["notes"]


def test_work_without_threads_is_done_here(no_threads: None) -> None:
    here = threading.get_ident()
    with Workers(3) as workers:
        assert workers.map(lambda k: (k * k, threading.get_ident()), range(5)) == [(k * k, here) for k in range(5)]
        with pytest.raises(ZeroDivisionError):
            workers.submit(lambda: 1 // 0).result()
    assert spawn(lambda: None) is None
    stages = Stages("nothing is shown", True)
    with stages.stage("one"):
        pass
    stages.close()


def test_work_on_threads() -> None:
    here, helped, who = threading.get_ident(), threading.Event(), set()

    def work(k: int) -> int:
        who.add(threading.get_ident())
        if threading.get_ident() != here:
            helped.set()
        assert helped.wait(HANG), "no other thread does anything"
        return k * k

    with Workers(3) as workers:
        assert workers.map(work, (k for k in range(20))) == [k * k for k in range(20)]
        assert len(who) >= 2
        done: list[int] = []
        with pytest.raises(ValueError, match="generator"):
            workers.map(done.append, _broken())
    assert set(done) <= {0, 1, 2}


def _broken() -> Iterator[int]:
    yield from range(3)
    raise ValueError("generator")


@pytest.mark.parametrize("when", ["never", "late"])
def test_a_thread_that_dies_before_its_first_line(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """As it does where there is no memory for its frame. `threading.Thread.start` would wait for ever."""
    kept: list[Any] = []
    monkeypatch.setattr(_thread, "start_new_thread", lambda work, args: kept.append(work))
    monkeypatch.setattr("tilewright.core.workers.PATIENCE_S", 0.05)
    done: list[int] = []
    assert spawn(done.append, 1) is None
    with Workers(2) as workers:
        assert workers.map(lambda k: k + 1, range(4)) == [1, 2, 3, 4]
    if when == "late":
        for work in kept:
            work()
    assert not done, "whoever waited has gone on without it"


def limited(code: str, spare: int = 300, *, cache: bool = False) -> str:
    """The output of `code` where `limit()` leaves the process `spare` MB of memory from then on; large blocks that were freed are the
    system's. Without a cache LLVM is loaded by then."""
    head = f"""
        import resource, sys
        import numpy as np, torch, tilewright as tw
        from tilewright.core.errors import TilewrightError

        def limit():
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + ({spare} << 20), resource.RLIM_INFINITY))

        def expect(call):
            try:
                call()
            except TilewrightError as e:
                print(type(e).__name__, isinstance(e, MemoryError), e)
            else:
                print("it worked")
    """
    settings = {"MALLOC_MMAP_THRESHOLD_": "65536"} | ({} if cache else {"TILEWRIGHT_CACHE_BYTES": "0"})
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(head) + textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT,
                         timeout=HANG, check=False, env={**os.environ, **settings})
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout


def test_results_too_large_for_the_memory() -> None:
    out = limited("""
        class Grow(torch.nn.Module):
            def forward(self, x):
                return (x[:, None] * x[None, :]).softmax(-1), x + 1

        session = tw.compile(Grow(), (torch.randn(8),), dynamic={"x": {0: tw.Dim("n", 1, 1 << 20)}}, threads=1)
        f = tw.jit(lambda x: x[:, None] * x[None, :])
        small = torch.randn(8)
        want = session(small)
        session(small), f(small.numpy()), tw.multiply(np.ones((4, 1), np.float32), np.ones((1, 4), np.float32))
        limit()
        large = torch.randn(40_000)
        for _ in range(3):
            expect(lambda: session(large))
            expect(lambda: session(large.numpy()))
            expect(lambda: f(large.numpy()))
            expect(lambda: tw.multiply(np.ones((40_000, 1), np.float32), np.ones((1, 40_000), np.float32)))
            for x in (small, small * 1):
                assert all(torch.equal(a, b) for a, b in zip(session(x), want)), "the next call"
            np.testing.assert_array_equal(f(small.numpy()), small.numpy()[:, None] * small.numpy())
    """).splitlines()
    call = r"OutOfMemory True session: Grow: no memory for a call with n = 40000, whose results take 6,400,160,000 bytes and whose inter"
    product = r"OutOfMemory True jit: .*: no memory for a call with f32\[40000\]"
    for lines in (out[:4], out[4:8], out[8:12]):
        for line, start in zip(lines, (call, call, product, r"OutOfMemory True memory: cannot allocate 6,4\d\d,"),
                               strict=True):
            assert re.match(start, line) and "or raise the limit on this process's memory" in line, line


def test_an_arena_too_large_for_the_memory() -> None:
    out = limited("""
        class Inside(torch.nn.Module):
            def forward(self, x):
                y = (x[:, None] * x[None, :]).softmax(-1)
                return (y @ y).sum()

        session = tw.compile(Inside(), (torch.randn(8),), dynamic={"x": {0: tw.Dim("n", 1, 1 << 20)}}, threads=1)
        small = torch.randn(8)
        want = session(small)
        session(small)
        limit()
        for _ in range(3):
            expect(lambda: session(torch.randn(20_000)))
            assert torch.equal(session(small), want) and torch.isfinite(session(torch.randn(40)))
    """).splitlines()
    assert len(out) == 3
    for line in out:
        assert line.startswith("OutOfMemory True session: Inside: no memory for a call with n = 20000, whose results take 4 bytes")


def test_a_language_model_without_memory_inside_a_call(tmp_path: Path) -> None:
    """The state is as it was, nobody's arrays are written to, and the same call works when there is memory."""
    begin = f"""
        from tilewright.llm.tiny import write_tiny_model
        llm = tw.load_llm(write_tiny_model({str(tmp_path / "m.gguf")!r}, width=512, layers=1, context=512), threads=1)
        ids, limits = np.arange(300) % 200, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)

        def begun():
            state = llm.start()
            llm.feed(state, [1]), llm.feed(state, [2])
            return state

        state, mine = begun(), []
    """
    limited(begin + "    llm.feed(state, ids)", cache=True)  # a process that has compiled keeps memory that was LLVM's
    out = limited(f"""{begin}
        for _ in range(3):
            limit()
            expect(lambda: llm.feed(state, ids))
            resource.setrlimit(resource.RLIMIT_AS, limits)
            mine += [np.full(n, 85, np.uint8) for n in (4000, 8000, 11000) for _ in range(1000)]
            assert state.length == 2, f"{{state.length}}, not as it was"
            llm.feed(llm.start(), [3])
            assert all((a == 85).all() for a in mine)
        np.testing.assert_array_equal(llm.feed(state, ids), llm.feed(begun(), ids))
        assert state.length == 302 and all((a == 85).all() for a in mine)
    """, spare=1, cache=True).splitlines()
    said = "OutOfMemory True session: llama: no memory for a call with P = 2, S = 256"
    assert len(out) == 3 and all(line.startswith(said) for line in out), out


def test_weights_too_large_for_the_memory() -> None:
    out = limited("""
        model = torch.nn.Linear(8192, 8192)
        small = torch.nn.Linear(8, 8)
        tw.compile(small, (torch.randn(2, 8),))
        limit()
        expect(lambda: tw.compile(model, (torch.randn(2, 8192),)))
        session = tw.compile(small, (torch.randn(2, 8),))
        assert torch.isfinite(session(torch.randn(2, 8))).all()
    """, spare=200)
    assert out.startswith("CompileError False compile: no memory for Linear (") and "raise the limit on this process's memory" in out


def test_a_workspace_without_an_arena_forgets_what_lay_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever gives a workspace back after an error must not find schedules in it that point to memory that is gone."""
    class Inside(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, None] * x[None, :]).softmax(-1) @ x

    session = tw.compile(Inside(), (torch.randn(8),), dynamic={"x": {0: tw.Dim("n", 1, 4096)}}, threads=1)
    session(torch.randn(8))
    space = session.take()
    assert len(space.instances) == 1

    def refuse(nbytes: int, **_: Any) -> Any:
        if nbytes > 1 << 20:
            raise OutOfMemory("memory: no")
        return made(nbytes)

    made = Allocation
    monkeypatch.setattr(workspace, "Allocation", refuse)
    with pytest.raises(OutOfMemory):
        space.job((4000,))
    assert not space.instances and space.nbytes <= 1 << 20
    session.give(space)
    x = torch.randn(8)
    torch.testing.assert_close(session(x), Inside()(x))


def test_llvm_is_not_asked_for_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_target()

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match=r"llvm: a kernel of [\d,]+ characters may take [\d,]+ bytes to compile, .*Cannot allocate"):
        jit.compile_ir("define void @f() {\n  ret void\n}\n", target)
