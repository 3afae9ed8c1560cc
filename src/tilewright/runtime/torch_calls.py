"""Machine code in front of the fast path of a session that takes PyTorch's tensors of fixed shapes: a function of CPython's own calling
convention that reads a plan of words. This is what the paths into CPUs (`native_call.py`) and GPUs (`cuda/native.py`) have in common.

Tensors are looked at through the functions that DLPack has for this (`__dlpack_c_exchange_api__`). LLVM makes the code once; from then on
it comes from the cache of machine code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from ..core.errors import CompileError

DEVICE, KIND, DLTENSOR = 8, 16, 48  # bytes of a DLTensor; `KIND` has the rank and the dtype
STRUCTURES = {"type": ("ld64", object.__basicsize__ - 8), "data": ("ld64", 0), "place": ("ld64", DEVICE), "kind": ("ld64", KIND),
              "shape": ("ld64", 24), "strides": ("ld64", 32), "offset": ("ld64", 40)}  # fields of an object and of a DLTensor
LOOK, CURRENT_STREAM = 40, 48  # bytes of DLPackExchangeAPI
FASTCALL = 0x80  # METH_FASTCALL
# The words of every plan. `inputs`: what each input must be (`record`); `finish` makes the result of the outputs.
FIELDS = ("look", "tensor", "parameter", "is_neg", "requires_grad", "recorded", "false", "short", "inputs", "outputs", "alloc",
          "finish", "device", "ins", "outs")
SOURCE = """
@inline
def failed(status):  # functions of the driver and of DLPack give an int
    return status & 4294967295


def fitting(plan, items, addresses):  # whether all inputs are as compiled
    seen = stack(DLTENSOR)
    record = plan[INPUTS]
    if PyTuple_Size(items) != plan[INS]:
        return 0
    for i in range(plan[INS]):
        x = PyTuple_GetItem(items, i)
        if (x.type != plan[TENSOR] and x.type != plan[PARAMETER]) or failed(call(plan[LOOK], x, seen)):
            return 0
        if seen.place != plan[DEVICE] or seen.kind != record[0]:
            return 0
        rank = record[1]
        empty = 0
        for a in range(rank):
            record += 16
            size = record[0]
            if seen.shape[a] != size or (record[1] >= 0 and seen.strides[a] != record[1]):
                return 0
            empty = empty or size == 0
        record += 16
        signs = PyObject_Vectorcall(plan[IS_NEG], [x], 1, 0)
        if signs == 0:
            return 0
        Py_DecRef(signs)
        wants = call(plan[REQUIRES_GRAD], x, 0)
        if wants == 0:
            return 0
        Py_DecRef(wants)
        if wants != plan[FALSE]:
            wants = PyObject_Vectorcall(plan[RECORDED], 0, 0, 0)
            if wants == 0:
                return 0
            Py_DecRef(wants)
            if wants != plan[FALSE]:
                return 0
        at = seen.data + seen.offset
        if signs != plan[FALSE] or at & UNALIGNED or (at == 0 and not empty):  # a tensor of functionalize is nowhere
            return 0
        addresses[i] = at
    return 1


def drop(made, count):
    while count > 0:
        count -= 1
        Py_DecRef(made[count])


def allocated(plan, made, addresses):  # how many outputs are there: fewer than all where one is not what was asked for, -1 for an error
    seen = stack(DLTENSOR)
    for k in range(plan[OUTS]):
        y = PyObject_Call(plan[ALLOC], plan[OUTPUTS][k], 0)
        if y == 0:
            drop(made, k)
            return -1
        made[k] = y
        if failed(call(plan[LOOK], y, seen)) or seen.place != plan[DEVICE]:
            drop(made, k + 1)
            return k
        addresses[k] = seen.data + seen.offset
    return k


def results(plan, made):
    if plan[FINISH] == 0:
        return made[0]
    outs = plan[OUTS]
    together = PyObject_Vectorcall(plan[FINISH], made, outs, 0)
    drop(made, outs)
    return together
