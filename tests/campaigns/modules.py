"""Random torch modules through `tw.compile`, beside PyTorch eager, at sizes that vary: f32 and 16 bits, held to the value in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import tilewright as tw
from tests.e2e.compare import distance, eager, exact
from tilewright.passes.pipeline import optional_passes

from .engine.campaign import Campaign, Invalid
from .programs.modules import LAYERS, Net, Wired, example
from .programs.program import Step

MISSING = ("interpolate needs static sizes", "an adaptive pool needs static sizes",
           "adaptive_max_pool needs static sizes")
DTYPES = ("float32", "float32", "float32", "bfloat16", "float16", "float64")
LIMITS = {"image": ((1, 4), (6, 17), (6, 17)), "sequence": ((1, 5), (2, 13), (1, 1)), "ids": ((1, 5), (2, 13), (1, 1)),
          "rows": ((1, 9), (1, 1), (1, 1))}  # fmt: skip
# Units of the last place of the largest value, beside four times PyTorch's own error
UNITS = {"float64": 64, "float32": 64, "float16": 16, "bfloat16": 16}


def draw(rng: np.random.Generator) -> Net:
    kind = str(rng.choice(["image", "sequence", "ids", "rows"], p=[0.4, 0.35, 0.15, 0.1]))
    steps = []
    for i in range(int(rng.integers(1, 9))):
        args = tuple(int(max(rng.integers(i + 1), rng.integers(i + 1))) for _ in range(2))
        steps.append(Step(i + 1, str(rng.choice(list(LAYERS))), args, tuple(int(n) for n in rng.integers(0, 240, 6))))
    sizes = tuple(int(rng.integers(lo, hi + 1)) for lo, hi in LIMITS[kind])
    varies = tuple(bool(rng.random() < 0.6) and lo != hi for lo, hi in LIMITS[kind])
    off = (str(rng.choice(optional_passes())),) if rng.random() < 0.3 else ()
    return Net(kind, int(rng.choice([1, 2, 4, 6, 8, 12, 16])), tuple(steps), sizes, str(rng.choice(DTYPES)), varies,  # type: ignore[arg-type]
               int(rng.integers(1 << 30)), int(rng.integers(2)), off)  # fmt: skip


def made(net: Net) -> tuple[Any, list[Any]]:
    """The module and its inputs: the example's sizes, and others within the limits where they vary."""
    limits = LIMITS.get(net.kind)
    if limits is None or net.features < 1 or any(not lo <= n <= hi for n, (lo, hi) in zip(net.sizes, limits, strict=True)):
        raise Invalid
    if not set(net.off) <= set(optional_passes()) or any(v and lo == hi for v, (lo, hi) in zip(net.varies, limits, strict=True)):
        raise Invalid
    several = [net.sizes]
    for k in (0, 1):
        other = tuple(limits[i][k] if v else n for i, (n, v) in enumerate(zip(net.sizes, net.varies, strict=True)))
        several += [other] if other not in several else []  # type: ignore[list-item]
    with torch.no_grad():
        try:
            module = Wired(net, example(net, net.sizes, net.data)).eval()
        except (RuntimeError, ValueError):  # PyTorch's own limits: kernels larger than the image, types without a kernel
            raise Invalid from None
    return module, [example(net, sizes, net.data + i) for i, sizes in enumerate(several)]


def check(net: Net) -> None:
    module, inputs = made(net)
    names = ("N", "A", "B")
    axes = {"image": (0, 2, 3), "sequence": (0, 1), "ids": (0, 1), "rows": (0,)}[net.kind]
    dims = {axis: tw.Dim(names[i], *LIMITS[net.kind][i]) for i, axis in enumerate(axes) if net.varies[i]}
    kept = []
    for x in inputs:
        try:
            kept.append((x, eager(module, (x,)), exact(module, (x,))))
        except (RuntimeError, ValueError):
            continue
    if not kept:
        raise Invalid
    try:
        session = tw.compile(module, (inputs[0],), dynamic={"x": dims} if dims else None, threads=1 + net.threads % 2,
                             passes=net.off, validation="strict")  # fmt: skip
    except tw.UnsupportedError as e:
        if any(known in str(e) for known in MISSING):
            raise Invalid from None
        raise
    except tw.CompileError as e:
        if str(e).startswith("torch.export: Constraints violated"):  # sizes that this wiring fixes, in torch's own words
            raise Invalid from None
        raise
    for x, theirs, true in kept:
        got = session(x)
        assert [(a.dtype, tuple(a.shape)) for a in got] == [(b.dtype, tuple(b.shape)) for b in theirs]
        for a, b, c in zip(got, theirs, true, strict=True):
            ours, own = distance(a, c), distance(b, c)
            allowed = 4 * own + UNITS[net.dtype] * torch.finfo(getattr(torch, net.dtype)).eps
            if own == own and own < 0.1:
                assert ours <= allowed, f"error {ours:.2e} of the largest value, allowed {allowed:.2e}, own {own:.2e}, {tuple(x.shape)}"


CAMPAIGN = Campaign(draw=draw, check=check, keep=("out", "op", "kind", "dtype"), quick=3, seconds=60.0)
