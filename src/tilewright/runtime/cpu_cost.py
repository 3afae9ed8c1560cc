"""The cost of a launch on a CPU, from its tile IR: no run is needed.

The roofline takes what the launch must do (its flops and bytes, and the vector functions of its elements) at the machine's peaks. The
prediction takes what a typical program does (`tile/work.py`): operations on registers at the rate of multiply-adds, accesses at the
bandwidth of L1, single elements, dependent steps; or the bytes of the launch at the level of the memory that holds them, where that takes
longer. Programs are dealt to threads in equal parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.dims import evaluate
from ..core.dtypes import bf16, f64
from ..core.target_spec import TargetSpec
from ..kernels.launch import Word, roots
from ..plan.barriers import is_serial
from ..target.cpu.vmath.functions import instructions
from ..tile.ir import Kernel
from ..tile.work import Work, typical_work
from .cost import Cost
from .cost import numbers as numbers_of
from .executable import CpuExecutable, Instance
from .machine import Peaks

COLD_NS = 500.0  # added to a launch whose code and arguments are used for the first time in a call
COLLISION = 10.0  # multiply-adds in the time that an access to a crowded set of a cache takes
GATHER = 2.0  # multiply-adds in the time of one element that is loaded or stored by itself
WIDE = 2.5  # multiply-adds in the time of which as many instructions of all kinds are issued
PER_CYCLE = 2.0  # multiply-adds
PACK = ".pack"  # how launches are called that pack an operand


@dataclass(frozen=True)
class Facts:
    """A launch at one shape, beside its kernel: argument words (None for pointers), programs, the work that its ops ask for."""

    words: tuple[int | None, ...]
    grid: int
    flops: int
    bytes: int
    constants: int = 0  # bytes of weights, which wait in memory from call to call ...
    resident: int = 0  # ... among this many bytes that the whole call touches
    packs: bool = False  # it packs an operand of the call


def launch_costs(executable: CpuExecutable, instance: Instance, target: TargetSpec, peaks: Peaks, alone: Peaks) -> list[Cost]:
    """The cost of every launch of a schedule, in order; of one in a loop for all of its runs."""
    ways = [way for launch in executable.launches for way in launch.ways]
    sizes = {c.buffer: int(a.nbytes) for c, a in zip(executable.program.constants, executable.constants, strict=True)}
    resident = sum(sizes.values()) + instance.placement.size
    known: dict[tuple[str, Facts], Cost] = {}
    found = []
    for row, launch in zip(executable.costs(instance), executable.launches, strict=True):
        way, times = ways[int(instance.ways[row["launch"]])], max(1, row["times"])
        words = tuple(evaluate(a.value, instance.env) if isinstance(a, Word) else None for a in way.arguments)
        once = times == 1  # what a loop reads again is nearer
        constants = sum(sizes.get(b, 0) for b in {r for x in launch.reads for r in roots(x)}) if once else 0
        facts = Facts(words, row["grid"], row["flops"] // times, row["bytes"] // times, constants, resident if once else 0,
                      launch.name.endswith(PACK))  # fmt: skip
        key = row["kernel"], facts
        if key not in known:
            kernel = way.kernel if way.kernel.body.body else executable.kernel(row["kernel"])  # a loaded session has it as text
            known[key] = predict(kernel, facts, target, peaks, alone)
        found.append(known[key].times(times))
    return found


def predict(kernel: Kernel, facts: Facts, target: TargetSpec, peaks: Peaks, alone: Peaks) -> Cost:
    """The cost of one launch on the machine of `peaks`; `alone`: the peaks of one of its threads."""
    small = bool(is_serial(2, facts.flops, facts.bytes))  # too little to divide: one thread is what it should take
    limit, lanes, grid = alone if small else peaks, target.lanes(4), facts.grid
    work = typical_work(kernel, facts.words, grid, lanes)
    numbers = _numbers(kernel, work, products=facts.flops > 4 * facts.bytes)
    length = {key: instructions(key[0], "double" if key[1] == "f64" else "float", target) for key in work.math}
    functions = grid * sum(2 * n * length[key] * (2 if key[1] == "f64" else 1) for key, n in work.math.items())
    where = {"constants": facts.constants, "resident": facts.resident}
    least, bound = limit.least(facts.flops, facts.bytes, numbers=numbers, math=functions, **where)
    start = limit.launch + COLD_NS
    if least < start:
        least, bound = start, "launch"
    if work.unknown:
        return Cost(least / 1e3, least / 1e3, bound, "loops whose length depends on data, or native functions: not predicted")
    fma = 2 * lanes / alone.flops  # nanoseconds of a multiply-add of one register on one thread
    packed = sum(n * per / alone.packed.get(kind, per) for kind, per in (("bf16", 2), ("i8", 4)) for n in [work.packed.get(kind, 0.0)])
    parts = {
        "arithmetic": work.arithmetic * fma,
        "functions": sum(n * length[key] for key, n in work.math_registers.items()) * fma,
        "products": packed * fma + sum(n / alone.rate(kind) for kind, n in work.tiles.items()),
        "elements": work.gathered * GATHER * fma,
        "collisions": work.colliding * COLLISION * fma,
    }
    busy = sum(parts.values())
    parts["accesses"] = work.accesses * target.vector_bits / 8 / alone.levels[0].bytes
    parts["chain"] = work.chain * PER_CYCLE * fma
    issue = (busy + parts["accesses"] + work.index * fma / 2) / WIDE
    threads = 1 if small else max(1, min(peaks.threads, grid))
    compute = max(busy, parts["accesses"], parts["chain"], issue) * -(-grid // threads)
    memory, _ = (limit if threads > 1 else alone).moving(facts.bytes, **where)
    ns = max(max(compute, memory) + start, least)
    why = [f"{grid} program{'s' * (grid > 1)} for {peaks.threads} threads"] if grid < peaks.threads and not small else []
    why += _reasons(work, parts, busy, facts, lanes, numbers) if compute >= memory else []
    return Cost(ns / 1e3, least / 1e3, bound, "; ".join(why))


def _numbers(kernel: Kernel, work: Work, *, products: bool) -> str:
    """The numbers whose rate is the ceiling: packed ones where the kernel multiplies them, or could."""
    if "i8" in work.packed or "i8" in work.tiles:
        return "i8"
    if "bf16" in work.packed or "bf16" in work.tiles or (products and numbers_of(kernel) is bf16):
        return "bf16"
    return "f64" if numbers_of(kernel) is f64 else "f32"


def _reasons(work: Work, parts: dict[str, float], busy: float, facts: Facts, lanes: int, numbers: str) -> list[str]:
    """What a program spends its time on, where that is not the work that was asked for."""
    total, why = max(busy, parts["accesses"], parts["chain"], 1e-9), []
    if parts["chain"] > 0.7 * total:
        why.append("one dependent chain: every step waits for the one before")
    if parts["elements"] > 0.3 * total:
        why.append("elements are read or written one by one (strided or gathered)")
    if parts["collisions"] > 0.3 * total:
        why.append("rows lie a multiple of the page size apart and crowd into few sets of the cache")
    if parts["arithmetic"] > 0.3 * total and work.elements < 0.3 * lanes * work.arithmetic:
        why.append(f"scalar code: {work.elements / work.arithmetic:.1f} of {lanes} lanes do something")
    if parts["functions"] > 0.5 * total:
        why.append(f"bound by vector functions ({max(work.math, key=lambda key: work.math[key])[0]})")
    if numbers == "bf16" and work.widened and not work.packed and not work.tiles:
        why.append("16-bit operands are widened to f32")
    if facts.packs:
        why.append("packs an operand that is known only in the call")
    if parts["accesses"] > 1.2 * busy:
        why.append(f"{work.accesses:.0f} loads and stores for {work.arithmetic + sum(work.packed.values()):.0f} operations on registers")
    return why
