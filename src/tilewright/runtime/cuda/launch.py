"""The driver calls of every run, without the layer of `cuda.bindings`: arguments are made once, a launch is one foreign call."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from . import driver as gpu

POINTER, UINT, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t

# Every function that is called this way, with the types of its arguments.
PROTOTYPES: Mapping[str, Sequence[Any]] = {
    "cuLaunchKernelEx": [POINTER, POINTER, POINTER, POINTER],  # cuLaunchKernel takes eleven, and each costs time in Python
    "cuGraphLaunch": [POINTER, POINTER],
    "cuTensorMapReplaceAddress": [POINTER, POINTER],
    "cuGraphExecKernelNodeSetParams_v2": [POINTER, POINTER, POINTER],
    "cuMemcpyHtoDAsync_v2": [ADDRESS, POINTER, SIZE, POINTER],
    "cuMemcpyDtoHAsync_v2": [POINTER, ADDRESS, SIZE, POINTER],
    "cuMemcpyDtoDAsync_v2": [ADDRESS, ADDRESS, SIZE, POINTER],
    "cuMemsetD8Async": [ADDRESS, ctypes.c_ubyte, SIZE, POINTER],
    "cuMemAllocFromPoolAsync": [ctypes.POINTER(ADDRESS), SIZE, POINTER, POINTER],
    "cuMemFreeAsync": [ADDRESS, POINTER],
    "cuPointerGetAttribute": [ctypes.POINTER(UINT), ctypes.c_int, ADDRESS],
    "cuStreamSynchronize": [POINTER],
    "cuStreamIsCapturing": [POINTER, ctypes.POINTER(ctypes.c_int)],
    "cuStreamWaitEvent": [POINTER, POINTER, UINT],
    "cuEventCreate": [ctypes.POINTER(POINTER), UINT],
    "cuEventRecord": [POINTER, POINTER],
    "cuEventSynchronize": [POINTER],
    "cuEventElapsedTime": [ctypes.POINTER(ctypes.c_float), POINTER, POINTER],
    "cuEventDestroy_v2": [POINTER],
}
TIMES, NO_TIMES = 0, 2  # CU_EVENT_DISABLE_TIMING
NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("stream", POINTER), ("attributes", POINTER), ("count", UINT)]


class KernelNode(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS of version 2."""

    _fields_ = [
        ("func", POINTER), ("grid", UINT * 3), ("block", UINT * 3), ("shared", UINT), ("params", POINTER), ("extra", POINTER),
        ("kern", POINTER), ("ctx", POINTER),
    ]  # fmt: skip


@cache
def library() -> Any:
    """The driver's library, which `cuda.bindings` has loaded before."""
    gpu.driver()
    lib = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    for name, types in PROTOTYPES.items():
        getattr(lib, name).argtypes = types
    return lib


def address_of(name: str) -> int:
    """Where a function of the library begins."""
    return ctypes.cast(getattr(library(), name), POINTER).value or 0


def check(status: int, call: str, what: str, *, found: bool = False) -> None:
    """Raise what the driver found; the first error of a kernel that ran before may show up here (`found`: `what` names that kernel)."""
    if status:
        raise gpu.failure(call, gpu.driver().CUresult(status).name, what, found=found)


def launch(function: Any, grid: int, block: int, words: Sequence[int], what: str, stream: int = 0) -> None:
    """One kernel that takes words, by itself; the driver reads them before this returns."""
    values = (ctypes.c_int64 * len(words))(*words)
    pointers = (POINTER * len(words))(*(ctypes.addressof(values) + 8 * i for i in range(len(words))))
    config = LaunchConfig((UINT * 3)(grid, 1, 1), (UINT * 3)(block, 1, 1), 0, stream, None, 0)
    status = library().cuLaunchKernelEx(ctypes.addressof(config), int(function), ctypes.addressof(pointers), None)
    check(status, "cuLaunchKernelEx", what)


class Packet:
    """The arguments of launches of a kernel that takes words, some of which change; one launch at a time uses it."""

    __slots__ = ("at", "config", "function", "pointers", "values")

    def __init__(self, function: Any, grid: int, block: int, words: Sequence[int], shared: int = 0) -> None:
        self.function, self.values = int(function), (ctypes.c_int64 * len(words))(*words)
        first = ctypes.addressof(self.values)
        self.pointers = (POINTER * len(words))(*range(first, first + 8 * len(words), 8))
        self.config = LaunchConfig((UINT * 3)(grid, 1, 1), (UINT * 3)(block, 1, 1), shared, None, None, 0)
        self.at = ctypes.addressof(self.config), ctypes.addressof(self.pointers)

    def launch(self, stream: int, what: str) -> None:
        self.config.stream = stream
        config, pointers = self.at
        status = library().cuLaunchKernelEx(config, self.function, pointers, None)
        if status:
            check(status, "cuLaunchKernelEx", what)


class Event:
    """A mark in a stream."""

    def __init__(self, flags: int = NO_TIMES) -> None:
        self._library, self.handle = library(), POINTER()
        check(self._library.cuEventCreate(ctypes.byref(self.handle), flags), "cuEventCreate", "a mark in a stream")

    def record(self, stream: int) -> None:
        check(self._library.cuEventRecord(self.handle, stream), "cuEventRecord", "a mark in a stream")

    def __del__(self) -> None:
        if self.handle:
            self._library.cuEventDestroy_v2(self.handle)


def follow(stream: int, other: int) -> None:
    """What is started on `stream` from now on waits for what was started on `other`."""
    if stream == other:
        return
    event = Event()
    event.record(other)
    check(library().cuStreamWaitEvent(stream, event.handle, 0), "cuStreamWaitEvent", "one stream follows another")


def captures(stream: int) -> bool:
    """Whether what is started on `stream` is recorded into a graph instead."""
    state = ctypes.c_int()
    check(library().cuStreamIsCapturing(stream, ctypes.byref(state)), "cuStreamIsCapturing", "a new stream")
    return state.value != 0


def elapsed_us(start: Event, stop: Event) -> float:
    """Microseconds between two marks, once the second has been reached."""
    taken = ctypes.c_float()
    check(library().cuEventSynchronize(stop.handle), "cuEventSynchronize", "a measured run")
    check(library().cuEventElapsedTime(ctypes.byref(taken), start.handle, stop.handle), "cuEventElapsedTime", "a measured run")
    return taken.value * 1e3
