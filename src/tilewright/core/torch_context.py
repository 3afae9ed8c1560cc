"""What torch does to tensors and calls inside its modes, transforms and traces, as far as native code must know.

A tensor may have no memory of its own (FakeTensorMode, functionalize, vmap, grad), a call may be recorded (torch.jit.trace, make_fx,
torch.export), and torch.compile looks into every Python function that it meets.

The generated calls ask only whether any mode is on, and for addresses that are not null; the complete way asks here.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

ADVICE = "call it outside, on plain tensors"


def why_not(tensor: Any) -> str:
    """Why native code cannot read a tensor: the end of a sentence about it, or nothing."""
    import torch

    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if what := recorder():
        return f"is recorded by {what}, which does not see what native code does; {ADVICE}, or give the whole model to tw.compile"
    if fake is not None and isinstance(tensor, fake.FakeTensor):
        return f"has no memory, it is one of FakeTensorMode; {ADVICE}"
    if torch._is_functional_tensor(tensor):
        return f"has no memory of its own inside functionalize; {ADVICE}"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return f"has no memory of its own inside a transform of torch.func (vmap, grad, jvp); {ADVICE}"
    if tensor.numel() and tensor.layout == torch.strided and tensor.device.type != "meta":
        try:
            found = tensor.data_ptr() != 0
        except RuntimeError:
            found = False
        if not found:
            return f"is a {type(tensor).__name__} without memory of its own; {ADVICE}"
    return ""


def unrecorded(leaves: Sequence[Any]) -> int | None:
    """The first tensor of a call's inputs whose gradient autograd wants."""
    import torch

    wanting = (i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor) and x.requires_grad)
    return next(wanting, None) if torch.is_grad_enabled() else None


def recorder() -> str:
    """What records the operations of this thread."""
    import torch

    if torch._C._get_tracing_state() is not None:
        return "torch.jit.trace"
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None:
        return "make_fx or torch.export"
    return ""


def surroundings() -> str:
    """What torch is at on this thread that no model can be exported in."""
    import torch

    if what := recorder():
        return what
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        return "FakeTensorMode"
    return "a transform of torch.func (vmap, grad, functionalize)" if torch._C._functorch.peek_interpreter_stack() is not None else ""


def modes() -> dict[str, Any]:
    """Functions for a generated call: how many modes of either kind are on, what torch.jit.trace is at, and whether autograd records."""
    import torch

    return {"dispatching": torch._C._len_torch_dispatch_stack, "overriding": torch._C._len_torch_function_stack,
            "recording": torch._C._get_tracing_state, "recorded": torch.is_grad_enabled}


@cache
def allocator() -> tuple[Any, bool]:
    """alloc(shape, strides, dtype), and whether it gives plain memory inside any mode or transform: past torch's dispatcher, which also
    takes half the time."""
    import torch

    try:
        from torch._C._dynamo.guards import _empty_strided_cpu  # type: ignore[attr-defined]
    except ImportError:
        return lambda shape, strides, dtype: torch.empty(shape, dtype=dtype, device="cpu"), False
    return _empty_strided_cpu, True


class _Hook:
    """A finder and loader that does something to a module of torch when that is loaded."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self.name, self.then = name, then

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        import importlib.util

        spec: Any = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self.loader = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec: Any) -> Any:
        return self.loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self.loader.exec_module(module)
        self.then(module)


def leave_alone(rules: Any) -> None:
    """torch.compile calls our functions instead of looking into them."""
    rules.add(__name__.partition(".")[0])


def enter_backend(registry: Any) -> None:
    """torch.compile knows our backend where the package is on the path and not installed: pip's metadata says the same."""
    from importlib.metadata import EntryPoint

    found = getattr(registry, "_BACKENDS", None)
    if isinstance(found, dict):
        found.setdefault("tilewright", EntryPoint("tilewright", "tilewright.dynamo:tilewright", "torch_dynamo_backends"))


HOOKS = {"torch._dynamo.trace_rules": leave_alone, "torch._dynamo.backends.registry": enter_backend}


def install() -> None:
    """Once, when this package is loaded."""
    for name, then in HOOKS.items():
        loaded = sys.modules.get(name)
        if loaded is None:
            sys.meta_path.insert(0, _Hook(name, then))
        else:
            then(loaded)


install()
