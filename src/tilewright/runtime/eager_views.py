"""Host code of eager functions: views. A view is a new header over the memory of another one; errors are left to the Python forms."""
from __future__ import annotations

SOURCE = '''
def int_of(x, to):
    if x.type != state[S_LONG]:
        return 0
    over = [0]
    v = PyLong_AsLongAndOverflow(x, over)
    if ld32(over) != 0:
        return 0
    to[0] = v
    return 1


def axis_of(x, nd, to):
    if int_of(x, to) == 0:
        return 0
    if to[0] < 0:
        to[0] += nd
    return to[0] >= 0 and to[0] < nd


def new_view(x, h, nd, dims, strides, data, flags):
    descr = h.descr
    descr.refs += 1
    made = call(state[S_NEW_ARRAY], state[S_NDARRAY], descr, nd, dims, strides, data, flags, 0)
    if made == 0:
        PyErr_Clear()
        return 0
    h.refs += 1
    if call(state[S_SET_BASE], made, h) & 4294967295:
        PyErr_Clear()
        Py_DecRef(made)
        return 0
    return wrap_beside(x, made)


def axis_given(args, nargs, names):  # 0 for none, -1 for arguments of another kind
    if nargs == 1 and names == 0:
        return 0
    keyword = nargs == 1 and names != 0 and names[2] == 1 and names[3] == state[S_AXIS]
    return args[1] if keyword or (nargs == 2 and names == 0) else -1


def method(name, args, nargs, names):
    x = args[0]
    h = header_anywhere(x)
    count = nargs
    if names != 0:
        count += names[2]
    if h == 0 or count > 8:
        return 0
    if header_of(x) == 0 and (names != 0 or (name == state[S_RESHAPE] and (h.flags & 1) == 0)):
        return 0
    given = stack(64)
    copy(given, args, 8 * count)
    given[0] = h
    found = PyObject_VectorcallMethod(name, given, nargs, names)
    if found == 0:
        PyErr_Clear()
        return 0
    if found.type != state[S_NDARRAY]:
        Py_DecRef(found)
        return 0
    return wrap_beside(x, found)


def python_form(table, args, nargs, names):
    return PyObject_Vectorcall(table[4], args, nargs, names)


def tw_eager_call_method(table, args, nargs, names):
    return nargs > 0 and method(table[7], args, nargs, names) or python_form(table, args, nargs, names)


def clone(x):
    h = header_anywhere(x)
    return h and new_view(x, h, h.nd, h.dims, h.strides, h.data, h.flags & 1024)


def tw_eager_call_clone(table, args, nargs, names):
    return nargs == 1 and names == 0 and clone(args[0]) or python_form(table, args, nargs, names)


def copied(x):
    h = header_of(x)
    if h == 0:
        return 0
    descr = h.descr
    size = descr.size
    nd = h.nd
    n = elements(h)
    if nd > AXES or (h.flags & 256) == 0 or n * size >= SHARED_BYTES:
        return 0
    dims = h.dims
    out = new_header(descr, nd, dims, 0)
    if out == 0:
        return 0
    if n == 0:
        return wrap(out)
    to = out.data
    op = stack(512)
    mode = set_operand(op, h, nd, dims)
    if mode == 0:
        copy(to, op.start, n * size)
    elif mode == 1:
        fill(to, op.start, size, n)
    elif is_transposed(h, 8, 1):
        run = [to, op.start, dims[0], dims[1], out.strides[0], h.strides[1], size, size]
        tw_transpose_run(run, 0, (dims[0] + BAND - 1) // BAND, 0)
    else:
        gather(to, op, 0, n)
    return wrap(out)


def tw_eager_call_copy(table, args, nargs, names):
    return nargs == 1 and names == 0 and copied(args[0]) or other(table + 32, args, nargs, names)


def expanded(args, nargs):
    h = header_anywhere(args[0])
    if h == 0:
        return 0
    nd = h.nd
    first = args + 8
    n = nargs - 1
    if n == 1 and args[1].type == state[S_TUPLE]:
        n = args[1][2]
        first = args[1] + 24
    if n > AXES or n < nd:
        return 0
    dims = stack(128)
    strides = stack(128)
    for i in range(n):
        if int_of(first[i], dims + 8 * i) == 0:
            return 0
        size = dims[i]
        k = i - (n - nd)
        step = 0
        if size < 0:
            return 0
        if k >= 0:
            if h.dims[k] != size and h.dims[k] != 1:
                return 0
            step = h.strides[k] if h.dims[k] == size else 0
        strides[i] = step
    return new_view(args[0], h, n, dims, strides, h.data, 0)


def tw_eager_call_expand(table, args, nargs, names):
    return nargs > 1 and nargs <= table[7] and names == 0 and expanded(args, nargs) or python_form(table, args, nargs, names)


def flipped(x, axis):
    h = header_anywhere(x)
    if h == 0:
        return 0
    nd = h.nd
    at = [-1]
    if nd > AXES or (axis != 0 and axis_of(axis, nd, at) == 0):
        return 0
    strides = stack(128)
    data = h.data
    for i in range(nd):
        step = h.strides[i]
        size = h.dims[i]
        if axis == 0 or i == at[0]:
            if size > 0:
                data += step * (size - 1)
            step = 0 - step
        strides[i] = step
    return new_view(x, h, nd, h.dims, strides, data, h.flags & 1024)


def tw_eager_call_flip(table, args, nargs, names):
    axis = axis_given(args, nargs, names)
    return axis != -1 and flipped(args[0], axis) or python_form(table, args, nargs, names)


def with_axis(x, axis):
    h = header_anywhere(x)
    at = [0]
    if h == 0:
        return 0
    nd = h.nd
    if nd >= AXES or (axis != 0 and axis_of(axis, nd + 1, at) == 0):
        return 0
    dims = stack(128)
    strides = stack(128)
    k = at[0]
    copy(dims, h.dims, 8 * k)
    copy(strides, h.strides, 8 * k)
    dims[k] = 1
    strides[k] = 0
    copy(dims + 8 * k + 8, h.dims + 8 * k, 8 * (nd - k))
    copy(strides + 8 * k + 8, h.strides + 8 * k, 8 * (nd - k))
    return new_view(x, h, nd + 1, dims, strides, h.data, h.flags & 1024)


def tw_eager_call_expand_dims(table, args, nargs, names):
    axis = axis_given(args, nargs, names)
    return axis != -1 and with_axis(args[0], axis) or python_form(table, args, nargs, names)


def windows(args, nargs):
    h = header_anywhere(args[0])
    if h == 0:
        return 0
    nd = h.nd
    words = [0, 0, 1]  # axis, size, step
    if nd >= AXES or axis_of(args[1], nd, words) == 0 or int_of(args[2], words + 8) == 0:
        return 0
    if nargs == 4 and int_of(args[3], words + 16) == 0:
        return 0
    k = words[0]
    size = words[1]
    step = words[2]
    n = h.dims[k]
    if size < 1 or size > n or step < 1 or step > n:
        return 0
    dims = stack(128)
    strides = stack(128)
    copy(dims, h.dims, 8 * nd)
    copy(strides, h.strides, 8 * nd)
    dims[nd] = size
    strides[nd] = strides[k]
    dims[k] = (n - size) // step + 1
    strides[k] *= step
    return new_view(args[0], h, nd + 1, dims, strides, h.data, 0)


def tw_eager_call_unfold(table, args, nargs, names):
    return (nargs == 3 or nargs == 4) and names == 0 and windows(args, nargs) or python_form(table, args, nargs, names)


def python_attribute(x, name):
    return PyObject_Vectorcall(slots[50], [x, name], 2, 0)


def tw_eager_attribute(x, name):
    h = header_of(x)
    if h == 0 and place_of(x) != 0 and name != state[S_DEVICE]:
        h = ld64(place_of(x) + state[S_P_HEADER])
    return python_attribute(x, name) if h == 0 else PyObject_GetAttr(h, name)


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
    nd = h.nd if h != 0 else 0
    if nd < 2 or nd > AXES:
        return tw_eager_view(x, name)
    dims = stack(128)
    strides = stack(128)
    for i in range(nd):
        dims[i] = h.dims[nd - 1 - i]
        strides[i] = h.strides[nd - 1 - i]
    made = new_view(x, h, nd, dims, strides, h.data, h.flags & 1024)
    return tw_eager_view(x, name) if made == 0 else made
'''
