"""Elementwise functions and operators of Arrays as native functions: small operands never enter the interpreter.

Each function has a table: its Python form, and for each dtype of NumPy's the kernel and the dtype of the result, which the Python form
fills in when it has run once (`learn`). Whatever the native form does not do (other operands, large results, keywords) goes to the
Python form.
"""
from __future__ import annotations

import ctypes
import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ..runtime import eager_host as H
from . import arrays, operators, protocols
from .arrays import Array
from .machine import Machine, _keep, machine

Fn = Callable[..., Any]
_FASTCALL_KEYWORDS, _ONE = 0x82, 0x8
_ATTRIBUTES = dict.fromkeys(("T", "mT"), True) | dict.fromkeys(
    ("shape", "dtype", "ndim", "size", "nbytes", "itemsize", "strides", "device"), False)  # name -> whether it is a view
# Functions and methods that make views: name -> the native entry, and what it is told: the method of NumPy's header, or the most arguments.
FUNCTIONS: dict[str, tuple[str, str | int]] = {
    "reshape": ("_method", "reshape"), "permute_dims": ("_method", "transpose"), "transpose": ("_method", "transpose"),
    "squeeze": ("_method", "squeeze"), "swapaxes": ("_method", "swapaxes"), "broadcast_to": ("_expand", 2), "flip": ("_flip", 0),
    "expand_dims": ("_expand_dims", 0), "unfold": ("_unfold", 0), "copy": ("_copy", 0)}
METHODS: dict[str, tuple[str, str | int]] = {
    "reshape": ("_method", "reshape"), "transpose": ("_method", "transpose"), "permute": ("_method", "transpose"),
    "squeeze": ("_method", "squeeze"), "swapaxes": ("_method", "swapaxes"), "diagonal": ("_method", "diagonal"), "view": ("_clone", 0),
    "expand": ("_expand", H.AXES), "unfold": ("_unfold", 0), "copy": ("_copy", 0)}
_BYTES = bytes.__basicsize__ - 1  # where the contents of a bytes object begin
_AS_NUMBER, _AS_MAPPING, _COMPARE, _AS_BUFFER, _DEALLOC = 96, 112, 200, 160, 48  # fields of a type
_MATMUL = 272  # the offset of PyNumberMethods' matrix product
_AXIS = sys.intern("axis")
_tables: dict[str, bytes] = {}
_known: set[tuple[Any, int]] = set()


class _Method(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _Field(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p), ("set", ctypes.c_void_p), ("doc", ctypes.c_char_p),
                ("closure", ctypes.c_void_p)]


_new_method, _new_field = ctypes.pythonapi.PyDescr_NewMethod, ctypes.pythonapi.PyDescr_NewGetSet
for _descriptor in (_new_method, _new_field):
    _descriptor.restype, _descriptor.argtypes = ctypes.py_object, [ctypes.py_object, ctypes.c_void_p]
_new_instance_method = ctypes.pythonapi.PyInstanceMethod_New
_new_instance_method.restype, _new_instance_method.argtypes = ctypes.py_object, [ctypes.py_object]
_new = ctypes.pythonapi.PyCFunction_NewEx
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]


def _word(at: int) -> ctypes.c_int64:
    return ctypes.c_int64.from_address(at)


def table_of(name: str) -> bytes:
    if name not in _tables:
        _tables[name] = bytes(H.TABLE)
        _keep.append(_tables[name])
    return _tables[name]


_casts = bytes(16 * H.TYPES * H.TYPES)  # from a dtype to a dtype: the kernel and the descr


def learn_cast(dtype: np.dtype[Any], result: np.dtype[Any], fn: int) -> None:
    """The kernel of a conversion."""
    if dtype.num < H.TYPES and result.num < H.TYPES and (dtype.num, result.num) not in _known:
        _keep.append(result)
        at = id(_casts) + _BYTES + 16 * (H.TYPES * dtype.num + result.num)
        _word(at).value, _word(at + 8).value = fn, id(result)
        _known.add((dtype.num, result.num))


def learn(name: str, dtype: np.dtype[Any], result: np.dtype[Any], fn: int, *, swap: bool = False, whole: bool = False) -> None:
    """From now on the native form knows the kernel for operands of this dtype. Of reductions: `swap` is the order of the kernel's sizes,
    and `whole` ones do not combine from parts."""
    if dtype.num >= H.TYPES or (name, dtype.num) in _known:
        return
    descr = np.dtype(result)
    _keep.append(descr)
    at = id(table_of(name)) + _BYTES + H.TABLE_KERNELS + 16 * dtype.num
    _word(id(table_of(name)) + _BYTES + 8).value = int(swap)
    _word(id(table_of(name)) + _BYTES + 16).value = int(whole)
    _word(at + 8).value = id(descr)
    _word(at).value = fn
    _known.add((name, dtype.num))


def learn_columns(name: str, dtype: np.dtype[Any], fn: int) -> None:
    """The kernel of a reduction of a middle axis."""
    if dtype.num < H.TYPES:
        _word(id(table_of(name)) + _BYTES + H.TABLE_COLUMNS + 8 * dtype.num).value = fn


def signature(python: Fn) -> str:
    """The parameters of a function as text, for the native form's documentation."""
    shown = str(inspect.signature(python).replace(return_annotation=inspect.Signature.empty))
    return re.sub(r": '[^']*'", "", shown)[1:-1]


