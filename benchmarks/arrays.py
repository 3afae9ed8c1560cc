"""Eager functions of `tw.Array` beside NumPy and PyTorch eager in one interleaved run: functions × sizes × contiguous and strided operands.

    python benchmarks/arrays.py                  all of it; a table and the geometric means
    python benchmarks/arrays.py add exp --sizes 100 100000
    python benchmarks/arrays.py --calls          the cost of small calls: operators, views, new shapes, first uses
    python benchmarks/arrays.py --device cuda    Arrays and tensors on the GPU, PyTorch eager as the only peer
    python benchmarks/arrays.py --device cuda --calls    small calls there: in all, and without the driver's part of the launch

A ratio is the time of the better of NumPy and PyTorch over ours (above 1: ours is faster); times are the least of several rounds in turn.
"""
from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tilewright as tw

Fn = Callable[..., Any]


def cases() -> dict[str, tuple[Fn, Fn, Fn]]:
    """name -> ours, NumPy's and PyTorch's function of x, y (vectors), m (a square matrix) as a dict."""
    both: dict[str, tuple[Fn, Fn, Fn]] = {}

    def one(name: str, numpy: str | None = None, torch_: str | None = None) -> None:
        a, b, c = getattr(tw, name), getattr(np, numpy or name, None), getattr(torch, torch_ or name)
        if b is None:
            b = {"rsqrt": lambda x: 1 / np.sqrt(x), "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
                 "erf": lambda x: np.vectorize(math.erf, otypes=[np.float32])(x) if x.size <= 100 else x}[name]
        both[name] = (lambda d: a(d["x"]), lambda d: b(d["x"]), lambda d: c(d["x"]))

    def two(name: str, numpy: str | None = None, torch_: str | None = None) -> None:
        a, b, c = getattr(tw, name), getattr(np, numpy or name), getattr(torch, torch_ or name)
        both[name] = (lambda d: a(d["x"], d["y"]), lambda d: b(d["x"], d["y"]), lambda d: c(d["x"], d["y"]))

    for name in ("exp", "log", "sin", "cos", "tan", "tanh", "sqrt", "square", "expm1", "log1p", "log2", "log10", "sinh", "cosh",
                 "floor", "ceil", "trunc", "sign", "isnan", "isfinite", "exp2", "signbit"):
        one(name)
    for name, numpy in (("abs", "absolute"), ("negative", "negative"), ("asin", "arcsin"), ("acos", "arccos"), ("atan", "arctan"),
                        ("asinh", "arcsinh"), ("reciprocal", "reciprocal"), ("rsqrt", "rsqrt"), ("sigmoid", "sigmoid"), ("relu", "relu")):
        one(name, numpy)
    for name in ("add", "multiply", "subtract", "divide", "maximum", "minimum", "less", "equal", "greater_equal", "not_equal", "copysign",
                 "hypot", "logaddexp", "nextafter"):
        two(name, None, {"equal": "eq"}.get(name))
    two("atan2", "arctan2")
    both["add scalar"] = (lambda d: d["x"] + 1.5, lambda d: d["x"] + np.float32(1.5), lambda d: d["x"] + 1.5)
    both["mul scalar"] = (lambda d: d["x"] * 2.0, lambda d: d["x"] * np.float32(2), lambda d: d["x"] * 2.0)
    both["where"] = (lambda d: tw.where(d["c"], d["x"], d["y"]), lambda d: np.where(d["c"], d["x"], d["y"]),
                     lambda d: torch.where(d["c"], d["x"], d["y"]))
    both["bool and"] = (lambda d: d["c"] & d["c"], lambda d: d["c"] & d["c"], lambda d: d["c"] & d["c"])
    both["int add"] = (lambda d: d["i"] + d["i"], lambda d: d["i"] + d["i"], lambda d: d["i"] + d["i"])
    both["add f64"] = (lambda d: d["z"] + d["z"], lambda d: d["z"] + d["z"], lambda d: d["z"] + d["z"])
    both["exp f64"] = (lambda d: tw.exp(d["z"]), lambda d: np.exp(d["z"]), lambda d: torch.exp(d["z"]))
    both["row broadcast"] = (lambda d: d["m"] + d["m"][0], lambda d: d["m"] + d["m"][0], lambda d: d["m"] + d["m"][0])
    both["cast to f64"] = (lambda d: d["x"].astype(tw.float64), lambda d: d["x"].astype(np.float64), lambda d: d["x"].to(torch.float64))
    for name in ("sum", "max", "min", "mean", "prod"):
        both[name] = (lambda d, n=name: getattr(tw, n)(d["x"]), lambda d, n=name: getattr(np, n)(d["x"]),  # type: ignore[misc]
                      lambda d, n=name: getattr(torch, n)(d["x"]))  # type: ignore[misc]
    both["any"] = (lambda d: tw.any(d["f"]), lambda d: np.any(d["f"]), lambda d: torch.any(d["f"]))
    both["sum axis 0"] = (lambda d: tw.sum(d["m"], axis=0), lambda d: np.sum(d["m"], axis=0), lambda d: torch.sum(d["m"], 0))
    both["sum axis 1"] = (lambda d: tw.sum(d["m"], axis=1), lambda d: np.sum(d["m"], axis=1), lambda d: torch.sum(d["m"], 1))
    both["max axis 1"] = (lambda d: tw.max(d["m"], axis=1), lambda d: np.max(d["m"], axis=1), lambda d: torch.amax(d["m"], 1))
    both["transpose copy"] = (lambda d: d["m"].T.copy(), lambda d: d["m"].T.copy(), lambda d: d["m"].T.contiguous())
    both["matmul"] = (lambda d: d["m"] @ d["m"], lambda d: d["m"] @ d["m"], lambda d: d["m"] @ d["m"])
    both["transpose"] = (lambda d: d["m"].T, lambda d: d["m"].T, lambda d: d["m"].T)
    both["slice"] = (lambda d: d["x"][10:90:3], lambda d: d["x"][10:90:3], lambda d: d["x"][10:90:3])
    return both


