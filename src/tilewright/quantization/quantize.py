"""`tw.quantize`: from a float module to an int8 session."""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from ..compile import Stages, compile_graph, import_model, target_spec
from ..core.errors import ConfigError, UnsupportedError
from ..core.target_spec import TargetSpec
from ..ir.graph import Graph, Value
from ..ops import functions as F
from ..runtime.session import Session
from .calibration import Probe, batches_of, errors, ranges
from .layers import Layer, layers_of, normalised
from .observers import OBSERVERS, Seen, affine, bounds
from .report import LayerReport, QuantizationReport
from .rewrite import Scheme, coded, product, quantized, row_product
from .weight_only import GROUPS, weight_product

WEIGHTS = {"int8": 8, "int4": 4}
ACTIVATIONS = ("tensor", "row", "float")


def quantize(module: Any, calibration: Any, *, weights: str = "int8", activations: str = "tensor", observer: str = "minmax",
             percentile: float = 99.99, smooth: float | None = None, bias_correction: bool = False, keep: Collection[str] | str = (),
             max_error: float | None = 0.1, group: int = 64, zero_points: bool | None = None, dynamic: Mapping[str, Any] | None = None,
             threads: int | None = None, target: str | TargetSpec | None = None, name: str | None = None) -> Session:
    """Quantize a module after training, and compile it. `calibration` is an iterable of batches of inputs: one input, a tuple of them or a
    mapping of names each. `session.quantization` reports the error of every layer.

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
                return product(probe.graph, layer, coded(probe.graph, x, scheme), observer)

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
    new, env = Graph(graph.name), dict[Value, Value]()
    for n in graph.nodes:
        layer = layers.get(n)
        if layer is None:
            graph.copy_into(new, env, [n])
        else:
            env[n.value] = F.cast(packed(new, layer, env[layer.x]), n.types[0].dtype)
    new.take_ends(graph, env)
    return new


def _report(layers: Sequence[Layer], others: Sequence[tuple[str, str, str]], chosen: set[Layer], found: Mapping[Layer, tuple[float, Any]],
            reasons: Mapping[Layer, str], form: str, activations: str) -> QuantizationReport:
    rows = []
    for layer in layers:
        by_rows = " by rows" if activations == "row" and layer.kind == "linear" else ""
        error = found[layer][0] if layer in found else None
        rows.append(LayerReport(layer.name, layer.kind, f"{form}{by_rows}" if layer in chosen else "float", error, reasons.get(layer, "")))
    return QuantizationReport([*rows, *(LayerReport(n, kind, "float", None, why) for n, kind, why in others)])
