"""In which order attention's pieces of work come: of how many heads the long rows are put before the short ones.

Blocks of the grid take every n-th piece (`flash._position`), heads come in groups, and in a group longer rows come first. As many heads as
keep their keys and values in L2 is one rule; but a group whose pieces are nearly a multiple of the grid gives one block all the long rows
(causal 8x16x1024x64 in groups of 24 heads: the fullest SM has 15 % more than its share). So groups that fit are tried on paper,
and the largest is taken whose fullest SM is within 1 % of the best. A piece costs its tiles of keys and one more.

>>> heads_together([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8], lines=128, most=24, cores=132, per_sm=2)
22
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

TRIED = 24  # sizes of a group


def lengths(sq: int, sk: int, rows: int, keys: int, offset: int, window: int | None) -> list[int]:
    """Tiles of keys that each block of rows of a causal head sees."""
    found = []
    for first in range(0, sq, rows):
        limit = max(min(sk, min(first + rows, sq) + offset), 0)
        low = max(first + offset - window + 1, 0) // keys if window is not None else 0
        found.append(max(-(-limit // keys) - low, 0))
    return found


def heads_together(tiles: Sequence[int], lines: int, most: int, cores: int, per_sm: int) -> int:
    """The group's size; `tiles` of a head's blocks of rows from its first row on, `lines` heads in all, `most` of which fit."""
    most = max(1, min(most, lines))
    grid = min(len(tiles) * lines, cores * per_sm)
    if grid < cores * per_sm:
        return most  # every block has one piece
    costs = np.array(tiles[::-1], np.float64) + 1
    found = []
    for size in range(most, 0, -max(1, most // TRIED)):
        whole, rest = divmod(lines, size)
        order = np.concatenate([np.tile(np.repeat(costs, size), whole), np.repeat(costs, rest)])
        padded = np.zeros(-(-len(order) // grid) * grid)
        padded[: len(order)] = order
        of_blocks = padded.reshape(-1, grid).sum(0)
        found.append((of_blocks.reshape(per_sm, cores).sum(0).max(), size))  # an SM has blocks i, i + cores, …
    best = min(found)[0]
    return next(size for load, size in found if load <= 1.01 * best)
