"""DLPack capsules through ctypes: made from an address, and read without being consumed (the capsule keeps the memory)."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..core import dtypes as dt
from ..core.dtypes import DType
from ..core.errors import InputError

NAME = b"dltensor"
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
SPECIAL = {dt.bf16: 4, dt.f8e4m3: 10, dt.f8e5m2: 12}  # kDLBfloat, kDLFloat8_e4m3fn, kDLFloat8_e5m2
BY_CODE = {(SPECIAL.get(d, CODES[d.kind]), 8 * d.itemsize): d for d in dt.ALL}


MOST_AXES = 64  # that NumPy's headers have


def device_kind(x: Any) -> int:
    """The kind of device on which an object with `__dlpack_device__` says that its memory lies."""
    said = x.__dlpack_device__()
    try:
        return int(said[0])
    except (TypeError, ValueError, LookupError):
        raise InputError(f"dlpack: __dlpack_device__ of the {type(x).__name__} must give two integers, got {said!r:.60}") from None


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Seen(NamedTuple):
    """What a capsule holds; strides are of elements."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: DType | None
    device: tuple[int, int]
    shown: str


_api = ctypes.pythonapi
_new = _api.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_pointer = _api.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", _api))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
_alive: dict[int, tuple[Any, ...]] = {}  # address of a managed tensor -> what it needs, and what to call at its end


def _delete(managed: int) -> None:
    *_, owner, back = _alive.pop(managed, (None, None))
    if back is not None:
        back()
    del owner  # not before


def _destroy(capsule: int) -> None:
    """A capsule nobody took: its name is still the first one."""
    if _raw_valid(capsule, NAME):
        _delete(_raw_pointer(capsule, NAME))


_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


def export(
    address: int, shape: Sequence[int], dtype: DType, device: tuple[int, int], owner: Any, back: Callable[[], None] | None = None,
    strides: Sequence[int] | None = None,
) -> Any:
    """A capsule of memory that `owner` keeps, contiguous unless there are strides (of elements). `back` is called when the consumer needs
    it no more, before the owner goes."""
    sizes = (ctypes.c_int64 * max(len(shape), 1))(*shape)
    steps, step = (ctypes.c_int64 * max(len(shape), 1))(), 1
    for i in reversed(range(len(shape))):
        steps[i], step = step if strides is None else strides[i], step * shape[i]
    m = Managed()
    m.tensor.data, m.tensor.ndim, m.tensor.shape, m.tensor.strides = address, len(shape), sizes, steps
    m.tensor.device_type, m.tensor.device_id = device
    m.tensor.code, m.tensor.bits, m.tensor.lanes = SPECIAL.get(dtype, CODES[dtype.kind]), 8 * dtype.itemsize, 1
    m.deleter = ctypes.cast(_deleter, ctypes.c_void_p)
    at = ctypes.addressof(m)
    _alive[at] = (m, sizes, steps, owner, back)
    return _new(at, NAME, ctypes.cast(_destructor, ctypes.c_void_p))


def look(capsule: Any) -> Seen:
    """What a capsule holds. It is not taken: whoever keeps the capsule keeps the memory."""
    t = Managed.from_address(_pointer(capsule, NAME)).tensor
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] for i in range(t.ndim)) if t.strides else None
    dtype = BY_CODE.get((t.code, t.bits)) if t.lanes == 1 else None
    shown = str(dtype) if dtype is not None else f"DLPack type {t.code} of {t.bits} bits"
    return Seen((t.data or 0) + t.byte_offset, shape, strides, dtype, (t.device_type, t.device_id), shown)


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned."""

    _fields_ = [("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("tensor", Tensor)]  # fmt: skip


VERSIONED = b"dltensor_versioned"
READ_ONLY = 1
_valid = _api.PyCapsule_IsValid
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_rename = _api.PyCapsule_SetName
_rename.restype, _rename.argtypes = ctypes.c_int, [ctypes.py_object, ctypes.c_char_p]
_USED, _USED_VERSIONED = ctypes.c_char_p(b"used_dltensor"), ctypes.c_char_p(b"used_dltensor_versioned")  # capsules keep the pointers


class Taken:
    """The memory of a capsule that was taken: NumPy sees it through the array interface, and it goes back when the last view is gone."""

    def __init__(self, managed: int, deleter: int, interface: dict[str, Any]) -> None:
        self._managed, self._deleter, self.__array_interface__ = managed, deleter, interface

    def __del__(self) -> None:
        if self._deleter:
            ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._deleter)(self._managed)


def take(capsule: Any, what: str) -> Any:
    """The NumPy array of a capsule's memory on the CPU. The capsule is used up."""
    if _valid(capsule, VERSIONED):
        at = _pointer(capsule, VERSIONED)
        new = Versioned.from_address(at)
        if new.major != 1:
            raise InputError(f"{what}: the capsule is of DLPack {new.major}.{new.minor}; supported: before 2.0")
        t, deleter, flags, used = new.tensor, new.deleter, new.flags, _USED_VERSIONED
    elif _valid(capsule, NAME):
        at = _pointer(capsule, NAME)
        old = Managed.from_address(at)
        t, deleter, flags, used = old.tensor, old.deleter, 0, _USED
    else:
        raise InputError(f"{what}: the capsule was used before, or is none of DLPack's; ask its producer for another")
    dtype = BY_CODE.get((t.code, t.bits)) if t.lanes == 1 else None
    if dtype is None or t.device_type not in (1, 3):
        raise InputError(f"{what}: needs CPU memory of one of {' '.join(d.name for d in dt.ALL)}, got type {t.code} of {t.bits} bits "
                         f"on device {t.device_type}")
    if not 0 <= t.ndim <= MOST_AXES or (t.ndim and not t.shape):
        sized = "" if t.shape else " and no sizes"
        raise InputError(f"{what}: the capsule says that its memory has {t.ndim} axes{sized}; it can have 0 to {MOST_AXES} with sizes")
    shape = tuple(t.shape[i] for i in range(t.ndim))
    strides = tuple(t.strides[i] * dtype.itemsize for i in range(t.ndim)) if t.strides else None
    plain = dtype.np if dtype.np.kind in "biufc" and dtype not in SPECIAL else np.dtype(f"u{dtype.itemsize}")
    interface = {"version": 3, "shape": shape, "typestr": plain.str, "data": ((t.data or 0) + t.byte_offset, bool(flags & READ_ONLY)),
                 "strides": strides}
    _rename(capsule, used)
    try:
        made = np.asarray(Taken(at, deleter or 0, interface))
    except (ValueError, OverflowError) as e:
        raise InputError(f"{what}: the capsule describes no memory that can be read ({e}), got sizes {shape} and "
                         f"strides {strides}") from None
    return made if plain == dtype.np else made.view(dtype.np)
