"""LU of one panel of columns in local memory, with the largest pivot of each column."""

from __future__ import annotations

from ...core.dtypes import i32, i64
from ...tile.builder import Ix, Tile, View
from ..call import report
from .matrices import SINGULAR, Columns, Matrices, padded, swap

FEW = 8  # columns that are factored one by one; those behind take all of them in one pass
SIDE = 4  # columns behind that are changed together


def factor_panel(w: Matrices, c: Columns, pivots: View, order: View, error: View | None, at: list[Ix | int], matrix: Ix | int,
                 first: Ix | int, rows: Ix | int, count: Ix, height: int) -> None:
    """c holds `count` columns from row `first` of the matrix on; they become L and U."""
    b = w.b
    one = b.full((), 1.0, c.dtype)
    with b.loop(0, count, FEW) as group:
        begin = group.index
        end = b.minimum(begin + FEW, count)
        with b.loop(begin, end) as step:
            j = step.index
            p = b.minimum(_largest(c, j, rows, height), rows - 1)  # NaN is nowhere found
            b.store(pivots, (*at, first + j), b.from_index(first + p, i32))
            swap(b, order, [*at, first + j], [*at, first + p])
            with b.loop(0, count) as column:
                swap(b, c.view, [column.index, j], [column.index, p])
            pivot = c.one(j, j)
            zero = b.cmp("eq", pivot, 0.0)
            if error is not None:
                with b.if_(zero):
                    report(b, error, SINGULAR, matrix, first + j)
            safe = b.select(zero, one, pivot)
            c.each(j + 1, rows, lambda i: c.put(j, i, c.get(j, i) / safe))
            with b.loop(j + 1, end) as column:
                c.add(column.index, -c.one(column.index, j), c, j, j + 1, rows)
        whole = end + (count - end) // SIDE * SIDE
        with b.loop(end, whole, SIDE) as column:
            _behind(c, column.index, SIDE, begin, rows)
        with b.loop(whole, count) as column:
            _behind(c, column.index, 1, begin, rows)


def _behind(c: Columns, column: Ix, side: int, begin: Ix, rows: Ix | int) -> None:
    """Columns behind FEW factored ones: solved with their triangle, the rest minus the product."""
    b = c.b
    solved: list[Tile] = []  # negated
    for r in range(FEW):
        x = b.load(c.view, (column, begin + r), (side, 1))
        for q, other in enumerate(solved):
            x = b.fma(other, b.load(c.view, (begin + q, begin + r), (1, 1)), x)
        b.store(c.view, (column, begin + r), x)
        solved.append(-x)
    with b.loop(begin + FEW, rows, c.width) as loop:
        x = b.load(c.view, (column, loop.index), (side, c.width))
        for q, factor in enumerate(solved):
            x = b.fma(factor, b.load(c.view, (begin + q, loop.index), (1, c.width)), x)
        b.store(c.view, (column, loop.index), x)


def _largest(c: Columns, j: Ix, rows: Ix | int, height: int) -> Ix:
    """Where the column is largest from row j on; the first of several."""
    b, width = c.b, c.width
    with b.loop(j, rows, width, [b.full((width,), 0.0, c.dtype)]) as loop:
        loop.next(b.binary("max", loop.carried[0], b.unary("abs", c.get(j, loop.index))))
    top = b.reduce("max", loop.results[0])
    far = padded(height, width)
    with b.loop(j, rows, width, [b.full((width,), far, i64)]) as loop:
        places = b.iota((width,), 0) + b.from_index(loop.index)
        hit = b.cmp("eq", b.unary("abs", c.get(j, loop.index)), top)
        loop.next(b.binary("min", loop.carried[0], b.select(hit, places, far)))
    return b.to_index(b.reduce("min", loop.results[0]))
