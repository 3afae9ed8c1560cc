"""Host code of eager functions, last part: calls with Arrays on a GPU. A call that was made before with operands that lie alike (and the
same numbers and options) has a plan: which memory it makes and which kernels it launches. The interpreter is not entered.

A call's key is the function's table, the names of its keywords, and a word for each argument: of an Array on a GPU its interned layout, of
a number its value, of anything else its identity (the plan keeps it). `known` is a table of keys and plans, a few for each hash. A
plan holds, in words: its keys as below, launches, buffers (the last is the result; a write has none), the layout of the result, its name.
Work goes to the current stream; operands of other streams, and everything else that is not known, are for Python, which enters plans
(`tw_device_learn`). Views are new headers, as on the CPU.
"""
from __future__ import annotations

ARGUMENTS = 6  # arguments of a call, at most
PLACES, WAYS = 1 << 12, 4  # places of `known`, ways of a hash
KEY = 8 * (4 + ARGUMENTS)  # bytes: table, names, arguments given by position, their kinds, a word each
ENTRY = KEY + 16  # and the plan
BUFFERS, WORDS = 8, 96  # buffers of a plan and words of a launch, at most
# Words of a plan: constants of number arguments, launches and buffers as addresses of rows and their counts.
PLAN = ("CONSTANTS", "LAUNCHES", "LAUNCHED", "ROOMS", "ROOM_COUNT", "RESULT", "FREE", "NAME", "ANY")  # ANY: on all streams
LAUNCH = ("FUNCTION", "CONFIG", "WORDS_AT", "WORD_COUNT", "MOVED", "MOVED_COUNT", "FAULTS")  # a row; MOVED: rows of word, array, base
ROOM = ("KEPT", "SIZE")  # fields of a row: the list of free addresses, and the size as an object
STATE = ("PLACED", "P_KEY", "P_ADDRESS", "P_STREAM", "P_HOME", "P_KEEP", "P_HEADER", "STORAGE", "STORED_OWN", "TRUE",
         "BLOCK", "B_ADDRESS", "B_STREAM", "B_FREE", "B_KEPT",
         "ZERO", "CURRENT", "STREAMS", "MISSED", "KNOWN", "START", "MORE", "LESS", "KEYED", "NOTED",
         "CREATED", "CHOSEN", "BEGUN", "HEADED", "WRITE", "WRITTEN", "RESHAPE", "DEVICE")
CONSTANTS = {"ARGUMENTS": ARGUMENTS, "PLACES": PLACES, "WAYS": WAYS, "KEY_BYTES": KEY, "ENTRY_BYTES": ENTRY, "CONFIG_BYTES": 56,
             "CONFIG_STREAM": 32,
             "LAUNCH_BYTES": 8 * len(LAUNCH), "ROOM_BYTES": 8 * len(ROOM), "BUFFER_BYTES": 8 * BUFFERS, "WORD_BYTES": 8 * WORDS}
CONSTANTS |= {f"{prefix}{name}": k for prefix, names in (("D_", PLAN), ("L_", LAUNCH), ("R_", ROOM)) for k, name in enumerate(names)}

