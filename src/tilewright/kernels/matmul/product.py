"""What every way to compute a matrix product shares: the operands seen as matrices, and the views of one launch over them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ...core.dims import Dim, ceildiv, maximum, minimum
from ...core.dtypes import DType
from ...ir.graph import Value
from ...ir.layout import Layout
from ...ops.matmul.contractions import Matmul as MatmulOp
from ...tile.builder import Ix, View
from ..call import Call
from ..launch import Buffer
from ..quant.words import Words
from ..region import Operand, Region, collapse
from .tiling import Rows


@dataclass(frozen=True)
class Config:
    """Register tile (rows × width), how far K is unrolled, and the depth of a K block that stays in L2 while a block of rows passes
    (a multiple of CHAIN, so it changes no bit)."""

    rows: int
    width: int
    unroll: int = 4
    depth: int = 512


@dataclass(frozen=True)
class Problem:
    """Everything about one product: operands seen as [batch…, M, K], [batch…, K, N], [batch…, M, N]."""

    a: Operand
    b: Operand
    a_view: Layout
    b_view: Layout
    m: Dim
    n: Dim
    k: Dim
    alpha: float
    dtype: DType
    words: Words | None = None  # operands are seen as 32-bit words, K is counted in them
    order: tuple[int, ...] | None = None  # axes of the region's results as [batch…, M, N], where they are others
    b_way: Literal["packed", "rows", "columns"] = "packed"  # whether B lies in panels, or is read in place along its rows or columns

    @staticmethod
    def of(region: Region) -> Problem:
        node = region.node
        op = region.op(MatmulOp)
        a, b = region.places
        a_view, b_view = a.layout, b.layout
        if op.transpose_a:
            a_view = a_view.permute((*range(len(a_view.shape) - 2), len(a_view.shape) - 1, len(a_view.shape) - 2))
        if op.transpose_b:
            b_view = b_view.permute((*range(len(b_view.shape) - 2), len(b_view.shape) - 1, len(b_view.shape) - 2))
        *_, m, k = a_view.shape
        return Problem(a, b, a_view, b_view, m, b_view.shape[-1], k, op.alpha, node.values[0].dtype)

    def as_matrices(self, layout: Layout) -> Layout:
        """Something of the shape of the region's results as [batch…, M, N]."""
        return layout if self.order is None else layout.permute(self.order)

    @property
    def batched(self) -> bool:
        """B differs between batch elements."""
        return any(d != 1 for d in self.b_view.shape[:-2])

    @property
    def constant_matrix(self) -> bool:
        data = self.b.data  # panels are made of matrices: one with leading axes of 1 is read as it lies
        matrix = data is not None and len(data.type.shape) == 2 and not self.batched
        return matrix and self.b.layout.is_contiguous and self.b.layout.offset == 0


@dataclass
class Frame:
    """A launch over a product: its views, with neighbouring batch axes merged, so that `rows` is the M of one program's matrix."""

    call: Call
    rows: Dim
    lead: list[Dim]  # batch axes that stay apart
    a: View
    b: View
    outs: list[View]
    ins: dict[Value, View]  # what the epilogue reads
    pairs: list[tuple[Buffer, Buffer]] = field(default_factory=list)  # operands whose memory the result may take

    @staticmethod
    def of(region: Region, p: Problem, b_buffer: Buffer, panels: Layout, *, name: str = "matmul") -> Frame:
        rows = Rows(region, p.as_matrices)
        out_shape = rows.layouts[0].shape
        a_lay = p.a_view.expand((*out_shape[:-2], p.m, p.k))
        rows_a = Layout(out_shape[:-1], a_lay.strides[:-1])
        if p.batched:
            b_lead = Layout(p.b_view.shape[:-2], panels.strides[:-3]).expand(out_shape[:-2])
            every = [rows_a, *rows.leading()]
            sizes, strides = collapse(out_shape[:-2], [*(Layout(lay.shape[:-1], lay.strides[:-1]) for lay in every), b_lead])
            b_steps = strides.pop()
            sizes = [*sizes, p.m]
            strides = [[*s, lay.strides[-1]] for s, lay in zip(strides, every, strict=True)]
        else:
            sizes, strides = rows.merged(rows_a)
            b_steps = [0] * (len(sizes) - 1)
        call = Call(name, region.name)
        a = call.view("a", p.a.type.dtype, p.a.buffer, Layout((*sizes, p.k), (*strides[0], a_lay.strides[-1]), p.a_view.offset))
        b = call.view(
            "b",
            p.b.type.dtype,
            b_buffer,
            Layout((*sizes[:-1], *panels.shape[-3:]), (*b_steps, *panels.strides[-3:]), panels.offset),
            sizes=(*sizes[:-1], 1, panels.shape[-2], p.n) if p.b_way != "packed" else None,
            bake=(-2,) if p.b_way == "packed" else (),
        )
        outs, ins = rows.views(call, sizes, strides[1:])
        pairs = [
            (o.buffer, r.buffer)
            for o, lay in zip(rows.read.values(), rows.layouts[len(outs) :], strict=True)
            for r, to in zip(region.results, rows.layouts, strict=False)
            if lay.strides == to.strides and o.layout.offset == r.layout.offset and o.type.dtype is r.type.dtype
        ]
        return Frame(call, sizes[-1], sizes[:-1], a, b, outs, ins, [] if len(outs) > 1 else pairs)

    def words(self) -> list[Ix]:
        return [self.call.word(f"d{i}", d) for i, d in enumerate(self.lead)]


def even_blocks(m: Dim, most: int) -> Dim:
    """Rows of one program when M is cut into the fewest blocks of at most `most` rows: nearly equal, so that threads end together."""
    return maximum(1, minimum(m, ceildiv(m, maximum(1, ceildiv(m, most)))))
