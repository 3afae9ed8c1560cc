"""Random functions that compute with sizes, compiled once and called at several: `torch.compile(backend="tilewright")`, forward and
backward, with sizes that vary from the first or from the second call on, and `tw.compile(dynamic=)`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tilewright as tw

from .engine.campaign import MB, Campaign, Invalid
from .programs.program import Step
from .programs.torch_sizes import SIZED
from .torch_programs import Function, Given, Plan, compare, planned, results, settled, tensors

AROUND = ("unary", "activation", "binary", "number", "reduce", "along", "view", "join", "product")
WAYS = ("dynamic", "automatic", "session")
S, T = -1, -2  # in shapes


@dataclass(frozen=True)
class Sized:
    function: Function
    sizes: tuple[tuple[int, int], ...]


def draw(rng: np.random.Generator) -> Sized:
    rank = int(rng.choice([1, 2, 3], p=[0.2, 0.5, 0.3]))
    base = tuple(int(d) for d in rng.permutation([S, T if rng.random() < 0.6 else 4, 3])[:rank])
    dtype = int(rng.choice([0, 0, 0, 2, 6, 8]))
    inputs = (Given(dtype, base, int(rng.choice([0, 0, 2, 4]))), Given(dtype, base[::-1] if rng.random() < 0.3 else base, 0))
    steps = []
    for i in range(int(rng.integers(1, 7))):
        args = tuple(int(max(rng.integers(i + 2), rng.integers(i + 2))) for _ in range(2))
        name = str(rng.choice(SIZED if rng.random() < 0.7 else AROUND))
        steps.append(Step(i + 2, name, args, tuple(int(n) for n in rng.integers(0, 1 << 20, 8))))
    way = int(rng.integers(len(WAYS)))
    few = (2, 3, 4, 5, 7, 8, 12, 17) if WAYS[way] == "session" else (0, 1, 2, 3, 4, 5, 7, 8, 12, 17)
    sizes = ((int(rng.choice([6, 9])), int(rng.choice([5, 8]))), *((int(rng.choice(few)), int(rng.choice(few))) for _ in range(3)))
    grad = bool(rng.random() < 0.4) and WAYS[way] != "session"
    return Sized(Function(inputs, tuple(steps), way, grad, False, int(rng.integers(1 << 30))), sizes)


def at(f: Function, s: int, t: int) -> Function:
    """The function with inputs of these sizes."""
    return replace(f, inputs=tuple(replace(g, shape=tuple({S: s, T: t}.get(d, d) for d in g.shape)) for g in f.inputs))


class Wired(torch.nn.Module):
    def __init__(self, plan: Plan, outs: list[int]) -> None:
        super().__init__()
        self.plan, self.outs = plan, outs

    def forward(self, x: Any, y: Any) -> Any:
        values = [x, y]
        for at, other, run in self.plan:
            values.append(run(values[at], values[other]))
        return tuple(values[i] for i in self.outs)


def check(sized: Sized) -> None:
    f = sized.function
    if len(f.inputs) != 2 or not sized.sizes or any(n < 0 or n > 40 for pair in sized.sizes for n in pair):
        raise Invalid
    if any(d not in (S, T) and not 0 <= d <= 9 for g in f.inputs for d in g.shape) or not 0 <= f.way < len(WAYS):
        raise Invalid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(f, sized.sizes)


def _check(f: Function, sizes: tuple[tuple[int, int], ...]) -> None:
    way, first = WAYS[f.way], at(f, *sizes[0])
    plan, outs, unit = planned(first)
    module, kept = Wired(plan, outs), []
    for pair in sizes:  # those at which PyTorch takes every step
        g = at(f, *pair)
        try:
            kept.append((g, [*(results(g, module, k, unit) for k in range(4)), results(g, Wired(settled(plan), outs))]))
        except (RuntimeError, IndexError, ValueError, ZeroDivisionError):
            continue
    if not kept or kept[0][0] != first:
        raise Invalid
    if way == "session":
        dims = {S: tw.Dim("S", 2, 40), T: tw.Dim("T", 2, 40)}
        dynamic = {n: {a: dims[d] for a, d in enumerate(g.shape) if d < 0} for n, g in zip("xy", f.inputs, strict=True)}
        try:
            compiled: Any = tw.compile(module, tuple(tensors(first)), dynamic=dynamic)
        except tw.TilewrightError as e:
            if isinstance(e, tw.UnsupportedError) or "torch.export" in str(e) or "static" in str(e):
                raise Invalid from None
            raise
    else:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="tilewright", dynamic=True if way == "dynamic" else None)
    for g, (want, *moved) in kept:
        compare(g, compiled, module, way, want, moved, unit)


CAMPAIGN = Campaign(draw=draw, check=check, keep=("out", "op"), quick=3, seconds=60.0, memory=3072 * MB, growth=8.0 * MB)
