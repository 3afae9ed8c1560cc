"""Saved sessions with other values anywhere in their header, and a right checksum: as a stranger would write them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .engine.campaign import MB, Campaign
from .files.mutate import TREE, Change, changed_tree, drawn
from .files.sessions import LOOPS, NAMES, check, file_bytes, header_and_data, result_of, saved

SHAPES = {"graph", "constants", "sums", "graph_constants", "signature", "interface"}  # what a result depends on


@dataclass(frozen=True)
class Case:
    name: str
    changes: tuple[Change, ...]


def draw(rng: np.random.Generator) -> Case:
    return Case(str(rng.choice(NAMES)), drawn(rng, TREE))


def run(case: Case) -> None:
    header, data = header_and_data(saved(case.name))
    mutated = changed_tree(header, case.changes)
    same = isinstance(mutated, dict) and all(mutated.get(k) == header[k] for k in SHAPES)
    graph = str(mutated.get("graph")) if isinstance(mutated, dict) else ""
    endless = graph != header["graph"] and LOOPS.search(graph) is not None  # it may be right and take for ever
    check(file_bytes(mutated, data), same_as=result_of(case.name) if same else None, call=not endless)


CAMPAIGN = Campaign(draw=draw, check=run, quick=60, memory=1536 * MB, keep=("name", "how"))