def operands(size: int, strided: bool, device: str) -> list[dict[str, Any]]:
    """The same values for Tilewright, NumPy (on the CPU) and PyTorch."""
    rng, step = np.random.default_rng(0), 2 if strided else 1
    side = math.isqrt(size)
    made = {"x": rng.random(size * step, np.float32), "y": rng.random(size * step, np.float32) + 0.5, "z": rng.random(size * step)}
    made |= {"c": rng.random(size * step) > 0.5, "f": np.zeros(size * step, np.bool_), "i": rng.integers(0, 100, size * step)}
    made = {k: v[::step] for k, v in made.items()}
    made["m"] = rng.random((side, side * step), np.float32)[:, ::step]
    tensors = {k: torch.from_numpy(v) for k, v in made.items()}
    if device == "cpu":
        return [{k: tw.asarray(v) for k, v in made.items()}, made, tensors]
    tensors = {k: torch.from_numpy(v.base if v.base is not None else v).to(device)[..., ::step] for k, v in made.items()}
    return [{k: tw.asarray(v) for k, v in tensors.items()}, tensors]


def least(fns: list[Fn], given: list[Any], *, rounds: int, budget: float, finish: Callable[[], Any] = lambda: None) -> list[float]:
    """Nanoseconds a call of each function, the least of several rounds in changing order. On a GPU a round waits once, at its end."""
    counts, best = [], [math.inf] * len(fns)
    for fn, d in zip(fns, given, strict=True):
        fn(d)
        finish()
        start = time.perf_counter_ns()
        fn(d)
        finish()
        counts.append(max(1, int(budget / max(time.perf_counter_ns() - start, 1))))
    for r in range(rounds):
        for i in range(len(fns)):  # who comes before whom changes: threads of one library still spin when the next one begins
            k = (r + (i if r % 2 else -i)) % len(fns)
            fn, d = fns[k], given[k]
            start = time.perf_counter_ns()
            for _ in range(counts[k]):
                fn(d)
            finish()
            best[k] = min(best[k], (time.perf_counter_ns() - start) / counts[k])
    return best


