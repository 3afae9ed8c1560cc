"""What a campaign is: a file in `tests/campaigns` that defines `CAMPAIGN`, in one of two forms.

    CAMPAIGN = Campaign(case=case, quick=40)                  # case(rng) -> None raises on failure; its seed is all there is to say
    CAMPAIGN = Campaign(draw=draw, check=check, quick=40)     # draw(rng) -> subject, check(subject) -> None raises on failure

The second form can be shrunk and printed. A subject is plain data: a frozen dataclass, tuple, number, string or bytes whose `repr`
is Python; `tests/campaigns/engine/shrink.py` makes it smaller without knowing what it means. `check` raises `Invalid` for a subject
that `draw` would never make (a shrunk program whose shapes do not fit). `show(subject)` may write a better test than `check(repr)`.

Any exception that leaves `case` or `check` is a failure, as is a dead process, a case that takes too long and memory that grows:
errors that are expected are caught and examined by the campaign itself.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).resolve().parents[1]
DEVICE = os.environ.get("TILEWRIGHT_CAMPAIGN_DEVICE", "cpu")  # cuda: campaigns that can have their tensors on the GPU
MB = 1 << 20


class Invalid(Exception):
    """This subject is none: shrinking went too far."""


@dataclass(frozen=True)
class Seed:
    """The subject that `draw` makes from this seed; all that a campaign in the short form has."""

    number: int


@dataclass(frozen=True, kw_only=True)
class Campaign:
    quick: int  # cases in `make test`: a few seconds
    case: Callable[[np.random.Generator], None] | None = None
    draw: Callable[[np.random.Generator], Any] | None = None
    check: Callable[[Any], None] | None = None
    show: Callable[[Any], str] | None = None  # the source of a test for a subject
    keep: tuple[str, ...] = ()  # names of dataclass fields that shrinking leaves alone
    seconds: float = 10.0  # time of the processor: a case that takes longer, and twelve times that alone in a new process, hangs
    memory: int = 2048 * MB  # resident bytes of the process during a case
    growth: float = 1.0 * MB  # bytes that a repeated case may leave behind
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (self.case is None) == (self.draw is None or self.check is None):
            raise ValueError("campaign: give either case or both draw and check")

    def subject(self, item: Any) -> Any:
        """What a seed stands for; a campaign in the short form has seeds alone."""
        return self.draw(generator(item.number)) if isinstance(item, Seed) and self.draw else item

    def run(self, item: Any) -> None:
        if self.case is not None:
            self.case(generator(item.number))
        else:
            assert self.check is not None
            subject = self.subject(item)
            generator(0)  # torch and random start alike for a drawn subject and for the same one pasted
            self.check(subject)


def generator(seed: int) -> np.random.Generator:
    """The generator of a case. torch and `random` start from the same seed."""
    random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)
    return np.random.default_rng(seed)


def seeds(base: int, name: str) -> Iterator[int]:
    """The seeds of a campaign's cases in a run: numbers of 48 bits."""
    state = np.random.default_rng([base, *name.encode()])
    while True:
        yield int(state.integers(1 << 48))


def names() -> list[str]:
    """All campaigns: the files of the folder, in order."""
    return sorted(p.stem for p in FOLDER.glob("*.py") if "CAMPAIGN =" in p.read_text())


def find(name: str) -> Campaign:
    """`name` is a file's, or `module:ATTRIBUTE` below `tests.campaigns`."""
    module, _, attribute = name.partition(":")
    found: Campaign = getattr(importlib.import_module(f"tests.campaigns.{module}"), attribute or "CAMPAIGN")
    object.__setattr__(found, "name", name)
    return found
