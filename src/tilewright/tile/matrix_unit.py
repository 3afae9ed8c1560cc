"""f32 products on a matrix unit that multiplies bf16: what the instructions `parts_zero`, `parts_step` and `parts_store` mean.

An f32 number is the exact sum of three bf16 parts (high, middle, low). The product of two numbers is then nine products of parts, of
which the six largest are computed; the other three are below 2^-24 of it. The unit keeps two sums of ROWS × COLUMNS elements in f32: of the
products of the high parts, and of the five small ones, so that those do not round the large sum. `parts_step` adds DEPTH columns of A
times DEPTH rows of B to both; `parts_store` writes them out, one [ROWS, COLUMNS] block after the other.

In memory a pair of parts is one u32: columns j and j + 16 of a step in its low and its high half, which is the order in which they are
added. A step of A is [part, row, pair], a step of B is [part, half of the columns, pair, column].
"""

from __future__ import annotations

from typing import Any

import numpy as np

ROWS, COLUMNS, DEPTH, PARTS = 16, 32, 32, 3
A_STEP = PARTS * ROWS * DEPTH // 2  # u32 words
B_STEP = PARTS * COLUMNS * DEPTH // 2
SUMS = 2 * ROWS * COLUMNS  # f32
HIGH, MIDDLE, LOW = range(PARTS)
SMALL = ((HIGH, LOW), (HIGH, MIDDLE), (MIDDLE, MIDDLE), (MIDDLE, HIGH), (LOW, HIGH))  # parts of A and B, in the order they are added


class Unit:
    """The two sums, in NumPy."""

    def __init__(self) -> None:
        self.zero()

    def zero(self) -> None:
        self.large = np.full((ROWS, COLUMNS), np.float32(0))
        self.small = np.full((ROWS, COLUMNS), np.float32(0))

    def step(self, a: Any, b: Any) -> None:
        left = [np.stack(halves(x), axis=-1) for x in a.reshape(PARTS, ROWS, DEPTH // 2)]  # [row, pair, half]
        pairs = b.reshape(PARTS, 2, DEPTH // 2, COLUMNS // 2).transpose(0, 2, 1, 3).reshape(PARTS, DEPTH // 2, COLUMNS)
        right = [np.stack(halves(x), axis=1) for x in pairs]  # [pair, half, column]
        with np.errstate(all="ignore"):
            self.large = _add(self.large, left[HIGH], right[HIGH])
            for i, j in SMALL:
                self.small = _add(self.small, left[i], right[j])

    def sums(self) -> Any:
        return np.concatenate([self.large.reshape(-1), self.small.reshape(-1)])


def halves(pairs: Any) -> tuple[Any, Any]:
    """The two bf16 numbers of each word, as f32."""
    return (pairs << np.uint32(16)).view(np.float32), (pairs & np.uint32(0xFFFF0000)).view(np.float32)


def _add(acc: Any, a: Any, b: Any) -> Any:
    for pair in range(a.shape[1]):
        for half in range(2):
            product = a[:, pair, half, None].astype(np.float64) * b[pair, half].astype(np.float64)
            acc = (acc + product).astype(np.float32)
    return acc
