"""The fastest paths into a session on a GPU (`native.py`) in host code: functions of CPython's own calling convention.

They read a plan of words (`FIELDS`) and tensors as DLPack describes them, and call nothing but CPython, PyTorch's functions in the plan and
the driver. Results that were made go back where the call is given up.
"""

from __future__ import annotations

from .. import torch_calls

MOST_ARRAYS, MOST_NODES = 1024, 4096
ERROR_BYTES = 32  # bytes of a kernel's error block
FIELDS = (
    *torch_calls.FIELDS, "launch", "set_params", "replace", "graph", "stream_of", "error_blocks", "acquire", "release", "bound", "moving",
    "mapping", "updates", "capturing", "kind_of_device", "errors", "stream", "moves", "maps", "nodes", "nothing",
)  # fmt: skip
CONSTANTS = {"ERROR_BYTES": ERROR_BYTES, "ARRAY_BYTES": 8 * MOST_ARRAYS, "MOST_NODES": MOST_NODES, "UNALIGNED": 15}
SOURCE = """
def ready(plan, stream):  # whether no kernel has found an error and the stream is the last call's
    block = plan[ERROR_BLOCKS]
    for row in range(block, block + ERROR_BYTES * plan[ERRORS], ERROR_BYTES):
        if load64_volatile(row) != 0:
            return 0
    if stream != plan[STREAM]:
        return 0
    state = [0]
    return stream == 0 or not (failed(call(plan[CAPTURING], stream, state)) or ld32(state))


def bind(plan, addresses):  # point the graph at the arrays; 0 where that has worked
    dirty = stack(MOST_NODES)
    bound = plan[BOUND]
    arrays = plan[INS] + plan[OUTS]
    nodes = plan[NODES]
    lost = bound[0] == -1
    for n in range(nodes):
        st8(dirty + n, lost)
    for n in range(arrays):
        bound[n] = -1
    first = plan[MOVING]
    for row in range(first, first + 32 * plan[MOVES], 32):
        value = addresses[row[1]] + row[2]
        if row[0][0] != value:
            row[0][0] = value
            st8(dirty + row[3], 1)
    first = plan[MAPPING]
    for row in range(first, first + 24 * plan[MAPS], 24):
        if ld8(dirty + row[2]) and failed(call(plan[REPLACE], row[0], row[1][0])):
            return 1
    row = plan[UPDATES]
    for n in range(nodes):
        if ld8(dirty + n) and failed(call(plan[SET_PARAMS], plan[GRAPH], row[0], row[1])):
            return 1
        row += 16
    copy(bound, addresses, 8 * arrays)
    return 0


def launched(plan, addresses, stream):  # whether the graph runs with these arrays
    got = PyObject_Vectorcall(plan[ACQUIRE], [plan[FALSE]], 1, 0)
    if got == 0:
        return 0
    Py_DecRef(got)
    if got == plan[FALSE]:  # another thread has the session
        return 0
    arrays = plan[INS] + plan[OUTS]
    bound = plan[BOUND]
    i = 0
    while i < arrays and bound[i] == addresses[i]:
        i += 1
    done = 0
    if stream == plan[STREAM] and (i == arrays or bind(plan, addresses) == 0):
        thread = PyEval_SaveThread()
        done = not failed(call(plan[LAUNCH], plan[GRAPH], stream))
        PyEval_RestoreThread(thread)
    Py_DecRef(PyObject_Vectorcall(plan[RELEASE], 0, 0, 0))
    return done


def tw_gpu_call(self, args, given):
    plan = ld64(self + PAYLOAD)
    addresses = stack(ARRAY_BYTES)
    made = stack(ARRAY_BYTES)
    current = [-1]
    if given == 1 and fitting(plan, args[0], addresses):
        call(plan[STREAM_OF], plan[KIND_OF_DEVICE], 0, current)
    if current[0] != -1 and ready(plan, current[0]):
        outs = plan[OUTS]
        count = allocated(plan, made, addresses + 8 * plan[INS])
        if count < 0:
            return 0
        if count == outs:
            if launched(plan, addresses, current[0]):
                return results(plan, made)
            drop(made, outs)
    PyErr_Clear()
    return PyObject_Vectorcall(plan[SHORT], args, given, 0)


def tw_gpu_start(self, args, given):  # addresses of inputs and outputs that the caller vouches for, then the stream
    plan = ld64(self + PAYLOAD)
    addresses = stack(ARRAY_BYTES)
    arrays = plan[INS] + plan[OUTS]
    if given == arrays + 1:
        for i in range(arrays):
            addresses[i] = PyLong_AsSsize_t(args[i])
        stream = PyLong_AsSsize_t(args[i])
        if ready(plan, stream) and launched(plan, addresses, stream):
            none = plan[NOTHING]
            Py_IncRef(none)
            return none
    PyErr_Clear()
    return PyObject_Vectorcall(plan[SHORT], args, given, 0)
"""
