"""One run on a GPU that answers for changes made without one: kernels against PyTorch, the device tests, and models that were behind.

    python benchmarks/gpu_check.py --out DIR --seconds 230       everything, in processes; a short table last, all lines in DIR as they come
    python benchmarks/gpu_check.py --part 0/1 linalg pools       the cases of these words, in this process (--list names them)
    python benchmarks/gpu_check.py --part 0/1 --device cpu       the same cases on a CPU; --compile sm_90a only compiles them

Results of a case are held to float64, within a few times PyTorch's own error in the same dtype; the second call has other inputs, the third
the first ones and must give the same bits. Models are compiled while the tests run and timed alone when those are done.
"""

from __future__ import annotations

import argparse
import copy
import math
import os
import random
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
F32, F64, F16, BF16, I64, I32 = torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32
TOLERANCE = {F16: 3e-3, BF16: 2e-2, F32: 2e-5, F64: 1e-11, torch.complex64: 2e-5, torch.complex128: 1e-11}
TIMES = 6.0  # PyTorch's own error
TESTS = "reductions models conv products attention arrays runtime ops numpy user packed threads splats llm".split()  # noqa: SIM905
MODELS = ("recommender", "densenet", "graph attention", "beit", "conformer")


@dataclass(frozen=True)
class Case:
    """`modes`: c tw.compile, t torch.compile, g its gradients, a Arrays (`array` instead of `call`). `after`: what of the results is
    compared."""

    name: str
    call: Callable[..., Any]
    make: Callable[[], tuple[Any, ...]]
    modes: str = "ct"
    after: Callable[..., Any] | None = None
    parameters: tuple[torch.nn.Module, ...] = ()
    array: Callable[..., Any] | None = None


