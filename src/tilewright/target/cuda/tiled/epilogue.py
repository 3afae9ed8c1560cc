"""The epilogue of a kernel whose threads hold elements at places of their own in a block's tile."""

from __future__ import annotations

from ..threads.emit import Emitter


class Epilogue(Emitter):
    """Tile IR over the elements a thread holds; `corner` is its first one inside the block, (row, column)."""

    corner = ("0", "0")

    def base(self, shape: tuple[int, ...], axis: int) -> str:
        return self.corner[axis - len(shape) + 2]