def table(words: list[str], sizes: list[int], rounds: int, path: str | None, device: str) -> None:
    lines, ratios = [], []
    finish = torch.cuda.synchronize if device != "cpu" else lambda: None
    print(f"{'function':16s} {'size':>9s} {'layout':10s} {'tw µs':>10s} {'NumPy µs':>10s} {'torch µs':>10s} {'ratio':>7s}")
    for size in sizes:
        for strided in (False, True):
            given = operands(size, strided, device)
            for name, fns in cases().items():
                if words and name not in words:
                    continue
                if name == "matmul" and size > 1_000_000:
                    continue
                try:
                    ns = least([*fns] if device == "cpu" else [fns[0], fns[2]], given, rounds=rounds,
                               budget=2e6 if size < 1_000_000 else 2e7, finish=finish)
                except tw.UnsupportedError as e:
                    print(f"{name:16s} {e}")
                    continue
                ratio = min(ns[1:]) / ns[0]
                ratios.append((size, strided, name, ratio))
                lines.append({"function": name, "size": size, "strided": strided, "ns": ns, "ratio": ratio})
                layout = "strided" if strided else "contiguous"
                theirs = " ".join(f"{t / 1e3:10.2f}" for t in ns[1:])
                print(f"{name:16s} {size:9d} {layout:10s} {ns[0] / 1e3:10.2f} {theirs:>21s} {ratio:7.2f}")
    for size in sizes:
        for strided in (False, True):
            found = [r for s, t, _, r in ratios if (s, t) == (size, strided)]
            print(f"geometric mean of {len(found)} at {size} {'strided' if strided else 'contiguous'}: "
                  f"{math.exp(sum(map(math.log, found)) / len(found)):.2f}; least {min(found):.2f}")
    print(f"geometric mean of all {len(ratios)}: {math.exp(sum(math.log(r) for *_, r in ratios) / len(ratios)):.2f}")
    low = [(n, s, t, round(r, 2)) for s, t, n, r in ratios if s >= 100_000 and r < 0.8]
    print(f"below 0.8 from 100k up: {len(low)}: {low}")
    if path:
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def calls() -> None:
    """What small calls cost."""
    a, b = np.arange(10, dtype=np.float32), np.ones(10, np.float32)
    x, y, p, q = tw.asarray(a), tw.asarray(b), torch.from_numpy(a), torch.from_numpy(b)
    m, n, r = tw.ones((10, 20)), np.ones((10, 20), np.float32), torch.ones(10, 20)
    rows: list[tuple[str, Fn, Fn, Fn]] = [
        ("add of 10 floats", lambda _: x + y, lambda _: a + b, lambda _: p + q),
        ("exp of 10 floats", lambda _: tw.exp(x), lambda _: np.exp(a), lambda _: torch.exp(p)),
        ("x + 1.0", lambda _: x + 1.0, lambda _: a + 1.0, lambda _: p + 1.0),
        ("x[2:5]", lambda _: x[2:5], lambda _: a[2:5], lambda _: p[2:5]),
        ("m.T", lambda _: m.T, lambda _: n.T, lambda _: r.T),
        ("m[1:, ::-1]", lambda _: m[1:, ::-1], lambda _: n[1:, ::-1], lambda _: r[1:]),
        ("m.reshape(20, 10)", lambda _: m.reshape(20, 10), lambda _: n.reshape(20, 10), lambda _: r.reshape(20, 10)),
        ("sum of 10 floats", lambda _: tw.sum(x), lambda _: np.sum(a), lambda _: torch.sum(p)),
        ("x.shape", lambda _: x.shape, lambda _: a.shape, lambda _: p.shape)]
    for name, *fns in rows:
        ns = least(fns, [None] * 3, rounds=9, budget=1e6)
        print(f"{name:24s} tw {ns[0]:7.0f} ns   NumPy {ns[1]:7.0f} ns   torch {ns[2]:7.0f} ns")
    fresh = [tw.ones((k, 7)) for k in range(50, 250)]
    start = time.perf_counter_ns()
    for v in fresh:
        v + v
    new = (time.perf_counter_ns() - start) / len(fresh)
    start = time.perf_counter_ns()
    for v in fresh:
        v + v
    print(f"{'a new shape':24s} {(new - (time.perf_counter_ns() - start) / len(fresh)):7.0f} ns beyond an old one")
    for name in ("cosh", "expm1", "log2", "atan"):
        start = time.perf_counter_ns()
        getattr(tw, name)(y)
        print(f"{'first use of ' + name:24s} {(time.perf_counter_ns() - start) / 1e6:7.2f} ms")


