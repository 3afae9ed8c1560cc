"""Constants in device memory: copies of the host's arrays, and packed matrices, which are laid out there from the bytes of their file
(`kernels/quant/cuda/bit_moves.py`): nothing is kept of it on the host or on disk."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from ...build.packing import pack_constants, packed_bytes
from ...kernels.launch import ConstBuffer
from ...ops.structure import ConstantData, Joined
from . import driver as gpu
from . import launch as cuda_launch
from .modules import load_function

Array = np.ndarray[Any, Any]
_held: WeakValueDictionary[Any, Matrix] = WeakValueDictionary()  # what programs hold: another one of the same model uploads nothing twice
_holding = Lock()


class Matrix(gpu.Memory):
    """A matrix as products read it. It keeps what it was made of, whose place in memory names it."""

    def __init__(self, nbytes: int, data: ConstantData) -> None:
        super().__init__(nbytes)
        self.data, self.driver = data, gpu.driver()


def laid_out_there(c: ConstBuffer) -> bool:
    from ...kernels.quant.panels import PANELS  # with the op registry: only programs with packed matrices pay for it

    return c.packed.form == "fragments" and c.packed.format in PANELS


def host_constants(constants: Sequence[ConstBuffer], threads: int) -> list[Array | None]:
    """What kernels read of each, or None where the GPU makes it."""
    packed = iter(pack_constants([c for c in constants if not laid_out_there(c)], threads=threads))
    return [None if laid_out_there(c) else next(packed) for c in constants]


def device_constants(constants: Sequence[ConstBuffer], arrays: Sequence[Array | None]) -> list[gpu.Memory]:
    """All of them on the device."""
    found: list[gpu.Memory] = []
    with _holding:
        mover: _Mover | None = None
        for c, array in zip(constants, arrays, strict=True):
            if array is not None:
                # a packed form is ours, a file's numbers do not change; others' arrays may, and are as they were when the session loaded
                lasting = c.packed.form != "plain" or not array.flags.writeable
                found.append(gpu.shared_copy(array) if lasting else gpu.copy_of(array))
                continue
            key = c.data.place, c.data.type, c.packed.format
            matrix = _held.get(key)
            if matrix is None or matrix.driver is not gpu.driver():
                mover = mover or _Mover([c for c in constants if laid_out_there(c)])
                matrix = _held[key] = mover.made(c)
            found.append(matrix)
        if mover is not None:
            mover.finish()
    return found


class _Mover:
    """The kernel with its tables, and memory for the file's bytes of one matrix after another. All goes through the default stream, in
    whose order copies wait for the kernel in front of them."""

    def __init__(self, constants: Sequence[ConstBuffer]) -> None:
        from ...kernels.quant.cuda.bit_moves import move_kernel  # a start without a GPU, or with the model's matrices there, does without
        from ...target.cuda.device import arch_of, cuda_target
        from ...target.cuda.threads.emit import emit_block_kernel

        gpu.enter()  # launches go to the context of this thread
        kernel = move_kernel()
        text = emit_block_kernel(kernel, cuda_target(arch_of(gpu.compute_capability())))
        self._module, self._function = load_function(text, kernel.name, 0)
        self._raw = gpu.Memory(max(_panels(c) * c.packed.width * _row_bytes(c) for c in constants))
        self._tables: dict[tuple[str, int], gpu.Memory] = {}

    def made(self, c: ConstBuffer) -> Matrix:
        from ...kernels.quant.cuda.bit_moves import THREADS, moves

        name, panels, rows, row_bytes = c.packed.format, _panels(c), c.packed.width, _row_bytes(c)
        memory = Matrix(packed_bytes(c.data.type, c.packed), c.data)
        if memory.nbytes == 0:
            return memory
        at = 0
        for part in _parts(c.data):
            flat = np.ascontiguousarray(part)
            self._raw.upload(flat.ctypes.data, flat.nbytes, at)
            at += flat.nbytes
        if missing := panels * rows * row_bytes - at:
            status = cuda_launch.library().cuMemsetD8Async(self._raw.address + at, 0, missing, 0)
            cuda_launch.check(status, "cuMemsetD8Async", c.data.name)
        m = moves(name, row_bytes)
        chunks = -(-m.words // THREADS)
        if (name, row_bytes) not in self._tables:
            self._tables[name, row_bytes] = gpu.copy_of(m.table)
        places = self._raw.address, self._tables[name, row_bytes].address, memory.address
        words = (*places, m.words, chunks, m.units, m.source, rows * row_bytes)
        cuda_launch.launch(self._function, panels * m.units * chunks, THREADS, words, f"laying out {c.data.name}")
        return memory

    def finish(self) -> None:
        """Streams that do not wait for the default one may read the matrices from now on."""
        cuda_launch.check(cuda_launch.library().cuStreamSynchronize(0), "cuStreamSynchronize", "laying packed matrices out")


def _panels(c: ConstBuffer) -> int:
    n = c.data.type.shape[0]
    assert isinstance(n, int)
    return -(-n // c.packed.width)


def _row_bytes(c: ConstBuffer) -> int:
    n = c.data.type.shape[1]
    assert isinstance(n, int)
    return n


def _parts(data: ConstantData) -> list[Array]:
    """Arrays whose rows follow one another; matrices that were joined are uploaded one by one."""
    if isinstance(data, Joined) and data.axis == 0:
        return [a for p in data.parts for a in _parts(p)]
    return [data.array]
