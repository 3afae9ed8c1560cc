"""Calls of sessions on a GPU: written down while tests make them, and made again elsewhere without PyTorch, the compiler or the test.

What is written down of a program: its launches, its kernels' PTX and its constants; of a call: sizes, the bytes of inputs and results, and
how their memory lay. `replay` makes the calls through the same runtime and says whether the results have the same bits. Calls that differ
in nothing are written down once, whoever of several processes makes them first.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from tilewright.core.dims import evaluate
from tilewright.kernels.cuda.kernel import BlockKernel, SimtKernel, TensorMap
from tilewright.kernels.launch import ConstBuffer
from tilewright.llm.cuda_store import MappedKernel
from tilewright.ops.structure import ConstantData
from tilewright.runtime.cuda import driver as gpu
from tilewright.runtime.cuda import launch as cuda_launch
from tilewright.runtime.cuda import session as cuda_session
from tilewright.runtime.cuda import walk as cuda_walk
from tilewright.runtime.cuda.constants import laid_out_there
from tilewright.runtime.cuda.executable import CudaExecutable
from tilewright.runtime.cuda.session import CudaSession
from tilewright.tile.ir import Kernel

LARGEST, MOST = 1 << 29, 1 << 31  # bytes of a call with the constants, and of all calls of a test: beyond, the test is named instead
ALIGNED = 256  # what addresses of allocations are multiples of
STEPS = 32  # steps of a loop of the host that are made again, at each end
PROTOCOL = pickle.HIGHEST_PROTOCOL
Array = np.ndarray[Any, Any]


@dataclass
class Call:
    """One call of a program."""

    env: dict[str, int]
    inputs: list[Array]  # bytes
    results: list[Array]
    first: list[int]  # for each input, then each result: the first of them that has its address
    skewed: list[int]  # its address modulo `ALIGNED`
    failed: bool  # a kernel found bad data: results are anything

    def digest(self) -> bytes:
        state = hashlib.sha256(repr((sorted(self.env.items()), self.first, self.skewed)).encode())
        for a in self.inputs:
            state.update(a.data)
        return state.digest()


@dataclass
class Recorded:
    """A program and the calls that a test made of it."""

    test: str
    body: bytes  # program, interface, code, constants, whether one schedule serves all values of the call's symbols
    calls: list[Call]

    def executable(self) -> CudaExecutable:
        program, interface, code, constants, late = pickle.loads(self.body)
        return CudaExecutable(program, interface, code, constants, late=late)


@dataclass(frozen=True)
class Entry:
    """What the contents list says of a file of calls."""

    name: str
    test: str
    calls: int
    seconds: float  # that they took
    nbytes: int  # bytes of inputs and results
    kernels: dict[str, dict[str, bool]]  # digest of the text -> what is in it

    def has(self, what: str) -> bool:
        return any(k[what] for k in self.kernels.values())


def traits(text: str) -> dict[str, bool]:
    """What a tool asks of a kernel's text."""
    # TMA writes to memory; pieces of 16 bytes of which fewer are read.
    unseen = r"cp\.(reduce\.)?async\.bulk[\w.]*\.global\.shared|cp\.async\.c[ag][^;]*, 16, %"
    return {"shared": ".shared" in text, "unseen": bool(re.search(unseen, text))}


def _kernel(name: str, indirect: frozenset[int] | None, places: tuple[int, int] | None, maps: tuple[TensorMap, ...]) -> Kernel:
    """A kernel without its body: that is in the code."""
    if places is not None and indirect is not None:
        return BlockKernel(name, indirect=indirect, threads=places[0], programs=places[1])
    return MappedKernel(name, maps=maps) if indirect is None else SimtKernel(name, indirect=indirect)


class _Pickler(pickle.Pickler):
    def reducer_override(self, x: Any) -> Any:
        if isinstance(x, Kernel):
            indirect = x.indirect if isinstance(x, SimtKernel) else None
            places = (x.threads, x.programs) if isinstance(x, BlockKernel) else None
            return _kernel, (x.name, indirect, places, getattr(x, "maps", ()))
        if isinstance(x, ConstBuffer) and not laid_out_there(x):  # the packed array is there
            return ConstBuffer, (None, x.buffer, x.packed)
        if isinstance(x, ConstantData):
            return ConstantData, (np.ascontiguousarray(x.array), x.name)
        return NotImplemented


def body_of(x: CudaExecutable) -> bytes:
    out = io.BytesIO()
    _Pickler(out, PROTOCOL).dump((x.program, x.interface, dict(x.code), x.constants, x.rebinds))
    return out.getvalue()


