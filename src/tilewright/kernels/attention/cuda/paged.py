"""Attention of one query row per sequence over pages of a cache: the decode kernel, which looks up where every run of keys lies.

A run of keys is in one page, so the table is read once for eight keys. Lengths are read from memory: a sequence's groups stop at its last
key. Entries of the table that are needed and name no page are errors that a later call raises.
"""

from __future__ import annotations

from ....core.dims import Dim
from ....core.target_spec import TargetSpec
from ....ops.attention.paged import PagedAttention
from ....tile.builder import Ix
from ...call import Call
from ...index.gather import report_index
from ...launch import Launch
from ...region import Region
from ...template import Reason, Template
from .decode import Decode, vector_of


class PagedDecodeAttention(Template):
    key = "paged_decode_attention"
    serves = (PagedAttention,)
    fuses = True

    def refuses(self, region: Region, target: TargetSpec) -> Reason | None:
        node = region.node
        places = [region.operand(v) for v in node.operands]
        rows = [o for o in places[:3] if o is not None]
        if len(rows) < 3 or places[3] is None or places[4] is None:
            return Reason("operands must come from memory")
        d = rows[0].type.shape[-1]
        assert isinstance(d, int)
        threads = d // 2 // vector_of(rows)
        even = all(o.layout.strides[-1] == 1 for o in rows)
        return None if even and 1 <= threads <= 32 else Reason("rows must lie along the head, at multiples of what a thread reads")

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return PagedDecode(region, target).launches()


class PagedDecode(Decode):
    def __init__(self, region: Region, target: TargetSpec) -> None:
        node = region.node
        assert isinstance(node.op, PagedAttention)
        self.region, self.node, self.op, self.target = region, node, node.op, target  # type: ignore[assignment]
        q, k, v, table, lengths = (o for x in node.operands if (o := region.operand(x)) is not None)
        self.q, self.k, self.v, self.table, self.lengths = q, k, v, table, lengths
        self.batch, self.heads, _, d = q.type.shape
        page = k.type.shape[2]
        assert isinstance(d, int) and isinstance(page, int)
        self.d, self.page, self.keys, self.caches = d, page, table.type.shape[1] * page, []
        self.scales = []
        self.vector = vector_of([q, k, v])
        self._divide()

    def _seen(self) -> tuple[Dim, Dim]:
        return 0, self.keys

    def _last(self, call: Call, sequence: Ix | int, last: Ix | int) -> Ix | int:
        view = call.view("lengths", self.lengths.type.dtype, self.lengths.buffer, self.lengths.layout)
        b = call.b
        return b.minimum(last, b.to_index(b.load(view, (sequence,), ())))

    def _place(self, call: Call, sequence: Ix | int, key: Ix | int) -> tuple[Ix | int, Ix | int]:
        b, o = call.b, self.table
        table = call.view("table", o.type.dtype, o.buffer, o.layout)
        at, size = key // self.page, call.word("pages", self.k.type.shape[0])
        error, row = call.error(), call.word("row", o.type.shape[1])
        wanted = b.to_index(b.load(table, (sequence, at), ()))
        for bad in (b.compare("lt", wanted, 0), b.compare("ge", wanted, size)):
            with b.if_(bad):
                report_index(b, error, row * sequence + at, wanted)
        return b.minimum(b.maximum(wanted, 0), size - 1), key % self.page
