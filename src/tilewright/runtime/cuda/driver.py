"""The CUDA driver through `cuda.bindings`: device, memory, modules, tensor maps, graphs. Every error names the call that failed.

Imported only when a session first runs on a GPU, or when somebody asks whether there is one.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np

from ...core.errors import ExecutionError
from ...core.extras import how_to_install


@cache
def driver() -> Any:
    """The module `cuda.bindings.driver`, initialised, with the first device's primary context."""
    try:
        from cuda.bindings import driver as cu
    except ImportError:
        raise ExecutionError(f"cuda: running needs the package cuda-bindings; {how_to_install('cuda-bindings')}") from None
    try:
        (status,) = cu.cuInit(0)
    except RuntimeError as error:
        raise ExecutionError(
            f"cuda: no NVIDIA driver on this machine ({error}); compile for target='cpu', or run where there is a GPU"
        ) from None
    if status != cu.CUresult.CUDA_SUCCESS:
        raise ExecutionError(f"cuda: no usable GPU ({status.name}); compile for target='cpu', or run where there is a GPU")
    return cu


def call(name: str, *args: Any, what: str = "") -> Any:
    """`driver.name(*args)`, its results without the status; an error says what was being done."""
    cu = driver()
    status, *results = getattr(cu, name)(*args)
    if status != cu.CUresult.CUDA_SUCCESS:
        raise failure(name, status.name, what)
    return results[0] if len(results) == 1 else results or None


FAULTS = ("ILLEGAL_ADDRESS", "LAUNCH_FAILED", "MISALIGNED_ADDRESS", "ILLEGAL_INSTRUCTION", "INVALID_PC", "INVALID_ADDRESS_SPACE",
          "HARDWARE_STACK_ERROR", "LAUNCH_TIMEOUT", "ASSERT")  # fmt: skip


def failure(call: str, status: str, what: str, *, found: bool = False) -> ExecutionError:
    """A kernel's fault shows up in some later call, unless it was waited for (`found`): who sees it is told how to find the kernel."""
    late = not found and status.removeprefix("CUDA_ERROR_") in FAULTS
    hint = "; a kernel started before this failed: TILEWRIGHT_VALIDATION=strict waits for each and names it" if late else ""
    return ExecutionError(f"cuda: {call} failed with {status}{f' ({what})' if what else ''}{hint}")


@cache
def context(device: int = 0) -> Any:
    """The primary context of a device, which PyTorch uses too."""
    call("cuInit", 0)
    return call("cuDevicePrimaryCtxRetain", call("cuDeviceGet", device))


def enter(device: int = 0) -> None:
    call("cuCtxSetCurrent", context(device))


@cache
def compute_capability(device: int = 0) -> tuple[int, int]:
    cu = driver()
    a = cu.CUdevice_attribute
    handle = call("cuDeviceGet", device)
    return (
        call("cuDeviceGetAttribute", a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, handle),
        call("cuDeviceGetAttribute", a.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, handle),
    )


@cache
def sms(device: int = 0) -> int:
    return int(
        call("cuDeviceGetAttribute", driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, call("cuDeviceGet", device))
    )


@cache
def shared_memory(device: int = 0) -> int:
    """Bytes that a block can have when it asks for them."""
    most = driver().CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    return int(call("cuDeviceGetAttribute", most, call("cuDeviceGet", device)))


def available() -> str:
    """Empty when a GPU can be used, else why not."""
    try:
        driver()
        compute_capability()
    except ExecutionError as error:
        return str(error)
    return ""


def after(graph: Any, before: Any, node: Any, *, early: bool) -> None:
    """An edge between two kernels. `early`: the second starts when the first says so, and waits for its end by itself."""
    cu = driver()
    edge = cu.CUgraphEdgeData()
    if early:
        edge.from_port = 1  # CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(cu.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
    name = "cuGraphAddDependencies_v2" if hasattr(cu, "cuGraphAddDependencies_v2") else "cuGraphAddDependencies"
    call(name, graph, [before], [node], [edge], 1)


class Graph:
    """Kernels that are launched together; destroyed with the object."""

    def __init__(self) -> None:
        self.graph, self._driver = call("cuGraphCreate", 0), driver()
        self._exec: Any = None

    def add(self, params: Any, name: str) -> Any:
        """A kernel that waits for no other yet."""
        return call("cuGraphAddKernelNode", self.graph, [], 0, params, what=name)

    def instantiate(self) -> int:
        """What is launched."""
        self._exec = call("cuGraphInstantiate", self.graph, 0)
        return int(self._exec)

    def __del__(self) -> None:
        try:
            if self._exec is not None:
                self._driver.cuGraphExecDestroy(self._exec)
            self._driver.cuGraphDestroy(self.graph)
        except Exception:  # the interpreter may be going down
            return


