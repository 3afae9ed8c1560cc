"""Host code of eager functions (the language of `target/cpu/host_code.py`): operands are read through their strides, results are allocated,
and a kernel of contiguous elements runs over them in chunks. An operator on small Arrays never enters the interpreter.

An object has a reference count and a type; a header is NumPy's; its descr has the number of the dtype (`kind`) and an element's `size`. An
operand of a run: where it starts, bytes of an element, how it lies (`mode`: 0 contiguous, 1 one element, 2 strided), its rank, sizes,
strides. A run: kernel, elements, operands, result, bytes of a result, then the operands.
"""
from __future__ import annotations

from . import eager_calls, eager_device, eager_loops, eager_reductions, eager_views
from .native.layout import JOB_LIGHT, THUNK_FN, THUNK_GRID, THUNK_SHARE

AXES = 16
OPERAND = 32 + 2 * 8 * AXES
RUN_OPERANDS = 40
MAX_OPERANDS = 8
RUN = RUN_OPERANDS + MAX_OPERANDS * OPERAND
CHUNK = 1024  # elements that are gathered at once
PROGRAM = 4096  # elements of a kernel's program
NATIVE_BYTES = 1 << 20  # larger results are for the threads, and for memory that is used again
SHARED_BYTES = 1 << 17  # threads share the work from here on
HEAVY = 2 << 20  # bytes that take longer than waking a worker
REDUCE_SHARED, REDUCE_BYTES = 1 << 19, 4 << 20  # bytes of a contiguous operand that threads reduce along an axis, at least and at most
ARG_ROW = 4096  # longer rows are searched faster by NumPy
TYPES = 24  # NumPy's own dtypes by number
TABLE_COLUMNS = 64 + 16 * TYPES  # a reduction's table: one word a dtype, the kernel that reduces a middle axis
TABLE = TABLE_COLUMNS + 8 * TYPES  # bytes
TABLE_KERNELS = 64  # a function's table: its Python form, then from here on two words a dtype: kernel and descr of the result
BAND = 64  # rows of a transposed copy that a program fills
ROW = 16384  # elements that a kernel of a reduction takes at once
GATHERED = 2048  # strided ones of them that are gathered at once: they stay in the first cache, and memory is never idle for long
REDUCE = 56 + OPERAND
CONSTANTS = {"BAND": BAND, "ROW": ROW, "GATHERED": GATHERED, "AXES": AXES, "OPERAND": OPERAND, "RUN_OPERANDS": RUN_OPERANDS, "RUN": RUN,
             "CHUNK": CHUNK, "PROGRAM": PROGRAM,
             "NATIVE_BYTES": NATIVE_BYTES, "TYPES": TYPES, "SHARED_BYTES": SHARED_BYTES, "ARG_ROW": ARG_ROW, "TABLE_KERNELS": TABLE_KERNELS,
             "REDUCE_SHARED": REDUCE_SHARED, "REDUCE_BYTES": REDUCE_BYTES, "HEAVY": HEAVY, "JOB_LIGHT": JOB_LIGHT,
             "THUNK_FN_AT": 8 * (THUNK_FN - THUNK_GRID), "THUNK_SHARE_AT": 8 * (THUNK_SHARE - THUNK_GRID),
             "TABLE_COLUMNS": TABLE_COLUMNS, "SHAPE": 4, "STRIDES": 4 + AXES, "FLOAT32": 11, "FLOAT64": 12}
FIELDS = {"refs": ("ld64", 0), "type": ("ld64", 8), "data": ("ld64", 16), "nd": ("ldi32", 24), "dims": ("ld64", 32),
          "strides": ("ld64", 40), "base": ("ld64", 48), "descr": ("ld64", 56), "flags": ("ld32", 64), "kind": ("ldi32", 28),
          "size": ("ld64", 40), "start": ("ld64", 0), "bytes": ("ld64", 8), "mode": ("ld64", 16), "rank": ("ld64", 24)}
