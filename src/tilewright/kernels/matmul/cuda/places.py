"""The operands, results and epilogue of a product as the matrix kernels see them: matrices with one batch axis (the epilogue: or two)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ....core.dims import Dim, Shape, at_least, divisible, product
from ....ir.graph import Value
from ....ir.layout import Layout
from ....tile.builder import View
from ...call import Call
from ...region import Operand, Region, collapse
from ..product import Problem
from ..tiling import leaves_of_epilogue
from .copied_operands import aligned_rows

LONG = 512  # rows of a batch whose last tile may be part empty


@dataclass(frozen=True)
class Source:
    """An operand that no single batch stride describes: up to two leading axes, then rows."""

    sizes: tuple[Dim, ...]
    strides: tuple[Dim, ...]
    rows: Dim
    step: Dim  # between rows


@dataclass(frozen=True)
class Places:
    """Operands seen as [batch, rows, columns]; results and what the epilogue reads as [*lead, rows, columns], where `lead` is the batch or
    two axes that make it up. Operands that do not lie like that are to be copied first."""

    m: Dim
    batch: Dim
    a: tuple[Dim, Dim, Dim]  # strides of batch, M, K
    b: tuple[Dim, Dim, Dim]  # strides of batch, K, N
    outs: list[tuple[Dim, ...]]
    leaves: list[tuple[Dim, ...]]
    lead: tuple[Dim, ...] = (1,)
    copy_a: Source | None = None
    copy_b: Source | None = None
    repeated: tuple[int, int] = (0, 0)  # both operands that the batch takes in turn; 0: as many as there are products

    def in_turn(self) -> Places:
        """The same without copies of operands whose matrices only repeat: the outer axis of the batch has the same ones."""
        found, counts = self, list(self.repeated)
        for i, c in enumerate((self.copy_a, self.copy_b)):
            if c is None or len(c.sizes) != 2 or c.strides[0] != 0 or not isinstance(c.sizes[1], int):
                continue
            counts[i] = c.sizes[1]
            found = replace(found, a=(c.strides[1], *self.a[1:]), copy_a=None) if i == 0 else replace(
                found, b=(c.strides[1], *self.b[1:]), copy_b=None)  # fmt: skip
        return replace(found, repeated=(counts[0], counts[1]))

    def flat(self, s: tuple[Dim, ...]) -> tuple[Dim, ...] | None:
        """Strides of [batch, rows, columns], where one stride serves the whole batch."""
        if len(s) == 3:
            return s
        return s[1:] if s[0] == s[1] * self.lead[1] else None

    def views(self, call: Call, region: Region, n: Dim) -> tuple[list[View], dict[Value, View]]:
        """Views of results and of what the epilogue reads, as [*lead, rows, columns]."""
        shape = (*self.lead, self.m, n)
        outs = [
            call.view(f"c{i}", r.type.dtype, r.buffer, Layout(shape, s, r.layout.offset), write=True)
            for i, (r, s) in enumerate(zip(region.results, self.outs, strict=True))
        ]
        ins: dict[Value, View] = {}
        for i, (v, s) in enumerate(zip(leaves_of_epilogue(region, region.node.values[0]), self.leaves, strict=True)):
            o = region.operand(v)
            assert o is not None
            ins[v] = call.view(f"e{i}", o.type.dtype, o.buffer, Layout(shape, s, o.layout.offset))
        return outs, ins

    def runs(self, region: Region, n: Dim, run: int) -> bool:
        """Whether every row of results and of what the epilogue reads starts at a multiple of `run` elements, and N is one."""
        leaves = [region.operand(v) for v in leaves_of_epilogue(region, region.node.values[0])]
        offsets = [r.layout.offset for r in region.results] + [o.layout.offset for o in leaves if o is not None]
        rows = all(s[-1] == 0 or (s[-1] == 1 and all(divisible(x, run) for x in s[:-1])) for s in (*self.outs, *self.leaves))
        return run == 1 or (rows and divisible(n, run) and all(divisible(x, run) for x in offsets))

    def matrices(self, call: Call, region: Region, n: Dim) -> tuple[list[View], dict[Value, View]]:
        """Views of results and of what the epilogue reads, as matrices, where there is no batch."""

        def view(name: str, o: Operand, s: tuple[Dim, ...], write: bool) -> View:
            return call.view(name, o.type.dtype, o.buffer, Layout((self.m, n), (s[1], s[2]), o.layout.offset), write=write)

        outs = [view(f"c{i}", r, s, True) for i, (r, s) in enumerate(zip(region.results, self.outs, strict=True))]
        ins: dict[Value, View] = {}
        for i, (v, s) in enumerate(zip(leaves_of_epilogue(region, region.node.values[0]), self.leaves, strict=True)):
            o = region.operand(v)
            assert o is not None
            ins[v] = view(f"e{i}", o, s, False)
        return outs, ins


def suitable(region: Region) -> Places | None:
    """The places, where all operands lie in rows or columns of whole pieces of 16 bytes and results can be stored in pairs."""
    at, p = places_of(region), Problem.of(region)
    if at is None or at.copy_a is not None or at.copy_b is not None or len(at.lead) > 1:
        return None
    unit = 16 // p.a.type.dtype.itemsize
    good = aligned_rows(at.a, p.a_view.offset, unit) and aligned_rows(at.b, p.b_view.offset, unit) and at_least(p.k, 1)
    return at if good and at.runs(region, p.n, 2) else None


def places_of(region: Region) -> Places | None:
    """The places of a product; None where more than two batch axes stay apart."""
    p = Problem.of(region)
    out_shape = region.results[0].type.shape
    leaves = [region.operand(v) for v in leaves_of_epilogue(region, region.node.values[0])]
    lays = [r.layout for r in region.results] + [o.layout.expand(out_shape) for o in leaves if o is not None]
    a = p.a_view.expand((*out_shape[:-2], p.m, p.k))
    return (_batched if p.batched else _shared)(p, out_shape, a, lays, len(region.results))


def _batched(p: Problem, out_shape: Shape, a: Layout, lays: Sequence[Layout], n_out: int) -> Places | None:
    """Every batch element has a matrix B of its own."""
    batch = out_shape[:-2]
    b = p.b_view.expand((*batch, p.k, p.n))
    sizes, strides = collapse(batch, [Layout(batch, x.strides[:-2]) for x in lays])
    left, right = _source(batch, a.strides[:-2], p.m, a.strides[-2]), _source(batch, b.strides[:-2], p.n, b.strides[-1])
    if len(sizes) > 2 or left is None or right is None:
        return None
    rest: list[tuple[Dim, ...]] = [(*(s or [0]), *x.strides[-2:]) for s, x in zip(strides, lays, strict=True)]
    return Places(
        p.m,
        product(sizes),
        (left.strides[0] if left.strides else 0, a.strides[-2], a.strides[-1]),
        (right.strides[0] if right.strides else 0, b.strides[-2], b.strides[-1]),
        rest[:n_out],
        rest[n_out:],
        tuple(sizes) or (1,),
        left if len(left.sizes) > 1 else None,
        right if len(right.sizes) > 1 else None,
    )


def _shared(p: Problem, out_shape: Shape, a: Layout, lays: Sequence[Layout], n_out: int) -> Places | None:
    """One matrix B: the leading axes of A are rows, as far as results and epilogue agree; else the first of them are a batch."""
    rows = out_shape[:-1]
    flat = [Layout(rows, x.strides[:-1]) for x in lays]
    sizes, strides = collapse(rows, flat)
    copy: Source | None = None
    lead: tuple[Dim, ...] = (1,)
    rest: list[tuple[Dim, ...]]
    own, steps = collapse(rows, [Layout(rows, a.strides[:-1]), Layout.contiguous(rows)])
    apart = len(own) == 2 and any(at_least(d, LONG) for d in own)  # rows of A in long runs: a batch costs less than a copy
    if len(sizes) <= 1 and not apart:
        m = sizes[0] if sizes else 1
        rest = [(0, s[0] if s else 0, x.strides[-1]) for s, x in zip(strides, lays, strict=True)]
        left: tuple[Dim, Dim] = (0, steps[0][0] if own else 0)
        if len(own) > 3:
            return None
        if len(own) > 1:
            copy = Source(tuple(own[:-1]), tuple(steps[0][:-1]), own[-1], steps[0][-1])
    else:
        sizes, strides = collapse(rows, [Layout(rows, a.strides[:-1]), *flat])
        if len(sizes) > 3:
            return None
        if len(sizes) == 2 and at_least(sizes[0] - sizes[1], 1):  # the longer axis is the rows
            sizes, strides = sizes[::-1], [s[::-1] for s in strides]
        *first, m = sizes
        lead = tuple(first)
        rest = [(*s, x.strides[-1]) for s, x in zip(strides[1:], lays, strict=True)]
        left = (strides[0][0], strides[0][-1])
        if len(lead) == 2 and strides[0][0] != strides[0][1] * lead[1]:
            copy = Source(lead, tuple(strides[0][:-1]), m, strides[0][-1])
        elif len(lead) == 2:
            left = (strides[0][1], strides[0][-1])
    b = (0, p.b_view.strides[-2], p.b_view.strides[-1])
    row = p.k if m == 1 and left[1] == 0 else left[1]  # one row lies anywhere; several with a stride of 0 are the same row, to be copied
    at = (left[0], row, a.strides[-1])
    return Places(m, product(lead), at, b, rest[:n_out], rest[n_out:], lead, copy)


def _source(batch: Shape, strides: Sequence[Dim], rows: Dim, step: Dim) -> Source | None:
    """The batch axes of an operand, merged; None where more than two are left."""
    sizes, (merged, _) = collapse(batch, [Layout(batch, tuple(strides)), Layout.contiguous(batch)])
    return Source(tuple(sizes), tuple(merged), rows, step) if len(sizes) <= 2 else None
