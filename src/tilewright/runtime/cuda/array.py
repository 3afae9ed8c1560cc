"""Arrays on the GPU where no PyTorch is at hand: memory of the driver's stream-ordered pool, DLPack and the CUDA array interface."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache, partial
from math import prod
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import ExecutionError
from .. import dlpack
from . import driver as gpu
from . import launch as cuda_launch

LEGACY = 1  # the default stream, as the protocols (and the driver) call it
PER_THREAD = 2  # every thread's own default stream
CUDA = 2  # DLPack's number for the kind of device
KEEP_ALL = (1 << 64) - 1
SMALL, KEPT = 1 << 20, 16  # bytes of a block that is kept, and how many of a size
MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE


@cache
def _pool(device: int = 0) -> int:
    """A pool of our own, so that nobody else's settings change: what is freed is kept for the next result."""
    cu = gpu.driver()
    gpu.enter(device)
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.handleTypes = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_NONE
    props.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    props.location.id = device
    pool = gpu.call("cuMemPoolCreate", props, what="memory for results")
    threshold = cu.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
    gpu.call("cuMemPoolSetAttribute", pool, threshold, cu.cuuint64_t(KEEP_ALL))
    return int(pool)


@cache
def _torch_memory(torch: Any) -> tuple[Any, Any, Any]:
    """PyTorch's current device, its function of bytes and a stream that gives memory of that device, and what takes memory back. The public
    form of the second changes the device and back, which costs more than the memory."""
    c = torch._C
    raw = getattr(c, "_cuda_cudaCachingAllocator_raw_alloc", None)
    delete = getattr(c, "_cuda_cudaCachingAllocator_raw_delete", torch.cuda.caching_allocator_delete)
    if raw is None:
        return lambda: 1, None, partial(_given_to, delete)
    return c._cuda_getDevice, raw, partial(_given_to, delete)


class Block:
    """Memory of the pool, or of PyTorch's caching allocator where PyTorch runs on the GPU: two pools would keep from each other what they
    do not use. It goes back, in the stream's order, with the object. `keep`: a small block of the default stream, which nobody can capture,
    is kept for the next one."""

    __slots__ = ("_free", "address", "kept", "stream")  # host code knows the fields

    def __init__(self, nbytes: int, stream: int, *, keep: bool = False) -> None:
        self.stream = stream
        if keep and stream == 0 and nbytes <= SMALL:
            free, kept = small(nbytes)
            try:
                self.address: int = kept.pop()
            except IndexError:
                self.address = _allocated(rounded(nbytes), 0)[0]
            self._free, self.kept = free, kept
            return
        self.address, self._free = _allocated(nbytes, stream)

    def __del__(self) -> None:
        try:
            kept = self.kept
            if len(kept) < KEPT:
                kept.append(self.address)
                return
        except AttributeError:
            pass
        if hasattr(self, "_free") and self._free(self.address, self.stream):
            try:
                gpu.enter()  # the thread that drops the last reference may never have had the context
                self._free(self.address, self.stream)
            except Exception:  # the interpreter may be going down
                return


def rounded(nbytes: int) -> int:
    return max(512, 1 << (nbytes - 1).bit_length()) if nbytes else 512


def small(nbytes: int) -> tuple[Any, list[int]]:
    """What frees a small block, and the addresses of free ones of its size."""
    torch = gpu.pytorch_runs()
    return _small(gpu.driver(), torch, rounded(nbytes))


@cache
def _small(driver: Any, torch: Any, nbytes: int) -> tuple[Any, list[int]]:
    return cuda_launch.library().cuMemFreeAsync if torch is None else _torch_memory(torch)[2], []


def _allocated(nbytes: int, stream: int) -> tuple[int, Any]:
    """The address of new memory, and what frees it."""
    if (torch := gpu.pytorch_runs()) is not None:
        try:
            device, raw, free = _torch_memory(torch)
            if device():
                return int(torch.cuda.caching_allocator_alloc(max(nbytes, 1), 0, int(stream))), free
            return raw(nbytes or 1, int(stream)), free
        except RuntimeError as e:
            raise ExecutionError(f"cuda: PyTorch's allocator has no memory for {nbytes} bytes ({str(e).partition('. ')[0]})") from None
    lib, found = cuda_launch.library(), ctypes.c_uint64()
    status = lib.cuMemAllocFromPoolAsync(ctypes.byref(found), max(nbytes, 1), _pool(), stream)
    cuda_launch.check(status, "cuMemAllocFromPoolAsync", f"{nbytes} bytes")
    return int(found.value), lib.cuMemFreeAsync


def _given_to(delete: Any, address: int, stream: int) -> int:
    """Memory goes back to PyTorch's allocator, which knows its stream; at the end of the process it goes by itself."""
    if not sys.is_finalizing():
        delete(address)
    return 0


