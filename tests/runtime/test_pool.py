"""The worker pool: many callers, forking, leaving, more threads than cores, waking."""

from __future__ import annotations

import _thread
import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.runtime.native import Schedule, ping_pong, ping_pong_expected
from tests.shaken import HANG, ended
from tilewright.core.config import MAX_THREADS
from tilewright.core.errors import ConfigError
from tilewright.runtime.native import layout as L
from tilewright.runtime.pool import Pool, default_threads, process_pool
from tilewright.target.cpu.host import available_cores

ROOT = Path(__file__).parents[2]


def check(schedule: Schedule, rounds: int, rng: np.random.Generator) -> None:
    n = len(schedule.cells) // 2
    schedule.cells[:] = rng.integers(0, 1 << 20, 2 * n)
    expected = ping_pong_expected(schedule.cells[:n], rounds)
    assert schedule.run() == L.OK
    np.testing.assert_array_equal(schedule.cells, expected)


def test_thousands_of_small_runs() -> None:
    schedule = ping_pong(2, 16, 2)
    rng = fresh_rng()
    for _ in range(5000):
        check(schedule, 2, rng)


@pytest.mark.parametrize("light", [False, True])
def test_runs_after_the_workers_fell_asleep(light: bool) -> None:
    schedule = ping_pong(3, 16, 2, light=light)
    rng = fresh_rng()
    for k in range(60):
        time.sleep(0.001 * (k % 4))
        check(schedule, 3, rng)
        check(schedule, 3, rng)


def test_jobs_of_different_sizes_share_the_workers() -> None:
    schedules = [ping_pong(2, 16, threads) for threads in (1, 4, 2, 3, 2)]
    rng = fresh_rng()
    for _ in range(60):
        for schedule in schedules:
            check(schedule, 2, rng)


