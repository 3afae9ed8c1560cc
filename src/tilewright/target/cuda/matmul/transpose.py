"""Transposing a matrix through shared memory: a block copies a square, reading along one axis and writing along the other (or the same,
where only the distance of rows changes)."""

from __future__ import annotations

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import TransposeKernel
from ....kernels.matmul.cuda.copied_operands import SIDE
from ..ptx.text import KernelText, module_text
from ..threads.access import Address
from ..threads.emit import Emitter
from ..threads.layout import Group

THREADS = 256


def emit_transpose(kernel: TransposeKernel, target: TargetSpec) -> str:
    """target[o, b, r, c] = source[o, b, r, c], source contiguous along r, target along c."""
    k = KernelText(kernel.name, [])
    e, v = Emitter(kernel, Group(1, 1), k), k.value
    e.parameters(["rows", "columns", "tiles_r", "tiles_c", "inner"])
    rows, columns, tiles_r, tiles_c, inner = (v("i32", f"cvt.u32.u64 {{}}, {e.word(i)};") for i in range(5))
    block, tid = v("i32", "mov.u32 {}, %ctaid.x;"), v("i32", "mov.u32 {}, %tid.x;")
    area = v("i32", f"mul.lo.u32 {{}}, {tiles_r}, {tiles_c};")
    batch, inside = v("i32", f"div.u32 {{}}, {block}, {area};"), v("i32", f"rem.u32 {{}}, {block}, {area};")
    row = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'rem.u32 {{}}, {inside}, {tiles_r};')}, {SIDE};")
    column = v("i32", f"mul.lo.u32 {{}}, {v('i32', f'div.u32 {{}}, {inside}, {tiles_r};')}, {SIDE};")
    outer, batch = v("i32", f"div.u32 {{}}, {batch}, {inner};"), v("i32", f"rem.u32 {{}}, {batch}, {inner};")
    fast, slow = v("i32", f"and.b32 {{}}, {tid}, {SIDE - 1};"), v("i32", f"shr.u32 {{}}, {tid}, {SIDE.bit_length() - 1};")
    item = kernel.item
    pitch = SIDE * item + max(item, 4)  # keeps a warp's accesses along either axis in different banks
    scratch = v("i32", f"add.u32 {{}}, {v('i32', 'mov.u32 {}, scratch;')}, {k.alloc_shared(SIDE * pitch)};")
    kind, ty = f"b{8 * item}", {2: "half", 8: "i64"}.get(item, "i32")

    def start(view: object, r: str, c: str) -> tuple[str, list[str]]:
        """Address of an element and the strides in bytes."""
        address = e.env[view]  # type: ignore[index]
        assert isinstance(address, Address)
        size = address.dtype.itemsize
        steps = [v("i64", f"mul.lo.s64 {{}}, {s}, {size};") if s.startswith("%") else str(int(s) * size) for s in address.strides]
        at = address.pointer
        for x, s in zip((outer, batch, r, c), steps, strict=True):
            at = v("i64", f"mad.lo.s64 {{}}, {v('i64', f'cvt.u64.u32 {{}}, {x};')}, {s}, {at};")
        return at, steps

    def loaded(good: str, at: str) -> str:
        reg = k.reg(ty)
        k.emit(f"@{good} ld.global.nc.{kind} {reg}, [{at}];")
        return reg

    def sweep(outer: str, limit: str, at: str, step: str, guard: str, there: str, hop: int, load: bool) -> None:
        """One element for every fourth line of the square."""
        hop_at = v("i64", f"mul.lo.s64 {{}}, {step}, {THREADS // SIDE};") if step.startswith("%") else str(int(step) * THREADS // SIDE)
        for i in range(0, SIDE, THREADS // SIDE):
            here = v("i32", f"add.u32 {{}}, {outer}, {i};")
            good = v("i1", f"and.pred {{}}, {v('i1', f'setp.lt.u32 {{}}, {here}, {limit};')}, {guard};")
            reg = k.reg(ty)
            if load:
                reg = loaded(good, at)
                k.emit(f"@{good} st.shared.{kind} [{there}+{i * hop}], {reg};")
            else:
                k.emit(f"@{good} ld.shared.{kind} {reg}, [{there}+{i * hop}];")
                k.emit(f"@{good} st.global.{kind} [{at}], {reg};")
            at = v("i64", f"add.s64 {{}}, {at}, {hop_at};")

    if kernel.straight:
        r, c = v("i32", f"add.u32 {{}}, {row}, {slow};"), v("i32", f"add.u32 {{}}, {column}, {fast};")
        ends = [start(view, r, c) for view in (kernel.source, kernel.target)]
        ok = v("i1", f"setp.lt.u32 {{}}, {c}, {columns};")
        places = [at for at, _ in ends]
        hops = [v("i64", f"mul.lo.s64 {{}}, {steps[2]}, {THREADS // SIDE};") for _, steps in ends]
        for i in range(0, SIDE, THREADS // SIDE):
            here = v("i32", f"add.u32 {{}}, {r}, {i};")
            good = v("i1", f"and.pred {{}}, {v('i1', f'setp.lt.u32 {{}}, {here}, {rows};')}, {ok};")
            reg = loaded(good, places[0])
            k.emit(f"@{good} st.global.{kind} [{places[1]}], {reg};")
            places = [v("i64", f"add.s64 {{}}, {at}, {hop};") for at, hop in zip(places, hops, strict=True)]
        return module_text(target.cpu, k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))
    # in: neighbours along rows, line by line of columns; the square in shared memory has rows along columns
    r, c = v("i32", f"add.u32 {{}}, {row}, {fast};"), v("i32", f"add.u32 {{}}, {column}, {slow};")
    at, steps = start(kernel.source, r, c)
    there = v("i32", f"mad.lo.u32 {{}}, {fast}, {pitch}, {scratch};")
    there = v("i32", f"mad.lo.u32 {{}}, {slow}, {item}, {there};")
    sweep(c, columns, at, steps[3], v("i1", f"setp.lt.u32 {{}}, {r}, {rows};"), there, item, True)
    k.emit("bar.sync 0;")
    r, c = v("i32", f"add.u32 {{}}, {row}, {slow};"), v("i32", f"add.u32 {{}}, {column}, {fast};")
    at, steps = start(kernel.target, r, c)
    there = v("i32", f"mad.lo.u32 {{}}, {slow}, {pitch}, {scratch};")
    there = v("i32", f"mad.lo.u32 {{}}, {fast}, {item}, {there};")
    sweep(r, rows, at, steps[2], v("i1", f"setp.lt.u32 {{}}, {c}, {columns};"), there, pitch, False)
    return module_text(target.cpu, k.text([f".maxntid {THREADS}, 1, 1"], target.cpu))
