"""Measurements behind docs/internals/hypotheses.md that need a GPU. One line each: number, what is compared, ratio. Those that read the
chip's counters are in gpu_counters.py. A run that contradicts the table's verdict ends with an error (verdicts.py).

    PYTHONPATH=src python benchmarks/gpu_hypotheses.py [sections…]
"""

from __future__ import annotations

import ctypes
import math
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_tools import measure, ours, rand, session, timed
from verdicts import claim, settle

import tilewright as tw
import tilewright.ops as o
from tilewright.core.dtypes import f32, i32, i64
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.kernels.matmul.cuda import gemv
from tilewright.kernels.matmul.cuda import hopper as matmul
from tilewright.kernels.pointwise.cuda import pointwise
from tilewright.kernels.pointwise.cuda import transpose as transposing
from tilewright.runtime.cuda import driver as gpu
from tilewright.runtime.cuda import executable as cuda_executable
from tilewright.runtime.cuda.modules import load_function
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.threads.emit import emit_block_kernel
from tilewright.tile.builder import KernelBuilder


def product(x: Any, w: Any) -> Any:
    return o.Matmul(transpose_b=True)(x, w)


def replaced(module: Any, name: str, value: Any, build: Callable[[], Any]) -> Any:
    """What `build` gives while a name of a module has another value."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        return build()
    finally:
        setattr(module, name, before)


def launcher(text: str, name: str, blocks: int, words: list[Any], threads: int = 256) -> Callable[[], None]:
    """A call that launches a kernel's text over tensors and numbers."""
    module, function = load_function(text, name, 0)
    values = (ctypes.c_int64 * len(words))(*(w.data_ptr() if isinstance(w, torch.Tensor) else w for w in words))
    places = (ctypes.c_void_p * len(words))(*(ctypes.addressof(values) + 8 * i for i in range(len(words))))

    def run(keep: Any = (module, values, words)) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        gpu.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, stream, ctypes.addressof(places), 0)

    return run


def emitted(b: KernelBuilder, vector: int = 1) -> tuple[str, str]:
    """Text and name of a kernel of blocks of 256 threads."""
    k = b.build()
    return emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=256, programs=1, vector=vector), cuda_target()), k.name


def kernel_time(b: KernelBuilder, blocks: int, words: list[Any], *, vector: int = 1, repeats: int = 15) -> float:
    """Median microseconds of it."""
    return timed({"kernel": launcher(*emitted(b, vector), blocks, words)}, 1, repeats)["kernel"]


def tiles() -> None:
    """1, 3, 7, 15: products with tiles of other shapes."""
    configs = {"128x256": (128, 256, 4), "128x192": (128, 192, 4), "128x128": (128, 128, 6), "64x256": (64, 256, 5), "64x64": (64, 64, 8)}
    gains = []
    for m, n, k in ((4096, 6144, 4096), (4096, 3072, 4096), (8192, 12288, 2048), (2048, 6144, 8192)):  # both tiles divide all of them
        a, b = rand(m, k), rand(n, k)
        chosen = configs if not gains else {x: configs[x] for x in ("128x256", "128x192")}
        calls = {}
        for name, c in chosen.items():
            config = matmul.Config(*c)
            built = replaced(matmul, "choose", lambda *_, config=config: config, lambda a=a, b=b: ours(session(product, a, b), a, b))
            calls[name] = built[0]
        times = measure(calls, 4)
        gains.append(times["128x192"] / times["128x256"])
        print(f"1 15  product {m}x{n}x{k}, power-of-two tile 128x256 against 128x192: {gains[-1]:.3f} x as fast")
        if len(chosen) > 2:
            ratio = times["64x256"] / times["128x128"]
            claim(3, abs(ratio - 1) < 0.05, f"128x128 against 64x256, as many elements: {ratio:.3f} x as fast")
            print(f"7     a product with 64x64 tiles takes {times['64x64'] / times['128x256']:.2f} of the time with 128x256")
    mean = math.exp(statistics.fmean(map(math.log, gains)))
    claim(1, mean >= 1.1, f"geometric mean of the {len(gains)}: {mean:.3f}")
    claim(15, mean >= 1.05, f"geometric mean of the {len(gains)}: {mean:.3f}")


