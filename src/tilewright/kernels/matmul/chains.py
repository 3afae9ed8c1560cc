"""Sums of products as FMA chains: an element is the sum, in order, of chains over CHAIN steps of K."""

from __future__ import annotations

from collections.abc import Callable

from ...tile.builder import Ix, KernelBuilder, Tile
from ..loops import unrolled
from ..quant.words import Words

CHAIN = 64  # part of the numerics, not of the tuning: every kernel that multiplies with FMA sums like this


def accumulate_chains(
    b: KernelBuilder,
    left: Callable[[Ix | int], Tile],
    right: Callable[[Ix | int], Tile],
    start: Ix | int,
    stop: Ix | int,
    total: Tile,
    whole_chains: bool = False,
    fetch: Callable[[Ix], None] | None = None,
    unroll: int = 4,
    length: int = CHAIN,
    step: Callable[[Tile, Tile, Tile], Tile] | None = None,
) -> Tile:
    """total + the K range in chains of `length` rank-1 updates of rows×width accumulators: `left(k)` is a column, `right(k)` a row.
    `step` is the update, if it is not a plain multiply-add."""
    rows, width = total.shape
    update = b.mma if step is None else step

    def at(i: Ix | int, acc: Tile) -> Tile:
        return update(left(i), right(i), acc)

    def chain(first: Ix | int, count: Ix | int) -> Tile:
        """`count` updates from zero; no tail where that is a known multiple of the unrolling."""
        return unrolled(b, first, first + count, b.full((rows, width), 0.0, total.dtype), at, unroll, fetch, whole=isinstance(count, int))

    whole = stop if whole_chains else start + (stop - start) // length * length
    with b.loop(start, whole, length, [total]) as chains:
        chains.next(chains.carried[0] + chain(chains.index, length))
    if not whole_chains:
        with b.loop(whole, stop, length, chains.results) as chains:  # at most once
            chains.next(chains.carried[0] + chain(chains.index, stop - chains.index))
    out: Tile = chains.results[0]
    return out


def accumulate_words(
    b: KernelBuilder,
    words: Words,
    left: Callable[[Ix | int], Tile],
    right: Callable[[Ix | int], Tile],
    start: Ix | int,
    stop: Ix | int,
    total: Tile,
    fetch: Callable[[Ix], None] | None = None,
    unroll: int = 4,
) -> Tile:
    """total + the K range of words. Sums of integers are exact in any order: one run, no chains."""
    return unrolled(b, start, stop, total, lambda i, acc: words.dot(b, left(i), right(i), acc), unroll, fetch)
