"""The layers of a graph that can be quantized: products and convolutions with constant weights."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import ops as o
from ..ir.graph import Graph, Node, Value
from ..passes.absorb_conv import AbsorbIntoConv
from ..passes.absorb_matmul import AbsorbIntoMatmul
from ..passes.base import Log
from ..passes.canonicalize import Canonicalize
from ..passes.control import SimplifyControl
from ..passes.cse import Cse, Dce
from ..passes.dequantized import Array, constant
from ..passes.fold_constants import FoldConstants
from ..passes.lower_complex import LowerComplex
from ..passes.recognize import Recognize

MOST = 1 << 16  # terms of a sum: 255 · 127 times that many fit in 32 bits


@dataclass(eq=False)
class Layer:
    """One product `x · w`. `rows` are its weights in f64, results first: [N, …]."""

    name: str
    kind: str
    node: Node
    rows: Array
    smooth: Array | None = None  # factors of the input's channels, which the weights have taken over

    @property
    def x(self) -> Value:
        return self.node.operands[0]


def normalised(graph: Graph) -> Graph:
    """A copy with batch norms folded into convolutions and everything that is known computed: its weights are final."""
    result, _ = graph.clone()
    for p in (LowerComplex(), Canonicalize(), Cse(), SimplifyControl(), AbsorbIntoMatmul(), FoldConstants(), AbsorbIntoConv(), Recognize(),
              Canonicalize(), Cse(), Dce()):
        result = p.run(result, Log())
    return result


def layers_of(graph: Graph) -> tuple[list[Layer], list[tuple[str, str, str]]]:
    """Layers that can be quantized; and the name, kind and reason of those that cannot."""
    found: list[Layer] = []
    others: list[tuple[str, str, str]] = []
    names: dict[str, int] = {}
    for n in graph.nodes:
        kind = "linear" if isinstance(n.op, o.Matmul) else "conv" if isinstance(n.op, o.Conv) else ""
        w = constant(n.operands[1]) if kind else None
        if w is None or (kind == "linear" and w.ndim != 2):
            continue  # a product of two activations
        name = _name(n, names)
        reason = _reason(n, w)
        if reason:
            others.append((name, kind, reason))
            continue
        rows = w.T if kind == "linear" and not _op(n).transpose_b else w
        found.append(Layer(name, kind, n, np.ascontiguousarray(rows, np.float64)))
    return found, others


def _op(n: Node) -> Any:
    return n.op


def _reason(n: Node, w: Array) -> str:
    op, x = _op(n), n.operands[0]
    if not x.dtype.is_float or x.dtype.itemsize > 4 or x.dtype.itemsize < 2:
        return f"its input is {x.dtype}"
    if isinstance(op, o.Matmul):
        if op.transpose_a or op.dtype is not None:
            return "its left operand is stored transposed, or its result has another dtype"
        terms = w.shape[1 if op.transpose_b else 0]
    else:
        if op.transposed or any(p < 0 for pair in op.padding for p in pair):
            return "transposed convolutions and negative padding stay in float"
        terms = int(np.prod(w.shape[1:]))
    if not np.isfinite(w).all():
        return "its weights hold NaN or infinity"
    return "" if 0 < terms <= MOST and w.size else f"sums of {terms} products"


def _name(n: Node, names: dict[str, int]) -> str:
    """The parameter's name without `.weight`; a second use of one gets a number."""
    v = n.operands[1]
    while v.op.traits.view:
        v = v.node.operands[0]
    name = v.op.data.name if isinstance(v.op, o.Constant) else n.name
    name = name.removesuffix(".weight").removesuffix("_weight") or n.name
    names[name] = names.get(name, 0) + 1
    return name if names[name] == 1 else f"{name}#{names[name]}"
