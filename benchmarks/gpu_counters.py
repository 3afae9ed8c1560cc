"""Measurements behind docs/internals/hypotheses.md that read the chip's counters (8, 9, 34, 46, 58), with times beside them.

    PYTHONPATH=src python benchmarks/gpu_counters.py          # times, then the counters through Nsight Compute where that is permitted

Each case is one kernel. Under `ncu` (the script starts it on itself) each runs once, with cold caches. A run that contradicts the table's
verdict ends with an error (verdicts.py).
"""

from __future__ import annotations

import csv
import io
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import torch
from gpu_hypotheses import emitted, launcher
from gpu_tools import timed
from hypotheses import conditional
from verdicts import claim, settle

from tilewright.core.dtypes import f32
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.runtime.cuda import driver as gpu
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile.builder import KernelBuilder
from tilewright.tile.passes import HoistInvariants, SplitLoops, optimise

SWEPT = (32, 64, 128, 192, 224, 256, 512, 1024)  # KB that a block reads again and again
SIDES = (1, 2, 4, 8, 16, 32, 64)  # elements of a thread in a kernel without loops inside
DEGREE, SIZE = 64, 4096
COUNTERS = {  # what is wanted, and names it may have
    "loads": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld",),
    "hits": ("l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_hit",),
    "fetches": ("sm__icc_requests",),
    "fetch_misses": ("sm__icc_requests_lookup_miss",),
    "instructions": ("smsp__inst_executed",),
    "waits": ("smsp__warps_issue_stalled_no_instruction", "smsp__warps_issue_stalled_no_inst"),
    "warps": ("smsp__warps_active",),
}


def swept(kb: int) -> KernelBuilder:
    """8, 34: every block reads the same `kb` KB again and again."""
    b = KernelBuilder(f"swept_{kb}")
    x, y, pieces, again = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("pieces"), b.index("again")
    with b.loop(0, again, 1, [b.full((1024,), 0.0)] * 4) as outer:
        with b.loop(0, pieces, 1, outer.carried) as loop:
            loop.next(*(s + b.load(x, (loop.index * 4096 + 1024 * i,), (1024,)) for i, s in enumerate(loop.carried)))
        outer.next(*loop.results)
    a, c, d, e = outer.results
    b.store(y, (b.pid * 1024,), (a + c) + (d + e))
    return b


def polynomials(side: int) -> KernelBuilder:
    """9: a polynomial of each element; code grows with the elements of a thread."""
    b = KernelBuilder(f"code_{side}")
    x, y, rounds = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("rounds")
    n = 256 * side
    with b.loop(0, rounds) as loop:
        at = ((b.pid * rounds + loop.index) * n,)
        t = b.load(x, at, (n,))
        total = b.full((n,), 1.0)
        for i in range(DEGREE):
            total = b.fma(total, t, b.full((n,), 0.5 + i))
        b.store(y, at, total)
    return b


def walked(tiled: bool) -> KernelBuilder:
    """46: sums of a matrix's columns: a program has one column, or a tile's eight, 256 rows after 256 rows."""
    b = KernelBuilder("walked_tiles" if tiled else "walked_columns")
    x, y, rows = b.view("x", f32, (SIZE, 1)), b.view("y", f32, (1,)), b.index("rows")
    columns = 8 if tiled else 1
    with b.loop(0, rows, 256, [b.full((256,), 0.0)] * columns) as loop:
        loop.next(*(s + b.load(x, (loop.index, b.pid * columns + i), (256,), axes=(0,)) for i, s in enumerate(loop.carried)))
    for i, s in enumerate(loop.results):
        b.store(y, ((b.pid * columns + i) * 256,), s)
    return b


def split(yes: bool) -> tuple[str, str]:
    """58: a loop with a condition, whole and split."""
    kernel = optimise(conditional(16_000, True), (HoistInvariants(), SplitLoops()) if yes else ())
    kernel.name = "loop_split" if yes else "loop_whole"
    made = BlockKernel(kernel.name, kernel.params, kernel.pid, kernel.body, threads=1, programs=128)
    return emit_block_kernel(made, cuda_target()), kernel.name