def accesses() -> None:
    """7, 35: elements of a program, and the order of reads."""
    x = torch.randn(8192, 8192, device="cuda")
    calls = {"contiguous": ours(session(lambda v: o.Neg()(v), x), x)[0]}
    calls["transposed"] = ours(session(lambda v: o.Neg()(o.Transpose(perm=(1, 0))(v)), x), x)[0]
    one = replaced(pointwise, "group", lambda *_: (1, 1), lambda: ours(session(lambda v: o.Neg()(v), x), x))
    calls["small"] = one[0]
    times = measure(calls, 4)
    ratio = times["transposed"] / times["contiguous"]
    claim(35, ratio >= 4, f"reads along the row against reads across it: {ratio:.2f} x the bandwidth")
    ratio = times["small"] / times["contiguous"]
    claim(7, ratio >= 1.2, f"programs of 4 elements take {ratio:.3f} of the time of 2048 elements")


def unrolling() -> None:
    """23: pieces in flight."""
    x, w = rand(1, 4096), rand(14336, 4096)
    calls = {u: replaced(gemv, "plan", lambda *_, u=u: gemv.Plan(128, 2, u), lambda: ours(session(product, x, w), x, w))[0] for u in (1, 4)}
    times = measure({str(u): c for u, c in calls.items()}, 20)
    claim(23, times["1"] > times["4"], f"one row times a matrix, 4 pieces in flight against 1: {times['1'] / times['4']:.3f} x as fast")


def arithmetic() -> None:
    """24: fused multiply-adds against products, in registers."""
    times = {}
    for name in ("fma", "mul"):
        b = KernelBuilder(name)
        y, n = b.view("y", f32, (1,)), b.index("n")
        start = [b.full((256,), 1.0 + 0.1 * i) for i in range(8)]
        c = b.from_index(n, f32) * 0.0 + 1.0
        with b.loop(0, n, 1, start) as loop:
            values = loop.carried
            for _ in range(4):
                values = [b.fma(v, c, c) if name == "fma" else v * c for v in values]
            loop.next(*values)
        total = loop.results[0]
        for v in loop.results[1:]:
            total = total + v
        b.store(y, (b.pid * 256,), total)
        times[name] = kernel_time(b, 132 * 8, [torch.empty(132 * 8 * 256, device="cuda"), 2000])
    ratio = times["fma"] / times["mul"]
    claim(24, abs(ratio - 1) < 0.1, f"fma against mul, the same number: {ratio:.3f} of the time")


