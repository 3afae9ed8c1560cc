"""Functions of PyTorch for random programs: (x, y, picks) -> how it is run on (x, y). x and y are tensors of any dtype, shape and layout.

What PyTorch leaves undefined is kept out: integers divided by zero, floats beyond an integer's range, shifts beyond its bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .program import Picks, Unfit

Run = Callable[[Any, Any], Any]
OPS: dict[str, Callable[[Any, Any, Picks], Run]] = {}
DTYPES = (torch.float32, torch.float32, torch.int64, torch.uint8, torch.int8, torch.bool, torch.bfloat16, torch.float16, torch.float64,
          torch.int16, torch.int32, torch.complex64)
UNARY = """neg abs sqrt rsqrt exp log sin cos tanh sigmoid relu floor ceil round trunc sign logical_not isnan isinf isfinite
    reciprocal square erf signbit frac expm1 log1p exp2 log2 positive nan_to_num bitwise_not conj_physical angle sgn erfc atan
    sinh acosh lgamma digamma isneginf real"""
BINARY = """add sub mul div maximum minimum eq ne lt le gt ge atan2 logical_and logical_or logical_xor copysign hypot fmax fmin
    bitwise_and bitwise_or bitwise_xor heaviside nextafter xlogy"""


def op(fn: Any) -> Any:
    OPS[fn.__name__.rstrip("_")] = fn
    return fn


def axis_of(x: Any, p: Picks) -> int:
    return p(x.dim()) - (x.dim() if p(2) else 0)


@op
def unary(x: Any, y: Any, p: Picks) -> Run:
    name = p.of(UNARY.split())
    if name in ("digamma", "lgamma") and x.requires_grad and bool(((x <= 0) & (x == x.floor())).any()):
        raise Unfit  # PyTorch's derivatives at their poles are large numbers, ours infinity
    return lambda x, y: getattr(torch, name)(x)


@op
def activation(x: Any, y: Any, p: Picks) -> Run:
    def gelu(x: Any) -> Any:  # PyTorch's own f32 form gives NaN for infinity, and infinity near the largest number
        return F.gelu(x.clamp(-3e4, 3e4))

    fn = p.of((gelu, F.silu, F.softplus, F.elu, F.hardswish, F.leaky_relu, F.mish, F.hardtanh, F.logsigmoid, F.relu6, F.softsign))
    return lambda x, y: fn(x)


@op
def binary(x: Any, y: Any, p: Picks) -> Run:
    name = p.of(BINARY.split())
    return lambda x, y: getattr(torch, name)(x, y)


@op
def divide(x: Any, y: Any, p: Picks) -> Run:
    if y.is_complex() or x.is_complex():
        raise Unfit
    whole = not y.dtype.is_floating_point and y.dtype != torch.bool
    name = p.of(("floor_divide", "remainder", "fmod"))
    mode = p.of((None, "floor", "trunc"))
    kind = p(2)
    if whole or y.dtype == torch.bool:
        return lambda x, y: (getattr(torch, name)(x, (y & 7) | 1) if kind else torch.div(x, (y & 7) | 1, rounding_mode=mode))
    return lambda x, y: (getattr(torch, name)(x, y.abs() + 0.5) if kind else torch.div(x, y.abs() + 0.5, rounding_mode=mode))


@op
def number(x: Any, y: Any, p: Picks) -> Run:
    n = p.of((2, -1, 0.5, 3, True, 1.5, 0, -0.0, 7, 2.0, 0.25 if x.is_complex() else float("inf")))
    return p.of((lambda x, y: x + n, lambda x, y: n - x, lambda x, y: x * n, lambda x, y: x > n, lambda x, y: n == x,
                 lambda x, y: torch.add(x, y, alpha=3), lambda x, y: torch.sub(y, x, alpha=2),
                 lambda x, y: torch.clamp(x, max=n), lambda x, y: torch.maximum(x, torch.tensor(n, device=x.device))))  # fmt: skip


@op
def power(x: Any, y: Any, p: Picks) -> Run:
    n = p.of((2, 3, 0, 1, 0.5, -1.0, 2.0))
    return lambda x, y: torch.pow(x, n)


@op
def shift(x: Any, y: Any, p: Picks) -> Run:
    if any(t.dtype.is_floating_point or t.is_complex() or t.dtype == torch.bool for t in (x, y)):
        raise Unfit
    left = p(2)
    return lambda x, y: torch.bitwise_left_shift(x, y & 3) if left else torch.bitwise_right_shift(x, y & 7)


@op
def cast(x: Any, y: Any, p: Picks) -> Run:
    to = p.of(DTYPES)
    if x.is_complex() and not to.is_complex:
        return lambda x, y: x.real
    if to == torch.bool or not (x.dtype.is_floating_point and not to.is_floating_point and not to.is_complex):
        return lambda x, y: x.to(to)
    low = 0.0 if to == torch.uint8 else -100.0
    return lambda x, y: torch.nan_to_num(x, 1.0).clamp(low, 100.0).to(to)


@op
def reduce(x: Any, y: Any, p: Picks) -> Run:
    name = p.of(("sum", "amax", "amin", "any", "all", "mean", "prod", "count_nonzero", "var", "logsumexp", "nansum", "std", "norm"))
    if name == "prod" and x.numel() > 9:
        raise Unfit
    if name == "std" and x.numel() and x.dtype != torch.float64:  # PyTorch's is f64 inside on a CPU: f32 has no squares of these
        top = float(x.detach().abs().double().nan_to_num(0, 0, 0).max())
        if top and not 1e-17 < top < 1e18:
            raise Unfit
    if not x.dim() or p(4) == 0:
        return lambda x, y: getattr(torch, name)(x) if name != "logsumexp" else torch.logsumexp(x, tuple(range(x.dim())))
    axis, keep = axis_of(x, p), bool(p(2))
    if name in ("var", "std"):
        k = p(2)
        return lambda x, y: getattr(torch, name)(x, axis, correction=k, keepdim=keep)
    if name == "count_nonzero":
        return lambda x, y: torch.count_nonzero(x, axis)
    if name == "norm":
        return lambda x, y: torch.linalg.vector_norm(x, 2, axis, keep)
    return lambda x, y: getattr(torch, name)(x, axis, keepdim=keep)


@op
def along(x: Any, y: Any, p: Picks) -> Run:
    axis = axis_of(x, p)
    whole = not x.dtype.is_floating_point
    kinds = (lambda x, y: torch.cumsum(x, axis), lambda x, y: torch.flip(x, (axis,)), lambda x, y: torch.roll(x, 2, axis),
             lambda x, y: torch.softmax(x, axis), lambda x, y: torch.log_softmax(x, axis), lambda x, y: torch.sort(x, axis).values,
             lambda x, y: torch.max(x, axis).values, lambda x, y: torch.min(x, axis, keepdim=True).values,
             lambda x, y: torch.cummax(x, axis).values, lambda x, y: torch.diff(x, dim=axis), lambda x, y: torch.topk(x, 1, axis).values,
             lambda x, y: torch.sort(x, stable=True, dim=axis, descending=True).indices if whole else x.argsort(stable=True, dim=axis),
             lambda x, y: torch.cummin(x, axis).values, lambda x, y: torch.logcumsumexp(x, axis),
             lambda x, y: torch.amax(x, axis))  # fmt: skip
    return p.of(kinds)


@op
def view(x: Any, y: Any, p: Picks) -> Run:
    axis, other = axis_of(x, p), axis_of(x, p)
    n = x.shape[axis]
    a, step = p(n + 1), 1 + p(3)
    perm = tuple((i * (1 if p(2) else -1) + axis) % x.dim() for i in range(x.dim()))
    kinds = [lambda x, y: x.transpose(axis, other), lambda x, y: x.unsqueeze(axis), lambda x, y: x.movedim(axis, other),
             lambda x, y: x.narrow(axis, a, n - a), lambda x, y: x.permute(perm), lambda x, y: x.flatten(), lambda x, y: x.reshape(-1),
             lambda x, y: x.movedim(axis, 0)[a::step], lambda x, y: x.squeeze(axis), lambda x, y: x.unsqueeze(0).expand(2, *x.shape),
             lambda x, y: x[None, ..., None], lambda x, y: x.contiguous(), lambda x, y: x.clone(), lambda x, y: x.detach(),
             lambda x, y: x.split(max(1, n // 2), axis)[-1], lambda x, y: x.chunk(2, axis)[0]]  # fmt: skip
    if n:
        kinds += [lambda x, y: x.select(axis, a % n), lambda x, y: x.unfold(axis, 1 + a % n, step), lambda x, y: x.unbind(axis)[a % n]]
    if axis % x.dim() != other % x.dim():
        kinds += [lambda x, y: x.diagonal(a % 2, axis, other), lambda x, y: x.tril(a - 1), lambda x, y: x.triu(1 - a)]
    return p.of(kinds)


@op
def join(x: Any, y: Any, p: Picks) -> Run:
    axis = axis_of(x, p)
    return p.of((lambda x, y: torch.cat([x, y], axis), lambda x, y: torch.stack([x, y], axis),
                 lambda x, y: torch.cat([x, x.flip(0), x], axis), lambda x, y: torch.cat([y[:0], y]),
                 lambda x, y: torch.hstack([x, y])))  # fmt: skip


@op
def pick(x: Any, y: Any, p: Picks) -> Run:
    axis = axis_of(x, p)
    n = x.shape[axis]
    if not n or y.is_complex():
        raise Unfit
    small = p.of((torch.int64, torch.int32))

    def index(y: Any) -> Any:
        return (torch.nan_to_num(y.to(torch.float32), 1.0, 1.0, 1.0).clamp(0, 50).to(torch.int64) % n).reshape(-1)

    return p.of((lambda x, y: x.index_select(axis, index(y).to(small)), lambda x, y: x.movedim(axis, 0)[index(y)],
                 lambda x, y: torch.where(x > y, x, y), lambda x, y: x.masked_fill(y != 0, 1), lambda x, y: torch.where(y != 0, x, 0),
                 lambda x, y: x.index_add(axis, index(y)[:n] if index(y).numel() >= n else index(x)[:n], x),
                 lambda x, y: torch.take_along_dim(x, index(x).reshape(x.shape), axis),
                 lambda x, y: torch.zeros_like(x).scatter_add(axis, index(x).reshape(x.shape), x),
                 lambda x, y: torch.index_put(x, (index(y)[:1],), torch.ones((), dtype=x.dtype, device=x.device)),
                 lambda x, y: F.one_hot(index(y), n), lambda x, y: torch.take(x, index(y)),
                 lambda x, y: torch.scatter(x, axis, index(x).reshape(x.shape) * 0, x, reduce="multiply"),
                 lambda x, y: torch.bucketize(x, torch.tensor([-1.0, 0.0, 2.0], device=x.device))))  # fmt: skip


@op
def product(x: Any, y: Any, p: Picks) -> Run:
    return p.of((lambda x, y: x @ y, lambda x, y: x @ x.mT, lambda x, y: torch.einsum("...i,...i->...", x, x),
                 lambda x, y: torch.outer(x, y), lambda x, y: x.mT @ y, lambda x, y: torch.addmm(x, x, x.mT),
                 lambda x, y: F.linear(x, y)))  # fmt: skip


@op
def write(x: Any, y: Any, p: Picks) -> Run:
    """Writes to x, through a view or whole; the step gives what was written to."""
    if any(n > 1 and not step for n, step in zip(x.shape, x.stride(), strict=True)):  # whether PyTorch refuses it depends on the function
        raise Unfit
    axis = p(x.dim()) if x.dim() else 0
    n = x.shape[axis] if x.dim() else 0
    a = p(n + 1)

    def part(x: Any) -> Any:
        return x.narrow(axis, a, n - a) if x.dim() else x

    kinds = (lambda x, y: x.add_(1), lambda x, y: x.mul_(y), lambda x, y: part(x).zero_(), lambda x, y: part(x).fill_(2),
             lambda x, y: part(x).copy_(part(x).flip(0)), lambda x, y: x.copy_(y if y.dtype == x.dtype else x.flip(0)),
             lambda x, y: x.masked_fill_(x > 1, 1),
             lambda x, y: x.neg_(), lambda x, y: x.transpose(0, -1).add_(2), lambda x, y: x.sub_(y),
             lambda x, y: torch.add(x, x, out=x))  # fmt: skip
    run = p.of(kinds)

    def both(x: Any, y: Any) -> Any:
        run(x, y)
        return x

    return both


NAMES = tuple(OPS)
