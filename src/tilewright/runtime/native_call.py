"""The fastest path into a session on a CPU: the fast path (`fastcall.py`) over fixed shapes and PyTorch's tensors, as machine code.

It has a workspace of its own. Whatever it does not know (modes and traces of PyTorch, another thread that is in it, any type or shape but
the compiled ones, `out=`, named arguments) it hands to the fast path in Python.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..core import torch_context
from ..core.signature import Signature
from ..ir.types import TensorType
from . import torch_calls
from .arguments import from_dtype
from .fastcall import finisher
from .native import layout as L
from .outputs import is_recycled
from .torch_calls import MachineCode

if TYPE_CHECKING:
    from .executable import Interface
    from .pool import Pool
    from .workspace import Workspace

MOST_OUTPUTS = 64
FIELDS = (*torch_calls.FIELDS, "none", "zero", "dispatching", "recording", "io", "run", "job", "errors", "faults", "after", "busy")
SOURCE = """
def quiet(plan):  # whether no mode or trace of PyTorch is on
    found = PyObject_Vectorcall(plan[DISPATCHING], 0, 0, 0)
    if found == 0:
        return 0
    Py_DecRef(found)
    if found != plan[ZERO]:
        return 0
    found = PyObject_Vectorcall(plan[RECORDING], 0, 0, 0)
    if found == 0:
        return 0
    Py_DecRef(found)
    return found == plan[NONE]


def finished(plan, status):  # settles what the run has left to do; 0 for an error
    block = plan[ERRORS]
    fault = 0
    for row in range(block, block + ERROR_BYTES * plan[FAULTS], ERROR_BYTES):
        fault = fault or row[0]
    if status == 0 and fault == 0:
        return 1
    number = PyLong_FromLong(status)
    done = PyObject_Vectorcall(plan[AFTER], [number], 1, 0)
    Py_DecRef(number)
    if done == 0:
        return 0
    Py_DecRef(done)
    return 1


def tw_cpu_call(self, args, given):
    plan = ld64(self + PAYLOAD)
    made = stack(MADE_BYTES)
    if given == 3 and args[2] == plan[NONE] and PyDict_Size(args[1]) == 0 and exchange64_both(plan + 8 * BUSY, 1) == 0:
        io = plan[IO]
        if quiet(plan) and fitting(plan, args[0], io):
            outs = plan[OUTS]
            count = allocated(plan, made, io + 8 * plan[INS])
            if count == outs:
                thread = PyEval_SaveThread()
                status = call(plan[RUN], plan[JOB])
                PyEval_RestoreThread(thread)
                fine = finished(plan, status)
                if fine or status == 0:  # a run that was interrupted for good leaves its workspace in its middle
                    store64_release(plan + 8 * BUSY, 0)
                if fine:
                    return results(plan, made)
                drop(made, outs)
                return 0
            if count < 0:
                store64_release(plan + 8 * BUSY, 0)
                return 0
        store64_release(plan + 8 * BUSY, 0)
        PyErr_Clear()
    return PyObject_Vectorcall(plan[SHORT], args, given, 0)
"""


@cache
def _code() -> MachineCode | None:
    if not torch_calls.known_layout():
        return None
    return MachineCode("tw_cpu_call", SOURCE, FIELDS, {"MADE_BYTES": 8 * MOST_OUTPUTS, "ERROR_BYTES": 8 * L.ERROR_WORDS, "UNALIGNED": 0})


def native_call(interface: Interface, signature: Signature, pool: Pool, workspace: Workspace, faults: int, short: Callable[..., Any],
                after: Callable[[int], None]) -> Callable[..., Any] | None:
    """`call(args, kwargs, out)` in front of `short`, where there can be one. `after(status)` settles a run that was interrupted, and raises
    what a kernel has found."""
    arrays, alloc = [*interface.inputs, *interface.outputs], torch_context.allocator()
    refused = interface.symbols or interface.donated or not signature.simple or len(interface.outputs) > MOST_OUTPUTS
    if refused or any(t.dtype.kind == "c" for t in arrays) or any(map(is_recycled, interface.outputs)) or not alloc[1]:
        return None  # complex tensors may have signs that are not in the memory
    functions, code = torch_calls.exchange(), _code()
    if functions is None or code is None:
        return None
    import torch

    def like(t: TensorType) -> torch_calls.Like:
        sizes = tuple(d for d in t.shape if isinstance(d, int))  # all of them: there are no symbols
        return sizes, tuple(prod(sizes[i + 1 :]) for i in range(len(sizes))), from_dtype()[t.dtype]

    look = functions[0]
    try:
        records = [v for t in interface.inputs for v in torch_calls.record(like(t), lambda s, d: torch.empty(s, dtype=d), look)]
    except (RuntimeError, BufferError):
        return None
    likes = [like(t) for t in interface.outputs]
    around = torch_context.modes()
    objects = {**torch_calls.tensor_objects(), "short": short, "alloc": alloc[0], "finish": finisher(signature, interface), "zero": 0,
               "dispatching": around["dispatching"], "recording": around["recording"], "after": after}
    words = {"look": look, "device": torch_calls.seen(look, torch.empty(1))[0], "ins": len(interface.inputs), "outs": len(likes),
             "io": ctypes.addressof(workspace.io), "run": pool.library.address("tw_run"), "job": workspace.fixed,
             "errors": workspace.errors.ctypes.data, "faults": faults, "busy": 0, "none": id(None),
             "requires_grad": torch_calls.getter("requires_grad")}
    tables = {"inputs": np.array(records, np.int64), "outputs": np.array([id(x) for x in likes], np.int64)}
    made: Callable[..., Any] = code.bound(words, objects, tables, (likes, workspace, pool))[0]
    return made
