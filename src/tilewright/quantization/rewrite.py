"""The quantized form of layers, in a graph that still computes with floats: `quantize` and `dequantize` around each of them."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops as o
from ..core.dtypes import f32, i32, u8
from ..ir.graph import Graph, Value
from ..ops import functions as F
from .layers import Layer
from .observers import Array, symmetric

PEAK = 127.0
CENTRE = 128  # of unsigned codes of rows


@dataclass(frozen=True)
class Scheme:
    """How one activation is quantized: by one scale and zero point, or (scale None) every row by its own largest magnitude."""

    scale: float | None = None
    zero: int = 0
    smooth: Array | None = None  # channels are divided by these first


def product(graph: Graph, layer: Layer, x: Value, observer: str) -> Value:
    """A layer over a dequantized input with dequantized weights."""
    codes, scales = symmetric(weights_of(layer), observer)
    w = o.Dequantize(axis=0)(graph.constant(codes, f"{layer.node.operands[1].node.name}_codes"),
                             graph.constant(scales.astype(np.float32), f"{layer.node.name}_scales"),
                             graph.constant(np.zeros(len(scales), np.int32), f"{layer.node.name}_zeros"))
    op: Any = layer.node.op
    if layer.kind == "linear":
        op = o.Matmul(transpose_b=True, alpha=op.alpha)
    out: Value = op(x, w, name=layer.node.name, place=layer.node.place)
    return out


def weights_of(layer: Layer) -> Array:
    return layer.rows if layer.smooth is None else layer.rows * layer.smooth


def coded(graph: Graph, x: Value, scheme: Scheme) -> Value:
    """x as the next layer's kernel sees it: rounded to codes and back."""
    assert scheme.scale is not None
    scale, zero = graph.constant(np.float32(scheme.scale), "scale"), graph.constant(np.int32(scheme.zero), "zero")
    codes = o.Quantize(dtype=u8)(smoothed(graph, x, scheme), scale, zero)
    out: Value = o.Dequantize()(codes, scale, zero)
    return out


def smoothed(graph: Graph, x: Value, scheme: Scheme) -> Value:
    x = F.cast(x, f32)
    return x if scheme.smooth is None else F.mul(x, graph.constant((1 / scheme.smooth).astype(np.float32), "smooth"))


def row_product(graph: Graph, layer: Layer, x: Value, scheme: Scheme, observer: str) -> Value:
    """A linear layer whose input's rows are rounded to codes by their own largest magnitudes."""
    op: Any = layer.node.op
    codes, scales = symmetric(weights_of(layer), observer)
    x = smoothed(graph, x, scheme)
    peak = o.Max(axes=(len(x.shape) - 1,), keepdims=True)(F.abs_(x))
    step = F.div(F.where(F.equal(peak, 0.0), 1.0, peak), PEAK)
    left = F.cast(F.add(F.apply("round", F.div(x, step)), float(CENTRE)), u8)
    acc = o.Matmul(transpose_b=True, dtype=i32)(left, graph.constant(codes, f"{layer.node.name}_codes"), name=layer.node.name,
                                                place=layer.node.place)
    sums = graph.constant((CENTRE * codes.sum(1, dtype=np.int64)).astype(np.int32), f"{layer.node.name}_sums")
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
                    made[v] = env[v] = F.cast(coded(new, env[v], schemes[v]), v.dtype)
            continue
        scheme, x = schemes[layer.x], layer.x
        if scheme.scale is None:
            out = row_product(new, layer, env[x], scheme, observer)
        else:
            if x not in made:
                made[x] = coded(new, env[x], scheme)
            out = product(new, layer, F.cast(made[x], f32), observer)
        if layer in corrections:
            shape = (-1,) if layer.kind == "linear" else (-1, *(1,) * (len(out.shape) - 2))
            out = F.add(out, new.constant(corrections[layer].astype(np.float32).reshape(shape), f"{n.name}_correction"))
        env[n.value] = F.cast(out, n.types[0].dtype)
        if n.value in shared:
            made[n.value] = env[n.value] = F.cast(coded(new, env[n.value], schemes[n.value]), n.types[0].dtype)
    new.take_ends(graph, env)
    return new


def _shared(graph: Graph, x: Value, layers: Mapping[Any, Layer]) -> bool:
    """Images between convolutions: residuals and pools read the codes, too. An input or output of the model stays as it is."""
    readers = [layer for layer in layers.values() if layer.x is x]
    return all(layer.kind == "conv" for layer in readers) and not isinstance(x.op, (o.Input, o.Constant)) and x not in graph.outputs