@pytest.mark.parametrize("threads", [2, 3])
def test_eight_callers_at_once(threads: int) -> None:
    failures: list[BaseException] = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        schedule = ping_pong(4, 32, threads, light=seed % 2 == 0)
        try:
            for _ in range(150):
                check(schedule, 4, rng)
        except BaseException as problem:
            failures.append(problem)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(8)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(HANG)
    assert not any(thread.is_alive() for thread in callers), "deadlock"
    assert not failures
    words = process_pool()._words
    assert words[L.POOL_BUSY // 8] == 0 and words[L.POOL_CROWD // 8] & 0xFFFFFFFF == 0


def test_a_job_that_waits_for_a_worker_without_a_core_is_followed_by_jobs_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = process_pool()
    asleep, late, after = (Schedule([(kernel, 2, 0, 0)], 2, threads=2, scratch=64) for kernel in ("asleep", "late", "where"))

    def threads(schedule: Schedule) -> int:
        assert schedule.run() == L.OK
        return len(set(schedule.cells.tolist()))

    monkeypatch.setattr("tilewright.runtime.pool.STALL_US", 500)
    monkeypatch.setattr("tilewright.runtime.pool.RETREAT_US", 10**9)
    pool._configure()
    try:
        for failures in (1, 2, 3):
            for _ in range(200):  # a caller that had to wait for a core itself has lost nothing at the barrier
                pool._set(L.POOL_FAILURES, failures - 1)
                pool._set(L.POOL_RETRY, 0)  # as if the time had passed
                threads(asleep)
                if pool._words[L.POOL_FAILURES // 8] == failures:
                    break
            assert pool._words[L.POOL_FAILURES // 8] == failures
            assert pool._words[L.POOL_RETRY // 8] > 0 and pool._words[L.POOL_LIMIT // 8] == 1
            pool._set(L.POOL_RETRY, 1 << 62)  # the time does not pass, however slow this machine is
            assert [threads(after) for _ in range(20)] == [1] * 20
        pool._set(L.POOL_RETRY, 0)
        pool._set(L.POOL_STALL, 1 << 60)  # the machine that tests are run on may be loaded
        late.run()  # the trial
        assert pool._words[L.POOL_LIMIT // 8] == 0 and pool._words[L.POOL_FAILURES // 8] == 1
    finally:
        monkeypatch.undo()
        pool._configure()
        pool._set(L.POOL_LIMIT, 0)
        pool._set(L.POOL_FAILURES, 0)


def test_a_worker_that_has_more_to_do_has_a_core() -> None:
    """However long it waited for one before: of the time of a job, what the worker ran is not lost."""
    pool, late, alone = process_pool(), *(Schedule([("late", 2, 0, 0)], 2, threads=n, scratch=64) for n in (2, 1))
    took, seen = [], []
    for _ in range(3):
        begin = time.thread_time()
        assert alone.run() == L.OK
        took.append(time.thread_time() - begin)
    for _ in range(10):
        pool._set(L.POOL_LIMIT, 0)
        begin = time.perf_counter()
        assert late.run() == L.OK
        span = time.perf_counter() - begin
        if len(set(late.cells.tolist())) == 2:
            seen.append((span, pool._words[L.POOL_LOST // 8] / pool.ticks_per_us / 1e6))
    honest = sum(lost < span - min(took) / 2 for span, lost in seen)  # not all: a clock may jump
    assert seen and honest > len(seen) / 2, f"{min(took)} s of work, seconds of jobs and those said to be lost: {seen}"


def test_more_threads_than_cores_neither_spin_nor_hang() -> None:
    threads = available_cores() * 2 + 1
    schedule = ping_pong(5, 64, threads)
    rng = fresh_rng()
    for _ in range(30):
        check(schedule, 5, rng)


@pytest.mark.parametrize("threads", [0, -1, MAX_THREADS + 1])
def test_impossible_thread_counts_are_refused(threads: int) -> None:
    with pytest.raises(ConfigError, match=rf"threads: must be an integer from 1 to {MAX_THREADS}, got {threads}"):
        process_pool().ensure(threads)


def test_the_default_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEWRIGHT_THREADS", raising=False)
    assert default_threads() == available_cores()
    monkeypatch.setenv("TILEWRIGHT_THREADS", "3")
    assert default_threads() == 3


def test_a_stopped_pool_runs_alone_and_starts_again() -> None:
    schedule = ping_pong(2, 16, 2)
    pool = process_pool()
    pool.stop()
    assert pool.workers == 0
    assert schedule.job._run(schedule.job.address) == L.FEW_WORKERS
    assert schedule.run() == L.OK, "run() starts the missing workers"
    assert pool.workers == 1
    check(schedule, 2, fresh_rng())


def test_the_system_may_refuse_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool()

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    assert pool.ensure(3) == 3
    assert pool.workers == 0 and pool.note == "threads: the system gives 1 of 3 threads (ulimit -u, pids.max); calls run on those"
    monkeypatch.undo()
    assert pool.ensure(3) == 3 and pool.workers == 0, "a system that has just refused is not asked at every call"
    monkeypatch.setattr(pool, "_patience", 0.0)
    assert pool.ensure(3) == 3 and pool.workers == 2 and pool.note == ""
    pool.close()
    assert pool.ensure(2) == 2 and pool.workers == 0, "a closed pool starts nobody"


def test_a_forked_child_gets_its_own_workers() -> None:
    schedule = ping_pong(3, 16, 2)
    rng = fresh_rng()
    own = np.random.default_rng(int(rng.integers(2**32)))  # a generator has a lock, which a child must not inherit locked
    stop = threading.Event()

    def background() -> None:
        mine = ping_pong(3, 16, 2)
        while not stop.is_set():
            check(mine, 3, own)

    other = threading.Thread(target=background)
    other.start()
    try:
        for _ in range(5):
            check(schedule, 3, rng)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    for _ in range(20):
                        check(schedule, 3, rng)
                    code = 0 if process_pool().workers >= 1 else 2
                finally:
                    os._exit(code)
            assert ended(child) == 0
            check(schedule, 3, rng)
    finally:
        stop.set()
        other.join()


def script(body: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    prelude = "from tests.runtime.native import ping_pong\nimport os, threading, time, atexit, sys\n"
    return subprocess.run([sys.executable, "-c", prelude + textwrap.dedent(body)], capture_output=True, text=True, timeout=HANG,
                          env={**os.environ, "PYTHONPATH": path, **environment}, check=False)


@pytest.mark.parametrize("spin", ["0", "100", "1000000"])
def test_leaving_while_workers_are_awake_or_asleep(spin: str) -> None:
    done = script("""
        schedule = ping_pong(3, 16, 3)
        atexit.register(lambda: print("after", schedule.run()))   # runs before the pool's own handler
        for _ in range(50): assert schedule.run() == 0
        print("done")
        """, TILEWRIGHT_IDLE_SPIN_US=spin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\nafter 0\n", "")


def test_a_call_after_the_pool_closed_runs_alone() -> None:
    done = script("""
        atexit.register(lambda: print("late", schedule.run()))   # registered first, so it runs last
        schedule = ping_pong(3, 16, 2)
        assert schedule.run() == 0
        """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "late 0\n", "")


def test_leaving_while_a_daemon_thread_is_inside_a_run() -> None:
    done = script("""
        schedule = ping_pong(500, 2000, 2)
        def forever():
            while True: schedule.run()
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(0.2)
        print("leaving", flush=True)
        """)
    assert (done.returncode, done.stdout) == (0, "leaving\n"), done.stderr
