"""How attention forward on Hopper goes about its work: tiles, and how scores become weights. All plans give the same function.

`MEASURED` is what kernels use; other plans are for measuring (`benchmarks/gpu_attention_variants.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class FlashPlan:
    consumers: int = 2  # warpgroups of 64 query rows in a block
    per_sm: int = 1  # blocks of a multiprocessor
    keys: int = 128  # of a tile
    stages: int = 2  # tiles of keys, and of values, on their way
    kept: int = 24 << 20  # bytes of keys and values that blocks work on at a time
    hold: bool = False  # the wait for the sums of the tile before stays behind the softmax (with `lazy` and `eager` it does anyway)
    # a row's maximum is raised, and what was summed before rescaled, only when it grew by more than so many powers of two
    lazy: float | None = None
    # exponentials relative to the maximum of the tiles before; where their sum shows that it grew too much a tile is done again
    eager: bool = False
    poly: int = 0  # with `eager`: every so-manieth pair of exponentials is a polynomial on the multiply-add units
    queries: int = 1  # buffers of Q: with two the next piece of work is loaded while this one ends
    halves: bool = False  # of the first tile only the half that is seen gets a softmax, and masks are put on by halves

    early: bool = False  # with `eager`: where the next piece of work is, is found out during the first softmax of this one
    turns: bool = False  # two warpgroups of a block start their products in turn: one computes while the other's products run

    def key(self, usual: FlashPlan) -> str:
        """For the kernel's name: where it differs from the usual one."""
        found = [(f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != getattr(usual, f.name)]
        return "".join(f"_{name}{'' if value is True else f'{value or 0:g}'}" for name, value in found if name != "kept")


MEASURED = {  # by head size; three consumers for 64 were slower
    64: FlashPlan(consumers=1, per_sm=2, kept=6 << 20),
    128: FlashPlan(),
}

_SMALL: dict[str, Any] = {"keys": 64, "per_sm": 3, "stages": 3, "queries": 2, "kept": 24 << 20}
VARIANTS: dict[int, dict[str, dict[str, Any]]] = {  # what is worth measuring beside it
    64: {
        "hold": {"hold": True},
        "hold, two Q": {"hold": True, "queries": 2},
        "lazy 8": {"lazy": 8.0},
        "lazy 8, two Q": {"lazy": 8.0, "queries": 2},
        "lazy 8, two Q, halves": {"lazy": 8.0, "queries": 2, "halves": True},
        "eager": {"eager": True},
        "eager, two Q": {"eager": True, "queries": 2},
        "eager, two Q, halves": {"eager": True, "queries": 2, "halves": True},
        "eager, two Q, halves, early": {"eager": True, "queries": 2, "halves": True, "early": True},
        "eager, two Q, halves, poly 6": {"eager": True, "queries": 2, "halves": True, "poly": 6},
        "eager, two Q, halves, poly 4": {"eager": True, "queries": 2, "halves": True, "poly": 4},
        "eager, two Q, halves, poly 3": {"eager": True, "queries": 2, "halves": True, "poly": 3},
        "eager, two Q, halves, 12 MB": {"eager": True, "queries": 2, "halves": True, "kept": 12 << 20},
        "eager, two Q, halves, 128 rows": {"eager": True, "queries": 2, "halves": True, "consumers": 2, "per_sm": 1},
        "eager, two Q, halves, 128 rows, turns": {"eager": True, "queries": 2, "halves": True, "consumers": 2, "per_sm": 1, "turns": True},
        "eager, two Q, halves, poly 4, 128 rows, turns": {
            "eager": True, "queries": 2, "halves": True, "poly": 4, "consumers": 2, "per_sm": 1, "turns": True,
        },
        "64 keys, three blocks, lazy 8": {**_SMALL, "lazy": 8.0},
        "64 keys, three blocks, eager": {**_SMALL, "eager": True},
        "64 keys, three blocks, eager, poly 4": {**_SMALL, "eager": True, "poly": 4},
        "192 rows, lazy 8, two Q": {"consumers": 3, "per_sm": 1, "lazy": 8.0, "queries": 2},
    },
    128: {
        "hold": {"hold": True},
        "hold, two Q": {"hold": True, "queries": 2},
        "lazy 8": {"lazy": 8.0},
        "lazy 8, two Q": {"lazy": 8.0, "queries": 2},
        "eager": {"eager": True},
        "eager, two Q": {"eager": True, "queries": 2},
        "eager, two Q, halves": {"eager": True, "queries": 2, "halves": True},
        "eager, two Q, halves, poly 4": {"eager": True, "queries": 2, "halves": True, "poly": 4},
        "lazy 8, two Q, turns": {"lazy": 8.0, "queries": 2, "turns": True},
        "eager, two Q, turns": {"eager": True, "queries": 2, "turns": True},
    },
}  # fmt: skip
