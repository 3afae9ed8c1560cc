"""torch tensors and dtypes as ours. A tensor's memory is shared, never copied."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core import dtypes as dt
from ...core.dtypes import DType
from ...core.errors import UnsupportedError
from ...core.tensors import from_dtype, tensor_to_numpy, torch_dtypes


def dtype_of(torch_dtype: Any) -> DType:
    """Our DType for a torch dtype."""
    found = torch_dtypes().get(torch_dtype)
    if found is None:
        raise UnsupportedError(f"torch: dtype {torch_dtype} is not supported; convert the model to one of {' '.join(map(str, dt.ALL))}")
    return found


def torch_dtype(dtype: DType) -> Any:
    """torch's dtype for ours."""
    return from_dtype()[dtype]


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
    dtype_of(plain.dtype)
    return tensor_to_numpy(plain)


def storage_key(tensor: Any, name: str) -> tuple[Any, ...]:
    """Equal for two tensors that are the same view of the same memory: a tied weight is one constant."""
    if tensor.numel() == 0:
        return (name,)
    return (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
