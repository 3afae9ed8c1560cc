"""The driver calls of every run, without the layer of `cuda.bindings`: arguments are made once, a launch is one foreign call."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from ..core.errors import ExecutionError
from . import cuda_driver as gpu

POINTER, UINT = ctypes.c_void_p, ctypes.c_uint


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
    lib.cuLaunchKernel.argtypes = [POINTER, *[UINT] * 7, POINTER, POINTER, POINTER]
    lib.cuGraphLaunch.argtypes = [POINTER, POINTER]
    lib.cuGraphExecKernelNodeSetParams_v2.argtypes = [POINTER, POINTER, POINTER]
    lib.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, POINTER, ctypes.c_size_t, POINTER]
    lib.cuStreamSynchronize.argtypes = [POINTER]
    return lib


def check(status: int, call: str, what: str) -> None:
    """Raise what the driver found; the first error of a kernel that ran before may show up here."""
    if status:
        name = gpu.driver().CUresult(status).name
        raise ExecutionError(f"cuda: {call} failed with {name} ({what})")
