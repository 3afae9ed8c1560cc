"""Products and convolutions of dequantized quantized values become integer ones, with the scales behind them.

    dequantize(x) · dequantize(w)  =  scale_x · scale_w · (Σ x·w - zero_x · Σ w)

The sum is an integer product; the rest is one multiplication and one addition a result, which a bias joins. They end up in the product's
epilogue, together with activations, residuals and the rounding to the next layer's quantized values.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from .. import ops as o
from ..core.dtypes import DType, f32, i8, i32, u8
from ..ir.graph import Graph, Node, Value
from ..ops import functions as F
from .base import Log, Pass
from .base import scalar as number_of
from .dequantized import Array, Quantized, constant, of

MOST = (1 << 31) // (255 * 128)  # terms of a sum that surely fits in 32 bits
SHIFT = 128  # from signed to unsigned quantized values


@dataclass(frozen=True)
class IntegerProducts(Pass):
    """Before: canonical graph; constants of `dequantize` are not folded.
    After: a matmul or convolution whose operands are dequantized (activations with one scale, weights constant, symmetric, with one scale
    or one per result) is an integer one. Signed activations that only these read are unsigned ones with another zero point. Views and max
    pools work on quantized values. A `quantize` by constants multiplies by the reciprocal of its scale, and takes no bounds before it
    that its own range implies; one that undoes a `dequantize` is gone."""

    name: ClassVar[str] = "integer-products"

    def run(self, graph: Graph, log: Log) -> Graph:
        as_quantized = any(isinstance(n.op, (o.Quantize, o.Dequantize)) for n in graph.nodes)
        if not as_quantized and not any(v.dtype in (i8, u8) for n in graph.nodes for v in n.values):
            return graph
        return _Rewriter(graph, log).run()


@dataclass
class _Rewriter:
    graph: Graph
    log: Log
    new: Graph = field(init=False)
    env: dict[Value, Value] = field(default_factory=dict)
    known: dict[Value, Quantized] = field(default_factory=dict)  # old value -> quantized values in the new graph
    done: set[Node] = field(default_factory=set)  # nodes that became part of another one
    unsigned: dict[Value, Value] = field(default_factory=dict)  # signed quantized values of the new graph -> unsigned ones
    parts: dict[Value, tuple[Value, Any, Any, tuple[int, ...], str]] = field(default_factory=dict)  # what `scaled` made

    def __post_init__(self) -> None:
        self.new, self.users, self.outputs = Graph(self.graph.name), self.graph.users(), set(self.graph.outputs)

    def run(self) -> Graph:
        for n in self.graph.nodes:
            if n in self.done:
                continue
            made = self.rewritten(n)
            if made is None:
                self.graph.copy_into(self.new, self.env, [n])
                if len(n.values) == 1:
                    self.note(n)
            else:
                self.env[n.value] = made
        self.new.take_ends(self.graph, self.env)
        return self.new

    def rewritten(self, n: Node) -> Value | None:
        op, self.new.place = n.op, n.place
        made: Value | None = None
        if isinstance(op, o.Quantize):
            made = self.quantize(n)
        elif isinstance(op, o.Dequantize):
            made = self.dequantize(n)
        elif isinstance(op, o.Matmul):
            made = self.matmul(n)
        elif isinstance(op, o.Conv):
            made = self.conv(n)
        elif isinstance(op, o.MaxPool) and (x := self.activation(n.operands[0])) is not None and not x.bare:
            made = self.as_quantized(n, x, op(x.quantized))
        elif op.traits.view and len(n.values) == 1 and n.operands[0] in self.known:
            x = self.known[n.operands[0]]
            if x.one_scale and not x.bare:
                made = self.as_quantized(n, x, op(x.quantized))
        self.new.place = ""
        if made is not None:
            self.log.hit(op.name)
        return made

    # --- what values stand for ----------------------------------------------------------------------------------------
    def note(self, n: Node) -> None:
        """A copied node that is spelled-out dequantization."""
        found = of(n.value)
        if found is not None and found.quantized in self.env and not isinstance(found.quantized.op, o.Constant):
            self.known[n.value] = Quantized(self.env[found.quantized], found.scale, found.zero, found.axis, found.bare)

    def activation(self, v: Value) -> Quantized | None:
        found = self.known.get(v)
        return found if found is not None and found.one_scale else None

    def weights(self, v: Value) -> tuple[Array, Array, int | None] | None:
        """Symmetric constant quantized values i8, their scales and the axis of those."""
        axes: list[Any] = []
        base = v
        while isinstance(base.op, (o.Transpose, o.Reshape)):
            axes.append(base.op)
            base = base.node.operands[0]
        found = of(base)
        if found is None:
            return None
        quantized = constant(found.quantized)
        if quantized is None:
            return None
        values, axis = quantized, found.axis
        if values.dtype != np.int8 or found.zero.any():  # or they stay where the file has them
            zero = found.zero if axis is None else found.zero.reshape([-1 if i == axis else 1 for i in range(values.ndim)])
            wide = values.astype(np.int64) - zero
            if wide.size and not (-128 <= wide.min() and wide.max() <= 127):
                return None
            values = wide.astype(np.int8)
        for op in reversed(axes):
            if isinstance(op, o.Transpose):
                axis = None if axis is None else op.perm.index(axis)
            elif axis is not None:
                return None
            values = op.ref(values)
        return values, found.scale, axis

    def as_quantized(self, n: Node, x: Quantized, quantized: Value) -> Value:
        self.known[n.value] = Quantized(quantized, x.scale, x.zero)
        return self.real(quantized, float(x.scale), int(x.zero), n.types[0].dtype)

    def real(self, quantized: Value, scale: float, zero: int, dtype: DType) -> Value:
        """What quantized values stand for."""
        out = F.cast(quantized, f32)
        out = F.mul(F.sub(out, float(zero)) if zero else out, scale)
        return F.cast(out, dtype)

    # --- quantized values --------------------------------------------------------------------------------------------------------
    def quantize(self, n: Node) -> Value | None:
        op, (x, scale, zero) = n.op, n.operands
        assert isinstance(op, o.Quantize)
        s, z = constant(scale), constant(zero)
        if s is None or z is None or s.size != 1 or op.dtype not in (i8, u8) or not np.isfinite(s).all() or not s > 0:
            return None
        before = self.known.get(x)
        readers = self.users[n.value]
        alone = bool(readers) and n.value not in self.outputs and all(self.one_dequantize(u) for u in readers)
        dtype, shift = (u8, SHIFT) if op.dtype is i8 and alone else (op.dtype, 0)
        zero_point = int(z.reshape(())) + shift
        if before is not None and before.one_scale and before.quantized.dtype is dtype and int(before.zero) == zero_point \
                and np.float32(before.scale) == np.float32(s.reshape(())):
            return before.quantized
        return self.rounded(x, np.float32(s.reshape(())), zero_point, dtype)

    def rounded(self, x: Value, step: Any, zero: int, dtype: DType) -> Value:
        """Values of a value. What only picks or moves elements (and keeps their order) works on values, so that the rounding reaches the
        kernel that computes them."""
        moves = isinstance(x.op, (o.MaxPool, o.Concat, o.Reshape, o.Transpose)) and x not in self.known
        if moves and len(self.users[x]) == 1 and x not in self.outputs:
            return o.emit(x.op, *(self.rounded(v, step, zero, dtype) for v in x.node.operands))
        low, high = (0, 255) if dtype is u8 else (-128, 127)
        x = self.bare(x, (low - zero) * float(step), (high - zero) * float(step))
        y = F.apply("round", self.over(x, float(np.float32(1) / step)))
        return F.cast(F.add(y, float(zero)) if zero else y, dtype)

    def over(self, x: Value, factor: float) -> Value:
        """x times a number, which the scales of a product take where nobody else reads it."""
        made = self.env[x]
        if made not in self.parts or len(self.users[x]) != 1 or x in self.outputs:
            return F.mul(F.cast(made, f32), factor)
        acc, scale, offset, shape, name = self.parts[made]
        out = F.mul(acc, self.numbers(scale * factor, shape, f"{name}_scale"))
        return F.add(out, self.numbers(offset * factor, shape, f"{name}_offset")) if offset.any() else out

    def one_dequantize(self, u: Node) -> bool:
        return isinstance(u.op, o.Dequantize) and (z := constant(u.operands[2])) is not None and z.size == 1 \
            and (s := constant(u.operands[1])) is not None and s.size == 1

    def bare(self, x: Value, low: float, high: float) -> Value:
        """What stands before bounds that the quantized values' own range implies (but for half a step)."""
        slack = (high - low) / 512
        while len(self.users[x]) == 1 and x not in self.outputs and x not in self.known:
            if isinstance(x.op, o.Relu) and low >= -slack:
                x = x.node.operands[0]
                continue
            if isinstance(x.op, (o.Minimum, o.Maximum)):
                bounds = [(number_of(v), other) for v, other in (x.node.operands, x.node.operands[::-1]) if other.shape == x.shape]
                bound, other = next(((b, v) for b, v in bounds if b is not None), (None, x))
                if bound is not None and (bound >= high - slack if isinstance(x.op, o.Minimum) else bound <= low + slack):
                    x = other
                    continue
            return x
        return x

    def dequantize(self, n: Node) -> Value | None:
        found = of(n.value)
        if found is None or found.quantized not in self.env or isinstance(found.quantized.op, o.Constant):
            return None
        quantized = self.env[found.quantized]
        shift = SHIFT if quantized.dtype is not found.quantized.dtype else 0
        if not found.one_scale:
            return None
        return self.as_quantized(n, Quantized(quantized, found.scale, found.zero + shift), quantized)

    def bytes_of(self, x: Quantized) -> tuple[Value, int]:
        """Unsigned quantized values and their zero point."""
        if x.quantized.dtype is u8:
            return x.quantized, int(x.zero)
        if x.quantized not in self.unsigned:
            self.unsigned[x.quantized] = F.cast(F.add(F.cast(x.quantized, i32), SHIFT), u8)
        return self.unsigned[x.quantized], int(x.zero) + SHIFT

    # --- products -----------------------------------------------------------------------------------------------------
    def matmul(self, n: Node) -> Value | None:
        op: Any = n.op
        x, w = self.activation(n.operands[0]), self.weights(n.operands[1])
        if x is None or w is None or op.dtype is not None or w[0].ndim != 2:
            return None
        quantized, scale, axis = w
        rows = 0 if op.transpose_b else 1
        if axis not in (None, rows) or quantized.shape[1 - rows] > MOST or quantized.shape[1 - rows] == 0:
            return None
        lines = quantized if op.transpose_b else quantized.T
        left, zero = self.bytes_of(x)
        if op.transpose_a:
            left = F.transpose(left, (*range(len(left.shape) - 2), len(left.shape) - 1, len(left.shape) - 2))
        acc = o.Matmul(transpose_b=True, dtype=i32)(left, self.new.constant(lines, n.operands[1].node.name), name=n.name, place=n.place)
        return self.scaled(n, acc, lines, np.float64(x.scale) * scale * op.alpha, zero, len(acc.shape) - 1)

    def conv(self, n: Node) -> Value | None:
        op: Any = n.op
        x, w = self.activation(n.operands[0]), self.weights(n.operands[1])
        if x is None or w is None or op.transposed or any(p < 0 for pair in op.padding for p in pair):
            return None
        quantized, scale, axis = w
        depth = int(np.prod(quantized.shape[1:]))
        if axis not in (None, 0) or depth > MOST:
            return None
        left, zero = self.bytes_of(x)
        if not 0 <= zero <= 255:
            return None
        product = o.IntConv(stride=op.stride, padding=op.padding, dilation=op.dilation, groups=op.groups, border=zero)
        acc = product(left, self.new.constant(quantized, n.operands[1].node.name), name=n.name, place=n.place)
        return self.scaled(n, acc, quantized.reshape(len(quantized), -1), np.float64(x.scale) * scale, zero, 1)

    def scaled(self, n: Node, acc: Value, rows: Array, scale: Any, zero: int, axis: int) -> Value:
        """acc · scale - zero · scale · Σ w, with the biases behind it."""
        count, rank, dtype = len(rows), len(acc.shape), n.types[0].dtype
        factor = np.broadcast_to(scale, (count,))
        offset = -zero * factor * rows.sum(1, dtype=np.int64)
        last = n
        while dtype is f32 and (found := self.bias(last, axis, count)) is not None:
            last, more = found
            offset = offset + more
            self.done.add(last)
        shape = tuple(count if i == axis else 1 for i in range(axis, rank))
        real = F.cast(acc, f32)
        out = F.mul(real, self.numbers(factor, shape, f"{n.name}_scale"))
        if offset.any():
            out = F.add(out, self.numbers(offset, shape, f"{n.name}_offset"))
        if dtype is f32:
            self.parts[out] = (real, factor, offset, shape, n.name)
        out = F.cast(out, dtype)
        if last is not n:
            self.env[last.value] = out
        return out

    def numbers(self, x: Any, shape: tuple[int, ...], name: str) -> Value:
        if x.size and (x == x[0]).all():
            return self.new.constant(np.asarray(x[0], np.float32), name)
        return self.new.constant(x.astype(np.float32).reshape(shape), name)

    def bias(self, n: Node, axis: int, count: int) -> tuple[Node, Array] | None:
        """The addition of constants, one per result, that alone reads a product."""
        readers = self.users[n.value]
        if len(readers) != 1 or n.value in self.outputs or not isinstance(readers[0].op, o.Add) or readers[0] in self.done:
            return None
        add = readers[0]
        other = add.operands[1] if add.operands[0] is n.value else add.operands[0]
        array, rank = constant(other), len(n.types[0].shape)
        if array is None or add.types[0] != n.types[0] or not np.isfinite(array).all():
            return None
        shape = (1,) * (rank - array.ndim) + array.shape
        if any(d != 1 and i != axis for i, d in enumerate(shape)):
            return None
        return add, np.broadcast_to(array.reshape(-1).astype(np.float64), (count,))
