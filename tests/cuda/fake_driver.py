"""A stand-in for the CUDA driver, so that whole sessions run without a GPU: device memory is NumPy's, launches go through the emulator.

It knows the functions that the runtime calls, by both ways (`cuda.bindings.driver` and the library through ctypes, whose argument types it
checks). Parameters are read when a launch is made or a node of a graph is set, as the driver does; a graph runs its nodes along its edges.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.cuda.emulator import run as emulate
from tests.cuda.fake_parts import Enum, Graph, Handle, Kernel, Memory, Node
from tilewright.runtime.cuda import array as cuda_array
from tilewright.runtime.cuda import driver as cuda_driver
from tilewright.runtime.cuda import launch as cuda_launch


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_ILLEGAL_ADDRESS = 700


class FakeDriver:
    """`cuda.bindings.driver`. `launches` names the kernels that ran, in order; `calls` counts every function of the library."""

    def __init__(self, capability: tuple[int, int] = (8, 0), *, run: bool = True, shift: int = 0) -> None:
        self.capability, self.run, self.memory = capability, run, Memory(shift)
        self.shared = (99 if capability[1] in (6, 9) or capability[0] == 12 else 163 if capability[0] == 8 else 227) << 10
        self.launches: list[str] = []
        self.calls: dict[str, int] = {}
        self.waits: list[tuple[int, int]] = []  # (stream, the one it waits for)
        self.captured: int | None = None  # the stream that somebody captures
        self.entered = 0  # times a thread got the context
        self._here = threading.local()  # `inside`: this thread has it
        self.pinned: set[int] = set()  # addresses on the host that the driver knows
        self.streams: list[int] = []  # the stream of each launch
        self.native = 0  # calls by machine code
        self._arriving: list[tuple[int, bytes]] = []  # copies on the default stream that are on their way
        self._changing = threading.Lock()  # as the driver, it serves several threads
        self._kept: list[Any] = []  # the driver's handles are numbers: something must hold what they stand for
        self.library = SimpleNamespace(**{name: self._checked(name) for name in cuda_launch.PROTOTYPES})
        self.CUresult = CUresult
        for name in ("CUDA_KERNEL_NODE_PARAMS", "CUgraphEdgeData"):
            setattr(self, name, SimpleNamespace)
        self.CUmemPoolProps = lambda: SimpleNamespace(location=SimpleNamespace())

    def __getattr__(self, name: str) -> Any:
        """Enumerations are their members' names; wrapped numbers are numbers."""
        if name.startswith("cuuint"):
            return int
        if name.startswith("CU") and not name.startswith("CU_"):
            return Enum(name)
        raise AttributeError(f"the fake driver has no {name}")

    def _checked(self, name: str) -> Any:
        types, body = cuda_launch.PROTOTYPES[name], getattr(self, "_" + name)

        def call(*args: Any) -> int:
            assert len(args) == len(types), f"{name} takes {len(types)} arguments, got {len(args)}"
            for a, t in zip(args, types, strict=True):
                t.from_param(a)  # what ctypes would refuse is refused here
            self.calls[name] = self.calls.get(name, 0) + 1
            return int(body(*(getattr(a, "value", a) for a in args)) or 0)

        return call

    def address_of(self, name: str) -> int:
        """A function of the library for machine code. What it raises is a failure there; Python then makes the call again, and sees it."""

        def call(*args: Any) -> int:
            self.native += 1
            try:
                return int(getattr(self.library, name)(*args))
            except Exception:
                return CUresult.CUDA_ERROR_INVALID_VALUE

        found = ctypes.CFUNCTYPE(ctypes.c_int, *cuda_launch.PROTOTYPES[name])(call)
        self._handle(found)
        return ctypes.cast(found, ctypes.c_void_p).value or 0

    def _handle(self, what: Any) -> Handle:
        with self._changing:
            self._kept.append(what)
            found = Handle(len(self._kept))
        found.what = what
        return found

    def _of(self, handle: int) -> Any:
        return self._kept[int(handle) - 1]

    # --- through cuda.bindings: (status, results...)
    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS,)

    def cuDeviceGet(self, number: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, number

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[Any, ...]:
        values = {"MAJOR": self.capability[0], "MINOR": self.capability[1], "COUNT": 4, "OPTIN": self.shared}
        return CUresult.CUDA_SUCCESS, values[attribute.rpartition("_")[2]]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._handle("context")

    def cuCtxSetCurrent(self, context: Any) -> tuple[Any, ...]:
        self.entered += 1
        self._here.inside = True
        return (CUresult.CUDA_SUCCESS,)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.memory.allocate(nbytes)

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        if not hasattr(self._here, "inside"):
            return (CUresult.CUDA_ERROR_INVALID_CONTEXT,)
        self.memory.free(address)
        return (CUresult.CUDA_SUCCESS,)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self.memory.allocate(nbytes, host=True)

    def cuMemHostGetDevicePointer(self, address: int, flags: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, address

    cuMemFreeHost = cuMemFree

    def cuMemcpyHtoD(self, target: int, source: int, nbytes: int) -> tuple[Any, ...]:
        """It comes back when the bytes are in memory of the driver; they arrive in the order of the default stream."""
        self._arriving.append((target, bytes((ctypes.c_uint8 * nbytes).from_address(source))))
        return (CUresult.CUDA_SUCCESS,)

    def cuStreamSynchronize(self, stream: int) -> tuple[Any, ...]:
        self._reach(stream)
        return (CUresult.CUDA_SUCCESS,)

    def _reach(self, stream: int) -> None:
        """Work of the default stream waits for the copies there; the other streams (PyTorch's are like that) for nothing."""
        with self._changing:
            while self._arriving and stream in (0, cuda_array.LEGACY):
                target, data = self._arriving.pop(0)
                self.memory.view(target, len(data))[:] = np.frombuffer(data, np.uint8)

    def cuMemPoolCreate(self, props: Any) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._handle(props)

    def cuMemPoolSetAttribute(self, pool: Any, attribute: Any, value: Any) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS,)

    def cuModuleLoadDataEx(self, data: bytes, count: int, options: Any, values: Any) -> tuple[Any, ...]:
        text = data.rstrip(b"\0").decode()
        return (CUresult.CUDA_SUCCESS, self._handle(text)) if ".entry" in text else (CUresult.CUDA_ERROR_INVALID_PTX, None)

    def cuModuleGetFunction(self, module: Handle, name: bytes) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._handle(Kernel(module.what, name.decode()))

    def cuFuncSetAttribute(self, function: Any, attribute: Any, value: int) -> tuple[Any, ...]:
        if function.what.declared + value > self.shared:
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        function.what.allowed = value
        return (CUresult.CUDA_SUCCESS,)

    def cuGraphCreate(self, flags: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._handle(Graph())

    def cuGraphAddKernelNode(self, graph: Handle, after: list[Any], count: int, p: Any) -> tuple[Any, ...]:
        node = self._handle(Node(self._launch_of(p.func, p.gridDimX, p.blockDimX, p.sharedMemBytes, p.kernelParams)))
        graph.what.nodes.append(node)
        graph.what.before[node] = list(after)
        return CUresult.CUDA_SUCCESS, node

    def cuGraphAddDependencies(self, graph: Handle, before: list[Any], after: list[Any], edges: Any, count: int) -> tuple[Any, ...]:
        for b, a in zip(before, after, strict=True):
            graph.what.before[a].append(b)
        return (CUresult.CUDA_SUCCESS,)

    def cuGraphInstantiate(self, graph: Handle, flags: int) -> tuple[Any, ...]:
        return CUresult.CUDA_SUCCESS, self._handle(graph.what)

    def cuGraphDestroy(self, graph: Any) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS,)

    cuGraphExecDestroy = cuGraphDestroy

    # --- through ctypes: the status
    def _launch_of(self, function: int, grid: int, block: int, shared: int, pointers: int) -> tuple[Any, ...]:
        kernel = self._of(function)
        assert shared <= kernel.allowed, f"{kernel.name} wants {shared} bytes of dynamic shared memory, it may have {kernel.allowed}"
        return kernel, kernel.words(pointers) if self.run else [], grid, block, shared

    def _start(self, kernel: Kernel, words: list[int], grid: int, block: int, shared: int) -> None:
        if self.run:
            self.launches.append(kernel.name)
            emulate(kernel.text, self.memory, words, grid, block, shared)

    def _cuLaunchKernelEx(self, config: int, function: int, params: int, extra: Any) -> int:
        if not hasattr(self._here, "inside"):
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        c = cuda_launch.LaunchConfig.from_address(config)
        assert (c.grid[1:], c.block[1:], extra) == ([1, 1], [1, 1], None)
        assert not c.count
        self.streams.append(c.stream or 0)
        self._reach(c.stream or 0)
        self._start(*self._launch_of(function, c.grid[0], c.block[0], c.shared, params))
        return 0

    def cuTensorMapEncodeTiled(self, kind: Any, rank: int, address: int, *rest: Any) -> tuple[Any, ...]:
        """128 bytes: the address, then something of the rest."""
        data = np.frombuffer(np.int64(address).tobytes() + hashlib.sha512(repr((kind, rank, rest)).encode()).digest() + bytes(56), np.uint8)
        self._handle(data)
        return CUresult.CUDA_SUCCESS, SimpleNamespace(getPtr=lambda: data.ctypes.data)

    def _cuTensorMapReplaceAddress(self, place: int, address: int) -> None:
        assert place % 64 == 0 and address % 16 == 0
        ctypes.c_int64.from_address(place).value = address

    def _cuGraphLaunch(self, graph: int, stream: int) -> int:
        if not hasattr(self._here, "inside"):
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        self.streams.append(int(stream or 0))
        self._reach(int(stream or 0))
        for node in self._of(graph).order() if self.run else ():
            self._start(*node.what.launch)
        return 0

    def _cuGraphExecKernelNodeSetParams_v2(self, graph: int, node: int, params: int) -> None:
        p = cuda_launch.KernelNode.from_address(params)
        assert node in self._of(graph).nodes
        self._of(node).launch = self._launch_of(p.func, p.grid[0], p.block[0], p.shared, p.params)

    def _cuMemcpyHtoDAsync_v2(self, target: int, source: int, nbytes: int, stream: int) -> int:
        if source:
            self.memory.view(target, nbytes)[:] = (ctypes.c_uint8 * nbytes).from_address(source)
        return 0 if source else CUresult.CUDA_ERROR_INVALID_VALUE

    def _cuMemcpyDtoHAsync_v2(self, target: int, source: int, nbytes: int, stream: int) -> None:
        ctypes.memmove(target, self.memory.view(source, nbytes).ctypes.data, nbytes)

    def _cuMemcpyDtoDAsync_v2(self, target: int, source: int, nbytes: int, stream: int) -> None:
        self.memory.view(target, nbytes)[:] = self.memory.view(source, nbytes)

    def _cuMemsetD8Async(self, target: int, value: int, nbytes: int, stream: int) -> None:
        self.memory.view(target, nbytes)[:] = value

    def _cuMemAllocFromPoolAsync(self, found: Any, nbytes: int, pool: int, stream: int) -> None:
        assert nbytes > 0
        found._obj.value = self.memory.allocate(nbytes)

    def _cuMemFreeAsync(self, address: int, stream: int) -> int:
        if not hasattr(self._here, "inside"):
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        self.memory.free(address)
        return 0

    def _cuPointerGetAttribute(self, found: Any, attribute: int, address: int) -> int:
        return 0 if address in self.pinned else CUresult.CUDA_ERROR_INVALID_VALUE

    def _cuStreamSynchronize(self, stream: int) -> int:
        if not hasattr(self._here, "inside"):
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        self._reach(stream)
        return 0

    def _cuEventCreate(self, found: Any, flags: int) -> int:
        if not hasattr(self._here, "inside"):
            return CUresult.CUDA_ERROR_INVALID_CONTEXT
        found._obj.value = self._handle(SimpleNamespace(stream=None))
        return 0

    def _cuEventRecord(self, event: int, stream: int) -> None:
        self._of(event).stream = int(stream)

    def _cuStreamIsCapturing(self, stream: int, found: Any) -> None:
        (found._obj if hasattr(found, "_obj") else found.contents).value = int(stream == self.captured)

    def _cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> None:
        self.waits.append((int(stream), self._of(event).stream))

    def _cuEventSynchronize(self, event: int) -> None:
        assert self._of(event).stream is not None

    def _cuEventElapsedTime(self, found: Any, start: int, stop: int) -> None:
        found._obj.value = 0.25  # milliseconds

    def _cuEventDestroy_v2(self, event: int) -> None:
        assert self._of(event).stream is not None


@contextmanager
def fake_gpu(capability: tuple[int, int] = (8, 0), *, run: bool = True, shift: int = 0) -> Iterator[FakeDriver]:
    """Inside, the runtime finds this GPU. sm_80 has every kernel in the emulator; `run=False` takes launches and does nothing; with a
    `shift` code of the host that reads memory of the device ends the process, as it would with a real one."""
    fake = FakeDriver(capability, run=run, shift=shift)
    cached = (cuda_driver.context, cuda_driver.compute_capability, cuda_driver.sms, cuda_driver.shared_memory, cuda_array._pool)
    with pytest.MonkeyPatch.context() as patch:
        for f in cached:
            f.cache_clear()
        patch.setattr(cuda_driver, "driver", lambda: fake)
        patch.setattr(cuda_launch, "library", lambda: fake.library)
        patch.setattr(cuda_launch, "address_of", fake.address_of)
        try:
            yield fake
        finally:
            for f in cached:
                f.cache_clear()
