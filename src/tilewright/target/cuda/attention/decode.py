"""Attention of one query row per head, a block or a cluster of blocks per head, as PTX: the tile IR of the groups, their results put
together in order through shared memory (of the first block, whose mbarrier counts what the others store there), the tile IR of the
consumers on one thread per column."""

from __future__ import annotations

import math
from collections.abc import Callable

from ....core.target_spec import TargetSpec
from ....kernels.cuda.kernel import DecodeKernel
from ....tile.ir import Block, TileType
from ..ptx.text import KernelText, arch_number, literal, module_text
from ..threads.emit import Emitter
from ..threads.layout import Group, Regs

NEVER, ZERO, ONE = (literal("float", x) for x in (-math.inf, 0.0, 1.0))
AT_ONCE = 32  # groups of a round when results are put together
LOG2E = literal("float", 1.0 / math.log(2.0))


def _weight(k: KernelText, top: str, best: str) -> str:
    """exp(top - best)."""
    away = k.value("float", f"sub.rn.f32 {{}}, {top}, {best};")
    return k.value("float", f"ex2.approx.ftz.f32 {{}}, {k.value('float', f'mul.rn.f32 {{}}, {away}, {LOG2E};')};")


def _within_warp(k: KernelText, state: list[str], threads: int, parts: int) -> list[str]:
    """Maximum, sum and weighted values of the groups of a warp put together; what its first group then holds is used."""
    v, reach = k.value, threads
    while reach < threads * parts:
        other = [v("float", f"shfl.sync.bfly.b32 {{}}, {x}, {reach}, 31, -1;") for x in state]
        best = v("float", f"max.f32 {{}}, {state[0]}, {other[0]};")
        known = v("float", f"selp.f32 {{}}, {ZERO}, {best}, {v('i1', f'setp.eq.f32 {{}}, {best}, {NEVER};')};")
        mine, theirs = (_weight(k, x, known) for x in (state[0], other[0]))
        scaled = [v("float", f"mul.rn.f32 {{}}, {x}, {mine};") for x in state[1:]]
        state = [best, *(v("float", f"fma.rn.f32 {{}}, {x}, {theirs}, {y};") for x, y in zip(other[1:], scaled, strict=True))]
        reach *= 2
    return state


def emit_decode(kernel: DecodeKernel, target: TargetSpec) -> str:
    k = KernelText(kernel.name, [])
    e = Emitter(kernel, Group(kernel.threads, kernel.vector), k)
    k.late = e.pending = k.starts_after_wait = kernel.early and arch_number(target.cpu) >= 90  # matrices would delay its few loads
    e.parameters()
    decode_program(kernel, e)
    directives = [f".maxntid {kernel.block}, 1, 1"] + [f".reqnctapercluster {kernel.cluster}, 1, 1"] * (kernel.cluster > 1)
    return module_text(target.cpu, k.text(directives, target.cpu), version="8.1" if kernel.cluster > 1 else "8.0")