class Called(torch.nn.Module):
    """A function, and the modules that it uses."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.call, self.parts = case.call, torch.nn.ModuleList(copy.deepcopy(case.parameters))

    def forward(self, *inputs: Any) -> Any:
        return self.call(*self.parts, *inputs)


def rand(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    return torch.randn(*shape, dtype=F64).to(dtype)


def symmetric(*shape: int, dtype: torch.dtype = F32) -> torch.Tensor:
    x = torch.randn(*shape, dtype=F64)
    return (x @ x.mT / shape[-1] + torch.eye(shape[-1])).to(dtype)


def rebuilt(factors: Any, pivots: Any) -> Any:
    p, low, up = torch.lu_unpack(factors, pivots)
    return p @ low @ up, low.abs().amax().clamp(min=1.0)  # pivots may differ where two elements are nearly equal


def linalg() -> Iterator[Case]:
    sizes: list[tuple[int, ...]] = [(33, 33), (3, 64, 64), (7, 130, 130), (300, 300), (2, 300, 90), (2, 90, 300), (513, 513), (1030, 1030),
                                    (2060, 700), (40, 5, 5), (200, 17, 17)]
    for dtype in (F32, F64):
        for s in sizes:
            yield Case(f"linalg lu {s} {dtype}", torch.linalg.lu_factor, lambda s=s, d=dtype: (rand(*s, dtype=d),), after=rebuilt)
        for n in (5, 33, 49, 64, 130, 300, 700, 1100):
            lead = (6,) if n < 150 else (2,) if n < 500 else ()
            yield Case(f"linalg cholesky {n} {dtype}", torch.linalg.cholesky, lambda s=(*lead, n, n), d=dtype: (symmetric(*s, dtype=d),),
                       "ctg")
            for k in (1, 5, 70, 200):
                for upper, left, unit in ((False, True, False), (True, True, True), (True, False, False), (False, False, True)):
                    if (k == 200) != (n >= 300) or (unit and k == 70):
                        continue
                    shape = (*lead, n, k) if left else (*lead, k, n)
                    solve = lambda a, b, u=upper, s=left, w=unit: torch.linalg.solve_triangular(a, b, upper=u, left=s, unitriangular=w)
                    make = lambda s=(*lead, n, n), r=shape, d=dtype: (rand(*s, dtype=d) * 0.2 / math.sqrt(s[-1])
                                                                      + torch.eye(s[-1], dtype=d), rand(*r, dtype=d))
                    yield Case(f"linalg triangular {n}x{k} upper={upper} left={left} unit={unit} {dtype}", solve, make,
                               "cg" if k in (5, 200) else "t")
        for n in (20, 65, 260, 520):
            make = lambda n=n, d=dtype: (symmetric(2, n, n, dtype=d) + rand(2, n, n, dtype=d) * 0.1 / math.sqrt(n), rand(2, n, 9, dtype=d))
            yield Case(f"linalg solve {n} {dtype}", torch.linalg.solve, make, "ctg")
            yield Case(f"linalg inv, slogdet {n} {dtype}", lambda a, b: (torch.linalg.inv(a), torch.linalg.slogdet(a)[1]), make, "ctg")


def searches() -> Iterator[Case]:
    ordered = lambda *s, d=F32: rand(*s, dtype=F64).mul(50).sort(-1).values.to(d)
    for dtype in (F32, F64, BF16, F16, I64, I32):
        for rows, values in (((1,), (700,)), ((5,), (3, 37)), ((1000,), (129, 65)), ((100_000,), (50_001,)), ((17, 300), (17, 1)),
                             ((3, 4, 33), (3, 4, 1031))):
            for right in (False, True):
                make = lambda r=rows, v=values, d=dtype: (ordered(*r, d=d), (rand(*v, dtype=F64) * 60).to(d))
                yield Case(f"search {rows} {values} right={right} {dtype}", lambda a, v, r=right: torch.searchsorted(a, v, right=r), make,
                           "ct" if right else "c")
    broken = lambda: (ordered(99), torch.where(torch.rand(5, 99) < 0.3, torch.nan, rand(5, 99) * 60))
    yield Case("search NaN", lambda a, v: (torch.searchsorted(a, v), torch.bucketize(v, a, right=True)), broken)


def pools() -> Iterator[Case]:
    for dtype in (F32, BF16, F16, F64):
        for size, out in (((7, 5), (3, 2)), ((56, 41), (7, 7)), ((224, 33), (5, 31)), ((3, 4), (9, 10)), ((64, 64), (1, 63))):
            for name in ("adaptive_avg_pool2d", "adaptive_max_pool2d"):
                call = lambda x, f=name, o=out: getattr(F, f)(x, o)
                yield Case(f"pools {name} {size} {out} {dtype}", call, lambda s=size, d=dtype: (rand(5, 70, *s, dtype=d),),
                           "ctg" if size == (56, 41) else "cg")
        yield Case(f"pools 1-d {dtype}", lambda x: (F.adaptive_avg_pool1d(x, 37), F.adaptive_max_pool1d(x, 301)),
                   lambda d=dtype: (rand(3, 130, 1000, dtype=d),), "cg")
        yield Case(f"pools 3-d {dtype}", lambda x: F.adaptive_avg_pool3d(x, (3, 4, 5)),
                   lambda d=dtype: (rand(2, 33, 10, 9, 14, dtype=d),), "cg")
        last = lambda d=dtype: (rand(4, 64, 30, 31, dtype=d).to(memory_format=torch.channels_last),)
        yield Case(f"pools channels last {dtype}", lambda x: F.adaptive_avg_pool2d(F.relu(x), (7, 4)), last, "ctg")


def scans() -> Iterator[Case]:
    near = lambda *s, d=F32: (1 + 0.1 * torch.randn(*s, dtype=F64)).to(d)
    for dtype in (F32, F64, BF16):
        for shape, axis in (((7, 100), 1), ((100, 70), 0), ((3, 5000), 1), ((2, 20_001), 1), ((5000, 33), 0), ((4, 33, 129), 1)):
            yield Case(f"scans cumprod {shape} {axis} {dtype}", lambda x, a=axis: x.cumprod(a),
                       lambda s=shape, d=dtype: (near(*s, d=d),), "cg")
            yield Case(f"scans others {shape} {axis} {dtype}", lambda x, a=axis: (x.cumsum(a), x.logcumsumexp(a), x.cummax(a).values),
                       lambda s=shape, d=dtype: (rand(*s, dtype=d),), "cg" if shape[0] < 100 else "t")
    zeros = lambda: (torch.where(torch.rand(40, 300) < 0.01, 0.0, near(40, 300)),)
    yield Case("scans cumprod of zeros", lambda x: x.cumprod(1), zeros, "cg")
    backwards = lambda x: x.flip(1).cumprod(1).flip(1).mul(2)
    yield Case("scans cumprod backwards", backwards, lambda: (near(9, 3001, d=F64),), "cg")


def samples() -> Iterator[Case]:
    for dtype in (F32, F64, BF16):
        for padding in ("zeros", "border", "reflection"):
            for mode in ("bilinear", "nearest"):
                grid = lambda d=dtype: (rand(3, 50, 21, 33, dtype=d), (torch.rand(3, 17, 40, 2) * 2.6 - 1.3).to(d))
                call = lambda x, g, m=mode, p=padding: F.grid_sample(x, g, mode=m, padding_mode=p, align_corners=False)
                yield Case(f"samples grid {mode} {padding} {dtype}", call, grid, "cg" if dtype is not BF16 else "c")
        for mode in ("bilinear", "bicubic", "nearest"):
            call = lambda x, m=mode: F.interpolate(x, size=(45, 70), mode=m)
            yield Case(f"samples resize {mode} {dtype}", call, lambda d=dtype: (rand(3, 40, 30, 33, dtype=d),), "cg")
    yield Case("samples volumes", lambda x, g: F.grid_sample(x, g, align_corners=True),
               lambda: (rand(2, 20, 9, 10, 11), torch.rand(2, 5, 6, 7, 3) * 2.2 - 1.1), "cg")


SIZES = (700, 33, 1, 64, 401, 2000)  # rows of what is computed side by side


class Dense(torch.nn.Module):
    def __init__(self, start: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Sequential(
            torch.nn.BatchNorm2d(start + i * growth), torch.nn.ReLU(),
            torch.nn.Conv2d(start + i * growth, growth, (1, 3)[i % 2], padding=i % 2, bias=False)) for i in range(layers))
        self.down = torch.nn.Conv2d(start + layers * growth, start, 1)

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return F.avg_pool2d(self.down(F.relu(x)), 2)


def parts() -> Iterator[Case]:
    for dtype in (F32, BF16, F16):
        for start, growth, layers in ((48, 24, 4), (32, 8, 6), (20, 12, 3), (64, 32, 5), (16, 5, 4)):
            for last in (False, True):
                net = Dense(start, growth, layers).eval().to(dtype)
                make = lambda c=start, d=dtype, last=last: (rand(3, c, 27, 34, dtype=d).to(
                    memory_format=torch.channels_last if last else torch.contiguous_format),)
                yield Case(f"parts dense {start}+{growth} last={last} {dtype}", lambda net, x: net(x), make, "cg" if last else "c",
                           parameters=(net,))
        both = torch.nn.ModuleList(torch.nn.Conv2d(32, c, 3, padding=1) for c in (16, 24, 8)).to(dtype)
        for name, call in {
            "twice": lambda net, x: torch.cat([torch.cat([net[0](x), x], 1), net[1](x), torch.cat([net[0](x), x], 1)], 1),
            "read by others": lambda net, x: (lambda a, b: torch.cat([a, b], 1) + torch.cat([b, a], 1) * a.sum())(net[0](x), net[0](2 * x)),
            "nested": lambda net, x: net[2](torch.cat([torch.cat([torch.cat([x], 1)], 1)], 1)).relu() + torch.cat([x[:, :4], x[:, 4:8]], 1),
            "returned": lambda net, x: (lambda a: (a, F.relu(torch.cat([a, net[1](x)], 1))))(torch.cat([x, net[0](x)], 1)),
        }.items():
            yield Case(f"parts {name} {dtype}", call, lambda d=dtype: (rand(2, 32, 19, 23, dtype=d),), "cg", parameters=(both,))


def beside() -> Iterator[Case]:
    for dtype in (F32, BF16):
        for count, rows, width, several in ((12, 2000, 64, 8), (30, 100, 17, 3), (5, 9, 8, 1), (40, 500, 128, 20)):
            tables = torch.nn.ModuleList(torch.nn.Embedding(rows + 7 * i, width) for i in range(count)).to(dtype)
            call = lambda ts, ids: torch.stack([t(ids[:, i]).mean(1) for i, t in enumerate(ts)], 1)
            yield Case(f"beside tables {count}x{width} {dtype}", call, lambda s=(257, count, several), r=rows: (torch.randint(0, r, s),),
                       "ctg", parameters=(tables,))
        lists: dict[str, Callable[..., Any]] = {
            "softmax": lambda *xs: [x.softmax(-1) for x in xs], "norms": lambda *xs: [F.layer_norm(x, x.shape[-1:]) for x in xs],
            "columns": lambda *xs: [x.sum(0) for x in xs], "means": lambda *xs: [x.mean(1) for x in xs],
            "scans": lambda *xs: [x.cumsum(1) for x in xs], "chains": lambda *xs: [x.softmax(-1).softmax(-1) for x in xs],
            "sorts": lambda *xs: [x.sort(-1).values for x in xs], "joined": lambda *xs: (torch.cat(xs).relu(), *(x.exp() for x in xs)),
            "one after another": lambda *xs: [sum(x.mean() for x in xs[: i + 1]) + xs[i].relu() for i in range(len(xs))],
            "products": lambda *xs: [x @ xs[1].mT for x in xs], "pads": lambda *xs: [F.pad(x, (3, 5)) for x in xs],
            "transposes": lambda *xs: [x.mT.contiguous() for x in xs],
        }
        for name, f in lists.items():
            for wide in (96, 131):
                yield Case(f"beside {name} {wide} {dtype}", f, lambda d=dtype, w=wide: tuple(rand(n, w, dtype=d) for n in SIZES),
                           "cg" if wide == 131 and name not in ("sorts",) else "c")
        lines = torch.nn.ModuleList(torch.nn.Linear(72, 40 + 8 * (i % 3)) for i in range(9)).to(dtype)
        yield Case(f"beside linears {dtype}", lambda ls, x: [f(x) for f in ls], lambda d=dtype: (rand(50, 72, dtype=d),), "ctg",
                   parameters=(lines,))


def groups() -> Iterator[Case]:
    for dtype in (F32, BF16, F16, F64):
        for n in (3, 8, 12, 20, 24, 36, 40, 48, 72, 80, 96, 100, 136, 200, 264, 520, 1032):
            call = lambda x, y, b, n=n: (x[:, :n] * y[:, n:] + b, F.gelu(x[:, :n]) + b.exp(), x[:, -n:].contiguous())
            make = lambda n=n, d=dtype: (rand(377, 2 * n, dtype=d), rand(377, 2 * n, dtype=d), rand(n, dtype=d))
            yield Case(f"groups {n} {dtype}", call, make, "c" if n % 3 else "cg")


def graphs() -> Iterator[Case]:
    for dtype in (F32, BF16, F64):
        for nodes, edges, d, wide in ((200, 3000, 64, 1), (500, 1000, 96, 8), (50, 49, 32, 4), (1000, 16000, 33, 2)):
            call = lambda x, i, w, v: (torch.cat([x[i[0]], x[i[1]]], -1) @ w, x[i[0]] @ v,
                                       torch.cat([x[i[1]], x[i[0]], x[i[1]]], -1) @ torch.cat([w, v]))
            make = lambda n=nodes, e=edges, d=d, k=wide, t=dtype: (rand(n, d, dtype=t), torch.randint(0, n, (2, e)),
                                                                   rand(2 * d, k, dtype=t), rand(d, k, dtype=t))
            yield Case(f"graphs {nodes} {edges} {d} {wide} {dtype}", call, make, "ctg")
        rel = lambda q, r: (lambda s: F.pad(s, (1, 0)).view(*s.shape[:-2], s.shape[-1] + 1, s.shape[-2])[..., 1:, :].view_as(s)[
            ..., : s.shape[-1] // 2 + 1])(q @ r.mT)
        for n in (5, 50, 200):
            make = lambda n=n, d=dtype: (rand(4, n, 32, dtype=d), rand(2 * n - 1, 32, dtype=d))
            yield Case(f"graphs places {n} {dtype}", rel, make, "ctg")


def reductions() -> Iterator[Case]:
    for shape, axis in (((300, 1000), 1), ((5000, 300), 0), ((7, 100_000), 1), ((33, 65, 129), 1), ((200_000,), 0)):
        call = lambda x, a=axis: ((x > 3).any(a), (x > -3.5).all(a), (x > 3).any(), x.bool().all(), (x != x).sum(a))
        yield Case(f"reductions any, all {shape} {axis}", call, lambda s=shape: (rand(*s),))
    yield Case("reductions batch norm", lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
               lambda: (rand(6, 40, 33, 21), rand(40), rand(40)), "g")
    yield Case("reductions var", lambda x: (x.var(0), x.std(1), x.norm(dim=1)), lambda: (rand(700, 333),), "ctg")


def arrays() -> Iterator[Case]:
    """Functions of Arrays."""
    import tilewright as tw

    ordered = lambda n, d: rand(n, dtype=F64).mul(50).sort(-1).values.to(d)
    for dtype in (F32, F64):
        for n in (7, 65, 260):
            two = lambda n=n, d=dtype: (symmetric(n, n, dtype=d), rand(n, 6, dtype=d))
            some = lambda a, b, of: (of.solve(a, b), of.inv(a), of.cholesky(a), of.det(a))
            yield Case(f"arrays linalg {n} {dtype}", lambda a, b, some=some: some(a, b, torch.linalg), two, "a",
                       array=lambda a, b, some=some: some(a, b, tw.linalg))
        for n, m in ((5, 1000), (1000, 129), (70_001, 50_001)):
            yield Case(f"arrays searchsorted {n} {m} {dtype}", lambda a, v: [torch.searchsorted(a, v, right=r) for r in (False, True)],
                       lambda n=n, m=m, d=dtype: (ordered(n, d), rand(m, dtype=F64).mul(60).to(d)), "a",
                       array=lambda a, v: (tw.searchsorted(a, v), tw.searchsorted(a, v, side="right")))
        for s in ((300, 1000), (7, 50_001), (40_001, 9)):
            for axis in (0, 1):
                both = lambda x, f, a=axis: (f.sum(x, a), f.mean(x, a), f.amax(x, a) if f is torch else f.max(x, axis=a), f.cumsum(x, a),
                                             (x > 3).any(a), (x > -4).all(a))
                yield Case(f"arrays reductions {s} {axis} {dtype}", lambda x, both=both: both(x, torch),
                           lambda s=s, d=dtype: (rand(*s, dtype=d),), "a", array=lambda x, both=both: both(x, tw))


KINDS = (arrays, linalg, searches, pools, scans, samples, parts, beside, groups, graphs, reductions)


def cases(words: list[str]) -> list[tuple[Case, str]]:
    """In an order that reaches every kind early."""
    found = [(c, m) for kind in KINDS for c in kind() for m in c.modes if any(w in c.name for w in words or [""])]
    random.Random(0).shuffle(found)
    return found


# --- one case ---------------------------------------------------------------------------------------------------------------


def tensors(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [t for v in x for t in tensors(v)] if isinstance(x, (list, tuple)) else []


def gradients(call: Callable[..., Any], module: torch.nn.Module, inputs: tuple[Any, ...]) -> list[torch.Tensor]:
    """Cotangents of inputs and parameters, of results times cosines."""
    given = [x.detach().clone(memory_format=torch.preserve_format).requires_grad_(x.is_floating_point()) for x in inputs]
    results = [y for y in tensors(call(*given)) if y.requires_grad]
    weights = [torch.cos(torch.arange(y.numel(), device=y.device)).reshape(y.shape).to(y.dtype) for y in results]
    leaves = [x for x in (*given, *module.parameters()) if x.requires_grad]
    found = torch.autograd.grad(results, leaves, weights, allow_unused=True)
    return [x.detach() for x in found if x is not None]


def poison(like: list[torch.Tensor]) -> None:
    """Memory that results will come from is full of ones: NaN in every float."""
    blocks = [torch.full((t.numel() * t.element_size(),), 255, dtype=torch.uint8, device=t.device) for t in like for _ in range(2)]
    del blocks


def problem(got: list[torch.Tensor], exact: list[torch.Tensor], own: list[torch.Tensor]) -> str:
    """What is wrong, or nothing."""
    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in own]:
        return f"results {[(tuple(t.shape), t.dtype) for t in got]} where {[(tuple(t.shape), t.dtype) for t in own]} are right"
    for i, (a, b, c) in enumerate(zip(got, exact, own, strict=True)):
        if a.dtype not in TOLERANCE:
            if not torch.equal(a, c):
                return f"result {i}: {int((a != c).sum())} of {a.numel()} elements differ"
            continue
        x, y, z = a.double(), b.double(), c.double()
        plain = torch.isfinite(y) & torch.isfinite(z)
        if not torch.isfinite(x[plain]).all():
            return f"result {i}: {int((~torch.isfinite(x[plain])).sum())} elements are not finite"
        if not torch.equal(torch.isnan(x[~plain]), torch.isnan(z[~plain])):
            return f"result {i}: NaN elsewhere"
        x, y, z = x[plain], y[plain], z[plain]
        if not x.numel():
            continue
        size, most = float(y.norm()) + 1e-30, float(y.abs().max()) + 1e-30
        limit = TIMES * float((z - y).norm()) / size + TOLERANCE[a.dtype]
        far = TIMES * 2 * float((z - y).abs().max()) / most + 8 * TOLERANCE[a.dtype]
        error, worst = float((x - y).norm()) / size, float((x - y).abs().max()) / most
        if error > limit or worst > far:
            return f"result {i} {tuple(a.shape)}: error {error:.1e} (at most {limit:.1e}), of one element {worst:.1e} ({far:.1e})"
    return ""


def check(case: Case, mode: str, device: str, arch: str) -> str:
    """What is wrong, or nothing."""
    import tilewright as tw
    import tilewright.dynamo

    module = Called(case).eval().to(device)
    made = [tuple(x.to(device) for x in case.make()) for _ in range(2)]
    if arch:
        if mode == "a":
            return ""
        tw.compile(module, made[0], target=arch)
        return ""
    wide = lambda x: x.double() if x.is_floating_point() and x.dtype != F64 else x

    def finished(y: Any) -> list[torch.Tensor]:
        return tensors(case.after(*y) if case.after is not None else y)

    torch._dynamo.reset()
    if mode == "g":
        compiled: Any = torch.compile(module, backend="tilewright")
        ours: Callable[..., list[torch.Tensor]] = lambda *x: gradients(compiled, module, x)
        theirs: Callable[..., list[torch.Tensor]] = lambda *x: gradients(module, module, x)
    elif mode == "a":
        assert case.array is not None
        function = case.array
        theirs = lambda *x: finished(module(*x))
        ours = lambda *x: [torch.from_dlpack(y) for y in function(*(tw.asarray(t) for t in x))]
    else:
        compiled = tw.compile(module, made[0]) if mode == "c" else torch.compile(module, backend="tilewright")
        ours, theirs = (lambda *x: finished(compiled(*x))), (lambda *x: finished(module(*x)))
    with torch.set_grad_enabled(mode == "g"):
        own = [theirs(*x) for x in made]
        first: list[torch.Tensor] = []
        found = []
        for i in (0, 1, 0):
            poison(own[i])
            got = [t.numpy() if not isinstance(t, torch.Tensor) else t for t in ours(*made[i])]
            found.append([t.detach().clone() for t in got])
        if mode == "c" and device == "cuda":
            compiled.profile(*made[1])
            found.append([t.detach().clone() for t in ours(*made[0])])
        module.double()
        for i in (0, 1):
            exact = theirs(*(wide(x) for x in made[i]))
            if wrong := problem(found[i], exact, own[i]):
                return f"call {i + 1}: {wrong}"
        first = found[0]
        for k, later in enumerate(found[2:]):
            if not all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(first, later, strict=True)):
                return "other bits in the third call" if k == 0 else "other bits after a profile"
    return ""


def run_part(part: str, words: list[str], device: str, arch: str, seconds: float) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    number, count = map(int, part.split("/"))
    end, good = time.time() + seconds, 0
    todo = cases(words)[number::count]
    for done, (case, mode) in enumerate(todo):
        if time.time() > end:
            print(f"not run: {len(todo) - done} of {len(todo)}, from {case.name!r} {mode}", flush=True)
            break
        name, start = f"{case.name} [{mode}]", time.time()
        try:
            torch.manual_seed(sum(map(ord, name)) + int(start))
            wrong = check(case, mode, device, arch)
            good += not wrong
            print(f"{'FAIL' if wrong else 'ok':5s} {name} {wrong} ({time.time() - start:.1f} s)", flush=True)
        except Exception as e:
            at = traceback.extract_tb(e.__traceback__)[-1]
            print(f"error {name} {type(e).__name__}: {' '.join(str(e).split())[:400]} [{Path(at.filename).name}:{at.lineno}]", flush=True)
            if "illegal" in str(e).lower() or "ILLEGAL" in str(e) or "misaligned" in str(e).lower():
                print("the device is lost to this process", flush=True)
                sys.exit(3)
    print(f"{good} of {len(todo)} right", flush=True)


# --- everything -------------------------------------------------------------------------------------------------------------


class Runner:
    """Child processes, each with a time limit; what they print goes to a file of their kind as it comes."""

    def __init__(self, out: Path) -> None:
        self.out, self.lock, self.alive, self.start = out, threading.Lock(), dict[str, subprocess.Popen[str]](), time.time()
        self.lines: dict[str, list[str]] = {}
        out.mkdir(parents=True, exist_ok=True)

    def say(self, kind: str, who: str, line: str) -> None:
        with self.lock:
            self.lines.setdefault(kind, []).append(f"{who}: {line}")
            with open(self.out / f"{kind}.log", "a") as f:
                f.write(f"{time.time() - self.start:6.1f} {who}: {line}\n")

    def run(self, kind: str, who: str, command: list[str], seconds: float, nice: int = 0, prepared: threading.Event | None = None) -> None:
        """Start, read, and end in time. `prepared` is set when the process says that it waits."""
        env = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1", "MKL_NUM_THREADS": "1",
               "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": f"{HERE.parent / 'src'}:{HERE.parent}:{os.environ.get('PYTHONPATH', '')}"}
        command = ["nice", "-n", str(nice), "timeout", "-k", "3", str(int(seconds)), *command]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=env,
                                   cwd=HERE.parent)
        self.alive[who] = process
        assert process.stdout is not None
        for line in process.stdout:
            if line.rstrip():
                self.say(kind, who, line.rstrip()[:1500])
            if prepared is not None and line.startswith("prepared"):
                prepared.set()
        code = process.wait()
        if code:
            self.say(kind, who, f"ended with {code}{' (out of time)' if code in (124, 137) else ''}")
        self.alive.pop(who, None)
        if prepared is not None:
            prepared.set()


def everything(args: argparse.Namespace) -> None:
    python, runner = sys.executable, Runner(Path(args.out))
    begin, end = runner.start, runner.start + args.seconds
    timing = args.timing if args.timing else min(70.0, args.seconds * 0.3)
    checks, go = args.seconds - timing, Path(args.out) / "go"
    go.unlink(missing_ok=True)
    threads: list[threading.Thread] = []
    waits: list[threading.Event] = []

    def start(kind: str, who: str, command: list[str], seconds: float, nice: int, event: threading.Event | None = None) -> threading.Thread:
        t = threading.Thread(target=runner.run, args=(kind, who, command, seconds, nice, event), daemon=True)
        t.start()
        threads.append(t)
        return t

    late = ["--after", str(go)]
    for dtype in ("bf16", "f32"):
        for name in args.models:
            waits.append(threading.Event())
            start("models", f"{name} {dtype}", [python, "benchmarks/zoo.py", name, "--device", "cuda", "--dtype", dtype, "--peers",
                                                "eager,compile", "--why", "8", *late], args.seconds - 2, 0, waits[-1])
    for name in args.hf:
        waits.append(threading.Event())
        start("models", f"hf {name}", [python, "benchmarks/gpu_hf.py", name, "--why", "12", *late], args.seconds - 2, 0, waits[-1])
    own = [start("cases", f"part {i}", [python, __file__, "--part", f"{i}/{args.parts}", "--seconds", str(checks - 8), *args.words],
                 checks, 2) for i in range(args.parts)]
    if args.functions:
        own.append(start("functions", "functions", [python, "tests/dynamo/device.py", "--jobs", str(args.functions), "--seconds",
                                                    str(checks - 18)], checks, 12))
    slots = threading.Semaphore(args.jobs)

    def test(name: str) -> None:
        with slots:
            left = begin + checks - time.time()
            if left < 12:
                runner.say("tests", name, "not run")
                return
            command = [python, "-m", "pytest", "-q", "-x" if args.first else "--maxfail=40", "--tb=short", "-p", "no:cacheprovider",
                       "-p", "no:randomly", "-rfE", f"tests/cuda/test_device_{name}.py"]
            runner.run("tests", name, command, min(100, left), 6)

    tests = [threading.Thread(target=test, args=(name,), daemon=True) for name in args.tests]
    for t in tests:
        t.start()
    for t in (*own, *tests):
        t.join(max(0.0, begin + checks + 4 - time.time()))
    for event in waits:
        event.wait(max(0.0, begin + checks + 4 - time.time()))
    runner.say("cases", "all", f"checks ended after {time.time() - begin:.0f} s, left: {sorted(runner.alive)}")
    go.touch()
    for t in threads:
        t.join(max(0.0, end - 1 - time.time()))
    go.unlink(missing_ok=True)
    table(runner)
    for process in list(runner.alive.values()):
        process.terminate()


def table(runner: Runner) -> None:
    """What went wrong, what ended each file of tests, and the rows of models."""
    lines = runner.lines
    found = [x for x in lines.get("cases", []) if ": ok " not in x]
    print(f"== cases: {sum(': ok ' in x for x in lines.get('cases', []))} right", *found, sep="\n")
    tests = [x for x in lines.get("tests", []) if "FAILED" in x or "ERROR" in x or " passed" in x or " failed" in x or ": not run" in x
             or ": ended with" in x or "no tests" in x]
    print("== tests", *tests, sep="\n")
    print("== functions", *(x for x in lines.get("functions", []) if "SPLITS" not in x), sep="\n")
    print("== models", *(x for x in lines.get("models", [])), sep="\n", flush=True)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("words", nargs="*")
    ap.add_argument("--out", default="gpu_check")
    ap.add_argument("--seconds", type=float, default=230)
    ap.add_argument("--timing", type=float, default=0, help="of these seconds for models alone (default: three tenths)")
    ap.add_argument("--parts", type=int, default=7, help="processes of cases")
    ap.add_argument("--jobs", type=int, default=6, help="files of tests at once")
    ap.add_argument("--functions", type=int, default=2, help="processes of tests/dynamo/device.py")
    ap.add_argument("--models", nargs="*", default=MODELS)
    ap.add_argument("--hf", nargs="*", default=["stablelm"])
    ap.add_argument("--tests", nargs="*", default=TESTS)
    ap.add_argument("--first", action="store_true", help="a file of tests ends at its first failure")
    ap.add_argument("--part", help="I/N: this part of the cases, in this process")
    ap.add_argument("--device", default="cuda")
    ap.add_argument("--compile", default="", help="only compile the cases for this chip")
    ap.add_argument("--list", action="store_true")
    args = ap.parse_args()
    if args.list:
        print(*(f"{c.name} [{m}]" for c, m in cases(args.words)), sep="\n")
    elif args.part:
        run_part(args.part, args.words, "cpu" if args.compile else args.device, args.compile, args.seconds)
    else:
        everything(args)


if __name__ == "__main__":
    main()
