"""Offsets for intervals in one arena: first-fit and best-fit in several orders, exact search where there are few.

Every strategy places one item after another at an offset where no placed item that lives at the same time overlaps. The
smallest result wins; the sum of live sizes at the fullest step is a bound that ends the search when reached.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from ..core.records import dataclass

ALIGNMENT = 64
EXACT_LIMIT = 12  # items for which the branch and bound search runs
EXACT_NODES = 4000  # ... and how far; it keeps the best found so far


@dataclass(frozen=True)
class Item:
    """`size` bytes needed from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Packing:
    """One offset per item, the bytes of the arena, and the strategy that found it."""

    offsets: tuple[int, ...]
    size: int
    strategy: str


def align(n: int, to: int = ALIGNMENT) -> int:
    return -(-n // to) * to


def lower_bound(items: Sequence[Item]) -> int:
    """The largest sum of aligned sizes alive at one step: no packing can be smaller."""
    change: dict[int, int] = {}
    for it in items:
        change[it.first] = change.get(it.first, 0) + align(it.size)
        change[it.last + 1] = change.get(it.last + 1, 0) - align(it.size)
    live = peak = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak


def _gaps(items: Sequence[Item], placed: Sequence[tuple[int, int]], item: Item) -> list[tuple[int, int]]:
    """(offset, room) of every free range among placed (offset, index) items alive with `item`; the last one is open-ended."""
    busy = sorted((o, o + align(items[i].size)) for o, i in placed if items[i].first <= item.last and item.first <= items[i].last)
    gaps: list[tuple[int, int]] = []
    top = 0
    for start, end in busy:
        if start > top:
            gaps.append((top, start - top))
        top = max(top, end)
    gaps.append((top, 1 << 62))
    return gaps


def _greedy(items: Sequence[Item], order: Sequence[int], best: bool) -> tuple[list[int], int]:
    offsets, placed, size = [0] * len(items), list[tuple[int, int]](), 0
    for i in order:
        need = align(items[i].size)
        if need == 0:
            continue
        fits = [(room, o) for o, room in _gaps(items, placed, items[i]) if room >= need]
        offset = min(fits)[1] if best else min(o for _, o in fits)
        offsets[i] = offset
        placed.append((offset, i))
        size = max(size, offset + need)
    return offsets, size


def _exact(items: Sequence[Item], bound: int, limit: int) -> tuple[list[int], int] | None:
    """Depth-first over (next item, gap), pruned by the best size so far; None when nothing smaller than `limit` was found."""
    best: tuple[list[int], int] | None = None
    top, nodes = limit, 0
    offsets = [0] * len(items)
    todo = [i for i in range(len(items)) if items[i].size]

    def place(placed: list[tuple[int, int]], left: list[int], size: int) -> None:
        nonlocal best, top, nodes
        nodes += 1
        if not left:
            best, top = (list(offsets), size), size
            return
        tried: set[tuple[int, Item]] = set()
        for k, i in enumerate(left):
            need = align(items[i].size)
            for offset, room in _gaps(items, placed, items[i]):
                if room < need or offset + need >= top or (offset, items[i]) in tried:
                    continue
                tried.add((offset, items[i]))
                offsets[i] = offset
                place([*placed, (offset, i)], left[:k] + left[k + 1 :], max(size, offset + need))
                if top <= bound or nodes > EXACT_NODES:
                    return
                break  # a higher gap for the same item is reached by placing others first

    place([], sorted(todo, key=lambda i: -items[i].size), 0)
    return best


Key = Callable[[Item], tuple[int, ...]]
ORDERS: dict[str, Key] = {
    "size": lambda it: (-it.size, it.first),
    "length": lambda it: (it.first - it.last, -it.size),
    "area": lambda it: (-it.size * (it.last - it.first + 1), it.first),
    "time": lambda it: (it.first, -it.size),
}


def pack(items: Sequence[Item]) -> Packing:
    """The smallest packing that any strategy finds."""
    bound = lower_bound(items)
    result: Packing | None = None
    for name, key in ORDERS.items():
        order = sorted(range(len(items)), key=lambda i, key=key: key(items[i]))  # type: ignore[misc]
        for best in (False, True):
            offsets, size = _greedy(items, order, best)
            if result is None or size < result.size:
                result = Packing(tuple(offsets), size, f"{'best' if best else 'first'}-fit by {name}")
            if size <= bound:
                return result
    assert result is not None
    if len(items) <= EXACT_LIMIT:
        exact = _exact(items, bound, result.size)
        if exact is not None:
            result = Packing(tuple(exact[0]), exact[1], "exact")
    return result
