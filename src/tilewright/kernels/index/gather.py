"""Gather along one axis (embeddings): one program per index, one row copied per program, elementwise consumers fused.

Every index is checked: one outside the axis is reported in the error block and clamped, so nothing outside the table is ever
read. A table that is packed in panels for a matmul (a tied weight) is read in that layout.
"""

from __future__ import annotations

from ...core.dims import Dim, bounds, product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ops.index.indexing import Gather as GatherOp
from ...tile.builder import Ix, KernelBuilder, View
from ..call import Call, report
from ..launch import Launch
from ..matmul.tiling import Epilogue
from ..pointwise.pointwise import unravel
from ..region import Operand, Region
from ..template import Reason, Template, from_memory, region_bytes, region_flops, shaped_as_result

INDEX_OUT_OF_RANGE = 1  # code in the error block


class GatherTemplate(Template):
    key = "gather"
    serves = (GatherOp,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        return from_memory(region) or shaped_as_result(region)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        node = region.node
        op = region.op(GatherOp)
        table, ids = region.places
        axis, n_ids = op.axis, ids.type.ndim
        order = tuple(range(table.type.ndim))
        if n_ids == 1 and table.packed.form == "plain" and along_memory(table) != axis:  # the axis along memory comes last
            order = (*(a for a in order if a != along_memory(table)), along_memory(table))
            axis = order.index(axis)
        transposed = order != tuple(range(table.type.ndim))

        def transpose(layout: Layout) -> Layout:
            return layout.permute(order) if transposed else layout

        shape = node.values[0].shape
        out_shape = transpose(Layout.contiguous(shape)).shape
        sizes = transpose(table.layout).shape
        before, after = sizes[:axis], sizes[axis + 1 :]
        call = Call("gather", region.name)
        b = call.b
        width = table.packed.width
        rows = transpose(_table_layout(table))
        source = call.view("table", table.type.dtype, table.buffer, rows)
        index = call.view("ids", ids.type.dtype, ids.buffer, ids.layout)
        epilogue = Epilogue(call, region, transpose)
        error = call.error()
        size = call.word("size", sizes[axis])
        outer = [call.word(f"d{i}", d) for i, d in enumerate((*before, *ids.type.shape, *after[:-1]))]
        inner = call.word("n", after[-1]) if after else None
        at = unravel(b, b.pid, outer)
        at_before, at_ids, at_after = at[:axis], at[axis : axis + n_ids], at[axis + n_ids :]
        wanted = b.to_index(b.load(index, at_ids, ()))
        safe = clamped_index(b, error, _flat(outer[axis : axis + n_ids], at_ids), wanted, size)
        tile = target.vector_bits // 32 * (_registers(after[-1], target.vector_bits // 32) if after else 1)

        def body(i: Ix | int, left: Ix | int | None, shape: tuple[int, ...]) -> None:
            limit = None if left is None else (left,)
            last: tuple[Ix | int, ...] = (i,) if inner is not None else ()
            where = (safe // width, i, safe % width) if width else (*at_before, safe, *at_after, *last)
            axes = None if not width else (1,)
            epilogue.store((*at, *last), b.load(source, where, shape, limit=limit, axes=axes if shape else ()), shape, limit)

        def read() -> None:
            if inner is None:
                body(0, None, ())
                return
            whole = inner // tile * tile
            with b.loop(0, whole, tile) as loop:
                body(loop.index, None, (tile,))
            with b.if_(b.compare("lt", whole, inner)):
                body(whole, inner - whole, (tile,))

        if bounds(sizes[axis])[0] > 0:
            read()
        else:
            with b.if_(b.compare("gt", size, 0)):  # nothing can be read from an empty table; the index has been reported
                read()
        moved = region_bytes(region) - table.type.nbytes + node.values[0].type.nbytes
        return [
            call.finish(
                product(out_shape[:-1]) if after else product(out_shape),
                flops=region_flops(region),
                bytes_=moved,
                note="reads the panels of a tied weight" if width else "",
                streams=True,
            )
        ]


def _registers(n: Dim, lanes: int) -> int:
    """Registers of one step along a row: a short row is one masked step that is no longer than it must be."""
    return min(4, max(1, -(-n // lanes))) if isinstance(n, int) else 4


def along_memory(table: Operand) -> int:
    """The axis of a table whose elements lie side by side; the last one where several or none do."""
    last = table.type.ndim - 1
    found = [a for a, (d, s) in enumerate(zip(table.type.shape, table.layout.strides, strict=True)) if s == 1 and d != 1]
    return found[0] if len(found) == 1 else last


def _table_layout(table: Operand) -> Layout:
    """A packed table [N, K] is [panel, k, lane] in memory."""
    if table.packed.form == "plain":
        return table.layout
    n, k = reversed(table.type.shape) if table.packed.transposed else table.type.shape
    w = table.packed.width
    return Layout(((n + w - 1) // w, k, w), (k * w, w, 1))


def _flat(dims: list[Ix], at: list[Ix | int]) -> Ix | int:
    """Row-major number of a position."""
    out: Ix | int = 0
    for d, i in zip(dims, at, strict=True):
        out = i if isinstance(out, int) else out * d + i
    return out


def report_index(b: KernelBuilder, error: View, position: Ix | int, value: Ix) -> None:
    """The first of a program's failures stays; of several programs' any may win."""
    report(b, error, INDEX_OUT_OF_RANGE, position, value)


def report_outside(b: KernelBuilder, error: View, position: Ix | int, value: Ix, size: Ix | int) -> None:
    """An index outside 0 … size-1 is reported."""
    for bad in (b.compare("lt", value, 0), b.compare("ge", value, size)):
        with b.if_(bad):
            report_index(b, error, position, value)


def clamped_index(b: KernelBuilder, error: View, position: Ix | int, value: Ix, size: Ix | int) -> Ix | int:
    """An index inside 0 … size-1; one outside is reported and clamped."""
    report_outside(b, error, position, value, size)
    return b.minimum(b.maximum(value, 0), size - 1)
