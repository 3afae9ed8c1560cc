"""The arrays a call returns: new ones, the caller's `out=`, and for large ones memory that an earlier result has given back.

A large allocation may come from the system page by page and go back when it is freed; touching fresh pages costs as much as a fast
kernel. And where malloc keeps freed blocks it hands out the one that was freed longest ago, which the caches have forgotten. So the
memory of a large result is kept for the next call once nobody holds the result any more, the latest first. What a caller holds is
the caller's own, always.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..core.pytree import flatten
from ..core.signature import Signature, Slot
from ..core.tensors import FOREIGN, from_dtype, is_masked, is_tensor, numpy_to_tensor, tensor_to_numpy, unfit
from ..core.torch_context import allocator, modes
from ..ir.types import TensorType
from .arguments import check_plain
from .memory import HUGE, Allocation, Arenas

RECYCLED_FROM = HUGE  # a smaller result is in the caches wherever it lies
KEPT_BLOCKS, KEPT_BYTES = 8, 128 << 20
STALE = 16  # results for which no kept block had the size, after which the one kept longest goes
_missed = 0  # ... since a kept block had the size of one
_kept: list[Allocation] = []  # the latest last; list operations only: no lock that a forked child could find taken


def empty(type_: TensorType, shape: tuple[int, ...], torch: bool) -> Any:
    """An uninitialised result."""
    if not torch:
        return np.empty(shape, type_.dtype.np)
    strides = tuple(int(np.prod([max(n, 1) for n in shape[i + 1 :]], dtype=np.int64)) for i in range(len(shape)))
    try:
        return allocator()[0](shape, strides, from_dtype()[type_.dtype])
    except RuntimeError as problem:
        if "alloc" in str(problem) or "memory" in str(problem):  # torch has no class of its own for this on CPUs
            raise MemoryError(str(problem).partition("\n")[0]) from None
        raise


def _take(nbytes: int) -> Allocation:
    global _missed
    for i in range(len(_kept) - 1, -1, -1):
        try:
            if _kept[i].nbytes == nbytes:
                block = _kept.pop(i)
                if block.nbytes == nbytes:
                    _missed = 0
                    return block
                _give(block)  # another thread has changed the order
        except IndexError:  # another thread took one
            break
    _missed += 1
    if _missed > STALE:
        del _kept[:1]
    return Allocation(nbytes)


def _give(block: Allocation) -> None:
    _kept.append(block)
    while len(_kept) > KEPT_BLOCKS or sum(b.nbytes for b in list(_kept)) > KEPT_BYTES:
        _kept.pop(0)


@lru_cache(maxsize=64)
def _lease_type(nbytes: int) -> Any:
    """A buffer class of this size: an instance gives its block back when the last view of it is gone."""

    def end(lease: Any, give: Callable[[Allocation], None] = _give) -> None:
        give(lease.block)

    return type("Lease", (ctypes.c_char * nbytes,), {"__del__": end})


def recycler(type_: TensorType, shape: tuple[int, ...], torch: bool) -> Callable[[], Any]:
    """Makes uninitialised results of this type in memory that is used again."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * type_.dtype.itemsize
    at, dtype = _lease_type(nbytes).from_address, type_.dtype.np

    def make() -> Any:
        block = _take(nbytes)
        lease = at(block.address)
        lease.block = block
        return np.ndarray(shape, dtype, lease)

    if not torch:
        return make
    if type_.dtype in FOREIGN:
        return lambda: numpy_to_tensor(make())
    from torch import from_numpy

    return lambda: from_numpy(make())