def calls_on_gpu() -> None:
    """What small calls on a GPU cost the host. `host` is ours with a launch that returns at once."""
    import ctypes

    from tilewright.array.cuda import direct
    from tilewright.runtime.cuda import launch as cuda_launch

    p, q, r = torch.rand(10, device="cuda"), torch.rand(10, device="cuda"), torch.rand(10, 20, device="cuda")
    w = torch.rand(20, 10, device="cuda")
    x, y, m, v = (tw.asarray(t.cpu()).to("cuda") for t in (p, q, r, w))
    c, k = x > 0.5, p > 0.5

    def added(a: Any, b: Any) -> Any:
        a += b
        return a

    def written(a: Any) -> Any:
        a[0] = 1.0
        return a

    rows: list[tuple[str, Fn, Fn]] = [
        ("x + y", lambda _: x + y, lambda _: p + q), ("exp", lambda _: tw.exp(x), lambda _: torch.exp(p)),
        ("x + 1.0", lambda _: x + 1.0, lambda _: p + 1.0), ("x > y", lambda _: x > y, lambda _: p > q),
        ("where", lambda _: tw.where(c, x, y), lambda _: torch.where(k, p, q)),
        ("row broadcast", lambda _: m + m[0], lambda _: r + r[0]),
        ("strided", lambda _: m[:, ::2] + m[:, ::2], lambda _: r[:, ::2] + r[:, ::2]),
        ("x += y", lambda _: added(x, y), lambda _: added(p, q)), ("x[0] = 1", lambda _: written(x), lambda _: written(p)),
        ("sum", lambda _: tw.sum(x), lambda _: torch.sum(p)), ("sum axis 1", lambda _: tw.sum(m, axis=1), lambda _: torch.sum(r, 1)),
        ("max", lambda _: x.max(), lambda _: p.max()), ("astype f16", lambda _: x.astype(tw.float16), lambda _: p.to(torch.float16)),
        ("copy", lambda _: x.copy(), lambda _: p.clone()),
        ("zeros", lambda _: tw.zeros(10, device="cuda"), lambda _: torch.zeros(10, device="cuda")),
        ("x[2:5]", lambda _: x[2:5], lambda _: p[2:5]), ("m.T", lambda _: m.T, lambda _: r.T),
        ("reshape", lambda _: m.reshape(20, 10), lambda _: r.reshape(20, 10)), ("matmul", lambda _: m @ v, lambda _: r @ w),
        ("softmax", lambda _: tw.softmax(m), lambda _: torch.softmax(r, -1)), ("argmax", lambda _: tw.argmax(x), lambda _: torch.argmax(p))]
    nothing = ctypes.cast(ctypes.CDLL("libm.so.6").fegetround, ctypes.c_void_p).value  # 0 at once
    print(f"{'call':16s} {'tw us':>8s} {'torch us':>9s} {'ratio':>6s} {'host us':>8s}")
    for name, ours, theirs in rows:
        ns = least([ours, theirs], [None] * 2, rounds=15, budget=3e5, finish=torch.cuda.synchronize)
        start = cuda_launch.address_of("cuLaunchKernelEx")
        direct._set("START", nothing, word=True)
        try:
            host = least([ours], [None], rounds=9, budget=3e5)[0]
        finally:
            direct._set("START", start, word=True)
        print(f"{name:16s} {ns[0] / 1e3:8.2f} {ns[1] / 1e3:9.2f} {ns[1] / ns[0]:6.2f} {host / 1e3:8.2f}")


def lazy(rounds: int) -> None:
    """The fused expression of a million floats."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal(1_000_000, np.float32), rng.standard_normal(1_000_000, np.float32)
    x, y, p, q = tw.asarray(a), tw.asarray(b), torch.from_numpy(a), torch.from_numpy(b)

    def ours(_: Any) -> Any:
        return tw.tanh(tw.gelu(x * y + 1) * 0.5 + tw.sigmoid(y)) / (1 + tw.exp(-x))

    def waiting(_: Any) -> Any:
        with tw.lazy():
            return ours(None).item(0)

    def theirs(_: Any) -> Any:
        return torch.tanh(torch.nn.functional.gelu(p * q + 1) * 0.5 + torch.sigmoid(q)) / (1 + torch.exp(-p))

    ns = least([waiting, ours, theirs], [None] * 3, rounds=rounds, budget=3e7)
    print(f"fused expression of 1M floats: lazy {ns[0] / 1e3:.0f} µs, eager {ns[1] / 1e3:.0f} µs, torch {ns[2] / 1e3:.0f} µs: "
          f"{ns[2] / ns[0]:.1f} times")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 100_000, 10_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", action="store_true")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", metavar="PATH")
    options = parser.parse_args()
    if options.calls and options.device == "cuda":
        calls_on_gpu()
    elif options.calls:
        calls()
        lazy(options.rounds)
    else:
        table(options.words, options.sizes, options.rounds, options.json, options.device)
