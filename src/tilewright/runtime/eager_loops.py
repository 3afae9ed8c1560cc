"""Host code of eager functions, first part: operands gathered through their strides, and kernels run over them. The language is that of
`target/cpu/host_code.py`; structures are described in `eager_host.py`."""
from __future__ import annotations

from ..target.cpu.transposes import transpose_ir

SOURCE = '''
def set_operand(op, h, nd, dims):
    size = h.descr.size
    op.start = h.data
    op.bytes = size
    k = 0
    last = 0
    for i in range(nd):
        d = dims[i]
        j = i - (nd - h.nd)
        s = h.strides[j] if j >= 0 and h.dims[j] != 1 else 0
        if d != 1:
            if k > 0 and last == s * d:
                op[SHAPE + k - 1] *= d
                op[STRIDES + k - 1] = s
            else:
                op[SHAPE + k] = d
                op[STRIDES + k] = s
                k += 1
            last = s
    op.rank = k
    op.mode = 2
    if k == 0 or (k == 1 and last == size):
        op.mode = 0
    elif k == 1 and last == 0:
        op.mode = 1
    return op.mode


# How many elements vectors have copied side by side.
def copy_by_vectors(dst, src, size, step, run):
    if size == 4 and run > 32:
        if step == 8:
            return copy_2_4(dst, src, run)
        if step == 12:
            return copy_3_4(dst, src, run)
        if step == 16:
            return copy_4_4(dst, src, run)
        if step == -4:
            return copy_m1_4(dst, src, run)
    elif size == 8 and run > 32:
        if step == 16:
            return copy_2_8(dst, src, run)
        if step == -8:
            return copy_m1_8(dst, src, run)
    elif size == 2 and run > 64 and step == 4:
        return copy_2_2(dst, src, run)
    elif size == 1 and run > 128 and step == 2:
        return copy_2_1(dst, src, run)
    return 0


def copy_run(dst, src, size, step, run):
    if step == size:
        copy(dst, src, run * size)
        return 0
    end = dst + run * size
    done = copy_by_vectors(dst, src, size, step, run)
    dst += size * done
    src += step * done
    if size == 4:
        while dst + 16 <= end:
            a = ld32(src)
            b = ld32(src + step)
            src += step + step
            c = ld32(src)
            d = ld32(src + step)
            src += step + step
            dst[0] = a | (b << 32)
            dst[1] = c | (d << 32)
            dst += 16
        for at in range(dst, end, 4):
            st32(at, ld32(src))
            src += step
    elif size == 8:
        for at in range(dst, end, 8):
            at[0] = src[0]
            src += step
    elif size == 2:
        for at in range(dst, end, 2):
            st16(at, ld16(src))
            src += step
    elif size == 1:
        for at in range(dst, end):
            st8(at, ld8(src))
            src += step
    else:
        for at in range(dst, end, 16):
            at[0] = src[0]
            at[1] = src[1]
            src += step
    return 0


def gather(dst, op, start, count):
    last = op.rank - 1
    src = op.start
    idx = stack(128)
    rest = start
    i = last
    while i >= 0:
        d = op[SHAPE + i]
        q = rest // d
        idx[i] = rest - q * d
        src += idx[i] * op[STRIDES + i]
        rest = q
        i -= 1
    step = op[STRIDES + last]
    first = idx[last]
    while count > 0:
        run = min(op[SHAPE + last] - first, count)
        copy_run(dst, src, op.bytes, step, run)
        dst += run * op.bytes
        count -= run
        src -= first * step
        first = 0
        i = last - 1
        while i >= 0:
            v = idx[i] + 1
            s = op[STRIDES + i]
            src += s
            if v < op[SHAPE + i]:
                idx[i] = v
                break
            src -= v * s
            idx[i] = 0
            i -= 1
    return 0


def fill(dst, src, size, count):
    copy(dst, src, size)
    done = 1
    while done < count:
        more = min(done, count - done)
        copy(dst + done * size, dst, more * size)
        done += more
    return 0


def tw_eager_run(args, begin, end, scratch):
    fn = args[0]
    n = args[1]
    nin = args[2]
    out = args[3]
    osize = args[4]
    kargs = stack(128)
    buffers = stack(131072)
    direct = 1
    most = CHUNK
    for i in range(nin):
        op = args + RUN_OPERANDS + i * OPERAND
        kargs[i] = op.start
        if op.bytes > 4:
            most = CHUNK // 2
        if op.mode != 0:
            direct = 0
            if op.mode == 1:
                kargs[i] = buffers + i * 16384
                fill(kargs[i], op.start, op.bytes, min(n, CHUNK))
    if direct:
        kargs[nin] = out
        kargs[nin + 1] = n
        call(fn, kargs, begin, end, scratch)
        return 0
    pos = begin * PROGRAM
    stop = min(end * PROGRAM, n)
    if fn == 0:
        gather(out + pos * osize, args + RUN_OPERANDS, pos, stop - pos)
        return 0
    while pos < stop:
        count = min(stop - pos, most)
        for i in range(nin):
            op = args + RUN_OPERANDS + i * OPERAND
            if op.mode == 0:
                kargs[i] = op.start + pos * op.bytes
            elif op.mode == 2:
                kargs[i] = buffers + i * 16384
                gather(kargs[i], op, pos, count)
        kargs[nin] = out + pos * osize
        kargs[nin + 1] = count
        call(fn, kargs, 0, 1, scratch)
        pos += count
    return 0


def tw_eager_prepare_many(run, fn, nin, headers, out):
    n = elements(out)
    copy(run, [fn, n, nin, out.data, out.descr.size], 40)
    for i in range(nin):
        set_operand(run + RUN_OPERANDS + i * OPERAND, headers[i], out.nd, out.dims)
    return (n + PROGRAM - 1) // PROGRAM


def tw_eager_prepare(run, fn, nin, a, b, c, out):
    return tw_eager_prepare_many(run, fn, nin, [a, b, c], out)


def tw_transpose_run(args, begin, end, scratch):
    dst = args[0]
    src = args[1]
    rows = args[2]
    cols = args[3]
    ds = args[4]
    ss = args[5]
    size = args[6]
    step = args[7]
    first = begin * BAND
    stop = min(end * BAND, rows)
    whole = first + (stop - first) // 8 * 8
    if step != size and stop == rows:  # eight elements and the seven between them, never one behind the last
        whole = first + (stop - 1 - first) // 8 * 8
    if size != 4 and size != 8:
        whole = first
    for c in range(0, cols - 7, 8):
        for r in range(first, whole, 8):
            to = dst + r * ds + c * size
            source = src + r * step + c * ss
            if step == 4:
                transpose_4(to, source, ds, ss)
            elif size == 4:
                transpose_2_4(to, source, ds, ss)
            elif step == 8:
                transpose_8(to, source, ds, ss)
            else:
                transpose_2_8(to, source, ds, ss)
    for r in range(first, stop):
        k = c if r < whole else 0
        copy_run(dst + r * ds + k * size, src + r * step + k * ss, size, ss, cols - k)
    return 0


def is_transposed(h, side, least):
    if h.nd != 2:
        return 0
    size = h.descr.size
    rows = h.dims[0]
    columns = h.dims[1]
    return h.strides[0] == size and h.strides[1] > size and rows >= side and columns >= side and rows * columns >= least


def source_of(op, pos, count, buffer):
    if op.mode == 0:
        return op.start + pos * op.bytes
    gather(buffer, op, pos, count)
    return buffer


def reduce_row(fn, src, count, out, swap, scratch):
    call(fn, [src, count, out, count if swap else 1, 1 if swap else count], 0, 1, scratch)


def tw_reduce_run(args, begin, end, scratch):
    fn = args[0]
    row = args[2]
    out = args[4]
    osize = args[5]
    swap = args[6]
    op = args + 56
    buffer = stack(262144)
    parts = stack(65536)
    work = stack(1024)
    most = GATHERED if op.mode != 0 and op.bytes >= 4 and args[1] != 0 else ROW
    for k in range(begin, end):
        pos = k * row
        count = min(row, args[3] - pos)
        if count <= most or swap:
            reduce_row(fn, source_of(op, pos, count, buffer), count, out + k * osize, swap, work)
        else:
            c = 0
            for at in range(0, count, most):
                part = min(count - at, most)
                reduce_row(fn, source_of(op, pos + at, part, buffer), part, parts + c * osize, 0, work)
                c += 1
            reduce_row(args[1], parts, c, out + k * osize, 0, work)
    return 0


def tw_reduce_prepare(run, fn, fn2, row, n, out, swap, h):
    copy(run, [fn, fn2, row, n, out.data, out.descr.size, swap], 56)
    set_operand(run + 56, h, h.nd, h.dims)
    return (n + row - 1) // row
'''