def new_array(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """An uninitialised array of any size; a large one in memory that is used again, rounded up to a size class."""
    nbytes = dtype.itemsize
    for n in shape:
        nbytes *= n
    if nbytes < RECYCLED_FROM:
        return np.empty(shape, dtype)
    size = Arenas.size_class(nbytes)
    block = _take(size)
    lease = _lease_type(size).from_address(block.address)
    lease.block = block
    return np.ndarray(shape, dtype, lease)


def is_recycled(type_: TensorType) -> bool:
    """Only fixed sizes: with varying lengths the kept memory would grow with the longest."""
    nbytes = type_.nbytes
    return isinstance(nbytes, int) and nbytes >= RECYCLED_FROM


def fresh(type_: TensorType, shape: tuple[int, ...], torch: bool) -> Any:
    used = is_recycled(type_) and not (torch and modes()["dispatching"]())  # inside a mode it may be no tensor of memory
    made = recycler(type_, shape, torch)() if used else empty(type_, shape, torch)
    if torch:
        check_plain(made, from_dtype()[type_.dtype], shape, "session: an output")
    return made


def address(result: Any) -> int:
    return int(result.data_ptr() if is_tensor(result) else result.ctypes.data)


def copy(target: Any, result: Any) -> None:
    if is_tensor(target):
        target.copy_(result if is_tensor(result) else numpy_to_tensor(result))
    else:
        np.copyto(target, tensor_to_numpy(result) if is_tensor(result) else result)


def _span(value: Any) -> tuple[int, int]:
    size = value.numel() * value.element_size() if is_tensor(value) else value.nbytes
    start = address(value)
    return start, start + size


def overlap(outs: Sequence[Any], ins: Sequence[Any]) -> bool:
    """An output that shares memory with an input, or with another output, cannot be written while the program runs."""
    spans = [_span(v) for v in outs]
    others = [_span(v) for v in ins]
    pairs = [(a, b) for k, a in enumerate(spans) for b in (*others, *spans[k + 1 :])]
    return any(a[0] < b[1] and b[0] < a[1] for a, b in pairs)


def check_out(out: Any, types: Sequence[TensorType], shapes: Sequence[tuple[int, ...]], signature: Signature) -> list[Any]:
    """The outputs' storage that `out=` gives, in the graph's order, checked."""
    leaves, _ = flatten(out)
    roles = [o for o in signature.outputs if isinstance(o, Slot)]
    if len(leaves) == len(signature.outputs):
        leaves = [v for v, o in zip(leaves, signature.outputs, strict=True) if isinstance(o, Slot)]
    if len(leaves) != len(roles):
        raise InputError(f"session: out= must hold {len(roles)} tensors, got {len(leaves)}")
    found: dict[int, Any] = {}
    for leaf, role in zip(leaves, roles, strict=True):
        type_, shape = types[role.index], shapes[role.index]
        want = f"{type_.dtype}[{','.join(map(str, shape))}]"
        if is_tensor(leaf):
            ok = unfit(leaf) is None and leaf.dtype is from_dtype()[type_.dtype] and tuple(leaf.shape) == shape
            ok = ok and leaf.is_contiguous() and not leaf.requires_grad and not leaf.is_neg() and not leaf.is_conj()
        else:
            ok = isinstance(leaf, np.ndarray) and leaf.dtype == type_.dtype.np and leaf.shape == shape and leaf.flags.carray
            ok = ok and not is_masked(leaf)
        if not ok:
            raise InputError(f"session: out= for output {role.index} must be a contiguous, writable {want} on the CPU, got {_shown(leaf)}")
        found[role.index] = leaf
    if len(found) != len(types):
        raise InputError(f"session: out= names {len(found)} of {len(types)} outputs")
    return [found[i] for i in range(len(types))]


def _shown(value: Any) -> str:
    """Dtype and shape; what more there is to say where these are right."""
    if is_tensor(value):
        problem = unfit(value)
        if problem is not None:
            return problem[0]
        lazy = "a negative view" if value.is_neg() else "a conjugate view" if value.is_conj() else ""
        lazy = lazy or ("a tensor that requires grad" if value.requires_grad else "")
        return f"{lazy}{', ' if lazy else ''}{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if is_masked(value):
        return "a masked array"
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"
