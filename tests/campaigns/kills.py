"""Processes that die while they save a session, a checkpoint, a model or the code cache: the next one finds the old file or the new one,
whole, and works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.shaken import HANG

from .engine.campaign import FOLDER, Campaign
from .limits import PARTS, right

ROOT = FOLDER.parents[1]


@dataclass(frozen=True)
class Case:
    part: str
    milliseconds: tuple[int, ...]  # a process is killed after each
    at_once: int  # processes that share folder and cache
    signal: int


def draw(rng: np.random.Generator) -> Case:
    times = tuple(int(t) for t in rng.integers(50, 2500, int(rng.integers(1, 4))))
    how = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT)[int(rng.integers(3))]
    return Case(str(rng.choice(PARTS[1:])), times, int(rng.integers(1, 3)), int(how))


def check(case: Case) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "TILEWRIGHT_CACHE_DIR": f"{place}/cache",
               "TILEWRIGHT_KEY_FILE": f"{place}/key"}  # fmt: skip
        command = [sys.executable, "-m", "tests.campaigns.processes.child", str(folder), case.part]
        for wait in case.milliseconds:
            running = [
                subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                for _ in range(max(1, case.at_once))
            ]
            time.sleep(wait / 1000)
            for p in running:
                p.send_signal(case.signal)
            for p in running:
                p.wait(HANG)
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=HANG)
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout == right(case.part)
        left = {p.name for p in folder.iterdir() if not p.name.startswith(".")} - {"session.tw", "tiny.gguf", "c.safetensors"}
        assert not left, left


CAMPAIGN = Campaign(draw=draw, check=check, quick=1, seconds=60.0, keep=("part", "signal"))
