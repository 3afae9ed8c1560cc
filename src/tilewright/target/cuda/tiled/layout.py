"""Register layouts: which element of a tile each register of each thread of a block holds.

Sides of tiles are powers of two, so an element's row-major position is a number of bits. A layout names, for every bit of the register's
number, of the lane and of the warp, the bit of the position that it is; `None` says that both values of the bit hold the same element
(a copy). Blocked layouts, matrix fragments, slices of other layouts and replicated tiles are all of this form, and so are their images
under reshape, transpose and broadcast.

>>> rows = Layout((0, 1), (2, 3, 4, 5, 6), (7,))        # 256 elements: 4 neighbours in registers, 32 lanes, 2 warps
>>> rows.project((2, 128), (1, 128)).warps               # one row for both warps: the second warp has a copy
(None,)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

Bit = int | None
Shape = tuple[int, ...]


def log2(n: int) -> int:
    return n.bit_length() - 1


@dataclass(frozen=True)
class Layout:
    regs: tuple[int, ...]
    lanes: tuple[Bit, ...]
    warps: tuple[Bit, ...]

    @property
    def count(self) -> int:
        """Registers of a thread."""
        return 1 << len(self.regs)

    @property
    def threads(self) -> tuple[Bit, ...]:
        """The bits of a thread's number in its block."""
        return (*self.lanes, *self.warps)

    def offset(self, register: int) -> int:
        """The part of an element's position that its register gives."""
        return sum(1 << bit for i, bit in enumerate(self.regs) if register >> i & 1)

    def renamed(self, bits: dict[int, Bit]) -> Layout:
        """The layout after position bits were given other places; registers whose bit is gone are dropped."""

        def place(b: Bit) -> Bit:
            return None if b is None else bits.get(b)

        kept = tuple(x for x in (place(b) for b in self.regs) if x is not None)
        return Layout(kept, tuple(map(place, self.lanes)), tuple(map(place, self.warps)))

    def project(self, big: Shape, small: Shape) -> Layout:
        """The layout of a tile of shape `small` that is read as if broadcast to `big` by the threads that hold `big` like this."""
        return self if big == small else self.renamed(_narrowed(big, small))

    def transposed(self, shape: Shape) -> Layout:
        """The layout of a matrix of this shape after its axes are swapped."""
        rows, columns = map(log2, shape)
        return self.renamed({b: b + rows if b < columns else b - columns for b in range(rows + columns)})

    def picks(self, big: Shape, small: Shape) -> list[int]:
        """For every register of `big`, the register of the projected tile that it reads."""
        bits = _narrowed(big, small)
        kept = [i for i, b in enumerate(self.regs) if bits.get(b) is not None]
        return [sum(1 << n for n, i in enumerate(kept) if r >> i & 1) for r in range(self.count)]

    def run(self, first: int = 0) -> int:
        """How many registers in a row hold neighbours, counted from position bit `first`."""
        n = 0
        while n < len(self.regs) and self.regs[n] == first + n:
            n += 1
        return 1 << n

    def copies(self) -> tuple[int, ...]:
        """Bits of the thread's number whose two values hold the same elements."""
        return tuple(i for i, b in enumerate(self.threads) if b is None)


@lru_cache(maxsize=4096)
def _narrowed(big: Shape, small: Shape) -> dict[int, Bit]:
    """Where each position bit of `big` lies in `small`, which broadcasts to it."""
    small = (1,) * (len(big) - len(small)) + small
    out: dict[int, Bit] = {}
    at, to = 0, 0
    for large, little in zip(reversed(big), reversed(small), strict=True):
        for i in range(log2(large)):
            out[at + i] = None if little == 1 else to + i
        at += log2(large)
        to += log2(little)
    return out


def blocked(shape: Shape, warps: int, order: Sequence[int], vector: int) -> Layout:
    """Threads side by side along the axes in `order` (fastest first), `vector` neighbours along the first of them in a thread's registers;
    what is left over lies in further registers, and where there are more threads than elements they hold copies."""
    at, total = [0] * len(shape), 0
    for axis in reversed(range(len(shape))):
        at[axis] = total
        total += log2(shape[axis])
    bits = [at[a] + i for a in order for i in range(log2(shape[a]))]
    regs, rest = bits[: log2(vector)], bits[log2(vector) :]
    lanes: list[Bit] = list(rest[:5])
    rest = rest[5:]
    count = log2(warps)
    across: list[Bit] = list(rest[len(rest) - min(count, len(rest)) :])  # warps take the slowest bits: each has its own rows
    rest = rest[: len(rest) - len(across)]
    return Layout((*regs, *rest), tuple(lanes + [None] * (5 - len(lanes))), tuple(across + [None] * (count - len(across))))


def fragment(shape: Shape, down: int, across: int) -> Layout:
    """The sums of matrix instructions (`mma.sync`, and `wgmma` where the first four warps lie along rows): a lane has two neighbours of a
    row and, eight rows below, two more. `down` and `across` are the warps along rows and columns."""
    rows, columns = map(log2, shape)
    row = range(columns, columns + rows)
    tall, wide = log2(down), log2(across)
    warps = (*row[4 : 4 + tall], *range(columns - wide, columns))
    return Layout((0, row[3], *range(3, columns - wide), *row[4 + tall :]), (1, 2, *row[:3]), warps)


def register_tile(shape: Shape, down: int, across: int, *, neighbours: bool) -> Layout:
    """The sums of plain multiply-adds: a warp has 8 lanes along a row and 4 along rows, each lane 4 rows and, with `neighbours`, 4
    neighbours of a row; what is left of the tile lies in further registers. Narrow tiles put more lanes along rows."""
    rows, columns = map(log2, shape)
    tall, wide = log2(down), log2(across)
    row = [columns + i for i in range(rows - tall)]
    column = list(range(columns - wide))
    first = min(2, len(column)) if neighbours else 0
    along = column[first : first + 3]
    below = min(2, max(0, len(row) - (5 - len(along))))
    lanes: list[Bit] = [*along, *row[below : below + 5 - len(along)]]
    spare = 5 - len(lanes)
    regs = (*column[:first], *row[:below], *column[first + len(along) :], *row[below + 5 - len(along) :])
    warps = tuple(columns + rows - tall + i for i in range(tall)) + tuple(columns - wide + i for i in range(wide))
    return Layout(regs, (*lanes, *[None] * spare), warps)
