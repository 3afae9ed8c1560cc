"""How a tile lies in vector registers.

The leading axes of a tile are rows; its last axis is cut into chunks of `lanes` elements (vector width / 32 bits, for every
dtype: a chunk of f64 is two registers, which LLVM splits), the last one shorter when the size asks for it. A row of one
element is a scalar.
bf16 lives as i16, floats of eight bits as i8 and bool as i1; they are converted at loads, stores and casts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

from ...core.dtypes import DType
from ...tile.ir import TileType
from .llvm_text import FunctionText, vector

SCALAR = {
    "f32": "float",
    "f64": "double",
    "f16": "half",
    "bf16": "i16",
    "f8e4m3": "i8",
    "f8e5m2": "i8",
    "bool": "i1",
    "i8": "i8",
    "i16": "i16",
    "i32": "i32",
    "i64": "i64",
    "u8": "i8",
    "u16": "i16",
    "u32": "i32",
    "u64": "i64",
}


@cache
def chunk_sizes(n: int, lanes: int) -> tuple[int, ...]:
    """Lane counts of the chunks of an axis of n elements; (0,) is one scalar."""
    if n == 1:
        return (0,)
    full, rest = divmod(n, lanes)
    return (lanes,) * full + ((rest,) if rest else ())


@dataclass(eq=False)
class Registers:
    """The values of one tile: `rows[r][c]` is chunk c of row r."""

    type: TileType
    lanes: int
    rows: list[list[str]]
    splats: dict[tuple[int, int], str] = field(default_factory=dict)  # (row, lane count) -> vector of a scalar row
    scope: object = None  # block in which splats are valid

    @property
    def sizes(self) -> tuple[int, ...]:
        return chunk_sizes(self.type.shape[-1] if self.type.shape else 1, self.lanes)

    @property
    def elem(self) -> str:
        return SCALAR[self.type.dtype.name]

    def chunk_type(self, c: int) -> str:
        return vector(self.sizes[c], self.elem)


def elem_type(dtype: DType) -> str:
    return SCALAR[dtype.name]


def row_count(shape: tuple[int, ...]) -> int:
    n = 1
    for d in shape[:-1]:
        n *= d
    return n


@cache
def row_map(source: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...]:
    """For each row of the target shape, the row of the (broadcast) source shape it reads."""
    padded = (1,) * (len(target) - len(source)) + source
    strides, step = [], 1
    for d in reversed(padded[:-1]):
        strides.append(0 if d == 1 else step)
        step *= d
    strides.reverse()
    return tuple(sum(i * s for i, s in zip(index, strides, strict=True)) for index in itertools.product(*(range(d) for d in target[:-1])))


def read_chunk(f: FunctionText, x: Registers, row: int, c: int, lanes: int) -> str:
    """Chunk c of a row as a value of `lanes` lanes; a scalar row is broadcast (once per block)."""
    if len(x.sizes) == 1 and x.sizes[0] == 0:
        if lanes == 0:
            return x.rows[row][0]
        if x.scope is not f.block:
            x.splats, x.scope = {}, f.block
        if (row, lanes) not in x.splats:
            value = x.rows[row][0]
            x.splats[row, lanes] = f"splat ({x.elem} {value})" if not value.startswith("%") else f.broadcast(vector(lanes, x.elem), value)
        return x.splats[row, lanes]
    return x.rows[row][c]


def chunks(shape: tuple[int, ...], lanes: int) -> Iterator[tuple[int, int, int]]:
    """(row, chunk, lane count) of every chunk of a tile of this shape."""
    sizes = chunk_sizes(shape[-1] if shape else 1, lanes)
    for row in range(row_count(shape)):
        for c, n in enumerate(sizes):
            yield row, c, n
