"""Arrays on the GPU where no PyTorch is at hand: memory of the driver's stream-ordered pool, DLPack and the CUDA array interface."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ..core import dtypes as dt
from ..core.dtypes import DType
from ..core.errors import ExecutionError
from . import cuda_driver as gpu
from . import cuda_launch, dlpack

LEGACY = 1  # the default stream, as the protocols (and the driver) call it
CUDA = 2  # DLPack's number for the kind of device
KEEP_ALL = (1 << 64) - 1


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


class Block:
    """Memory of the pool. It goes back, in the stream's order, with the object."""

    __slots__ = ("_free", "address", "stream")

    def __init__(self, nbytes: int, stream: int) -> None:
        lib, found = cuda_launch.library(), ctypes.c_uint64()
        status = lib.cuMemAllocFromPoolAsync(ctypes.byref(found), max(nbytes, 1), _pool(), stream)
        cuda_launch.check(status, "cuMemAllocFromPoolAsync", f"{nbytes} bytes")
        self.address, self.stream, self._free = int(found.value), stream, lib.cuMemFreeAsync

    def __del__(self) -> None:
        if hasattr(self, "_free"):
            self._free(self.address, self.stream)


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
        """A capsule over this memory. The consumer's `stream` waits for ours."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"{self!r} is given as it is, on the GPU it lies on; copies are made with numpy()")
        if stream != -1:
            gpu.enter()
            mine, theirs = self.stream or LEGACY, LEGACY if stream is None else int(stream)
            cuda_launch.follow(theirs, mine)
        return dlpack.export(self.address if self.size else 0, self.shape, self.dtype, self.__dlpack_device__(), self)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("an array without axes has no length")
        return self.shape[0]

    def __repr__(self) -> str:
        return f"<DeviceArray {self.dtype}[{','.join(map(str, self.shape))}] at {self.address:#x}>"


def upload(array: np.ndarray[Any, Any], dtype: DType, stream: int) -> DeviceArray:
    """A copy of an array of the host. The source is read before this comes back, since it is ordinary memory."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    new = DeviceArray.empty(plain.shape, dtype, stream)
    if plain.nbytes:
        status = cuda_launch.library().cuMemcpyHtoDAsync_v2(new.address, plain.ctypes.data, plain.nbytes, stream)
        cuda_launch.check(status, "cuMemcpyHtoDAsync", f"{plain.nbytes} bytes")
    return new


def copy(target: int, source: int, nbytes: int, stream: int) -> None:
    """Bytes on the device."""
    if nbytes and target != source:
        status = cuda_launch.library().cuMemcpyDtoDAsync_v2(target, source, nbytes, stream)
        cuda_launch.check(status, "cuMemcpyDtoDAsync", f"{nbytes} bytes")


def stream_handle(stream: Any) -> int:
    """A stream as the driver knows it: a number, or an object of a library that says its own (`__cuda_stream__`)."""
    if isinstance(stream, int):
        return stream
    told = getattr(stream, "__cuda_stream__", None)
    if told is None:
        raise ExecutionError(f"cuda: a stream is a number or has __cuda_stream__, got a {type(stream).__name__}")
    return int((told() if callable(told) else told)[1])
