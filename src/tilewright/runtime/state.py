"""State across calls: memory for a session's donated inputs, and calls that work on it in place.

A `State` belongs to the caller; any number of them can live beside one session. A call holds the states it works on (`lock`), and calls
from other threads wait for it. `length` counts how much is filled; a call that fails or is interrupted leaves it where it was, so what it
half wrote is never seen.

Some arrays do not fill up but are rewritten by every call (the memory of a recurrence). Whoever calls says where a call begins (`mark`):
the contents of these arrays then are kept, for `undo` and for `truncate`.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from operator import index
from threading import RLock
from typing import Any, Self

import numpy as np

from ..core.dims import evaluate
from ..core.errors import InputError, UnsupportedError
from ..ir.types import TensorType
from .memory import Allocation, OutOfMemory
from .session import Session

Array = np.ndarray[Any, Any]
ALIGNMENT = 64


class StateSpec:
    """Names and types of the donated inputs of a session, where their arrays lie in one block, and along which axis they fill up. Those
    whose names `rewritten` accepts do not; a state of nothing else holds as much as `capacity` says."""

    def __init__(self, session: Session, axis: int, *, capacity: int = 0, rewritten: Callable[[str], bool] = lambda name: False) -> None:
        interface = session.interface
        self.axis = axis
        self.inputs = [i for i, _ in interface.donated]
        self.outputs = [k for _, k in interface.donated]
        self.names = [interface.input_names[i] for i in self.inputs]
        self.types = [interface.inputs[i] for i in self.inputs]
        self.rewritten = [rewritten(name) for name in self.names]
        self.runs: list[tuple[int, int]] = []  # where arrays that are rewritten lie: begin and end
        self.offsets: list[int] = []
        end = 0
        for name, t, whole in zip(self.names, self.types, self.rewritten, strict=True):
            if not t.is_static:
                raise InputError(f"state: {name!r} must have a fixed size, got {t}")
            self.offsets.append(end)
            begin, end = end, end + -(-_nbytes(t) // ALIGNMENT) * ALIGNMENT
            if whole and self.runs and self.runs[-1][1] == begin:
                self.runs[-1] = self.runs[-1][0], end
            elif whole:
                self.runs.append((begin, end))
        self.nbytes = end
        sizes = {_shape(t)[axis] for t, whole in zip(self.types, self.rewritten, strict=True) if not whole}
        self.capacity = min(sizes, default=capacity)


class Filled:
    """What states on every device have: how much of them is filled, and a lock for whoever works on them.

    `serial` changes with every change of the contents, so that a caller can tell whether somebody else has been here.
    """

    __slots__ = ("_length", "_marked", "_saved", "lock", "serial")

    def __init__(self) -> None:
        self._length, self.serial, self.lock = 0, 0, RLock()
        self._marked, self._saved = 0, False  # the length at the last mark, and whether memories were kept then

    @property
    def capacity(self) -> int:
        raise NotImplementedError

    @property
    def length(self) -> int:
        """Filled elements along the state's axis. Setting it truncates: a state grows by calls alone."""
        return self._length

    @length.setter
    def length(self, length: int) -> None:
        self.truncate(length)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` elements. Waits for a call that works on this state. Arrays that are rewritten know nothing of
        the past but what they held at the last mark: with them, to nothing or to where the last call began."""
        with self.lock:
            try:
                wanted = index(length)
            except TypeError:
                wanted = -1
            before = self._length
            if not 0 <= wanted <= before or isinstance(length, bool):
                raise InputError(f"state: can be truncated to 0..{before} elements, got {length!r}")
            if self.rewrites and wanted != before:
                if wanted == 0:
                    self.clear()
                elif self._saved and wanted == self._marked:
                    self.restore()
                else:
                    back = f", to {self._marked}, where the last call began," if self._saved and 0 < self._marked < before else ""
                    raise InputError(f"state: has a recurrent memory, which cannot go back to {length!r} of {before} elements; it can be "
                                     f"truncated to 0{back} and no other length: keep a copy() where you want to go back to")
            self.fill(wanted)

    def rewind(self, length: int) -> int:
        """Truncate to `length` elements, or to the most below it that this state can go back to; gives how many are left."""
        with self.lock:
            if self.rewrites and length != self._length:
                length = self._marked if self._saved and self._marked <= length else 0
            self.truncate(length)
        return length

    def mark(self) -> None:
        """A call begins. The lock is the caller's to hold, here and for `undo`."""
        self._marked = self._length
        if self.rewrites:
            self.save()
            self._saved = True

    def undo(self) -> None:
        """Back to the mark: the call has failed."""
        if self._saved:
            self.restore()
        self.fill(self._marked)

    def copy(self) -> Self:
        """An independent state with the same filled part. Waits for a call that works on this one."""
        raise NotImplementedError

    def __copy__(self) -> Self:
        return self.copy()

    def __deepcopy__(self, memo: object) -> Self:
        return self.copy()

    def __reduce__(self) -> Any:
        raise UnsupportedError("state: cannot be pickled; keep the tokens and feed them to another one")

    @property
    def rewrites(self) -> bool:
        """Whether there are arrays that calls rewrite."""
        return False

    def save(self) -> None:
        """Keep what the arrays that are rewritten hold; `restore` brings it back, `clear` makes them zero."""
        raise NotImplementedError

    def restore(self) -> None:
        raise NotImplementedError

    def clear(self) -> None:
        raise NotImplementedError

    def fill(self, length: int) -> None:
        """Say that this many elements are filled, after a call that filled them. The lock is the caller's to hold."""
        if not 0 <= length <= self.capacity:
            raise InputError(f"state: holds 0..{self.capacity} elements, got {length}")
        self._length, self.serial = length, self.serial + 1


class State(Filled):
    """The memory of one caller. `length` elements along the spec's axis are filled.

    Calls, `copy` and `truncate` may come from several threads: each holds the state while it works, and the others wait. Whoever wants
    several of them to belong together holds `state.lock` (a reentrant lock) meanwhile.
    """

    __slots__ = ("_block", "_kept", "addresses", "arrays", "spec")

    def __init__(self, spec: StateSpec) -> None:
        super().__init__()
        self.spec = spec
        try:
            self._block = Allocation(spec.nbytes, huge=False)  # a short context takes little of it
        except MemoryError as problem:
            reason = str(problem).removeprefix("memory: ").partition(";")[0]
            raise OutOfMemory(f"state: no memory for {spec.capacity} elements, {spec.nbytes:,} bytes ({reason}); "
                              "make it for fewer (context_length=), or drop other states") from None
        self.arrays: list[Array] = [
            self._block.array(t.dtype.np, _shape(t), offset) for t, offset in zip(spec.types, spec.offsets, strict=True)]
        self.addresses = (ctypes.c_int64 * len(spec.types))(*(self._block.address + o for o in spec.offsets))
        self._kept: list[Array] = []  # what the arrays that are rewritten held at the mark

    @property
    def nbytes(self) -> int:
        return self._block.nbytes

    @property
    def capacity(self) -> int:
        return self.spec.capacity

    def copy(self) -> Self:
        new = type(self)(self.spec)
        with self.lock:
            filled = (*(slice(None),) * self.spec.axis, slice(0, self._length))
            for mine, other, whole in zip(self.arrays, new.arrays, self.spec.rewritten, strict=True):
                part = ... if whole else filled
                other[part] = mine[part]
            new.fill(self._length)
        return new

    @property
    def rewrites(self) -> bool:
        return bool(self.spec.runs)

    def save(self) -> None:
        if not self._kept:
            self._kept = [np.empty(end - begin, np.uint8) for begin, end in self.spec.runs]
        for kept, (begin, _) in zip(self._kept, self.spec.runs, strict=True):
            ctypes.memmove(kept.ctypes.data, self._block.address + begin, kept.nbytes)

    def restore(self) -> None:
        for kept, (begin, _) in zip(self._kept, self.spec.runs, strict=True):
            ctypes.memmove(self._block.address + begin, kept.ctypes.data, kept.nbytes)

    def clear(self) -> None:
        for begin, end in self.spec.runs:
            ctypes.memset(self._block.address + begin, 0, end - begin)

    def __repr__(self) -> str:
        return f"<State {self.length} of {self.capacity}, {self.nbytes:,} bytes>"


class StatefulCall:
    """Runs a session on states in place, one for each of its lanes. Inputs and outputs that are not donated are NumPy arrays, in the
    session's order."""

    def __init__(self, session: Session, spec: StateSpec, lanes: int = 1) -> None:
        if session.executable is None:
            raise InputError("state: the reference target has no memory to share; use session.run_with")
        self.session, self.spec, self.lanes = session, spec, lanes
        interface = session.interface
        donated = [i for i, _ in interface.donated], [k for _, k in interface.donated]
        if [interface.inputs[i] for i in donated[0]] != spec.types * lanes:
            raise InputError(f"state: {session.name} does not work on {lanes} such states")
        first_output = len(interface.inputs)
        self._in = [i for i in range(first_output) if i not in set(donated[0])]
        self._out = [first_output + k for k in range(len(interface.outputs)) if k not in set(donated[1])]
        self._in_types = [interface.inputs[i] for i in self._in]
        self._out_types = [interface.outputs[i - first_output] for i in self._out]
        self._state_in, self._state_out = donated[0], [first_output + k for k in donated[1]]
        self._symbols = interface.symbols
        blocks = all(s == list(range(s[0], s[0] + len(s))) for s in (self._state_in, self._state_out) if s)
        self._runs = [s[0] * 8 for s in (self._state_in, self._state_out) if s] if blocks else None

    def __call__(self, states: Sequence[State], env: Mapping[str, int], inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """One native call on one state a lane. Their lengths are the caller's to advance, after it."""
        if len(states) != self.lanes or any(getattr(state, "spec", None) is not self.spec for state in states):
            raise InputError("state: belongs to another model; make one with start()")
        key = tuple(index(env[s.name]) for s in self._symbols)
        for symbol, value in zip(self._symbols, key, strict=True):
            if not symbol.lo <= value <= symbol.hi:
                raise InputError(f"state: {symbol.name} must be in {symbol.lo}..{symbol.hi}, got {value}")
        self._check(env, inputs, self._in_types, "input")
        self._check(env, outputs, self._out_types, "output")
        session = self.session
        workspace = session.take()
        io = workspace.io
        for i, x in zip(self._in, inputs, strict=True):
            io[i] = x.__array_interface__["data"][0]
        for i, x in zip(self._out, outputs, strict=True):
            io[i] = x.__array_interface__["data"][0]
        if self._runs is not None:
            for start in self._runs:
                at = ctypes.addressof(io) + start
                for state in states:
                    ctypes.memmove(at, state.addresses, ctypes.sizeof(state.addresses))
                    at += ctypes.sizeof(state.addresses)
        else:
            addresses = [at for state in states for at in state.addresses]
            for i, k, at in zip(self._state_in, self._state_out, addresses, strict=True):
                io[i] = io[k] = at
        try:
            job = workspace.job(key)
        except MemoryError as problem:
            session.give(workspace)
            raise session.no_memory(env, problem) from None
        except BaseException:
            session.give(workspace)
            raise
        status = session.pool.run(job)
        if status:
            session.settle(status, workspace)
        if workspace.errors[:, 0].any():
            session.fail(workspace)
        session.give(workspace)

    def _check(self, env: Mapping[str, int], arrays: Sequence[Array], types: Sequence[TensorType], what: str) -> None:
        if len(arrays) != len(types):
            raise InputError(f"state: {len(types)} {what}s are wanted beside the state, got {len(arrays)}")
        for i, (x, t) in enumerate(zip(arrays, types, strict=True)):
            shape = t.shape if t.is_static else tuple(evaluate(d, env) for d in t.shape)
            flags = x.flags
            if x.dtype != t.dtype.np or x.shape != shape or not flags.c_contiguous or not flags.aligned:
                raise InputError(f"state: {what} {i} must be a contiguous {t.dtype}{list(shape)}, got {x.dtype}{list(x.shape)}")


def _shape(t: TensorType) -> tuple[int, ...]:
    return tuple(d for d in t.shape if isinstance(d, int))


def _nbytes(t: TensorType) -> int:
    n = t.dtype.itemsize
    for d in _shape(t):
        n *= d
    return n
