"""Eight clients of one session and one language model for a while, with random cancels: every text and tensor has the bits that it has
alone, and memory stays flat. `python -m tests.campaigns clients:HOUR` takes an hour."""

from __future__ import annotations

import random
import sys
import threading
import time
from dataclasses import dataclass

import numpy as np

from .engine.campaign import DEVICE, MB, Campaign
from .leaks import resident
from .threads import alone, perform

CLIENTS = 8
WORK = ("session", "out", "generate", "generate", "batch", "feed", "leave", "leave")
MEMORY = (1536 if DEVICE == "cpu" else 12288) * MB
SLACK = (24 if DEVICE == "cpu" else 256) * MB  # states and workspaces of as many clients as there ever were at once


@dataclass(frozen=True)
class Stay:
    seconds: float
    seed: int


def draw(rng: np.random.Generator) -> Stay:
    return Stay(0.4, int(rng.integers(1 << 32)))


def minute(rng: np.random.Generator) -> Stay:
    return Stay(60.0, int(rng.integers(1 << 32)))


def hour(rng: np.random.Generator) -> Stay:
    return Stay(3600.0, int(rng.integers(1 << 32)))


def together(seconds: float, seed: int) -> int:
    """Calls that all clients made in this time, each compared with what it gives alone."""
    end, wrong, calls = time.monotonic() + seconds, list[str](), [0] * CLIENTS

    def client(me: int) -> None:
        chance = random.Random(seed + me)
        while time.monotonic() < end and not wrong:
            what, number = chance.choice(WORK), chance.randrange(40)
            try:
                if perform(what, number, None) != alone(what, number):
                    wrong.append(f"{what} {number}: other bits than alone")
            except Exception as e:
                wrong.append(f"{what} {number}: {type(e).__name__}: {e}")
            calls[me] += 1

    crew = [threading.Thread(target=client, args=(me,)) for me in range(CLIENTS)]
    for c in crew:
        c.start()
    for c in crew:
        c.join()
    assert not wrong, wrong[0]
    return sum(calls)


def check(stay: Stay) -> None:
    for what in sorted(set(WORK)):
        for number in range(40):
            alone(what, number)
    together(stay.seconds / 4, stay.seed)
    before = resident()
    calls = together(stay.seconds, stay.seed + CLIENTS)
    grown = resident() - before
    print(f"{CLIENTS} clients: {calls} calls in {stay.seconds:.0f} s, memory grew by {grown / MB:.1f} MB", file=sys.stderr)
    assert grown < SLACK, f"{calls} calls left {grown / MB:.1f} MB behind"


CAMPAIGN = Campaign(draw=draw, check=check, quick=2, seconds=60.0, memory=MEMORY, growth=16.0 * MB, keep=("seconds",))
MINUTE = Campaign(draw=minute, check=check, quick=1, seconds=600.0, memory=MEMORY, growth=64.0 * MB, keep=("seconds",))
HOUR = Campaign(draw=hour, check=check, quick=1, seconds=6000.0, memory=MEMORY, growth=64.0 * MB, keep=("seconds",))
