"""Memory for packed weights, brought in by a thread of its own while the model is imported, and filled while the passes run.

The first touch of a page is slow (the system clears it; a virtual machine may have to ask its host for it), copying half a gigabyte
too, and neither needs Python: both are done on another core before anybody has decided how weights are packed. What products read is
guessed from the imported graph; a wrong guess costs nothing but the work, its memory is given back.
"""
from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.workers import spawn
from ..runtime.memory import HUGE, Allocation
from .panels import Batch, Job, panel_job

if TYPE_CHECKING:
    from ..core.target_spec import TargetSpec
    from ..ir.graph import Graph
    from ..kernels.launch import Packed
    from ..ops.structure import ConstantData

Array = np.ndarray[Any, Any]
PAGE = 4096

LEAST = 16 << 20  # less is not worth a thread
MOST = 1 << 30  # bytes touched ahead
STEP = 8 << 20  # bytes touched in one go: how long `take` may have to wait
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, Linux 5.14 and later; elsewhere the request fails and pages come on first use
DONTNEED = 4


def packed_estimate(model: Any) -> int:
    """Bytes of the matrices among the parameters of a torch module or ExportedProgram: most of what will be packed. 0 for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, (torch.nn.Module, torch.export.ExportedProgram)):
        return 0
    matrices = [p for p in model.parameters() if type(p) is torch.nn.Parameter and p.ndim == 2 and p.device.type == "cpu"]
    return sum({p.data_ptr(): p.nbytes for p in matrices}.values())  # a tied weight is packed once


def guesses(graph: Graph, target: TargetSpec) -> Iterator[tuple[ConstantData, Packed]]:
    """Constant matrices that products of this graph read, with the form that the template of products asks for. Products of one left
    operand are left out: a pass makes one of them."""
    from ..kernels.matmul.matmul import panel_form
    from ..ops.matmul.contractions import Matmul
    from ..ops.structure import Constant

    products = [n for n in graph.nodes if isinstance(n.op, Matmul)]
    left = Counter(n.operands[0] for n in products)
    for n in products:
        op = n.operands[1].node.op
        if isinstance(op, Constant) and len(op.data.type.shape) == 2 and left[n.operands[0]] == 1:
            assert isinstance(n.op, Matmul)
            form = panel_form(n.op, [v.dtype for v in n.operands], n.types[0], target)
            if form.form == "panels":
                yield op.data, form


class Ahead:
    """A block of about the expected size, being touched, then filled. `packed` and `take` end that."""

    def __init__(self, expected: int) -> None:
        self._stop = threading.Event()
        self._touched = self._used = 0
        self._batch: Batch | None = None
        self._packed: dict[tuple[ConstantData, Packed], Array] = {}
        self._block = Allocation(expected + expected // 8 + HUGE)  # address space only: panels may be padded
        self._join = spawn(self._touch, min(expected, MOST))  # where there is no thread, pages come on first use

    @staticmethod
    def of(model: Any) -> Ahead | None:
        """For a model as the user gives it; None where little will be packed."""
        expected = packed_estimate(model)
        try:
            return Ahead(expected) if expected >= LEAST else None
        except MemoryError:  # twice the weights is more than there is: they may fit without it
            return None

    def _touch(self, wanted: int) -> None:
        advise = _madvise()
        while self._touched < wanted and not self._stop.is_set():
            step = min(STEP, wanted - self._touched)
            if advise(self._block.address + self._touched, step, POPULATE_WRITE):
                return  # not offered here
            self._touched += step

    def begin(self, graph: Graph, target: TargetSpec) -> None:
        """Pack, on the same thread, what the products of an imported graph seem to read."""
        from .packing import packed_bytes, packed_shape  # which imports this module

        jobs: list[tuple[Job, Array]] = []
        used = 0
        for data, packed in guesses(graph, target):
            nbytes = packed_bytes(data.type, packed)
            job = panel_job(data.array.T if packed.transposed else data.array, packed.width)
            if job is not None and (data, packed) not in self._packed and used + nbytes <= self._block.nbytes:
                out = self._block.array(data.array.dtype, packed_shape(data.array.shape, packed), used)
                jobs.append((job, out))
                self._packed[data, packed] = out
                used += -(-nbytes // PAGE) * PAGE
        self.close()
        if jobs:
            self._used = used
            self._batch = Batch(jobs)
            self._join = spawn(self._batch.run)  # `close` does what is left

    def packed(self, data: ConstantData, packed: Packed) -> Array | None:
        """A constant in this form, when it was guessed right."""
        self.close()
        return self._packed.pop((data, packed), None)

    def take(self, nbytes: int) -> Allocation:
        """Memory for `nbytes` more: the block, without what is beyond, or another one where it is in use or too small."""
        self.close()
        for out in self._packed.values():  # nobody asked for it: pages that are all its own go back
            first, last = -(-out.ctypes.data // PAGE) * PAGE, (out.ctypes.data + out.nbytes) // PAGE * PAGE
            if last > first:
                _madvise()(first, last - first, DONTNEED)
        self._packed.clear()
        if self._used or nbytes > self._block.nbytes or nbytes < HUGE:
            return Allocation(nbytes)
        end = -(-nbytes // HUGE) * HUGE
        if self._touched > end:
            _madvise()(self._block.address + end, self._touched - end, DONTNEED)
        return self._block

    def close(self) -> None:
        """Touch no more; help with what is being packed, and wait for the rest."""
        self._stop.set()
        if self._batch is not None:
            self._batch.run()
        if self._join is not None:
            self._join()


def _madvise() -> Callable[[int, int, int], int]:
    found: Any = ctypes.CDLL(None).madvise
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found  # type: ignore[no-any-return]
