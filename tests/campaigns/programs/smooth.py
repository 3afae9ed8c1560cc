"""The meaning of smooth programs in PyTorch, f64: every call is one that autograd differentiates."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from .program import Unfit

FUNCTIONS: dict[str, Callable[..., Any]] = {}
LARGE = 1e3  # values beyond are left out: their derivatives are rounding


def known(fn: Callable[..., Any]) -> Callable[..., Any]:
    FUNCTIONS[fn.__name__.rstrip("_")] = fn
    return fn


class Smooth:
    """The reference of `program.resolve`; `guard` leaves out calls near a kink, a tie or beyond the range."""

    def __init__(self, guard: bool = True) -> None:
        self.guard = guard

    def function(self, name: str) -> Any:
        base, _, index = name.rstrip("]").partition("[")
        call = FUNCTIONS[base]

        @functools.wraps(call)
        def checked(*args: Any, **options: Any) -> Any:
            args = tuple(torch.from_numpy(a) if isinstance(a, np.ndarray) else a for a in args)
            try:
                out = call(*args, **options)
            except ValueError:  # PyTorch refuses norms of single elements
                raise Unfit from None
            out = out[int(index)] if index else out
            if self.guard and out.is_floating_point() and out.numel():
                if not bool(torch.isfinite(out).all()) or float(out.detach().abs().max()) > LARGE:
                    raise Unfit
            return out

        return checked

    def array(self, value: Any) -> Any:
        return value.detach().numpy()


for _name in ("sin", "cos", "tanh", "exp", "expm1", "erf", "sigmoid", "square", "sqrt", "rsqrt", "log", "log1p", "neg", "reciprocal",
              "atan", "asinh", "erfc", "abs", "sign", "floor"):  # fmt: skip
    FUNCTIONS[_name] = getattr(torch, _name)
for _name in ("softplus", "silu", "mish", "relu", "elu", "gelu", "leaky_relu"):
    FUNCTIONS[_name] = getattr(F, _name)
FUNCTIONS["hardsigmoid"] = lambda x: torch.clip(x + 3, 0, 6) / 6  # PyTorch's own derivative has a sixth in f32 only
FUNCTIONS["hardswish"] = lambda x: x * torch.clip(x + 3, 0, 6) / 6
for _name in ("add", "sub", "mul", "div", "pow", "where", "maximum", "minimum", "atan2", "hypot", "logaddexp", "greater", "less", "einsum",
              "clip"):  # fmt: skip
    FUNCTIONS[_name] = getattr(torch, _name)
FUNCTIONS["stop_gradient"] = lambda x: x.detach()


def _pair(fn: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Python numbers on either side."""
    return lambda x, y: fn(*(torch.as_tensor(v, dtype=torch.float64) if not torch.is_tensor(v) else v for v in (x, y)))


for _name in ("add", "sub", "mul", "div", "maximum", "minimum"):
    FUNCTIONS[_name] = _pair(FUNCTIONS[_name])


# ---- reductions and norms


def _axes(x: Any, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)


