"""`tw.quantize`: from a float module to an int8 session."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from .. import ops as o
from ..compile import Stages, compile_graph, import_model, target_spec
from ..core.dtypes import f32, i32, u8
from ..core.errors import ConfigError, InputError, TilewrightError, UnsupportedError
from ..core.pytree import LEAF, Spec
from ..core.signature import Signature, Slot
from ..core.target_spec import TargetSpec
from ..core.tensors import is_tensor
from ..ir.graph import Graph, Value, exchanged
from ..ops import functions as F
from ..runtime.session import Session
from ..training.scaled_blocks import pack_scaled
from .layers import Layer, layers_of, normalised
from .report import LayerReport, QuantizationReport

# --- From what was seen of an activation to the scale and zero point of its quantized values.

Array = np.ndarray[Any, Any]
OBSERVERS = ("minmax", "percentile", "mse")
BINS = 2048
STEPS = 100  # ranges that the search for the least squared error tries


@dataclass
class Seen:
    """The range of an activation over all batches, and after a second walk its histogram over that range."""

    low: float = np.inf
    high: float = -np.inf
    channels: tuple[Array, Array] | None = None  # the smallest and largest number of each channel
    counts: Array = field(default_factory=lambda: np.zeros(BINS))

    def widen(self, low: Array, high: Array) -> None:
        """By the extremes of a batch, or of each of its channels."""
        self.low, self.high = min(self.low, float(low.min())), max(self.high, float(high.max()))
        if low.ndim:
            old = (low, high) if self.channels is None else self.channels
            self.channels = np.minimum(low, old[0]), np.maximum(high, old[1])

    def count(self, x: Array) -> None:
        self.counts += np.histogram(x.reshape(-1).astype(np.float32), BINS, (self.low, max(self.high, self.low + 1e-30)))[0]

    @property
    def centres(self) -> Array:
        edges = np.linspace(self.low, self.high, BINS + 1)
        return (edges[1:] + edges[:-1]) / 2


def bounds(seen: Seen, observer: str, percentile: float) -> tuple[float, float]:
    """The range that quantized values shall cover; zero is always in it, since padding and activations make zeros."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if observer == "minmax" or not seen.counts.any():
        return low, high
    if observer == "percentile":
        share = np.cumsum(seen.counts) / seen.counts.sum()
        tail = (1 - percentile / 100) / (2 if low < 0 < high else 1)
        edges = np.linspace(seen.low, seen.high, BINS + 1)
        last = edges[min(int(np.searchsorted(share, 1 - tail)) + 1, BINS)] if high > 0 else 0.0
        first = edges[int(np.searchsorted(share, tail, side="right"))] if low < 0 else 0.0
        return min(float(first), 0.0), max(float(last), 0.0)
    return least_squares(seen.centres, seen.counts, low, high)


def least_squares(x: Array, weights: Array, low: float, high: float) -> tuple[float, float]:
    """The range, a part of [low, high], whose quantized values have the least squared error."""
    best, found = np.inf, (low, high)
    for i in range(STEPS):
        part = 1 - i / (STEPS + 20)
        scale, zero = affine(low * part, high * part)
        quantized = np.clip(np.rint(x / scale) + zero, 0, 255)
        error = float((weights * (x - (quantized - zero) * scale) ** 2).sum())
        if error < best:
            best, found = error, (low * part, high * part)
    return found