def addresses() -> None:
    """10, 36: shifts against products; a view with strides that come at run time against a plain pointer."""
    times = {}
    out = torch.zeros(132 * 8 * 256, device="cuda", dtype=torch.int64)
    for name in ("shift", "product"):
        b = KernelBuilder(name)
        y, n, w = b.view("y", i64, (1,)), b.index("n"), b.index("w")
        with b.loop(0, n, 1, [w + i for i in range(4)]) as loop:
            loop.next(*((b.index_op("shl", c, 3) if name == "shift" else c * w) + loop.index for c in loop.carried))
        total = loop.results[0] + loop.results[1] + loop.results[2] + loop.results[3]
        b.store(y, (b.pid * 256,), b.broadcast(b.reshape(b.from_index(total), (1,)), (256,)))
        times[name] = kernel_time(b, 132 * 8, [out, 4000, 8])
    ratio = times["product"] / times["shift"]
    claim(10, ratio > 1, f"an index by shift against by product, in a loop of nothing else: {ratio:.2f} x as fast")
    x, r = torch.randn(8192, 8192, device="cuda"), torch.empty(8192, 8192, device="cuda")
    for name in ("view", "pointer"):
        b = KernelBuilder(name)
        strides: tuple[int | None, ...] = (None, 1) if name == "view" else (1,)
        source, target = b.view("x", f32, strides), b.view("y", f32, strides)
        at = (b.pid // 4, b.pid % 4 * 2048) if name == "view" else (b.pid * 2048,)
        b.store(target, at, -b.load(source, at, (2048,)))
        times[name] = kernel_time(b, 8192 * 4, [x, 8192, r, 8192] if name == "view" else [x, r], vector=4)
    ratio = times["view"] / times["pointer"]
    claim(36, ratio < 1.01, f"a copy of 8192 x 8192 through strided views takes {ratio:.4f} of the time through pointers")


def orders() -> None:
    """69: stores of different orders, and atomics."""
    times = {}
    out = torch.zeros(132 * 8 * 256 * 4, device="cuda", dtype=torch.int32)
    for order in ("weak", "relaxed", "release"):
        b = KernelBuilder(order)
        y, n = b.view("y", i32, (1,)), b.index("n")
        how = {} if order == "weak" else {"order": order, "scope": "device"}
        with b.loop(0, n) as loop:
            b.store(y, (b.pid * 256,), b.full((256,), 1, i32) + b.from_index(loop.index, i32), **how)
        times[order] = kernel_time(b, 132 * 8, [out, 200])
    shares = {k: t / times["relaxed"] for k, t in times.items()}
    text = "stores to global memory, time against relaxed: " + ", ".join(f"{k} {v:.2f}" for k, v in shares.items())
    claim(69, shares["weak"] > 0.97 and shares["release"] > 1, text)  # a weak store is the same instruction in a cache


def messages(ways: tuple[str, str], n: int, pieces: int) -> KernelBuilder:
    """Pairs of programs read data (then it is in their cache), then poll a flag and the data again; in the middle of that the even one
    writes the data, then the flag. Counts old data behind a flag that is set (or behind new data), and how often a flag was set after
    the data was old."""
    b = KernelBuilder("messages_" + ways[0])
    data, flag, counts, size = b.view("data", i32, (1,)), b.view("flag", i32, (1,)), b.view("counts", i32, (1,)), b.index("size")
    one, zero, times = b.full((n,), 1, i32), b.full((n,), 0, i32), b.index("times")
    with b.loop(0, size, 1, [zero, zero]) as loop:
        at = (b.pid // 2 * (n * pieces) + loop.index * n,)

        def polled(found: Any) -> Any:
            before = b.load(data, at, (n,))
            with b.loop(0, times, 1, found) as poll:
                seen = b.load(flag, at, (n,), order=ways[1], scope="device")
                read = b.token()
                value = b.load(data, at, (n,), after=[read])
                wrong, passed = poll.carried
                poll.next(wrong + (seen + before) * (one - value), passed + seen * (one - before))
            return poll.results

        found = polled(loop.carried)
        with b.if_(b.compare("eq", b.pid % 2, 0)):
            b.store(data, at, one)
            written = b.token()
            b.store(flag, at, one, after=[written], order=ways[0], scope="device")
        loop.next(*polled(found))
    for i, count in enumerate(loop.results):
        b.store(counts, (b.pid * (2 * n) + i * n,), count)
    return b


def passing() -> None:
    """68: messages between blocks. Released and acquired, old data behind a flag that is set is forbidden; relaxed it is allowed."""
    n, pieces, pairs, rounds, polls = 256, 64, 66, 100, 8
    for ways, rule in ((("release", "acquire"), "forbidden"), (("relaxed", "relaxed"), "allowed")):
        memory = [torch.zeros(pairs * n * pieces, device="cuda", dtype=torch.int32) for _ in range(2)]
        counts = torch.zeros(2 * pairs, 2, n, device="cuda", dtype=torch.int32)
        run = launcher(*emitted(messages(ways, n, pieces)), 2 * pairs, [*memory, counts, pieces, polls])
        wrong = passed = 0
        for _ in range(rounds):
            for t in memory:
                t.zero_()
            run()
            w, p = counts.sum((0, 2)).tolist()
            wrong, passed = wrong + w, passed + p
        text = (f"{ways[0]} and {ways[1]}: {wrong} old values behind a flag ({rule}); in {passed} of "
                f"{rounds * pairs * n * pieces / 1e6:.0f} million messages the flag came after the old value was read")  # fmt: skip
        claim(68, rule == "allowed" or (not wrong and passed > 0), text)


def unfused(text: str) -> str:
    """Every fused multiply-add of a kernel's text as a product and a sum."""
    two = r"{ .reg .f32 %apart; mul.rn.f32 %apart, \2, \3; add.rn.f32 \1, %apart, \4; }"
    made = re.sub(r"fma\.rn\.f32 (\S+), (\S+), (\S+), (\S+);", two, text)
    assert made != text and "fma.rn.f32" not in made, "nothing to take apart"
    return made


def f32_product(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    return ours(session(lambda x, y: o.Matmul()(x, y), a, b), a, b)[0]


def dot(fused: bool, pieces: int) -> KernelBuilder:
    """Sums of products of `pieces` times 1,024 elements a program, taken again and again."""
    b = KernelBuilder("fused" if fused else "apart")
    p, q, out, n, again = b.view("p", f32, (1,)), b.view("q", f32, (1,)), b.view("out", f32, (1,)), b.index("n"), b.index("again")
    with b.loop(0, again, 1, [b.full((1024,), 0.0)]) as outer:
        with b.loop(0, n, 1, outer.carried) as loop:
            at = (b.pid * (1024 * pieces) + loop.index * 1024,)
            x, w, s = b.load(p, at, (1024,)), b.load(q, at, (1024,)), loop.carried[0]
            loop.next(b.fma(x, w, s) if fused else s + x * w)
        outer.next(loop.results[0])
    b.store(out, (b.pid * 1024,), outer.results[0])
    return b


def gates() -> None:
    """The gates on FMA fusion and on the memory hierarchy."""
    x, w = (torch.randn(132 * 1024 * 256, device="cuda") for _ in range(2))
    y = torch.zeros(132 * 8 * 1024, device="cuda")
    ways = {"dot products of 32,768 from memory": (132 * 8, 32, 1), "a dot product of 98,304, again and again from L1": (12, 8, 2000)}
    for what, (blocks, pieces, again) in ways.items():
        times = {f: kernel_time(dot(f, pieces), blocks, [x, w, y, pieces, again], vector=4) for f in (False, True)}
        print(f"gate  {what}, fused: {times[False] / times[True]:.3f} x as fast (wants 1.10)")
    a, c = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
    apart = replaced(cuda_executable, "load_function", lambda t, *x: load_function(unfused(t), *x), lambda: f32_product(a, c))
    found = measure({"fused": f32_product(a, c), "apart": apart}, 4)
    print(f"gate  4 million dot products of 2,048 (a product in f32), fused: {found['apart'] / found['fused']:.3f} x as fast (wants 1.10)")
    m = torch.randn(1024, 1024, device="cuda")
    calls = {"transposed": ours(session(lambda v: o.transpose(v, (1, 0)), m), m)[0]}
    calls["jumping"] = replaced(transposing, "SMALLEST", 1 << 40, lambda: ours(session(lambda v: o.transpose(v, (1, 0)), m), m)[0])
    found = measure(calls, 20)
    ratio = found["jumping"] / found["transposed"]
    print(f"gate  a million floats transposed, through shared memory against jumping: {ratio:.2f} x as fast (wants 1.20)")


def launching() -> None:
    """Not a hypothesis: microseconds of the host in one call, in bursts that fit into the driver's queue, taken in turn."""
    x, y = torch.randn(1024, device="cuda"), torch.randn(1024, device="cuda")
    one, two, jitted = session(lambda v: o.Neg()(v), x), session(lambda v, w: o.Add()(v, w), x, y), tw.jit(lambda v: -v, target="cuda")
    stream = torch.cuda.current_stream().cuda_stream
    kept = one(x), jitted(x), two(x, y)
    schedule = one.schedule({})
    calls: dict[str, Callable[[], Any]] = {
        "session(x)": lambda: one(x),
        "session(x, y)": lambda: two(x, y),
        "jitted(x)": lambda: jitted(x),
        "the launch alone": lambda: schedule.run(stream),
        "torch.neg(x)": lambda: torch.neg(x),
        "torch.add(x, y)": lambda: torch.add(x, y),
    }
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(25):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(200):
                call()
            taken[name].append((time.perf_counter() - start) / 200 * 1e6)
            torch.cuda.synchronize()
    for name, times in taken.items():
        print(f"      {name}: {statistics.median(times):.1f} us of the host a call, at best {min(times):.1f}")
    del kept


SECTIONS = (addresses, orders, passing, gates, tiles, accesses, unrolling, arithmetic, launching)

if __name__ == "__main__":
    named = {section.__name__: section for section in SECTIONS}
    if unknown := set(sys.argv[1:]) - set(named):
        sys.exit(f"no section {', '.join(sorted(unknown))}; there are {', '.join(named)}")
    gpu.enter()
    for name in sys.argv[1:] or named:
        named[name]()
    settle()
