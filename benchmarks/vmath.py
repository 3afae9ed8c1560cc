"""Nanoseconds per element of the generated vector math, one thread, 16K elements, on every feature level this CPU has, beside torch.

    python benchmarks/vmath.py [function ...]

`gelu` and `chain` are compositions: 0.5 x (1 + erf(x / sqrt 2)), and tanh(gelu(x*y+1)*0.5 + sigmoid(y)) / (1 + exp(-x)).
Every number is the best of many short runs, taken in turns so that a busy moment hits all alike.
"""
from __future__ import annotations

import ctypes
import math
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tilewright.core.errors import ConfigError
from tilewright.core.target_spec import TargetSpec
from tilewright.target.cpu import jit
from tilewright.target.cpu.host import host_target
from tilewright.target.cpu.llvm_text import FunctionText, element, lanes, module_text
from tilewright.target.cpu.vmath import functions as vmath

Array = np.ndarray[Any, np.dtype[Any]]
COUNT, ROUNDS, REPEATS = 16384, 40, 10
LEVELS = ("baseline", "avx2", "avx512", "native")
TORCH = {"round": torch.round, "erf": torch.special.erf, "log2": torch.log2, "exp2": torch.special.exp2, "pow": torch.pow}


def gelu(f: FunctionText, ty: str, x: str) -> str:
    e = vmath.emit("erf", f, ty, f.op("fmul", ty, x, f.splat(ty, math.sqrt(0.5))))
    return f.op("fmul", ty, f.op("fmul", ty, x, f.splat(ty, 0.5)), f.op("fadd", ty, e, f.splat(ty, 1.0)))


def chain(f: FunctionText, ty: str, x: str, y: str) -> str:
    one = f.splat(ty, 1.0)
    g = gelu(f, ty, f.op("fadd", ty, f.op("fmul", ty, x, y), one))
    inner = f.op("fadd", ty, f.op("fmul", ty, g, f.splat(ty, 0.5)), vmath.emit("sigmoid", f, ty, y))
    below = f.op("fadd", ty, one, vmath.emit("exp", f, ty, f.fneg(ty, x)))
    return f.op("fdiv", ty, vmath.emit("tanh", f, ty, inner), below)


def torch_chain(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(torch.tanh(torch.nn.functional.gelu(x * y + 1) * 0.5 + torch.sigmoid(y)) / (1 + torch.exp(-x)))


def kernel(fn: str, ty: str, spec: TargetSpec) -> jit.Library:
    """A loop over `out[i] = fn(x[i], y[i])`."""
    params = [("ptr noalias", "%x"), ("ptr noalias", "%y"), ("ptr noalias", "%out"), ("i64", "%n")]
    f = FunctionText("kernel", params, spec, attributes=spec.attributes)
    step = f.fresh("next")
    f.jump("loop")
    f.label("loop")
    i = f.phi("i64", [("0", "entry"), (step, "latch")])
    x, y = (f.load(ty, f.gep(element(ty), p, i)) for p in ("%x", "%y"))
    if fn == "chain":
        result = chain(f, ty, x, y)
    elif fn == "gelu":
        result = gelu(f, ty, x)
    else:
        result = vmath.emit(fn, f, ty, x, y if fn in vmath.BINARY else None)
    f.store(ty, result, f.gep(element(ty), "%out", i))
    f.jump("latch")
    f.label("latch")
    f.emit(f"{step} = add i64 {i}, {lanes(ty)}")
    f.branch(f.icmp("ult", "i64", step, "%n"), "loop", "done")
    f.label("done")
    f.ret()
    return jit.Library([jit.compile_ir(module_text(f), spec)], ["kernel"])


def aligned(values: Array) -> Array:
    raw = np.zeros(values.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    out = raw[start:start + values.nbytes].view(values.dtype)
    out[:] = values
    return out


def bound(library: jit.Library, *arrays: Array) -> Callable[[], Any]:
    """A call of the kernel that keeps its code and its arrays alive."""
    native = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 3, ctypes.c_int64)(library.address("kernel"))

    where = [a.ctypes.data for a in arrays]

    def call(keep: Any = (library, arrays)) -> None:
        native(*where, COUNT)

    return call


def contenders(fn: str, elem: str) -> dict[str, Callable[[], Any]]:
    rng = np.random.default_rng(0)
    dtype = np.float32 if elem == "float" else np.float64
    x, y, out = (aligned(rng.standard_normal(COUNT).astype(dtype)) for _ in range(3))
    if fn in ("log", "log2", "log1p", "pow", "sqrt", "rsqrt"):
        np.abs(x, out=x)
    runs: dict[str, Callable[[], Any]] = {}
    for level in LEVELS:
        try:
            spec = host_target(level=level)  # type: ignore[arg-type]
        except ConfigError:
            continue
        runs[level] = bound(kernel(fn, f"<{4 * spec.lanes(x.itemsize)} x {elem}>", spec), x, y, out)
    tx, ty, to = torch.from_numpy(x), torch.from_numpy(y), torch.empty(COUNT, dtype=torch.float32 if elem == "float" else torch.float64)
    if fn == "chain":
        runs["torch"] = lambda: torch_chain(tx, ty, to)
    elif fn == "gelu":
        runs["torch"] = lambda: torch.nn.functional.gelu(tx)
    else:
        peer = TORCH.get(fn) or getattr(torch, fn)
        runs["torch"] = (lambda: peer(tx, ty, out=to)) if fn in vmath.BINARY else (lambda: peer(tx, out=to))
    return runs


def measure(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(runs, math.inf)
    for _ in range(ROUNDS):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(REPEATS):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / REPEATS / COUNT * 1e9)
    return best


def main(words: list[str]) -> None:
    torch.set_num_threads(1)
    print(f"{host_target().describe()}; ns per element, one thread, {COUNT} elements")
    print(f"{'':12}{'':8}" + "".join(f"{name:>10}" for name in (*LEVELS, "torch")) + "     ratio")
    for fn in words or [*vmath.UNARY, *vmath.BINARY, "gelu", "chain"]:
        for elem in ("float", "double"):
            best = measure(contenders(fn, elem))
            cells = "".join(f"{best[name]:10.3f}" if name in best else f"{'-':>10}" for name in (*LEVELS, "torch"))
            print(f"{fn:12}{elem:8}{cells}{best['torch'] / best['native']:10.2f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
