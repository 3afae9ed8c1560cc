"""Which threads run a program that is written for a block of its own, and where its shared memory begins.

A launch of its own: the block, its number, all of shared memory. Inside a larger kernel (`grid.py`) it is a part of a block.
"""

from __future__ import annotations

from .ptx_text import KernelText


class Where:
    """A block that has the kernel to itself."""

    again = False  # whether the text is run more than once: what is set under a predicate alone would be kept from one time to the next

    def __init__(self, k: KernelText) -> None:
        self.k = k

    def thread(self) -> str:
        """Number of this thread in the program."""
        return self.k.value("i32", "mov.u32 {}, %tid.x;")

    def program(self) -> str:
        """Number of the program, 32 bits."""
        return self.k.value("i32", "mov.u32 {}, %ctaid.x;")

    def base(self) -> str:
        """Where the program's shared memory begins."""
        return self.k.value("i32", "mov.u32 {}, scratch;")

    def meet(self) -> None:
        """All threads of the program."""
        self.k.emit("bar.sync 0;")
