"""Functions of torch that torch.export cannot trace (they look at data, or have no meta kernel) or takes wrongly, in ones that it can.

They are exchanged while a module is exported; a call that needs something else goes to torch, which says what it cannot do.
"""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


def mode() -> Any:
    """A context in which the functions below take the place of torch's."""
    import torch

    table = {torch.corrcoef: _corrcoef, torch.Tensor.corrcoef: _corrcoef, torch.linalg.lstsq: _lstsq, torch.stft: _stft,
             torch.Tensor.stft: _stft, torch.nn.functional.gaussian_nll_loss: _gaussian_nll_loss,
             torch.nn.functional.multilabel_margin_loss: _multilabel_margin_loss}
    products = (getattr(module, name, None) for module, name in ((torch, "_grouped_mm"), (torch.nn.functional, "grouped_mm")))
    table |= {f: _grouped_mm for f in products if f is not None}

    drawn: list[Any] = []

    class Exchanged(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if getattr(func, "__name__", "") in COMPARISONS and len(args) == 2 and any(args[0] is x for x in drawn):
                known = _decided(COMPARISONS[func.__name__], args[1])
                if known is not None:
                    return torch.tensor(known)
            out = table.get(func, func)(*args, **(kwargs or {}))
            if func is torch.rand and not out.shape:
                drawn.append(out)
            return out

    return Exchanged()


COMPARISONS = {f"{mark}{fn}{mark}": fn for fn in ("lt", "le", "gt", "ge") for mark in ("", "__")}


def _decided(fn: str, bound: Any) -> bool | None:
    """Whether a number of [0, 1) is below (or above) a bound that is not between: with a layer drop of 0 a model that draws a number for
    each layer, and asks whether it is smaller, has no random branch."""
    if isinstance(bound, bool) or not isinstance(bound, (int, float)):
        return None
    below, above = bound >= 1, bound <= 0 if fn in ("lt", "ge") else bound < 0
    if not below and not above:
        return None
    return below if fn in ("lt", "le") else above


LOOPS = (None, "eager", "deepgemm", "sonicmoe")  # ways of transformers to run experts that look at data, or are kernels of other machines


@contextmanager
def experts() -> Iterator[None]:
    """Inside, experts of transformers' models are grouped products, also where a model is set to loop over those that were chosen."""
    moe: Any = sys.modules.get("transformers.integrations.moe")
    known = getattr(moe, "ExpertsInterface", None)
    if known is None or "grouped_mm" not in moe.ALL_EXPERTS_FUNCTIONS:
        yield
        return
    before = known.get_interface

    def grouped(self: Any, way: str | None, default: Any) -> Any:
        return before(self, "grouped_mm" if way in LOOPS else way, default)

    known.get_interface = grouped
    try:
        yield
    finally:
        known.get_interface = before


def no_look_at_masks() -> None:
    """`nn.Transformer` looks whether a mask that it was given is the causal one, which no trace can answer. Traced masks are taken as they
    are, with the same results; passes find the causal ones among constants. Calls outside of traces stay as they were."""
    import torch
    from torch.nn.modules import transformer

    look = transformer._detect_is_causal_mask
    if hasattr(look, "before"):
        return

    def detect(mask: Any, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True if torch.compiler.is_compiling() else look(mask, is_causal, size)

    # dynamo looks into functions of torch's files, not of ours
    code = detect.__code__.replace(co_filename=transformer.__file__)
    made = types.FunctionType(code, transformer.__dict__, look.__name__, detect.__defaults__, detect.__closure__)
    made.before = look  # type: ignore[attr-defined]
    transformer._detect_is_causal_mask = made


def _corrcoef(x: Any) -> Any:
    """torch.corrcoef, whose covariance warns when there are too few numbers."""
    import torch

    if x.ndim > 2:
        return torch.corrcoef(x)
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    n = rows.shape[1]
    away = rows - (rows.sum(1) / n)[:, None]
    c = (away @ away.mH / max(n - 1, 0)).squeeze()
    if c.ndim == 0:
        return c / c
    d = torch.sqrt(torch.diagonal(c).real)
    c = c / d[:, None] / d
    return c.clamp(-1, 1) if not c.is_complex() else torch.complex(c.real.clamp(-1, 1), c.imag.clamp(-1, 1))


def _reduced(x: Any, reduction: str) -> Any:
    return x if reduction == "none" else getattr(x, reduction)()


def _gaussian_nll_loss(x: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> Any:
    """The loss without its look for negative variances."""
    import torch

    if reduction not in ("none", "mean", "sum"):
        return torch.nn.functional.gaussian_nll_loss(x, target, var, full, eps, reduction)
    if not isinstance(var, float) and var.ndim == x.ndim - 1 and var.shape == x.shape[:-1]:
        var = var[..., None]
    var = (torch.full_like(x, var) if isinstance(var, float) else var).clamp(min=eps)
    return _reduced(0.5 * (var.log() + (x - target) ** 2 / var) + (0.5 * math.log(2 * math.pi) if full else 0.0), reduction)


def _multilabel_margin_loss(x: Any, target: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean") -> Any:
    """The loss over the labels before the first -1; torch's decomposition also counts label 0 for every place behind it."""
    import torch

    if size_average is not None or reduce is not None:
        reduction = torch.nn._reduction.legacy_get_string(size_average, reduce)
    return _reduced(multilabel_margins(x, target)[0], reduction)


def multilabel_margins(x: Any, target: Any) -> tuple[Any, Any]:
    """The losses of rows, and which classes are labels."""
    import torch

    known = (target == -1).cumsum(-1) == 0
    labels = torch.where(known, target, 0)
    chosen = ((labels[..., None] == torch.arange(x.shape[-1])) & known[..., None]).any(-2)
    apart = (1 - x.gather(-1, labels)[..., None] + x[..., None, :]).clamp(min=0)
    return torch.where(known[..., None] & ~chosen[..., None, :], apart, 0).sum((-1, -2)) / x.shape[-1], chosen


def _lstsq(a: Any, b: Any, rcond: Any = None, *, driver: str | None = None) -> Any:
    """torch.linalg.lstsq of matrices of full rank, by QR whatever the driver."""
    import torch

    vector = b.ndim == 1 or (b.ndim == a.ndim - 1 and b.shape == a.shape[:-1])
    m, n = a.shape[-2:]
    if not isinstance(m, int) or not isinstance(n, int) or a.ndim < 2 or driver not in (None, "gels", "gelsy", "gelsd", "gelss"):
        return torch.linalg.lstsq(a, b, rcond, driver=driver)
    side = b[..., None] if vector else b
    if m >= n:
        q, r = torch.linalg.qr(a)
        x = torch.linalg.solve_triangular(r, q.mH @ side, upper=True)
    else:
        q, r = torch.linalg.qr(a.mH)
        x = q @ torch.linalg.solve_triangular(r.mH, side, upper=False)
    none = a.new_zeros(0)
    rest = (a @ x - side).abs().square().sum(-2) if m > n and driver != "gelsy" else none
    known = driver in (None, "gelsy", "gelsd", "gelss")
    rank = torch.full(a.shape[:-2], min(m, n), dtype=torch.int64) if known else torch.zeros(0, dtype=torch.int64)
    spectrum = torch.linalg.svdvals(a) if driver in ("gelsd", "gelss") else none.real if none.is_complex() else none
    kinds: Any = torch.return_types
    return kinds.linalg_lstsq((x[..., 0] if vector else x, rest, rank, spectrum))


@cache
def _grouped_op() -> Any:
    """A grouped product of any floats: torch's own has a shape rule for bf16 alone."""
    import torch

    library = torch.library.Library("tilewright", "DEF")
    library.define("grouped_mm(Tensor a, Tensor b, Tensor? offs) -> Tensor")

    def shape(a: Any, b: Any, offs: Any) -> Any:
        groups = [] if (a.ndim, b.ndim) in ((2, 3), (3, 2)) else [len(offs) if a.ndim == 2 else a.shape[0]]
        return a.new_empty(*groups, a.shape[-2], b.shape[-1])

    library.impl("grouped_mm", shape, "Meta")
    return library, torch.ops.tilewright.grouped_mm


def _grouped_mm(a: Any, b: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """torch's grouped product, in f32 and f64 too."""
    import torch

    if bias is not None or a.dtype == torch.bfloat16:
        return torch._grouped_mm(a, b, offs, bias, out_dtype)
    return _grouped_op()[1](a, b, offs).to(out_dtype or a.dtype)


def _stft(x: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.stft with pairs of reals for complex numbers, whose decomposition writes in place."""
    import torch

    if kwargs.get("return_complex") is not False:
        return torch.stft(x, *args, **kwargs)
    return torch.view_as_real(torch.stft(x, *args, **{**kwargs, "return_complex": True}))
