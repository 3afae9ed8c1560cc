"""The cost of a launch on a GPU: from flops, bytes, waves of blocks and the launch itself.

The roofline is the time of a launch that runs at the chip's rate for its numbers (tensor cores where they take them) or at its bandwidth,
and no less than one launch. The prediction is the time with what the kernel is: the units that its text uses, the SMs that its blocks
reach, and the threads that stand behind a program.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from ...core.dtypes import DType, f64
from ...core.target_spec import TargetSpec
from ...kernels.conv.cuda.kernels import ConvKernel, PatchKernel, WindowGradientKernel
from ...kernels.cuda.kernel import BlockKernel
from ...kernels.cuda.tiled import TiledKernel, multiply_adds
from ...tile.ir import Kernel
from ..cost import Cost, numbers
from .threads import Threads

SIDE_BY_SIDE = 64  # bytes of a program of one thread, at most, whose neighbours touch the memory beside it
LATENCY_US = 0.7  # latency of an access of memory under load: bytes in flight bound the bandwidth
RESIDENT = 2048  # threads of an SM
WAIT_US = 0.4  # the wait in a loop's step that reads memory
CLOCK, ISSUE = 1700.0, 3.0  # instructions of a warp in a microsecond, and warps of an SM that issue one at a time (four at best)
STEP, COPIED = 128, 60e3  # bytes of a row in a step of K, and bytes a microsecond that TMA brings an SM out of windows
GATHERED = 30e3  # ... that the threads of a block bring it
L2 = 5e6  # bytes a microsecond that the threads of all blocks bring to shared memory, most of them out of L2
TURN_US = 2.0  # from the start of a block that multiplies to its first product, and from its last to its end
LAUNCH_US = 2.0  # the time of a kernel in a graph that does next to nothing
PRODUCTS = ("gemm", "matmul", "thin", "grouped_matmul", "conv", "attention", "flash", "mma_grad", "gates")  # names of kernels of products


@dataclass(frozen=True)
class Rates:
    """What a chip does: TB/s of memory, TFLOP/s of the tensor cores by the bits of an element, of multiply-adds in f32 and f64."""

    memory: float
    tensor: dict[int, float]
    f32: float
    f64: float
    reach: int = 1  # an SM draws this many times its share of the bandwidth


CHIPS = {  # measured on an H200; the others from their data sheets
    "sm_90a": Rates(4.3, {8: 1500.0, 16: 750.0, 32: 380.0, 64: 60.0}, 50.0, 30.0, 2),
    "sm_80": Rates(1.8, {8: 560.0, 16: 280.0, 32: 140.0, 64: 17.0}, 18.0, 9.0, 2),
    "sm_120": Rates(1.6, {8: 380.0, 16: 190.0, 32: 95.0}, 90.0, 1.4, 2),
}


def _rate(chip: Rates, kernel: Kernel, dtype: DType, target: TargetSpec, text: str | None) -> float:
    """TFLOP/s of these numbers: what the chip has (no `text`), or what the units give that a kernel's text uses."""
    plain = chip.f64 if dtype is f64 else chip.f32
    if not kernel.name.startswith(PRODUCTS):
        return plain
    bits = 8 * dtype.itemsize
    rounded = any(i.attrs.get("precision") == "tf32" for i in kernel.walk() if i.op == "mma")
    tf32 = target.has("tf32") or rounded or (target.has("tf32-conv") and kernel.name.startswith("conv"))
    if text is None:
        return chip.tensor.get(bits, plain) if bits != 32 or tf32 else plain
    if "wgmma.mma_async" in text:
        return chip.tensor[bits]
    if "mma.sync" in text:
        return chip.tensor.get(bits, plain) * (0.5 if target.cpu == "sm_90a" and bits < 64 else 1.0)
    return plain


