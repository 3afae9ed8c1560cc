"""Compare a compiled function with the function itself, and with what it leaves behind."""
from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree

from tilewright.dynamo.backend import Compiled, watching

TOLERANCE = {torch.float64: 1e-11, torch.float32: 3e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2, torch.complex64: 3e-5,
             torch.complex128: 1e-11}


def assert_same(got: Any, want: Any, what: str = "") -> None:
    mine, my_spec = _pytree.tree_flatten(got)
    leaves, spec = _pytree.tree_flatten(want)
    assert my_spec == spec, what
    for i, (a, b) in enumerate(zip(mine, leaves, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b) and a == b, (what, i, a, b)
            continue
        assert isinstance(a, torch.Tensor)
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), (what, i)
        assert a.requires_grad == b.requires_grad, (what, i)
        limit = TOLERANCE.get(b.dtype)
        x, y = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
        if limit is None:
            assert torch.equal(x, y), (what, i)
            continue
        scale = float(y[torch.isfinite(y)].abs().max()) if torch.isfinite(y).any() else 1.0
        torch.testing.assert_close(x, y, rtol=limit, atol=limit * max(1.0, scale), equal_nan=True)


def again(args: Any) -> Any:
    """The same arguments in other memory, with the same strides and aliases."""
    return copy.deepcopy(args)


def aliases(tree: Any) -> list[tuple[int, int]]:
    """Pairs of tensors that share memory."""
    leaves = [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.numel()]
    return [(i, j) for i, a in enumerate(leaves) for j, b in enumerate(leaves[:i])
            if a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()]


def check(fn: Callable[..., Any], *args: Any, calls: int = 2, splits: int | None = 0, strides: bool = True, grad: bool = False,
          **options: Any) -> list[Compiled]:
    """The compiled function gives what the function gives: results, strides, aliases, changed arguments, and (`grad`) gradients."""
    compiled = torch.compile(fn, backend="tilewright", **options)
    with watching() as found:
        for _ in range(calls):
            ours, theirs = again(args), again(args)
            got, want = compiled(*ours), fn(*theirs)
            assert_same(got, want, "result")
            assert_same(ours, theirs, "argument")
            assert aliases((ours, got)) == aliases((theirs, want))
            if strides:
                pairs = zip(_pytree.tree_leaves(got), _pytree.tree_leaves(want), strict=True)
                assert all(a.stride() == b.stride() for a, b in pairs if isinstance(a, torch.Tensor) and a.numel() > 1)
            if grad:
                for tree in (got, want):
                    ends = [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor) and t.requires_grad]
                    torch.stack([t.abs().square().sum().to(torch.float64) for t in ends]).sum().backward()
                assert_same([t.grad for t in _pytree.tree_leaves(ours) if isinstance(t, torch.Tensor) and t.is_leaf],
                     [t.grad for t in _pytree.tree_leaves(theirs) if isinstance(t, torch.Tensor) and t.is_leaf], "gradient")
    assert found, "nothing was compiled"
    if splits is not None:
        assert sum(c.splits for c in found) == splits, [c.refusals for c in found]
    return found