def fetched(address: int, nbytes: int, stream: int = 0) -> Array:
    """Bytes of the device, when the stream has come so far."""
    found = np.empty(nbytes, np.uint8)
    if nbytes:
        status = cuda_launch.library().cuMemcpyDtoHAsync_v2(found.ctypes.data, address, nbytes, stream)
        cuda_launch.check(status, "cuMemcpyDtoHAsync", "what a call reads and writes")
        cuda_launch.check(cuda_launch.library().cuStreamSynchronize(stream), "cuStreamSynchronize", "what a call reads and writes")
    return found


def sizes_of(x: CudaExecutable, env: Mapping[str, int]) -> list[int]:
    """Bytes of the inputs, then of the results."""
    return [evaluate(t.nbytes, env) for t in (*x.interface.inputs, *x.interface.outputs)]


def failed(x: CudaExecutable) -> bool:
    return x.errors is not None and any(x.errors.words)


class Recorder:
    """Writes the calls of every session to `folder`, one file for each program of a test. Short ways into a session are closed: a call
    that takes one is the same launches with the same words."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.large = folder, 0
        self.calls: dict[int, tuple[CudaExecutable, dict[bytes, tuple[Call, float]]]] = {}  # by executable, which is kept
        self._held = 0  # bytes of them
        self._lock, self._numbers = threading.Lock(), count()
        self._whole = CudaSession._run
        (folder / "calls").mkdir(parents=True, exist_ok=True)

    @contextmanager
    def recording(self) -> Iterator[None]:
        recorder = self

        def run(session: CudaSession, env: dict[str, int], addresses: list[int], stream: int) -> None:
            recorder.run(session, env, addresses, stream)

        with mock.patch.object(CudaSession, "_run", run), mock.patch.object(cuda_session, "fast_call", return_value=None):
            yield

    def run(self, session: CudaSession, env: dict[str, int], addresses: list[int], stream: int) -> None:
        x, many, sizes = session.executable, len(session.interface.inputs), sizes_of(session.executable, env)
        large = sum(sizes) + sum(a.nbytes for a in x.constants if a is not None) > LARGEST or self._held > MOST
        if large or (stream and cuda_launch.captures(stream)):  # what is captured will be refused
            self.large += large
            self._whole(session, env, addresses, stream)
            return
        with session._lock:
            session.schedule(env)  # loads what is not there, which is not part of the call's time
        inputs = [fetched(a, n, stream) for a, n in zip(addresses[:many], sizes, strict=False)]
        start = time.perf_counter()
        self._whole(session, env, addresses, stream)
        cuda_launch.check(cuda_launch.library().cuStreamSynchronize(stream), "cuStreamSynchronize", session.name)
        seconds = time.perf_counter() - start
        results = [fetched(a, n, stream) for a, n in zip(addresses[many:], sizes[many:], strict=True)]
        skewed = [a % ALIGNED for a in addresses]
        call = Call(dict(env), inputs, results, [addresses.index(a) for a in addresses], skewed, failed(x))
        with self._lock:
            calls = self.calls.setdefault(id(x), (x, {}))[1]
            if calls.setdefault(call.digest(), (call, seconds))[0] is call:
                self._held += sum(sizes)

    def write(self, test: str) -> list[str]:
        """The files of what was called since the last time."""
        files: list[str] = []
        for x, calls in self.calls.values():
            body = body_of(x)
            program = hashlib.sha256(body).digest()
            new = [found for digest, found in calls.items() if self._first(program + digest)]
            if new:
                files.append(name := f"{os.getpid()}.{next(self._numbers)}")
                kernels = {hashlib.sha256(k.ptx.encode()).hexdigest()[:16]: traits(k.ptx) for k in x.code.values()}
                nbytes = sum(a.nbytes for c, _ in new for a in (*c.inputs, *c.results))
                (self.folder / f"{name}.calls").write_bytes(pickle.dumps(Recorded(test, body, [c for c, _ in new]), PROTOCOL))
                entry = Entry(name, test, len(new), sum(t for _, t in new), nbytes, kernels)
                (self.folder / f"{name}.new").write_text(json.dumps(asdict(entry)))
                (self.folder / f"{name}.new").rename(self.folder / f"{name}.json")
        self.calls.clear()
        self._held = 0
        return files

    def _first(self, key: bytes) -> bool:
        try:
            os.close(os.open(self.folder / "calls" / hashlib.sha256(key).hexdigest(), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


# ── again ──


class Exact(gpu.Memory):
    """Memory of so many bytes and no more."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes, self._free = nbytes, gpu.driver().cuMemFree
        self.address = int(gpu.call("cuMemAlloc", max(nbytes, 1), what=f"{nbytes} bytes"))


