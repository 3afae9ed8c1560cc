"""How a kernel is run on a GPU: threads per program, programs per block, and what its author promises about alignment."""

from __future__ import annotations

from dataclasses import dataclass

from ...core.dims import Dim
from ...core.dtypes import DType
from ...tile.ir import Kernel, Var

WARP = 32


@dataclass(eq=False)
class BlockKernel(Kernel):
    """A tile kernel whose programs run on groups of threads.

    The last axis of a tile is dealt out in pieces of `vector` neighbours, piece i to thread i mod `threads`; other axes, and tiles whose
    last axis is 1, are held by every thread of the group. A group is one thread, a part of a warp, or a whole block
    (then `programs` is 1). With `vector` > 1 the author promises that every unit-stride access starts at a multiple of `vector`
    elements and that limits along the last axis are such multiples.
    """

    threads: int = 1
    programs: int = 128
    vector: int = 1

    @property
    def block(self) -> int:
        return self.threads * self.programs


@dataclass(frozen=True)
class TensorMap:
    """A TMA descriptor the host makes at launch: which argument word holds the pointer, and the tensor behind it, innermost first."""

    argument: int
    dtype: DType
    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]  # in bytes, of every axis but the innermost
    box: tuple[int, ...]
    swizzle: int  # bytes: 0, 32, 64 or 128


@dataclass(eq=False)
class GemmKernel(Kernel):
    """A matrix product on Hopper's matrix units, C = epilogue(alpha · A · B): `params` and `body` are the epilogue in tile IR.

    The body sees `acc` (f32, 64 rows of one warpgroup × `slice` columns), its first row `row` and column `column`, and runs once per
    slice; the rest of the kernel is written by the target from the sizes here. Both matrices are read through tensor maps.
    """

    acc: Var | None = None
    row: Var | None = None
    column: Var | None = None
    batch: Var | None = None
    bm: int = 128
    bn: int = 256
    slice: int = 32  # columns of one run of the epilogue: wider ones would spill registers
    stages: int = 4
    consumers: int = 2
    transposed_a: bool = False  # A is [K, M]
    transposed_b: bool = True  # B is [N, K]
    cluster: int = 1  # neighbouring blocks that share B
    dtype: str = "bf16"
    alpha: float = 1.0
    group: int = 8  # tiles of rows that share columns of B in L2
    maps: tuple[TensorMap, ...] = ()  # of A and B, then of the results that are stored through shared memory
    stored: tuple[Var, ...] = ()  # views of those results

    @property
    def block(self) -> int:
        return 128 * (self.consumers + 1)


@dataclass(eq=False)
class FlashKernel(Kernel):
    """Attention on Hopper's matrix units: `params` and `body` are the epilogue in tile IR, over the finished rows of one warpgroup.

    The body sees `acc` (f32, 64 rows × head size), its first row `row`, and `head` and `batch`. Operands come through tensor maps
    [batch, head, position, d].
    """

    acc: Var | None = None
    row: Var | None = None
    head: Var | None = None
    batch: Var | None = None
    d: int = 128
    keys: int = 128  # of a tile
    consumers: int = 2  # warpgroups of 64 query rows
    stages: int = 2
    causal: bool = False
    windowed: bool = False
    scale: float = 1.0
    dtype: str = "bf16"
    maps: tuple[TensorMap, ...] = ()

    @property
    def block(self) -> int:
        return 128 * (self.consumers + 1)

    @property
    def rows(self) -> int:
        return 64 * self.consumers
