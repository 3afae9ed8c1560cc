"""Run a row of `functions.py`: what the compiled function gives beside what the function gives."""
from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree

from tilewright.dynamo.backend import watching

from .check import again, aliases
from .functions import Row


def tensors(tree: Any) -> list[torch.Tensor]:
    return [t for t in _pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def compare(row: Row, got: Any, want: Any, what: str) -> None:
    mine, my_spec = _pytree.tree_flatten(got)
    leaves, spec = _pytree.tree_flatten(want)
    assert my_spec == spec, f"{what}: {my_spec} != {spec}"
    for i, (a, b) in enumerate(zip(mine, leaves, strict=True)):
        if not isinstance(b, torch.Tensor):
            assert type(a) is type(b) and (a == b or a != a), (what, i, a, b)
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape), (what, i, a.dtype, a.shape, b.dtype, b.shape)
        if row.random:
            continue
        torch.testing.assert_close(a.detach(), b.detach(), rtol=row.rtol if row.rtol is not None or row.atol is None else 1.3e-6,
                                   atol=row.atol if row.atol is not None or row.rtol is None else 1e-5, equal_nan=True,
                                   msg=lambda m, i=i: f"{what} {i}: {m}")


def strides(tree: Any) -> list[Any]:
    return [tuple(s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1) for t in tensors(tree) if t.numel() > 1]


def check_row(row: Row, mode: str) -> None:
    """`mode`: plain, dynamic (symbolic sizes) or grad."""
    args = row.make()
    if mode == "grad":
        gradients(row, args)
        return
    call = torch.compile(row.fn, backend="tilewright", dynamic=True if mode == "dynamic" else None)
    with torch.no_grad(), watching() as found:
        for _ in range(2):
            ours, theirs = again(args), again(args)
            want = row.fn(*theirs)
            got = call(*ours)
            compare(row, got, want, "result")
            compare(row, ours, theirs, "argument")
            assert strides(got) == strides(want), f"strides {strides(got)} != {strides(want)}"
            assert aliases((ours, got)) == aliases((theirs, want)), f"aliases {aliases((ours, got))} != {aliases((theirs, want))}"
    refused = [(str(n.target), v.reason) for c in found for n, v in c.refusals.items()]
    assert mode == "dynamic" or sum(c.splits for c in found) == row.splits, f"splits {sum(c.splits for c in found)} {refused}"


def gradients(row: Row, args: Any) -> None:
    call = torch.compile(row.fn, backend="tilewright")

    def leaves(tree: Any) -> Any:
        return _pytree.tree_map(lambda t: t.detach().requires_grad_() if isinstance(t,
            torch.Tensor) and (t.is_floating_point() or t.is_complex()) else t, tree)

    ours, theirs = leaves(again(args)), leaves(again(args))
    want = [t for t in tensors(row.fn(*theirs)) if t.requires_grad]
    if not want:
        return
    with watching() as found:
        got = [t for t in tensors(call(*ours)) if t.requires_grad]
        assert len(got) == len(want)
        seeds = [torch.randn_like(t) for t in want]
        wanted = [t for t in tensors(theirs) if t.requires_grad]
        expected = torch.autograd.grad(want, wanted, seeds, allow_unused=True)
        mine = torch.autograd.grad(got, [t for t in tensors(ours) if t.requires_grad], seeds, allow_unused=True)
    double = all(t.dtype in (torch.float64, torch.complex128) for t in wanted)
    for i, (a, b) in enumerate(zip(mine, expected, strict=True)):
        assert (a is None) == (b is None) or not (a if b is None else b).any(), (i, a, b)
        if a is None or b is None:
            continue
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        wide = b.dtype in (torch.float16, torch.bfloat16)
        scale = float(b[torch.isfinite(b)].abs().max()) if torch.isfinite(b).any() else 1.0
        tol = 3e-2 if b.dtype == torch.bfloat16 else 5e-3 if wide else 1e-9 if double else 1e-5
        tol = max(tol, row.rtol or 0, row.atol or 0)
        torch.testing.assert_close(a, b, rtol=tol, atol=tol * max(1.0, scale), equal_nan=True, msg=lambda m, i=i: f"gradient {i}: {m}")
    refused = [(c.kind, str(n.target), v.reason) for c in found for n, v in c.refusals.items()]
    assert sum(c.splits for c in found) == row.splits, f"splits {sum(c.splits for c in found)} {refused}"