def function(name: str, operands: int | str, python: Fn, signature: str, told: int | str = 0, table: str = "") -> Fn:
    """The native form of a function in front of its Python form; the Python form itself where there is no native code."""
    native = machine()
    if native is None:
        return python
    entries = table_of(table or name)
    if isinstance(told, str):
        _keep.append(told := sys.intern(told))
    _word(id(entries) + _BYTES).value, _word(id(entries) + _BYTES + 24).value = id(python), told if isinstance(told, int) else id(told)
    doc = f"{name}({'$module, ' * (not signature.startswith('self'))}{signature})\n--\n\n{python.__doc__ or ''}".encode()
    entry = native.library.address(f"tw_eager_call{operands}")
    method = _Method(name.encode(), entry, _FASTCALL_KEYWORDS, doc)
    _keep.extend((method, python, doc))
    made: Fn = _new(ctypes.addressof(method), entries, "tilewright")
    return made


def install() -> None:
    """Put the native forms in front of the operators, the subscript and the buffer protocol of `Array`."""
    native = machine()
    if native is None or native.state[H.ARRAY]:
        return
    _fill_state(native)
    at = id(Array)
    numbers = _word(at + _AS_NUMBER).value
    for k, (name, offset) in enumerate([*H.NUMBER_SLOTS.items(), *H.UNARY_SLOTS.items()]):
        native.slots[2 * k] = id(table_of(name)) + _BYTES
        slot = _word(numbers + offset)
        if name in H.NUMBER_SLOTS:  # Python's own slot function works only where it is the slot
            python = operators.operator_of(name)
            _keep.append(python)
            native.slots[2 * k + 1] = id(python)
        else:
            native.slots[2 * k + 1] = slot.value
        slot.value = native.library.address(f"tw_op_{name}")
    for k, (name, offset) in enumerate(H.IN_PLACE_SLOTS.items()):
        slot = _word(numbers + offset)
        native.slots[H.IN_PLACE + k], slot.value = slot.value, native.library.address(f"tw_in_place_{name}")
    for k, name in enumerate(H.COMPARED):
        native.slots[H.COMPARE + k] = id(table_of(name)) + _BYTES
    native.slots[48] = _word(at + _COMPARE).value
    _word(at + _COMPARE).value = native.library.address("tw_eager_compare")
    python = Array.__dict__["__getitem__"]
    entry = native.library.address("tw_eager_subscript")
    doc = b"__getitem__($self, key, /)\n--\n\nA view, or the elements that a mask or index arrays name."
    subscript = _Method(b"__getitem__", entry, _ONE, doc)
    _keep.extend((python, subscript))
    native.slots[H.SUBSCRIPT], native.slots[H.FORCE], native.slots[H.ATTRIBUTE] = id(python), id(arrays.ready), id(arrays.attribute)
    product = operators.operator_of("matmul")
    _keep.append(product)
    native.slots[H.MATMUL], native.slots[H.PRODUCTS] = id(product), id(table_of("matmul")) + _BYTES
    _word(numbers + _MATMUL).value = native.library.address("tw_eager_matmul")
    native.slots[H.CASTS] = id(_casts) + _BYTES
    native.slots[H.REFUSE] = id(protocols.refuse_buffer)
    # As a native method, not a function: the interpreter would inline a function and never see the slot.
    setattr(Array, "__getitem__", _new_method(Array, ctypes.addressof(subscript)))  # noqa: B010
    _word(_word(at + _AS_MAPPING).value + 8).value = entry
    assign = _word(_word(at + _AS_MAPPING).value + 16)
    native.state[H.STATE.index("WRITE")], assign.value = assign.value, native.library.address("tw_device_assign")
    for name, view in _ATTRIBUTES.items():
        doc = (Array.__dict__[name].__doc__ or f"See NumPy's {name}.").encode()
        entry = native.library.address("tw_eager_transposed" if name == "T" else "tw_eager_view" if view else "tw_eager_attribute")
        field = _Field(name.encode(), entry, None, doc, id(name))
        _keep.extend((field, name))
        setattr(Array, name, _new_field(Array, ctypes.addressof(field)))
    _word(_word(at + _AS_BUFFER).value).value = native.library.address("tw_eager_getbuffer")
    _word(id(native)).value += 1  # its code frees Arrays until the process has ended
    _word(at + _DEALLOC).value = native.library.address("tw_eager_dealloc")
    for name, (kind, told) in METHODS.items():
        python = Array.__dict__[name]
        method(name, function(name, kind, python, signature(python), told, table=f"Array.{name}"))


def method(name: str, fn: Fn) -> None:
    """A function as a method of `Array`; a native one is called without a frame of the interpreter."""
    if isinstance(fn, type(len)):
        setattr(Array, name, _new_instance_method(fn))


def _fill_state(native: Machine) -> None:
    probe = arrays.wrap(np.zeros(1))
    probe._node = node = object()
    slot, node_slot = (next(k for k in range(16, Array.__basicsize__, 8) if _word(id(probe) + k).value == id(v)) for v in (probe._a, node))
    del probe._node
    capsule = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = pointer(capsule, None)
    for k, value in {
        H.ARRAY: id(Array), H.FLOAT: id(float), H.LONG: id(int), H.NDARRAY: id(np.ndarray), H.NEW_ARRAY: _word(api + 8 * 94).value,
        H.SLOT: slot, H.NODE: node_slot, H.WEAK: Array.__weakrefoffset__, H.SLICE: id(slice), H.TUPLE: id(tuple),
        H.ELLIPSIS: id(type(...)), H.NONE: id(type(None)),
        H.AXIS: id(_AXIS), H.FROM_SCALAR: _word(api + 8 * 61).value, H.SET_BASE: _word(api + 8 * 282).value,
    }.items():
        native.state[k] = value
