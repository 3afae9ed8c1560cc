"""State across calls on a GPU: arrays for a session's donated inputs, which calls write in place. See `runtime/state.py`."""

from __future__ import annotations

from ..state import Filled
from .array import DeviceArray
from .session import CudaSession


class CudaState(Filled):
    """The memory of one caller. `length` elements along `axis` are filled. What `State` says of threads holds here, too."""

    def __init__(self, session: CudaSession, axis: int, arrays: list[DeviceArray] | None = None) -> None:
        super().__init__()
        self.session, self.axis = session, axis
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
        with self.lock:
            new = CudaState(self.session, self.axis, [x.copy() for x in self.arrays])
            new.fill(self._length)
        return new

    def __repr__(self) -> str:
        return f"<CudaState {self.length} of {self.capacity}, {self.nbytes:,} bytes>"
