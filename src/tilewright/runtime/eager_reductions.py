"""Host code of eager functions: reductions of all elements, and of one axis of small arrays."""
from __future__ import annotations

SOURCE = '''
def reduced(table, x):
    h = header_of(x)
    if h == 0 or state[S_MODE] != 0 or not served(h):
        return 0
    entry = table + TABLE_KERNELS + 16 * h.descr.kind
    n = elements(h)
    swap = table[1]
    if entry[0] == 0 or n == 0 or n * h.descr.size > NATIVE_BYTES or (swap and n > ARG_ROW):
        return 0
    again = ld64(table + TABLE_KERNELS + 16 * entry[1].kind) if table[2] == 0 else 0
    if n > ROW and again == 0:
        return 0
    out = new_header(entry[1], 0, 0, 0)
    if out == 0:
        return 0
    if n <= ROW and h.flags & 3 and (swap == 0 or h.flags & 1):
        reduce_row(entry[0], h.data, n, out.data, swap, stack(1024))
    else:
        run = stack(512)
        tw_reduce_prepare(run, entry[0], again, n, n, out, swap, h)
        tw_reduce_run(run, 0, 1, 0)
    return wrap(out)


def magnitude(x):
    return max(x, 0 - x)


# A kernel of rows or columns; from some size on by the threads, each of which meets its own part again in the next call.
def run_reduction(fn, words, grid, nbytes):
    if nbytes < REDUCE_SHARED or state[S_JOB] == 0:
        work = stack(65536)
        call(fn, words, 0, grid, work)
        return
    copy(state[S_JOB_RUN], words, 64 + OPERAND)
    at = state[S_JOB_GRID]
    before = ld64(at + THUNK_FN_AT)
    piece = ld64(at + THUNK_SHARE_AT)
    st64(at + THUNK_FN_AT, fn)
    st64(at + THUNK_SHARE_AT, 0)
    at[0] = grid
    if nbytes >= HEAVY:
        state[S_JOB][JOB_LIGHT] = 0
    call(state[S_TW_RUN], state[S_JOB])
    state[S_JOB][JOB_LIGHT] = 1
    st64(at + THUNK_FN_AT, before)
    st64(at + THUNK_SHARE_AT, piece)


# Rows that lie in steps: as many at once as stay in the first cache.
def reduce_gathered(args, begin, end, scratch):
    out = args[1]
    row = args[3]
    swap = args[4]
    op = args + 40
    buffer = stack(131072)
    work = stack(65536)
    most = 16384 // (row * op.bytes) or 1
    for k in range(begin, end, most):
        count = min(end - k, most)
        gather(buffer, op, k * row, count * row)
        call(args[0], [buffer, row, out + k * args[2], row if swap else count, count if swap else row], 0, count, work)


def reduced_axis(table, x, axis):
    h = header_of(x)
    at = stack(8)
    if h == 0 or state[S_MODE] != 0 or not served(h) or axis_of(axis, h.nd, at) == 0:
        return 0
    descr = h.descr
    nd = h.nd
    k = at[0]
    dims = h.dims
    kept = stack(128)
    before = 1
    after = 1
    for i in range(nd):
        d = dims[i]
        if i < k:
            before *= d
            kept[i] = d
        elif i > k:
            after *= d
            kept[i - 1] = d
    row = dims[k]
    n = before * row * after
    nbytes = n * descr.size
    swap = table[1]
    if row > ROW or n == 0 or nbytes > REDUCE_BYTES or (swap and row > ARG_ROW):
        return 0
    if nbytes > NATIVE_BYTES and (h.flags & 1 == 0 or state[S_JOB] == 0):
        return 0
    entry = table + TABLE_KERNELS + 16 * descr.kind
    fn = entry[0] if after == 1 else ld64(table + TABLE_COLUMNS + 8 * descr.kind)
    if fn == 0 or entry[1] == 0:
        return 0
    src = h.data
    dense = 0
    op = stack(512)
    blocks = 0
    if h.flags & 1 == 0:
        if set_operand(op, h, nd, dims) == 0:
            src = op.start
        else:
            src = stack(65536)
            last = h.strides[nd - 1]
            for i in range(nd - 1):
                if nbytes > 65536 and magnitude(h.strides[i]) < magnitude(last):
                    return 0
            if after == 1 and row * descr.size <= 131072:
                blocks = nbytes + n * magnitude(last)  # bytes that are read, and more than none
            if nbytes > 65536 and blocks == 0:
                dense = new_header(descr, nd, dims, 0)
                if dense == 0:
                    return 0
                src = dense.data
            if blocks == 0:
                gather(src, op, 0, n)
    out = new_header(entry[1], nd - 1, kept, 0)
    if out != 0:
        words = stack(512)
        if blocks:
            copy(words, [fn, out.data, out.descr.size, row, swap], 40)
            copy(words + 40, op, OPERAND)
            run_reduction(address(reduce_gathered), words, before, blocks)
        elif after == 1:
            copy(words, [src, row, out.data, row if swap else before, before if swap else row], 40)
            run_reduction(fn, words, before, nbytes)
        else:
            copy(words, [src, row * after, after, out.data, after, row, before, after], 64)
            run_reduction(fn, words, (after + 63) // 64 * before, nbytes)
    if dense != 0:
        Py_DecRef(dense)
    return out and wrap(out)


def tw_eager_call_reduce(table, args, nargs, names):
    made = names == 0 and nargs == 1 and reduced(table + 32, args[0])
    if nargs == 1 and names != 0 and names[2] == 1 and names[3] == state[S_AXIS]:
        made = reduced_axis(table + 32, args[0], args[1])
    return made or other(table + 32, args, nargs, names)
'''
