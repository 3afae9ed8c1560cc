"""Measurements behind docs/internals/hypotheses.md that need no GPU. One line each: number, what is compared, ratio. A run that
contradicts the table's verdict ends with an error (verdicts.py).

    PYTHONPATH=src python benchmarks/hypotheses.py [numbers…]
"""

from __future__ import annotations

import ctypes
import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from verdicts import claim, settle

from tilewright.core.dtypes import f32
from tilewright.core.target_spec import TargetSpec
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.target.cpu.emit import emit_kernel
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.jit import Library, compile_ir
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile import tokens
from tilewright.tile.builder import KernelBuilder, Tile
from tilewright.tile.ir import Kernel
from tilewright.tile.passes import FuseMultiplyAdd, HoistInvariants, SplitLoops, TilePass, copy_kernel, optimise
from tilewright.tile.text import to_text

CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
LANES = 16


class Native:
    """A kernel as native code over fixed arguments."""

    def __init__(self, kernel: Kernel, arguments: Sequence[Any], target: TargetSpec, passes: Sequence[TilePass] = ()) -> None:
        made = optimise(kernel, passes)
        self.library = Library([compile_ir(emit_kernel(made, target), target)], [made.name])
        self.call = CALL(self.library.address(made.name))
        self.keep = arguments
        self.words = (ctypes.c_int64 * len(arguments))(*(a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments))
        self.scratch = np.zeros(1 << 16, np.uint8)

    def __call__(self) -> None:
        self.call(ctypes.addressof(self.words), 0, 1, self.scratch.ctypes.data)


def fastest(calls: dict[str, Callable[[], Any]], repeats: int = 41, inner: int = 20) -> dict[str, float]:
    """Median microseconds of one call, taken in turn."""
    taken: dict[str, list[float]] = {n: [] for n in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(inner):
                call()
            taken[name].append((time.perf_counter() - start) / inner * 1e6)
    return {n: statistics.median(t) for n, t in taken.items()}


def dot(n: int, chains: int = 4) -> Kernel:
    """y = Σ x · w over n elements in `chains` sums of 16 lanes."""
    b = KernelBuilder("dot")
    x, w, y = b.view("x", f32, (1,)), b.view("w", f32, (1,)), b.view("y", f32, (1,))
    with b.contracting(), b.loop(0, n, LANES * chains, carried=[b.full((LANES,), 0.0)] * chains) as loop:
        places = [loop.index + LANES * i for i in range(chains)]
        loop.next(*(s + b.load(x, [p], (LANES,)) * b.load(w, [p], (LANES,)) for s, p in zip(loop.carried, places, strict=True)))
    total = loop.results[0]
    for s in loop.results[1:]:
        total = total + s
    b.store(y, [0], total)
    return b.build()


def polynomial(degree: int = 7) -> Kernel:
    b = KernelBuilder("polynomial")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    with b.contracting():
        t = b.load(x, [0], (LANES,))
        total = b.full((LANES,), 1.0)
        for i in range(degree):
            total = total * t + (0.5 + i)
        b.store(y, [0], total)
    return b.build()


def fusion() -> None:
    """16, 17, 20, 30 and the gate: fused multiply-adds."""
    for name, kernel in (("dot product", dot(4096, 1)), ("polynomial of degree 7", polynomial())):
        counts = [sum(i.op not in ("full", "for", "store") and not i.op.startswith("index") for i in k.walk())
                  for k in (kernel, optimise(kernel, [FuseMultiplyAdd()]))]  # fmt: skip
        fewer = 1 - counts[1] / counts[0]
        claim(16, 0.3 < fewer < 0.37, f"{name}: {counts[0]} instructions, {counts[1]} with fusion: {fewer:.0%} fewer")
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((2000, 1024)).astype(np.float32) for _ in range(2))
    plain, fused = np.zeros(2000, np.float32), np.zeros(2000, np.float32)
    for i in range(1024):
        product = a[:, i].astype(np.float64) * b[:, i]
        plain = plain + product.astype(np.float32)
        fused = (fused + product).astype(np.float32)
    exact = (a.astype(np.float64) * b).sum(1)
    errors = [float(np.abs(x - exact).mean()) for x in (plain, fused)]
    claim(17, errors[1] < errors[0], f"sums of 1024 products, mean error fused over plain: {errors[1] / errors[0]:.3f}")
    data = [rng.standard_normal(100_352).astype(np.float32) for _ in range(2)] + [np.zeros(LANES, np.float32)]
    small = [d[:8192] for d in data]
    for level in ("avx2", "native"):
        target = host_target(level=level)  # type: ignore[arg-type]
        for name, args in (("100,000", data), ("8,192", small)):
            kernel = dot(len(args[0]))
            calls = {n: Native(kernel, args, target, p) for n, p in (("off", ()), ("on", (FuseMultiplyAdd(),)))}
            times = fastest(calls)
            text = f"dot product of {name} on {level}, fusion: {times['off'] / times['on']:.3f} x as fast (the gate wants 1.10)"
            print(f"20    {text}") if name == "8,192" or level != "avx2" else claim(20, times["off"] >= 1.1 * times["on"], text)
    b2 = KernelBuilder("polynomials")
    x2, y2 = b2.view("x", f32, (1,)), b2.view("y", f32, (1,))
    with b2.contracting(), b2.loop(0, 8192, LANES) as loop:
        t = b2.load(x2, [loop.index], (LANES,))
        total = b2.full((LANES,), 1.0)
        for i in range(12):
            total = total * t + (0.5 + i)
        b2.store(y2, [loop.index], total)
    kernel = b2.build()
    values = [rng.standard_normal(8192).astype(np.float32), np.zeros(8192, np.float32)]
    target = host_target(level="avx2")
    times = fastest({n: Native(kernel, values, target, p) for n, p in (("off", ()), ("on", (FuseMultiplyAdd(),)))})
    print(f"20    polynomials of degree 12 on avx2, fusion: {times['off'] / times['on']:.3f} x as fast")
    sizes = {}
    for n in (1000, 2000, 4000, 8000):
        copies = [polynomial(n) for _ in range(3)]
        gc.collect()
        sizes[n] = min(_seconds(lambda k=k: FuseMultiplyAdd().run(k)) for k in copies)
    text = "the pass on chains: " + ", ".join(f"{n}: {t * 1e3:.1f} ms" for n, t in sizes.items())
    claim(30, sizes[8000] < 2 * 8 * sizes[1000], text)  # a square would be 64 times as long


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def conditional(n: int, heavy: bool) -> Kernel:
    """A loop that does more on one side of a split point, over masked tiles."""
    b = KernelBuilder("conditional")
    x, y, half, size = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("half"), b.index("size")
    with b.loop(0, n, LANES) as loop:
        i = loop.index
        t = b.load(x, [i], (LANES,), limit=[size - i])
        b.store(y, [i], t * 2.0, limit=[size - i])
        if heavy:
            with b.if_(b.compare("lt", i, half)):
                b.store(y, [i], t * t + 1.0, limit=[size - i])
    return b.build()


