"""Attention of one query row per head, a block per head, as PTX: the tile IR of the groups, their results put together through shared
memory in order, the tile IR
of the consumers on one thread per column."""

from __future__ import annotations

import math

from ...core.target_spec import TargetSpec
from ...kernels.cuda.kernel import DecodeKernel
from ...tile.ir import Block, TileType
from .emit import Emitter
from .layout import Group, Regs
from .ptx_text import KernelText, literal, module_text

NEVER, ZERO, ONE = (literal("float", x) for x in (-math.inf, 0.0, 1.0))
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
    tops, totals = [k.reg("float") for _ in range(groups)], [k.reg("float") for _ in range(groups)]
    for i in range(groups):
        k.emit(f"ld.shared.v2.f32 {{{tops[i]}, {totals[i]}}}, [{base}+{stats + 8 * i}];")
    best = tops
    while len(best) > 1:
        best = [v("float", f"max.f32 {{}}, {best[i]}, {best[i + 1]};") for i in range(0, len(best), 2)]
    known = v("float", f"selp.f32 {{}}, {ZERO}, {best[0]}, {v('i1', f'setp.eq.f32 {{}}, {best[0]}, {NEVER};')};")
    column = v("i32", f"mad.lo.u32 {{}}, {tid}, 4, {base};")
    weight_sum, value = ZERO, ZERO
    for i in range(groups):
        away = v("float", f"mul.rn.f32 {{}}, {v('float', f'sub.rn.f32 {{}}, {tops[i]}, {known};')}, {LOG2E};")
        weight = v("float", f"ex2.approx.ftz.f32 {{}}, {away};")
        weight_sum = v("float", f"fma.rn.f32 {{}}, {weight}, {totals[i]}, {weight_sum};")
        found = v("float", f"ld.shared.f32 {{}}, [{column}+{sums + i * d * 4}];")
        value = v("float", f"fma.rn.f32 {{}}, {weight}, {found}, {value};")
    nothing = v("i1", f"setp.eq.f32 {{}}, {weight_sum}, {ZERO};")
    value = v("float", f"div.rn.f32 {{}}, {value}, {v('float', f'selp.f32 {{}}, {ONE}, {weight_sum}, {nothing};')};")
    after = Emitter(kernel, Group(d, 1), k)
    after.env = {**e.env, kernel.acc: Regs(kernel.acc.type, {(0, 0): value})}
    after.block(Block([], kernel.body.body[kernel.split :]))
    k.place(end)
    return module_text(target.cpu, k.text([f".maxntid {kernel.block}, 1, 1"], target.cpu))
