"""The schedule walker: parts of a grid, barriers, patches, scratch, errors, cancelling, profiling."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.runtime.native import Schedule, ping_pong, ping_pong_expected
from tilewright.core.errors import UnsupportedError
from tilewright.core.target_spec import REFERENCE
from tilewright.runtime.native import layout as L
from tilewright.runtime.native.job import Job, patches, thunks
from tilewright.runtime.native.walker import runtime_ir
from tilewright.target.cpu import jit

THREADS = [1, 2, 3, 5]


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("grid", [0, 1, 2, 3, 7, 64, 1001])
@pytest.mark.parametrize(("chunk", "piece", "share"), [
    (0, 0, 0), (1, 0, 0), (4, 0, 0), (1000, 0, 0), (0, 1, 0), (1, 5, 0), (4, 3, 0), (1, 2000, 0), (0, 0, 1), (0, 0, 5), (0, 0, 2000)])
def test_every_program_runs_exactly_once(threads: int, grid: int, chunk: int, piece: int, share: int) -> None:
    schedule = Schedule([("add", grid, 0, chunk)], grid + 1, threads=threads, piece=piece, share=share)
    for k in range(1, 4):
        assert schedule.run() == L.OK
        assert (schedule.cells[:grid] == k).all() and schedule.cells[grid] == 0


@pytest.mark.parametrize("threads", THREADS)
def test_parts_are_balanced_whole_chunks(threads: int) -> None:
    grid, chunk = 50, 4
    schedule = Schedule([("where", grid, 0, chunk)], grid, threads=threads, scratch=100)
    schedule.run()
    homes, counts = np.unique(schedule.cells, return_counts=True)
    assert len(homes) == threads and (np.diff(homes) % 128 == 0).all(), "each thread has its own scratch"
    assert (np.diff(schedule.cells) != 0).sum() == threads - 1, "parts are contiguous"
    assert (np.flatnonzero(np.diff(schedule.cells)) + 1 & chunk - 1 == 0).all(), "cuts stand between chunks"
    assert counts.max() - counts.min() <= 2 * chunk


def test_every_second_call_walks_from_the_end_in_pieces() -> None:
    schedule = Schedule([("order", 10, 0, 1)], 11, n=10, piece=4)
    orders = []
    for _ in range(3):
        schedule.cells[:] = 0
        schedule.run()
        orders.append(np.argsort(schedule.cells[:10]).tolist())
    assert orders[0] == orders[2]
    assert sorted(orders[:2]) == [list(range(10)), [6, 7, 8, 9, 2, 3, 4, 5, 0, 1]]


def test_a_thread_that_is_done_takes_over_what_another_has_left() -> None:
    grid = 40
    schedule = Schedule([("uneven", grid, 0, 0)], grid + 1, n=grid, threads=2, share=1)
    schedule.run()
    assert schedule.cells[0] == grid - 1, "the first program waits for all others: the other thread must run them"


@pytest.mark.parametrize("threads", [2, 3])
def test_a_serial_thunk_runs_on_the_first_thread(threads: int) -> None:
    schedule = Schedule([("where", 40, L.SERIAL, 1)], 40, threads=threads, scratch=100)
    schedule.run()
    assert len(np.unique(schedule.cells)) == 1


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("share", [0, 2])
def test_barriers_order_what_threads_exchange(threads: int, share: int) -> None:
    rounds, n = 20, 37
    schedule = ping_pong(rounds, n, threads, share=share)
    rng = fresh_rng()
    for _ in range(300 if threads <= 2 else 40):
        schedule.cells[:] = rng.integers(0, 1 << 20, 2 * n)
        expected = ping_pong_expected(schedule.cells[:n], rounds)
        assert schedule.run() == L.OK
        np.testing.assert_array_equal(schedule.cells, expected)


def test_without_its_barriers_the_exchange_goes_wrong() -> None:
    """The test above can fail: a schedule without barriers soon reads stale cells."""
    rounds, n = 200, 64
    schedule = Schedule([("mirror" if k % 2 == 0 else "fold", n, 0, 1) for k in range(2 * rounds)], 2 * n, n=n, threads=2)
    for _ in range(2000):
        schedule.cells[:] = np.arange(2 * n)
        schedule.run()
        if (schedule.cells != ping_pong_expected(np.arange(n), rounds)).any():
            return
    pytest.fail("2000 runs without barriers were right: the barrier tests prove nothing")


def test_patches_put_each_calls_pointers_into_the_arguments() -> None:
    schedule = Schedule([("add", 4, 0, 1)], 4)
    other = np.zeros(16, np.int64)
    schedule.job.io[0] = other.ctypes.data
    schedule.run()
    assert other[:4].tolist() == [1] * 4 and not schedule.cells.any()
    arguments = np.zeros(2, np.int64)
    table = thunks(1)
    table[0] = (schedule.job._keep[0][0, L.THUNK_FN], arguments.ctypes.data, 3, 0, 1, 0, 0, 0)
    job = Job(table, patches([(arguments.ctypes.data, 1, 40)]), threads=1, io_count=2, keep=arguments)
    job.io[:] = 0, other.ctypes.data
    job.run()
    assert arguments[0] == other.ctypes.data + 40 and other.tolist() == [1] * 4 + [0] + [1] * 3 + [0] * 8


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_word_gives_the_failed_status_once(threads: int) -> None:
    schedule = Schedule([("fail", 5, L.SERIAL, 1)], 5, threads=threads)
    schedule.arguments[0, 1] = schedule.job.error_address
    assert schedule.run() == L.FAILED
    assert schedule.job.error[0] == 7 and schedule.job.error[2] == 4
    schedule.job._keep[0][0, L.THUNK_GRID] = 0
    assert schedule.run() == L.OK and not schedule.job.error.any(), "the next run starts clean"


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_set_cancel_word_ends_the_run(threads: int) -> None:
    schedule = ping_pong(50, 8, threads)
    schedule.job.cancel[0] = 1
    assert schedule.run() == L.CANCELLED
    schedule.job.cancel[0] = 0
    schedule.cells[:] = 5
    assert schedule.run() == L.OK
    np.testing.assert_array_equal(schedule.cells, ping_pong_expected(np.full(8, 5), 50))


@pytest.mark.parametrize("threads", [1, 2])
def test_cancelling_a_long_run_from_another_thread(threads: int) -> None:
    n = 20000
    schedule = ping_pong(20000, n, threads)  # many seconds when nobody stops it
    timer = threading.Timer(0.1, lambda: schedule.job.cancel.__setitem__(0, 1))
    timer.start()
    assert schedule.run() == L.CANCELLED
    timer.join()


@pytest.mark.parametrize("threads", [1, 2])
def test_profiling_records_each_thread_of_each_thunk(threads: int) -> None:
    schedule = ping_pong(2, 64, threads)
    schedule.run()
    begin = time.perf_counter()
    status, ticks = schedule.job.run_profiled()
    wall = (time.perf_counter() - begin) * 1e6
    assert status == L.OK and ticks.shape == (4, threads, 2)
    assert (ticks[:, :, 0] > 0).all() and (ticks[:, :, 1] >= ticks[:, :, 0]).all()
    assert (ticks[1:, :, 0].min(axis=1) >= ticks[:-1, :, 1].max(axis=1)).all(), "a barrier lies between two thunks"
    elapsed = (ticks.max() - ticks.min()) / schedule.job.pool.ticks_per_us
    assert 0 < elapsed < 1.5 * wall, "microseconds, as long as another clock says at most"


def test_profiling_a_run_without_workers_keeps_the_shape() -> None:
    schedule = ping_pong(2, 64, 2)
    schedule.job.pool.stop()
    _, ticks = schedule.job.run_profiled()
    assert (ticks[:, 0, 0] > 0).all() and not ticks[:, 1].any()


def test_other_systems_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="runtime: worker threads sleep on Linux futexes, this is"):
        runtime_ir(REFERENCE)


def test_the_runtime_compiles_for_arm() -> None:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    features = frozenset({"neon", "lse"})
    arm = dataclasses.replace(REFERENCE, kind="cpu", triple="aarch64-unknown-linux-gnu", cpu="neoverse-n1", features=features)
    text = jit.assembly(runtime_ir(arm), arm)
    assert "cntvct_el0" in text.lower() and "isb" in text and "swpal" in text
    with pytest.raises(UnsupportedError, match="runtime: no native runtime for riscv64-linux; supported: x86-64, AArch64"):
        runtime_ir(dataclasses.replace(arm, triple="riscv64-linux"))
