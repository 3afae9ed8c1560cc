"""Where a call's inputs lie and its results come from: PyTorch's allocator and current stream where a tensor of it is among the inputs,
else our own pool on the session's stream. PyTorch is imported only in the first case."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.errors import InputError
from ...core.torch_context import why_not
from ...ir.types import TensorType
from .. import dlpack
from ..arguments import Bound, _check_type, check_plain, describe, from_dtype, is_tensor, refuse_masked, torch_dtypes
from . import driver as gpu
from . import launch as cuda_launch
from .array import CUDA, LEGACY, DeviceArray, copy, upload
from .fastcall import OwnPlace, TorchPlace, torch_place

ALIGNMENT = 16  # alignment of inputs: kernels read 16 bytes at a time


def _shown(shown: str, shape: Sequence[int]) -> str:
    return f"{shown}[{','.join(map(str, shape))}]"


def _elsewhere(name: str, shown: str, shape: Sequence[int], device: Any) -> InputError:
    return InputError(f"session: input {name!r} must be on the GPU, got {_shown(shown, shape)} on {device}; pass {name}.cuda()")


def _other_gpu(name: str, device: Any) -> InputError:
    return InputError(f"session: input {name!r} must be on the first GPU, where sessions run, got one on {device}")


def _strange(name: str, type_: TensorType, value: Any) -> InputError:
    return InputError(
        f"session: input {name!r} must be {describe(type_)} on the GPU, got a {type(value).__name__}; "
        "pass a CUDA tensor, a NumPy array, or an array with __dlpack__ or __cuda_array_interface__"
    )


def _numpy_dtype(array: Any) -> dt.DType | None:
    return dt.of_numpy(array.dtype.newbyteorder("="))


def _give_back(arrays: Sequence[Any], stream: int) -> None:
    """Memory of ours goes back in the order of the stream it came from, and is read in that order: that one waits for this use of it."""
    for other in {x.stream for x in arrays if isinstance(x, DeviceArray)} - {stream}:
        cuda_launch.follow(other, stream)


class TorchMemory:
    """Tensors in, tensors out."""

    kind = "torch"

    def __init__(self, device: Any) -> None:
        import torch

        self.torch, self.device = torch, device

    def place(self) -> TorchPlace | None:
        return torch_place(self.device)

    def stream(self) -> int:
        return int(self.torch.cuda.current_stream(self.device).cuda_stream)

    def empty(self, shape: Sequence[int], type_: TensorType, stream: int) -> Any:
        made = self.torch.empty(list(shape), dtype=from_dtype()[type_.dtype], device=self.device)
        check_plain(made, from_dtype()[type_.dtype], shape, "session: an output", self.device.type)
        return made

    def address(self, x: Any) -> int:
        return int(x.data_ptr())

    def used(self, arrays: Sequence[Any], stream: int) -> None:
        """PyTorch's memory follows PyTorch's rules: whoever changes streams says so (`record_stream`). Arrays of ours follow ours."""
        _give_back(arrays, stream)

    def copy(self, target: Any, source: Any, stream: int) -> None:
        """Into a tensor, an array of ours or of another library, or of the host."""
        if isinstance(target, np.ndarray):
            bits = source.detach().cpu().reshape(-1).view(self.torch.uint8).numpy()  # NumPy has no bf16 that PyTorch knows
            np.copyto(target, bits.view(target.dtype.newbyteorder("=")).reshape(target.shape))
        else:
            (target if is_tensor(target) else self._taken(target, stream)).copy_(source)

    def _taken(self, value: Any, stream: int) -> Any:
        """Another library's array as a tensor over the same memory, in the order of `stream`; what has no protocol, as it is."""
        if hasattr(value, "__dlpack__"):
            return self.torch.from_dlpack(value)  # type: ignore[attr-defined]
        told = getattr(value, "__cuda_array_interface__", None)
        if told is None:
            return value
        if told.get("stream"):  # PyTorch does not look at it
            cuda_launch.follow(stream or LEGACY, int(told["stream"]))
        return self.torch.as_tensor(value, device=self.device)

    def admit(self, name: str, type_: TensorType, value: Any, bound: Bound, stream: int) -> tuple[int, ...]:
        refuse_masked(name, type_, value)
        if isinstance(value, (np.ndarray, np.generic)):
            value = self._sent(name, type_, np.asarray(value), bound)
        elif not is_tensor(value):
            value = self._taken(value, stream)
        if not is_tensor(value):
            raise _strange(name, type_, value)
        if reason := why_not(value):
            raise InputError(f"session: input {name!r} {reason}")
        shape = tuple(int(n) for n in value.shape)
        dtype = torch_dtypes().get(value.dtype)
        shown = str(dtype) if dtype is not None else str(value.dtype)
        if value.device.type != "cuda":
            raise _elsewhere(name, shown, shape, value.device)
        if value.device.index not in (None, 0):
            raise _other_gpu(name, value.device)
        _check_type(name, type_, dtype, shown, shape, widening=True)
        plain = value
        if dtype is not type_.dtype:
            plain = plain.detach().to(from_dtype()[type_.dtype])
            bound.copied.append(name)
        if not plain.is_contiguous() or plain.data_ptr() % ALIGNMENT or plain.is_neg() or plain.is_conj():
            plain = plain.detach().resolve_conj().resolve_neg().clone().contiguous()
            check_plain(plain, from_dtype()[type_.dtype], shape, f"session: the copy of input {name!r}", self.device.type)
            bound.copied.append(name)
        bound.addresses.append(plain.data_ptr())
        bound.kept.append(plain)
        return shape

    def _sent(self, name: str, type_: TensorType, array: np.ndarray[Any, Any], bound: Bound) -> Any:
        """A copy of an array of the host."""
        dtype = _numpy_dtype(array)
        _check_type(name, type_, dtype, str(dtype if dtype is not None else array.dtype), array.shape, widening=True)
        bound.copied.append(name)
        return self.sent(array, type_.dtype, 0)

    def sent(self, array: np.ndarray[Any, Any], dtype: dt.DType, stream: int) -> Any:
        bits = np.array(array, dtype=dtype.np, order="C").reshape(-1).view(np.uint8)
        return self.torch.from_numpy(bits).to(self.device).view(from_dtype()[dtype]).reshape(array.shape)

    def fetched(self, value: Any) -> Any:
        return value.detach().cpu() if is_tensor(value) else value


