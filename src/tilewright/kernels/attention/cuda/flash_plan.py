"""How attention forward on Hopper goes about its work, by head size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlashPlan:
    consumers: int = 2  # warpgroups of 64 query rows in a block
    per_sm: int = 1  # blocks of an SM
    keys: int = 128  # of a tile
    stages: int = 2  # tiles of keys, and of values, on their way
    kept: int = 24 << 20  # bytes of keys and values that blocks work on at a time


PLANS = {64: FlashPlan(consumers=1, per_sm=3, keys=64, stages=3), 128: FlashPlan()}