ACCESS = re.compile(r"^\s*(?:@!?%\w+ )?(?:(ld|st)\.global\S*?(?:\.(v2|v4))?\.[a-z]+(8|16|32|64) |(cp\.async\.c[ag])\S* .*?, (4|8|16)[,;])")

READ = re.compile(r"\bld\.global|\bcp\.async\.c")


@lru_cache(maxsize=512)
def bytes_in_flight(text: str) -> int:
    """Bytes that a thread asks for, at most, between two labels or branches of its code, or that it stores there if these are more: as many
    move while it waits. 0: TMA copies what the kernel reads, or it reads nothing."""
    if "cp.async.bulk" in text or not READ.search(text):
        return 0
    most, here = 0, {"ld": 0, "st": 0}
    for line in text.splitlines():
        found = ACCESS.match(line)
        if found is not None:
            here[found[1] or "ld"] += int(found[5]) if found[4] else int(found[3]) // 8 * {None: 1, "v2": 2, "v4": 4}[found[2]]
        elif line.rstrip().endswith(":") or " bra" in line:
            most, here = max(most, *here.values()), {"ld": 0, "st": 0}
    return max(most, *here.values())


def steps_of(kernel: Kernel, words: Sequence[int | None]) -> tuple[int, int]:
    """Tiles of a convolution by TMA, and the steps of K of each: few channels leave most of a step empty."""
    *_, steps, tiles = (0, 0, *words) if isinstance(kernel, ConvKernel) else (0, 0)
    parts = kernel.parts if isinstance(kernel, WindowGradientKernel) else 1  # K is cut in them, and each is a tile of its own
    return tiles or 0, -(-(steps or 0) // parts)


def predict(kernel: Kernel, blocks: int, threads: int, flops: float, nbytes: float, target: TargetSpec, text: str,
            one: Threads | None = None, steps: tuple[int, int] = (0, 0), shared: int = 0) -> Cost:
    """The cost of one launch of `blocks` blocks on a chip; `one`: what a thread of a program does, `steps`: see `steps_of`, `shared`: bytes
    of dynamic shared memory of a block."""
    chip, dtype = CHIPS[target.cpu], numbers(kernel)
    times = {
        "flops": flops / _rate(chip, kernel, dtype, target, None) / 1e6, "bytes": nbytes / chip.memory / 1e6, "launch": LAUNCH_US,
    }  # fmt: skip
    bound = max(times, key=lambda k: times[k])
    used = _rate(chip, kernel, dtype, target, text)
    slow = 1.0  # the share of that rate which few warps reach
    if isinstance(kernel, TiledKernel) and used == chip.f32 and one is not None and one.tile[0] and blocks:
        warps = min(-(-blocks // target.cores), max(3 if kernel.warps <= 4 else 2, kernel.per_sm)) * kernel.warps
        slow = min(1.0, multiply_adds(*one.tile, kernel.warps, warps, chained=kernel.name.startswith("attention")) / 50.0)
        used *= slow
    waves = -(-blocks // target.cores)
    sms = min(1.0, blocks / (waves * target.cores)) if waves else 1.0
    alone = isinstance(kernel, BlockKernel) and kernel.threads == 1 and kernel.vector == 1
    alone = alone and nbytes > SIDE_BY_SIDE * blocks * threads
    reach = min(1.0, sms * chip.reach) * (0.25 if alone else 1.0)
    compute = flops / (used * sms) / 1e6 * (8.0 if alone and flops > 64 * nbytes else 1.0)
    memory = nbytes / (chip.memory * reach) / 1e6
    flying = bytes_in_flight(text)
    if flying and blocks:
        each = min(RESIDENT, -(-blocks // target.cores) * threads)  # threads of an SM
        asked = min(blocks, target.cores) * each * flying / LATENCY_US
        few = asked < 0.5 * chip.memory * reach * 1e6
        memory = max(memory, nbytes / asked)
    why = []
    if isinstance(kernel, ConvKernel) and steps[0]:
        tiles, deep = steps
        rows = deep * (kernel.bm + (0 if kernel.kept else kernel.bn))
        if isinstance(kernel, PatchKernel):  # pixels once for all taps
            rows = deep * kernel.bn + deep // prod(kernel.taps) * prod(kernel.box)
        copied = -(-tiles // target.cores) * rows * STEP / COPIED
        if copied > 2 * max(compute, memory, LAUNCH_US):
            share = flops / (2.0 * tiles * deep * kernel.bm * kernel.bn * STEP / dtype.itemsize)
            why.append(f"{deep} steps of K, {100 * share:.0f} % of what they multiply is asked for")
        compute = max(compute, copied)
    if one is not None and one.left and isinstance(kernel, TiledKernel) and kernel.name.startswith("conv") and blocks:
        pixels = one.left * dtype.itemsize  # every tap of a window is gathered by itself
        gathered = -(-blocks // target.cores) * pixels / GATHERED
        if gathered > 2 * max(compute, memory, LAUNCH_US):
            why.append(f"windows are gathered {blocks * pixels / max(nbytes, 1.0):.0f} times over")
        compute = max(compute, gathered)
    if one is not None and one.tile[0] and isinstance(kernel, TiledKernel) and kernel.name.startswith(("matmul", "grouped")) and blocks:
        rows, columns = one.tile
        copied = flops * dtype.itemsize * (1 / rows + 1 / columns) / 2 / L2
        room = max(1, min(RESIDENT // threads, target.l1d // max(shared, 1)))
        turns = -(-blocks // (target.cores * room)) * TURN_US
        if max(copied, turns) > 2 * max(compute, memory, LAUNCH_US):
            why.append(f"tiles of {rows} by {columns} are copied" if copied > turns else f"{room} blocks of an SM take turns")
        compute = max(compute, copied, turns if turns > TURN_US else 0.0)
    if one is not None and blocks:
        programs = blocks * max(1, getattr(kernel, "programs", 1))
        wasted = one.products * programs / (used * sms) / 1e6
        resident = max(1, RESIDENT // max(threads, 1))
        rounds = -(-blocks // (target.cores * resident))
        mine = isinstance(kernel, BlockKernel) or one.singles  # else copies and products hide them
        instructions, waits = (one.instructions, one.waits) if mine else (0.0, 0.0)
        issue = blocks * threads / 32 * instructions / (ISSUE * min(blocks, target.cores) * CLOCK)
        waiting = rounds * (waits * WAIT_US + instructions / CLOCK)
        if max(issue, waiting) > 2 * max(compute, memory, LAUNCH_US):
            many = f"{instructions:.0f} instructions a thread"
            why.append(many if issue >= waiting else f"a thread waits for memory {waits:.0f} times")
        if wasted > 2 * max(compute, memory, LAUNCH_US):
            why.append(f"tiles multiply {one.products * programs / max(flops, 1.0):.0f} times what is asked for")
        compute = max(compute, wasted, issue, waiting)
    us = max(compute, memory) + LAUNCH_US if max(compute, memory) > LAUNCH_US / 2 else LAUNCH_US
    if sms < 0.5 and blocks < target.cores:
        why.append(f"{blocks} blocks of {threads} threads on {target.cores} SMs")
    best = _rate(chip, kernel, dtype, target, None)
    if slow < 0.6 and compute > max(memory, LAUNCH_US):
        why.append(f"{warps} warps of an SM multiply tiles of {one.tile if one else ''}")
    elif compute >= memory and used < 0.9 * best:
        why.append(f"{dtype} products run at {used:.0f} TFLOP/s, other units of the chip reach {best:.0f}")
    if flying and blocks and few and memory > max(compute, LAUNCH_US):
        why.append(f"{each} threads of an SM ask for {flying} bytes each at a time")
    if alone:
        why.append("one thread a program: nothing is coalesced")
    return Cost(us, times[bound], bound, "; ".join(why))
