"""Ops that the host computes for a GPU, with their NumPy reference: factorisations without parallel work that a GPU would need.

The launch has no code. The schedule waits for the device there, copies the operands to the host, computes, and copies the results back;
the report says so. Operands and results may lie in any layout. Values without elements take no copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...core.dims import evaluate
from ...core.hashing import blake2b
from ...core.target_spec import TargetSpec
from ...ir.layout import Layout
from ...ir.types import TensorType
from ...ops.base import Op
from ...ops.linalg.spectra import Eig, Svd
from ...tile.ir import Kernel
from ..launch import Launch, Pointer
from ..region import Operand, Region
from ..template import Template, region_bytes, region_flops

Bytes = np.ndarray[Any, Any]


@dataclass(eq=False)
class HostKernel(Kernel):
    """One op and how the memory behind the launch's pointers lies: of its operands, then of its results."""

    op: Op = field(kw_only=True)
    operands: tuple[tuple[TensorType, Layout], ...] = field(kw_only=True)
    results: tuple[tuple[TensorType, Layout], ...] = field(kw_only=True)

    def spans(self, env: Mapping[str, int]) -> list[tuple[int, int]]:
        """For each pointer the bytes that the value spans: where they begin, counted from the pointer, and how many there are."""
        found = []
        for type_, layout in (*self.operands, *self.results):
            steps = [(evaluate(d, env) - 1) * evaluate(s, env) for d, s in zip(type_.shape, layout.strides, strict=True)]
            empty = any(evaluate(d, env) == 0 for d in type_.shape)
            low, high = sum(min(s, 0) for s in steps), sum(max(s, 0) for s in steps)
            found.append((0, 0) if empty else (low * type_.dtype.itemsize, (high - low + 1) * type_.dtype.itemsize))
        return found

    def compute(self, memory: Sequence[Bytes], env: Mapping[str, int]) -> None:
        """From the operands' bytes to the results', each as `spans` says."""
        views = []
        for (type_, layout), (low, size), raw in zip((*self.operands, *self.results), self.spans(env), memory, strict=True):
            shape = [evaluate(d, env) for d in type_.shape]
            strides = [evaluate(s, env) * type_.dtype.itemsize for s in layout.strides]
            views.append(np.ndarray(shape, type_.dtype.np, raw, -low, strides) if size else np.zeros(shape, type_.dtype.np))
        made = self.op.ref(*views[: len(self.operands)])
        for view, x in zip(views[len(self.operands) :], made if isinstance(made, tuple) else (made,), strict=True):
            view[...] = x


class OnHost(Template):
    """Singular values, and eigenvalues of matrices that need not be symmetric."""

    key = "host"
    serves = (Eig, Svd)

    def build(self, region: Region, target: TargetSpec) -> list[Launch]:

        def described(operands: Sequence[Operand]) -> tuple[tuple[TensorType, Layout], ...]:
            return tuple((o.type, o.layout) for o in operands)

        def pointer(o: Operand) -> Pointer:
            return Pointer(o.buffer, o.layout.offset * o.type.dtype.itemsize)

        op, given, made = region.node.op, described(region.operands), described(region.results)
        name = f"host_{op.name}_{blake2b(repr((op, given, made)).encode(), digest_size=8).hexdigest()}"
        kernel = HostKernel(name, op=op, operands=given, results=made)
        reads, writes = (tuple(dict.fromkeys(o.buffer for o in group)) for group in (region.operands, region.results))
        return [Launch(region.name, kernel, tuple(map(pointer, (*region.operands, *region.results))), 1, reads, writes,
                       flops=region_flops(region), bytes=region_bytes(region), note="on the host, the GPU waits for NumPy",
                       on_host=True)]
