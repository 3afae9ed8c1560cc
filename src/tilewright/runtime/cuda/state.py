"""State across calls on a GPU: arrays for a session's donated inputs, which calls write in place. See `runtime/state.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Self

from ...core.dtypes import u8
from ..state import ALIGNMENT, Filled
from . import driver as cuda_driver
from . import launch as cuda_launch
from .array import DeviceArray, copy
from .session import CudaSession


@dataclass(frozen=True)
class CudaStateSpec:
    """Along which axis the arrays of a session's donated inputs fill up. Those whose names `rewritten` accepts do not; a state of nothing
    else holds as much as `capacity` says."""

    session: CudaSession
    axis: int
    capacity: int = 0
    rewritten: Callable[[str], bool] = lambda name: False


class CudaState(Filled):
    """The memory of one caller. `length` elements along the spec's axis are filled. What `State` says of threads holds here, too. Arrays
    that are rewritten lie in one block."""

    def __init__(self, spec: CudaStateSpec) -> None:
        super().__init__()
        self.spec = spec
        self.chosen: tuple[int, DeviceArray] | None = None  # the token that the last call chose: its number, and where it lies on the GPU
        interface, stream = spec.session.interface, spec.session.stream
        types = [interface.inputs[i] for i, _ in interface.donated]
        shapes = [tuple(d for d in t.shape if isinstance(d, int)) for t in types]
        whole = [spec.rewritten(interface.input_names[i]) for i, _ in interface.donated]
        sizes = [-(-prod(s) * t.dtype.itemsize // ALIGNMENT) * ALIGNMENT if w else 0 for s, t, w in zip(shapes, types, whole, strict=True)]
        self.memory = DeviceArray.zeros((sum(sizes),), u8, stream)
        self._kept: DeviceArray | None = None  # what the memory held at the mark
        self.arrays = []
        for i, (shape, t) in enumerate(zip(shapes, types, strict=True)):
            part = DeviceArray(shape, t.dtype, self.memory, stream, self.memory.address + sum(sizes[:i])) if whole[i] else None
            self.arrays.append(part or DeviceArray.zeros(shape, t.dtype, stream))
        self._filling = [x for x, w in zip(self.arrays, whole, strict=True) if not w]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.arrays)

    @property
    def capacity(self) -> int:
        return min((x.shape[self.spec.axis] for x in self._filling), default=self.spec.capacity)

    def copy(self) -> Self:
        with self.lock:
            new = type(self)(self.spec)
            for mine, other in zip((self.memory, *self._filling), (new.memory, *new._filling), strict=True):
                copy(other.address, mine.address, mine.nbytes, mine.stream)
            new.fill(self._length)
        return new

    @property
    def rewrites(self) -> bool:
        return self.memory.nbytes > 0

    def save(self) -> None:
        cuda_driver.enter()
        self._kept = self._kept or DeviceArray.empty(self.memory.shape, u8, self.memory.stream)
        copy(self._kept.address, self.memory.address, self.memory.nbytes, self.memory.stream)

    def restore(self) -> None:
        assert self._kept is not None
        cuda_driver.enter()
        copy(self.memory.address, self._kept.address, self.memory.nbytes, self.memory.stream)

    def clear(self) -> None:
        cuda_driver.enter()
        m = self.memory
        cuda_launch.check(cuda_launch.library().cuMemsetD8Async(m.address, 0, m.nbytes, m.stream), "cuMemsetD8Async", repr(m))

    def __repr__(self) -> str:
        return f"<CudaState {self.length} of {self.capacity}, {self.nbytes:,} bytes>"
