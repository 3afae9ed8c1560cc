"""Host code of eager functions (the language of `target/cpu/host_code.py`): operands are read through their strides, results are allocated,
and a kernel of contiguous elements runs over them in chunks. An operator on small Arrays never enters the interpreter.

A header is NumPy's: data +16, axes +24, sizes* +32, strides* +40, descr +56, flags +64; a descr has its type number at +28 and the size of
an element at +40. An operand of a run: address, bytes of an element, how it lies (0 contiguous, 1 one element, 2 strided), axes, sizes,
strides. A run: kernel, elements, operands, result, bytes of a result, then the operands.
"""
from __future__ import annotations

AXES = 16
OPERAND = 32 + 2 * 8 * AXES
RUN_OPERANDS = 40
MAX_OPERANDS = 8
RUN = RUN_OPERANDS + MAX_OPERANDS * OPERAND
CHUNK = 1024  # elements that are gathered at once
PROGRAM = 4096  # elements of a kernel's program
NATIVE_BYTES = 1 << 20  # larger results are for the threads, and for memory that is used again
SHARED_BYTES = 1 << 17  # threads share the work from here on
ARG_ROW = 4096  # longer rows are searched faster by NumPy
TYPES = 24  # NumPy's own dtypes by number
TABLE_COLUMNS = 64 + 16 * TYPES  # of a reduction's table: one word a dtype, the kernel that reduces a middle axis
TABLE = TABLE_COLUMNS + 8 * TYPES  # bytes
TABLE_KERNELS = 64  # of a function's table: its Python form, then from here on two words a dtype: kernel and descr of the result
ROW = 16384  # elements that a kernel of a reduction takes at once
REDUCE = 56 + OPERAND
CONSTANTS = {"ROW": ROW, "AXES": AXES, "OPERAND": OPERAND, "RUN_OPERANDS": RUN_OPERANDS, "RUN": RUN, "CHUNK": CHUNK, "PROGRAM": PROGRAM,
             "NATIVE_BYTES": NATIVE_BYTES, "TYPES": TYPES, "SHARED_BYTES": SHARED_BYTES, "ARG_ROW": ARG_ROW, "TABLE_KERNELS": TABLE_KERNELS,
             "TABLE_COLUMNS": TABLE_COLUMNS, "SHAPE": 32, "STRIDES": 32 + 8 * AXES}
# The words of the block `state`.
STATE = ("ARRAY", "FLOAT", "LONG", "NDARRAY", "NEW_ARRAY", "MODE", "SLOT", "SLICE", "TUPLE", "ELLIPSIS", "NONE", "FROM_SCALAR", "AXIS",
         "TW_RUN", "JOB", "JOB_RUN", "JOB_GRID")
(ARRAY, FLOAT, LONG, NDARRAY, NEW_ARRAY, MODE, SLOT, SLICE, TUPLE, ELLIPSIS, NONE, FROM_SCALAR, AXIS, TW_RUN, JOB, JOB_RUN,
 JOB_GRID) = range(17)
CONSTANTS |= {"S_" + name: 8 * k for k, name in enumerate(STATE)}
NUMBER_SLOTS = {"add": 0, "subtract": 8, "multiply": 16, "remainder": 24, "bitwise_and": 104, "bitwise_xor": 112, "bitwise_or": 120,
                "floor_divide": 232, "divide": 240}  # byte offsets in PyNumberMethods
UNARY_SLOTS = {"negative": 48, "abs": 64, "bitwise_invert": 80}
COMPARED = ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal")  # in the order of Py_LT ... Py_GE
BLOCKS = {"state": 32, "slots": 64}  # slots: for each operator the address of its table and the function it stands before
SUBSCRIPT, COMPARE, FORCE, ATTRIBUTE, REFUSE, MATMUL, CASTS = 40, 42, 49, 50, 51, 52, 53  # places in `slots`

