"""Entries of the code cache with bytes changed, lost or added: the code is compiled again, and the results are the same bits."""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.core.config import load
from tilewright.llm.model import LLM
from tilewright.target.cpu.cache import CodeCache
from tilewright.target.cpu.host import host_target

from .engine.campaign import MB, Campaign
from .files.mutate import BYTES, Change, changed_bytes, drawn

TEXTS = [f"define i64 @f(i64 %x) {{\n  %y = add i64 %x, {k}\n  ret i64 %y\n}}\n" for k in range(3)]


@dataclass(frozen=True)
class Case:
    program: bool  # whether it is a whole language model, or object code
    entry: int
    changes: tuple[Change, ...]


def draw(rng: np.random.Generator) -> Case:
    return Case(bool(rng.random() < 0.05), int(rng.integers(1 << 16)), drawn(rng, BYTES))


@functools.cache
def filled(program: bool) -> tuple[dict[str, bytes], Any]:
    """The entries of a cache that one start has filled, and what the start gave."""
    with tempfile.TemporaryDirectory() as folder:
        result = started(program, folder)
        return {p.name: p.read_bytes() for p in Path(folder).iterdir()}, result


def started(program: bool, folder: str) -> Any:
    if not program:
        return CodeCache(load({}, cache_dir=folder)).compile(TEXTS, host_target())[0]
    from tilewright.llm.tiny import write_tiny_model

    before = os.environ.get("TILEWRIGHT_CACHE_DIR")
    os.environ["TILEWRIGHT_CACHE_DIR"] = folder
    try:
        with tempfile.TemporaryDirectory() as place:
            import tilewright as tw

            llm: LLM = tw.load_llm(write_tiny_model(Path(place) / "m.gguf", layers=1), threads=1)
            return llm.feed(llm.start(), [3, 7, 7]).tobytes()
    finally:
        if before is None:
            del os.environ["TILEWRIGHT_CACHE_DIR"]
        else:
            os.environ["TILEWRIGHT_CACHE_DIR"] = before


def run(case: Case) -> None:
    entries, wanted = filled(case.program)
    name = sorted(entries)[case.entry % len(entries)]
    with tempfile.TemporaryDirectory() as folder:
        for other, data in entries.items():
            (Path(folder) / other).write_bytes(changed_bytes(data, case.changes) if other == name else data)
        assert started(case.program, folder) == wanted
        assert all((Path(folder) / other).read_bytes()[:8] == data[:8] for other, data in entries.items() if other != name)


CAMPAIGN = Campaign(draw=draw, check=run, quick=60, memory=1536 * MB, keep=("how",))
