"""Random smooth programs and their derivatives against PyTorch's autograd, both in f64: values, grad, jvp, vmap, checkpoint, second order
and their compositions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

import tilewright as tw

from .engine.campaign import Campaign, Invalid
from .programs.program import KEEP, Builder, Call, Input, Program, Step, Unfit, Val, needed, resolve
from .programs.run import function_of
from .programs.smooth import Smooth
from .programs.smooth_ops import OPS
from .programs.text import written

WAYS = ("value", "grad", "jvp", "vmap", "checkpoint", "second order", "vmap of grad", "grad of vmap", "forward over reverse", "jacobian")
SIZES = (1, 2, 2, 3, 3, 4, 5, 7, 8)
TINY, SLACK = 1e-14, 3000.0  # inputs moved by that, relatively, may move a result by a part of what is allowed


def draw(rng: np.random.Generator) -> Program:
    first = tuple(int(rng.choice(SIZES)) for _ in range(int(rng.choice([0, 1, 2, 2, 3]))))
    inputs = [Input("f64", first)]
    for _ in range(int(rng.integers(0, 2))):
        other = first if rng.random() < 0.5 else tuple(int(rng.choice(SIZES)) for _ in range(int(rng.integers(0, 3))))
        inputs.append(Input("f64", other))
    steps = []
    for i in range(int(rng.integers(1, 10))):
        at = len(inputs) + i
        args = tuple(int(max(rng.integers(at), rng.integers(at))) for _ in range(2))
        steps.append(Step(at, str(rng.choice(list(OPS))), args, tuple(int(n) for n in rng.integers(0, 240, 8))))
    return Program(tuple(inputs), tuple(steps), (), int(rng.integers(1 << 16)), int(rng.integers(len(WAYS))), 0, ())


def numbers(shape: Sequence[Any], *seed: int) -> Any:
    return np.random.default_rng(seed).uniform(-1.5, 1.5, tuple(shape))


def prepared(program: Program) -> tuple[Builder, list[Val], list[Any]]:
    if any(not isinstance(d, int) or i.dtype != "f64" for i in program.inputs for d in i.shape) or program.way not in range(len(WAYS)):
        raise Invalid
    arrays = [numbers(i.shape, program.data, k) for k, i in enumerate(program.inputs)]
    builder, outputs = resolve(program, OPS, Smooth(), [torch.from_numpy(a) for a in arrays])
    return builder, [v for v in outputs if v.dtype.is_float], arrays


def torch_function(calls: Sequence[Call], inputs: Sequence[Val], outputs: Sequence[Val]) -> Callable[..., Any]:
    calls = needed(calls, [v.number for v in outputs])
    reference = Smooth(guard=False)

    def program(*args: Any) -> tuple[Any, ...]:
        values = {v.number: a for v, a in zip(inputs, args, strict=True)}
        for call in calls:
            values[call.out] = call.run(reference.function, values, {})
        return tuple(values[v.number] for v in outputs)

    return program


def total(results: Sequence[Any], weights: Sequence[Any], library: Any) -> Any:
    """One number from all results."""
    out: Any = 0.0
    for r, w in zip(results, weights, strict=True):
        out = out + library.sum(r * w)
    return out


def torch_grad(f: Callable[..., Any], xs: Sequence[Any], *, graph: bool = False) -> list[Any]:
    xs = [x if x.requires_grad else x.requires_grad_() for x in xs]
    found = torch.autograd.grad(f(*xs), xs, create_graph=graph, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, xs, strict=True)]


def expected(way: str, f: Callable[..., Any], xs: list[Any], more: dict[str, list[Any]]) -> list[Any]:
    """What PyTorch says, from plain autograd alone."""
    xs = [torch.from_numpy(np.array(x)) for x in xs]
    cots, tans = ([torch.from_numpy(a) for a in more[k]] for k in ("cotangents", "tangents"))
    cases = [[torch.from_numpy(np.array(a[i])) for a in more["cases"]] for i in range(len(more["cases"][0]))]

    def scalar(*args: Any) -> Any:
        return total(f(*args), cots, torch)

    def moved(*args: Any) -> Any:  # grad · tangents
        made = [a if a.requires_grad else a.requires_grad_() for a in args]
        value = scalar(*made)
        if not torch.is_tensor(value) or not value.requires_grad:
            return sum((a * 0).sum() for a in made)
        found = torch.autograd.grad(value, made, create_graph=True, allow_unused=True)
        terms = [(g * t).sum() for g, t in zip(found, tans, strict=True) if g is not None]
        return sum(terms, sum((a * 0).sum() for a in made))

    def grads(args: Sequence[Any]) -> list[Any]:
        return torch_grad(lambda *a: scalar(*a) + sum((x * 0).sum() for x in a), args)

    if way == "value":
        return list(f(*xs))
    if way in ("grad", "checkpoint"):
        return grads(xs)
    if way == "jvp":
        pushed: Any = torch.autograd.functional.jvp
        return list(pushed(lambda *a: f(*a), tuple(xs), tuple(tans), strict=False)[1])
    if way == "vmap":
        return [torch.stack(r) for r in zip(*(f(*c) for c in cases), strict=True)]
    if way == "vmap of grad":
        return [torch.stack(r) for r in zip(*(grads(c) for c in cases), strict=True)]
    if way == "grad of vmap":
        return [torch.stack(r) for r in zip(*(grads(c) for c in cases), strict=True)]
    if way in ("second order", "forward over reverse"):
        return torch_grad(lambda *a: moved(*a), xs)
    jacobian: Any = torch.autograd.functional.jacobian
    return [jacobian(lambda x: f(x, *xs[1:])[0], xs[0])]


def found(way: str, f: Callable[..., Any], xs: list[Any], more: dict[str, list[Any]]) -> list[Any]:
    every = tuple(range(len(xs)))
    cots, tans, cases = (more[k] for k in ("cotangents", "tangents", "cases"))

    def scalar(*args: Any) -> Any:
        return total(f(*args), cots, tw)

    def grads(*args: Any) -> Any:
        return tw.grad(scalar, every)(*args)

    if way == "value":
        return list(tw.jit(f)(*xs))
    if way == "grad":
        return list(grads(*xs))
    if way == "checkpoint":
        return list(tw.jit(tw.grad(tw.checkpoint(scalar), every))(*xs))
    if way == "jvp":
        return list(tw.jvp(f, tuple(xs), tuple(tans))[1])
    if way == "vmap":
        return list(tw.vmap(f)(*cases))
    if way == "vmap of grad":
        return list(tw.vmap(grads)(*cases))
    if way == "grad of vmap":
        return list(tw.grad(lambda *a: tw.sum(tw.vmap(scalar)(*a)), every)(*cases))
    if way == "second order":
        return list(tw.grad(lambda *a: total(grads(*a), tans, tw), every)(*xs))
    if way == "forward over reverse":
        return list(tw.jvp(grads, tuple(xs), tuple(tans))[1])
    return [tw.jacobian(lambda x: f(x, *xs[1:])[0])(xs[0])]


def check(program: Program) -> None:
    builder, outputs, arrays = prepared(program)
    if not outputs:
        raise Invalid
    way = WAYS[program.way]
    if way == "jacobian" and (arrays[0].size * int(np.prod(outputs[0].shape)) > 4096 or 0 in outputs[0].shape or not arrays[0].size):
        raise Invalid
    more = {
        "cotangents": [numbers(v.shape, program.data, 100 + i) for i, v in enumerate(outputs)],
        "tangents": [numbers(a.shape, program.data, 200 + i) for i, a in enumerate(arrays)],
        "cases": [np.stack([a, 0.9 * a + 0.01, 0.8 * a]) for a in arrays],
    }
    reference = torch_function(builder.calls, builder.inputs, outputs)
    try:
        want = expected(way, reference, arrays, more)
        rng = np.random.default_rng([program.data, 7])
        near = [np.asarray(a * (1 + TINY * rng.choice([-1, 1], a.shape))) for a in arrays]
        close = expected(way, reference, near, {**more, "cases": [a * (1 + TINY * rng.choice([-1, 1], a.shape)) for a in more["cases"]]})
    except Unfit:
        raise Invalid from None
    got = found(way, function_of(builder.calls, builder.inputs, outputs, {}), arrays, more)
    assert len(got) == len(want)
    for a, b, c in zip(got, want, close, strict=True):
        a, b, c = np.asarray(a), b.detach().numpy(), c.detach().numpy()
        assert a.shape == b.shape, f"{way}: {a.shape}, wanted {b.shape}"
        scale = max(1.0, float(np.abs(b).max(initial=0.0)))
        if not np.isfinite(b).all() or scale > 1e8:
            continue
        allowed = 1e-10 * scale + SLACK * float(np.abs(b - c).max(initial=0.0))
        if allowed < 1e-3 * scale:
            np.testing.assert_allclose(a, b, rtol=0, atol=allowed, err_msg=way)


def show(program: Program) -> str:
    builder, outputs, arrays = prepared(program)
    text = written("smooth", Program(program.inputs, program.steps, (), program.data, 0, 0, ()), builder, outputs, arrays,
                   [v.known.detach().numpy() for v in outputs])  # fmt: skip
    return f"# {WAYS[program.way]}; as data: {program!r}\n{text}"


CAMPAIGN = Campaign(draw=draw, check=check, show=show, keep=KEEP, quick=30)
