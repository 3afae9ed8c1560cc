"""Comparison with torch: one tolerance table, and the rule that a result may be little worse than torch's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from tests.frontend.check import plain_kernels

# Largest difference from torch, as a share of the largest value of the output. In 16 bits both round intermediate results, and an input may
# carry one rounding far: 16 units for any single number; `assert_as_exact_as_torch` holds their mean much closer.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 16 * 2.0**-10, torch.bfloat16: 16 * 2.0**-7}


def eager(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
    """What torch gives."""
    with torch.no_grad(), plain_kernels():
        return module(*args, **(kwargs or {}))


def doubled(args: Any) -> Any:
    return _pytree.tree_map(lambda t: t.double() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args)


def exact(module: Any, args: tuple[Any, ...]) -> Any:
    """The module's value in float64."""
    return eager(copy.deepcopy(module).double() if isinstance(module, torch.nn.Module) else module, doubled(args))


def as_f64(t: Any) -> np.ndarray[Any, Any]:
    if isinstance(t, torch.Tensor):
        return np.asarray(t.detach().to(torch.float64).numpy())
    return np.asarray(t, np.float64)


def distance(got: Any, want: Any, mean: bool = False) -> float:
    """The largest difference over all outputs (`mean`: the largest root of an output's mean square), as a share of the largest finite
    value; inf where NaN or infinity differ."""
    worst = 0.0
    for a, b in zip(_pytree.tree_leaves(got), _pytree.tree_leaves(want), strict=True):
        if not isinstance(b, (torch.Tensor, np.ndarray)):
            continue
        x, y = as_f64(a), as_f64(b)
        assert x.shape == y.shape
        odd = ~np.isfinite(y)
        if not np.array_equal(np.where(odd, x, 0), np.where(odd, y, 0), equal_nan=True):
            return float("inf")
        with np.errstate(invalid="ignore", over="ignore"):
            gap = np.where(odd, 0.0, np.abs(x - y))
            size = float(np.sqrt(np.mean(gap**2))) if mean and gap.size else float(gap.max(initial=0.0))
        found = size / max(1.0, float(np.abs(y[~odd]).max(initial=0.0)))
        worst = max(worst, found if np.isfinite(found) else float("inf"))
    return worst


def assert_close(got: Any, want: Any, tolerance: float | None = None) -> None:
    """Same structure, types and shapes; integers and booleans equal; floats within the table."""
    leaves, spec = _pytree.tree_flatten(want)
    mine, my_spec = _pytree.tree_flatten(got)
    assert my_spec == spec
    for a, b in zip(mine, leaves, strict=True):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b)
            assert a == b
            continue
        assert isinstance(a, torch.Tensor)
        assert (a.dtype, tuple(a.shape)) == (b.dtype, tuple(b.shape))
        if not b.is_floating_point():
            assert torch.equal(a, b)
            continue
        found, limit = distance(a, b), TOLERANCE[b.dtype] if tolerance is None else tolerance
        assert found <= limit, f"differs by {found:.2e} of the largest value, allowed {limit:.0e}"


def mean_error(pairs: list[tuple[Any, Any]]) -> float:
    """The root of the mean square difference over several calls: the largest difference of one is twice another's too often."""
    return float(np.sqrt(np.mean([distance(got, want, mean=True) ** 2 for got, want in pairs])))


def assert_as_exact_as_torch(module: Any, session: Any, draws: list[tuple[Any, ...]], factor: float = 2.5) -> None:
    """The mean error against float64 is at most `factor` times torch's own (or a few ulps, where torch is lucky)."""
    true, theirs = [exact(module, args) for args in draws], [eager(module, args) for args in draws]
    ours = mean_error([(session(*args), t) for args, t in zip(draws, true, strict=True)])
    torchs = mean_error(list(zip(theirs, true, strict=True)))
    floor = max(torch.finfo(t.dtype).eps * (5 if t.itemsize > 2 else 1) for t in _pytree.tree_leaves(theirs) if t.is_floating_point())
    assert ours <= max(factor * torchs, floor), f"error {ours:.2e}, torch's own {torchs:.2e}"


def assert_right(module: Any, args: tuple[Any, ...], got: Any, tolerance: float = 3e-6) -> None:
    """An f32 result has the structure and types that torch gives, and is close to the module's value in float64."""
    theirs = eager(module, args)
    assert_close(got, theirs, 3e-5)
    true = exact(module, args)
    found = distance(got, true)
    assert found <= tolerance, f"error {found:.2e} of the largest value, allowed {tolerance:.0e}; torch's own {distance(theirs, true):.2e}"
