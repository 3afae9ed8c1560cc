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
from tilewright.core.dtypes import f32
from tilewright.kernels.cuda import gemv, matmul, pointwise
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
    for section in (tiles, accesses, unrolling, arithmetic, launching):
        section()
