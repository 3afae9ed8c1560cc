"""Campaigns with a bug planted in each, one for every way to fail: what the runner must find, shrink and replay."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass

import numpy as np

from .campaign import MB, Campaign, Invalid

KEPT: list[bytearray] = []
DAMAGED: list[int] = []


@dataclass(frozen=True)
class Step:
    kind: str
    amount: int


@dataclass(frozen=True)
class Steps:
    steps: tuple[Step, ...]


def draw(rng: np.random.Generator) -> Steps:
    kinds = ["add", "mul", "bad"] if rng.random() < 0.2 else ["add", "mul"]
    return Steps(tuple(Step(str(rng.choice(kinds)), int(rng.integers(2, 100))) for _ in range(int(rng.integers(1, 12)))))


def _bad(subject: Steps) -> bool:
    """The bug: a step `bad` of at least 7 that follows another step."""
    return any(s.kind == "bad" and s.amount >= 7 for s in subject.steps[1:])


def wrong_number(subject: Steps) -> None:
    if any(s.amount == 1 for s in subject.steps):
        raise Invalid
    got = sum(s.amount for s in subject.steps) + _bad(subject)
    assert got == sum(s.amount for s in subject.steps), f"got {got}"


def untyped(subject: Steps) -> None:
    if _bad(subject):
        raise KeyError("bad")


def crash(subject: Steps) -> None:
    if _bad(subject):
        ctypes.string_at(0)


def hang(subject: Steps) -> None:
    while _bad(subject):
        pass


def sleep(subject: Steps) -> None:
    while _bad(subject):
        time.sleep(0.1)


def large(subject: Steps) -> None:
    if _bad(subject):
        block = np.ones(400 * MB, np.uint8)
        time.sleep(0.3)
        del block


def leak(subject: Steps) -> None:
    KEPT.extend(bytearray(4 * MB) for _ in range(_bad(subject)))


def later(rng: np.random.Generator) -> None:
    """Two cases that fail together only."""
    number = int(rng.integers(8))
    DAMAGED.append(number)
    assert {2, 5} - set(DAMAGED), "both"


WRONG = Campaign(draw=draw, check=wrong_number, quick=1)
UNTYPED = Campaign(draw=draw, check=untyped, quick=1)
CRASH = Campaign(draw=draw, check=crash, quick=1)
HANG = Campaign(draw=draw, check=hang, quick=1, seconds=0.05)
ASLEEP = Campaign(draw=draw, check=sleep, quick=1, seconds=0.05)
LARGE = Campaign(draw=draw, check=large, quick=1, memory=500 * MB)
LEAK = Campaign(draw=draw, check=leak, quick=1, growth=0.1 * MB)
LATER = Campaign(case=later, quick=1)
SOUND = Campaign(draw=draw, check=lambda s: None, quick=1)
