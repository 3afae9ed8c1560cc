"""Tile sizes of attention, and which ropes it can take in."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.dims import Dim, bounds
from ...core.target_spec import TargetSpec
from ...ops.attention.forward import Rope as RopeOp


@dataclass(frozen=True)
class Config:
    """Query rows of a register tile, KV columns of a tile, query rows of a program, and the width of an output panel."""

    rows: int
    keys: int
    block: int
    width: int


BLOCK = 48  # the fewest rows of a program, and what more are a multiple of
STATE = 64 << 10  # bytes of the sums, and of rotated queries, that a program of more rows keeps


def default_config(sq: Dim, sk: Dim, dv: int, matrices: Dim, target: TargetSpec, itemsize: int, rotated: int = 0) -> Config:
    """`matrices`: how many pairs of queries and keys there are; `rotated`: columns of queries that a program rotates for itself."""
    lanes = target.vector_bits // 32
    wide = lanes * max(1, (4 if target.registers >= 32 else 2) * 4 // itemsize)
    keys = wide
    while isinstance(sk, int) and keys > lanes and sk <= keys // 2:
        keys //= 2
    width = wide
    while width > lanes and dv <= width // 2:
        width //= 2
    return Config(6, keys, _block(sq, matrices, max(-(-dv // width) * width, rotated) * itemsize, target), width)


def _block(sq: Dim, matrices: Dim, row: int, target: TargetSpec) -> int:
    """Rows of a program. Each transposes the keys for itself, so few programs of many rows do least, but every core gets eight."""
    if not isinstance(sq, int):
        return BLOCK
    most = max(1, min(STATE // max(row, 1), sq + BLOCK - 1) // BLOCK)
    fewest = bounds(matrices)[0]
    fitting = (n * BLOCK for n in range(most, 0, -1) if fewest * -(-sq // (n * BLOCK)) >= 8 * target.cores)
    return next(fitting, BLOCK)


def can_rotate(op: RopeOp, depth: Dim, lanes: int) -> bool:
    return isinstance(depth, int) and not op.interleaved and op.n_rot in (None, depth) and depth // 2 % lanes == 0
