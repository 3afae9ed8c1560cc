"""Calibration data, and what is measured on it. Measurements are graphs themselves: the model's own, with other outputs."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import ops as o
from ..compile import compile_graph
from ..core.dtypes import f32
from ..core.errors import InputError, TilewrightError
from ..core.pytree import LEAF, Spec
from ..core.signature import Signature, Slot
from ..core.target_spec import TargetSpec
from ..core.tensors import is_tensor
from ..ir.graph import Graph, Value
from ..ops import functions as F
from .layers import Layer
from .observers import Array, Seen

Batch = tuple[tuple[Any, ...], dict[str, Any]]


def batches_of(calibration: Any) -> list[Batch]:
    """Every item as positional and keyword arguments."""
    if calibration is None or is_tensor(calibration) or isinstance(calibration, (np.ndarray, Mapping, str, bytes)) \
            or not isinstance(calibration, Iterable):
        kind = type(calibration).__name__
        form = "an iterable of batches (each an input, a tuple of inputs or a mapping)"
        raise InputError(f"quantize: calibration must be {form}, got {kind}")
    found: list[Batch] = []
    for item in calibration:
        if isinstance(item, Mapping):
            found.append(((), dict(item)))
        else:
            found.append((tuple(item) if isinstance(item, (tuple, list)) else (item,), {}))
    if not found:
        raise InputError("quantize: calibration holds no batches; give at least one, better some dozens of typical inputs")
    for i, (args, kwargs) in enumerate(found):
        for name, x in [*((f"input {j}", x) for j, x in enumerate(args)), *kwargs.items()]:
            _check_finite(i, name, x)
    return found


def _check_finite(i: int, name: str, x: Any) -> None:
    array = _array(x) if is_tensor(x) or isinstance(x, np.ndarray) else np.zeros(())
    if array.size == 0:
        raise InputError(f"quantize: calibration batch {i}: {name} is empty, got shape {list(array.shape)}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"quantize: calibration batch {i}: {name} holds NaN or infinity, which no scale covers")


def _array(x: Any) -> Array:
    return np.asarray(x.detach().float().numpy() if x.is_floating_point() else x.detach().numpy()) if is_tensor(x) else np.asarray(x)


class Probe:
    """A copy of a graph whose outputs are measurements."""

    def __init__(self, graph: Graph, signature: Signature, target: TargetSpec, threads: int | None) -> None:
        self.graph, self.env = graph.clone()
        self.signature, self.target, self.threads = signature, target, threads
        self.outputs: list[Value] = []

    def __getitem__(self, v: Value) -> Value:
        return self.env[v]

    def measure(self, v: Value) -> None:
        self.outputs.append(v)

    def walk(self, batches: Sequence[Batch], see: Callable[[list[Array]], None]) -> None:
        """Run every batch, and show what was measured."""
        count = len(self.outputs)
        self.graph.outputs, self.graph.donated = self.outputs, {}
        leaves = tuple(Slot(i) for i in range(count))
        signature = dataclasses.replace(self.signature, out_spec=Spec("tuple", (), (LEAF,) * count), outputs=leaves, updates=())
        session = compile_graph(self.graph, signature, self.target, threads=self.threads)
        for i, (args, kwargs) in enumerate(batches):
            try:
                made = session(*args, **kwargs)
            except TilewrightError as problem:
                raise InputError(f"quantize: calibration batch {i}: {problem}") from None
            see([_array(x) for x in made])
        session.close()


def ranges(graph: Graph, signature: Signature, layers: Sequence[Layer], batches: Sequence[Batch], target: TargetSpec, threads: int | None,
           *, histograms: bool) -> dict[Value, Seen]:
    """The range of every layer's input (and of its channels, for linear layers); with its histogram where wanted."""
    inputs = list(dict.fromkeys(layer.x for layer in layers))
    by_channel = {layer.x for layer in layers if layer.kind == "linear"}
    seen = {x: Seen() for x in inputs}
    probe = Probe(graph, signature, target, threads)
    for x in inputs:
        here, axes = F.cast(probe[x], f32), tuple(range(len(x.shape) - (x in by_channel)))
        probe.measure(o.Min(axes=axes)(here))
        probe.measure(o.Max(axes=axes)(here))

    def widen(made: list[Array]) -> None:
        rest = iter(made)
        for x in inputs:
            low, high = next(rest).astype(np.float64), next(rest).astype(np.float64)
            if not (np.isfinite(low).all() and np.isfinite(high).all()):
                name = next(layer.name for layer in layers if layer.x is x)
                raise InputError(f"quantize: layer {name!r}: its input is NaN or infinite on the calibration data; check the module")
            seen[x].widen(low, high)

    probe.walk(batches, widen)
    if histograms:
        probe = Probe(graph, signature, target, threads)
        for x in inputs:
            probe.measure(F.cast(probe[x], f32))

        def count(made: list[Array]) -> None:
            for x, array in zip(inputs, made, strict=True):
                seen[x].count(array)

        probe.walk(batches, count)
    return seen


def errors(graph: Graph, signature: Signature, layers: Sequence[Layer], quantized: Callable[[Probe, Layer], Value],
           batches: Sequence[Batch], target: TargetSpec, threads: int | None) -> dict[Layer, tuple[float, Array]]:
    """Of every layer, fed with the float model's own activations: the relative error of its results, and their mean error by channel
    (float less quantized)."""
    probe = Probe(graph, signature, target, threads)
    for layer in layers:
        y = F.cast(probe[layer.node.value], f32)
        channel = len(y.shape) - 1 if layer.kind == "linear" else 1
        axes = tuple(range(len(y.shape)))
        gap = F.sub(y, F.cast(quantized(probe, layer), f32))
        probe.measure(F.sum_(F.square(gap), axes))
        probe.measure(F.sum_(F.square(y), axes))
        probe.measure(F.mean(gap, tuple(a for a in axes if a != channel)))
    sums: dict[Layer, list[Any]] = {layer: [0.0, 0.0, 0.0] for layer in layers}

    def add(made: list[Array]) -> None:
        rest = iter(made)
        for layer in layers:
            sums[layer] = [old + next(rest).astype(np.float64) for old in sums[layer]]

    probe.walk(batches, add)
    return {layer: (float(np.sqrt(gap / max(whole, 1e-300))) if gap else 0.0, mean / len(batches))
            for layer, (gap, whole, mean) in sums.items()}
