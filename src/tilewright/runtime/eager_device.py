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
CONSTANTS |= {f"{prefix}{name}": 8 * k for prefix, names in (("D_", PLAN), ("L_", LAUNCH), ("R_", ROOM)) for k, name in enumerate(names)}

SOURCE = '''
def place_of(x):
    s = address(state)
    if ld64(s + S_PLACED) == 0 or ld64(x + 8) != ld64(s + S_ARRAY):
        return 0
    node = ld64(x + ld64(s + S_NODE))
    if node == 0 or ld64(node + 8) != ld64(s + S_PLACED):
        return 0
    return node


def header_there(x):  # the header of an Array on a GPU, through which nothing may be read
    s = address(state)
    node = place_of(x)
    if node == 0:
        return 0
    h = ld64(node + ld64(s + S_P_HEADER))
    if h == 0:
        one = stack(8)
        st64(one, node)
        done = PyObject_Vectorcall(ld64(s + S_HEADED), one, 1, 0)
        if done == 0:
            PyErr_Clear()
            return 0
        Py_DecRef(done)
        h = ld64(node + ld64(s + S_P_HEADER))
    return h


def header_anywhere(x):
    h = header_of(x)
    if h == 0:
        return header_there(x)
    return h


def wrap_there(stream, h):  # an Array of the header of a view, whose reference it takes
    s = address(state)
    node = PyType_GenericAlloc(ld64(s + S_PLACED), 0)
    if node == 0:
        PyErr_Clear()
        Py_DecRef(h)
        return 0
    st64(node + ld64(s + S_P_HEADER), h)
    Py_IncRef(stream)
    st64(node + ld64(s + S_P_STREAM), stream)
    made = PyType_GenericAlloc(ld64(s + S_ARRAY), 0)
    if made == 0:
        PyErr_Clear()
        Py_DecRef(node)
        return 0
    st64(made + ld64(s + S_NODE), node)
    return made


def wrap_beside(x, h):
    if header_of(x) != 0:
        return wrap(h)
    return wrap_there(ld64(place_of(x) + ld64(address(state) + S_P_STREAM)), h)


def is_operand(x):
    t = ld64(x + 8)
    s = address(state)
    return place_of(x) != 0 or t == ld64(s + S_FLOAT) or t == ld64(s + S_LONG)


def given_count(nargs, names):
    if names != 0:
        return nargs + ld64(names + 16)
    return nargs


def on_device(args, count):
    i = 0
    while i < count:
        if place_of(ld64(args + 8 * i)) != 0:
            return 1
        i += 1
    return 0


def device_key(key, table, args, nargs, names):  # whether the call has one
    s = address(state)
    count = given_count(nargs, names)
    if count > ARGUMENTS:
        return 0
    st64(key, table)
    st64(key + 8, names)
    st64(key + 16, nargs)
    kinds = count
    over = stack(8)
    i = 0
    while i < ARGUMENTS:
        word = 0
        kind = 0
        if i < count:
            x = ld64(args + 8 * i)
            t = ld64(x + 8)
            node = place_of(x)
            word = x
            if node != 0:
                kind = 1
                word = ld64(node + ld64(s + S_P_KEY))
                if word == 0:
                    st64(over, node)
                    done = PyObject_Vectorcall(ld64(s + S_KEYED), over, 1, 0)
                    if done == 0:
                        PyErr_Clear()
                        return 0
                    Py_DecRef(done)
                    word = ld64(node + ld64(s + S_P_KEY))
            elif t == ld64(s + S_FLOAT):
                kind = 2
                word = ld64(x + 16)
            elif t == ld64(s + S_LONG):
                kind = 3
                st64(over, 0)
                word = PyLong_AsLongAndOverflow(x, over)
                if ld32(over) != 0:
                    return 0
        kinds = kinds * 4 + kind
        st64(key + 32 + 8 * i, word)
        i += 1
    st64(key + 24, kinds)
    return 1


def device_entry(key):
    h = 0
    i = 0
    while i < KEY_BYTES:
        h = (h ^ ld64(key + i)) * 1099511628211
        h = h ^ ((h >> 29) & 34359738367)
        i += 8
    return ld64(address(state) + S_KNOWN) + ENTRY_BYTES * (h & (PLACES - WAYS))


def tw_device_learn(table, args, nargs, names, plan):
    key = stack(256)
    if device_key(key, table, args, nargs, names) == 0:
        return 0
    entry = device_entry(key)
    i = 0
    while i < WAYS - 1 and ld64(entry) != 0 and not same_key(entry, key):
        entry += ENTRY_BYTES
        i += 1
    copy(entry, key, KEY_BYTES)
    st64(entry + KEY_BYTES, plan)
    return 1


def same_key(entry, key):
    i = 0
    while i < KEY_BYTES:
        if ld64(entry + i) != ld64(key + i):
            return 0
        i += 8
    return 1


def device_plan(key):
    entry = device_entry(key)
    i = 0
    while i < WAYS:
        if same_key(entry, key):
            return ld64(entry + KEY_BYTES)
        entry += ENTRY_BYTES
        i += 1
    return 0


def number_of(object):
    over = stack(8)
    st64(over, 0)
    return PyLong_AsLongAndOverflow(object, over)


def device_stream(plan):  # the current one, as an object; 0 where the plan is not for it
    s = address(state)
    zero = ld64(s + S_ZERO)
    chosen = ld64(s + S_CURRENT)
    if ld64(s + S_STREAMS) != 0:
        chosen = ld64(s + S_CHOSEN)
    one = stack(8)
    st64(one, zero)
    stream = PyObject_Vectorcall(chosen, one, 1, 0)
    if stream == 0:
        PyErr_Clear()
        return 0
    if stream != zero and (ld64(plan + D_ANY) == 0 or number_of(stream) < 1):
        Py_DecRef(stream)
        return 0
    return stream


def same_stream(a, b):
    return a == b or number_of(a) == number_of(b)


def addressed(plan, args, count, at, stream):  # the addresses of operands; whether the stream may use all of them at once
    s = address(state)
    i = 0
    while i < count:
        node = place_of(ld64(args + 8 * i))
        if node == 0:
            st64(at + 8 * i, ld64(ld64(plan + D_CONSTANTS) + 8 * i))
        else:
            if not same_stream(ld64(node + ld64(s + S_P_STREAM)), stream) or not same_stream(ld64(node + ld64(s + S_P_HOME)), stream):
                return 0
            st64(at + 8 * i, number_of(ld64(node + ld64(s + S_P_ADDRESS))))
        i += 1
    return 1


def given_back(plan, objects, count, stream):
    s = address(state)
    two = stack(16)
    j = 0
    while j < count:
        if stream == ld64(s + S_ZERO):
            PyList_Append(ld64(ld64(plan + D_ROOMS) + ROOM_BYTES * j + R_KEPT), ld64(objects + 8 * j))
        else:
            st64(two, ld64(objects + 8 * j))
            st64(two + 8, stream)
            done = PyObject_Vectorcall(ld64(s + S_LESS), two, 2, 0)
            if done == 0:
                PyErr_Clear()
            else:
                Py_DecRef(done)
        Py_DecRef(ld64(objects + 8 * j))
        j += 1
    return 0


def allocated_rooms(plan, objects, at, stream):  # memory for every buffer; whether there was enough
    s = address(state)
    two = stack(16)
    n = ld64(plan + D_ROOM_COUNT)
    j = 0
    while j < n:
        row = ld64(plan + D_ROOMS) + ROOM_BYTES * j
        kept = ld64(row + R_KEPT)
        left = ld64(kept + 16)
        if left > 0 and stream == ld64(s + S_ZERO):
            item = ld64(ld64(kept + 24) + 8 * (left - 1))
            st64(kept + 16, left - 1)
        else:
            st64(two, ld64(row + R_SIZE))
            st64(two + 8, stream)
            item = PyObject_Vectorcall(ld64(s + S_MORE), two, 2, 0)
            if item == 0:
                PyErr_Clear()
                return given_back(plan, objects, j, stream)
        st64(objects + 8 * j, item)
        st64(at + 8 * j, number_of(item))
        j += 1
    return 1


def device_launch(row, at, start, config, values, pointers, stream):
    copy(config, ld64(row + L_CONFIG), CONFIG_BYTES)
    st64(config + CONFIG_STREAM, stream)
    n = ld64(row + L_WORD_COUNT)
    copy(values, ld64(row + L_WORDS_AT), 8 * n)
    i = 0
    while i < n:
        st64(pointers + 8 * i, values + 8 * i)
        i += 1
    moved = ld64(row + L_MOVED)
    end = moved + 24 * ld64(row + L_MOVED_COUNT)
    while moved < end:
        st64(values + 8 * ld64(moved), ld64(moved + 16) + ld64(at + 8 * ld64(moved + 8)))
        moved += 24
    return call(start, config, ld64(row + L_FUNCTION), pointers, 0) & 4294967295


def device_faults(plan):  # whether a kernel has found an error, which Python raises
    row = ld64(plan + D_LAUNCHES)
    end = row + LAUNCH_BYTES * ld64(plan + D_LAUNCHED)
    while row < end:
        faults = ld64(row + L_FAULTS)
        if faults != 0 and load64_volatile(faults) != 0:
            return 1
        row += LAUNCH_BYTES
    return 0


def device_result(plan, object, kept, stream):
    s = address(state)
    block = PyType_GenericAlloc(ld64(s + S_BLOCK), 0)
    if block == 0:
        return 0
    st64(block + ld64(s + S_B_ADDRESS), object)
    Py_IncRef(stream)
    st64(block + ld64(s + S_B_STREAM), stream)
    Py_IncRef(ld64(plan + D_FREE))
    st64(block + ld64(s + S_B_FREE), ld64(plan + D_FREE))
    if stream == ld64(s + S_ZERO):
        Py_IncRef(kept)
        st64(block + ld64(s + S_B_KEPT), kept)
    node = PyType_GenericAlloc(ld64(s + S_PLACED), 0)
    if node == 0:
        Py_DecRef(block)
        return 0
    st64(node + ld64(s + S_P_KEEP), block)
    Py_IncRef(ld64(plan + D_RESULT))
    st64(node + ld64(s + S_P_KEY), ld64(plan + D_RESULT))
    Py_IncRef(object)
    st64(node + ld64(s + S_P_ADDRESS), object)
    Py_IncRef(stream)
    st64(node + ld64(s + S_P_STREAM), stream)
    Py_IncRef(stream)
    st64(node + ld64(s + S_P_HOME), stream)
    made = PyType_GenericAlloc(ld64(s + S_ARRAY), 0)
    if made == 0:
        Py_DecRef(node)
        return 0
    st64(made + ld64(s + S_NODE), node)
    return made


def device_started(plan, at, stream):  # whether all launches were
    s = address(state)
    config = stack(CONFIG_BYTES)
    values = stack(WORD_BYTES)
    pointers = stack(WORD_BYTES)
    start = ld64(s + S_START)
    number = number_of(stream)
    failed = 0
    row = ld64(plan + D_LAUNCHES)
    end = row + LAUNCH_BYTES * ld64(plan + D_LAUNCHED)
    thread = PyEval_SaveThread()
    while row < end and failed == 0:
        failed = device_launch(row, at, start, config, values, pointers, number)
        row += LAUNCH_BYTES
    PyEval_RestoreThread(thread)
    if failed != 0:
        return 0
    two = stack(16)
    st64(two, ld64(plan + D_NAME))
    st64(two + 8, stream)
    if stream == ld64(s + S_ZERO):
        done = PyObject_Vectorcall(ld64(s + S_NOTED), two, 1, 0)
    else:
        done = PyObject_Vectorcall(ld64(s + S_BEGUN), two, 2, 0)
    if done == 0:
        PyErr_Clear()
    else:
        Py_DecRef(done)
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
    n = ld64(plan + D_ROOM_COUNT)
    if not device_started(plan, at, stream):
        return given_back(plan, objects, n, stream)
    given_back(plan, objects, n - 1, stream)
    return device_result(plan, ld64(objects + 8 * (n - 1)), ld64(ld64(plan + D_ROOMS) + ROOM_BYTES * (n - 1) + R_KEPT), stream)


def is_alone(x):  # whether nobody else holds the memory of an Array on a GPU
    s = address(state)
    node = place_of(x)
    if ld64(node) != 1:
        return 0
    keep = ld64(node + ld64(s + S_P_KEEP))
    if keep != 0:
        return ld64(keep) == 1
    h = ld64(node + ld64(s + S_P_HEADER))
    if h == 0 or ld64(h) != 1 or (ld32(h + 64) & 1024) == 0:
        return 0
    storage = ld64(h + 48)
    if storage == 0 or ld64(storage + 8) != ld64(s + S_STORAGE) or ld64(storage) != 1:
        return 0
    return ld64(storage + ld64(s + S_STORED_OWN)) == ld64(s + S_TRUE)


def write_words(args, x, key, value):  # the operands of `x[key] = value` as a call's: of a slice its parts
    s = address(state)
    st64(args, x)
    if ld64(key + 8) == ld64(s + S_SLICE):
        copy(args + 8, key + 16, 24)
        st64(args + 32, value)
        return 5
    st64(args + 8, key)
    st64(args + 16, value)
    return 3


def tw_device_assign(x, key, value):
    s = address(state)
    t = ld64(key + 8)
    known = t == ld64(s + S_LONG) or t == ld64(s + S_SLICE) or t == ld64(s + S_ELLIPSIS)
    if value == 0 or not known or place_of(x) == 0 or ld64(s + S_KNOWN) == 0 or ld64(s + S_MODE) != 0 or not is_operand(value):
        return call(ld64(s + S_WRITE), x, key, value)
    args = stack(64)
    more = stack(256)
    count = write_words(args, x, key, value)
    if device_key(more, ld64(s + S_WRITTEN), args, count, 0):
        plan = device_plan(more)
        if plan == 0:
            st64(args, x)
            st64(args + 8, key)
            st64(args + 16, value)
            done = PyObject_Vectorcall(ld64(s + S_WRITTEN), args, 3, 0)
            if done == 0:
                return 0 - 1
            Py_DecRef(done)
            return 0
        if is_alone(x):
            stream = device_stream(plan)
            if stream != 0:
                at = stack(256)
                done = 0
                if not device_faults(plan) and addressed(plan, args, count, at, stream):
                    done = device_started(plan, at, stream)
                Py_DecRef(stream)
                if done != 0:
                    return 0
    return call(ld64(s + S_WRITE), x, key, value)


def device_in_place(table, x, y):  # x takes the result of the operator, where that has a plan and lies as x does
    s = address(state)
    if ld64(s + S_KNOWN) == 0 or ld64(s + S_MODE) != 0:
        return 0
    key = stack(256)
    args = stack(16)
    st64(args, x)
    st64(args + 8, y)
    if not device_key(key, table, args, 2, 0):
        return 0
    plan = device_plan(key)
    node = place_of(x)
    if plan == 0 or ld64(plan + D_RESULT) != ld64(node + ld64(s + S_P_KEY)):
        return 0
    made = device_run(plan, args, 2)
    if made == 0:
        return 0
    at = ld64(s + S_NODE)
    node = ld64(x + at)
    st64(x + at, ld64(made + at))
    st64(made + at, node)
    Py_DecRef(made)
    st64(x, ld64(x) + 1)
    return x


def other(table, form, args, nargs, names):  # a call that no kernel of the CPU serves
    s = address(state)
    count = given_count(nargs, names)
    if ld64(s + S_KNOWN) == 0 or ld64(s + S_MODE) != 0 or not on_device(args, count):
        return PyObject_Vectorcall(form, args, nargs, names)
    return planned(table, form, args, nargs, names)


def planned(table, form, args, nargs, names):
    s = address(state)
    count = given_count(nargs, names)
    key = stack(256)
    if not device_key(key, table, args, nargs, names):
        return PyObject_Vectorcall(form, args, nargs, names)
    plan = device_plan(key)
    if plan != 0:
        made = device_run(plan, args, count)
        if made != 0:
            return made
        return PyObject_Vectorcall(form, args, nargs, names)
    return missed(ld64(s + S_MISSED), table, form, args, count, names)


def missed(python, table, form, args, count, names):
    more = stack(128)
    word = PyLong_FromLong(table)
    if word == 0:
        return 0
    st64(more, word)
    st64(more + 8, form)
    st64(more + 16, names)
    if names == 0:
        st64(more + 16, ld64(address(state) + S_ZERO))
    copy(more + 24, args, 8 * count)
    made = PyObject_Vectorcall(python, more, 3 + count, 0)
    Py_DecRef(word)
    return made


def tw_eager_call_other(table, args, nargs, names):
    table += 32
    return other(table, ld64(table), args, nargs, names)


def tw_eager_call_create(table, args, nargs, names):  # `zeros(shape, device="cuda")`: a shape counts by its sizes
    table += 32
    s = address(state)
    form = ld64(table)
    there = 0
    count = given_count(nargs, names)
    i = nargs
    while i < count:
        if ld64(names + 24 + 8 * (i - nargs)) == ld64(s + S_DEVICE):
            there = ld64(s + S_KNOWN)
        i += 1
    if there == 0 or nargs < 1:
        return PyObject_Vectorcall(form, args, nargs, names)
    shape = ld64(args)
    n = 1
    sizes = args
    if ld64(shape + 8) == ld64(s + S_TUPLE):
        n = ld64(shape + 16)
        sizes = shape + 24
    if n < 1 or n + count > ARGUMENTS + 1:
        return PyObject_Vectorcall(form, args, nargs, names)
    flat = stack(256)
    copy(flat, sizes, 8 * n)
    copy(flat + 8 * n, args + 8, 8 * (count - 1))
    i = 0
    while i < n:
        if ld64(ld64(flat + 8 * i) + 8) != ld64(s + S_LONG):
            return PyObject_Vectorcall(form, args, nargs, names)
        i += 1
    key = stack(256)
    if not device_key(key, table, flat, nargs - 1 + n, names):
        return PyObject_Vectorcall(form, args, nargs, names)
    plan = device_plan(key)
    if plan == 0:
        return missed(ld64(s + S_CREATED), table, form, args, count, names)
    made = device_run(plan, flat, n + count - 1)
    if made != 0:
        return made
    return PyObject_Vectorcall(form, args, nargs, names)
'''
