"""PyTorch's tensors as NumPy arrays and back, for whoever is handed one. torch is not imported before a tensor is seen or wanted."""
from __future__ import annotations

import sys
from functools import cache
from typing import Any, Protocol

import numpy as np

from . import dtypes as dt
from .dtypes import DType
from .errors import InputError
from .torch_context import why_not

Array = np.ndarray[Any, Any]
FOREIGN = dt.FOREIGN


@cache
def torch_dtypes() -> dict[Any, DType]:
    """torch dtype -> ours."""
    import torch

    names = {"bool": dt.bool_, "int8": dt.i8, "int16": dt.i16, "int32": dt.i32, "int64": dt.i64, "uint8": dt.u8, "uint16": dt.u16,
             "uint32": dt.u32, "uint64": dt.u64, "float16": dt.f16, "bfloat16": dt.bf16, "float32": dt.f32, "float64": dt.f64,
             "complex64": dt.c64, "complex128": dt.c128}
    names |= {"float8_e4m3fn": dt.f8e4m3, "float8_e5m2": dt.f8e5m2}
    return {getattr(torch, name): ours for name, ours in names.items()}


@cache
def from_dtype() -> dict[DType, Any]:
    return {ours: theirs for theirs, ours in torch_dtypes().items()}


class HasArray(Protocol):
    """A tensor of another framework, on the host."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any: ...


class HasDlpack(Protocol):
    """A tensor of another framework, anywhere."""

    def __dlpack__(self, *args: Any, **kwargs: Any) -> Any: ...


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_masked(value: Any) -> bool:
    """A NumPy array some of whose elements do not count."""
    masked = getattr(sys.modules.get("numpy.ma"), "MaskedArray", None)  # another thread may be importing the module just now
    return masked is not None and isinstance(value, masked)


def has_memory(tensor: Any) -> bool:
    """The elements of a dense tensor lie in memory. Those of a fake or functional tensor, of a wrapper around other tensors or of zeros
    that were never written do not, though it may say that it is on the CPU."""
    try:
        return bool(tensor.numel() == 0 or tensor.data_ptr())
    except RuntimeError:
        return False


def unfit(tensor: Any) -> tuple[str, str] | None:
    """What a tensor is whose elements do not lie in the CPU's memory one by one, and what to pass instead; None: they do."""
    import torch

    if tensor.is_nested:
        return "a nested tensor", "x.to_padded_tensor(0)"
    if tensor.is_quantized:
        return "a quantized tensor", "x.dequantize()"
    if tensor.layout != torch.strided:
        return f"a tensor of layout {tensor.layout}", "x.to_dense()"
    if tensor.device.type != "cpu":
        return f"a tensor on {tensor.device}", "x.cpu()"
    if not has_memory(tensor):
        return f"a {type(tensor).__name__} without memory of its own", "a plain tensor"
    return None


def tensor_to_numpy(tensor: Any, subject: str = "torch") -> Array:
    """A NumPy view of a CPU tensor (dtypes that NumPy lacks as those of ml_dtypes); a copy where its signs are not in the memory."""
    if reason := why_not(tensor):
        raise InputError(f"{subject}: a tensor {reason}")
    problem = unfit(tensor)
    if problem is not None:
        raise InputError(f"{subject}: a tensor must be dense and in the CPU's memory, got {problem[0]}; pass {problem[1]}")
    plain = tensor.detach().resolve_conj().resolve_neg()
    if reason := why_not(plain):  # inside a mode of torch a copy may be anything
        raise InputError(f"{subject}: a tensor {reason}")
    if plain.dtype is not tensor.dtype or plain.device.type != "cpu":
        raise InputError(f"{subject}: a tensor is {plain.dtype} on {plain.device}, a mode has changed it; call it outside")
    dtype = torch_dtypes().get(plain.dtype)
    if dtype is None:
        raise InputError(f"{subject}: a tensor must have one of the dtypes {' '.join(map(str, torch_dtypes()))}, got {plain.dtype}")
    if dtype in FOREIGN:
        import torch

        return np.asarray(plain.view(torch.int16 if dtype.itemsize == 2 else torch.int8).numpy()).view(dtype.np)
    return np.asarray(plain.numpy())


def numpy_to_tensor(array: Array) -> Any:
    """A torch tensor over the array's memory."""
    import torch

    foreign = dt.of_numpy(array.dtype)
    if foreign in FOREIGN:
        return torch.from_numpy(array.view(f"i{foreign.itemsize}")).view(from_dtype()[foreign])
    return torch.from_numpy(array)
