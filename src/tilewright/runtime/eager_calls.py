"""Host code of eager functions, second part: what Python calls. Operands are looked at, results are allocated, and the kernel that a
function's table names for the dtype runs; 0 from a helper means that the Python form of the function has to do it."""
from __future__ import annotations

SOURCE = '''
def new_header(descr, nd, dims, flags):
    st64(descr, ld64(descr) + 1)
    s = address(state)
    made = call(ld64(s + S_NEW_ARRAY), ld64(s + S_NDARRAY), descr, nd, dims, 0, 0, flags, 0)
    if made == 0:
        PyErr_Clear()
    return made


def wrap(h):
    s = address(state)
    made = ld64(s + S_SPARE)
    if made != 0:
        st64(s + S_SPARE, ld64(made + ld64(s + S_SLOT)))
        st64(s + S_SPARES, ld64(s + S_SPARES) - 1)
        st64(made, 1)
    else:
        made = PyType_GenericAlloc(ld64(s + S_ARRAY), 0)
        if made == 0:
            PyErr_Clear()
            Py_DecRef(h)
            return 0
    st64(made + ld64(s + S_SLOT), h)
    return made


def tw_eager_dealloc(x):  # some Arrays that nobody holds are kept for `wrap`, linked by their slots
    s = address(state)
    PyObject_GC_UnTrack(x)
    if ld64(x + ld64(s + S_WEAK)) != 0:
        PyObject_ClearWeakRefs(x)
    h = ld64(x + ld64(s + S_SLOT))
    node = ld64(x + ld64(s + S_NODE))
    kind = ld64(x + 8)
    st64(x + ld64(s + S_NODE), 0)
    if kind == ld64(s + S_ARRAY) and ld64(s + S_SPARES) < SPARES:
        st64(x + ld64(s + S_SLOT), ld64(s + S_SPARE))
        st64(s + S_SPARE, x)
        st64(s + S_SPARES, ld64(s + S_SPARES) + 1)
    else:
        st64(x + ld64(s + S_SLOT), 0)
        PyObject_GC_Del(x)
        Py_DecRef(kind)
    if h != 0:
        Py_DecRef(h)
    if node != 0:
        Py_DecRef(node)
    return 0


def header_of(x):
    s = address(state)
    if ld64(x + 8) != ld64(s + S_ARRAY):
        return 0
    return ld64(x + ld64(s + S_SLOT))


def start(run, grid, nbytes):
    if nbytes < SHARED_BYTES:
        return tw_eager_run(run, 0, grid, 0)
    s = address(state)
    st64(ld64(s + S_JOB_GRID), grid)
    return call(ld64(s + S_TW_RUN), ld64(s + S_JOB))


def memory_of(run, nbytes):
    if nbytes < SHARED_BYTES:
        return run
    return ld64(address(state) + S_JOB_RUN)


def number(x, kind, to):
    s = address(state)
    t = ld64(x + 8)
    if t == ld64(s + S_FLOAT):
        if kind == 11:
            st64(to, f32_of_f64(ld64(x + 16)))
            return 1
        if kind == 12:
            st64(to, ld64(x + 16))
            return 1
        return 0
    if t != ld64(s + S_LONG):
        return 0
    over = stack(8)
    st64(over, 0)
    v = PyLong_AsLongAndOverflow(x, over)
    if ld32(over) != 0:
        return 0
    if kind == 11:
        st64(to, f32_of_int(v))
    elif kind == 12:
        st64(to, f64_of_int(v))
    elif kind == 7:
        st64(to, v)
    elif kind == 5 and v >= -2147483648 and v <= 2147483647:
        st64(to, v)
    elif kind == 3 and v >= -32768 and v <= 32767:
        st64(to, v)
    elif kind == 1 and v >= -128 and v <= 127:
        st64(to, v)
    elif kind == 2 and v >= 0 and v <= 255:
        st64(to, v)
    elif kind == 4 and v >= 0 and v <= 65535:
        st64(to, v)
    elif kind == 6 and v >= 0 and v <= 4294967295:
        st64(to, v)
    elif kind == 8 and v >= 0:
        st64(to, v)
    else:
        return 0
    return 1


def elements(h):
    nd = ldi32(h + 24)
    dims = ld64(h + 32)
    n = 1
    i = 0
    while i < nd:
        n *= ld64(dims + 8 * i)
        i += 1
    return n


def same_shape(a, b):
    nd = ldi32(a + 24)
    if nd != ldi32(b + 24):
        return 0
    da = ld64(a + 32)
    db = ld64(b + 32)
    i = 0
    while i < nd:
        if ld64(da + 8 * i) != ld64(db + 8 * i):
            return 0
        i += 1
    return 1


def unary(table, x):
    s = address(state)
    h = header_of(x)
    if h == 0 or ld64(s + S_MODE) != 0:
        return 0
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    if kind < 0 or kind >= TYPES:
        return 0
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    nd = ldi32(h + 24)
    flags = ld32(h + 64)
    if fn == 0 or nd > AXES or (flags & 256) == 0:
        return 0
    rdescr = ld64(table + TABLE_KERNELS + 16 * kind + 8)
    n = elements(h)
    osize = ld64(rdescr + 40)
    nbytes = n * ld64(descr + 40)
    if n * osize > nbytes:
        nbytes = n * osize
    if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
        return 0
    dims = ld64(h + 32)
    order = 0
    if (flags & 3) == 2:
        order = 2
    out = new_header(rdescr, nd, dims, order)
    if out == 0:
        return 0
    if n > 0:
        if flags & 3 and nbytes < SHARED_BYTES:
            kargs = stack(32)
            st64(kargs, ld64(h + 16))
            st64(kargs + 8, ld64(out + 16))
            st64(kargs + 16, n)
            call(fn, kargs, 0, (n + PROGRAM - 1) // PROGRAM, 0)
        else:
            run = memory_of(stack(1024), nbytes)
            grid = tw_eager_prepare(run, fn, 1, h, 0, 0, out)
            if order:
                st64(run + RUN_OPERANDS + 16, 0)
            start(run, grid, nbytes)
    return wrap(out)


def result_header(into, descr, nd, dims, order):
    if into == 0 or order != 0 or ld64(into + 56) != descr or ldi32(into + 24) != nd:
        return new_header(descr, nd, dims, order)
    i = 0
    while i < nd:
        if ld64(ld64(into + 32) + 8 * i) != ld64(dims + 8 * i):
            return new_header(descr, nd, dims, order)
        i += 1
    st64(into, ld64(into) + 1)
    return into


def binary(table, x, y, into):
    s = address(state)
    if ld64(s + S_MODE) != 0:
        return 0
    a = header_of(x)
    b = header_of(y)
    h = a
    if a == 0:
        if b == 0:
            return 0
        h = b
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    if kind < 0 or kind >= TYPES:
        return 0
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    nd = ldi32(h + 24)
    fh = ld32(h + 64)
    if fn == 0 or nd > AXES or (fh & 256) == 0:
        return 0
    rdescr = ld64(table + TABLE_KERNELS + 16 * kind + 8)
    size = ld64(descr + 40)
    if ld64(rdescr + 40) > size:
        return 0
    run = stack(1024)
    if a == 0 or b == 0:
        value = stack(8)
        other = y
        if a == 0:
            other = x
        if number(other, kind, value) == 0:
            return 0
        n = elements(h)
        nbytes = n * size
        if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
            return 0
        run = memory_of(run, nbytes)
        order = 0
        if (fh & 3) == 2:
            order = 2
        dims = ld64(h + 32)
        out = result_header(into, rdescr, nd, dims, order)
        if out == 0:
            return 0
        if n > 0:
            st64(run, fn)
            st64(run + 8, n)
            st64(run + 16, 2)
            st64(run + 24, ld64(out + 16))
            st64(run + 32, ld64(rdescr + 40))
            ha = run + RUN_OPERANDS
            hn = ha + OPERAND
            if a == 0:
                hn = ha
                ha = ha + OPERAND
            st64(hn, value)
            st64(hn + 8, size)
            st64(hn + 16, 1)
            if fh & 3:
                st64(ha, ld64(h + 16))
                st64(ha + 8, size)
                st64(ha + 16, 0)
            else:
                set_operand(ha, h, nd, dims)
            start(run, (n + PROGRAM - 1) // PROGRAM, nbytes)
        return wrap(out)
    fb = ld32(b + 64)
    if ldi32(ld64(b + 56) + 28) != kind or (fb & 256) == 0:
        return 0
    if same_shape(a, b):
        n = elements(a)
        nbytes = n * size
        if is_transposed(a, 16, 4096) != is_transposed(b, 16, 4096):
            return 0
        if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
            return 0
        run = memory_of(run, nbytes)
        both = fh & fb & 3
        order = 0
        if both == 2:
            order = 2
        out = result_header(into, rdescr, nd, ld64(a + 32), order)
        if out == 0:
            return 0
        if n > 0:
            if both and nbytes < SHARED_BYTES:
                kargs = stack(32)
                st64(kargs, ld64(a + 16))
                st64(kargs + 8, ld64(b + 16))
                st64(kargs + 16, ld64(out + 16))
                st64(kargs + 24, n)
                call(fn, kargs, 0, (n + PROGRAM - 1) // PROGRAM, 0)
            else:
                grid = tw_eager_prepare(run, fn, 2, a, b, 0, out)
                if order:
                    st64(run + RUN_OPERANDS + 16, 0)
                    st64(run + RUN_OPERANDS + OPERAND + 16, 0)
                start(run, grid, nbytes)
        return wrap(out)
    nb = ldi32(b + 24)
    na = nd
    if nb > nd:
        nd = nb
    if nd > AXES:
        return 0
    shape = stack(128)
    n = 1
    i = 0
    while i < nd:
        da = 1
        db = 1
        if i - (nd - na) >= 0:
            da = ld64(ld64(a + 32) + 8 * (i - (nd - na)))
        if i - (nd - nb) >= 0:
            db = ld64(ld64(b + 32) + 8 * (i - (nd - nb)))
        if da != db:
            if da == 1:
                da = db
            elif db != 1:
                return 0
        st64(shape + 8 * i, da)
        n *= da
        i += 1
    nbytes = n * size
    if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
        return 0
    run = memory_of(run, nbytes)
    out = result_header(into, rdescr, nd, shape, 0)
    if out == 0:
        return 0
    if n > 0:
        grid = tw_eager_prepare(run, fn, 2, a, b, 0, out)
        start(run, grid, nbytes)
    return wrap(out)


def in_place(table, x, y):
    h = header_of(x)
    if h == 0 or elements(h) * ld64(ld64(h + 56) + 40) >= SHARED_BYTES:
        return 0
    into = 0
    if ld64(h) == 1 and ld64(h + 48) == 0 and (ld32(h + 64) & 1029) == 1029:
        into = h
    made = binary(table, x, y, into)
    if made == 0:
        return 0
    at = ld64(address(state) + S_SLOT)
    new = ld64(made + at)
    if ld64(new + 56) != ld64(h + 56) or not same_shape(new, h):
        Py_DecRef(made)
        return 0
    st64(x + at, new)
    st64(made + at, h)
    Py_DecRef(made)
    st64(x, ld64(x) + 1)
    return x


def tw_eager_call1(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 1:
        made = unary(table, ld64(args))
        if made != 0:
            return made
    return other(table, ld64(table), args, nargs, names)


def tw_eager_call2(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 2:
        made = binary(table, ld64(args), ld64(args + 8), 0)
        if made != 0:
            return made
    return other(table, ld64(table), args, nargs, names)


def choice(table, c, x, y):
    s = address(state)
    hc = header_of(c)
    a = header_of(x)
    b = header_of(y)
    h = a
    if a == 0:
        h = b
    if hc == 0 or h == 0 or ld64(s + S_MODE) != 0:
        return 0
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    if kind < 0 or kind >= TYPES or ldi32(ld64(hc + 56) + 28) != 0:
        return 0
    value = stack(8)
    if a == 0:
        if number(x, kind, value) == 0:
            return 0
        a = h
    elif b == 0:
        if number(y, kind, value) == 0:
            return 0
        b = h
    elif ldi32(ld64(b + 56) + 28) != kind:
        return 0
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    nd = ldi32(h + 24)
    if fn == 0 or nd > AXES or not same_shape(a, b) or not same_shape(h, hc):
        return 0
    if (ld32(a + 64) & ld32(b + 64) & ld32(hc + 64) & 256) == 0:
        return 0
    n = elements(h)
    nbytes = n * ld64(descr + 40)
    if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
        return 0
    out = new_header(ld64(table + TABLE_KERNELS + 16 * kind + 8), nd, ld64(h + 32), 0)
    if out == 0:
        return 0
    if n > 0:
        run = memory_of(stack(1024), nbytes)
        grid = tw_eager_prepare(run, fn, 3, hc, a, b, out)
        one = 0
        if header_of(x) == 0:
            one = run + RUN_OPERANDS + OPERAND
        elif header_of(y) == 0:
            one = run + RUN_OPERANDS + 2 * OPERAND
        if one != 0:
            st64(one, value)
            st64(one + 16, 1)
        start(run, grid, nbytes)
    return wrap(out)


def tw_eager_call3(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 3:
        made = choice(table, ld64(args), ld64(args + 8), ld64(args + 16))
        if made != 0:
            return made
    return other(table, ld64(table), args, nargs, names)


def tw_eager_call_astype(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 2:
        made = cast(table, ld64(args), ld64(args + 8))
        if made != 0:
            return made
    return other(table, ld64(table), args, nargs, names)


def cast(table, x, dtype):
    s = address(state)
    h = header_of(x)
    if h == 0 or ld64(s + S_MODE) != 0:
        return 0
    kind = ldi32(ld64(h + 56) + 28)
    if kind < 0 or kind >= TYPES:
        return 0
    base = ld64(address(slots) + 8 * 53) + 16 * TYPES * kind
    i = 0
    while i < TYPES:
        if ld64(base + 16 * i + 8) == dtype:
            return convert(h, ld64(base + 16 * i), dtype)
        i += 1
    return 0


def convert(h, fn, rdescr):
    s = address(state)
    nd = ldi32(h + 24)
    flags = ld32(h + 64)
    if fn == 0 or nd > AXES or (flags & 256) == 0:
        return 0
    n = elements(h)
    nbytes = n * ld64(ld64(h + 56) + 40)
    if n * ld64(rdescr + 40) > nbytes:
        nbytes = n * ld64(rdescr + 40)
    if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
        return 0
    out = new_header(rdescr, nd, ld64(h + 32), 0)
    if out == 0:
        return 0
    if n > 0:
        run = memory_of(stack(1024), nbytes)
        grid = tw_eager_prepare(run, fn, 1, h, 0, 0, out)
        start(run, grid, nbytes)
    return wrap(out)


def tw_eager_compare(x, y, op):
    entry = address(slots) + 8 * (42 + (op & 7))
    made = binary(ld64(entry), x, y, 0)
    if made != 0:
        return made
    if (place_of(x) != 0 and is_operand(y)) or (place_of(y) != 0 and is_operand(x)):
        args = stack(16)
        st64(args, x)
        st64(args + 8, y)
        table = ld64(entry)
        return other(table, ld64(table), args, 2, 0)
    return call(ld64(address(slots) + 8 * 48), x, y, op)


def tw_eager_matmul(x, y):
    a = header_of(x)
    b = header_of(y)
    if a != 0 and b != 0:
        kind = ldi32(ld64(a + 56) + 28)
        if kind == ldi32(ld64(b + 56) + 28) and kind >= 11 and kind <= 15:
            found = PyNumber_MatrixMultiply(a, b)
            if found != 0 and ld64(found + 8) == ld64(address(state) + S_NDARRAY):
                return wrap(found)
            if found == 0:
                PyErr_Clear()
            else:
                Py_DecRef(found)
    args = stack(16)
    st64(args, x)
    st64(args + 8, y)
    return other(ld64(address(slots) + 8 * 54), ld64(address(slots) + 8 * 52), args, 2, 0)


def tw_eager_subscript(x, key):
    s = address(state)
    h = header_anywhere(x)
    t = ld64(key + 8)
    ok = 0
    taken = 0  # axes, by integers
    if h != 0:
        if t == ld64(s + S_LONG) or t == ld64(s + S_SLICE) or t == ld64(s + S_ELLIPSIS) or t == ld64(s + S_NONE):
            ok = 1
            taken = t == ld64(s + S_LONG)
        elif t == ld64(s + S_TUPLE):
            n = ld64(key + 16)
            ok = 1
            i = 0
            while i < n:
                t = ld64(ld64(key + 24 + 8 * i) + 8)
                if t != ld64(s + S_LONG) and t != ld64(s + S_SLICE) and t != ld64(s + S_ELLIPSIS) and t != ld64(s + S_NONE):
                    ok = 0
                if t == ld64(s + S_LONG):
                    taken += 1
                i += 1
        if header_of(x) == 0 and taken >= ldi32(h + 24):  # an element, which nobody may read
            ok = 0
    if ok == 0:
        args = stack(16)
        st64(args, x)
        st64(args + 8, key)
        return PyObject_Vectorcall(ld64(address(slots) + 8 * 40), args, 2, 0)
    found = PyObject_GetItem(h, key)
    if found == 0:
        return 0
    if ld64(found + 8) != ld64(s + S_NDARRAY):
        array = call(ld64(s + S_FROM_SCALAR), found, 0)
        Py_DecRef(found)
        if array == 0:
            return 0
        found = array
    return wrap_beside(x, found)


def forced(x):
    h = header_of(x)
    if h != 0:
        return h
    args = stack(8)
    st64(args, x)
    done = PyObject_Vectorcall(ld64(address(slots) + 8 * 49), args, 1, 0)
    if done == 0:
        return 0
    Py_DecRef(done)
    return header_of(x)


def tw_eager_getbuffer(x, view, flags):
    st64(view + 8, 0)
    h = forced(x)
    if h == 0:
        return -1
    if flags & 1 or flags == 0:
        args = stack(8)
        st64(args, x)
        PyObject_Vectorcall(ld64(address(slots) + 8 * 51), args, 1, 0)
        return -1
    if PyObject_GetBuffer(h, view, flags) & 4294967295:
        return -1
    st32(view + 32, 1)
    return 0
'''
