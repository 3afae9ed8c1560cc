"""Cases in a process of their own: a crash, a hang and a large allocation end that process, not the run.

Workers are forked from one server process that has imported what every campaign needs and started no threads of ours.
"""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Any

from .campaign import DEVICE, MB, Campaign, Invalid, find

ADDRESSES = 24 << 30  # bytes of address space more than at the start: a file that asks for more memory than that gets MemoryError
START = 600  # seconds for a process to start and import
ASLEEP = 6.0  # a case that waits for something, on a loaded machine for a processor, has so many times its seconds
REPEATS = 60  # cases after which growth is judged
_CONTEXT = multiprocessing.get_context("forkserver")


@dataclass(frozen=True)
class Outcome:
    kind: str  # ok, invalid, error, crash, hang, memory, leak
    what: str = ""  # the type of the exception, the signal: equal for the same failure
    detail: str = ""
    seconds: float = 0.0
    peak: int = 0  # resident bytes, the most
    left: int = 0  # resident bytes when it was done

    @property
    def failed(self) -> bool:
        return self.kind not in ("ok", "invalid")

    def same(self, other: Outcome) -> bool:
        return (self.kind, self.what) == (other.kind, other.what)


def resident(pid: int | str = "self") -> int:
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * resource.getpagesize()


def _serve(name: str, pipe: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm") as f:
        limit = int(f.read().split()[0]) * resource.getpagesize() + ADDRESSES
    campaign = find(name)
    if DEVICE == "cpu":  # a driver of a GPU reserves terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    pipe.send("ready")  # imports are no case
    while (item := pipe.recv()) is not None:
        start = time.perf_counter()
        kind, what, detail = "ok", "", ""
        try:
            campaign.run(item)
        except Invalid:
            kind = "invalid"
        except Exception as e:
            kind, what, detail = "error", type(e).__name__, traceback.format_exc()
        pipe.send(Outcome(kind, what, detail, time.perf_counter() - start, *[resident()] * 2))


def _server() -> None:
    """Start the server with our own search path: it must import this checkout's package."""
    _CONTEXT.set_forkserver_preload(["numpy", "torch", "tests.campaigns.engine.preload"])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    try:
        forkserver.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


class Worker:
    """Runs one item after the other; after a failure that ends the process a new one takes over."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.process: Any = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None

    def _open(self) -> None:
        _server()
        self.pipe, theirs = _CONTEXT.Pipe()
        self.process = _CONTEXT.Process(target=_serve, args=(self.campaign.name, theirs), daemon=True)
        self.process.start()
        theirs.close()
        if not self.pipe.poll(START) or self.pipe.recv() != "ready":
            raise TimeoutError(f"campaign {self.campaign.name}: its process did not start in {START} s")

    def run(self, item: Any, patience: float = 1.0) -> Outcome:
        """One case; `patience` multiplies its seconds: of the processor, or `ASLEEP` times as many of the clock where it waits."""
        if self.process is None:
            self._open()
        allowed = self.campaign.seconds * patience
        start, before, peak = time.monotonic(), self._spent(), 0
        self.pipe.send(item)
        while True:
            try:
                if self.pipe.poll(0.05):
                    found: Outcome = self.pipe.recv()
                    return replace(found, peak=max(found.peak, peak))
            except (EOFError, ConnectionResetError):
                return self._dead(start, peak)
            peak = max(peak, self._resident())
            if peak > self.campaign.memory:
                self.close()
                return Outcome("memory", detail=f"resident {peak // MB} MB, allowed {self.campaign.memory // MB} MB", peak=peak)
            if self._spent() - before > allowed or time.monotonic() - start > ASLEEP * allowed:
                self.close()
                return Outcome("hang", detail=f"no end after {allowed:.1f} s", seconds=allowed, peak=peak)

    def _spent(self) -> float:
        """Seconds of the processor that the process has had: other processes on the machine do not count."""
        try:
            with open(f"/proc/{self.process.pid}/stat") as f:
                words = f.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return 0.0
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")

    def _resident(self) -> int:
        try:
            return resident(self.process.pid)
        except (FileNotFoundError, ProcessLookupError, IndexError):
            return 0

    def _dead(self, start: float, peak: int) -> Outcome:
        self.process.join(5)
        code = self.process.exitcode
        self.close()
        what = signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"
        return Outcome("crash", what, f"the process ended: {what}", time.monotonic() - start, peak)


def trial(campaign: Campaign, items: Iterable[Any], *, leak: bool = False) -> Outcome:
    """The first failure of these items in a new process, with twelve times the patience. With `leak` they run again and again, and the
    second half must not leave more memory behind than the campaign allows."""
    items = tuple(items)
    with Worker(campaign) as worker:
        after = []
        for _ in range(2 * max(1, REPEATS // max(1, 2 * len(items))) if leak else 1):
            for item in items:
                found = worker.run(item, patience=12.0)
                if found.kind != "ok" and not leak:
                    return found
                after.append(found.left if not found.failed or worker.process is None else resident(worker.process.pid))
        half = len(after) // 2
        grown = after[-1] - after[half - 1] if leak and half else 0
        if grown > campaign.growth * (len(after) - half):
            return Outcome("leak", detail=f"{grown / MB:.0f} MB left behind by {len(after) - half} cases", peak=after[-1])
    return Outcome("ok")
