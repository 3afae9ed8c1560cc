"""A run-time right operand copied into panels of columns, one program a panel; columns past N are filled with zeros.

An operand whose columns run along memory (a transposed one) is transposed on the way, a square tile of registers at a time.
"""

from __future__ import annotations

from ...core.dims import Dim, ceildiv, product
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ..call import Call
from ..launch import Buffer, Launch
from ..pointwise.copies import MOVED
from ..pointwise.pointwise import unravel
from ..region import Operand


def pack_panels(name: str, w: Operand, view: Layout, n: Dim, width: int, target: TargetSpec, note: str) -> tuple[Launch, Buffer, Layout]:
    """view[..., K, N] of `w` as [..., panels, K, width]."""
    *lead, depth, _ = view.shape
    layout = Layout.contiguous((*lead, ceildiv(n, width), depth, width))
    dtype = w.type.dtype
    buffer = Buffer(f"{name}.packed", "temp", product(layout.shape) * dtype.itemsize)
    call = Call("pack", f"{name}.pack")
    b = call.b
    side = target.vector_bits // (8 * max(dtype.itemsize, 4))
    transposed = target.kind == "cpu" and dtype.itemsize in MOVED and view.strides[-2] == 1 and view.strides[-1] != 1 and width % side == 0
    moved = MOVED[dtype.itemsize] if transposed else dtype
    source = call.view("b", moved, w.buffer, view)
    panels = call.view("panels", moved, buffer, layout, write=True)
    dims = [call.word(f"d{i}", d) for i, d in enumerate(lead)]
    nw, kw, count = call.word("n", n), call.word("k", depth), call.word("count", layout.shape[-3])
    at, panel = unravel(b, b.pid // count, dims), b.pid % count
    first, axes = panel * width, (len(lead) + 1, len(lead))
    with b.loop(0, kw, side if transposed else 1) as loop:
        for c in range(0, width, side) if transposed else ():
            left = kw - loop.index
            x = b.load(source, (*at, loop.index, first + c), (side, side), limit=(nw - first - c, left), axes=axes)
            b.store(panels, (*at, panel, loop.index, c), b.transpose(x), limit=(left, None))
        if not transposed:
            b.store(panels, (*at, panel, loop.index, 0), b.load(source, (*at, loop.index, first), (width,), limit=(nw - first,)))
    return call.finish(product(lead) * layout.shape[-3], bytes_=2 * w.type.nbytes, note=note), buffer, layout
