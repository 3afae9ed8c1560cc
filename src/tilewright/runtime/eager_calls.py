"""Host code of eager functions, second part: what Python calls. Operands are looked at, results are allocated, and the kernel that a
function's table names for the dtype runs; 0 from a helper means that the Python form of the function has to do it."""
from __future__ import annotations

SOURCE = '''
def new_header(descr, nd, dims, flags):
    descr.refs += 1
    made = call(state[S_NEW_ARRAY], state[S_NDARRAY], descr, nd, dims, 0, 0, flags, 0)
    if made == 0:
        PyErr_Clear()
    return made


def wrap(h):
    made = state[S_SPARE]
    if made != 0:
        state[S_SPARE] = ld64(made + state[S_SLOT])
        state[S_SPARES] -= 1
        made[0] = 1
    else:
        made = PyType_GenericAlloc(state[S_ARRAY], 0)
        if made == 0:
            PyErr_Clear()
            Py_DecRef(h)
            return 0
    st64(made + state[S_SLOT], h)
    return made


def tw_eager_dealloc(x):  # some Arrays that nobody holds are kept for `wrap`, linked by their slots
    PyObject_GC_UnTrack(x)
    if ld64(x + state[S_WEAK]) != 0:
        PyObject_ClearWeakRefs(x)
    h = ld64(x + state[S_SLOT])
    node = ld64(x + state[S_NODE])
    kind = x.type
    st64(x + state[S_NODE], 0)
    if kind == state[S_ARRAY] and state[S_SPARES] < SPARES:
        st64(x + state[S_SLOT], state[S_SPARE])
        state[S_SPARE] = x
        state[S_SPARES] += 1
    else:
        st64(x + state[S_SLOT], 0)
        PyObject_GC_Del(x)
        Py_DecRef(kind)
    if h != 0:
        Py_DecRef(h)
    if node != 0:
        Py_DecRef(node)
    return 0


def header_of(x):
    return ld64(x + state[S_SLOT]) if x.type == state[S_ARRAY] else 0


def start(run, grid, nbytes):
    if nbytes < SHARED_BYTES:
        return tw_eager_run(run, 0, grid, 0)
    st64(state[S_JOB_GRID], grid)
    return call(state[S_TW_RUN], state[S_JOB])


def memory_of(run, nbytes):
    return run if nbytes < SHARED_BYTES else state[S_JOB_RUN]


def served(h):  # whether kernels read what lies there
    return h.descr.kind >= 0 and h.descr.kind < TYPES and h.nd <= AXES and h.flags & 256


def too_large(nbytes):  # for the host code alone, and where nobody shares the work
    return nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and state[S_JOB] == 0)


def computed(fn, nin, a, b, out, n, nbytes):
    if n > 0:
        run = memory_of(stack(1024), nbytes)
        start(run, tw_eager_prepare(run, fn, nin, a, b, 0, out), nbytes)
    return wrap(out)


def number(x, kind, to):  # a number of Python as an element of a dtype: those from 1 to 8 are integers, the odd ones signed
    t = x.type
    if t == state[S_FLOAT] and kind == FLOAT32:
        to[0] = f32_of_f64(x[2])
    elif t == state[S_FLOAT] and kind == FLOAT64:
        to[0] = x[2]
    elif t != state[S_LONG] or int_of(x, to) == 0:
        return 0
    elif kind == FLOAT32:
        to[0] = f32_of_int(to[0])
    elif kind == FLOAT64:
        to[0] = f64_of_int(to[0])
    elif kind < 1 or kind > 8:
        return 0
    else:
        above = to[0] >> ((8 << ((kind - 1) >> 1)) - 1)
        if kind & 1:
            return above == 0 or above == -1
        return to[0] >= 0 and above <= 1
    return 1


def elements(h):
    n = 1
    for i in range(h.nd):
        n *= h.dims[i]
    return n


def same_shape(a, b):
    if a.nd != b.nd:
        return 0
    for i in range(a.nd):
        if a.dims[i] != b.dims[i]:
            return 0
    return 1


def unary(table, x):
    h = header_of(x)
    if h == 0 or state[S_MODE] != 0 or not served(h):
        return 0
    entry = table + TABLE_KERNELS + 16 * h.descr.kind
    fn = entry[0]
    if fn == 0:
        return 0
    n = elements(h)
    nbytes = n * max(h.descr.size, entry[1].size)
    if too_large(nbytes):
        return 0
    order = 2 if h.flags & 3 == 2 else 0
    out = new_header(entry[1], h.nd, h.dims, order)
    if out == 0:
        return 0
    if n > 0:
        if h.flags & 3 and nbytes < SHARED_BYTES:
            call(fn, [h.data, out.data, n], 0, (n + PROGRAM - 1) // PROGRAM, 0)
        else:
            run = memory_of(stack(1024), nbytes)
            grid = tw_eager_prepare(run, fn, 1, h, 0, 0, out)
            if order:
                (run + RUN_OPERANDS).mode = 0
            start(run, grid, nbytes)
    return wrap(out)


def result_header(into, descr, nd, dims, order):
    if into == 0 or order != 0 or into.descr != descr or into.nd != nd:
        return new_header(descr, nd, dims, order)
    for i in range(nd):
        if into.dims[i] != dims[i]:
            return new_header(descr, nd, dims, order)
    into.refs += 1
    return into


def binary(table, x, y, into):
    if state[S_MODE] != 0:
        return 0
    a = header_of(x)
    b = header_of(y)
    h = a or b
    if h == 0 or not served(h):
        return 0
    kind = h.descr.kind
    entry = table + TABLE_KERNELS + 16 * kind
    fn = entry[0]
    rdescr = entry[1]
    size = h.descr.size
    if fn == 0 or rdescr.size > size:
        return 0
    if a == 0 or b == 0:
        return with_number(fn, h, x if a == 0 else y, a == 0, rdescr, into)
    if b.descr.kind != kind or b.flags & 256 == 0:
        return 0
    if same_shape(a, b):
        n = elements(a)
        nbytes = n * size
        if is_transposed(a, 16, 4096) != is_transposed(b, 16, 4096) or too_large(nbytes):
            return 0
        both = a.flags & b.flags & 3
        order = 2 if both == 2 else 0
        out = result_header(into, rdescr, a.nd, a.dims, order)
        if out == 0:
            return 0
        if n > 0:
            if both and nbytes < SHARED_BYTES:
                call(fn, [a.data, b.data, out.data, n], 0, (n + PROGRAM - 1) // PROGRAM, 0)
            else:
                run = memory_of(stack(1024), nbytes)
                grid = tw_eager_prepare(run, fn, 2, a, b, 0, out)
                if order:
                    (run + RUN_OPERANDS).mode = 0
                    (run + RUN_OPERANDS + OPERAND).mode = 0
                start(run, grid, nbytes)
        return wrap(out)
    nd = max(a.nd, b.nd)
    if nd > AXES:
        return 0
    shape = stack(128)
    n = 1
    for i in range(nd):
        da = a.dims[i - (nd - a.nd)] if i >= nd - a.nd else 1
        db = b.dims[i - (nd - b.nd)] if i >= nd - b.nd else 1
        if da != db:
            if da == 1:
                da = db
            elif db != 1:
                return 0
        shape[i] = da
        n *= da
    if too_large(n * size):
        return 0
    out = result_header(into, rdescr, nd, shape, 0)
    return out and computed(fn, 2, a, b, out, n, n * size)


def with_number(fn, h, other, first, rdescr, into):  # a kernel of an Array and a number, which may be the first operand
    value = stack(8)
    if number(other, h.descr.kind, value) == 0:
        return 0
    n = elements(h)
    size = h.descr.size
    if too_large(n * size):
        return 0
    out = result_header(into, rdescr, h.nd, h.dims, 2 if h.flags & 3 == 2 else 0)
    if out == 0:
        return 0
    if n > 0:
        run = memory_of(stack(1024), n * size)
        copy(run, [fn, n, 2, out.data, rdescr.size], 40)
        array = run + RUN_OPERANDS + OPERAND * first
        copy(run + RUN_OPERANDS + OPERAND * (1 - first), [value, size, 1], 24)
        if h.flags & 3:
            copy(array, [h.data, size, 0], 24)
        else:
            set_operand(array, h, h.nd, h.dims)
        start(run, (n + PROGRAM - 1) // PROGRAM, n * size)
    return wrap(out)


def in_place(table, x, y):
    h = header_of(x)
    if h == 0 or elements(h) * h.descr.size >= SHARED_BYTES:
        return 0
    into = h if h.refs == 1 and h.base == 0 and (h.flags & 1029) == 1029 else 0
    made = binary(table, x, y, into)
    if made == 0:
        return 0
    at = state[S_SLOT]
    new = ld64(made + at)
    if new.descr != h.descr or not same_shape(new, h):
        Py_DecRef(made)
        return 0
    st64(x + at, new)
    st64(made + at, h)
    Py_DecRef(made)
    x.refs += 1
    return x


def tw_eager_call1(table, args, nargs, names):
    return names == 0 and nargs == 1 and unary(table + 32, args[0]) or other(table + 32, args, nargs, names)


def tw_eager_call2(table, args, nargs, names):
    return names == 0 and nargs == 2 and binary(table + 32, args[0], args[1], 0) or other(table + 32, args, nargs, names)


def choice(table, c, x, y):
    hc = header_of(c)
    a = header_of(x)
    b = header_of(y)
    h = a or b
    if hc == 0 or h == 0 or state[S_MODE] != 0 or not served(h) or hc.descr.kind != 0:
        return 0
    kind = h.descr.kind
    value = stack(8)
    if a == 0 or b == 0:
        if number(x if a == 0 else y, kind, value) == 0:
            return 0
        a = h
        b = h
    elif b.descr.kind != kind:
        return 0
    entry = table + TABLE_KERNELS + 16 * kind
    if entry[0] == 0 or not same_shape(a, b) or not same_shape(h, hc) or a.flags & b.flags & hc.flags & 256 == 0:
        return 0
    n = elements(h)
    nbytes = n * h.descr.size
    if too_large(nbytes):
        return 0
    out = new_header(entry[1], h.nd, h.dims, 0)
    if out == 0:
        return 0
    if n > 0:
        run = memory_of(stack(1024), nbytes)
        grid = tw_eager_prepare(run, entry[0], 3, hc, a, b, out)
        if header_of(x) == 0 or header_of(y) == 0:
            one = run + RUN_OPERANDS + (OPERAND if header_of(x) == 0 else 2 * OPERAND)
            one.start = value
            one.mode = 1
        start(run, grid, nbytes)
    return wrap(out)


def tw_eager_call3(table, args, nargs, names):
    return names == 0 and nargs == 3 and choice(table + 32, args[0], args[1], args[2]) or other(table + 32, args, nargs, names)


def tw_eager_call_astype(table, args, nargs, names):
    return names == 0 and nargs == 2 and cast(args[0], args[1]) or other(table + 32, args, nargs, names)


def cast(x, dtype):
    h = header_of(x)
    if h == 0 or state[S_MODE] != 0 or not served(h):
        return 0
    casts = slots[53] + 16 * TYPES * h.descr.kind
    for i in range(TYPES):
        if casts[2 * i + 1] == dtype:
            n = elements(h)
            nbytes = n * max(h.descr.size, dtype.size)
            if casts[2 * i] == 0 or too_large(nbytes):
                return 0
            out = new_header(dtype, h.nd, h.dims, 0)
            return out and computed(casts[2 * i], 1, h, 0, out, n, nbytes)
    return 0


def tw_eager_compare(x, y, op):
    table = slots[42 + (op & 7)]
    made = binary(table, x, y, 0)
    if made != 0:
        return made
    if (place_of(x) != 0 and is_operand(y)) or (place_of(y) != 0 and is_operand(x)):
        return other(table, [x, y], 2, 0)
    return call(slots[48], x, y, op)


def tw_eager_matmul(x, y):
    a = header_of(x)
    b = header_of(y)
    if a != 0 and b != 0:
        kind = a.descr.kind
        if kind == b.descr.kind and kind >= 11 and kind <= 15:
            found = PyNumber_MatrixMultiply(a, b)
            if found != 0 and found.type == state[S_NDARRAY]:
                return wrap(found)
            if found == 0:
                PyErr_Clear()
            else:
                Py_DecRef(found)
    return called(slots[54], slots[52], [x, y], 2, 0)


def is_basic(key):  # whether a part of a key makes a view
    return key.type == state[S_LONG] or key.type == state[S_SLICE] or key.type == state[S_ELLIPSIS] or key.type == state[S_NONE]


def tw_eager_subscript(x, key):
    h = header_anywhere(x)
    basic = h != 0
    taken = 0  # axes, by integers
    parts = key + 24
    for i in range(key[2] if key.type == state[S_TUPLE] else 1):
        part = parts[i] if key.type == state[S_TUPLE] else key
        basic = basic and is_basic(part)
        taken += part.type == state[S_LONG]
    if not basic or (header_of(x) == 0 and taken >= h.nd):  # an element on a GPU, which nobody may read
        return PyObject_Vectorcall(slots[40], [x, key], 2, 0)
    found = PyObject_GetItem(h, key)
    if found == 0:  # the method says which index of which Array it was
        PyErr_Clear()
        return PyObject_Vectorcall(slots[40], [x, key], 2, 0)
    if found.type != state[S_NDARRAY]:
        array = call(state[S_FROM_SCALAR], found, 0)
        Py_DecRef(found)
        if array == 0:
            return 0
        found = array
    return wrap_beside(x, found)


def forced(x):
    h = header_of(x)
    if h != 0:
        return h
    done = PyObject_Vectorcall(slots[49], [x], 1, 0)
    if done == 0:
        return 0
    Py_DecRef(done)
    return header_of(x)


def tw_eager_getbuffer(x, view, flags):
    view[1] = 0
    h = forced(x)
    if h == 0:
        return -1
    if flags & 1 or flags == 0:
        PyObject_Vectorcall(slots[51], [x], 1, 0)
        return -1
    if PyObject_GetBuffer(h, view, flags) & 4294967295:
        return -1
    st32(view + 32, 1)
    return 0
'''