@contextmanager
def temporaries_apart() -> Iterator[None]:
    """Sessions get an allocation for every temporary buffer where they have one arena: what lies behind a buffer is outside then."""
    whole = CudaExecutable.instantiate

    def instantiate(self: CudaExecutable, env: Mapping[str, int]) -> Any:
        self.load()
        place, memory = self.plan.place, gpu.Memory
        blocks: list[Any] = []
        arenas: list[Any] = []

        def placed(env: Mapping[str, int]) -> Any:
            found = place(env)
            blocks.extend(memory(found.sizes[b]) for b in found.offsets)
            return replace(found, offsets=dict(zip(found.offsets, (m.address for m in blocks), strict=True)))

        def arena(nbytes: int) -> Any:
            if arenas:  # the first that is asked for is the arena
                return memory(nbytes)
            arenas.append(SimpleNamespace(address=0, nbytes=nbytes, blocks=blocks))
            return arenas[0]

        with mock.patch.object(self.plan, "place", placed), mock.patch.object(gpu, "Memory", arena):
            return whole(self, env)

    with mock.patch.object(CudaExecutable, "instantiate", instantiate), mock.patch.object(gpu, "Memory", Exact):
        yield


def session_of(x: CudaExecutable) -> CudaSession:
    model: Any = SimpleNamespace(interface=x.interface, name="again", validation="default")
    return CudaSession(model, x)


def make(session: CudaSession, call: Call, *, short: int = 0) -> list[Array]:
    """The call once more, every tensor in memory of its own; what it gives. The last bytes of inputs may stay unwritten (`short`)."""
    gpu.enter()
    sizes, many = sizes_of(session.executable, call.env), len(call.inputs)
    blocks: dict[int, Exact] = {}
    for i, (n, skew) in enumerate(zip(sizes, call.skewed, strict=True)):
        if call.first[i] == i:
            most = max(size for size, f in zip(sizes, call.first, strict=True) if f == i)
            blocks[i] = Exact(skew + most)
            if i < many:
                blocks[i].upload(call.inputs[i].ctypes.data, n - short, skew)
    addresses = [blocks[f].address + skew for f, skew in zip(call.first, call.skewed, strict=True)]
    session._run(call.env, addresses, 0)
    cuda_launch.check(cuda_launch.library().cuStreamSynchronize(0), "cuStreamSynchronize", "a call made again")
    return [fetched(a, n) for a, n in zip(addresses[many:], sizes[many:], strict=True)]


@contextmanager
def ends_of_loops() -> Iterator[list[int]]:
    """Loops of the host make their first and their last steps only. Which ones had more."""
    cut: list[int] = []

    def steps(*bounds: int) -> Sequence[int]:
        if len(bounds) > 1 or bounds[0] <= 2 * STEPS:
            return range(*bounds)
        cut.append(bounds[0])
        return [*range(STEPS), *range(bounds[0] - STEPS, bounds[0])]

    with mock.patch.object(cuda_walk, "range", steps, create=True):
        yield cut


def replay(recorded: Recorded) -> list[str]:
    """How each call ended: with the `same` bits, with `other` bits, `cut` (see `ends_of_loops`), or as a kernel that found bad data:
    `failed` then as now."""
    x = recorded.executable()
    session, outcomes = session_of(x), []
    for call in recorded.calls:
        with ends_of_loops() as cut:
            got = make(session, call)
        bad = failed(x)
        if bad and x.errors is not None:
            x.errors.clear()
        same = all(a.tobytes() == b.tobytes() for a, b in zip(got, call.results, strict=True))
        outcomes.append("cut" if cut else "failed" if bad and call.failed else "same" if same and bad == call.failed else "other")
    return outcomes


def contents(folder: Path) -> list[Entry]:
    return [Entry(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))]


def read(folder: Path, name: str) -> Recorded:
    found: Recorded = pickle.loads((folder / f"{name}.calls").read_bytes())
    return found


def in_order(entries: Sequence[Entry], what: str, *, backwards: bool) -> list[Entry]:
    """Small programs first, until every kernel (with shared memory, say) has been seen; then the others, from the small ones up or from
    the long ones down, so that of several processes some begin early what takes longest."""
    seen: set[str] = set()
    first: list[Entry] = []
    others: list[Entry] = []
    for e in sorted(entries, key=lambda e: e.nbytes):
        own = {k for k, found in e.kernels.items() if not what or found[what]}
        (others if own <= seen else first).append(e)
        seen |= own
    return first + (sorted(others, key=lambda e: -e.seconds) if backwards else others)
