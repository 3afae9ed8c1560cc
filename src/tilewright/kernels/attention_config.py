"""Tile sizes of attention, and which ropes it can take in."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.dims import Dim
from ..core.target_spec import TargetSpec
from ..ops.attention import Rope as RopeOp


@dataclass(frozen=True)
class Config:
    """Query rows of a register tile, KV columns of a tile, query rows of a program, and the width of an output panel."""

    rows: int
    keys: int
    block: int
    width: int


def default_config(sk: Dim, dv: int, target: TargetSpec, itemsize: int) -> Config:
    lanes = target.vector_bits // 32
    wide = lanes * max(1, (4 if target.registers >= 32 else 2) * 4 // itemsize)
    keys = wide
    while isinstance(sk, int) and keys > lanes and sk <= keys // 2:
        keys //= 2
    width = wide
    while width > lanes and dv <= width // 2:
        width //= 2
    return Config(6, keys, 48, width)


def can_rotate(op: RopeOp, depth: Dim, lanes: int) -> bool:
    return isinstance(depth, int) and not op.interleaved and op.n_rot in (None, depth) and depth // 2 % lanes == 0