SOURCE = '''
def place_of(x):
    if state[S_PLACED] == 0 or x.type != state[S_ARRAY]:
        return 0
    node = ld64(x + state[S_NODE])
    if node == 0 or node.type != state[S_PLACED]:
        return 0
    return node


def told(function, args, count):  # whether a function of Python, whose result is nobody's, has run
    done = PyObject_Vectorcall(function, args, count, 0)
    if done == 0:
        PyErr_Clear()
        return 0
    Py_DecRef(done)
    return 1


def refer(owner, field, object):  # a field of a new object
    Py_IncRef(object)
    st64(owner + field, object)


def header_there(x):  # the header of an Array on a GPU, through which nothing may be read
    node = place_of(x)
    if node == 0:
        return 0
    h = ld64(node + state[S_P_HEADER])
    if h == 0:
        if not told(state[S_HEADED], [node], 1):
            return 0
        h = ld64(node + state[S_P_HEADER])
    return h


def header_anywhere(x):
    return header_of(x) or header_there(x)


def wrap_there(stream, h):  # an Array of the header of a view, whose reference it takes
    node = PyType_GenericAlloc(state[S_PLACED], 0)
    if node == 0:
        PyErr_Clear()
        Py_DecRef(h)
        return 0
    st64(node + state[S_P_HEADER], h)
    refer(node, state[S_P_STREAM], stream)
    made = PyType_GenericAlloc(state[S_ARRAY], 0)
    if made == 0:
        PyErr_Clear()
        Py_DecRef(node)
        return 0
    st64(made + state[S_NODE], node)
    return made


def wrap_beside(x, h):
    if header_of(x) != 0:
        return wrap(h)
    return wrap_there(ld64(place_of(x) + state[S_P_STREAM]), h)


def is_operand(x):
    t = x.type
    return place_of(x) != 0 or t == state[S_FLOAT] or t == state[S_LONG]


def given_count(nargs, names):
    return nargs + (names[2] if names != 0 else 0)


def on_device(args, count):
    for i in range(count):
        if place_of(args[i]) != 0:
            return 1
    return 0


def device_key(key, table, args, nargs, names):  # whether the call has one
    count = given_count(nargs, names)
    if count > ARGUMENTS:
        return 0
    copy(key, [table, names, nargs], 24)
    kinds = count
    for i in range(ARGUMENTS):
        word = 0
        kind = 0
        if i < count:
            x = args[i]
            t = x.type
            node = place_of(x)
            word = x
            if node != 0:
                kind = 1
                word = ld64(node + state[S_P_KEY])
                if word == 0:
                    if not told(state[S_KEYED], [node], 1):
                        return 0
                    word = ld64(node + state[S_P_KEY])
            elif t == state[S_FLOAT]:
                kind = 2
                word = x[2]
            elif t == state[S_LONG]:
                kind = 3
                over = [0]
                word = PyLong_AsLongAndOverflow(x, over)
                if ld32(over) != 0:
                    return 0
        kinds = kinds * 4 + kind
        key[4 + i] = word
    key[3] = kinds
    return 1


def device_entry(key):
    h = 0
    for i in range(0, KEY_BYTES, 8):
        h = (h ^ ld64(key + i)) * 1099511628211
        h = h ^ ((h >> 29) & 34359738367)
    return state[S_KNOWN] + ENTRY_BYTES * (h & (PLACES - WAYS))


def tw_device_learn(table, args, nargs, names, plan):
    key = stack(256)
    if device_key(key, table, args, nargs, names) == 0:
        return 0
    entry = device_entry(key)
    i = 0
    while i < WAYS - 1 and entry[0] != 0 and not same_key(entry, key):
        entry += ENTRY_BYTES
        i += 1
    copy(entry, key, KEY_BYTES)
    st64(entry + KEY_BYTES, plan)
    return 1


def same_key(entry, key):
    for i in range(0, KEY_BYTES, 8):
        if ld64(entry + i) != ld64(key + i):
            return 0
    return 1


def device_plan(key):
    entry = device_entry(key)
    for i in range(WAYS):
        if same_key(entry, key):
            return ld64(entry + KEY_BYTES)
        entry += ENTRY_BYTES
    return 0


def number_of(object):
    return PyLong_AsLongAndOverflow(object, [0])


def device_stream(plan):  # the current one, as an object; 0 where the plan is not for it
    zero = state[S_ZERO]
    stream = PyObject_Vectorcall(state[S_CHOSEN] if state[S_STREAMS] != 0 else state[S_CURRENT], [zero], 1, 0)
    if stream == 0:
        PyErr_Clear()
        return 0
    if stream != zero and (plan[D_ANY] == 0 or number_of(stream) < 1):
        Py_DecRef(stream)
        return 0
    return stream


def same_stream(a, b):
    return a == b or number_of(a) == number_of(b)


def addressed(plan, args, count, at, stream):  # the addresses of operands; whether the stream may use all of them at once
    for i in range(count):
        node = place_of(args[i])
        if node == 0:
            at[i] = plan[D_CONSTANTS][i]
        else:
            if not same_stream(ld64(node + state[S_P_STREAM]), stream) or not same_stream(ld64(node + state[S_P_HOME]), stream):
                return 0
            at[i] = number_of(ld64(node + state[S_P_ADDRESS]))
    return 1


def given_back(plan, objects, count, stream):
    for j in range(count):
        if stream == state[S_ZERO]:
            PyList_Append((plan[D_ROOMS] + ROOM_BYTES * j)[R_KEPT], objects[j])
        else:
            told(state[S_LESS], [objects[j], stream], 2)
        Py_DecRef(objects[j])
    return 0


def allocated_rooms(plan, objects, at, stream):  # memory for every buffer; whether there was enough
    for j in range(plan[D_ROOM_COUNT]):
        row = plan[D_ROOMS] + ROOM_BYTES * j
        kept = row[R_KEPT]
        left = kept[2]
        if left > 0 and stream == state[S_ZERO]:
            item = kept[3][left - 1]
            kept[2] = left - 1
        else:
            item = PyObject_Vectorcall(state[S_MORE], [row[R_SIZE], stream], 2, 0)
            if item == 0:
                PyErr_Clear()
                return given_back(plan, objects, j, stream)
        objects[j] = item
        at[j] = number_of(item)
    return 1


def device_launch(row, at, start, config, values, pointers, stream):
    copy(config, row[L_CONFIG], CONFIG_BYTES)
    st64(config + CONFIG_STREAM, stream)
    n = row[L_WORD_COUNT]
    copy(values, row[L_WORDS_AT], 8 * n)
    for i in range(n):
        pointers[i] = values + 8 * i
    moved = row[L_MOVED]
    for move in range(moved, moved + 24 * row[L_MOVED_COUNT], 24):
        values[move[0]] = move[2] + at[move[1]]
    return call(start, config, row[L_FUNCTION], pointers, 0) & 4294967295


def device_faults(plan):  # whether a kernel has found an error, which Python raises
    first = plan[D_LAUNCHES]
    for row in range(first, first + LAUNCH_BYTES * plan[D_LAUNCHED], LAUNCH_BYTES):
        if row[L_FAULTS] != 0 and load64_volatile(row[L_FAULTS]) != 0:
            return 1
    return 0


def device_result(plan, object, kept, stream):
    block = PyType_GenericAlloc(state[S_BLOCK], 0)
    if block == 0:
        return 0
    st64(block + state[S_B_ADDRESS], object)
    refer(block, state[S_B_STREAM], stream)
    refer(block, state[S_B_FREE], plan[D_FREE])
    if stream == state[S_ZERO]:
            refer(block, state[S_B_KEPT], kept)
    node = PyType_GenericAlloc(state[S_PLACED], 0)
    if node == 0:
        Py_DecRef(block)
        return 0
    st64(node + state[S_P_KEEP], block)
    refer(node, state[S_P_KEY], plan[D_RESULT])
    refer(node, state[S_P_ADDRESS], object)
    refer(node, state[S_P_STREAM], stream)
    refer(node, state[S_P_HOME], stream)
    made = PyType_GenericAlloc(state[S_ARRAY], 0)
    if made == 0:
        Py_DecRef(node)
        return 0
    st64(made + state[S_NODE], node)
    return made


def device_started(plan, at, stream):  # whether all launches were
    config = stack(CONFIG_BYTES)
    values = stack(WORD_BYTES)
    pointers = stack(WORD_BYTES)
    start = state[S_START]
    number = number_of(stream)
    failed = 0
    first = plan[D_LAUNCHES]
    thread = PyEval_SaveThread()
    for row in range(first, first + LAUNCH_BYTES * plan[D_LAUNCHED], LAUNCH_BYTES):
        failed = failed or device_launch(row, at, start, config, values, pointers, number)
    PyEval_RestoreThread(thread)
    if failed != 0:
        return 0
    if stream == state[S_ZERO]:
        told(state[S_NOTED], [plan[D_NAME]], 1)
    else:
        told(state[S_BEGUN], [plan[D_NAME], stream], 2)
    return 1


def device_run(plan, args, count):
    stream = device_stream(plan)
    if stream == 0:
        return 0
    made = device_run_on(plan, args, count, stream)
    Py_DecRef(stream)
    return made


def device_run_on(plan, args, count, stream):
    at = stack(256)
    objects = stack(BUFFER_BYTES)
    if device_faults(plan) or not addressed(plan, args, count, at, stream):
        return 0
    if not allocated_rooms(plan, objects, at + 8 * count, stream):
        return 0
    n = plan[D_ROOM_COUNT]
    if not device_started(plan, at, stream):
        return given_back(plan, objects, n, stream)
    given_back(plan, objects, n - 1, stream)
    return device_result(plan, objects[n - 1], (plan[D_ROOMS] + ROOM_BYTES * (n - 1))[R_KEPT], stream)


def is_alone(x):  # whether nobody else holds the memory of an Array on a GPU
    node = place_of(x)
    if node.refs != 1:
        return 0
    keep = ld64(node + state[S_P_KEEP])
    if keep != 0:
        return keep.refs == 1
    h = ld64(node + state[S_P_HEADER])
    if h == 0 or h.refs != 1 or (h.flags & 1024) == 0:
        return 0
    storage = h.base
    if storage == 0 or storage.type != state[S_STORAGE] or storage.refs != 1:
        return 0
    return ld64(storage + state[S_STORED_OWN]) == state[S_TRUE]


def write_words(args, x, key, value):  # the operands of `x[key] = value` as a call's: of a slice its parts
    if key.type == state[S_SLICE]:
        copy(args, [x, key[2], key[3], key[4], value], 40)
        return 5
    copy(args, [x, key, value], 24)
    return 3


def tw_device_assign(x, key, value):
    t = key.type
    known = t == state[S_LONG] or t == state[S_SLICE] or t == state[S_ELLIPSIS]
    if value == 0 or not known or place_of(x) == 0 or state[S_KNOWN] == 0 or state[S_MODE] != 0 or not is_operand(value):
        return call(state[S_WRITE], x, key, value)
    args = stack(64)
    more = stack(256)
    count = write_words(args, x, key, value)
    if device_key(more, state[S_WRITTEN], args, count, 0):
        plan = device_plan(more)
        if plan == 0:
            done = PyObject_Vectorcall(state[S_WRITTEN], [x, key, value], 3, 0)
            if done == 0:
                return -1
            Py_DecRef(done)
            return 0
        if is_alone(x):
            stream = device_stream(plan)
            if stream != 0:
                at = stack(256)
                done = device_started(plan, at, stream) if not device_faults(plan) and addressed(plan, args, count, at, stream) else 0
                Py_DecRef(stream)
                if done != 0:
                    return 0
    return call(state[S_WRITE], x, key, value)


def device_in_place(table, x, y):  # x takes the result of the operator, where that has a plan and lies as x does
    if state[S_KNOWN] == 0 or state[S_MODE] != 0:
        return 0
    key = stack(256)
    args = [x, y]
    if not device_key(key, table, args, 2, 0):
        return 0
    plan = device_plan(key)
    node = place_of(x)
    if plan == 0 or plan[D_RESULT] != ld64(node + state[S_P_KEY]):
        return 0
    made = device_run(plan, args, 2)
    if made == 0:
        return 0
    at = state[S_NODE]
    node = ld64(x + at)
    st64(x + at, ld64(made + at))
    st64(made + at, node)
    Py_DecRef(made)
    x.refs += 1
    return x


def other(table, args, nargs, names):  # a call that no kernel of the CPU serves
    return called(table, table[0], args, nargs, names)


def called(table, form, args, nargs, names):
    if state[S_KNOWN] == 0 or state[S_MODE] != 0 or not on_device(args, given_count(nargs, names)):
        return PyObject_Vectorcall(form, args, nargs, names)
    return planned(table, form, args, nargs, names)


def planned(table, form, args, nargs, names):
    count = given_count(nargs, names)
    key = stack(256)
    if not device_key(key, table, args, nargs, names):
        return PyObject_Vectorcall(form, args, nargs, names)
    plan = device_plan(key)
    if plan != 0:
        return device_run(plan, args, count) or PyObject_Vectorcall(form, args, nargs, names)
    return missed(state[S_MISSED], table, form, args, count, names)


def missed(python, table, form, args, count, names):
    more = stack(128)
    word = PyLong_FromLong(table)
    if word == 0:
        return 0
    copy(more, [word, form, names or state[S_ZERO]], 24)
    copy(more + 24, args, 8 * count)
    made = PyObject_Vectorcall(python, more, 3 + count, 0)
    Py_DecRef(word)
    return made


def tw_eager_call_other(table, args, nargs, names):
    return other(table + 32, args, nargs, names)


def tw_eager_call_create(table, args, nargs, names):  # `zeros(shape, device="cuda")`: a shape counts by its sizes
    table += 32
    form = table[0]
    there = 0
    count = given_count(nargs, names)
    for i in range(nargs, count):
        if names[3 + i - nargs] == state[S_DEVICE]:
            there = state[S_KNOWN]
    if there == 0 or nargs < 1:
        return PyObject_Vectorcall(form, args, nargs, names)
    shape = args[0]
    n = 1
    sizes = args
    if shape.type == state[S_TUPLE]:
        n = shape[2]
        sizes = shape + 24
    if n < 1 or n + count > ARGUMENTS + 1:
        return PyObject_Vectorcall(form, args, nargs, names)
    flat = stack(256)
    copy(flat, sizes, 8 * n)
    copy(flat + 8 * n, args + 8, 8 * (count - 1))
    for i in range(n):
        if flat[i].type != state[S_LONG]:
            return PyObject_Vectorcall(form, args, nargs, names)
    key = stack(256)
    if not device_key(key, table, flat, nargs - 1 + n, names):
        return PyObject_Vectorcall(form, args, nargs, names)
    plan = device_plan(key)
    if plan == 0:
        return missed(state[S_CREATED], table, form, args, count, names)
    return device_run(plan, flat, n + count - 1) or PyObject_Vectorcall(form, args, nargs, names)
'''