AHEAD = 2048  # bytes that a gather asks for before it reads them: memory is not idle while the kernel computes


def _step_ir(step: int, size: int) -> str:
    """copy_<step>_<size>(to, from, count): elements `step` apart side by side, by vectors; gives how many were copied. A vector that would
    read behind the last element is left to the caller."""
    lanes, word = 64 // size, f"i{8 * size}"
    wide, name = lanes * max(step, 1), f"copy_{'m1' if step < 0 else step}_{size}"
    picks = ", ".join(f"i32 {lanes - 1 - k if step < 0 else k * step}" for k in range(lanes))
    at = f"  %f = sub i64 %from, %o\n  %s = sub i64 %f, {(lanes - 1) * size}\n" if step < 0 else "  %s = add i64 %from, %o\n"
    ahead = "".join(f"  %a{k} = getelementptr i8, ptr %sp, i64 {(AHEAD + 64 * k) * (1 if step > 0 else -1)}\n"
                    f"  call void @llvm.prefetch.p0(ptr %a{k}, i32 0, i32 3, i32 1)\n" for k in range(max(step, 1)))
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
{ahead}  %p = shufflevector <{wide} x {word}> %v, <{wide} x {word}> poison, <{lanes} x i32> <{picks}>
  %d = mul i64 %i, {size}
  %t = add i64 %to, %d
  %tp = inttoptr i64 %t to ptr
  store <{lanes} x {word}> %p, ptr %tp, align 1
  br label %test
out:
  ret i64 %i
}}
"""


STEPS = {f"copy_{'m1' if step < 0 else step}_{size}": (step, size)
         for step, size in ((2, 1), (2, 2), (2, 4), (3, 4), (4, 4), (-1, 4), (2, 8), (-1, 8))}


def vector_ir() -> str:
    """The functions among the externals of the host code that are written as LLVM text."""
    return "".join(_step_ir(step, size) for step, size in STEPS.values()) + "".join(
        transpose_ir(f"transpose_{size}" if step == 1 else f"transpose_{step}_{size}", 8, size, step) for size in (4, 8) for step in (1, 2))


GIVEN = (*STEPS, "transpose_4", "transpose_2_4", "transpose_8", "transpose_2_8")
