"""Random functions of PyTorch, of odd dtypes, layouts, sizes of 0 and 1, views and writes, through `torch.compile(backend="tilewright")`
and `tw.compile`: results, their dtypes and shapes, what was written and gradients equal PyTorch's. `TILEWRIGHT_CAMPAIGN_DEVICE=cuda` has
all tensors on the GPU."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

import tilewright as tw

from .engine.campaign import DEVICE, MB, Campaign, Invalid
from .engine.reuse import reused
from .programs.program import Picks, Step, Unfit
from .programs.torch_ops import DTYPES, NAMES, OPS, Run

WAYS = ("dynamo", "dynamo", "dynamic", "session")
ODD = (float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e30, 1e-30)
REFUSED = ("torch.export", "needs float operands", "needs float or integer operands")
UNITS = 64  # units of the last place, beside what inputs moved by one unit do
DECIDED = 1 << 12  # units of the largest element that another decision on the way makes at least
COARSE = 16  # units of the last place of a tensor's largest element: what lies within them of an integer or of another number may be it
Plan = list[tuple[int, int, Run]]


@dataclass(frozen=True)
class Given:
    dtype: int
    shape: tuple[int, ...]
    layout: int


@dataclass(frozen=True)
class Function:
    inputs: tuple[Given, ...]
    steps: tuple[Step, ...]
    way: int
    grad: bool
    odd: bool  # NaN and infinities among the elements
    data: int


def draw(rng: np.random.Generator) -> Function:
    sizes = (0, 1, 2, 3, 4, 5, 7, 8, 17, 33)
    chance = (0.05, 0.12, 0.15, 0.15, 0.15, 0.1, 0.08, 0.1, 0.06, 0.04)
    base = tuple(int(n) for n in rng.choice(sizes, int(rng.choice([0, 1, 2, 3, 4], p=[0.07, 0.23, 0.4, 0.2, 0.1])), p=chance))
    inputs = []
    for i in range(int(rng.integers(1, 4))):
        shape = base
        if i and rng.random() < 0.5:  # another that broadcasts
            shape = tuple(1 if rng.random() < 0.3 else n for n in base[int(rng.integers(len(base) + 1)):])
        inputs.append(Given(int(rng.integers(len(DTYPES))) if rng.random() < 0.7 else 0, shape, int(rng.integers(5))))
    steps = []
    for i in range(int(rng.integers(1, 9))):
        args = tuple(int(max(rng.integers(i + 3), rng.integers(i + 3))) for _ in range(2))
        steps.append(Step(i + 3, str(rng.choice(NAMES)), args, tuple(int(n) for n in rng.integers(0, 1 << 20, 6))))
    grad = bool(rng.random() < 0.3)
    odd = bool(rng.random() < 0.2) and not grad
    return Function(tuple(inputs), tuple(steps), int(rng.integers(len(WAYS))), grad, odd, int(rng.integers(1 << 30)))


def tensors(f: Function, moved: int = 0, unit: float = 0.0) -> list[Any]:
    """The inputs; `moved` ones differ by a unit of the last place at random, or by `unit`; the first are not rounded to 16 bits, either."""
    g, other = torch.Generator().manual_seed(f.data), torch.Generator().manual_seed(moved)
    made = []
    for given in f.inputs:
        dtype, shape = DTYPES[given.dtype % len(DTYPES)], given.shape
        wide = tuple(2 * n for n in shape) if given.layout == 1 else shape[::-1] if given.layout == 2 else shape
        if dtype.is_floating_point or dtype.is_complex:
            x = torch.randn(wide, generator=g) * 3
            if f.data % 2:  # integers: sums and products of them are exact
                x = x.round()
            if f.odd:
                for k, value in enumerate(ODD):
                    x = torch.where(torch.rand(wide, generator=g) < 0.05, torch.full((), value), x) if k != f.data % 3 else x
            if moved:
                x = x.double() * (1 + max(unit, torch.finfo(dtype).eps) * torch.randint(-1, 2, wide, generator=other))
            x = x.to(torch.float32 if moved == 1 and dtype.itemsize == 2 else dtype)
            if dtype.is_complex:
                x = x + 1j * torch.randn(wide, generator=g).round()
        else:
            x = torch.randint(0 if dtype in (torch.uint8, torch.bool) else -5, 2 if dtype == torch.bool else 9, wide, generator=g).to(dtype)
        x = x.to(DEVICE)
        if given.layout == 1:
            x = x[tuple(slice(k % 2, None, 2) for k in range(len(shape)))]
        elif given.layout == 2:
            x = x.permute(tuple(range(len(shape) - 1, -1, -1)))
        elif given.layout == 3 and shape:
            x = x[:1].expand(shape) if shape[0] else x
        elif given.layout == 4 and len(shape) > 1:
            x = x.transpose(0, 1).contiguous().transpose(0, 1)
        elif given.layout == 5 and len(shape) > 2:  # channels last
            x = x.movedim(1, -1).contiguous().movedim(-1, 1)
        made.append(x.detach().requires_grad_(f.grad and (x.is_floating_point() or x.is_complex())))
    return made


def planned(f: Function) -> tuple[Plan, list[int], float]:
    """The steps that PyTorch takes, found by running them one after the other, which values are results, and the unit of the last place of
    the coarsest value on the way."""
    values: list[tuple[int, Any]] = list(enumerate(tensors(f)))
    plan: Plan = []
    for step in f.steps:
        x, y = ([i for i, (n, _) in enumerate(values) if n <= a] or [0] for a in step.args)
        at, other = x[-1], y[-1]
        before = [v._version for _, v in values]
        try:
            run = OPS[step.op](values[at][1], values[other][1], Picks(step.picks))
            made = run(values[at][1], values[other][1])
        except (Unfit, RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, ZeroDivisionError):
            if before != [v._version for _, v in values]:
                raise Invalid from None  # half a write
            continue
        if not isinstance(made, torch.Tensor) or made.numel() > 1 << 14 or made.dim() > 6:
            if before != [v._version for _, v in values]:
                raise Invalid
            continue
        plan.append((at, other, run))
        values.append((step.out, made))
    if not plan:
        raise Invalid
    used = {i for at, other, _ in plan for i in (at, other)}
    units = [torch.finfo(v.dtype).eps for _, v in values if v.is_floating_point() or v.is_complex()]
    return plan, [i for i in range(len(f.inputs), len(values)) if i not in used] or [len(values) - 1], max(units, default=0.0)


def settled(plan: Plan) -> Plan:
    """The steps with what they compute rounded to a few bits less: zeros and equal numbers that rounding has moved are that again."""

    def rounding(run: Run) -> Run:
        def both(x: Any, y: Any) -> Any:
            made = run(x, y)
            if made.is_complex() or not made.is_floating_point() or not made.numel():
                return made
            if made.untyped_storage().data_ptr() in (x.untyped_storage().data_ptr(), y.untyped_storage().data_ptr()):
                return made
            there = made.detach()
            top = there.nan_to_num(0, 0, 0).abs().max().double()
            grid = COARSE * torch.finfo(made.dtype).eps * torch.exp2(torch.ceil(torch.log2(top)))
            change = ((there / grid).round() * grid - there).nan_to_num(0, 0, 0).to(made.dtype)
            return torch.where(change != 0, made + change, made)

        return both

    return [(at, other, rounding(run)) for at, other, run in plan]


class Wired(torch.nn.Module):
    def __init__(self, plan: Plan, outs: list[int]) -> None:
        super().__init__()
        self.plan, self.outs = plan, outs

    def forward(self, *xs: Any) -> Any:
        values = list(xs)
        for at, other, run in self.plan:
            values.append(run(values[at], values[other]))
        return tuple(values[i] for i in self.outs)


def results(f: Function, fn: Any, moved: int = 0, unit: float = 0.0) -> list[Any]:
    """Results, inputs after the call, and gradients of the inputs."""
    xs = tensors(f, moved, unit)
    outs = list(fn(*xs))
    ends = [t for t in outs if t.requires_grad]
    grads = []
    if ends:
        wanted = [x for x in xs if x.requires_grad]
        found = torch.autograd.grad([t.abs().sum().double() for t in ends], wanted, allow_unused=True)
        grads = [torch.zeros(()) if t is None else t for t in found]
    return [t.detach().cpu() for t in (*outs, *xs, *grads)]


def differs(got: Any, want: Any, moved: list[Any], unit: float, floor: float) -> str | None:
    if (got.dtype, got.shape) != (want.dtype, want.shape):
        return f"{want.dtype}{list(want.shape)} expected, got {got.dtype}{list(got.shape)}"
    got, want, *moved = (torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in (got, want, *moved))
    mine, exact = got.double(), want.double()
    fine = (mine == exact) | (mine.isnan() & exact.isnan())
    allowed = torch.zeros_like(exact)
    if want.is_floating_point() and want.numel():
        size = exact.nan_to_num(0, 0, 0).abs()
        allowed = UNITS * unit * size + 16 * unit * size.max() + floor
    for k, m in enumerate(moved):  # where these differ, a rounding decides
        gap = (m.double() - exact).abs()
        same = (m == want) | (m.isnan() & want.isnan())
        if k == len(moved) - 1:  # the settled one: its values differ by more than these, so what counts is another decision
            same |= gap <= (DECIDED * unit * size.max() if want.is_floating_point() and want.numel() else 0.0)
            gap = torch.full_like(gap, torch.inf)
        allowed += torch.where(same, 0.0, UNITS * gap if want.is_floating_point() else torch.inf).nan_to_num(torch.inf)
    fine |= ((mine - exact).abs() <= allowed) | allowed.isinf()
    if bool(fine.all()):
        return None
    k = int((~fine).reshape(-1).nonzero()[0, 0])
    return (f"{int((~fine).sum())} of {want.numel()} elements of {want.dtype}{list(want.shape)} differ: "
            f"{mine.reshape(-1)[k].item()} at {k}, {exact.reshape(-1)[k].item()} expected, {allowed.reshape(-1)[k].item():.2e} allowed")


def check(f: Function) -> None:
    if any(n < 0 or n > 64 for g in f.inputs for n in g.shape) or not f.inputs or not 0 <= f.way < len(WAYS):
        raise Invalid
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _check(f)


def _check(f: Function) -> None:
    way = WAYS[f.way]
    f = replace(f, grad=False) if way == "session" else f
    plan, outs, unit = planned(f)
    module = Wired(plan, outs)
    try:
        want, *moved = [*(results(f, module, k, unit) for k in range(4)), results(f, Wired(settled(plan), outs))]
    except RuntimeError:  # PyTorch says that what backward needs was written to
        raise Invalid from None
    if way == "session":
        try:
            compiled: Any = tw.compile(module, tuple(tensors(f)))
        except tw.TilewrightError as e:
            if isinstance(e, tw.UnsupportedError) or any(known in str(e) for known in REFUSED):
                raise Invalid from None
            raise
    else:
        torch._dynamo.reset()
        compiled = torch.compile(module, backend="tilewright", dynamic=True if way == "dynamic" else None)
    compare(f, compiled, module, way, want, moved, unit)


def compare(f: Function, compiled: Any, module: Any, way: str, want: list[Any], moved: list[list[Any]], unit: float) -> None:
    """Results of `compiled` are PyTorch's; what dynamo does without us, and what it refuses, is PyTorch's, too."""

    def alone() -> list[Any]:
        torch._dynamo.reset()
        return results(f, torch.compile(module, backend="aot_eager", dynamic=True if way == "dynamic" else None))

    try:
        with reused(f.data % 3 == 0) as spoilt:
            got = results(f, compiled)
            spoilt()
            again = results(f, compiled)
    except torch._dynamo.exc.TorchDynamoException:
        try:
            alone()
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError):
            raise Invalid from None
        raise
    floor = unit if f.grad else 0.0  # gradients that cancel to nothing are rounding alone
    problem = different(got, want, moved, unit, floor)
    if problem is not None and way != "session":
        problem = different(got, alone(), moved, unit, floor) and problem
    assert problem is None, f"{problem}, at {[list(g.shape) for g in f.inputs]}"
    problem = different(again, got, [got, got], 0.0, 0.0)
    assert problem is None, f"a second call: {problem}, at {[list(g.shape) for g in f.inputs]}"


def different(got: list[Any], want: list[Any], moved: list[list[Any]], unit: float, floor: float) -> str | None:
    assert len(got) == len(want)
    for i, (a, b, *others) in enumerate(zip(got, want, *moved, strict=True)):
        problem = differs(a, b, others, unit, floor)
        if problem is not None:
            return f"result {i}: {problem}"
    return None


CAMPAIGN = Campaign(draw=draw, check=check, keep=("out", "op"), quick=3, seconds=60.0, memory=(3072 if DEVICE == "cpu" else 12288) * MB,
                    growth=8.0 * MB)  # fmt: skip
