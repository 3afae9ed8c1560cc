"""Host code of eager functions, first part: operands gathered through their strides, and kernels run over them. The language is that of
`target/cpu/host_code.py`; structures are described in `eager_host.py`."""
from __future__ import annotations

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
        if run > 64 and step == 4:
            done = copy_2_2(dst, src, run)
            dst += 2 * done
            src += step * done
        while dst < end:
            st16(dst, ld16(src))
            src += step
            dst += 2
    elif size == 1:
        if run > 128 and step == 2:
            done = copy_2_1(dst, src, run)
            dst += done
            src += step * done
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
    most = CHUNK
    i = 0
    while i < nin:
        op = args + RUN_OPERANDS + i * OPERAND
        mode = ld64(op + 16)
        st64(kargs + 8 * i, ld64(op))
        if ld64(op + 8) > 4:
            most = CHUNK // 2
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
    if fn == 0:
        op = args + RUN_OPERANDS
        gather(out + pos * osize, op, pos, stop - pos)
        return 0
    while pos < stop:
        count = stop - pos
        if count > most:
            count = most
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


def tw_transpose_run(args, begin, end, scratch):
    dst = ld64(args)
    src = ld64(args + 8)
    rows = ld64(args + 16)
    cols = ld64(args + 24)
    ds = ld64(args + 32)
    ss = ld64(args + 40)
    size = ld64(args + 48)
    step = ld64(args + 56)
    r = begin * BAND
    stop = end * BAND
    if stop > rows:
        stop = rows
    whole = r + (stop - r) // 8 * 8
    if step != size and stop == rows:  # eight elements and the seven between them, never one behind the last
        whole = r + (stop - 1 - r) // 8 * 8
    if size != 4 and size != 8:
        whole = r
    first = r
    c = 0
    while c + 8 <= cols:
        r = first
        if step == 4:
            while r < whole:
                transpose_4(dst + r * ds + c * 4, src + r * 4 + c * ss, ds, ss)
                r += 8
        elif size == 4:
            while r < whole:
                transpose_2_4(dst + r * ds + c * 4, src + r * 8 + c * ss, ds, ss)
                r += 8
        elif step == 8:
            while r < whole:
                transpose_8(dst + r * ds + c * 8, src + r * 8 + c * ss, ds, ss)
                r += 8
        else:
            while r < whole:
                transpose_2_8(dst + r * ds + c * 8, src + r * 16 + c * ss, ds, ss)
                r += 8
        c += 8
    r = first
    while r < stop:
        k = 0
        if r < whole:
            k = c
        copy_run(dst + r * ds + k * size, src + r * step + k * ss, size, ss, cols - k)
        r += 1
    return 0


def is_transposed(h, side, least):
    if ldi32(h + 24) != 2:
        return 0
    size = ld64(ld64(h + 56) + 40)
    strides = ld64(h + 40)
    dims = ld64(h + 32)
    rows = ld64(dims)
    columns = ld64(dims + 8)
    return ld64(strides) == size and ld64(strides + 8) > size and rows >= side and columns >= side and rows * columns >= least


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
    parts = stack(65536)
    work = stack(1024)
    most = ROW
    if ld64(op + 16) != 0 and ld64(op + 8) >= 4 and ld64(args + 8) != 0:
        most = GATHERED
    while begin < end:
        pos = begin * row
        count = row
        if count > n - pos:
            count = n - pos
        if count <= most or swap:
            reduce_row(fn, words, source_of(op, pos, count, buffer), count, out + begin * osize, swap, work)
        else:
            c = 0
            while c * most < count:
                part = count - c * most
                if part > most:
                    part = most
                reduce_row(fn, words, source_of(op, pos + c * most, part, buffer), part, parts + c * osize, 0, work)
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


def _transpose_ir(size: int, step: int = 1) -> str:
    """transpose_<size>(to, from, to's step, from's step): eight rows of eight elements, transposed. Three rounds where rows i and i + 4 are
    zipped into rows 2i and 2i + 1 transpose them. The elements of a row lie `step` apart."""
    word, lines = f"i{8 * size}", []
    every = ", ".join(f"i32 {step * k}" for k in range(8))
    for k in range(8):
        lines += [f"  %s{k} = mul i64 %ss, {k}", f"  %p{k} = add i64 %from, %s{k}", f"  %q{k} = inttoptr i64 %p{k} to ptr",
                  f"  %w{k} = load <{8 * step} x {word}>, ptr %q{k}, align 1",
                  f"  %r0.{k} = shufflevector <{8 * step} x {word}> %w{k}, <{8 * step} x {word}> poison, <8 x i32> <{every}>"]
    low, high = (", ".join(f"i32 {k // 2 + start + 8 * (k % 2)}" for k in range(8)) for start in (0, 4))
    for turn in range(3):
        for k in range(4):
            pair = f"<8 x {word}> %r{turn}.{k}, <8 x {word}> %r{turn}.{k + 4}"
            lines += [f"  %r{turn + 1}.{2 * k} = shufflevector {pair}, <8 x i32> <{low}>",
                      f"  %r{turn + 1}.{2 * k + 1} = shufflevector {pair}, <8 x i32> <{high}>"]
    for k in range(8):
        lines += [f"  %d{k} = mul i64 %ds, {k}", f"  %t{k} = add i64 %to, %d{k}", f"  %o{k} = inttoptr i64 %t{k} to ptr",
                  f"  store <8 x {word}> %r3.{k}, ptr %o{k}, align 1"]
    body = "\n".join(lines)
    name = f"transpose_{size}" if step == 1 else f"transpose_{step}_{size}"
    return f"define internal i64 @{name}(i64 %to, i64 %from, i64 %ds, i64 %ss) nounwind {{\n{body}\n  ret i64 0\n}}\n"


STEPS = {f"copy_{'m1' if step < 0 else step}_{size}": (step, size)
         for step, size in ((2, 1), (2, 2), (2, 4), (3, 4), (4, 4), (-1, 4), (2, 8), (-1, 8))}


def vector_ir() -> str:
    """The functions among the externals of the host code that are written as LLVM text."""
    return "".join(_step_ir(step, size) for step, size in STEPS.values()) + "".join(
        _transpose_ir(size, step) for size in (4, 8) for step in (1, 2))


GIVEN = (*STEPS, "transpose_4", "transpose_2_4", "transpose_8", "transpose_2_8")
