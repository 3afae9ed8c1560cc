"""Functions of arrays inside PyTorch: torch tensors in, torch tensors out, and gradients through PyTorch's autograd.

`tw.torch_function(f)` traces f for each set of argument types, splits it into a forward and a backward program, and hands both to
`torch.autograd.Function`. Jitted functions do the same when they are given tensors that require gradients.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..compile import compile_graph, graph_signature, target_spec
from ..core.errors import InputError
from ..core.exact import key_of
from ..core.pytree import Spec, flatten, unflatten
from ..core.tensors import is_tensor, numpy_to_tensor, torch_dtypes
from ..ir.types import TensorType
from ..transform.trace import Leaf, Traced, trace
from ..transform.vjp import differentiable, split_vjp
from .dynamic import Dynamic
from .programs import Programs

Fn = Callable[..., Any]


def as_tensors(tree: Any) -> Any:
    """The tree with torch tensors for its arrays, in the same memory."""
    leaves, spec = flatten(tree)
    return unflatten(spec, [numpy_to_tensor(np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x for x in leaves])


def wants_gradients(leaves: Sequence[Any]) -> bool:
    """Whether autograd would record a call with these arguments."""
    if not any(is_tensor(x) and x.requires_grad for x in leaves):
        return False
    import torch

    return torch.is_grad_enabled()


class Program:
    """One signature: the function as a program, or as two when gradients of the `wanted` tensors are asked for."""

    def __init__(self, fn: Fn, spec: Spec, leaves: Sequence[Any], wanted: Sequence[bool], device: str) -> None:
        self.traced: Traced = trace(fn, spec, leaves)
        graph, target = self.traced.graph, target_spec(device)
        self.count = len(graph.outputs)
        self.floats = [differentiable(v) for v in graph.outputs]
        self.wanted = tuple(wanted)

        def compiled(g: Any) -> Any:
            g.call_symbols = tuple(s for s in graph.symbols() if s not in g.symbols())  # the backward pass may see no array of that size
            return compile_graph(g, graph_signature(g), target) if g.outputs else None

        if any(wanted):
            forward, backward = split_vjp(graph, wanted)
            self.forward, self.backward = compiled(forward), compiled(backward)
        else:
            self.forward, self.backward = compiled(graph), None

    def run(self, session: Any, tensors: Sequence[Any], sizes: Mapping[str, int]) -> list[Any]:
        if session is None:
            return []
        found = session.run_with(sizes, *tensors) if sizes else session(*tensors)
        return list(found) if isinstance(found, tuple) else [found]


@functools.cache
def _function() -> Any:
    """The autograd function, made when torch is first used."""
    import torch

    class Call(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, program: Program, sizes: Mapping[str, int], *tensors: Any) -> Any:
            found = program.run(program.forward, [t.detach() for t in tensors], sizes)
            outputs = found[: program.count]
            ctx.program, ctx.sizes = program, sizes
            ctx.save_for_backward(*found[program.count :])
            ctx.mark_non_differentiable(*(t for t, float_ in zip(outputs, program.floats, strict=True) if not float_))
            return tuple(outputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            program: Program = ctx.program
            given = [g.contiguous() for g, float_ in zip(cotangents, program.floats, strict=True) if float_]
            found = iter(program.run(program.backward, [*ctx.saved_tensors, *given], ctx.sizes))
            return (None, None, *(next(found) if w else None for w in program.wanted))

    return Call


class TorchFunction:
    """What `tw.torch_function` gives."""

    def __init__(self, fn: Fn, dynamic: Dynamic | None = None) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self.dynamic = fn, dynamic
        self._programs = Programs()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import torch

        leaves, spec = flatten((args, kwargs))
        leaves = [numpy_to_tensor(np.asarray(x)) if isinstance(x, (np.ndarray, np.generic)) else x for x in leaves]
        tensors = [x for x in leaves if is_tensor(x)]
        devices = {t.device.type for t in tensors} or {"cpu"}
        if len(devices) > 1 or not devices <= {"cpu", "cuda"}:
            raise InputError(f"torch_function: tensors must lie on one device, the CPU or a GPU, got {' and '.join(sorted(devices))}")
        grad = torch.is_grad_enabled()
        wanted = tuple(grad and t.requires_grad for t in tensors)
        types = [_leaf(x) if is_tensor(x) else x for x in leaves]
        types, sizes = (types, {}) if self.dynamic is None else self.dynamic.applied(spec, types)
        try:
            key = (*devices, spec, wanted, *map(key_of, types))
            program: Program | None = self._programs.get(0, key)
        except (TypeError, ValueError) as e:
            raise InputError(f"torch_function: an argument that is no tensor must be hashable ({e})") from None
        if program is None:
            program = Program(self.fn, spec, types, wanted, *devices)
            self._programs.put(0, key, program)
        if any(wanted):
            outputs = list(_function().apply(program, sizes, *tensors))
        else:
            outputs = program.run(program.forward, [t.detach() for t in tensors], sizes)
        return program.traced.result(outputs, sizes)

    def __repr__(self) -> str:
        return f"<torch_function {getattr(self.fn, '__name__', self.fn)}>"


def _leaf(x: Any) -> Leaf:
    dtype = torch_dtypes().get(x.dtype)
    if dtype is None:
        raise InputError(f"torch_function: a tensor must have one of the dtypes {' '.join(str(d) for d in torch_dtypes())}, got {x.dtype}")
    return Leaf(TensorType(dtype, tuple(int(n) for n in x.shape)))


def torch_function(fn: Fn) -> TorchFunction:
    """A function of arrays as one of torch tensors, whose gradients PyTorch's autograd takes: `g = tw.torch_function(f)`.

    Arguments may be nested; what is no tensor or array is fixed at the compile, and other values compile again. Derivatives are of first
    order: one of a gradient is an error.
    """
    if not callable(fn):
        raise InputError(f"torch_function: needs a function, got a {type(fn).__name__}")
    return TorchFunction(getattr(fn, "fn", fn))
