"""Attention of one query row per head, a block per head, as PTX: the tile IR of the groups, their results put together through shared
memory in order, the tile IR
of the consumers on one thread per column."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import DecodeKernel
from ...tile.ir import Block, TileType
from .emit import Emitter
from .layout import Group, Regs
from .ptx_text import KernelText, literal, module_text

NEVER, ZERO, ONE = (literal("float", x) for x in (-math.inf, 0.0, 1.0))
AT_ONCE = 32  # groups of a round when results are put together
LOG2E = literal("float", 1.0 / math.log(2.0))


def emit_decode(kernel: DecodeKernel, target: TargetSpec) -> str:
    k = KernelText(kernel.name, [])
    v, d, groups = k.value, kernel.d, kernel.groups
    e = Emitter(kernel, Group(kernel.threads, kernel.vector), k)
    e.parameters()
    assert kernel.part is not None and kernel.acc is not None and isinstance(kernel.acc.type, TileType)
    tid = v("i32", "mov.u32 {}, %tid.x;")
    part = v("i32", f"shr.u32 {{}}, {tid}, {kernel.threads.bit_length() - 1};")
    e.env[kernel.pid] = v("i64", f"cvt.u64.u32 {{}}, {v('i32', 'mov.u32 {}, %ctaid.x;')};")
    e.env[kernel.part] = v("i64", f"cvt.u64.u32 {{}}, {part};")
    e.block(Block(kernel.body.params, kernel.body.body[: kernel.split]))
    sums, stats = k.alloc_shared(groups * d * 4), k.alloc_shared(groups * 8)
    base = v("i32", "mov.u32 {}, scratch;")
    lane = v("i32", f"and.b32 {{}}, {tid}, {kernel.threads - 1};")
    mine = v("i32", f"mad.lo.u32 {{}}, {part}, {d * 4}, {v('i32', f'mad.lo.u32 {{}}, {lane}, {kernel.vector * 4}, {base};')};")
    top, total, *halves = (e.tile(x) for x in kernel.found)
    for i, half in enumerate(halves):
        regs = ", ".join(half.values[key] for key in sorted(half.values))
        k.emit(f"st.shared.v{kernel.vector}.f32 [{mine}+{sums + i * d // 2 * 4}], {{{regs}}};")
    pair = ", ".join(next(iter(x.values.values())) for x in (top, total))
    here = v("i32", f"mad.lo.u32 {{}}, {part}, 8, {base};")
    k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {lane}, 0;')} st.shared.v2.f32 [{here}+{stats}], {{{pair}}};")
    k.emit("bar.sync 0;")
    end = k.label("end")
    if d < kernel.block:
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {tid}, {d};')} bra {end};")
    best, weight_sum, value = (k.reg("float") for _ in range(3))
    for register, start in ((best, NEVER), (weight_sum, ZERO), (value, ZERO)):
        k.emit(f"mov.f32 {register}, {start};")
    line, column = k.reg("i32"), k.reg("i32")

    def rounds(body: Callable[[int], None]) -> None:
        """`body` for every group, AT_ONCE at a time: more would not fit in registers."""
        k.emit(f"mov.u32 {line}, {base};")
        k.emit(f"mad.lo.u32 {column}, {tid}, 4, {base};")
        top_label, count = k.label("groups"), k.reg("i32")
        k.emit(f"mov.u32 {count}, {groups // AT_ONCE};")
        k.place(top_label)
        for i in range(AT_ONCE):
            body(i)
        k.emit(f"add.u32 {line}, {line}, {8 * AT_ONCE};")
        k.emit(f"add.u32 {column}, {column}, {4 * d * AT_ONCE};")
        k.emit(f"sub.u32 {count}, {count}, 1;")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {count}, 0;')} bra {top_label};")

    def largest(i: int) -> None:
        k.emit(f"max.f32 {best}, {best}, {v('float', f'ld.shared.f32 {{}}, [{line}+{stats + 8 * i}];')};")

    def weigh(i: int) -> None:
        top_i, total_i = k.reg("float"), k.reg("float")
        k.emit(f"ld.shared.v2.f32 {{{top_i}, {total_i}}}, [{line}+{stats + 8 * i}];")
        away = v("float", f"mul.rn.f32 {{}}, {v('float', f'sub.rn.f32 {{}}, {top_i}, {known};')}, {LOG2E};")
        weight = v("float", f"ex2.approx.ftz.f32 {{}}, {away};")
        k.emit(f"fma.rn.f32 {weight_sum}, {weight}, {total_i}, {weight_sum};")
        found = v("float", f"ld.shared.f32 {{}}, [{column}+{sums + i * d * 4}];")
        k.emit(f"fma.rn.f32 {value}, {weight}, {found}, {value};")

    rounds(largest)
    known = v("float", f"selp.f32 {{}}, {ZERO}, {best}, {v('i1', f'setp.eq.f32 {{}}, {best}, {NEVER};')};")
    rounds(weigh)
    nothing = v("i1", f"setp.eq.f32 {{}}, {weight_sum}, {ZERO};")
    result = v("float", f"div.rn.f32 {{}}, {value}, {v('float', f'selp.f32 {{}}, {ONE}, {weight_sum}, {nothing};')};")
    after = Emitter(kernel, Group(d, 1), k)
    after.env = {**e.env, kernel.acc: Regs(kernel.acc.type, {(0, 0): result})}
    after.block(Block([], kernel.body.body[kernel.split :]))
    k.place(end)
    return module_text(target.cpu, k.text([f".maxntid {kernel.block}, 1, 1"], target.cpu))