class OwnMemory:
    """Arrays of any library in, our own out, on a stream of the user's."""

    kind = "own"

    def __init__(self, stream: int) -> None:
        self._stream = stream

    def place(self) -> OwnPlace:
        return OwnPlace()

    def stream(self) -> int:
        return self._stream

    def empty(self, shape: Sequence[int], type_: TensorType, stream: int) -> DeviceArray:
        return DeviceArray.empty(shape, type_.dtype, stream)

    def address(self, x: Any) -> int:
        return int(x.address)

    def used(self, arrays: Sequence[Any], stream: int) -> None:
        _give_back(arrays, stream)

    def copy(self, target: Any, source: DeviceArray, stream: int) -> None:
        """Into an array of ours, of another library, or of the host."""
        if isinstance(target, np.ndarray):
            np.copyto(target, source.numpy())
        else:
            found = None if isinstance(target, DeviceArray) else look(target, stream)
            copy(target.address if found is None else found[0].address, source.address, source.nbytes, stream)

    def admit(self, name: str, type_: TensorType, value: Any, bound: Bound, stream: int) -> tuple[int, ...]:
        if isinstance(value, DeviceArray):
            _check_type(name, type_, value.dtype, str(value.dtype), value.shape)
            cuda_launch.follow(stream, value.stream)
            array = value
        elif isinstance(value, (np.ndarray, np.generic)):
            refuse_masked(name, type_, value)
            host = np.asarray(value)
            dtype = _numpy_dtype(host)
            _check_type(name, type_, dtype, str(dtype if dtype is not None else host.dtype), host.shape, widening=True)
            array = upload(np.asarray(host, type_.dtype.np), type_.dtype, stream)
            bound.copied.append(name)
        else:
            array = self._foreign(name, type_, value, bound, stream)
        bound.addresses.append(array.address)
        bound.kept.append(array)
        return array.shape

    def sent(self, array: np.ndarray[Any, Any], dtype: dt.DType, stream: int) -> DeviceArray:
        return upload(np.asarray(array, dtype.np), dtype, stream)

    def fetched(self, value: Any) -> Any:
        """An argument where the host can read it."""
        return value

    def _foreign(self, name: str, type_: TensorType, value: Any, bound: Bound, stream: int) -> DeviceArray:
        if is_tensor(value) and value.device.type != "cuda":
            raise _elsewhere(name, str(torch_dtypes().get(value.dtype, value.dtype)), value.shape, value.device)
        found = look(value, stream)
        if found is None:
            raise _strange(name, type_, value)
        seen, keep = found
        if seen.device[0] != CUDA:
            raise _elsewhere(name, seen.shown, seen.shape, f"device {seen.device[0]} of DLPack")
        if seen.device[1] != 0:
            raise _other_gpu(name, f"GPU {seen.device[1]}")
        # the CUDA array interface has no code for bf16 and fp8: their bits come as integers without a sign
        bits = seen.dtype is not None and not hasattr(value, "__dlpack__") and seen.dtype.kind == "u" and type_.dtype in dt.SMALL
        dtype = type_.dtype if bits and seen.dtype is not None and seen.dtype.itemsize == type_.dtype.itemsize else seen.dtype
        _check_type(name, type_, dtype, seen.shown, seen.shape)
        if not _contiguous(seen):
            shown = _shown(seen.shown, seen.shape)
            raise InputError(f"session: input {name!r} must be contiguous, got {shown} with strides {seen.strides}; pass a copy")
        array = DeviceArray(seen.shape, type_.dtype, keep, stream, seen.address)
        if seen.address % ALIGNMENT:
            array = DeviceArray.empty(seen.shape, type_.dtype, stream)
            copy(array.address, seen.address, array.nbytes, stream)
            bound.copied.append(name)
        return array


