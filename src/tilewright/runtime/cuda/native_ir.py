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
    block = ld64(plan + ERROR_BLOCKS)
    end = block + ERROR_BYTES * ld64(plan + ERRORS)
    while block < end:
        if load64_volatile(block) != 0:
            return 0
        block += ERROR_BYTES
    if stream != ld64(plan + STREAM):
        return 0
    state = stack(8)
    st64(state, 0)
    return stream == 0 or not (failed(call(ld64(plan + CAPTURING), stream, state)) or ld32(state))


def bind(plan, addresses):  # point the graph at the arrays; 0 where that has worked
    dirty = stack(MOST_NODES)
    bound = ld64(plan + BOUND)
    arrays = ld64(plan + INS) + ld64(plan + OUTS)
    nodes = ld64(plan + NODES)
    lost = ld64(bound) == -1
    n = 0
    while n < nodes:
        st8(dirty + n, lost)
        n += 1
    n = 0
    while n < arrays:
        st64(bound + 8 * n, -1)
        n += 1
    row = ld64(plan + MOVING)
    end = row + 32 * ld64(plan + MOVES)
    while row < end:
        value = ld64(addresses + 8 * ld64(row + 8)) + ld64(row + 16)
        word = ld64(row)
        if ld64(word) != value:
            st64(word, value)
            st8(dirty + ld64(row + 24), 1)
        row += 32
    row = ld64(plan + MAPPING)
    end = row + 24 * ld64(plan + MAPS)
    while row < end:
        if ld8(dirty + ld64(row + 16)) and failed(call(ld64(plan + REPLACE), ld64(row), ld64(ld64(row + 8)))):
            return 1
        row += 24
    row = ld64(plan + UPDATES)
    n = 0
    while n < nodes:
        if ld8(dirty + n) and failed(call(ld64(plan + SET_PARAMS), ld64(plan + GRAPH), ld64(row), ld64(row + 8))):
            return 1
        row += 16
        n += 1
    copy(bound, addresses, 8 * arrays)
    return 0


def launched(plan, addresses, stream, one):  # whether the graph runs with these arrays
    st64(one, ld64(plan + FALSE))
    got = PyObject_Vectorcall(ld64(plan + ACQUIRE), one, 1, 0)
    if got == 0:
        return 0
    Py_DecRef(got)
    if got == ld64(plan + FALSE):  # another thread has the session
        return 0
    arrays = ld64(plan + INS) + ld64(plan + OUTS)
    bound = ld64(plan + BOUND)
    i = 0
    while i < arrays and ld64(bound + 8 * i) == ld64(addresses + 8 * i):
        i += 1
    done = 0
    if stream == ld64(plan + STREAM) and (i == arrays or bind(plan, addresses) == 0):
        thread = PyEval_SaveThread()
        done = not failed(call(ld64(plan + LAUNCH), ld64(plan + GRAPH), stream))
        PyEval_RestoreThread(thread)
    Py_DecRef(PyObject_Vectorcall(ld64(plan + RELEASE), 0, 0, 0))
    return done


def tw_gpu_call(self, args, given):
    plan = ld64(self + PAYLOAD)
    addresses = stack(ARRAY_BYTES)
    made = stack(ARRAY_BYTES)
    current = stack(8)
    one = stack(8)
    st64(current, -1)
    if given == 1 and fitting(plan, ld64(args), addresses):
        call(ld64(plan + STREAM_OF), ld64(plan + KIND_OF_DEVICE), 0, current)
    if ld64(current) != -1 and ready(plan, ld64(current)):
        outs = ld64(plan + OUTS)
        count = allocated(plan, made, addresses + 8 * ld64(plan + INS))
        if count < 0:
            return 0
        if count == outs:
            if launched(plan, addresses, ld64(current), one):
                return results(plan, made)
            drop(made, outs)
    PyErr_Clear()
    return PyObject_Vectorcall(ld64(plan + SHORT), args, given, 0)


def tw_gpu_start(self, args, given):  # addresses of inputs and outputs that the caller vouches for, then the stream
    plan = ld64(self + PAYLOAD)
    addresses = stack(ARRAY_BYTES)
    one = stack(8)
    arrays = ld64(plan + INS) + ld64(plan + OUTS)
    if given == arrays + 1:
        i = 0
        while i < arrays:
            st64(addresses + 8 * i, PyLong_AsSsize_t(ld64(args + 8 * i)))
            i += 1
        stream = PyLong_AsSsize_t(ld64(args + 8 * i))
        if ready(plan, stream) and launched(plan, addresses, stream, one):
            none = ld64(plan + NOTHING)
            Py_IncRef(none)
            return none
    PyErr_Clear()
    return PyObject_Vectorcall(ld64(plan + SHORT), args, given, 0)
"""
