"""A jitted function on a GPU: torch CUDA tensors in and out; NumPy arrays and numbers among the arguments are copied there at each call."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..compile import compile_graph, graph_signature
from ..core.errors import InputError
from ..core.pytree import Spec
from ..core.target_spec import TargetSpec
from ..ir.types import TensorType
from ..runtime.arguments import from_dtype, is_tensor, torch_dtypes
from ..runtime.donation import overlap_check
from ..transform.trace import Leaf, Traced, trace
from .donate import pair_donated


def is_on_gpu(x: Any) -> bool:
    return is_tensor(x) and x.device.type == "cuda"


def gpu_leaf(x: Any) -> Leaf:
    """The type of a CUDA tensor."""
    dtype = torch_dtypes().get(x.dtype)
    if dtype is None:
        raise InputError(f"jit: a tensor must have one of the dtypes {' '.join(str(d) for d in torch_dtypes())}, got {x.dtype}")
    return Leaf(TensorType(dtype, tuple(int(n) for n in x.shape)))


class CompiledOnGpu:
    """One signature of a jitted function. Donated tensors are written in place."""

    def __init__(self, fn: Callable[..., Any], spec: Spec, leaves: Sequence[Any], donated: Sequence[int], target: TargetSpec) -> None:
        self.traced: Traced = trace(fn, spec, leaves)
        graph = self.traced.graph
        self.arrays = [i for i, x in enumerate(leaves) if isinstance(x, Leaf)]
        self.types = [graph.inputs[k].type for k in range(len(self.arrays))]
        graph.donated = pair_donated(graph, [self.arrays.index(i) for i in donated if i in self.arrays])
        self.session: Any = compile_graph(graph, graph_signature(graph), target)
        self._apart = overlap_check(self.session.interface, self.session.name) if graph.donated else None

    def __call__(self, leaves: Sequence[Any]) -> Any:
        from ..runtime import cuda_driver

        cuda_driver.enter()
        given = [self._sent(leaves[i], k) for k, i in enumerate(self.arrays)]
        if self._apart is None:
            found = self.session(*given)
        else:
            self._apart([x.data_ptr() for x in given])
            found = self.session.in_place(*given)
        return self.traced.result([found] if len(self.traced.graph.outputs) == 1 else found)

    def _sent(self, x: Any, k: int) -> Any:
        """Argument k as a tensor the session takes; what is no tensor is copied to the GPU, and the report counts it."""
        if is_tensor(x):
            return x
        import torch

        dtype = self.types[k].dtype
        name = self.session.interface.input_names[k]
        self.session.copies[name] = self.session.copies.get(name, 0) + 1
        bits = np.array(x, dtype=dtype.np, order="C").reshape(-1).view(np.uint8)
        return torch.from_numpy(bits).cuda().view(from_dtype()[dtype]).reshape([int(n) for n in np.shape(x)])
