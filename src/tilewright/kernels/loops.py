"""Loops that kernels share: whole pieces first, then what is left."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from ..tile.builder import Ix, KernelBuilder, Tile


def unrolled(b: KernelBuilder, start: Ix | int, stop: Ix | int, total: Tile, step: Callable[[Ix | int, Tile], Tile], by: int = 4,
             before: Callable[[Ix], None] | None = None, *, whole: bool = False) -> Tile:
    """step(i, total) in order for start … stop-1, `by` of them in an iteration, which begins with `before`. `whole`: they are some
    iterations, without a rest."""
    end = stop if whole else start + (stop - start) // by * by
    with b.loop(start, end, by, [total], nonempty=whole) as loop:
        total = loop.carried[0]
        if before is not None:
            before(loop.index)
        for u in range(by):
            total = step(loop.index + u, total)
        loop.next(total)
    if not whole:
        with b.loop(end, stop, 1, loop.results) as loop:
            loop.next(step(loop.index, loop.carried[0]))
    out: Tile = loop.results[0]
    return out


def in_blocks(b: KernelBuilder, start: Ix | int, stop: Ix | int, height: int, body: Callable[[Ix, int], None]) -> None:
    """body(first, height) for blocks of start … stop-1, then for the last ones one by one."""
    whole = start + (stop - start) // height * height
    with b.loop(start, whole, height) as loop:
        body(loop.index, height)
    with b.loop(whole, stop) as loop:
        body(loop.index, 1)


Part = Callable[[Ix, "Ix | int | None", list[Tile]], Sequence[Tile]]


def in_tiles(b: KernelBuilder, start: Ix | int, stop: Ix | int, tile: int, body: Part, carried: Sequence[Tile] = ()) -> list[Tile]:
    """body(first, None, carried) for whole tiles of start … stop-1, then body(first, left, carried) for what is left of the last one."""
    whole = start + (stop - start) // tile * tile
    with b.loop(start, whole, tile, carried) as loop:
        loop.next(*body(loop.index, None, list(loop.carried)))
    with b.loop(whole, stop, tile, loop.results) as tail:
        tail.next(*body(tail.index, stop - whole, list(tail.carried)))
    return list(tail.results)
