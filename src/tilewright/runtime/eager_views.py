"""Host code of eager functions: views. A view is a new header over the memory of another one; errors are left to the Python forms."""
from __future__ import annotations

SOURCE = '''
def int_of(x, to):
    if ld64(x + 8) != ld64(address(state) + S_LONG):
        return 0
    over = stack(8)
    st64(over, 0)
    v = PyLong_AsLongAndOverflow(x, over)
    if ld32(over) != 0:
        return 0
    st64(to, v)
    return 1


def axis_of(x, nd, to):
    if int_of(x, to) == 0:
        return 0
    k = ld64(to)
    if k < 0:
        k += nd
    st64(to, k)
    return k >= 0 and k < nd


def new_view(x, h, nd, dims, strides, data, flags):
    s = address(state)
    descr = ld64(h + 56)
    st64(descr, ld64(descr) + 1)
    made = call(ld64(s + S_NEW_ARRAY), ld64(s + S_NDARRAY), descr, nd, dims, strides, data, flags, 0)
    if made == 0:
        PyErr_Clear()
        return 0
    st64(h, ld64(h) + 1)
    if call(ld64(s + S_SET_BASE), made, h) & 4294967295:
        PyErr_Clear()
        Py_DecRef(made)
        return 0
    return wrap_beside(x, made)


def axis_given(args, nargs, names):
    if nargs == 2 and names == 0:
        return ld64(args + 8)
    if nargs == 1 and names != 0 and ld64(names + 16) == 1 and ld64(names + 24) == ld64(address(state) + S_AXIS):
        return ld64(args + 8)
    return 0


def method(name, args, nargs, names):
    x = ld64(args)
    h = header_anywhere(x)
    count = nargs
    if names != 0:
        count += ld64(names + 16)
    if h == 0 or count > 8:
        return 0
    if header_of(x) == 0 and (names != 0 or (name == ld64(address(state) + S_RESHAPE) and (ld32(h + 64) & 1) == 0)):
        return 0
    given = stack(64)
    copy(given, args, 8 * count)
    st64(given, h)
    found = PyObject_VectorcallMethod(name, given, nargs, names)
    if found == 0:
        PyErr_Clear()
        return 0
    if ld64(found + 8) != ld64(address(state) + S_NDARRAY):
        Py_DecRef(found)
        return 0
    return wrap_beside(x, found)


def tw_eager_call_method(table, args, nargs, names):
    table += 32
    if nargs > 0:
        made = method(ld64(table + 24), args, nargs, names)
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def clone(x):
    h = header_anywhere(x)
    if h == 0:
        return 0
    return new_view(x, h, ldi32(h + 24), ld64(h + 32), ld64(h + 40), ld64(h + 16), ld32(h + 64) & 1024)


def tw_eager_call_clone(table, args, nargs, names):
    table += 32
    if nargs == 1 and names == 0:
        made = clone(ld64(args))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def copied(x):
    h = header_of(x)
    if h == 0:
        return 0
    descr = ld64(h + 56)
    size = ld64(descr + 40)
    nd = ldi32(h + 24)
    n = elements(h)
    if nd > AXES or (ld32(h + 64) & 256) == 0 or n * size >= SHARED_BYTES:
        return 0
    dims = ld64(h + 32)
    out = new_header(descr, nd, dims, 0)
    if out == 0:
        return 0
    if n == 0:
        return wrap(out)
    to = ld64(out + 16)
    op = stack(512)
    mode = set_operand(op, h, nd, dims)
    if mode == 0:
        copy(to, ld64(op), n * size)
    elif mode == 1:
        fill(to, ld64(op), size, n)
    elif is_transposed(h, 8, 1):
        words = stack(64)
        st64(words, to)
        st64(words + 8, ld64(op))
        st64(words + 16, ld64(dims))
        st64(words + 24, ld64(dims + 8))
        st64(words + 32, ld64(ld64(out + 40)))
        st64(words + 40, ld64(ld64(h + 40) + 8))
        st64(words + 48, size)
        st64(words + 56, size)
        tw_transpose_run(words, 0, (ld64(dims) + BAND - 1) // BAND, 0)
    else:
        gather(to, op, 0, n)
    return wrap(out)


def tw_eager_call_copy(table, args, nargs, names):
    table += 32
    if nargs == 1 and names == 0:
        made = copied(ld64(args))
        if made != 0:
            return made
    return other(table, ld64(table), args, nargs, names)


def expanded(args, nargs):
    h = header_anywhere(ld64(args))
    if h == 0:
        return 0
    nd = ldi32(h + 24)
    first = args + 8
    n = nargs - 1
    if n == 1 and ld64(ld64(first) + 8) == ld64(address(state) + S_TUPLE):
        n = ld64(ld64(first) + 16)
        first = ld64(first) + 24
    if n > AXES or n < nd:
        return 0
    dims = stack(128)
    strides = stack(128)
    i = 0
    while i < n:
        if int_of(ld64(first + 8 * i), dims + 8 * i) == 0:
            return 0
        size = ld64(dims + 8 * i)
        k = i - (n - nd)
        step = 0
        if size < 0:
            return 0
        if k >= 0:
            if ld64(ld64(h + 32) + 8 * k) == size:
                step = ld64(ld64(h + 40) + 8 * k)
            elif ld64(ld64(h + 32) + 8 * k) != 1:
                return 0
        st64(strides + 8 * i, step)
        i += 1
    return new_view(ld64(args), h, n, dims, strides, ld64(h + 16), 0)


def tw_eager_call_expand(table, args, nargs, names):
    table += 32
    if nargs > 1 and nargs <= ld64(table + 24) and names == 0:
        made = expanded(args, nargs)
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def flipped(x, axis):
    h = header_anywhere(x)
    if h == 0:
        return 0
    nd = ldi32(h + 24)
    at = stack(8)
    st64(at, -1)
    if nd > AXES or (axis != 0 and axis_of(axis, nd, at) == 0):
        return 0
    strides = stack(128)
    data = ld64(h + 16)
    i = 0
    while i < nd:
        step = ld64(ld64(h + 40) + 8 * i)
        size = ld64(ld64(h + 32) + 8 * i)
        if axis == 0 or i == ld64(at):
            if size > 0:
                data += step * (size - 1)
            step = 0 - step
        st64(strides + 8 * i, step)
        i += 1
    return new_view(x, h, nd, ld64(h + 32), strides, data, ld32(h + 64) & 1024)


def tw_eager_call_flip(table, args, nargs, names):
    table += 32
    if nargs > 0:
        axis = axis_given(args, nargs, names)
        if axis != 0 or (nargs == 1 and names == 0):
            made = flipped(ld64(args), axis)
            if made != 0:
                return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def with_axis(x, axis):
    h = header_anywhere(x)
    at = stack(8)
    st64(at, 0)
    if h == 0:
        return 0
    nd = ldi32(h + 24)
    if nd >= AXES or (axis != 0 and axis_of(axis, nd + 1, at) == 0):
        return 0
    dims = stack(128)
    strides = stack(128)
    k = ld64(at)
    copy(dims, ld64(h + 32), 8 * k)
    copy(strides, ld64(h + 40), 8 * k)
    st64(dims + 8 * k, 1)
    st64(strides + 8 * k, 0)
    copy(dims + 8 * k + 8, ld64(h + 32) + 8 * k, 8 * (nd - k))
    copy(strides + 8 * k + 8, ld64(h + 40) + 8 * k, 8 * (nd - k))
    return new_view(x, h, nd + 1, dims, strides, ld64(h + 16), ld32(h + 64) & 1024)


def tw_eager_call_expand_dims(table, args, nargs, names):
    table += 32
    if nargs > 0:
        axis = axis_given(args, nargs, names)
        if axis != 0 or (nargs == 1 and names == 0):
            made = with_axis(ld64(args), axis)
            if made != 0:
                return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def windows(args, nargs):
    h = header_anywhere(ld64(args))
    if h == 0:
        return 0
    nd = ldi32(h + 24)
    words = stack(64)
    st64(words + 16, 1)
    if nd >= AXES or axis_of(ld64(args + 8), nd, words) == 0 or int_of(ld64(args + 16), words + 8) == 0:
        return 0
    if nargs == 4 and int_of(ld64(args + 24), words + 16) == 0:
        return 0
    k = ld64(words)
    size = ld64(words + 8)
    step = ld64(words + 16)
    n = ld64(ld64(h + 32) + 8 * k)
    if size < 1 or size > n or step < 1 or step > n:
        return 0
    dims = stack(128)
    strides = stack(128)
    copy(dims, ld64(h + 32), 8 * nd)
    copy(strides, ld64(h + 40), 8 * nd)
    st64(dims + 8 * nd, size)
    st64(strides + 8 * nd, ld64(strides + 8 * k))
    st64(dims + 8 * k, (n - size) // step + 1)
    st64(strides + 8 * k, ld64(strides + 8 * k) * step)
    return new_view(ld64(args), h, nd + 1, dims, strides, ld64(h + 16), 0)


def tw_eager_call_unfold(table, args, nargs, names):
    table += 32
    if (nargs == 3 or nargs == 4) and names == 0:
        made = windows(args, nargs)
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def python_attribute(x, name):
    args = stack(16)
    st64(args, x)
    st64(args + 8, name)
    return PyObject_Vectorcall(ld64(address(slots) + 8 * 50), args, 2, 0)


def tw_eager_attribute(x, name):
    s = address(state)
    h = header_of(x)
    if h == 0 and place_of(x) != 0 and name != ld64(s + S_DEVICE):
        h = ld64(place_of(x) + ld64(s + S_P_HEADER))
    if h == 0:
        return python_attribute(x, name)
    return PyObject_GetAttr(h, name)


def tw_eager_view(x, name):
    h = header_anywhere(x)
    if h == 0:
        return python_attribute(x, name)
    found = PyObject_GetAttr(h, name)
    if found == 0:
        PyErr_Clear()
        return python_attribute(x, name)
    return wrap_beside(x, found)


def tw_eager_transposed(x, name):
    h = header_anywhere(x)
    nd = 0
    if h != 0:
        nd = ldi32(h + 24)
    if nd < 2 or nd > AXES:
        return tw_eager_view(x, name)
    dims = stack(128)
    strides = stack(128)
    i = 0
    while i < nd:
        st64(dims + 8 * i, ld64(ld64(h + 32) + 8 * (nd - 1 - i)))
        st64(strides + 8 * i, ld64(ld64(h + 40) + 8 * (nd - 1 - i)))
        i += 1
    made = new_view(x, h, nd, dims, strides, ld64(h + 16), ld32(h + 64) & 1024)
    if made == 0:
        return tw_eager_view(x, name)
    return made
'''
