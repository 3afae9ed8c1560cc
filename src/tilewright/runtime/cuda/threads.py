"""What a thread of a program does on a GPU, counted without running it: instructions, waits for memory, products of whole tiles."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ...kernels.cuda.kernel import BlockKernel
from ...kernels.cuda.tiled import TiledKernel, multiplied
from ...tile.ir import Instr, Kernel, Operand, TileType, Var, ViewType
from ...tile.work import Walk

# instructions, of 32 bits a lane
INDEX = {"index.add": 2, "index.sub": 2, "index.mul": 4, "index.min": 3, "index.max": 3, "index.cmp": 2}
DIVIDE = (2, 6, 30)  # a 64-bit quotient by a power of two, by another number that is known, by one that is not
REST = 5  # what a quotient leaves
WHOLE = (1, 5, 20)  # a 32-bit quotient by such numbers
FUNCTION = {"f64": 60}  # instructions of one element; else:
SHORT = 8
ADDRESS = 2  # instructions of an access' address


class Threads(Walk):
    """`instructions` of a thread, `waits`: how often it must wait for memory, `products`: flops of the program's tiles, `left`:
    elements of their left operands, `tile`: rows and columns of the largest product."""

    def __init__(self, kernel: Kernel, words: Sequence[int | None], pid: int, lanes: int) -> None:
        self.instructions = self.waits = self.products = self.left = 0.0
        self.tile = (0, 0)
        self.known: dict[Var, int] = {}  # integers that fill a tile
        self.divided = set[tuple[Operand, Operand]]()  # what a quotient or its rest is known of
        self.singles = False  # whether operands of products are gathered element by element
        self.reads = False  # whether the open loop's body loads from memory
        self.made = {r: i for i in kernel.walk() for r in i.results}
        super().__init__(kernel, words, pid, lanes)
        self.instructions += sum(n * FUNCTION.get(dtype, SHORT) for (_, dtype), n in self.total.math_registers.items())
        self.waits += self.reads

    def loop(self, instr: Instr) -> None:
        before, self.reads = self.reads, False
        start, stop = self.value(instr.operands[0]), self.value(instr.operands[1])
        super().loop(instr)
        known = start is not None and stop is not None
        count = max(0, -(-(stop - start) // instr.attrs.get("step", 1))) if known else 1  # type: ignore[operator]
        self.waits += self.scales[-1] * count * self.reads
        self.instructions += self.scales[-1] * count * 3
        self.reads = before

    def leaf(self, instr: Instr) -> None:
        super().leaf(instr)
        op = instr.op
        if op == "full" and isinstance(instr.attrs["value"], int):
            self.known[instr.results[0]] = instr.attrs["value"]
        level = self.level.get(instr.results[0], 0) if instr.results else len(self.scales) - 1
        scale = self.scales[min(level, len(self.scales) - 1)]
        if op in ("index.floordiv", "index.mod"):
            again, (a, b) = len(self.divided), instr.operands
            self.divided.add((a, b))
            self.instructions += scale * (REST if len(self.divided) == again else _quotient(b, DIVIDE))
        elif op.startswith("index."):
            self.instructions += scale * INDEX.get(op, 2)

    def memory(self, instr: Instr, scale: float) -> None:
        super().memory(instr, scale)
        view = instr.operands[0]
        if instr.op == "call" or not isinstance(view, Var) or not isinstance(view.type, ViewType):
            return
        tile = instr.results[0].type if instr.results else next(x.type for x in reversed(instr.operands) if isinstance(x, Var))
        assert isinstance(tile, TileType)
        single = instr.op in ("gather", "scatter", "atomic")
        apart = single and view.type.space != "shared"  # there the address of a row is computed once
        self.instructions += scale * self.registers(tile) * (1 + ADDRESS if apart else 1) + ADDRESS
        self.singles = self.singles or (instr.op == "gather" and instr.attrs.get("run") is None and len(self.scales) > 1)
        self.reads = self.reads or (view.type.space == "global" and instr.op in ("load", "gather", "atomic"))

    def arithmetic(self, instr: Instr, scale: float) -> None:
        before = self.total.arithmetic
        super().arithmetic(instr, scale)
        out = instr.results[0].type
        assert isinstance(out, TileType)
        if instr.op == "mma":
            deep, wide = multiplied(self.made, instr)
            self.tile = max(self.tile, (out.shape[0], out.shape[1]), key=lambda t: t[0] * t[1])
            self.products += scale * 2.0 * out.shape[0] * wide * deep
            self.left += scale * out.shape[0] * deep
        elif instr.op in ("floordiv", "rem", "div") and not out.dtype.is_float:
            by = instr.operands[1]
            self.instructions += scale * self.registers(out) * _quotient(self.known.get(by, by) if isinstance(by, Var) else by, WHOLE)
        else:
            self.instructions += self.total.arithmetic - before


def _quotient(by: object, costs: tuple[int, int, int]) -> int:
    return costs[2] if not isinstance(by, int) else costs[by & (by - 1) != 0]


@lru_cache(maxsize=4096)
def per_thread(kernel: Kernel, words: tuple[int | None, ...], grid: int) -> Threads | None:
    """What a thread of a program in the middle of the grid does; None: a kernel whose body is not all of it."""
    if type(kernel) not in (BlockKernel, TiledKernel) or not grid:
        return None
    assert isinstance(kernel, (BlockKernel, TiledKernel))
    return Threads(kernel, words, grid // 2, kernel.threads)
