"""State across calls on a GPU: arrays for a session's donated inputs, which calls write in place. See `runtime/state.py`."""

from __future__ import annotations

from ..core.errors import InputError
from .cuda_array import DeviceArray
from .cuda_session import CudaSession


class CudaState:
    """The memory of one caller. `length` elements along `axis` are filled."""

    def __init__(self, session: CudaSession, axis: int, arrays: list[DeviceArray] | None = None) -> None:
        self.session, self.axis, self.length = session, axis, 0
        self.chosen: tuple[int, DeviceArray] | None = None  # the token that the last call chose: its number, and where it lies on the GPU
        interface = session.interface
        types = [interface.inputs[i] for i, _ in interface.donated]
        self.arrays = arrays or [DeviceArray.zeros([d for d in t.shape if isinstance(d, int)], t.dtype, session.stream) for t in types]

    @property
    def nbytes(self) -> int:
        return sum(x.nbytes for x in self.arrays)

    @property
    def capacity(self) -> int:
        return min((x.shape[self.axis] for x in self.arrays), default=0)

    def copy(self) -> CudaState:
        """An independent state with the same filled part."""
        new = CudaState(self.session, self.axis, [x.copy() for x in self.arrays])
        new.length = self.length
        return new

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` elements."""
        if not 0 <= length <= self.length:
            raise InputError(f"state: can be truncated to 0..{self.length} elements, got {length}")
        self.length = length

    def __repr__(self) -> str:
        return f"<CudaState {self.length} of {self.capacity}, {self.nbytes:,} bytes>"
