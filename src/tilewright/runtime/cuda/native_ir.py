"""The fastest path into a session on a GPU (`native.py`) in host code: a function of CPython's own calling convention.

It reads a plan of words (`FIELDS`) and tensors as DLPack describes them, and calls nothing but CPython, PyTorch's functions in the plan and
the driver. Results that were made go back where the call is given up.
"""

from __future__ import annotations

from ...target.cpu.host_code import compile_host

MOST_ARRAYS, MOST_NODES = 256, 1024
ERROR_BYTES = 32  # of a kernel's error block
DATA, DEVICE, KIND, SHAPE, STRIDES, OFFSET, DLTENSOR = 0, 8, 16, 24, 32, 40, 48  # bytes of a DLTensor; `KIND` has the rank and the dtype

# The words of a plan, in this order.
POINTERS = (
    "launch", "set_params", "replace", "graph", "look", "stream_of", "tensor", "parameter", "is_neg", "false", "short", "error_blocks",
    "inputs", "outputs", "alloc", "finish", "acquire", "release", "bound", "moving", "mapping", "updates",
    "capturing",
)  # fmt: skip
NUMBERS = ("kind_of_device", "device", "errors", "stream", "ins", "outs", "moves", "maps", "nodes")
FIELDS = (*POINTERS, *NUMBERS)
IMPORTS = (
    "PyTuple_Size", "PyTuple_GetItem", "PyTuple_New", "PyTuple_SetItem", "PyObject_Vectorcall", "PyObject_Call", "Py_DecRef",
    "PyErr_Clear", "PyEval_SaveThread", "PyEval_RestoreThread",
)  # fmt: skip
SOURCE = """
@inline
def failed(status):  # functions of the driver and of DLPack give an int
    return status & 4294967295


def fitting(plan, items, addresses):  # whether all inputs are as compiled
    seen = stack(DLTENSOR)
    one = stack(8)
    record = ld64(plan + INPUTS)
    ins = ld64(plan + INS)
    if PyTuple_Size(items) != ins:
        return 0
    i = 0
    while i < ins:
        x = PyTuple_GetItem(items, i)
        type = ld64(x + TYPE_AT)
        if type != ld64(plan + TENSOR) and type != ld64(plan + PARAMETER):
            return 0
        if failed(call(ld64(plan + LOOK), x, seen)):
            return 0
        if ld64(seen + DL_DEVICE) != ld64(plan + DEVICE) or ld64(seen + DL_KIND) != ld64(record):
            return 0
        rank = ld64(record + 8)
        shape = ld64(seen + DL_SHAPE)
        strides = ld64(seen + DL_STRIDES)
        record += 16
        empty = 0
        a = 0
        while a < rank:
            size = ld64(record)
            stride = ld64(record + 8)
            if ld64(shape + 8 * a) != size or (stride >= 0 and ld64(strides + 8 * a) != stride):
                return 0
            if size == 0:
                empty = 1
            record += 16
            a += 1
        st64(one, x)
        signs = PyObject_Vectorcall(ld64(plan + IS_NEG), one, 1, 0)
        if signs == 0:
            return 0
        Py_DecRef(signs)
        at = ld64(seen + DL_DATA) + ld64(seen + DL_OFFSET)
        if signs != ld64(plan + FALSE) or at & 15 or (at == 0 and not empty):  # a tensor of functionalize is nowhere, an empty one may be
            return 0
        st64(addresses + 8 * i, at)
        i += 1
    return 1


def ready(plan, current):  # whether no kernel has found an error and the stream is the last call's
    block = ld64(plan + ERROR_BLOCKS)
    end = block + ERROR_BYTES * ld64(plan + ERRORS)
    while block < end:
        if load64_volatile(block) != 0:
            return 0
        block += ERROR_BYTES
    if failed(call(ld64(plan + STREAM_OF), ld64(plan + KIND_OF_DEVICE), 0, current)) or ld64(current) != ld64(plan + STREAM):
        return 0
    state = stack(8)
    st64(state, 0)
    return ld64(current) == 0 or not (failed(call(ld64(plan + CAPTURING), ld64(current), state)) or ld32(state))


def drop(made, count):
    while count > 0:
        count -= 1
        Py_DecRef(ld64(made + 8 * count))


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


def results(plan, made, one):
    if ld64(plan + FINISH) == 0:
        return ld64(made)
    outs = ld64(plan + OUTS)
    together = PyTuple_New(outs)
    if together == 0:
        drop(made, outs)
        return 0
    k = 0
    while k < outs:
        PyTuple_SetItem(together, k, ld64(made + 8 * k))
        k += 1
    st64(one, together)
    finished = PyObject_Vectorcall(ld64(plan + FINISH), one, 1, 0)
    Py_DecRef(together)
    return finished


def tw_gpu_call(self, args, given):
    plan = ld64(self + PAYLOAD)
    addresses = stack(ARRAY_BYTES)
    made = stack(ARRAY_BYTES)
    seen = stack(DLTENSOR)
    current = stack(8)
    one = stack(8)
    if given == 1 and fitting(plan, ld64(args), addresses) and ready(plan, current):
        ins = ld64(plan + INS)
        outs = ld64(plan + OUTS)
        fine = 1
        k = 0
        while fine and k < outs:
            y = PyObject_Call(ld64(plan + ALLOC), ld64(ld64(plan + OUTPUTS) + 8 * k), 0)
            if y == 0:
                drop(made, k)
                return 0
            st64(made + 8 * k, y)
            fine = not failed(call(ld64(plan + LOOK), y, seen)) and ld64(seen + DL_DEVICE) == ld64(plan + DEVICE)
            st64(addresses + 8 * (ins + k), ld64(seen + DL_DATA) + ld64(seen + DL_OFFSET))
            k += 1
        if fine and launched(plan, addresses, ld64(current), one):
            return results(plan, made, one)
        drop(made, k)
    PyErr_Clear()
    return PyObject_Vectorcall(ld64(plan + SHORT), args, given, 0)
"""


def native_ir(payload: int, type_at: int) -> str:
    """The module. `payload`: where the bytes of a `bytes` object begin; `type_at`: where an object's type is."""
    words = {name.upper(): 8 * i for i, name in enumerate(FIELDS)}
    tensor = {"DL_DATA": DATA, "DL_DEVICE": DEVICE, "DL_KIND": KIND, "DL_SHAPE": SHAPE, "DL_STRIDES": STRIDES, "DL_OFFSET": OFFSET}
    sizes = {"DLTENSOR": DLTENSOR, "ERROR_BYTES": ERROR_BYTES, "ARRAY_BYTES": 8 * MOST_ARRAYS, "MOST_NODES": MOST_NODES}
    text, used = compile_host(SOURCE, {**words, **tensor, **sizes, "PAYLOAD": payload, "TYPE_AT": type_at}, {}, ["tw_gpu_call"])
    assert set(used) == set(IMPORTS), used
    return text
