"""A jitted function on a GPU: torch CUDA tensors in and out, or arrays of other libraries in and our own out; NumPy arrays and numbers
among the arguments are copied there at each call."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..compile import compile_graph, graph_signature
from ..core import dtypes as dt
from ..core.dims import Expr
from ..core.errors import InputError
from ..core.pytree import Spec
from ..core.target_spec import TargetSpec
from ..ir.types import TensorType
from ..runtime.arguments import is_tensor, torch_dtypes
from ..runtime.cuda.array import CUDA, DeviceArray
from ..runtime.cuda.fastcall import MISSED, NOTHING, never
from ..runtime.cuda.memory import look
from ..runtime.dlpack import device_kind
from ..runtime.donation import overlap_check
from ..transform.trace import Leaf, Traced, trace
from .donate import pair_donated
from .shell import Ends


def is_on_gpu(x: Any) -> bool:
    """A CUDA tensor, an array of ours on the GPU, or one of another library."""
    if is_tensor(x):
        return bool(x.device.type == "cuda")
    if isinstance(x, (np.ndarray, np.generic, int, float, complex, str)):
        return False
    if isinstance(x, DeviceArray) or hasattr(x, "__cuda_array_interface__"):
        return True
    return hasattr(x, "__dlpack_device__") and device_kind(x) == CUDA


def gpu_leaf(x: Any) -> Leaf:
    """The type of an array on the GPU."""
    if isinstance(x, DeviceArray):
        return Leaf(TensorType(x.dtype, x.shape))
    if not is_tensor(x):
        seen = look(x, 0)
        assert seen is not None  # `is_on_gpu`
        if seen[0].dtype is None:
            raise InputError(f"jit: an array must have one of the dtypes {' '.join(d.name for d in dt.ALL)}, got {seen[0].shown}")
        return Leaf(TensorType(seen[0].dtype, seen[0].shape))
    dtype = torch_dtypes().get(x.dtype)
    if dtype is None:
        raise InputError(f"jit: a tensor must have one of the dtypes {' '.join(str(d) for d in torch_dtypes())}, got {x.dtype}")
    return Leaf(TensorType(dtype, tuple(int(n) for n in x.shape)))


def _place(x: Any, k: int) -> int:
    """Where array k lies. What will be copied shares no memory with anything: it gets a place where no GPU has memory."""
    if is_tensor(x):
        return int(x.data_ptr())
    if isinstance(x, DeviceArray):
        return x.address
    seen = None if isinstance(x, np.ndarray) else look(x, 0)
    return (k + 1) << 50 if seen is None else seen[0].address


class CompiledOnGpu:
    """One signature of a jitted function. Donated tensors are written in place."""

    def __init__(self, fn: Callable[..., Any], spec: Spec, leaves: Sequence[Any], donated: Sequence[int], target: TargetSpec) -> None:
        self.traced: Traced = trace(fn, spec, leaves)
        self.spec, self.leaves = spec, list(leaves)
        graph = self.traced.graph
        self.arrays = [i for i, x in enumerate(leaves) if isinstance(x, Leaf)]
        self.types = [graph.inputs[k].type for k in range(len(self.arrays))]
        graph.donated = pair_donated(graph, [self.arrays.index(i) for i in donated if i in self.arrays])
        session: Any = compile_graph(graph, graph_signature(graph), target)
        self.session = session
        if graph.donated:
            check = overlap_check(session.interface, session.name)
            session.apart = lambda addresses: check(np.array(addresses, np.int64))
        plain = not any(isinstance(x, Expr) for x in self.traced.statics.values())
        plain = plain and not any(isinstance(x, Leaf) and x.weak for x in leaves)  # numbers are copied, which is no fast path
        self._ends = Ends(spec, leaves, self.traced.out_spec, self.traced.n_leaves, self.traced.statics) if plain else None
        self._short: tuple[Any, Any] = (None, None)  # (the fast path of the session, ours around it)

    def __call__(self, leaves: Sequence[Any], sizes: Mapping[str, int]) -> Any:
        from ..runtime.cuda import driver as cuda_driver
        from .cuda import placed

        cuda_driver.enter()
        given = [self._sent(leaves[i], k) for k, i in enumerate(self.arrays)]
        placed.before_session(self.session, given)
        if self.session.apart is None:
            found = self.session(*given)
        else:
            self.session.apart([_place(x, k) for k, x in enumerate(given)])
            found = self.session.in_place(*given)
        placed.after_session(self.session)
        return self.traced.result([found] if len(self.traced.graph.outputs) == 1 else found, sizes)

    def short(self, slow: Callable[..., Any]) -> Callable[..., Any] | None:
        """The fast path of the last call, with generated text that takes arguments apart and puts the result together, if there is one."""
        go = self.session._fast
        if go is None or go is never or self._ends is None or self._ends.prologue is None:
            return None
        if self._short[0] is not go:
            n = len(self.traced.graph.outputs)
            how = "" if self.session.apart is None else ", NOTHING, False"
            lines = [*self._ends.prologue, f"found = go(({''.join(f'x{i}, ' for i in range(len(self.arrays)))}){how})"]
            results = "".join(f"y{k}, " for k in range(n)) if n > 1 else "y0 "
            lines += ["if found is MISSED: return slow(args, kwargs, out)", f"{results}= found"]
            scope = {**self._ends.names, "go": go, "slow": slow, "MISSED": MISSED, "NOTHING": NOTHING}
            exec("def call(args, kwargs, out):\n" + "".join(f"    {line}\n" for line in [*lines, f"return {self._ends.result}"]), scope)
            self._short = (go, scope["call"])
        found: Callable[..., Any] = self._short[1]
        return found

    def _sent(self, x: Any, k: int) -> Any:
        """Argument k as an array the session takes: numbers and arrays of the host, which it copies, in the dtype of the trace."""
        return x if is_tensor(x) or is_on_gpu(x) else np.array(x, dtype=self.types[k].dtype.np, order="C")
