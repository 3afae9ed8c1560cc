"""torch tensors and dtypes as ours. A tensor's memory is shared, never copied."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import UnsupportedError


@cache
def _dtypes() -> dict[Any, DType]:
    import torch

    table = {
        torch.bool: dt.bool_,
        torch.int8: dt.i8,
        torch.int16: dt.i16,
        torch.int32: dt.i32,
        torch.int64: dt.i64,
        torch.uint8: dt.u8,
        torch.uint16: dt.u16,
        torch.uint32: dt.u32,
        torch.uint64: dt.u64,
        torch.float16: dt.f16,
        torch.bfloat16: dt.bf16,
        torch.float8_e4m3fn: dt.f8e4m3,
        torch.float8_e5m2: dt.f8e5m2,
        torch.float32: dt.f32,
        torch.float64: dt.f64,
        torch.complex64: dt.c64,
        torch.complex128: dt.c128,
    }
    return dict(table)


def dtype_of(torch_dtype: Any) -> DType:
    """Our DType for a torch dtype."""
    found = _dtypes().get(torch_dtype)
    if found is None:
        raise UnsupportedError(f"torch: dtype {torch_dtype} is not supported; convert the model to one of {' '.join(map(str, dt.ALL))}")
    return found


@cache
def _torch_dtypes() -> dict[DType, Any]:
    return {ours: theirs for theirs, ours in _dtypes().items()}


def torch_dtype(dtype: DType) -> Any:
    """torch's dtype for ours."""
    return _torch_dtypes()[dtype]


def to_numpy(tensor: Any, name: str = "tensor") -> np.ndarray[Any, Any]:
    """A NumPy view of a CPU tensor's memory, with its strides (dtypes that NumPy lacks as those of ml_dtypes)."""
    import torch

    if tensor.device.type == "cuda":  # constants are packed on the host
        tensor = tensor.detach().cpu()
    if tensor.device.type != "cpu":
        raise UnsupportedError(f"torch: {name!r} is on {tensor.device}; move the module to the CPU first (module.cpu())")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"torch: {name!r} has layout {tensor.layout}; only dense tensors are supported")
    plain = tensor.detach()
    if type(plain) is not torch.Tensor:
        if type(plain) is not torch.nn.Parameter:
            raise UnsupportedError(f"torch: {name!r} is a {type(tensor).__name__}; only plain tensors are supported")
        plain = plain.data
    plain = plain.resolve_conj().resolve_neg()
    dtype_of(plain.dtype)
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        return np.asarray(plain.view(torch.int16 if plain.itemsize == 2 else torch.int8).numpy()).view(dtype_of(plain.dtype).np)
    return np.asarray(plain.numpy())


def storage_key(tensor: Any, name: str) -> tuple[Any, ...]:
    """Equal for two tensors that are the same view of the same memory: a tied weight is one constant."""
    if tensor.numel() == 0:
        return (name,)
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
