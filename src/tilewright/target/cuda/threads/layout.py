"""Which elements of a tile a thread holds. A key is the element's position relative to the thread's own first element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from ....core.dtypes import DType
from ....core.errors import CompileError
from ....tile.ir import TileType
from ...cpu.registers import SCALAR

Key = tuple[int, ...]


def elem_type(dtype: DType) -> str:
    """The register type of a dtype. bf16 and f16 are raw 16-bit registers here."""
    return "bf16" if dtype.name == "bf16" else SCALAR[dtype.name]


@dataclass(frozen=True)
class Group:
    """Pieces of `vector` neighbours along the last axis, dealt out over `threads` threads; see `BlockKernel`."""

    threads: int
    vector: int

    def pieces(self, shape: tuple[int, ...]) -> Iterator[list[Key]]:
        """The keys a thread holds, in runs of neighbours along the last axis."""
        if not shape:
            yield [()]
            return
        last = shape[-1]
        step = self.threads * self.vector
        lead = itertools.product(*(range(d) for d in shape[:-1]))
        if last == 1:
            yield from ([(*at, 0)] for at in lead)
        elif last % step == 0:
            for at in lead:
                for first in range(0, last, step):
                    yield [(*at, first + i) for i in range(self.vector)]
        else:
            raise CompileError(
                f"cuda: the last axis of a tile must be 1 or a multiple of {self.threads} threads x {self.vector} elements, "
                f"got shape {shape}"
            )

    def spread(self, shape: tuple[int, ...], axis: int) -> bool:
        """Whether threads hold different elements along this axis."""
        return self.threads > 1 and axis == len(shape) - 1 and shape[axis] != 1

    def shared_by_all(self, shape: tuple[int, ...]) -> bool:
        """Every thread of the group holds the same elements."""
        return self.threads > 1 and (not shape or shape[-1] == 1)


@dataclass(frozen=True)
class Fragment:
    """The accumulator of one warpgroup's `wgmma`: row = warp·16 + lane/4 (+ 8), column = lane%4·2 + 8·j (+ 1). Both columns are one access,
    unless `vector` is 1."""

    vector: int = 2
    threads: int = 128

    def pieces(self, shape: tuple[int, ...]) -> Iterator[list[Key]]:
        if len(shape) < 2:
            yield [(0,) * len(shape)]
            return
        rows = (0,) if shape[-2] == 1 else (0, 8)
        lead = (0,) * (len(shape) - 2)
        for j in range(max(shape[-1] // 8, 1)):
            for h in rows:
                for first in (0,) if shape[-1] == 1 else range(0, 2, self.vector):
                    yield [(*lead, h, 8 * j + first + v) for v in range(1 if shape[-1] == 1 else self.vector)]

    def spread(self, shape: tuple[int, ...], axis: int) -> bool:
        return axis >= len(shape) - 2 and shape[axis] != 1

    def shared_by_all(self, shape: tuple[int, ...]) -> bool:
        return False


@dataclass(frozen=True)
class Spots:
    """Every thread has the same rows and runs of columns, counted from its own first element (see `ring`)."""

    rows: tuple[int, ...]
    columns: tuple[tuple[int, ...], ...]
    threads: int

    def pieces(self, shape: tuple[int, ...]) -> Iterator[list[Key]]:
        if len(shape) < 2:
            yield [(0,) * len(shape)]
            return
        lead = (0,) * (len(shape) - 2)
        for h in (0,) if shape[-2] == 1 else self.rows:
            for run in ((0,),) if shape[-1] == 1 else self.columns:
                yield [(*lead, h, c) for c in run]

    def spread(self, shape: tuple[int, ...], axis: int) -> bool:
        return axis >= len(shape) - 2 and shape[axis] != 1

    def shared_by_all(self, shape: tuple[int, ...]) -> bool:
        return False


Layout = Group | Fragment | Spots


@dataclass(eq=False)
class Regs:
    """The values of one tile that a thread holds."""

    type: TileType
    values: dict[Key, str]

    @property
    def elem(self) -> str:
        return elem_type(self.type.dtype)

    def pick(self, key: Key) -> str:
        """The value that broadcasts to an element of a larger tile."""
        shape = self.type.shape
        tail = key[len(key) - len(shape) :]
        return self.values[tuple(0 if d == 1 else k for d, k in zip(shape, tail, strict=True))]