# The words of the block `state`.
STATE = ("ARRAY", "FLOAT", "LONG", "NDARRAY", "NEW_ARRAY", "MODE", "SLOT", "SLICE", "TUPLE", "ELLIPSIS", "NONE", "FROM_SCALAR", "AXIS",
         "TW_RUN", "JOB", "JOB_RUN", "JOB_GRID", "SET_BASE", "SPARE", "SPARES", "WEAK", "NODE", *eager_device.STATE)
(ARRAY, FLOAT, LONG, NDARRAY, NEW_ARRAY, MODE, SLOT, SLICE, TUPLE, ELLIPSIS, NONE, FROM_SCALAR, AXIS, TW_RUN, JOB, JOB_RUN,
 JOB_GRID, SET_BASE, SPARE, SPARES, WEAK, NODE) = range(22)
KEPT = 64  # Arrays that nobody holds, for the next ones
CONSTANTS |= {"SPARES": KEPT}
CONSTANTS |= eager_device.CONSTANTS | {"S_" + name: k for k, name in enumerate(STATE)}
NUMBER_SLOTS = {"add": 0, "subtract": 8, "multiply": 16, "remainder": 24, "bitwise_and": 104, "bitwise_xor": 112, "bitwise_or": 120,
                "floor_divide": 232, "divide": 240}  # byte offsets in PyNumberMethods
IN_PLACE_SLOTS = {"add": 152, "subtract": 160, "multiply": 168, "remainder": 176, "bitwise_and": 208, "bitwise_xor": 216,
                  "bitwise_or": 224, "floor_divide": 248, "divide": 256}
UNARY_SLOTS = {"negative": 48, "abs": 64, "bitwise_invert": 80}
COMPARED = ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal")  # in the order of Py_LT ... Py_GE
BLOCKS = {"state": 64, "slots": 64}  # slots: for each operator the address of its table and the function it stands before
IN_PLACE = 24  # the first of Python's own functions of in-place operators in `slots`
SUBSCRIPT, COMPARE, FORCE, ATTRIBUTE, REFUSE, MATMUL, CASTS, PRODUCTS = 40, 42, 49, 50, 51, 52, 53, 54  # places in `slots`


def source() -> str:
    """The whole text: the functions above and one entry for each operator."""
    parts = [eager_loops.SOURCE, eager_calls.SOURCE, eager_views.SOURCE, eager_reductions.SOURCE, eager_device.SOURCE]
    for k, name in enumerate(NUMBER_SLOTS):
        parts.append(f"""
def tw_op_{name}(x, y):
    return binary(slots[{2 * k}], x, y, 0) or called(slots[{2 * k}], slots[{2 * k + 1}], [x, y], 2, 0)


def tw_in_place_{name}(x, y):
    made = in_place(slots[{2 * k}], x, y)
    if made == 0 and place_of(x) != 0:
        made = device_in_place(slots[{2 * k}], x, y)
    return made or call(slots[{IN_PLACE + k}], x, y)
""")
    for k, name in enumerate(UNARY_SLOTS, len(NUMBER_SLOTS)):
        parts.append(f"""
def tw_op_{name}(x):
    made = unary(slots[{2 * k}], x)
    if made == 0 and place_of(x) != 0:
        return other(slots[{2 * k}], [x], 1, 0)
    return made or call(slots[{2 * k + 1}], x)
""")
    return "".join(parts)


EXPORTS = (*(f"tw_{name}" for name in (
    "transpose_run", "reduce_run", "reduce_prepare", "eager_run", "eager_prepare", "eager_prepare_many", "eager_call1", "eager_call2",
    "eager_call3", "eager_call_method", "eager_call_clone", "eager_call_expand", "eager_call_flip", "eager_call_expand_dims",
    "eager_call_unfold", "eager_call_copy", "eager_call_astype", "eager_call_reduce", "eager_compare", "eager_subscript",
    "eager_matmul", "eager_getbuffer", "eager_attribute", "eager_view", "eager_transposed", "eager_dealloc", "device_learn",
    "eager_call_other", "eager_call_create", "device_assign")),
    *(f"tw_op_{name}" for name in (*NUMBER_SLOTS, *UNARY_SLOTS)), *(f"tw_in_place_{name}" for name in IN_PLACE_SLOTS), *BLOCKS)
