"""Measurements behind docs/hypotheses.md that need a GPU. One line each: number, what is compared, ratio.

    PYTHONPATH=src python benchmarks/gpu_hypotheses.py
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import torch
from gpu_tools import measure, ours, rand, session, timed

import tilewright.ops as o
from tilewright.core.dtypes import f32, i32, i64
from tilewright.kernels.cuda import gemv, matmul, pointwise, turning
from tilewright.kernels.cuda.kernel import BlockKernel
from tilewright.runtime import cuda_driver as gpu
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.emit import emit_block_kernel
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


def tiles() -> None:
    """1, 3, 15: products with tiles of other shapes."""
    a, b = rand(4096, 4096), rand(6144, 4096)
    configs = {"128x256": (128, 256, 4), "128x192": (128, 192, 4), "128x128": (128, 128, 6), "64x256": (64, 256, 5), "64x64": (64, 64, 8)}
    calls = {}
    for name, c in configs.items():
        config = matmul.Config(*c)
        calls[name] = replaced(matmul, "choose", lambda *_, config=config: config, lambda: ours(session(product, a, b), a, b))[0]
    times = measure(calls, 4)
    print(f"1 15  power-of-two 128x256 against 128x192: {times['128x192'] / times['128x256']:.3f} x as fast")
    print(f"3     128x128 against 64x256, as many elements: {times['64x256'] / times['128x128']:.3f} x as fast")
    print(f"7     a product with 64x64 tiles takes {times['64x64'] / times['128x256']:.2f} of the time with 128x256")


def accesses() -> None:
    """7, 35: elements of a program, and the order of reads."""
    x = torch.randn(8192, 8192, device="cuda")
    calls = {"contiguous": ours(session(lambda v: o.Neg()(v), x), x)[0]}
    calls["transposed"] = ours(session(lambda v: o.Neg()(o.Transpose(perm=(1, 0))(v)), x), x)[0]
    one = replaced(pointwise, "group", lambda *_: (1, 1), lambda: ours(session(lambda v: o.Neg()(v), x), x))
    calls["small"] = one[0]
    times = measure(calls, 4)
    print(f"35    reads along the row against reads across it: {times['transposed'] / times['contiguous']:.2f} x the bandwidth")
    print(f"7     programs of 4 elements take {times['small'] / times['contiguous']:.3f} of the time of 2048 elements")


def unrolling() -> None:
    """23: pieces in flight."""
    x, w = rand(1, 4096), rand(14336, 4096)
    calls = {u: replaced(gemv, "plan", lambda *_, u=u: gemv.Plan(128, 2, u), lambda: ours(session(product, x, w), x, w))[0] for u in (1, 4)}
    times = measure({str(u): c for u, c in calls.items()}, 20)
    print(f"23    one row times a matrix, 4 pieces in flight against 1: {times['1'] / times['4']:.3f} x as fast")


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
        k = b.build()
        text = emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=256, programs=1), cuda_target())
        module, function = gpu.load_function(text, name, 0)
        out = torch.empty(132 * 8 * 256, device="cuda")
        words = (ctypes.c_int64 * 2)(out.data_ptr(), 2000)
        places = (ctypes.c_void_p * 2)(*(ctypes.addressof(words) + 8 * i for i in range(2)))

        def run(f: Any = function, p: Any = places, keep: Any = (module, words)) -> None:
            gpu.call("cuLaunchKernel", f, 132 * 8, 1, 1, 256, 1, 1, 0, torch.cuda.current_stream().cuda_stream, ctypes.addressof(p), 0)

        times |= timed({name: run}, 1)
    print(f"24    fma against mul, the same number: {times['fma'] / times['mul']:.3f} of the time")


def kernel_time(b: KernelBuilder, blocks: int, words: list[Any], *, vector: int = 1, repeats: int = 15) -> float:
    """Median microseconds of a kernel of blocks of 256 threads."""
    k = b.build()
    text = emit_block_kernel(BlockKernel(k.name, k.params, k.pid, k.body, threads=256, programs=1, vector=vector), cuda_target())
    module, function = gpu.load_function(text, k.name, 0)
    values = (ctypes.c_int64 * len(words))(*(w.data_ptr() if isinstance(w, torch.Tensor) else w for w in words))
    places = (ctypes.c_void_p * len(words))(*(ctypes.addressof(values) + 8 * i for i in range(len(words))))

    def run(keep: Any = (module, values)) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        gpu.call("cuLaunchKernel", function, blocks, 1, 1, 256, 1, 1, 0, stream, ctypes.addressof(places), 0)

    return timed({"kernel": run}, 1, repeats)["kernel"]


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
    print(f"10    an index by shift against by product, in a loop of nothing else: {times['product'] / times['shift']:.2f} x as fast")
    x, r = torch.randn(8192, 8192, device="cuda"), torch.empty(8192, 8192, device="cuda")
    for name in ("view", "pointer"):
        b = KernelBuilder(name)
        strides: tuple[int | None, ...] = (None, 1) if name == "view" else (1,)
        source, target = b.view("x", f32, strides), b.view("y", f32, strides)
        at = (b.pid // 4, b.pid % 4 * 2048) if name == "view" else (b.pid * 2048,)
        b.store(target, at, -b.load(source, at, (2048,)))
        times[name] = kernel_time(b, 8192 * 4, [x, 8192, r, 8192] if name == "view" else [x, r], vector=4)
    print(f"36    a copy of 8192 x 8192 through strided views takes {times['view'] / times['pointer']:.4f} of the time through pointers")


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
    print("69    stores to global memory, time against relaxed: "
          + ", ".join(f"{k} {t / times['relaxed']:.2f}" for k, t in times.items()))  # fmt: skip


def gates() -> None:
    """The gates on FMA fusion and on the memory hierarchy."""
    x, w = (torch.randn(132 * 1024 * 256, device="cuda") for _ in range(2))
    y = torch.zeros(132 * 8 * 256, device="cuda")
    times = {}
    for name in ("fused", "apart"):
        b = KernelBuilder(name)
        p, q, out, n = b.view("p", f32, (1,)), b.view("q", f32, (1,)), b.view("out", f32, (1,)), b.index("n")
        with b.loop(0, n, 1, [b.full((256,), 0.0)]) as loop:
            at = (b.pid * 256 * 128 + loop.index * 256,)
            a, c, s = b.load(p, at, (256,)), b.load(q, at, (256,)), loop.carried[0]
            loop.next(b.fma(a, c, s) if name == "fused" else s + a * c)
        b.store(out, (b.pid * 256,), loop.results[0])
        times[name] = kernel_time(b, 132 * 8, [x, w, y, 128])
    print(f"gate  dot products of 32,768 from memory, fused: {times['apart'] / times['fused']:.3f} x as fast (wants 1.10)")
    m = torch.randn(1024, 1024, device="cuda")
    calls = {"turned": ours(session(lambda v: o.transpose(v, (1, 0)), m), m)[0]}
    calls["jumping"] = replaced(turning, "SMALLEST", 1 << 40, lambda: ours(session(lambda v: o.transpose(v, (1, 0)), m), m)[0])
    found = measure(calls, 20)
    ratio = found["jumping"] / found["turned"]
    print(f"gate  a million floats turned, through shared memory against jumping: {ratio:.2f} x as fast (wants 1.20)")


def launching() -> None:
    """Not a hypothesis: microseconds of Python in one call of a session."""
    x = torch.randn(1024, device="cuda")
    s = session(lambda v: o.Neg()(v), x)
    schedule = s.schedule({}) if s(x) is not None else None
    stream = torch.cuda.current_stream().cuda_stream
    for name, call in (("session(x)", lambda: s(x)), ("graph launch alone", lambda: schedule.run(stream))):
        for _ in range(50):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            call()
        print(f"      {name}: {(time.perf_counter() - start) * 1000:.1f} us of Python a call")
        torch.cuda.synchronize()


if __name__ == "__main__":
    gpu.enter()
    for section in (addresses, orders, gates, tiles, accesses, unrolling, arithmetic, launching):
        section()
