"""Reductions and transposes of tiles in registers. The tree of a reduction depends on the size of its axis alone: pad with the
identity to a power of two, then combine the lower half with the upper half until one element is left."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...core.dtypes import DType
from ...core.errors import CompileError
from ...tile.ir import identity
from . import arithmetic
from .llvm_text import FunctionText, number, vector
from .registers import Registers, chunk_sizes, elem_type

_COMBINE = {"sum": "add", "prod": "mul", "max": "max", "min": "min", "any": "or", "all": "and"}


def combine(f: FunctionText, fn: str, dtype: DType, ty: str, a: str, b: str) -> str:
    if fn in ("any", "all"):
        return f.op("or" if fn == "any" else "and", ty, a, b)
    return arithmetic.binary(f, _COMBINE[fn], dtype, ty, a, b)


def _halve(f: FunctionText, fn: str, dtype: DType, ty: str, parts: list[str]) -> str:
    """Combine whole registers: element i with element i + n/2; a missing partner is the identity, so it is skipped."""
    size = 1
    while size < len(parts):
        size *= 2
    while size > 1:
        size //= 2
        parts = [
            combine(f, fn, dtype, ty, parts[i], parts[i + size]) if i + size < len(parts) else parts[i]
            for i in range(min(size, len(parts)))
        ]
    return parts[0]


def reduce_tile(f: FunctionText, fn: str, x: Registers, axis: int) -> list[list[str]]:
    """Rows of the result (the axis kept with size 1)."""
    if axis == len(x.type.shape) - 1:
        return [[_horizontal(f, fn, x, row)] for row in x.rows]
    before, size, after = x.type.shape[:axis], x.type.shape[axis], x.type.shape[axis + 1 : -1]
    rows = []
    n_before, n_after = _count(before), _count(after)
    for o, i in itertools.product(range(n_before), range(n_after)):
        group = [x.rows[(o * size + k) * n_after + i] for k in range(size)]
        rows.append([_halve(f, fn, x.type.dtype, x.chunk_type(c), [g[c] for g in group]) for c in range(len(x.sizes))])
    return rows


def scan_tile(f: FunctionText, fn: str, x: Registers) -> list[list[str]]:
    """Rows of running sums by doubling; a row is one register."""
    if len(x.sizes) != 1:
        raise CompileError(f"cpu: scan takes rows of one register, got {x.type}")
    n, step, rows = x.sizes[0], 1, [row[0] for row in x.rows]
    ty = x.chunk_type(0)
    while step < n:
        for r, v in enumerate(rows):
            before = f.shuffle(ty, v, "poison", [max(i - step, 0) for i in range(n)])
            both = combine(f, fn, x.type.dtype, ty, before, v)
            rows[r] = f.shuffle(ty, v, both, [i if i < step else n + i for i in range(n)])
        step *= 2
    return [[v] for v in rows]


def _count(dims: tuple[int, ...]) -> int:
    n = 1
    for d in dims:
        n *= d
    return n


def _horizontal(f: FunctionText, fn: str, x: Registers, row: list[str]) -> str:
    if x.sizes == (0,):
        return row[0]
    width = 1
    while width < max(x.sizes):
        width *= 2
    ty, elem = vector(width, x.elem), x.elem
    fill = f"splat ({elem} {number(elem, identity(fn, x.type.dtype))})"
    full = [chunk if n == width else _pad(f, vector(n, elem), chunk, n, width, fill, ty) for chunk, n in zip(row, x.sizes, strict=True)]
    value = _halve(f, fn, x.type.dtype, ty, full)
    while width > 1:
        half = width // 2
        low = f.shuffle(vector(width, elem), value, "poison", range(half))
        high = f.shuffle(vector(width, elem), value, "poison", range(half, width))
        value, width = combine(f, fn, x.type.dtype, vector(half, elem), low, high), half
    return f.value(f"extractelement <1 x {elem}> {value}, i64 0")


def _pad(f: FunctionText, ty: str, x: str, n: int, width: int, fill: str, wide: str) -> str:
    grown = f.shuffle(ty, x, "poison", [i if i < n else -1 for i in range(width)])
    return f.shuffle(wide, grown, fill, [i if i < n else width for i in range(width)])


def shuffle_tile(f: FunctionText, a: Registers, b: Registers, order: Sequence[int]) -> list[list[str]]:
    """Elements of two rows by constant index; a result register that takes from two registers is one shuffle."""
    elem, n = elem_type(a.type.dtype), a.type.shape[0]
    whole = vector(a.lanes, elem)

    def grown(row: list[str], sizes: Sequence[int]) -> list[str]:
        """Registers of the same width, so that any two can be mixed."""
        out = []
        for x, size in zip(row, sizes, strict=True):
            if size == 0:
                out.append(f.value(f"insertelement {whole} poison, {elem} {x}, i64 0"))
            else:
                out.append(x if size == a.lanes else f.shuffle(vector(size, elem), x, "poison", [*range(size), *[-1] * (a.lanes - size)]))
        return out

    sources = [*grown(a.rows[0], a.sizes), *grown(b.rows[0], b.sizes)]
    places = [(k // n * len(a.sizes) + k % n // a.lanes, k % n % a.lanes) for k in order]
    row, start = [], 0
    for size in chunk_sizes(len(order), a.lanes):
        count = max(size, 1)
        wanted = places[start : start + count]
        used = list(dict.fromkeys(source for source, _ in wanted))
        first, second = sources[used[0]], sources[used[1]] if len(used) > 1 else "poison"
        offset = {used[0]: 0, **({used[1]: a.lanes} if len(used) > 1 else {})}
        rest = [-1] * (a.lanes - count)
        made = f.shuffle(whole, first, second, [offset[s] + k if s in offset else -1 for s, k in wanted] + rest)
        for s in used[2:]:
            made = f.shuffle(whole, made, sources[s], [a.lanes + k if t == s else i for i, (t, k) in enumerate(wanted)] + rest)
        if size == 0:
            made = f.value(f"extractelement {whole} {made}, i64 0")
        elif size < a.lanes:
            made = f.shuffle(whole, made, "poison", range(size))
        row.append(made)
        start += count
    return [row]


def transpose_tile(f: FunctionText, x: Registers) -> list[list[str]]:
    """Swap the axes of a rank-2 tile. Square power-of-two tiles of one register per row use a butterfly of shuffles."""
    r, c = x.type.shape
    elem = elem_type(x.type.dtype)
    if r == c and len(x.sizes) == 1 and r > 1 and r & (r - 1) == 0:
        ty, v, s = vector(r, elem), [row[0] for row in x.rows], r // 2
        while s:
            out = list(v)
            for i in range(r):
                if i & s == 0:
                    a, b = v[i], v[i + s]
                    out[i] = f.shuffle(ty, a, b, [lane if lane & s == 0 else r + lane - s for lane in range(r)])
                    out[i + s] = f.shuffle(ty, a, b, [lane + s if lane & s == 0 else r + lane for lane in range(r)])
            v, s = out, s // 2
        return [[row] for row in v]
    if c == 1:  # a column of scalars becomes one row
        row, lane = [], 0
        for n in chunk_sizes(r, x.lanes):
            if n == 0:
                row.append(x.rows[0][0])
                continue
            built = "poison"
            for k in range(n):
                built = f.value(f"insertelement {vector(n, elem)} {built}, {elem} {x.rows[lane + k][0]}, i64 {k}")
            row.append(built)
            lane += n
        return [row]
    raise CompileError(f"cpu: transpose takes square power-of-two tiles of one register a row, or a column, got {x.type}")
