"""Sums of products as FMA chains: an element is the sum, in order, of chains over CHAIN steps of K."""

from __future__ import annotations

from collections.abc import Callable

from ...tile.builder import Ix, KernelBuilder, Tile

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
) -> Tile:
    """total + the K range in chains of `length` rank-1 updates of rows×width accumulators: `left(k)` is a column, `right(k)` a row."""
    rows, width = total.shape

    def step(i: Ix | int, acc: Tile) -> Tile:
        return b.mma(left(i), right(i), acc)

    def chain(first: Ix | int, count: Ix | int) -> Tile:
        """`count` updates from zero; no tail where that is a known multiple of the unrolling."""
        last = first + count
        main = last if isinstance(count, int) else first + count // unroll * unroll
        with b.loop(first, main, unroll, [b.full((rows, width), 0.0, total.dtype)], nonempty=isinstance(count, int)) as loop:
            acc = loop.carried[0]
            if fetch is not None:
                fetch(loop.index)
            for u in range(unroll):
                acc = step(loop.index + u, acc)
            loop.next(acc)
        if isinstance(count, int):
            found: Tile = loop.results[0]
            return found
        with b.loop(main, last, 1, [loop.results[0]]) as tail:
            tail.next(step(tail.index, tail.carried[0]))
        found = tail.results[0]
        return found

    whole = stop if whole_chains else start + (stop - start) // length * length
    with b.loop(start, whole, length, [total]) as chains:
        chains.next(chains.carried[0] + chain(chains.index, length))
    if not whole_chains:
        with b.loop(whole, stop, length, chains.results) as chains:  # at most once
            chains.next(chains.carried[0] + chain(chains.index, stop - chains.index))
    out: Tile = chains.results[0]
    return out
