"""The fastest paths into a session on a GPU, as machine code: `native_call` is the fast path (`fastcall.py`) over fixed shapes and
PyTorch's tensors, `native_start` what comes behind its checks and allocations.

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
from ..torch_calls import MachineCode, getter, known_layout, record, seen, tensor_objects
from . import launch as cuda_launch
from .native_ir import CONSTANTS, FIELDS, MOST_ARRAYS, MOST_NODES, SOURCE

if TYPE_CHECKING:
    from .executable import Schedule
    from .fastcall import TorchPlace
    from .session import CudaSession


@cache
def _code(entry: str) -> MachineCode | None:
    """None on a CPython whose objects are laid out otherwise."""
    return MachineCode(entry, SOURCE, FIELDS, CONSTANTS) if known_layout() else None


def _schedule(session: CudaSession) -> Schedule | None:
    """The kernels of a program over fixed shapes that the host only launches."""
    from .executable import Schedule

    interface = session.interface
    if interface.symbols or len(interface.inputs) + len(interface.outputs) > MOST_ARRAYS:
        return None
    found = session.schedule({})
    if not isinstance(found, Schedule) or not found.handle or len(found.steps) > MOST_NODES or found.follows_calls:
        return None
    return found


def _words(session: CudaSession, schedule: Schedule) -> tuple[dict[str, int], dict[str, Any], dict[str, Any]]:
    """The words, objects and arrays of a plan that tell how a schedule is bound and launched."""
    interface, executable, errors = session.interface, session.executable, session.executable.errors
    moving, mapping, updates = (np.array(x, np.int64).reshape(-1) for x in schedule.following_inputs())
    words = {
        "launch": cuda_launch.address_of("cuGraphLaunch"), "set_params": cuda_launch.address_of("cuGraphExecKernelNodeSetParams_v2"),
        "replace": cuda_launch.address_of("cuTensorMapReplaceAddress"), "capturing": cuda_launch.address_of("cuStreamIsCapturing"),
        "graph": schedule.handle, "error_blocks": 0 if errors is None else errors.host, "bound": ctypes.addressof(schedule.bound),
        "errors": len(executable.error_launches), "stream": session.last_stream, "ins": len(interface.inputs),
        "outs": len(interface.outputs), "moves": len(moving) // 4, "maps": len(mapping) // 3, "nodes": len(updates) // 2,
        "nothing": id(None),
    }  # fmt: skip
    objects = {"acquire": session._lock.acquire, "release": session._lock.release, "false": False}
    return words, objects, {"moving": moving, "mapping": mapping, "updates": updates}


def _seen(session: CudaSession, plan: Any) -> None:
    """The stream of the last call is read in this plan from now on, too."""
    session.seen_streams.append(memoryview(plan.data)[FIELDS.index("stream") :])


def native_start(session: CudaSession, short: Callable[..., Any]) -> Callable[..., Any] | None:
    """`start(*addresses, stream)` in front of `short`, where there can be one: a run over addresses that the caller vouches for."""
    schedule, code = _schedule(session), _code("tw_gpu_start")
    if schedule is None or code is None:
        return None
    words, objects, arrays = _words(session, schedule)
    made: Callable[..., Any]
    made, plan = code.bound(words, dict.fromkeys(FIELDS) | {"short": short, **objects}, arrays, schedule)
    _seen(session, plan)
    return made


def native_call(session: CudaSession, place: TorchPlace, short: Callable[..., Any]) -> Callable[..., Any] | None:
    """`call(args)` in front of the fast path, where there can be one."""
    interface = session.interface
    if interface.donated or any(t.dtype.kind == "c" for t in (*interface.inputs, *interface.outputs)):
        return None  # complex tensors may have signs that are not in the memory
    schedule, functions, code = _schedule(session), place.exchange(), _code("tw_gpu_call")
    if schedule is None or functions is None or code is None:
        return None
    import torch

    look, stream_of = functions
    try:
        records = np.array([v for t in interface.inputs for v in record(place.like(t), place.new, look)], np.int64)
    except (RuntimeError, BufferError):
        return None
    device = seen(look, place.new([1], torch.float32))[0]
    likes = [place.like(t) for t in interface.outputs]
    words, objects, arrays = _words(session, schedule)
    words |= {"look": look, "stream_of": stream_of, "kind_of_device": device & 0xFFFFFFFF, "device": device,
              "requires_grad": getter("requires_grad")}
    objects |= {**tensor_objects(), "short": short, "alloc": place.alloc, "finish": finisher(session.model.signature, interface)}
    arrays |= {"inputs": records, "outputs": np.array([id(x) for x in likes], np.int64)}
    made: Callable[..., Any]
    made, plan = code.bound(words, objects, arrays, (likes, schedule))
    _seen(session, plan)
    return made