def splitting() -> None:
    """52, 57, 65 and the gate: loops with a split point."""
    target = host_target()
    for n in (1024, 16_000, 160_000):
        args = [np.ones(n, np.float32), np.zeros(n, np.float32), n // 2, n]
        kernel = conditional(n, True)
        ways = (("off", ()), ("on", (HoistInvariants(), SplitLoops())))
        times = fastest({k: Native(kernel, args, target, p) for k, p in ways}, inner=max(1, 200_000 // n))
        print(f"52    a loop of {n // LANES} rounds with a condition and masks, split: {times['off'] / times['on']:.3f} x as fast "
              "(the rule says profitable; gate loop splitting wants 1.15)")  # fmt: skip
    n = 160_000
    args = [np.ones(n, np.float32), np.zeros(n, np.float32), n, n]  # the split leaves one side empty: what is left is its cost
    kernel = conditional(n, False)
    times = fastest({k: Native(kernel, args, target, p) for k, p in (("off", ()), ("on", (SplitLoops(),)))}, inner=2)
    share = times["on"] / times["off"]
    claim(65, share < 1.01, f"{n // LANES} rounds where only masks go: split takes {share:.3f} of the time")
    text = {name: emit_block_kernel(_one_thread(optimise(conditional(4096, True), p)), cuda_target())
            for name, p in (("off", ()), ("on", (HoistInvariants(), SplitLoops())))}  # fmt: skip
    used = {k: assemble(t, "sm_90a").registers for k, t in text.items()}
    text = f"registers of that loop on sm_90a: {used['off']} whole, {used['on']} split (one allocation for the kernel)"
    claim(57, used["on"] < used["off"], text)


def _one_thread(k: Kernel) -> BlockKernel:
    return BlockKernel(k.name, k.params, k.pid, k.body, threads=1, programs=128)


def assembler() -> None:
    """12 and the gate: the assembler's time around the limit of registers."""
    taken = {}
    for elements in (64, 128, 256, 512):  # a thread has 255 registers: 512 floats do not fit, the others do
        b = KernelBuilder(f"wide{elements}")
        x, y, n = b.view("x", f32, (1,)), b.view("y", f32, (1,)), b.index("n")
        with b.loop(0, n, 1, [b.full((elements,), 0.0)]) as loop:
            t: Tile = b.load(x, [loop.index * elements], (elements,))
            for _ in range(4):
                t = b.fma(t, t, loop.carried[0])
            loop.next(t)
        b.store(y, [0], loop.results[0])
        text = emit_block_kernel(_one_thread(b.build()), cuda_target())
        usage: Any = None

        def run(text: str = text) -> None:
            nonlocal usage
            usage = assemble(text, "sm_90a")

        taken[elements] = min(_seconds(run) for _ in range(3))
        made = f"{usage.registers} registers, {usage.spilled} bytes spilled"
        text = f"tile of {elements} floats a thread: {taken[elements]:.2f} s of assembler, {made}"
        claim(12, taken[elements] > 60, text) if elements == 512 else print(f"12    {text}")
    print(f"gate  tile constraints: the largest tile that fits assembles {taken[512] / taken[256]:.2f} x as fast as twice it (wants 1.05)")


def token_size() -> None:
    """75: what tokens add to the text of kernels."""
    import tilewright.ops as o
    from tilewright.ir.graph import Graph
    from tilewright.ir.types import TensorType
    from tilewright.kernels.select import select
    from tilewright.passes.pipeline import run_pipeline

    def kernels(build: Callable[..., Any], *shapes: tuple[int, ...]) -> list[Kernel]:
        g = Graph("k")
        g.outputs = [build(*(g.input(TensorType(f32, s), f"x{i}") for i, s in enumerate(shapes)))]
        target = host_target()
        return [k for x in select(run_pipeline(g, target), target).launches for k in x.kernels]

    attention = kernels(lambda q, k, v: o.Attention(scale=0.1)(q, k, v), *((1, 2, 64, 64),) * 3)
    others = kernels(lambda a, b: o.softmax(o.matmul(a, b), 1), (64, 64), (64, 64))
    for name, group in (("attention (scratch)", attention), ("a product and a softmax", others)):
        whole = sum(len(to_text(k)) for k in group)
        bare = 0
        for k in group:
            without = copy_kernel(k)
            tokens.strip(without)
            bare += len(to_text(without))
        text = f"{name}: tokens add {whole / bare - 1:.1%} to the text"
        claim(75, whole < 1.05 * bare, text) if group is attention else print(f"75    {text}")


def vectors() -> None:
    """90 and the gate on memory: wider registers; reading along and across."""
    rng = np.random.default_rng(2)
    args = [rng.standard_normal(8192).astype(np.float32), np.zeros(8192, np.float32)]
    b = KernelBuilder("chain")
    x, y = b.view("x", f32, (1,)), b.view("y", f32, (1,))
    with b.loop(0, 8192, LANES) as loop:
        b.store(y, [loop.index], b.unary("exp", b.load(x, [loop.index], (LANES,))) + 1.0)
    kernel = b.build()
    times = fastest({level: Native(kernel, args, host_target(level=level)) for level in ("baseline", "avx2", "avx512")})  # type: ignore[arg-type]
    wider = times["baseline"] > times["avx2"] > times["avx512"]
    claim(90, wider, "exp of 8,192 floats: " + ", ".join(f"{k} {v:.1f} us" for k, v in times.items()))
    n = 1024
    data = [rng.standard_normal((n, n)).astype(np.float32), np.zeros((n, n), np.float32)]
    ways = {}
    for name, across in (("along", False), ("across", True)):
        b = KernelBuilder(name)
        x, y = b.view("x", f32, (n, 1)), b.view("y", f32, (1, n) if across else (n, 1))
        with b.loop(0, n) as i, b.loop(0, n, LANES) as j:
            at = (j.index, i.index) if across else (i.index, j.index)
            t = b.load(x, at, (LANES,), axes=(0,) if across else (1,))
            b.store(y, at, t, axes=(0,) if across else (1,))
        ways[name] = Native(b.build(), data, host_target())
    times = fastest(ways, 15, 1)
    ratio = times["across"] / times["along"]
    print(f"gate  memory hierarchy, a million floats copied along rows: {ratio:.2f} x as fast as across (wants 1.20)")


SECTIONS = {"fusion": fusion, "splitting": splitting, "assembler": assembler, "tokens": token_size, "vectors": vectors}

if __name__ == "__main__":
    for section in sys.argv[1:] or SECTIONS:
        SECTIONS[section]()
    settle()