"""


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class MachineCode:
    """The function `entry` of a source in host code that knows the plan's words by the names of their `fields`."""

    def __init__(self, entry: str, source: str, fields: Sequence[str], constants: Mapping[str, int]) -> None:
        from ..target.cpu.cache import CodeCache
        from ..target.cpu.host import host_target
        from ..target.cpu.jit import Library

        self.fields = fields
        words = {name.upper(): i for i, name in enumerate(fields)}
        known = {**words, "DLTENSOR": DLTENSOR, "PAYLOAD": _PAYLOAD, **constants}
        whole = SOURCE + source

        def text() -> str:
            from ..target.cpu.host_code import compile_host

            return compile_host(whole, known, {}, [entry], fields=STRUCTURES)[0]

        (code,), _ = CodeCache().build([(f"{entry} {known} {whole}", text)], host_target())
        imports = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in _IMPORTS if name in whole}
        self.library = Library([code], [entry], imports)
        self.method = _Method(b"call", self.library.address(entry), FASTCALL, None)

    def bound(self, words: Mapping[str, int], objects: Mapping[str, Any], arrays: Mapping[str, Any], held: Any) -> tuple[Any, Any]:
        """The Python function with a plan of these words, addresses of objects (None: 0) and addresses of arrays; and the plan."""
        values = {**{name: 0 if x is None else id(x) for name, x in objects.items()}, **words,
                  **{name: x.ctypes.data for name, x in arrays.items()}}
        plan = np.array([values[f] for f in self.fields], np.int64)
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
        kept = (plan, objects, arrays, held, self)
        return new(ctypes.addressof(self.method), int(plan.ctypes.data).to_bytes(8, "little"), kept), plan


_PAYLOAD = bytes.__basicsize__ - 1  # where a `bytes` object has its bytes
_IMPORTS = ("PyTuple_Size", "PyTuple_GetItem", "PyObject_Vectorcall", "PyObject_Call", "Py_DecRef", "Py_IncRef",
            "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread", "PyDict_Size", "PyLong_FromLong", "PyLong_AsSsize_t")


@cache
def known_layout() -> bool:
    """Whether this CPython lays its objects out as the code assumes."""
    probe = b"layout"
    kind = ctypes.c_void_p.from_address(id(probe) + STRUCTURES["type"][1]).value
    return ctypes.string_at(id(probe) + _PAYLOAD, 6) == probe and kind == id(bytes)


@cache
def exchange() -> tuple[int, int] | None:
    """PyTorch's functions that look at a tensor and tell the current stream, where it has them."""
    import torch

    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table: int = get(capsule, b"dlpack_exchange_api")
    look, stream = (ctypes.c_void_p.from_address(table + at).value for at in (LOOK, CURRENT_STREAM))
    return (look, stream) if ctypes.c_uint32.from_address(table).value == 1 and look and stream else None


def seen(look: int, tensor: Any) -> tuple[int, int]:
    """The words of a DLTensor that tell the device, and the rank with the dtype. RuntimeError or BufferError for a dtype that this
    PyTorch's DLPack has no name for."""
    found = (ctypes.c_char * DLTENSOR)()
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(look)(tensor, ctypes.addressof(found))
    return ctypes.c_int64.from_buffer(found, DEVICE).value, ctypes.c_int64.from_buffer(found, KIND).value


Like = tuple[tuple[int, ...], tuple[int, ...], Any]  # sizes, strides and dtype of a tensor


def record(like: Like, new: Callable[[Sequence[int], Any], Any], look: int) -> list[int]:
    """What an input must be: rank and dtype, then size and stride of every axis; a stride below 0 may be any."""
    sizes, strides, dtype = like
    kind = seen(look, new([1] * len(sizes), dtype))[1]
    axes = [(n, s if n != 1 and 0 not in sizes else -1) for n, s in zip(sizes, strides, strict=True)]
    return [kind, len(sizes), *(v for axis in axes for v in axis)]


def tensor_objects() -> dict[str, Any]:
    import torch

    return {"tensor": torch.Tensor, "parameter": torch.nn.Parameter, "is_neg": torch.Tensor.is_neg, "false": False,
            "recorded": torch.is_grad_enabled}


class _Property(ctypes.Structure):
    """PyGetSetDef."""

    _fields_ = [("name", ctypes.c_char_p), ("get", ctypes.c_void_p)]


class _Descriptor(ctypes.Structure):
    """PyGetSetDescrObject behind its header."""

    _fields_ = [*((name, ctypes.c_void_p) for name in ("owner", "name", "qualname")), ("property", ctypes.POINTER(_Property))]


def getter(name: str) -> int:
    """The C function behind a property of tensors: a tenth of the time of reading the attribute."""
    import torch

    found = _Descriptor.from_address(id(getattr(torch._C.TensorBase, name)) + object.__basicsize__).property.contents
    if found.name != name.encode():
        raise CompileError(f"torch_calls: {name} of PyTorch's tensors is no property that this CPython lays out as known")
    return int(found.get)