def affine(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of unsigned quantized values over a range that holds zero."""
    scale = float(np.float32((high - low) / 255))
    if not scale > 0 or not np.isfinite(1 / np.float32(scale)):
        return 1.0, 0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255))


def symmetric(rows: Array, observer: str = "minmax") -> tuple[Array, Array]:
    """Values i8 and scales f64[n] of weights [n, …], -127 … 127: by the largest magnitude of each row, or with the least squared error."""
    flat = rows.reshape(len(rows), -1)
    peak = np.abs(flat).max(1, initial=0.0)
    best = np.where(peak > 0, peak / 127, 1.0)
    if observer == "mse":
        least = np.full(len(flat), np.inf)
        whole = best
        for part in np.linspace(1.0, 0.6, 21):
            scale = whole * part
            error = ((np.clip(np.rint(flat / scale[:, None]), -127, 127) * scale[:, None] - flat) ** 2).sum(1)
            best, least = np.where(error < least, scale, best), np.minimum(error, least)
    best = best.astype(np.float32).astype(np.float64)
    best = np.where(best > 0, best, 1.0)
    quantized = np.clip(np.rint(flat / best[:, None]), -127, 127).astype(np.int8).reshape(rows.shape)
    return quantized, best

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
    """For every layer, fed with the float model's own activations: the relative error of its results, and their mean error by channel
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


# Weights of linear layers in eight or four bits, by groups of columns with a scale and perhaps a zero point; activations stay as they are.
# The packed blocks are those of language models: Q8_0, and Q4_1 with `scale` and `-zero * scale`. A group of 64 or 128 columns is two or
# four blocks that share both. Zero points of eight bits are a small product beside it: of each group's sum of inputs by `(128 - zero) *
# scale`.
GROUPS = (32, 64, 96, 128)
BLOCK = 32


def affine_groups(rows: Array, group: int, bits: int, *, zero_points: bool) -> tuple[Array, Array, Array]:
    """Quantized values [n, k] (0 … 2^bits - 1), and scales (numbers of f16) and zero points [n, k / group]."""
    n, k = rows.shape
    parts = rows.reshape(n, k // group, group)
    top = 2**bits - 1
    if zero_points:
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scale = (high - low) / top
    else:
        peak = np.abs(parts).max(-1)
        low, scale = -peak, 2 * peak / (top - 1)
    scale = np.where(scale > 0, scale, 1).astype(np.float16).astype(np.float64)
    scale = np.where(scale > 0, scale, 2.0**-24)
    zero = np.clip(np.rint(-low / scale), 0, top) if zero_points else np.full_like(scale, 2 ** (bits - 1))
    quantized = np.clip(np.rint(parts / scale[..., None]) + zero[..., None], 0, top)
    return quantized.reshape(n, k), scale, zero


def weight_product(graph: Graph, layer: Layer, x: Value, group: int, bits: int, *, zero_points: bool) -> Value:
    """A linear layer by packed weights."""
    n, k = layer.rows.shape
    quantized, scale, zero = affine_groups(layer.rows, group, bits, zero_points=zero_points)
    if bits == 4:
        packed, name = pack_scaled(quantized.astype(np.int8), scale, zero)
    else:
        packed, name = _eight(quantized - 128, scale), "Q8_0"
    rows = graph.constant(packed, f"{layer.node.operands[1].node.name}_{name}")
    x = F.cast(x, f32)
    out: Value = o.QMatmul(format=name, n=n, k=k)(x, rows, name=layer.node.name, place=layer.node.place)
    if bits == 8 and zero_points:
        sums = F.sum_(F.reshape(x, (*x.shape[:-1], k // group, group)), (len(x.shape),))
        lacks = ((128 - zero) * scale).astype(np.float32)
        out = F.add(out, F.matmul(sums, graph.constant(lacks, f"{layer.node.name}_zeros"), transpose_b=True))
    alpha = getattr(layer.node.op, "alpha", 1.0)
    return out if alpha == 1.0 else F.mul(out, alpha)


def _eight(quantized: Array, scale: Array) -> Array:
    """Blocks of Q8_0: a scale in f16 and 32 quantized values."""
    n, k = quantized.shape
    d = np.repeat(scale, k // scale.shape[1] // BLOCK, axis=1).astype(np.float16)
    blocks = quantized.astype(np.int8).reshape(n, k // BLOCK, BLOCK)
    return np.concatenate([np.ascontiguousarray(d[..., None]).view(np.uint8), blocks.view(np.uint8)], axis=-1).reshape(n, -1)


PEAK = 127.0
CENTRE = 128  # the zero point of rows as unsigned quantized values


@dataclass(frozen=True)
class Scheme:
    """How one activation is quantized: by one scale and zero point, or (scale None) every row by its own largest magnitude."""

    scale: float | None = None
    zero: int = 0
    smooth: Array | None = None  # channels are divided by these first


def product(graph: Graph, layer: Layer, x: Value, observer: str) -> Value:
    """A layer over a dequantized input with dequantized weights."""
    quantized, scales = symmetric(weights_of(layer), observer)
    w = o.Dequantize(axis=0)(graph.constant(quantized, f"{layer.node.operands[1].node.name}_codes"),
                             graph.constant(scales.astype(np.float32), f"{layer.node.name}_scales"),
                             graph.constant(np.zeros(len(scales), np.int32), f"{layer.node.name}_zeros"))
    op: Any = layer.node.op
    if layer.kind == "linear":
        op = o.Matmul(transpose_b=True, alpha=op.alpha)
    return o.emit(op, x, w, name=layer.node.name, place=layer.node.place)


def weights_of(layer: Layer) -> Array:
    return layer.rows if layer.smooth is None else layer.rows * layer.smooth


def as_quantized(graph: Graph, x: Value, scheme: Scheme) -> Value:
    """x as the next layer's kernel sees it: rounded to quantized values and back."""
    assert scheme.scale is not None
    scale, zero = graph.constant(np.float32(scheme.scale), "scale"), graph.constant(np.int32(scheme.zero), "zero")
    quantized = o.Quantize(dtype=u8)(smoothed(graph, x, scheme), scale, zero)
    return o.emit(o.Dequantize(), quantized, scale, zero)


def smoothed(graph: Graph, x: Value, scheme: Scheme) -> Value:
    x = F.cast(x, f32)
    return x if scheme.smooth is None else F.mul(x, graph.constant((1 / scheme.smooth).astype(np.float32), "smooth"))


def row_product(graph: Graph, layer: Layer, x: Value, scheme: Scheme, observer: str) -> Value:
    """A linear layer whose input's rows are rounded to quantized values by their own largest magnitudes."""
    op: Any = layer.node.op
    quantized, scales = symmetric(weights_of(layer), observer)
    x = smoothed(graph, x, scheme)
    peak = o.Max(axes=(len(x.shape) - 1,), keepdims=True)(F.abs_(x))
    step = F.div(F.where(F.equal(peak, 0.0), 1.0, peak), PEAK)
    left = F.cast(F.add(F.apply("round", F.div(x, step)), float(CENTRE)), u8)
    acc = o.Matmul(transpose_b=True, dtype=i32)(left, graph.constant(quantized, f"{layer.node.name}_codes"), name=layer.node.name,
                                                place=layer.node.place)
    sums = graph.constant((CENTRE * quantized.sum(1, dtype=np.int64)).astype(np.int32), f"{layer.node.name}_sums")
    return F.mul(F.mul(F.cast(F.sub(acc, sums), f32), graph.constant((scales * op.alpha).astype(np.float32), f"{layer.node.name}_scales")),
                 step)


def quantized(graph: Graph, layers: Mapping[Any, Layer], schemes: Mapping[Value, Scheme], corrections: Mapping[Layer, Array],
              observer: str) -> Graph:
    """The graph with these layers (by node) quantized. What convolutions read is rounded for all its readers."""
    new, env = Graph(graph.name), dict[Value, Value]()
    shared = {x for x in schemes if _shared(graph, x, layers)}
    made: dict[Value, Value] = {}
    for n in graph.nodes:
        layer = layers.get(n)
        if layer is None:
            graph.copy_into(new, env, [n])
            for v in n.values:
                if v in shared:
                    made[v] = env[v] = F.cast(as_quantized(new, env[v], schemes[v]), v.dtype)
            continue
        scheme, x = schemes[layer.x], layer.x
        if scheme.scale is None:
            out = row_product(new, layer, env[x], scheme, observer)
        else:
            if x not in made:
                made[x] = as_quantized(new, env[x], scheme)
            out = product(new, layer, F.cast(made[x], f32), observer)
        if layer in corrections:
            shape = (-1,) if layer.kind == "linear" else (-1, *(1,) * (len(out.shape) - 2))
            out = F.add(out, new.constant(corrections[layer].astype(np.float32).reshape(shape), f"{n.name}_correction"))
        env[n.value] = F.cast(out, n.types[0].dtype)
        if n.value in shared:
            made[n.value] = env[n.value] = F.cast(as_quantized(new, env[n.value], schemes[n.value]), n.types[0].dtype)
    new.take_ends(graph, env)
    return new


def _shared(graph: Graph, x: Value, layers: Mapping[Any, Layer]) -> bool:
    """Images between convolutions: residuals and pools read the quantized values, too. An input or output of the model stays as it is."""
    readers = [layer for layer in layers.values() if layer.x is x]
    return all(layer.kind == "conv" for layer in readers) and not isinstance(x.op, (o.Input, o.Constant)) and x not in graph.outputs


WEIGHTS = {"int8": 8, "int4": 4}
ACTIVATIONS = ("tensor", "row", "float")


def quantize(module: Any, calibration: Any, *, weights: str = "int8", activations: str = "tensor", observer: str = "minmax",
             percentile: float = 99.99, smooth: float | None = None, bias_correction: bool = False, keep: Collection[str] | str = (),
             max_error: float | None = 0.1, group: int = 64, zero_points: bool | None = None, dynamic: Mapping[str, Any] | None = None,
             threads: int | None = None, target: str | TargetSpec | None = None, name: str | None = None) -> Session:
    """Quantize a module or an ONNX file after training, and compile it. `calibration` is an iterable of batches of inputs: one input, a
    tuple of them or a mapping of names each. `session.quantization` reports the error of every layer.

    Weights of linear layers and convolutions are int8 with a scale a result. Activations are uint8 with one scale and zero point each
    (`activations="tensor"`), rows of linear layers' inputs by their own largest magnitudes ("row"), or stay as they are ("float":
    weights alone, int8 or int4 by groups of `group` columns, with zero points unless `zero_points=False` or the default of int8).
    `observer` is "minmax", "percentile" (of `percentile`) or "mse". `smooth` (0 … 1, usually 0.5) moves the ranges of channels from inputs
    of linear layers into their weights. `bias_correction` adds the mean error of each channel. Layers named in `keep` (patterns as in
    file names) and layers with a relative error above `max_error` stay in float.

    >>> import numpy as np, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    >>> session = quantize(model, [torch.randn(16, 64) for _ in range(4)])
    >>> session.quantization.quantized
    ['0', '2']
    """
    _check(weights, activations, observer, percentile, smooth, group, max_error)
    batches = batches_of(calibration)
    spec = target_spec("cpu" if target is None else target)
    args, kwargs = batches[0]
    stages = Stages("quantize", False)
    graph, signature = import_model(module, args, kwargs, dynamic, None, name, stages)
    graph = normalised(graph)
    layers, others = layers_of(graph)
    if not layers:
        why = "; ".join(f"{n}: {reason}" for n, _, reason in others) or "it has no linear layer or convolution with constant weights"
        raise UnsupportedError(f"quantize: nothing in {graph.name!r} can be quantized: {why}")
    kept = _kept(layers, keep)
    reasons = dict.fromkeys(kept, "asked for")
    chosen = [layer for layer in layers if layer not in kept]
    found: dict[Layer, tuple[float, Any]] = {}
    form = "int8"
    if activations == "float":
        form, zeros = f"{weights} weights", weights == "int4" if zero_points is None else zero_points
        for layer in chosen:
            if why := _unpackable(layer, group):
                reasons[layer] = why
        chosen = [layer for layer in chosen if layer not in reasons]

        def packed(graph: Graph, layer: Layer, x: Value) -> Value:
            return weight_product(graph, layer, x, group, WEIGHTS[weights], zero_points=zeros)

        found = errors(graph, signature, chosen, lambda p, n: packed(p.graph, n, p[n.x]), batches, spec, threads) if chosen else {}
        chosen = _good(chosen, found, max_error, reasons)
        made = _packed(graph, {layer.node: layer for layer in chosen}, packed)
    else:
        made = graph
        if chosen:
            seen = ranges(graph, signature, chosen, batches, spec, threads, histograms=observer != "minmax")
            schemes = _schemes(chosen, seen, activations, observer, percentile, smooth)

            def trial(probe: Probe, layer: Layer) -> Value:
                scheme, x = schemes[layer.x], probe[layer.x]
                if scheme.scale is None:
                    return row_product(probe.graph, layer, x, scheme, observer)
                return product(probe.graph, layer, as_quantized(probe.graph, x, scheme), observer)

            found = errors(graph, signature, chosen, trial, batches, spec, threads)
            chosen = _good(chosen, found, max_error, reasons)
            corrections = {layer: found[layer][1] for layer in chosen} if bias_correction else {}
            used = {layer.x: schemes[layer.x] for layer in chosen}
            made = quantized(graph, {layer.node: layer for layer in chosen}, used, corrections, observer)
    session = compile_graph(made, signature, spec, threads=threads, stages=stages)
    if spec.kind == "cpu" and spec.is_x86 and not spec.has_vnni:
        session.model.notes.append("int8: this CPU has no VNNI; bytes are multiplied by 16-bit multiply-adds, with the same results")
    session.quantization = _report(layers, others, set(chosen), found, reasons, form, activations)
    return session


def _check(weights: str, activations: str, observer: str, percentile: float, smooth: float | None, group: int,
           max_error: float | None) -> None:
    for option, given, known in (("weights", weights, tuple(WEIGHTS)), ("activations", activations, ACTIVATIONS),
                                 ("observer", observer, OBSERVERS), ("group", group, GROUPS)):
        if given not in known:
            raise ConfigError(f"quantize: {option} must be one of {', '.join(map(repr, known))}, got {given!r}")
    if weights == "int4" and activations != "float":
        raise ConfigError("quantize: weights='int4' needs activations='float'; integer products multiply bytes")
    if not 50 < percentile <= 100:
        raise ConfigError(f"quantize: percentile must be above 50 and at most 100, got {percentile}")
    if smooth is not None and not 0 <= smooth <= 1:
        raise ConfigError(f"quantize: smooth must be between 0 and 1, got {smooth}")
    if max_error is not None and not max_error > 0:
        raise ConfigError(f"quantize: max_error must be positive or None, got {max_error}")


def _kept(layers: Sequence[Layer], keep: Collection[str] | str) -> set[Layer]:
    patterns = (keep,) if isinstance(keep, str) else tuple(keep)
    found = {layer for layer in layers if any(fnmatchcase(layer.name, p) for p in patterns)}
    for p in patterns:
        if not any(fnmatchcase(layer.name, p) for layer in layers):
            raise ConfigError(f"quantize: keep names {p!r}, which no layer has; layers are {', '.join(layer.name for layer in layers)}")
    return found


def _schemes(layers: Sequence[Layer], seen: Mapping[Value, Seen], activations: str, observer: str, percentile: float,
             smooth: float | None) -> dict[Value, Scheme]:
    """One for every activation; layers that read the same one share it."""
    found: dict[Value, Scheme] = {}
    for x, what in seen.items():
        readers = [layer for layer in layers if layer.x is x]
        linear = all(layer.kind == "linear" for layer in readers)
        factors = None
        low, high = bounds(what, observer, percentile)
        if smooth is not None and linear and what.channels is not None:
            ours = np.max([np.abs(layer.rows).max(0) for layer in readers], axis=0)
            lows, highs = what.channels
            theirs = np.maximum(np.maximum(-lows, highs), 1e-5)
            factors = np.clip(theirs**smooth / np.maximum(ours, 1e-5) ** (1 - smooth), 1e-5, 1e5)
            factors = factors / np.exp(np.log(factors).mean())  # scales keep their size
            low = min(0.0, float((np.maximum(lows, low) / factors).min()))
            high = max(0.0, float((np.minimum(highs, high) / factors).max()))
            for layer in readers:
                layer.smooth = factors
        if activations == "row" and linear:
            found[x] = Scheme(smooth=factors)
        else:
            scale, zero = affine(low, high)
            found[x] = Scheme(scale, zero, factors)
    return found


def _unpackable(layer: Layer, group: int) -> str:
    if layer.kind != "linear":
        return "weights alone are quantized in linear layers only"
    k = layer.rows.shape[1]
    return f"{k} columns are no multiple of the group of {group}" if k % group else ""


def _good(layers: Sequence[Layer], found: Mapping[Layer, tuple[float, Any]], most: float | None, reasons: dict[Layer, str]) -> list[Layer]:
    good = []
    for layer in layers:
        error = found[layer][0]
        if not np.isfinite(error) or (most is not None and error > most):
            reasons[layer] = f"its error is above max_error={most}"
        else:
            good.append(layer)
    return good


def _packed(graph: Graph, layers: Mapping[Any, Layer], packed: Any) -> Graph:
    def change(n: Any, new: Graph, env: dict[Value, Value]) -> Value | None:
        layer = layers.get(n)
        return None if layer is None else F.cast(packed(new, layer, env[layer.x]), n.types[0].dtype)

    return exchanged(graph, change)


def _report(layers: Sequence[Layer], others: Sequence[tuple[str, str, str]], chosen: set[Layer], found: Mapping[Layer, tuple[float, Any]],
            reasons: Mapping[Layer, str], form: str, activations: str) -> QuantizationReport:
    rows = []
    for layer in layers:
        by_rows = " by rows" if activations == "row" and layer.kind == "linear" else ""
        error = found[layer][0] if layer in found else None
        rows.append(LayerReport(layer.name, layer.kind, f"{form}{by_rows}" if layer in chosen else "float", error, reasons.get(layer, "")))
    return QuantizationReport([*rows, *(LayerReport(n, kind, "float", None, why) for n, kind, why in others)])
