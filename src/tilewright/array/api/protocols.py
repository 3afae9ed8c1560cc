"""Memory of other libraries as Arrays, without copies: DLPack of both versions, buffers, files."""
from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import ArgumentError
from ...runtime import dlpack
from ...transform.trace import Functions
from ..arrays import Array, shown, wrap
from .base import known

public = FUNCTIONS = Functions()


@public
def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Array:
    """An Array of the memory of an object with `__dlpack__`."""
    if not hasattr(x, "__dlpack__"):
        raise ArgumentError(f"from_dlpack: needs an object with __dlpack__, got a {type(x).__name__}")
    kind = dlpack.device_kind(x) if hasattr(x, "__dlpack_device__") else 1
    if kind == 2 or device not in (None, "cpu"):
        from ..cuda.calls import as_array

        return as_array(x if kind == 2 else from_dlpack(x), None, device, copy)
    if kind not in (1, 3):
        if copy is False:
            raise ValueError("from_dlpack: the object lies on another device, and copy=False")
        raise ArgumentError(f"from_dlpack: the object lies on device {tuple(x.__dlpack_device__())}; move it to the CPU first")
    try:
        capsule = x.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of before 1.0
        capsule = x.__dlpack__()
    a = dlpack.take(capsule, "from_dlpack")
    return wrap(a.copy() if copy else a)


@public
def frombuffer(buffer: Any, dtype: Any = None, count: int = -1, offset: int = 0) -> Array:
    """An Array of an object's bytes."""
    kind = known(np.float32 if dtype is None else dtype, "frombuffer")
    try:
        return wrap(np.frombuffer(buffer, kind, count, offset))
    except ValueError as e:
        raise ArgumentError(f"frombuffer: {e}, got count={count} and offset={offset} for {kind}") from None


@public
def to_numpy(x: Any, /) -> np.ndarray[Any, Any]:
    """The NumPy array of an Array's memory, read-only."""
    if not isinstance(x, Array):
        raise ArgumentError(f"to_numpy: needs an Array, got {shown(x) if hasattr(x, 'dtype') else type(x).__name__}")
    return x.__array__()