def cases() -> dict[str, Callable[[], None]]:
    x = torch.randn(SIZE, SIZE, device="cuda")
    y = torch.empty(SIZE, SIZE, device="cuda")
    found: dict[str, Callable[[], None]] = {}
    for kb in SWEPT:
        found[f"swept_{kb}"] = launcher(*emitted(swept(kb), 4), 132, [x, y, kb // 16, 4096 // kb * 4])
    for side in SIDES:
        rounds = SIZE * SIZE // (512 * 256 * side)
        found[f"code_{side}"] = launcher(*emitted(polynomials(side), min(side, 4)), 512, [x, y, rounds])
    for tiled in (False, True):
        name = "walked_tiles" if tiled else "walked_columns"
        found[name] = launcher(*emitted(walked(tiled)), SIZE // (8 if tiled else 1), [x, y, SIZE])
    for yes in (False, True):
        found["loop_split" if yes else "loop_whole"] = launcher(*split(yes), 132, [x, y, 8_000, 16_000, 132 * 128], 128)
    return found


def counted(names: list[str]) -> dict[str, dict[str, float]]:
    """Counters of each kernel, as far as there are such counters; says why there are none."""
    ncu = shutil.which("ncu") or "/usr/local/cuda/bin/ncu"
    known = subprocess.run([ncu, "--query-metrics", "--chip", "gh100"], capture_output=True, text=True, check=False).stdout
    there = {line.split()[0] for line in known.splitlines() if line[:1].isalpha()}
    wanted = {k: f"{n}.sum" for k, options in COUNTERS.items() for n in options if n in there}
    missing = sorted(set(COUNTERS) - set(wanted))
    if missing:
        print(f"      no counters for {', '.join(missing)}")
    ours = ["--kernel-name", f"regex:^({'|'.join(names)})$", "--clock-control", "none"]
    command = [ncu, "--csv", "--page", "raw", "--metrics", ",".join(wanted.values()), *ours, sys.executable, __file__, "once"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    start = done.stdout.find('"ID"')
    if start < 0:
        print("      no counters: " + " ".join((done.stdout + done.stderr).split())[-400:])
        return {}
    out: dict[str, dict[str, float]] = {}
    for row in csv.DictReader(io.StringIO(done.stdout[start:])):
        name = row.get("Kernel Name", "")
        if name in names:
            out[name] = {k: float(row[m].replace(",", "")) for k, m in wanted.items() if row.get(m)}
    return out


def main() -> None:
    gpu.enter()
    kernels = cases()
    if sys.argv[1:] == ["once"]:
        for run in kernels.values():
            run()
        torch.cuda.synchronize()
        return
    times = timed(kernels, 1, 9)
    found = counted(list(kernels))

    def say(number: str, name: str, per: float, unit: str) -> None:
        c: dict[str, Any] = found.get(name, {})
        words = [f"{times[name]:.1f} us", f"{per:.4g} {unit}"]
        if "hits" in c and c["loads"]:
            words.append(f"L1 misses {c['loads'] - c['hits']:.0f} of {c['loads']:.0f} sectors ({100 * c['hits'] / c['loads']:.1f} % hits)")
        if "fetch_misses" in c and c["instructions"]:
            words.append(f"instruction misses {c['fetch_misses']:.0f} ({1000 * c['fetch_misses'] / c['instructions']:.2f} per 1000)")
        if "waits" in c and c.get("warps"):
            words.append(f"{100 * c['waits'] / c['warps']:.1f} % of warp cycles wait for instructions")
        print(f"{number:6s}{name}: " + ", ".join(words), flush=True)

    for kb in SWEPT:
        say("8 34", f"swept_{kb}", 132 * kb * 1024 * (4096 // kb * 4) / times[f"swept_{kb}"] / 1e6, "TB/s")
    for side in SIDES:
        say("9", f"code_{side}", times[f"code_{side}"] / times["code_1"], "of the time of one element a thread")
    for key in ("fetch_misses", "waits"):
        series = [found[f"code_{s}"][key] / found[f"code_{s}"]["instructions"] for s in SIDES if key in found.get(f"code_{s}", {})]
        if len(series) == len(SIDES):
            correlation = statistics.correlation(SIDES, series)
            claim(9, correlation > 0.5, f"correlation of tile size with {key} an instruction: {correlation:.2f}")
    for name in ("walked_columns", "walked_tiles"):
        say("46", name, SIZE * SIZE * 4 / times[name] / 1e3, "GB/s")
    for name in ("loop_whole", "loop_split"):
        say("58", name, times[name] / times["loop_whole"], "of the whole loop's time")
    if all(k in c for c in found.values() for k in ("hits", "loads", "fetch_misses")) and found:
        hit = {kb: found[f"swept_{kb}"]["hits"] / found[f"swept_{kb}"]["loads"] for kb in SWEPT}
        claim(8, hit[32] > 0.9 and hit[1024] < 0.1, f"hits of L1 at 32 KB {hit[32]:.1%}, at 1 MB {hit[1024]:.1%}")
        claim(34, hit[256] >= 0.9, f"hits of L1 where tiles fill it on paper: {hit[256]:.1%}")
        missed = {n: found[n]["loads"] - found[n]["hits"] for n in ("walked_tiles", "walked_columns")}
        claim(46, missed["walked_tiles"] < missed["walked_columns"], f"sectors that miss L1: {missed}")
        lost = {n: found[n]["fetch_misses"] for n in ("loop_split", "loop_whole")}
        claim(58, lost["loop_split"] < lost["loop_whole"], f"instruction misses: {lost}")
    settle()


if __name__ == "__main__":
    main()
