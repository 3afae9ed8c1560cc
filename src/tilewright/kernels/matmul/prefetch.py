"""Asking for the right operand of a product before it is used."""

from __future__ import annotations

from collections.abc import Callable

from ...core.dims import Dim, product
from ...ir.layout import Layout
from ...tile.builder import Ix
from ..call import Call
from ..launch import Buffer
from .product import Config, Problem

DISTANCE = 8 << 10  # bytes that few rows ask for ahead of use: beyond the page, well inside L2


class NextBlock:
    """Brings the next K block of B into L2 while the tiles of this one are computed: a few cache lines per step, spread over the tiles."""

    def __init__(self, call: Call, p: Problem, config: Config, buffer: Buffer, panels: Layout, panel: Ix | int, k: Ix, block: Dim) -> None:
        self.b, self.config = call.b, config
        self.line = 64 // p.b.type.dtype.itemsize
        per_tile = config.depth // config.unroll  # steps in which a tile can fetch
        lines = config.depth * config.width // self.line
        tiles = -(-block // config.rows) if isinstance(block, int) else 4
        self.count = max(1, min(8, -(-lines // (per_tile * tiles))))  # lines per step
        self.parts = -(-lines // (per_tile * self.count))  # tiles that share the block
        self.flat = call.view("next", p.b.type.dtype, buffer, Layout((product(panels.shape),), (1,), panels.offset))
        self.origin = (panel * k + config.depth) * config.width

    def during(self, row: Ix | int, start: Ix | int) -> Callable[[Ix], None]:
        """What the tile at `row` of its block fetches while K runs from `start` on."""
        b, c = self.b, self.config
        step = self.count * self.line // c.unroll  # elements per k
        part = b.minimum(row // c.rows, self.parts - 1)
        base = self.origin + start * c.width + part * (c.depth * step) - start * step

        def fetch(k: Ix) -> None:
            for i in range(self.count):
                b.prefetch(self.flat, (base + k * step + i * self.line,), locality=2)

        return fetch


class Stream:
    """Few rows read B once, as fast as memory gives it: every line is asked for a fixed distance ahead, across pages, where the
    hardware's own prefetch stops."""

    def __init__(self, call: Call, p: Problem, config: Config, buffer: Buffer, panels: Layout, panel: Ix | int, k: Ix) -> None:
        self.b, self.config = call.b, config
        itemsize = p.b.type.dtype.itemsize
        self.line = 64 // itemsize
        self.flat = call.view("next", p.b.type.dtype, buffer, Layout((product(panels.shape),), (1,), panels.offset))
        self.origin = panel * k * config.width + DISTANCE // itemsize

    def during(self, row: Ix | int, start: Ix | int) -> Callable[[Ix], None]:
        """The same for every tile: there is only one."""

        def fetch(k: Ix) -> None:
            for i in range(0, self.config.unroll * self.config.width, self.line):
                self.b.prefetch(self.flat, (self.origin + k * self.config.width + i,), locality=2)

        return fetch