SOURCE = '''
def set_operand(op, h, nd, dims):
    hnd = ldi32(h + 24)
    hd = ld64(h + 32)
    hs = ld64(h + 40)
    size = ld64(ld64(h + 56) + 40)
    st64(op, ld64(h + 16))
    st64(op + 8, size)
    k = 0
    last = 0
    i = 0
    while i < nd:
        d = ld64(dims + 8 * i)
        j = i - (nd - hnd)
        s = 0
        if j >= 0 and ld64(hd + 8 * j) != 1:
            s = ld64(hs + 8 * j)
        if d != 1:
            if k > 0 and last == s * d:
                at = op + SHAPE + 8 * (k - 1)
                st64(at, ld64(at) * d)
                st64(op + STRIDES + 8 * (k - 1), s)
            else:
                st64(op + SHAPE + 8 * k, d)
                st64(op + STRIDES + 8 * k, s)
                k += 1
            last = s
        i += 1
    st64(op + 24, k)
    mode = 2
    if k == 0 or (k == 1 and last == size):
        mode = 0
    elif k == 1 and last == 0:
        mode = 1
    st64(op + 16, mode)
    return mode


def copy_run(dst, src, size, step, run):
    if step == size:
        copy(dst, src, run * size)
        return 0
    end = dst + run * size
    if size == 4:
        if run > 32:
            done = 0
            if step == 8:
                done = copy_2_4(dst, src, run)
            elif step == 12:
                done = copy_3_4(dst, src, run)
            elif step == 16:
                done = copy_4_4(dst, src, run)
            elif step == -4:
                done = copy_m1_4(dst, src, run)
            dst += 4 * done
            src += step * done
        while dst + 16 <= end:
            a = ld32(src)
            b = ld32(src + step)
            src += step + step
            c = ld32(src)
            d = ld32(src + step)
            src += step + step
            st64(dst, a | (b << 32))
            st64(dst + 8, c | (d << 32))
            dst += 16
        while dst < end:
            st32(dst, ld32(src))
            src += step
            dst += 4
    elif size == 8:
        if run > 32:
            done = 0
            if step == 16:
                done = copy_2_8(dst, src, run)
            elif step == -8:
                done = copy_m1_8(dst, src, run)
            dst += 8 * done
            src += step * done
        while dst < end:
            st64(dst, ld64(src))
            src += step
            dst += 8
    elif size == 2:
        while dst < end:
            st16(dst, ld16(src))
            src += step
            dst += 2
    elif size == 1:
        while dst < end:
            st8(dst, ld8(src))
            src += step
            dst += 1
    else:
        while dst < end:
            st64(dst, ld64(src))
            st64(dst + 8, ld64(src + 8))
            src += step
            dst += 16
    return 0


def gather(dst, op, start, count):
    size = ld64(op + 8)
    nd = ld64(op + 24)
    src = ld64(op)
    idx = stack(128)
    rest = start
    i = nd - 1
    while i >= 0:
        d = ld64(op + SHAPE + 8 * i)
        q = rest // d
        r = rest - q * d
        st64(idx + 8 * i, r)
        src += r * ld64(op + STRIDES + 8 * i)
        rest = q
        i -= 1
    inner = ld64(op + SHAPE + 8 * (nd - 1))
    step = ld64(op + STRIDES + 8 * (nd - 1))
    first = ld64(idx + 8 * (nd - 1))
    while count > 0:
        run = inner - first
        if run > count:
            run = count
        copy_run(dst, src, size, step, run)
        dst += run * size
        count -= run
        src -= first * step
        first = 0
        i = nd - 2
        while i >= 0:
            v = ld64(idx + 8 * i) + 1
            s = ld64(op + STRIDES + 8 * i)
            src += s
            if v < ld64(op + SHAPE + 8 * i):
                st64(idx + 8 * i, v)
                break
            src -= v * s
            st64(idx + 8 * i, 0)
            i -= 1
    return 0


def fill(dst, src, size, count):
    copy(dst, src, size)
    done = 1
    while done < count:
        more = done
        if more > count - done:
            more = count - done
        copy(dst + done * size, dst, more * size)
        done += more
    return 0


def tw_eager_run(args, begin, end, scratch):
    fn = ld64(args)
    n = ld64(args + 8)
    nin = ld64(args + 16)
    out = ld64(args + 24)
    osize = ld64(args + 32)
    kargs = stack(128)
    buffers = stack(131072)
    direct = 1
    i = 0
    while i < nin:
        op = args + RUN_OPERANDS + i * OPERAND
        mode = ld64(op + 16)
        st64(kargs + 8 * i, ld64(op))
        if mode != 0:
            direct = 0
            if mode == 1:
                count = n
                if count > CHUNK:
                    count = CHUNK
                fill(buffers + i * 16384, ld64(op), ld64(op + 8), count)
                st64(kargs + 8 * i, buffers + i * 16384)
        i += 1
    if direct:
        st64(kargs + 8 * nin, out)
        st64(kargs + 8 * nin + 8, n)
        call(fn, kargs, begin, end, scratch)
        return 0
    pos = begin * PROGRAM
    stop = end * PROGRAM
    if stop > n:
        stop = n
    while pos < stop:
        count = stop - pos
        if count > CHUNK:
            count = CHUNK
        i = 0
        while i < nin:
            op = args + RUN_OPERANDS + i * OPERAND
            mode = ld64(op + 16)
            if mode == 0:
                st64(kargs + 8 * i, ld64(op) + pos * ld64(op + 8))
            elif mode == 2:
                gather(buffers + i * 16384, op, pos, count)
                st64(kargs + 8 * i, buffers + i * 16384)
            i += 1
        st64(kargs + 8 * nin, out + pos * osize)
        st64(kargs + 8 * nin + 8, count)
        call(fn, kargs, 0, 1, scratch)
        pos += count
    return 0


def tw_eager_prepare_many(run, fn, nin, headers, out):
    grid = tw_eager_prepare(run, fn, 1, ld64(headers), 0, 0, out)
    st64(run + 16, nin)
    i = 1
    while i < nin:
        set_operand(run + RUN_OPERANDS + i * OPERAND, ld64(headers + 8 * i), ldi32(out + 24), ld64(out + 32))
        i += 1
    return grid


def tw_eager_prepare(run, fn, nin, a, b, c, out):
    nd = ldi32(out + 24)
    dims = ld64(out + 32)
    n = 1
    i = 0
    while i < nd:
        n *= ld64(dims + 8 * i)
        i += 1
    st64(run, fn)
    st64(run + 8, n)
    st64(run + 16, nin)
    st64(run + 24, ld64(out + 16))
    st64(run + 32, ld64(ld64(out + 56) + 40))
    set_operand(run + RUN_OPERANDS, a, nd, dims)
    if nin > 1:
        set_operand(run + RUN_OPERANDS + OPERAND, b, nd, dims)
    if nin > 2:
        set_operand(run + RUN_OPERANDS + 2 * OPERAND, c, nd, dims)
    return (n + PROGRAM - 1) // PROGRAM


def source_of(op, pos, count, buffer):
    if ld64(op + 16) == 0:
        return ld64(op) + pos * ld64(op + 8)
    gather(buffer, op, pos, count)
    return buffer


def reduce_row(fn, words, src, count, out, swap, scratch):
    st64(words, src)
    st64(words + 8, count)
    st64(words + 16, out)
    st64(words + 24, 1)
    st64(words + 32, count)
    if swap:
        st64(words + 24, count)
        st64(words + 32, 1)
    call(fn, words, 0, 1, scratch)
    return 0


def tw_reduce_run(args, begin, end, scratch):
    fn = ld64(args)
    row = ld64(args + 16)
    n = ld64(args + 24)
    out = ld64(args + 32)
    osize = ld64(args + 40)
    swap = ld64(args + 48)
    op = args + 56
    words = stack(64)
    buffer = stack(262144)
    parts = stack(16384)
    work = stack(1024)
    while begin < end:
        pos = begin * row
        count = row
        if count > n - pos:
            count = n - pos
        if count <= ROW or (swap and ld64(op + 16) == 0):
            reduce_row(fn, words, source_of(op, pos, count, buffer), count, out + begin * osize, swap, work)
        else:
            c = 0
            while c * ROW < count:
                part = count - c * ROW
                if part > ROW:
                    part = ROW
                reduce_row(fn, words, source_of(op, pos + c * ROW, part, buffer), part, parts + c * osize, 0, work)
                c += 1
            reduce_row(ld64(args + 8), words, parts, c, out + begin * osize, 0, work)
        begin += 1
    return 0


def tw_reduce_prepare(run, fn, fn2, row, n, out, swap, h):
    st64(run, fn)
    st64(run + 8, fn2)
    st64(run + 16, row)
    st64(run + 24, n)
    st64(run + 32, ld64(out + 16))
    st64(run + 40, ld64(ld64(out + 56) + 40))
    st64(run + 48, swap)
    set_operand(run + 56, h, ldi32(h + 24), ld64(h + 32))
    return (n + row - 1) // row


def reduced(table, x):
    s = address(state)
    h = header_of(x)
    if h == 0 or ld64(s + S_MODE) != 0:
        return 0
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    if kind < 0 or kind >= TYPES:
        return 0
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    n = elements(h)
    flags = ld32(h + 64)
    if fn == 0 or n == 0 or n * ld64(descr + 40) > NATIVE_BYTES or (flags & 256) == 0 or ldi32(h + 24) > AXES:
        return 0
    swap = ld64(table + 8)
    if swap and n > ARG_ROW:
        return 0
    rdescr = ld64(table + TABLE_KERNELS + 16 * kind + 8)
    again = ld64(table + TABLE_KERNELS + 16 * ldi32(rdescr + 28))
    if n > ROW and (again == 0 or ld64(table + 16) != 0):
        return 0
    out = new_header(rdescr, 0, 0, 0)
    if out == 0:
        return 0
    if n <= ROW and flags & 3 and (swap == 0 or flags & 1):
        words = stack(64)
        work = stack(1024)
        reduce_row(fn, words, ld64(h + 16), n, ld64(out + 16), swap, work)
    else:
        run = stack(512)
        tw_reduce_prepare(run, fn, again, n, n, out, swap, h)
        tw_reduce_run(run, 0, 1, 0)
    return wrap(out)


def reduced_axis(table, x, axis):
    s = address(state)
    h = header_of(x)
    if h == 0 or ld64(s + S_MODE) != 0 or ld64(axis + 8) != ld64(s + S_LONG):
        return 0
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    nd = ldi32(h + 24)
    if kind < 0 or kind >= TYPES or nd > AXES or (ld32(h + 64) & 256) == 0:
        return 0
    over = stack(8)
    k = PyLong_AsLongAndOverflow(axis, over)
    if k < 0:
        k += nd
    if k < 0 or k >= nd:
        return 0
    dims = ld64(h + 32)
    kept = stack(128)
    before = 1
    after = 1
    i = 0
    while i < nd:
        d = ld64(dims + 8 * i)
        if i < k:
            before *= d
            st64(kept + 8 * i, d)
        elif i > k:
            after *= d
            st64(kept + 8 * (i - 1), d)
        i += 1
    row = ld64(dims + 8 * k)
    n = before * row * after
    if row > ROW or n == 0 or n * ld64(descr + 40) > NATIVE_BYTES:
        return 0
    src = ld64(h + 16)
    if (ld32(h + 64) & 1) == 0:
        if n * ld64(descr + 40) > 65536:
            return 0
        op = stack(512)
        buffer = stack(65536)
        src = buffer
        if set_operand(op, h, nd, dims) == 0:
            src = ld64(op)
        else:
            gather(buffer, op, 0, n)
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    if ld64(table + 8) and row > ARG_ROW:
        return 0
    if after > 1:
        fn = ld64(table + TABLE_COLUMNS + 8 * kind)
    if fn == 0:
        return 0
    out = new_header(ld64(table + TABLE_KERNELS + 16 * kind + 8), nd - 1, kept, 0)
    if out == 0:
        return 0
    words = stack(64)
    work = stack(65536)
    st64(words, src)
    if after == 1:
        st64(words + 8, row)
        st64(words + 16, ld64(out + 16))
        st64(words + 24, before)
        st64(words + 32, row)
        if ld64(table + 8):
            st64(words + 24, row)
            st64(words + 32, before)
        call(fn, words, 0, before, work)
    else:
        st64(words + 8, row * after)
        st64(words + 16, after)
        st64(words + 24, ld64(out + 16))
        st64(words + 32, after)
        st64(words + 40, row)
        st64(words + 48, before)
        st64(words + 56, after)
        call(fn, words, 0, (after + 63) // 64 * before, work)
    return wrap(out)


def tw_eager_call_reduce(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 1:
        made = reduced(table, ld64(args))
        if made != 0:
            return made
    if nargs == 1 and names != 0 and ld64(names + 16) == 1 and ld64(names + 24) == ld64(address(state) + S_AXIS):
        made = reduced_axis(table, ld64(args), ld64(args + 8))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def new_header(descr, nd, dims, flags):
    st64(descr, ld64(descr) + 1)
    s = address(state)
    made = call(ld64(s + S_NEW_ARRAY), ld64(s + S_NDARRAY), descr, nd, dims, 0, 0, flags, 0)
    if made == 0:
        PyErr_Clear()
    return made


def wrap(h):
    s = address(state)
    made = PyType_GenericAlloc(ld64(s + S_ARRAY), 0)
    if made == 0:
        PyErr_Clear()
        Py_DecRef(h)
        return 0
    st64(made + ld64(s + S_SLOT), h)
    return made


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


def binary(table, x, y):
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
        out = new_header(rdescr, nd, dims, order)
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
        if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
            return 0
        run = memory_of(run, nbytes)
        both = fh & fb & 3
        order = 0
        if both == 2:
            order = 2
        out = new_header(rdescr, nd, ld64(a + 32), order)
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
    out = new_header(rdescr, nd, shape, 0)
    if out == 0:
        return 0
    if n > 0:
        grid = tw_eager_prepare(run, fn, 2, a, b, 0, out)
        start(run, grid, nbytes)
    return wrap(out)


def tw_eager_call1(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 1:
        made = unary(table, ld64(args))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def tw_eager_call2(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 2:
        made = binary(table, ld64(args), ld64(args + 8))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def choice(table, c, x, y):
    s = address(state)
    hc = header_of(c)
    a = header_of(x)
    b = header_of(y)
    if hc == 0 or a == 0 or b == 0 or ld64(s + S_MODE) != 0:
        return 0
    descr = ld64(a + 56)
    kind = ldi32(descr + 28)
    if kind < 0 or kind >= TYPES or ldi32(ld64(b + 56) + 28) != kind or ldi32(ld64(hc + 56) + 28) != 0:
        return 0
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    nd = ldi32(a + 24)
    if fn == 0 or nd > AXES or not same_shape(a, b) or not same_shape(a, hc):
        return 0
    if (ld32(a + 64) & ld32(b + 64) & ld32(hc + 64) & 256) == 0:
        return 0
    n = elements(a)
    nbytes = n * ld64(descr + 40)
    if nbytes >= NATIVE_BYTES or (nbytes >= SHARED_BYTES and ld64(s + S_JOB) == 0):
        return 0
    out = new_header(ld64(table + TABLE_KERNELS + 16 * kind + 8), nd, ld64(a + 32), 0)
    if out == 0:
        return 0
    if n > 0:
        run = memory_of(stack(1024), nbytes)
        grid = tw_eager_prepare(run, fn, 3, hc, a, b, out)
        start(run, grid, nbytes)
    return wrap(out)


def tw_eager_call3(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 3:
        made = choice(table, ld64(args), ld64(args + 8), ld64(args + 16))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


def tw_eager_call_astype(table, args, nargs, names):
    table += 32
    if names == 0 and nargs == 2:
        made = cast(table, ld64(args), ld64(args + 8))
        if made != 0:
            return made
    return PyObject_Vectorcall(ld64(table), args, nargs, names)


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
    made = binary(ld64(entry), x, y)
    if made != 0:
        return made
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
    return PyObject_Vectorcall(ld64(address(slots) + 8 * 52), args, 2, 0)


def tw_eager_subscript(x, key):
    s = address(state)
    h = header_of(x)
    t = ld64(key + 8)
    ok = 0
    if h != 0:
        if t == ld64(s + S_LONG) or t == ld64(s + S_SLICE):
            ok = 1
        elif t == ld64(s + S_TUPLE):
            n = ld64(key + 16)
            ok = 1
            i = 0
            while i < n:
                t = ld64(ld64(key + 24 + 8 * i) + 8)
                if t != ld64(s + S_LONG) and t != ld64(s + S_SLICE) and t != ld64(s + S_ELLIPSIS) and t != ld64(s + S_NONE):
                    ok = 0
                i += 1
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
    return wrap(found)


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


def tw_eager_attribute(x, name):
    h = header_of(x)
    if h == 0:
        args = stack(16)
        st64(args, x)
        st64(args + 8, name)
        return PyObject_Vectorcall(ld64(address(slots) + 8 * 50), args, 2, 0)
    return PyObject_GetAttr(h, name)


def tw_eager_view(x, name):
    h = forced(x)
    if h == 0:
        return 0
    found = PyObject_GetAttr(h, name)
    if found == 0:
        return 0
    return wrap(found)


def tw_eager_getbuffer(x, view, flags):
    st64(view + 8, 0)
    h = forced(x)
    if h == 0:
        return -1
    if flags & 1:
        args = stack(8)
        st64(args, x)
        PyObject_Vectorcall(ld64(address(slots) + 8 * 51), args, 1, 0)
        return -1
    if PyObject_GetBuffer(h, view, flags) & 4294967295:
        return -1
    st32(view + 32, 1)
    return 0
'''


