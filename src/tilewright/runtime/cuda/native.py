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

from ..fastcall import finisher
from ..torch_calls import MachineCode, known_layout, record, seen, tensor_objects
from . import launch as cuda_launch
from .native_ir import CONSTANTS, FIELDS, MOST_ARRAYS, MOST_NODES, SOURCE

if TYPE_CHECKING:
    from .executable import Schedule
    from .fastcall import TorchPlace
    from .session import CudaSession


@cache
def _code() -> MachineCode | None:
    """None on a CPython whose objects are laid out otherwise."""
    return MachineCode("tw_gpu_call", SOURCE, FIELDS, CONSTANTS) if known_layout() else None


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

    interface, executable = session.interface, session.executable
    look, stream_of = functions
    try:
        records = np.array([v for t in interface.inputs for v in record(place.like(t), place.new, look)], np.int64)
    except (RuntimeError, BufferError):
        return None
    device, errors = seen(look, place.new([1], torch.float32))[0], executable.errors
    likes = [place.like(t) for t in interface.outputs]
    outputs = np.array([id(x) for x in likes], np.int64)
    moving, mapping, updates = (np.array(x, np.int64).reshape(-1) for x in schedule.following_inputs())
    objects = {
        **tensor_objects(), "short": short, "alloc": place.alloc, "acquire": session._lock.acquire, "release": session._lock.release,
        "finish": finisher(session.model.signature, interface),
    }  # fmt: skip
    arrays = {"inputs": records, "outputs": outputs, "moving": moving, "mapping": mapping, "updates": updates}
    words = {
        "launch": cuda_launch.address_of("cuGraphLaunch"), "set_params": cuda_launch.address_of("cuGraphExecKernelNodeSetParams_v2"),
        "replace": cuda_launch.address_of("cuTensorMapReplaceAddress"), "capturing": cuda_launch.address_of("cuStreamIsCapturing"),
        "graph": schedule.handle, "look": look, "stream_of": stream_of,
        "error_blocks": 0 if errors is None else errors.host, "bound": ctypes.addressof(schedule.bound),
        "kind_of_device": device & 0xFFFFFFFF, "device": device,
        "errors": len(executable.error_launches), "stream": session.last_stream, "ins": len(interface.inputs), "outs": len(likes),
        "moves": len(moving) // 4, "maps": len(mapping) // 3, "nodes": len(updates) // 2,
    }  # fmt: skip
    made: Callable[..., Any]
    made, plan = code.bound(words, objects, arrays, (likes, schedule))
    session.seen_stream = memoryview(plan.data)[FIELDS.index("stream") :]
    return made
