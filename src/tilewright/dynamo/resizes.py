"""Resizes in graphs of AOTAutograd. PyTorch takes them apart while it traces, a bilinear one into four lookups whose backward pass are four
scatters. Ours are one launch each way where sizes are known, so they are traced as the ops they are; with varying sizes they are taken
apart as before. Circular pads, which PyTorch traces as copies into slices of the whole, one after the other, are concatenations.
Multilabel margin losses count the labels before the first -1 alone; PyTorch's decomposition counts label 0 for each place behind it,
too.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .tracing import exchanged_kernels

NAMES = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "upsample_linear1d", "upsample_bilinear2d",
         "upsample_trilinear3d", "upsample_bicubic2d")


def _whole() -> Iterator[tuple[Any, Any, Callable[..., Any]]]:
    import torch

    for name in NAMES:
        packet = getattr(torch.ops.aten, name)
        for op, make in ((packet.vec, _with_factors), (packet.default, _with_sizes)):
            for key in (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd):
                found = op.py_kernels.get(key)
                if found is not None and (make is _with_factors or key == torch._C.DispatchKey.Autograd):
                    yield op, key, make(packet, found)
        yield getattr(torch.ops.aten, f"{name}_backward").default, torch._C.DispatchKey.Meta, _shape_of_gradient
    pad, key = torch.ops.aten._pad_circular.default, torch._C.DispatchKey.CompositeImplicitAutograd
    yield pad, key, _circular
    yield torch.ops.aten.multilabel_margin_loss_forward.default, torch._C.DispatchKey.Autograd, _multilabel_margin_loss


def _shape_of_gradient(gradient: Any, sizes: Any, before: Any, *rest: Any, **named: Any) -> Any:
    """PyTorch's own takes no batch that varies, but for `upsample_nearest2d`."""
    from torch._prims_common import suggest_memory_format

    return gradient.new_empty(before).contiguous(memory_format=suggest_memory_format(gradient))


def _circular(x: Any, sizes: Any) -> Any:
    """(x, elements before and behind, the last axis first); what PyTorch refuses is left to it."""
    import torch

    pairs = [(x.dim() - 1 - i // 2, sizes[i], sizes[i + 1]) for i in range(0, len(sizes), 2)]
    if not all(isinstance(n, int) and 0 <= n <= x.shape[axis] for axis, *both in pairs for n in both):
        with torch._C._DisablePythonDispatcher():
            return torch.ops.aten._pad_circular.default(x, sizes)
    for axis, low, high in pairs:
        size = x.shape[axis]
        ends = x.narrow(axis, size - low, low), x, x.narrow(axis, 0, high)
        x = torch.cat([part for part in ends if part is x or part.shape[axis]], axis)
    return x.contiguous()


def _multilabel_margin_loss(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    from ..frontend.torch.replace import multilabel_margins

    losses, chosen = multilabel_margins(x, target)
    return (losses, losses.mean(), losses.sum())[reduction], chosen.to(x.dtype)


def _known(x: Any, sizes: Any) -> bool:
    return all(isinstance(d, int) for d in (*x.shape[2:], *sizes))


def _with_factors(packet: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """(x, sizes or None, [align_corners], factors or None), as `interpolate` calls it."""

    def resize(x: Any, sizes: Any, *rest: Any) -> Any:
        from torch._decomp import decompositions

        *align, factors = rest
        found = decompositions.upsample_compute_output_size(x.size(), sizes, factors)  # type: ignore[no-untyped-call]
        if not _known(x, found):
            return before(x, sizes, *rest)
        return packet.default(x, found, *align, *(factors or [None] * len(found)))

    return resize


def _with_sizes(packet: Any, before: Callable[..., Any]) -> Callable[..., Any]:
    """(x, sizes, [align_corners], a factor or None an axis)."""
    import torch

    def resize(x: Any, sizes: Any, *rest: Any, **named: Any) -> Any:
        if not _known(x, sizes):
            return before(x, sizes, *rest, **named)
        with torch._C._DisablePythonDispatcher():  # so that torch finds its own kernel of this key
            return packet.default(x, sizes, *rest, **named)

    return resize


whole_resizes = exchanged_kernels(_whole)  # inside, resizes between known sizes are traced whole