def source() -> str:
    """The whole text: the functions above and one entry for each operator."""
    parts = [SOURCE]
    for k, name in enumerate(NUMBER_SLOTS):
        parts.append(f"""
def tw_op_{name}(x, y):
    made = binary(ld64(address(slots) + {16 * k}), x, y)
    if made != 0:
        return made
    args = stack(16)
    st64(args, x)
    st64(args + 8, y)
    return PyObject_Vectorcall(ld64(address(slots) + {16 * k + 8}), args, 2, 0)
""")
    for k, name in enumerate(UNARY_SLOTS, len(NUMBER_SLOTS)):
        parts.append(f"""
def tw_op_{name}(x):
    made = unary(ld64(address(slots) + {16 * k}), x)
    if made != 0:
        return made
    return call(ld64(address(slots) + {16 * k + 8}), x)
""")
    return "".join(parts)


def _step_ir(step: int, size: int) -> str:
    """copy_<step>_<size>(to, from, count): elements `step` apart side by side, by vectors; gives how many were copied. A vector that would
    read behind the last element is left to the caller."""
    lanes, word = 64 // size, f"i{8 * size}"
    wide, name = lanes * max(step, 1), f"copy_{'m1' if step < 0 else step}_{size}"
    picks = ", ".join(f"i32 {lanes - 1 - k if step < 0 else k * step}" for k in range(lanes))
    at = f"  %f = sub i64 %from, %o\n  %s = sub i64 %f, {(lanes - 1) * size}\n" if step < 0 else "  %s = add i64 %from, %o\n"
    return f"""define internal i64 @{name}(i64 %to, i64 %from, i64 %count) nounwind {{
entry:
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %n, %body ]
  %n = add i64 %i, {lanes}
  %more = icmp slt i64 %n, %count
  br i1 %more, label %body, label %out
body:
  %o = mul i64 %i, {abs(step) * size}
{at}  %sp = inttoptr i64 %s to ptr
  %v = load <{wide} x {word}>, ptr %sp, align 1
  %p = shufflevector <{wide} x {word}> %v, <{wide} x {word}> poison, <{lanes} x i32> <{picks}>
  %d = mul i64 %i, {size}
  %t = add i64 %to, %d
  %tp = inttoptr i64 %t to ptr
  store <{lanes} x {word}> %p, ptr %tp, align 1
  br label %test
out:
  ret i64 %i
}}
"""


STEPS = {f"copy_{'m1' if step < 0 else step}_{size}": (step, size) for step, size in ((2, 4), (3, 4), (4, 4), (-1, 4), (2, 8), (-1, 8))}


def vector_ir() -> str:
    """The functions among the externals of the host code that are written as LLVM text."""
    return "".join(_step_ir(step, size) for step, size in STEPS.values())


EXPORTS = (*(f"tw_{name}" for name in (
    "reduce_run", "reduce_prepare", "eager_run", "eager_prepare", "eager_prepare_many", "eager_call1", "eager_call2", "eager_call3",
    "eager_call_astype", "eager_call_reduce", "eager_compare", "eager_subscript", "eager_matmul", "eager_getbuffer", "eager_attribute",
    "eager_view")), *(f"tw_op_{name}" for name in (*NUMBER_SLOTS, *UNARY_SLOTS)), *BLOCKS)
