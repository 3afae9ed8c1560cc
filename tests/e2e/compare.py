"""Comparison with torch: one tolerance table, and the rule that a result may be little worse than torch's own."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from tests.frontend.check import plain_kernels

# Largest difference from torch, as a share of the largest value of the output.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 6e-3, torch.bfloat16: 5e-2}


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


def distance(got: Any, want: Any) -> float:
    """The largest difference over all outputs, as a share of the largest finite value; inf where NaN or infinity differ."""
    worst = 0.0
    for a, b in zip(_pytree.tree_leaves(got), _pytree.tree_leaves(want), strict=True):
        if not isinstance(b, (torch.Tensor, np.ndarray)):
            continue
        x, y = as_f64(a), as_f64(b)
        assert x.shape == y.shape
        odd = ~np.isfinite(y)
        if not np.array_equal(np.where(odd, x, 0), np.where(odd, y, 0), equal_nan=True):
            return float("inf")
        with np.errstate(invalid="ignore"):
            gap = np.where(odd, 0.0, np.abs(x - y))
        top = float(np.abs(y[~odd]).max(initial=0.0))
        found = float(gap.max(initial=0.0)) / max(1.0, top)
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


def assert_as_exact_as_torch(module: Any, args: tuple[Any, ...], got: Any, factor: float = 2.0) -> None:
    """The error against float64 is at most `factor` times torch's own (or a few ulps, where torch is lucky)."""
    theirs, true = eager(module, args), exact(module, args)
    ours, torchs = distance(got, true), distance(theirs, true)
    floor = max(float(torch.finfo(t.dtype).eps) for t in _pytree.tree_leaves(theirs) if t.is_floating_point())
    assert ours <= max(factor * torchs, 8 * floor), f"error {ours:.2e}, torch's own {torchs:.2e}"


def assert_right(module: Any, args: tuple[Any, ...], got: Any, tolerance: float = 3e-6) -> None:
    """An f32 result has the structure and types that torch gives, and is close to the module's value in float64."""
    theirs = eager(module, args)
    assert_close(got, theirs, 3e-5)
    true = exact(module, args)
    found = distance(got, true)
    assert found <= tolerance, f"error {found:.2e} of the largest value, allowed {tolerance:.0e}; torch's own {distance(theirs, true):.2e}"
