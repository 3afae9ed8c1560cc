"""Host code of eager functions: reductions of all elements, and of one axis of small arrays."""
from __future__ import annotations

SOURCE = '''
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
    if ld64(table + 16) != 0:
        again = 0
    if n > ROW and again == 0:
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


def magnitude(x):
    if x < 0:
        return 0 - x
    return x


# A kernel of rows or columns; from some size on by the threads, each of which meets its own part again in the next call.
def run_reduction(fn, words, grid, nbytes):
    s = address(state)
    if nbytes < REDUCE_SHARED or ld64(s + S_JOB) == 0:
        work = stack(65536)
        call(fn, words, 0, grid, work)
        return
    copy(ld64(s + S_JOB_RUN), words, 64 + OPERAND)
    at = ld64(s + S_JOB_GRID)
    before = ld64(at + THUNK_FN_AT)
    piece = ld64(at + THUNK_SHARE_AT)
    st64(at + THUNK_FN_AT, fn)
    st64(at + THUNK_SHARE_AT, 0)
    st64(at, grid)
    if nbytes >= HEAVY:
        st64(ld64(s + S_JOB) + 8 * JOB_LIGHT, 0)
    call(ld64(s + S_TW_RUN), ld64(s + S_JOB))
    st64(ld64(s + S_JOB) + 8 * JOB_LIGHT, 1)
    st64(at + THUNK_FN_AT, before)
    st64(at + THUNK_SHARE_AT, piece)


# Rows that lie in steps: as many at once as stay in the first cache.
def reduce_gathered(args, begin, end, scratch):
    fn = ld64(args)
    out = ld64(args + 8)
    osize = ld64(args + 16)
    row = ld64(args + 24)
    op = args + 40
    buffer = stack(131072)
    work = stack(65536)
    words = stack(64)
    most = 16384 // (row * ld64(op + 8))
    if most == 0:
        most = 1
    while begin < end:
        count = end - begin
        if count > most:
            count = most
        gather(buffer, op, begin * row, count * row)
        st64(words, buffer)
        st64(words + 8, row)
        st64(words + 16, out + begin * osize)
        st64(words + 24, count)
        st64(words + 32, row)
        if ld64(args + 32):
            st64(words + 24, row)
            st64(words + 32, count)
        call(fn, words, 0, count, work)
        begin += count


def reduced_axis(table, x, axis):
    s = address(state)
    h = header_of(x)
    if h == 0 or ld64(s + S_MODE) != 0:
        return 0
    descr = ld64(h + 56)
    kind = ldi32(descr + 28)
    nd = ldi32(h + 24)
    if kind < 0 or kind >= TYPES or nd > AXES or (ld32(h + 64) & 256) == 0:
        return 0
    at = stack(8)
    if axis_of(axis, nd, at) == 0:
        return 0
    k = ld64(at)
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
    nbytes = n * ld64(descr + 40)
    if row > ROW or n == 0 or nbytes > REDUCE_BYTES:
        return 0
    if nbytes > NATIVE_BYTES and ((ld32(h + 64) & 1) == 0 or ld64(s + S_JOB) == 0):
        return 0
    src = ld64(h + 16)
    fn = ld64(table + TABLE_KERNELS + 16 * kind)
    if ld64(table + 8) and row > ARG_ROW:
        return 0
    if after > 1:
        fn = ld64(table + TABLE_COLUMNS + 8 * kind)
    if fn == 0 or ld64(table + TABLE_KERNELS + 16 * kind + 8) == 0:
        return 0
    dense = 0
    op = stack(512)
    blocks = 0
    if (ld32(h + 64) & 1) == 0:
        buffer = stack(65536)
        src = buffer
        if set_operand(op, h, nd, dims) == 0:
            src = ld64(op)
        else:
            steps = ld64(h + 40)
            last = ld64(steps + 8 * (nd - 1))
            i = 0
            while i < nd - 1:
                if nbytes > 65536 and magnitude(ld64(steps + 8 * i)) < magnitude(last):
                    return 0
                i += 1
            if after == 1 and row * ld64(descr + 40) <= 131072:
                blocks = nbytes + n * magnitude(last)  # bytes that are read, and more than none
            if nbytes > 65536 and blocks == 0:
                dense = new_header(descr, nd, dims, 0)
                if dense == 0:
                    return 0
                src = ld64(dense + 16)
            if blocks == 0:
                gather(src, op, 0, n)
    out = new_header(ld64(table + TABLE_KERNELS + 16 * kind + 8), nd - 1, kept, 0)
    if out == 0:
        if dense != 0:
            Py_DecRef(dense)
        return 0
    words = stack(512)
    st64(words, src)
    if blocks:
        st64(words, fn)
        st64(words + 8, ld64(out + 16))
        st64(words + 16, ld64(ld64(out + 56) + 40))
        st64(words + 24, row)
        st64(words + 32, ld64(table + 8))
        copy(words + 40, op, OPERAND)
        run_reduction(address(reduce_gathered), words, before, blocks)
    elif after == 1:
        st64(words + 8, row)
        st64(words + 16, ld64(out + 16))
        st64(words + 24, before)
        st64(words + 32, row)
        if ld64(table + 8):
            st64(words + 24, row)
            st64(words + 32, before)
        run_reduction(fn, words, before, nbytes)
    else:
        st64(words + 8, row * after)
        st64(words + 16, after)
        st64(words + 24, ld64(out + 16))
        st64(words + 32, after)
        st64(words + 40, row)
        st64(words + 48, before)
        st64(words + 56, after)
        run_reduction(fn, words, (after + 63) // 64 * before, nbytes)
    if dense != 0:
        Py_DecRef(dense)
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
    return other(table, ld64(table), args, nargs, names)
'''
