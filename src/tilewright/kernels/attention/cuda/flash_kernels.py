"""The kernels of attention's backward pass as the target sees them."""

from __future__ import annotations

from dataclasses import dataclass

from ....tile.ir import Kernel, Var
from ...cuda.kernel import TensorMap


@dataclass(eq=False)
class FlashStatsKernel(Kernel):
    """Logsumexps and δ of query rows, where the forward pass did not save them (see `flash_stats`): `lse` and `delta` are views
    of one number per query row, padded to whole tiles."""

    lse: Var | None = None
    delta: Var | None = None
    d: int = 128
    consumers: int = 2  # warpgroups of 64 rows
    stages: int = 3
    causal: bool = False
    scale: float = 1.0
    dtype: str = "bf16"
    maps: tuple[TensorMap, ...] = ()

    @property
    def block(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def rows(self) -> int:
        return 64 * self.consumers


@dataclass(eq=False)
class FlashGradKernel(Kernel):
    """The backward pass of attention in one sweep (see the target's `flash_grad`): `params` and `body` store finished sums.

    `grad` has `sums` (dV and dK, f32, 64 rows × head size), adds dQ to `acc` in turns that `turns` counts, and takes numbers from
    `ticket`; `finish` has one of 64 × 64, its first `row` and `column`, or writes to `out` itself, 16 bytes at a time. `lse` and `delta`
    are views of one number per query row, padded to whole tiles. `mask` and `bias` are views [batch, head, query, key], as is `scores`,
    which gets the scores' cotangent.
    """

    mode: str = "grad"  # grad, finish
    sums: tuple[Var, ...] = ()
    row: Var | None = None
    column: Var | None = None
    head: Var | None = None
    batch: Var | None = None
    lse: Var | None = None
    delta: Var | None = None
    acc: Var | None = None
    turns: Var | None = None
    ticket: Var | None = None
    out: Var | None = None
    mask: Var | None = None
    bias: Var | None = None
    scores: Var | None = None
    softcap: float | None = None
    own: int = 128  # the head size that is in memory; `d` is computed
    d: int = 128
    queries: int = 64  # queries of a tile
    stages: int = 3
    causal: bool = False
    windowed: bool = False
    scale: float = 1.0
    dtype: str = "bf16"
    maps: tuple[TensorMap, ...] = ()

    @property
    def block(self) -> int:
        return 384 if self.mode == "grad" else 128


@dataclass(eq=False)
class MmaGradKernel(Kernel):
    """A half of attention's backward pass on `mma.sync` (see the target's `attention_mma_grad`): `params` and `body` store finished sums.

    `keys`: blocks own 64 keys, `sums` are dV and dK; `queries`: blocks own 64 queries, `sums` is dQ, and the scores' cotangent goes to
    `scores`. All are f32, 64 rows × `d`, the head size `own` rounded up to 16. `lse` and `delta` are as above.
    """

    mode: str = "keys"  # keys, queries
    sums: tuple[Var, ...] = ()
    row: Var | None = None
    head: Var | None = None
    batch: Var | None = None
    q: Var | None = None
    k: Var | None = None
    v: Var | None = None
    g: Var | None = None
    lse: Var | None = None
    delta: Var | None = None
    mask: Var | None = None
    bias: Var | None = None
    scores: Var | None = None
    own: int = 64
    d: int = 64
    tile: int = 64  # rows of a stage
    causal: bool = False
    windowed: bool = False
    softcap: float | None = None
    scale: float = 1.0
    dtype: str = "bf16"

    @property
    def block(self) -> int:
        return 128
