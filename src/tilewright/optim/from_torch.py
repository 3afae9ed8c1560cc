"""A PyTorch optimizer whose step is one program: `tw.optim.from_torch(torch.optim.AdamW(model.parameters()))`."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..core.errors import InputError

EAGER = {"LBFGS": "calls its closure several times a step", "SparseAdam": "works on sparse gradients",
         "Adafactor": "is not traced by dynamo"}  # what torch.compile would leave to PyTorch without a word


class TorchOptimizer:
    """`optimizer` is PyTorch's own: parameters, state and groups stay there, and all its other attributes are reached through this object.
    Schedulers and checkpoints take `optimizer` itself."""

    def __init__(self, optimizer: Any, options: Mapping[str, Any] | None) -> None:
        import torch

        self.optimizer = optimizer
        compiled: Any = torch.compile
        self._step = compiled(optimizer.step, backend="tilewright", options=dict(options or {}))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters from their gradients, in their own memory; the closure, if any, is called first and its loss returned."""
        import torch

        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["optimizer"], name)


def from_torch(optimizer: Any, *, options: Mapping[str, Any] | None = None) -> TorchOptimizer:
    """The optimizer with its step compiled by `torch.compile(optimizer.step, backend="tilewright", options=options)`.

    opt = tw.optim.from_torch(torch.optim.AdamW(model.parameters(), lr=1e-3))
    loss.backward(); opt.step(); opt.zero_grad()
    """
    import torch

    from ..core import torch_context  # noqa: F401  tells torch the backend's name

    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"from_torch: needs a torch.optim.Optimizer, got a {type(optimizer).__name__}")
    kind = type(optimizer).__name__
    if kind in EAGER:
        raise InputError(f"from_torch: {kind} {EAGER[kind]}; use it as it is")
    if any(group.get("fused") for group in optimizer.param_groups):
        raise InputError("from_torch: a fused optimizer is one kernel of PyTorch's already; leave fused=True out to compile it")
    return TorchOptimizer(optimizer, options)