def decode_program(kernel: DecodeKernel, e: Emitter) -> None:
    """One head; `e` has the parameters."""
    k = e.k
    v, d, groups = k.value, kernel.d, kernel.groups
    assert kernel.part is not None and kernel.acc is not None and isinstance(kernel.acc.type, TileType)
    tid = v("i32", "mov.u32 {}, %tid.x;")
    part = v("i32", f"shr.u32 {{}}, {tid}, {kernel.threads.bit_length() - 1};")
    program, rank, bar = v("i32", "mov.u32 {}, %ctaid.x;"), "", ""
    if kernel.cluster > 1:  # blocks of a head have runs of its groups
        bar = v("i32", f"add.u32 {{}}, {v('i32', 'mov.u32 {}, scratch;')}, {k.alloc_shared(8)};")
        rank = v("i32", "mov.u32 {}, %cluster_ctarank;")
        lead = v("i1", f"setp.eq.u32 {{}}, {v('i32', f'or.b32 {{}}, {tid}, {rank};')}, 0;")
        k.emit(f"@{lead} mbarrier.init.shared::cta.b64 [{bar}], 1;")
        k.emit("bar.warp.sync 0xffffffff;")  # one thread does both: racecheck does not know that it sees its own writes to a barrier
        k.emit(f"@{lead} mbarrier.arrive.expect_tx.shared::cta.b64 _, [{bar}], {groups // kernel.warp_parts * (d * 4 + 8)};")
        k.emit("fence.mbarrier_init.release.cluster;")
        k.emit("barrier.cluster.arrive.relaxed.aligned;")
        part = v("i32", f"mad.lo.u32 {{}}, {rank}, {groups // kernel.cluster}, {part};")
        program = v("i32", f"shr.u32 {{}}, {program}, {kernel.cluster.bit_length() - 1};")
    e.env[kernel.pid] = v("i64", f"cvt.u64.u32 {{}}, {program};")
    e.env[kernel.part] = v("i64", f"cvt.u64.u32 {{}}, {part};")
    e.block(Block(kernel.body.params, kernel.body.body[: kernel.split]))
    top, total, *halves = (e.tile(x) for x in kernel.found)
    state = [next(iter(x.values.values())) for x in (top, total)] + [h.values[key] for h in halves for key in sorted(h.values)]
    state = _within_warp(k, state, kernel.threads, kernel.warp_parts)
    groups //= kernel.warp_parts
    sums, stats = k.alloc_shared(groups * d * 4), k.alloc_shared(groups * 8)
    base = v("i32", "mov.u32 {}, scratch;")
    lane = v("i32", f"and.b32 {{}}, {tid}, {kernel.threads * kernel.warp_parts - 1};")
    if kernel.warp_parts > 1:
        part = v("i32", f"shr.u32 {{}}, {part}, {kernel.warp_parts.bit_length() - 1};")
    if kernel.cluster > 1:
        k.emit("barrier.cluster.wait.aligned;")  # the first block's barrier is ready
        there, bar_there = (v("i32", f"mapa.shared::cluster.u32 {{}}, {x}, 0;") for x in (base, bar))
        store, signal = "st.async.shared::cluster.mbarrier::complete_tx::bytes", f", [{bar_there}]"
    else:
        there, store, signal = base, "st.shared", ""
    mine = v("i32", f"mad.lo.u32 {{}}, {part}, {d * 4}, {v('i32', f'mad.lo.u32 {{}}, {lane}, {kernel.vector * 4}, {there};')};")
    first = v("i1", f"setp.lt.u32 {{}}, {lane}, {kernel.threads};")
    wide = min(kernel.vector, 4)
    for i in range(0, 2 * kernel.vector, wide):
        at = sums + i // kernel.vector * d // 2 * 4 + i % kernel.vector * 4
        regs = f"{{{', '.join(state[2 + i : 2 + i + wide])}}}" if wide > 1 else state[2 + i]
        k.emit(f"@{first} {store}{f'.v{wide}' if wide > 1 else ''}.f32 [{mine}+{at}], {regs}{signal};")
    here = v("i32", f"mad.lo.u32 {{}}, {part}, 8, {there};")
    k.emit(f"@{v('i1', f'setp.eq.u32 {{}}, {lane}, 0;')} {store}.v2.f32 [{here}+{stats}], {{{state[0]}, {state[1]}}}{signal};")
    end = k.label("end")
    if kernel.cluster > 1:
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {rank}, 0;')} bra.uni {end};")
    else:
        k.emit("bar.sync 0;")
    if d < kernel.block:
        k.emit(f"@{v('i1', f'setp.ge.u32 {{}}, {tid}, {d};')} bra {end};")
    if kernel.cluster > 1:
        again = k.label("arriving")
        k.place(again)
        k.emit(f"@!{v('i1', f'mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 {{}}, [{bar}], 0;')} bra {again};")
    best, weight_sum, value = (k.reg("float") for _ in range(3))
    for register, start in ((best, NEVER), (weight_sum, ZERO), (value, ZERO)):
        k.emit(f"mov.f32 {register}, {start};")
    line, column = k.reg("i32"), k.reg("i32")

    def rounds(body: Callable[[int], None]) -> None:
        """`body` for every group, AT_ONCE at a time: more would not fit in registers."""
        k.emit(f"mov.u32 {line}, {base};")
        k.emit(f"mad.lo.u32 {column}, {tid}, 4, {base};")
        top_label, count = k.label("groups"), k.reg("i32")
        at_once = min(AT_ONCE, groups)
        k.emit(f"mov.u32 {count}, {groups // at_once};")
        k.place(top_label)
        for i in range(at_once):
            body(i)
        k.emit(f"add.u32 {line}, {line}, {8 * at_once};")
        k.emit(f"add.u32 {column}, {column}, {4 * d * at_once};")
        k.emit(f"sub.u32 {count}, {count}, 1;")
        k.emit(f"@{v('i1', f'setp.ne.u32 {{}}, {count}, 0;')} bra {top_label};")

    def largest(i: int) -> None:
        k.emit(f"max.f32 {best}, {best}, {v('float', f'ld.shared.f32 {{}}, [{line}+{stats + 8 * i}];')};")

    def weigh(i: int) -> None:
        top_i, total_i = k.reg("float"), k.reg("float")
        k.emit(f"ld.shared.v2.f32 {{{top_i}, {total_i}}}, [{line}+{stats + 8 * i}];")
        weight = _weight(k, top_i, known)
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