def _freed(free: Any, address: int) -> None:
    """The thread that drops the last reference, or collects a cycle, may never have had the context."""
    if free(address)[0]:
        enter()
        free(address)


def pytorch_gives_back() -> bool:
    """Whether PyTorch runs here and was asked for what it keeps of its tensors' memory."""
    torch = pytorch_runs()
    if torch is None:
        return False
    torch.cuda.empty_cache()
    return True


def pytorch_runs() -> Any:
    """PyTorch, where it has been used on a GPU in this process, else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


class Memory:
    """A block of device memory, freed with the object."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        try:
            self.address = int(call("cuMemAlloc", max(nbytes, 256), what=f"{nbytes} bytes"))
        except ExecutionError as e:
            if "OUT_OF_MEMORY" not in str(e) or not pytorch_gives_back():
                raise
            self.address = int(call("cuMemAlloc", max(nbytes, 256), what=f"{nbytes} bytes"))
        self._free = driver().cuMemFree

    def upload(self, address: int, nbytes: int, offset: int = 0) -> None:
        """Bytes of the host, there when this comes back: the driver's copy may still be on its way from memory of its own then, and
        streams that do not wait for the default one (PyTorch's do not) would read what was there before."""
        if nbytes:
            call("cuMemcpyHtoD", self.address + offset, address, nbytes)
            call("cuStreamSynchronize", 0)

    def __del__(self) -> None:
        try:
            _freed(self._free, self.address)
        except Exception:  # the interpreter may be going down
            return


def copy_of(array: np.ndarray[Any, Any]) -> Memory:
    """An array of the host on the device."""
    flat = np.ascontiguousarray(array)
    block = Memory(flat.nbytes)
    block.upload(flat.ctypes.data, flat.nbytes)
    return block


_copies: dict[int, tuple[ref[Any], ref[Memory], Any]] = {}  # id of an array -> the array, its copy, whose driver made it
_copying = Lock()


def shared_copy(array: np.ndarray[Any, Any]) -> Memory:
    """The same for an array that nobody changes: the copy that another program (of the same model, say) still holds, where there is one."""
    with _copying:
        key = id(array)
        of, copy, by = _copies.get(key, (None, None, None))
        found = copy() if copy is not None and of is not None and of() is array and by is driver() else None
        if found is None:
            found = copy_of(array)
            _copies[key] = ref(array, lambda _: _copies.pop(key, None)), ref(found), driver()
        return found


class HostWords:
    """Words in pinned host memory that kernels write (error blocks)."""

    def __init__(self, count: int) -> None:
        self.count = max(count, 1)
        flags = 2  # CU_MEMHOSTALLOC_DEVICEMAP
        self.host = int(call("cuMemHostAlloc", 8 * self.count, flags))
        self.device = int(call("cuMemHostGetDevicePointer", self.host, 0))
        self.words = (ctypes.c_int64 * self.count).from_address(self.host)
        self._free = driver().cuMemFreeHost
        self.clear()

    def clear(self) -> None:
        for i in range(self.count):
            self.words[i] = 0

    def __del__(self) -> None:
        try:
            _freed(self._free, self.host)
        except Exception:  # the interpreter may be going down
            return


def tensor_map(
    dtype: str, address: int, sizes: Sequence[int], strides: Sequence[int], box: Sequence[int], swizzle: int, windows: Any = None
) -> bytes:
    """The 128 bytes of a TMA descriptor. Sizes are innermost first; strides are bytes of every axis but the innermost. `windows` has the
    corners and steps of windows of an image (`kernels/cuda/kernel.py`); the box is then (channels, windows)."""
    cu = driver()
    kinds = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32", "tf32": "TFLOAT32", "f64": "FLOAT64", "i32": "INT32"}
    kinds |= dict.fromkeys(("i8", "u8", "f8e4m3", "f8e5m2"), "UINT8")  # another size would leave who waits for the bytes waiting
    kind = getattr(cu.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kinds[dtype]}")
    swizzles = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
    shape = (len(sizes), address, [cu.cuuint64_t(n) for n in sizes], [cu.cuuint64_t(n) for n in strides])
    box_of: tuple[Any, ...]
    if windows is None:
        name, box_of = "cuTensorMapEncodeTiled", ([cu.cuuint32_t(n) for n in box], [cu.cuuint32_t(1)] * len(sizes))
    else:
        name = "cuTensorMapEncodeIm2col"
        box_of = (list(windows.lower), list(windows.upper), box[0], box[1], [cu.cuuint32_t(n) for n in (1, *windows.steps, 1)])
    found = call(
        name,
        kind,
        *shape,
        *box_of,
        cu.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(cu.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzles[swizzle]}"),
        cu.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        cu.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        what=f"sizes {list(sizes)}, strides {list(strides)}, box {list(box)}",
    )
    return ctypes.string_at(found.getPtr(), 128)