class DeviceArray:
    """A contiguous array in the memory of the GPU. `numpy()` copies it to the host; other libraries take it without a copy through
    `__dlpack__` and `__cuda_array_interface__`."""

    __slots__ = ("__weakref__", "_owner", "address", "dtype", "shape", "stream")

    def __init__(self, shape: tuple[int, ...], dtype: DType, owner: Any, stream: int = 0, address: int | None = None) -> None:
        """Over memory that `owner` keeps: a block of the pool, or what another library has."""
        self.shape, self.dtype, self.stream, self._owner = shape, dtype, stream, owner
        self.address: int = owner.address if address is None else address

    @classmethod
    def empty(cls, shape: Sequence[int], dtype: DType, stream: int = 0) -> DeviceArray:
        return cls(tuple(shape), dtype, Block(prod(shape) * dtype.itemsize, stream), stream)

    @classmethod
    def zeros(cls, shape: Sequence[int], dtype: DType, stream: int = 0) -> DeviceArray:
        gpu.enter()
        new = cls.empty(shape, dtype, stream)
        if new.nbytes:
            cuda_launch.check(cuda_launch.library().cuMemsetD8Async(new.address, 0, new.nbytes, stream), "cuMemsetD8Async", repr(new))
        return new

    def copy(self) -> DeviceArray:
        """The same values in memory of their own."""
        gpu.enter()
        new = DeviceArray.empty(self.shape, self.dtype, self.stream)
        copy(new.address, self.address, self.nbytes, self.stream)
        return new

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, once the work that makes this array has ended."""
        gpu.enter()
        out = np.empty(self.shape, self.dtype.np)
        lib = cuda_launch.library()
        if self.nbytes:
            status = lib.cuMemcpyDtoHAsync_v2(out.ctypes.data, self.address, self.nbytes, self.stream)
            cuda_launch.check(status, "cuMemcpyDtoHAsync", repr(self))
        cuda_launch.check(lib.cuStreamSynchronize(self.stream), "cuStreamSynchronize", repr(self))
        return out

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("an array on the GPU is copied to the host by its method numpy(), not by itself")

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        foreign = self.dtype in (dt.bf16, dt.f8e4m3, dt.f8e5m2)  # NumPy has no code for them: their bits
        code = f"<u{self.dtype.itemsize}" if foreign else self.dtype.np.str
        return {
            "shape": self.shape,
            "typestr": code,
            "data": (self.address if self.size else 0, False),
            "strides": None,
            "version": 3,
            "stream": self.stream or LEGACY,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, 0

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None) -> Any:
        """A capsule over this memory. The consumer's `stream` waits for ours; when the consumer gives the memory back, ours waits for
        that one, which must still be there then (PyTorch's always are)."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is given as it is, on the GPU it lies on; copies are made with numpy()")
        mine, theirs = self.stream or LEGACY, LEGACY if stream is None else int(stream)
        back = None
        if stream != -1 and theirs != mine:
            gpu.enter()
            cuda_launch.follow(theirs, mine)
            back = partial(_given_back, mine, theirs)
        return dlpack.export(self.address if self.size else 0, self.shape, self.dtype, self.__dlpack_device__(), self, back)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}[{','.join(map(str, self.shape))}] at {self.address:#x}>"


def _given_back(mine: int, theirs: int) -> None:
    """Memory that another library had goes back in our stream's order: after what that library has started on its stream."""
    try:
        gpu.enter()  # any thread may drop it
        cuda_launch.follow(mine, theirs)
    except ExecutionError:  # nobody is there to hear it: the process is ending, or an earlier kernel has failed
        return


def upload(array: np.ndarray[Any, Any], dtype: DType, stream: int) -> DeviceArray:
    """A copy of an array of the host. The source has been read when this comes back: the driver does so with ordinary memory; with memory
    that it knows (pinned, managed) it goes on by itself, and is waited for."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    new = DeviceArray.empty(plain.shape, dtype, stream)
    if plain.nbytes:
        lib, kind = cuda_launch.library(), ctypes.c_uint()
        status = lib.cuMemcpyHtoDAsync_v2(new.address, plain.ctypes.data, plain.nbytes, stream)
        cuda_launch.check(status, "cuMemcpyHtoDAsync", f"{plain.nbytes} bytes")
        if not lib.cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, plain.ctypes.data):  # ordinary memory has none
            cuda_launch.check(lib.cuStreamSynchronize(stream), "cuStreamSynchronize", f"{plain.nbytes} bytes")
    return new


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Bytes on the device."""
    if nbytes and target != source:
        status = cuda_launch.library().cuMemcpyDtoDAsync_v2(target, source, nbytes, stream)
        cuda_launch.check(status, "cuMemcpyDtoDAsync", f"{nbytes} bytes")


class Stream(int):
    """A stream's number that keeps the object it is of: every array and session that holds the number holds the stream. It never changes:
    any thread may use it."""

    owner: Any = None


def stream_handle(stream: Any) -> int:
    """A stream as the driver knows it: a number, or an object of a library that says its own (`__cuda_stream__`)."""
    if isinstance(stream, int):
        return _one_stream(stream)
    told = getattr(stream, "__cuda_stream__", None)
    if told is None:
        raise ExecutionError(f"cuda: a stream is a number or has __cuda_stream__, got a {type(stream).__name__}")
    found = Stream(_one_stream(int((told() if callable(told) else told)[1])))
    found.owner = stream
    return found


def _one_stream(number: int) -> int:
    if number == PER_THREAD:
        raise ExecutionError("cuda: stream 2 is another one in every thread, sessions need to know which; pass a stream that was created")
    return number
