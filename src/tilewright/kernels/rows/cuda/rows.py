"""Row kernels on a GPU: a row lives in the registers of a group of threads, is read once and written once.

Rows of up to `threads · 32` elements of known length are resident: all statistics come from registers; so are short ones of a length
known only at run time. Longer rows are swept like on a CPU, once per statistic. Short rows share a block; a row alone or in a batch has
the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....core.dims import bounds
from ....core.target_spec import TargetSpec
from ....ir.layout import Layout
from ....ops.rows.norms import RmsNorm
from ....tile.builder import Ix, Tile
from ...cuda.groups import on_threads, vector_width
from ...launch import Launch
from ...region import Evaluator, Region
from ..rows import RowKernel, Rows

MOST_THREADS = 1024
PER_THREAD = 32  # elements of a resident row in one thread's registers
WANTED = 32  # ... where there are enough threads: fewer threads a row, more rows in flight (measured)
SEVERAL = 8  # ... of the sum of several rows and its RMS norm
LONG_THREADS, LONG_EACH = 512, 100  # threads and elements of longer resident rows: most of the registers that a thread of so many may have
SHORT = 4096  # elements that rows of a length known at run time have at most to be resident
SWEEP_THREADS = 256
ALONE = 16  # elements of a row that one thread reduces: its neighbours read the same lines
BLOCK = 256  # threads of a block of short rows


class CudaRows(Rows):
    def build(self, region: Region, target: TargetSpec) -> list[Launch]:
        return [CudaRowKernel(region, target).launch()]


class CudaRowKernel(RowKernel):
    """The shared mathematics with another idea of a sweep."""

    def __init__(self, region: Region, target: TargetSpec) -> None:
        self.vector, self.threads = 1, 1
        self._one: Evaluator | None = None
        super().__init__(region, target)

    def tile_width(self, target: TargetSpec) -> int:
        self.vector = self._vector()
        n = self.length
        if not isinstance(n, int) and bounds(n)[1] <= SHORT:
            n = bounds(n)[1]  # resident with threads for the longest row: what is behind a shorter one is masked
        if isinstance(n, int) and MOST_THREADS * PER_THREAD < n <= LONG_THREADS * LONG_EACH:
            self.resident, self.threads = True, LONG_THREADS
            step = self.threads * self.vector
            return -(-n // step) * step
        if not isinstance(n, int) or n > MOST_THREADS * PER_THREAD:
            self.threads = SWEEP_THREADS
            return self.threads * self.vector * max(1, 8 // self.vector)
        self.resident = True
        if self.reduces and n <= ALONE:
            return -(-max(n, 1) // self.vector) * self.vector
        wanted = SEVERAL if self._several() else WANTED
        while self.threads < MOST_THREADS and self.threads * max(self.vector, wanted if self.threads >= 32 else self.vector) < n:
            self.threads *= 2
        step = self.threads * self.vector
        return -(-max(n, 1) // step) * step

    def _several(self) -> bool:
        """One statistic, so one barrier, of several rows: more threads are faster (measured)."""
        full = self.node.operands[0].type.numel
        added = [v for v in self.region.body.inputs if v not in self.node.operands[1:] and v.type.numel == full]
        return isinstance(self.node.op, RmsNorm) and len(added) > 1

    def _vector(self) -> int:
        """What alignment allows along the row, judged from every operand and result that is not the same all along it."""
        places = [o for o in [*self.region.operands, *self.region.results] if o.type.shape]
        sizes, layouts = [], []
        for o in places:
            lay = o.layout
            if self.reduces and o in self.region.results:
                continue  # one element per row
            if len(lay.shape) == len(self.shape):
                lay = lay.expand(self.shape).permute(self.order)
            sizes.append(o.type.dtype.itemsize)
            layouts.append(Layout(lay.shape, lay.strides, lay.offset))
        return vector_width(sizes, self.row_shape[-1] if self.row_shape else 1, layouts)

    # --- a resident row: one evaluator, one pass ----------------------------------------------------------------------
    def sweep(self, carried: Sequence[Tile],
              body: Callable[[Evaluator, list[Ix | int], Ix | int | None, list[Tile]], list[Tile]]) -> list[Tile]:
        if not self.resident or len(self.inner) > 1:
            return super().sweep(carried, body)
        left = None if self.length == self.tile else self.inner[0]
        if self._one is None:
            self._one = self._evaluator([0], left)
        return body(self._one, [0], left, list(carried))

    def source(self, evaluate: Evaluator, at: list[Ix | int], left: Ix | int | None, first: bool) -> Tile:
        if self.resident and len(self.inner) == 1 and not first:
            return self.b.broadcast(evaluate(self.node.operands[0]), (self.tile,))
        return super().source(evaluate, at, left, first)

    def launch(self) -> Launch:
        found = super().launch()
        programs = max(1, BLOCK // self.threads) if self.threads <= 32 else 1
        found.kernel = on_threads(found.kernel, self.threads, programs, self.vector)
        if not self.resident:
            found.note = "swept once per statistic: the row does not fit in registers" if isinstance(self.length, int) else found.note
        return found
