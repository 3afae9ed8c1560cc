"""Saved sessions with another graph: numbers, words, attributes, ops and lines of its text changed, the rest of the file made to fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine.campaign import MB, Campaign
from .files.mutate import LINE, Change, changed_text, drawn
from .files.sessions import LOOPS, NAMES, OPS, check, file_bytes, fitted, forged, header_and_data, op_graph, samples, saved


@dataclass(frozen=True)
class Case:
    name: str  # the name of a saved session, or of an op
    sample: int  # the sample of the op
    fit: bool  # types and interface are made to fit the graph
    changes: tuple[Change, ...]


def draw(rng: np.random.Generator) -> Case:
    if rng.random() < 0.4:
        return Case(str(rng.choice(NAMES)), -1, bool(rng.random() < 0.8), drawn(rng, LINE))
    name, sample = samples()[int(rng.integers(len(samples())))]
    return Case(name, sample, bool(rng.random() < 0.9), drawn(rng, LINE))


def run(case: Case) -> None:
    header, data = header_and_data(saved(case.name)) if case.sample < 0 else forged(op_graph(case.name, case.sample))
    header["graph"] = changed_text(header["graph"], case.changes, OPS)
    if case.fit:
        fitted(header, data)
    check(file_bytes(header, data), call=LOOPS.search(header["graph"]) is None)


CAMPAIGN = Campaign(draw=draw, check=run, quick=60, memory=1536 * MB, keep=("name", "sample", "how"))
