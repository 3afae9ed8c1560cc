"""Runs a kernel in the tile interpreter: slowly, with prints, and with every position checked. Errors name the user's line."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..core.errors import ExecutionError
from ..tile.builder import Ix, Tile
from ..tile.interp import Argument, _Fault, _Interpreter
from ..tile.ir import Block, Instr, Kernel
from .context import Recorder

MOST_SHOWN = 1000  # elements of a printed tile


class Debugger(_Interpreter):
    def __init__(self, kernel: Kernel, args: Sequence[Argument], recorder: Recorder, out: Callable[[str], Any]) -> None:
        super().__init__(kernel, args)
        self.recorder, self.out = recorder, out

    def block(self, block: Block) -> None:
        for instr in block.body:
            try:
                self.check(instr)
                self.step(instr)
            except (_Fault, IndexError, ValueError, ZeroDivisionError, FloatingPointError) as problem:
                place = self.recorder.places.get(instr)
                where = f" ({place}: `{place.text}`)" if place is not None else ""
                pid = self.env[self.kernel.pid]
                raise ExecutionError(f"kernel {self.kernel.name}, program {pid}: {instr.op}: {problem}{where}") from None

    def check(self, instr: Instr) -> None:
        for access in self.recorder.accesses.get(instr, ()):
            for axis, (start, size, inside) in enumerate(zip(access.starts, access.sizes, access.inside, strict=True)):
                at, n = self.value(start), self.value(size)
                if at < 0 or (inside and at + inside > n):
                    raise _Fault(f"the position along axis {axis} of {access.name} must be in 0..{n - max(inside, 1)}, got {at}")

    def step(self, i: Instr) -> None:
        if i.op == "debug.print":
            self.out(" ".join(self.text(x) for x in self.recorder.prints[i][1]))
        elif i.op == "debug.assert":
            if not bool(self.value(i.operands[0])):
                raise _Fault(self.recorder.prints[i][0] or "does not hold")
        else:
            super().step(i)

    def text(self, x: Any) -> str:
        if isinstance(x, Tile):
            return np.array2string(np.asarray(self.value(x.var)), threshold=MOST_SHOWN)
        return str(self.value(x.var)) if isinstance(x, Ix) else str(x)


def debug_run(kernel: Kernel, recorder: Recorder, args: Sequence[Argument], grid: int, out: Callable[[str], Any] = print) -> None:
    """Run programs 0..grid-1 one after the other."""
    Debugger(kernel, args, recorder, out).programs(range(grid))

