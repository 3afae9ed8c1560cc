"""The driver calls of every run, without the layer of `cuda.bindings`: arguments are made once, a launch is one foreign call."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from ..core.errors import ExecutionError
from . import cuda_driver as gpu

POINTER, UINT, ADDRESS, SIZE = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_size_t

# Every function that is called this way, with the types of its arguments.
PROTOTYPES: Mapping[str, Sequence[Any]] = {
    "cuLaunchKernelEx": [POINTER, POINTER, POINTER, POINTER],  # cuLaunchKernel takes eleven, and each costs time in Python
    "cuGraphLaunch": [POINTER, POINTER],
    "cuGraphExecKernelNodeSetParams_v2": [POINTER, POINTER, POINTER],
    "cuMemcpyHtoDAsync_v2": [ADDRESS, POINTER, SIZE, POINTER],
    "cuMemcpyDtoHAsync_v2": [POINTER, ADDRESS, SIZE, POINTER],
    "cuMemcpyDtoDAsync_v2": [ADDRESS, ADDRESS, SIZE, POINTER],
    "cuMemAllocFromPoolAsync": [ctypes.POINTER(ADDRESS), SIZE, POINTER, POINTER],
    "cuMemFreeAsync": [ADDRESS, POINTER],
    "cuStreamSynchronize": [POINTER],
    "cuStreamWaitEvent": [POINTER, POINTER, UINT],
    "cuEventCreate": [ctypes.POINTER(POINTER), UINT],
    "cuEventRecord": [POINTER, POINTER],
    "cuEventDestroy_v2": [POINTER],
}
NO_TIMES = 2  # CU_EVENT_DISABLE_TIMING


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


def check(status: int, call: str, what: str) -> None:
    """Raise what the driver found; the first error of a kernel that ran before may show up here."""
    if status:
        name = gpu.driver().CUresult(status).name
        raise ExecutionError(f"cuda: {call} failed with {name} ({what})")


def follow(stream: int, other: int) -> None:
    """What is started on `stream` from now on waits for what was started on `other`."""
    if stream == other:
        return
    lib, event = library(), POINTER()
    check(lib.cuEventCreate(ctypes.byref(event), NO_TIMES), "cuEventCreate", "one stream follows another")
    try:
        check(lib.cuEventRecord(event, other), "cuEventRecord", "one stream follows another")
        check(lib.cuStreamWaitEvent(stream, event, 0), "cuStreamWaitEvent", "one stream follows another")
    finally:
        lib.cuEventDestroy_v2(event)  # the wait that was asked for holds on
