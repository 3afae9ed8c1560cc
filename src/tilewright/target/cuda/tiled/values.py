"""A tile in registers."""

from __future__ import annotations

from typing import Any

from ....tile.ir import TileType
from ..threads.layout import Regs
from .layout import Layout


class Spread(Regs):
    """`values` by the number of the register that holds them in `layout`."""

    def __init__(self, type_: TileType, layout: Layout, values: dict[int, str]) -> None:
        self.type, self.layout = type_, layout
        self.values: dict[Any, str] = values