def _contiguous(seen: dlpack.Seen) -> bool:
    if 0 in seen.shape:
        return True
    step = 1
    for n, have in zip(reversed(seen.shape), reversed(seen.strides or ()), strict=False):
        if n != 1 and have != step:
            return False
        step *= n
    return True


def look(value: Any, stream: int) -> tuple[dlpack.Seen, Any] | None:
    """Another library's array, with `stream` waiting for what it needs, and what keeps its memory; None where it has no such protocol."""
    if hasattr(value, "__dlpack__"):
        kind = value.__dlpack_device__()
        capsule = value.__dlpack__(stream=stream or LEGACY) if int(kind[0]) == CUDA else value.__dlpack__()
        return dlpack.look(capsule), (value, capsule)
    told = getattr(value, "__cuda_array_interface__", None)
    if told is None:
        return None
    plain = np.dtype(told["typestr"])
    strides = told.get("strides")
    steps = None if strides is None else tuple(s // plain.itemsize if s % plain.itemsize == 0 else -1 for s in strides)
    if told.get("stream"):
        gpu.enter()  # a jitted function looks at its arguments before a session has entered
        cuda_launch.follow(stream or LEGACY, int(told["stream"]))
    dtype = dt.of_numpy(plain)
    shown = str(dtype) if dtype is not None else str(plain)
    return dlpack.Seen(told["data"][0], tuple(told["shape"]), steps, dtype, (CUDA, 0), shown), value


def memory_of(leaves: Sequence[Any], stream: int) -> TorchMemory | OwnMemory:
    """Theirs where an input is a CUDA tensor, else ours."""
    tensor = next((x for x in leaves if is_tensor(x) and x.device.type == "cuda"), None)
    return OwnMemory(stream) if tensor is None else TorchMemory(tensor.device)
