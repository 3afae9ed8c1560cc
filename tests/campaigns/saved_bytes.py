"""Saved sessions with bytes changed, lost or added anywhere: an error, or the same bits as before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, Change, changed_bytes, drawn
from .files.sessions import NAMES, check, result_of, saved


@dataclass(frozen=True)
class Case:
    name: str
    changes: tuple[Change, ...]


def draw(rng: np.random.Generator) -> Case:
    return Case(str(rng.choice(NAMES)), drawn(rng, BYTES))


def run(case: Case) -> None:
    check(changed_bytes(saved(case.name), case.changes), same_as=result_of(case.name))


CAMPAIGN = Campaign(draw=draw, check=run, quick=60, memory=1536 * MB, keep=("name", "how"))
