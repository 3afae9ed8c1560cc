"""A compiled model on a GPU: torch CUDA tensors in, torch CUDA tensors out, on torch's current stream. Where no input is one, anything with
DLPack or the CUDA array interface, and NumPy arrays (which are copied), and `DeviceArray`s out, on the session's stream.

Calls only start work; errors that kernels find (an index out of range) are raised by a later call, or by `synchronize`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ...core.dims import evaluate
from ...core.errors import ExecutionError, InputError, ShapeError, TilewrightError
from ...core.records import replace
from ..arguments import as_given
from ..faults import fault
from ..session import Compiled
from .executable import ERROR_WORDS, CudaExecutable, Schedule
from .fastcall import MISSED, fast_call

if TYPE_CHECKING:
    from ..profile import Profile
    from ..session import Model
    from .walk import Flow

KEPT = 16  # schedules of different shapes


class CudaSession(Compiled):
    """`session(*args)`. Outputs are new and the caller's own.

    Threads: any number may call one session at once. Calls start their work one after the other, each on the stream of its own arrays,
    which waits for the stream of the call before. `in_place` writes its inputs, which are for one call at a time; `on` holds for all.
    """

    inputs_must_be = "contiguous and aligned memory of the GPU"

    def __init__(self, model: Model, executable: CudaExecutable) -> None:
        super().__init__(model)
        self.executable = executable
        self._schedules: dict[tuple[int, ...], Schedule | Flow] = {}
        self._lock = threading.Lock()
        self.stream = 0  # the stream of calls without torch's tensors: the default one
        self._stream: int | None = None  # the stream of the last run: another one waits for it
        self.seen_streams: list[Any] = []  # the same where machine code reads it
        self._ways: dict[str, Any] = {}  # fast paths of a call, by whose arrays they take
        self._fast: Any = None  # the one that fits the last call
        self.apart: Any = None  # a check of the addresses of a call that writes donated inputs in place, where the owner wants one
        self._env: dict[str, int] | None = None  # sizes of the last call
        self._held: list[Any] | None = None  # what a profile needs of its call

    @property
    def last_stream(self) -> int:
        """The stream of the last run."""
        return self.stream if self._stream is None else self._stream

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Donated inputs are copied to the results that take their place: the caller's stay as they are (`in_place` writes them)."""
        fast = self._fast  # once: another thread may close the session
        if fast is not None and not kwargs:
            result = fast(args)
            if result is not MISSED:
                return result
        try:
            return self._call(args, kwargs, {}, keep=True)
        except (InputError, ShapeError) as problem:
            if self.otherwise is None or self._closed:
                raise
            return self._elsewhere(problem, args, kwargs)

    def _elsewhere(self, problem: TilewrightError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call at sizes that the program does not serve: its results come by the host, and lie where others would."""
        from .memory import memory_of

        memory = memory_of([*args, *kwargs.values()], self.stream)
        here = self.otherwise.instead(problem, [memory.fetched(x) for x in args], {k: memory.fetched(x) for k, x in kwargs.items()})
        found = tuple(memory.sent(x, t.dtype, memory.stream())
                      for x, t in zip(here if isinstance(here, tuple) else (here,), self.interface.outputs, strict=True))
        return found if isinstance(here, tuple) else found[0]

    def on(self, stream: Any) -> CudaSession:
        """Calls without torch's tensors go to this stream from now on: a number, or what has `__cuda_stream__` (a stream of cuda.core).
        An object is kept as long as the session or a result needs the stream; whoever gives a number keeps the stream."""
        from . import driver as gpu
        from .array import stream_handle

        new = stream_handle(stream)
        with self._lock:
            if self._stream is not None:
                if self._stream != new:  # now: the old stream may end with its last user
                    gpu.enter()
                    self._follow(new)
                self._stream = new
            self.stream = new
        return self

    def in_place(self, *args: Any, **symbols: int) -> Any:
        """A call that writes donated inputs in place: they are the results that take their memory. `symbols` have the values that no
        input's shape shows."""
        fast = self._fast
        if fast is not None:
            result = fast(args, symbols, False)
            if result is not MISSED:
                return result
        return self._call(args, {}, symbols, keep=False)

    def run_with(self, env: Mapping[str, int], *args: Any, **kwargs: Any) -> Any:
        """A call that gives the values of symbols no input's shape shows."""
        fast = self._fast
        if fast is not None and not kwargs:
            result = fast(args, {name: env[name] for name in self.interface.called if name in env})
            if result is not MISSED:
                return result
        return self._call(args, kwargs, env, keep=True)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any], env: Mapping[str, int], *, keep: bool) -> Any:
        self._open()
        leaves = self.model.signature.flatten(args, kwargs)
        from . import driver as gpu
        from .memory import memory_of

        gpu.enter()
        memory = memory_of(leaves, self.stream)
        stream = memory.stream()
        bound = self._bound(leaves, env, partial(memory.admit, stream=stream))
        self.interface.check(bound.env)
        self._raise_errors()
        takes = {k: i for i, k in self.interface.donated}
        outs = [
            bound.kept[takes[k]] if k in takes and not keep else memory.empty([evaluate(d, bound.env) for d in t.shape], t, stream)
            for k, t in enumerate(self.interface.outputs)
        ]
        for k, i in takes.items() if keep else ():
            memory.copy(outs[k], bound.kept[i], stream)
            bound.addresses[i] = memory.address(outs[k])
        self._run(bound.env, [*bound.addresses, *(memory.address(x) for x in outs)], stream)
        if self._held is not None:
            self._held += [*bound.kept, *outs]
        for i, k in self.model.signature.updates:
            memory.copy(leaves[i], outs[k], stream)
        memory.used([*bound.kept, *leaves], stream)  # after the last use of them
        with self._lock:  # a new way may make a schedule: there is one of a kind
            if not self._closed:
                if memory.kind not in self._ways:
                    self._ways[memory.kind] = fast_call(self, memory.place())
                self._fast = self._ways[memory.kind]
        return self.model.signature.unflatten(as_given(leaves, outs), bound.env)

    def start(self, addresses: list[int], env: dict[str, int], stream: int) -> None:
        """A call over addresses that the caller vouches for: inputs, then outputs, aligned; a donated input is the output that takes its
        memory."""
        from . import driver as gpu

        self._open()
        gpu.enter()
        if env:
            self.interface.check(env)
        self._raise_errors()
        self._run(env, addresses, stream)

    def _run(self, env: dict[str, int], addresses: list[int], stream: int) -> None:
        with self._lock:
            if stream or self._stream != stream:
                self._follow(stream)
            schedule, self._env = self.schedule(env), env
            schedule.bind(addresses)
            schedule.follow(env, addresses, stream)
            if self.model.validation == "strict":
                schedule.run_singly(stream, wait=True)
            else:
                schedule.run(stream)

    def _follow(self, stream: int) -> None:
        """The stream of the next run. Another one than last time waits for the last one's work, which uses the same memory. The same one
        may be captured by now, but for the default one, which cannot be."""
        from . import launch as cuda_launch

        if cuda_launch.captures(stream):
            raise ExecutionError(f"session: {self.name}: the stream is being captured, and a call is a CUDA graph of its own; call outside")
        if self._stream is not None:
            cuda_launch.follow(stream, self._stream)
        self._stream = stream
        for seen in self.seen_streams:
            seen[0] = stream

    def schedule(self, env: dict[str, int]) -> Schedule | Flow:
        called = self.interface.called if self.executable.rebinds else ()
        key = tuple(env[s.name] for s in self.interface.symbols if s.name not in called)
        found = self._schedules.get(key)
        if found is None:
            if len(self._schedules) >= KEPT:
                self._schedules.pop(next(iter(self._schedules)))
            found = self._schedules[key] = self.executable.instantiate(env)
        return found

    # ---- errors and end
    def _raise_errors(self) -> None:
        found = self.executable.errors
        if found is None or not any(found.words[i] for i in range(0, found.count, ERROR_WORDS)):
            return
        with self._lock:
            first = next((i for i in range(0, found.count, ERROR_WORDS) if found.words[i]), None)
            if first is None:
                return  # another thread has raised it
            block = [found.words[first + i] for i in range(ERROR_WORDS)]
            found.clear()
        owners, number = self.executable.error_launches, first // ERROR_WORDS
        launch = self.executable.launches[owners[number]]
        if launch.error_blocks > 1:
            each, turn = len(launch.sites) // launch.error_blocks, number - owners.index(owners[number])
            launch = replace(launch, sites=launch.sites[each * turn : each * (turn + 1)])
        raise fault(launch, block, self.last_env() or {}, self.name, "found by an earlier call")

    def synchronize(self) -> None:
        """Wait for the last call and raise what it found."""
        if self._stream is not None:
            from . import driver as gpu
            from . import launch as cuda_launch

            wait = cuda_launch.library().cuStreamSynchronize
            status = wait(self._stream)
            if status == cuda_launch.NO_CONTEXT:  # a thread that has made no call
                gpu.enter()
                status = wait(self._stream)
            if status:
                names = ", ".join(dict.fromkeys(x.kernel.name for x in self.executable.launches))
                what = f"{self.name}: one of {names}; compile with validation='strict' to see which"
                cuda_launch.check(status, "cuStreamSynchronize", what)
        self._raise_errors()

    def last_env(self) -> dict[str, int] | None:
        """The sizes of the last call."""
        return self._env

    def describe(self, env: dict[str, int]) -> dict[str, Any]:
        from .report import describe

        return describe(self, env)

    def profile(self, *args: Any, repeat: int = 20, **kwargs: Any) -> Profile:
        """The time of every launch and of the whole, at the shape of these inputs."""
        from .profile import measure

        self._held = []  # the runs that are measured use the memory of this call
        try:
            self._call(args, kwargs, {}, keep=True)
            return measure(self, repeat)
        finally:
            self._held = None

    def ptx(self) -> dict[str, str]:
        """The PTX text of every kernel, by name."""
        return {c.name: c.ptx for c in self.executable.code.values()}

    def close(self) -> None:
        with self._lock:
            self._closed, self._fast = True, None
            self._ways.clear()
            self._schedules.clear()