def _reduced(fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = _axes(x, axis)
        return fn(x, dim=axes, keepdim=keepdims) if axes else x.clone()

    return call


FUNCTIONS["sum"], FUNCTIONS["mean"], FUNCTIONS["logsumexp"] = _reduced(torch.sum), _reduced(torch.mean), _reduced(torch.logsumexp)


def _distinct(x: Any, axis: int) -> None:
    """No two elements along the axis are near each other."""
    if x.numel() and x.shape[axis] > 1 and float(torch.diff(torch.sort(x.detach(), dim=axis).values, dim=axis).min()) < 1e-6:
        raise Unfit


@known
def max_(x: Any, axis: int, keepdims: bool = False) -> Any:
    _distinct(x, axis)
    return torch.amax(x, dim=axis, keepdim=keepdims)


@known
def min_(x: Any, axis: int, keepdims: bool = False) -> Any:
    _distinct(x, axis)
    return torch.amin(x, dim=axis, keepdim=keepdims)


@known
def sort(x: Any, axis: int = -1, *, descending: bool = False) -> Any:
    _distinct(x, axis)
    return torch.sort(x, dim=axis, descending=descending).values


@known
def top_k(x: Any, k: int, axis: int = -1, largest: bool = True) -> Any:
    _distinct(x, axis)
    return torch.topk(x, k, dim=axis, largest=largest)


@known
def prod(x: Any, axis: int, keepdims: bool = False) -> Any:
    return torch.prod(x, dim=axis, keepdim=keepdims)


@known
def var(x: Any, axis: Any = None, correction: float = 0.0, keepdims: bool = False) -> Any:
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # means of no elements warn
        return torch.var(x, dim=_axes(x, axis), correction=correction, keepdim=keepdims)


def _ran(fn: Callable[..., Any], first: float) -> Callable[..., Any]:
    def call(x: Any, axis: int = 0, *, exclusive: bool = False, reverse: bool = False) -> Any:
        x = torch.flip(x, (axis,)) if reverse else x
        out = fn(x, dim=axis)
        if exclusive:
            out = torch.cat([torch.full_like(x.narrow(axis, 0, 1), first), out.narrow(axis, 0, out.shape[axis] - 1)], axis)
        return torch.flip(out, (axis,)) if reverse else out

    return call


FUNCTIONS["cumsum"], FUNCTIONS["cumprod"] = _ran(torch.cumsum, 0.0), _ran(torch.cumprod, 1.0)


@known
def softmax(x: Any, axis: int = -1) -> Any:
    return torch.softmax(x, axis)


@known
def log_softmax(x: Any, axis: int = -1) -> Any:
    return torch.log_softmax(x, axis)


def _steady(x: Any, axes: tuple[int, ...]) -> None:
    """Rows whose variance is not near 0: a norm of equal elements divides rounding by rounding."""
    if x.numel() and float(torch.var(x.detach(), dim=axes, correction=0).min()) < 1e-3:
        raise Unfit


@known
def layer_norm(x: Any, weight: Any = None, bias: Any = None, *, eps: float = 1e-5) -> Any:
    _steady(x, (-1,))
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


@known
def rms_norm(x: Any, weight: Any = None, *, eps: float = 1e-6) -> Any:
    return F.rms_norm(x, x.shape[-1:], weight, eps)


@known
def group_norm(x: Any, groups: int, *, eps: float = 1e-5) -> Any:
    return F.group_norm(x, groups, eps=eps)


# ---- products


FUNCTIONS["matmul"] = torch.matmul


@known
def attention(q: Any, k: Any, v: Any, *, causal: bool = False, scale: float | None = None) -> Any:
    """Written out: PyTorch's own has no second derivative."""
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        n, m = q.shape[-2], k.shape[-2]
        scores = torch.where(torch.arange(m)[None, :] <= torch.arange(n)[:, None] + (m - n), scores, -torch.inf)
    return torch.softmax(scores, -1) @ v


@known
def conv(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Any:
    return (F.conv1d, F.conv2d)[x.ndim - 3](x, w, None, stride, padding, dilation, groups)


@known
def conv_transpose(x: Any, w: Any, *, stride: Any = 1, padding: Any = 0) -> Any:
    return (F.conv_transpose1d, F.conv_transpose2d)[x.ndim - 3](x, w, None, stride, padding)


@known
def mean_pool(x: Any, kernel: int, *, stride: int, padding: int = 0) -> Any:
    return (F.avg_pool1d, F.avg_pool2d)[x.ndim - 3](x, kernel, stride, padding)


@known
def max_pool(x: Any, kernel: int, *, stride: int, padding: int = 0) -> Any:
    if x.numel() > 1 and float(torch.diff(torch.sort(x.detach().ravel()).values).min()) < 1e-9:
        raise Unfit
    return (F.max_pool1d, F.max_pool2d)[x.ndim - 3](x, kernel, stride, padding)


@known
def resize(x: Any, sizes: Any, *, mode: str = "nearest", align_corners: bool = False) -> Any:
    spelled = mode if mode == "nearest" else ("linear", "bilinear")[x.ndim - 3]
    return F.interpolate(x, sizes, mode=spelled, align_corners=align_corners if mode == "linear" else None)


# ---- shapes and indices


FUNCTIONS |= {
    "reshape": torch.reshape, "permute_dims": torch.permute, "expand_dims": torch.unsqueeze, "broadcast_to": torch.broadcast_to,
    "swapaxes": torch.swapaxes, "tril": torch.tril, "triu": torch.triu, "concat": lambda xs, axis=0: torch.cat(xs, axis),
    "stack": lambda xs, axis=0: torch.stack(xs, axis), "flip": lambda x, axis: torch.flip(x, (axis,)),
    "split": lambda x, ends, axis=0: torch.tensor_split(x, list(ends), axis),
}  # fmt: skip


@known
def getitem(x: Any, key: Any) -> Any:
    for axis, k in enumerate(key):  # torch has no negative steps
        if isinstance(k, slice) and k.step is not None and k.step < 0:
            x = x.index_select(axis, torch.tensor(list(range(*k.indices(x.shape[axis]))), dtype=torch.int64))
    return x[tuple(slice(None) if isinstance(k, slice) and (k.step or 1) < 0 else k for k in key)]


@known
def pad(x: Any, widths: Any, value: float = 0.0) -> Any:
    return F.pad(x, [n for pair in reversed(widths) for n in pair], value=value)


@known
def take(x: Any, indices: Any, axis: int) -> Any:
    return x.index_select(axis, torch.tensor([i % x.shape[axis] for i in indices], dtype=torch.int64))


@known
def take_along_axis(x: Any, indices: Any, axis: int) -> Any:
    return torch.take_along_dim(x, indices, axis)


@known
def argsort(x: Any, axis: int = -1) -> Any:
    _distinct(x, axis)
    return torch.argsort(x, dim=axis)


@known
def scatter_add(x: Any, indices: Any, updates: Any) -> Any:
    return x.index_add(0, torch.tensor([i % x.shape[0] for i in indices], dtype=torch.int64), updates)


@known
def astype(x: Any, dtype: str) -> Any:
    return x.to({"f64": torch.float64, "f32": torch.float32}[dtype])
