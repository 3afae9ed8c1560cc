"""The fastest path into a session on a GPU: the fast path (`fastcall.py`) over fixed shapes and PyTorch's tensors, as machine code.

It looks at the tensors through the functions that DLPack has for this (`__dlpack_c_exchange_api__`), makes the results, points the graph at
them where they are elsewhere than last time, and launches it. Whatever it does not know (another stream than last time, one that is being
captured, another thread that holds the session, an error that a kernel has found, any type or shape but the compiled ones, a launch that
fails) it hands to the fast path in Python. LLVM makes it once; from then on it comes from the cache of machine code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.signature import Slot
from ...ir.types import TensorType
from . import launch as cuda_launch
from .native_ir import DEVICE, DLTENSOR, FIELDS, IMPORTS, KIND, MOST_ARRAYS, MOST_NODES, native_ir

if TYPE_CHECKING:
    from .executable import Schedule
    from .fastcall import TorchPlace
    from .session import CudaSession

LOOK, CURRENT_STREAM = 40, 48  # bytes of DLPackExchangeAPI
FASTCALL = 0x80  # METH_FASTCALL


class _Method(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = [("name", ctypes.c_char_p), ("code", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


@cache
def _code() -> tuple[Any, _Method] | None:
    """The loaded machine code and its PyMethodDef; None on a CPython whose objects are laid out otherwise."""
    probe, payload, type_at = b"layout", bytes.__basicsize__ - 1, object.__basicsize__ - 8
    if ctypes.string_at(id(probe) + payload, 6) != probe or ctypes.c_void_p.from_address(id(probe) + type_at).value != id(bytes):
        return None
    from ...target.cpu.cache import CodeCache
    from ...target.cpu.host import host_target
    from ...target.cpu.jit import Library

    (code,), _ = CodeCache().compile([native_ir(payload, type_at)], host_target())
    imports = {name: ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0 for name in IMPORTS}
    library = Library([code], ["tw_gpu_call"], imports)
    return library, _Method(b"call", library.address("tw_gpu_call"), FASTCALL, None)


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


def _seen(look: int, tensor: Any) -> tuple[int, int]:
    """The words of a DLTensor that tell the device, and the rank with the dtype."""
    seen = (ctypes.c_char * DLTENSOR)()
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(look)(tensor, ctypes.addressof(seen))
    return ctypes.c_int64.from_buffer(seen, DEVICE).value, ctypes.c_int64.from_buffer(seen, KIND).value


def _record(type_: TensorType, place: TorchPlace, look: int) -> list[int]:
    """What an input must be: rank and dtype, then size and stride of every axis; a stride below 0 may be any."""
    sizes, strides, dtype = place.like(type_)
    kind = _seen(look, place.new([1] * len(sizes), dtype))[1]
    axes = [(n, s if n != 1 and 0 not in sizes else -1) for n, s in zip(sizes, strides, strict=True)]
    return [kind, len(sizes), *(v for axis in axes for v in axis)]


def _schedule(session: CudaSession) -> Schedule | None:
    """The kernels of a program over fixed shapes that the host only launches."""
    from .executable import Schedule

    interface = session.interface
    arrays = [*interface.inputs, *interface.outputs]
    if interface.symbols or interface.donated or len(arrays) > MOST_ARRAYS or any(t.dtype.kind == "c" for t in arrays):
        return None  # complex tensors may have signs that are not in the memory
    found = session.schedule({})
    if not isinstance(found, Schedule) or not found.handle or len(found.steps) > MOST_NODES:
        return None
    return found


def native_call(session: CudaSession, place: TorchPlace, short: Callable[..., Any]) -> Callable[..., Any] | None:
    """`call(args)` in front of the fast path, where there can be one."""
    schedule, functions, code = _schedule(session), place.exchange(), _code()
    if schedule is None or functions is None or code is None:
        return None
    import torch

    interface, signature, executable = session.interface, session.model.signature, session.executable
    look, stream_of = functions
    try:
        records = np.array([v for t in interface.inputs for v in _record(t, place, look)], np.int64)
    except (RuntimeError, BufferError):  # a dtype that this PyTorch's DLPack has no name for
        return None
    device, errors, is_neg = _seen(look, place.new([1], torch.float32))[0], executable.errors, torch.Tensor.is_neg
    likes = [place.like(t) for t in interface.outputs]
    outputs = np.array([id(x) for x in likes], np.int64)
    moving, mapping, updates = (np.array(x, np.int64).reshape(-1) for x in schedule.following_inputs())
    only = signature.outputs[0] if signature.out_spec.type == "leaf" and len(likes) == 1 else None
    finish = None if isinstance(only, Slot) else lambda made: signature.unflatten(list(made))
    objects = {
        "tensor": torch.Tensor, "parameter": torch.nn.Parameter, "is_neg": is_neg, "false": False, "short": short, "alloc": place.alloc,
        "acquire": session._lock.acquire, "release": session._lock.release, "finish": finish,
    }  # fmt: skip
    arrays = {"inputs": records, "outputs": outputs, "moving": moving, "mapping": mapping, "updates": updates}
    values = {
        **{name: 0 if x is None else id(x) for name, x in objects.items()}, **{name: x.ctypes.data for name, x in arrays.items()},
        "launch": cuda_launch.address_of("cuGraphLaunch"), "set_params": cuda_launch.address_of("cuGraphExecKernelNodeSetParams_v2"),
        "replace": cuda_launch.address_of("cuTensorMapReplaceAddress"), "capturing": cuda_launch.address_of("cuStreamIsCapturing"),
        "graph": schedule.handle, "look": look, "stream_of": stream_of,
        "error_blocks": 0 if errors is None else errors.host, "bound": ctypes.addressof(schedule.bound),
        "kind_of_device": device & 0xFFFFFFFF, "device": device,
        "errors": len(executable.error_launches), "stream": session.last_stream, "ins": len(interface.inputs), "outs": len(likes),
        "moves": len(moving) // 4, "maps": len(mapping) // 3, "nodes": len(updates) // 2,
    }  # fmt: skip
    plan = np.array([values[f] for f in FIELDS], np.int64)
    session.seen_stream = memoryview(plan.data)[FIELDS.index("stream") :]
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.py_object, ctypes.py_object]
    held = (plan, objects, arrays, likes, schedule, code)
    made: Callable[..., Any] = new(ctypes.addressof(code[1]), int(plan.ctypes.data).to_bytes(8, "little"), held)
    return made
