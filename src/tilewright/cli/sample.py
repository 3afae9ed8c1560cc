"""The demo's model: a transformer block written twice, as a graph of our ops and as plain NumPy, over the same random weights.

The graph spells attention, LayerNorm and GELU out in small ops on purpose: recognising them is the compiler's work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import ops as o
from ..core.dims import Dim, sym
from ..core.dtypes import f32
from ..ir.graph import Graph, Value
from ..ir.types import TensorType

Array = NDArray[np.float32]


@dataclass
class Sample:
    """A pre-norm transformer block: `x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    width: int = 256
    heads: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        d = self.width

        def weight(rows: int, columns: int) -> Array:
            return (rng.standard_normal((rows, columns)) / math.sqrt(rows)).astype(np.float32)

        shapes = {"q": (d, d), "k": (d, d), "v": (d, d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
        self.weights: dict[str, Array] = {name: weight(*shape) for name, shape in shapes.items()}
        self.biases: dict[str, Array] = {name: (0.1 * rng.standard_normal(shape[1])).astype(np.float32) for name, shape in shapes.items()}

    def inputs(self, batch: int, length: int, seed: int = 1) -> Array:
        return np.random.default_rng(seed).standard_normal((batch, length, self.width)).astype(np.float32)

    # ---- as a graph

    def graph(self, batch: Dim, length: Dim) -> Graph:
        """The block for x: f32[batch, length, width]; either may be symbolic."""
        g = Graph("sample_block")
        x = g.input(TensorType(f32, (batch, length, self.width)), "x")
        head = self.width // self.heads

        def linear(v: Value, name: str) -> Value:
            return o.add(o.matmul(v, g.constant(self.weights[name], f"{name}.weight")), g.constant(self.biases[name], f"{name}.bias"))

        def split(v: Value) -> Value:
            return o.transpose(o.reshape(v, (batch, length, self.heads, head)), (0, 2, 1, 3))

        y = self._norm(x)
        q, k, v = (split(linear(y, name)) for name in ("q", "k", "v"))
        scores = o.mul(o.matmul(q, o.transpose(k, (0, 1, 3, 2))), 1 / math.sqrt(head))
        shifted = o.exp(o.sub(scores, o.max_(scores, (3,), keepdims=True)))
        mixed = o.matmul(o.div(shifted, o.sum_(shifted, (3,), keepdims=True)), v)
        x = o.add(x, linear(o.reshape(o.transpose(mixed, (0, 2, 1, 3)), (batch, length, self.width)), "out"))
        hidden = linear(self._norm(x), "up")
        gelu = o.mul(o.mul(hidden, 0.5), o.add(o.erf(o.mul(hidden, 1 / math.sqrt(2))), 1.0))
        g.outputs = [o.add(x, linear(gelu, "down"))]
        return g

    def _norm(self, x: Value) -> Value:
        centred = o.sub(x, o.mean(x, (2,), keepdims=True))
        return o.mul(centred, o.rsqrt(o.add(o.mean(o.mul(centred, centred), (2,), keepdims=True), 1e-5)))

    # ---- as NumPy, the oracle and the yardstick

    def numpy(self, x: Any) -> Any:
        """The same block in plain NumPy, in the dtype of `x` (float64 for the oracle)."""
        batch, length, _ = x.shape
        head = self.width // self.heads

        def linear(v: Any, name: str) -> Any:
            return v @ self.weights[name].astype(x.dtype, copy=False) + self.biases[name].astype(x.dtype, copy=False)

        def split(v: Any) -> Any:
            return v.reshape(batch, length, self.heads, head).transpose(0, 2, 1, 3)

        def norm(v: Any) -> Any:
            centred = v - v.mean(-1, keepdims=True)
            return centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

        y = norm(x)
        q, k, v = (split(linear(y, name)) for name in ("q", "k", "v"))
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(head)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = (scores / scores.sum(-1, keepdims=True)) @ v
        x = x + linear(mixed.transpose(0, 2, 1, 3).reshape(batch, length, self.width), "out")
        hidden = linear(norm(x), "up")
        return x + linear(0.5 * hidden * (1 + _erf(hidden / math.sqrt(2))), "down")


def _erf(x: Any) -> Any:
    """NumPy has no erf: the standard library's, element by element for float64, a rational formula (1.5e-7) for float32."""
    if x.dtype == np.float64:
        return np.vectorize(math.erf, otypes=[np.float64])(x)
    t = 1 / (1 + 0.3275911 * np.abs(x))
    poly = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - poly * np.exp(-x * x))


def example() -> Graph:
    """For `tilewright inspect tilewright.cli.sample:example`: the block with a symbolic length."""
    return Sample().graph(1, sym("S", 1, 512))
