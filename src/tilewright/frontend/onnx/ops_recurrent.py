"""RNN, GRU and LSTM: all steps' products with the inputs are one matrix product, the steps are a scan."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import ops as O
from ...core import dtypes as dt
from ...core.errors import ShapeError, UnsupportedError
from ...ir.graph import Graph, Value
from ...ops import formulas
from ...ops import functions as F
from .ops_cast import dynamic_quantize
from .registry import Context
from .tables import op

Activation = Callable[[Value], Value]


def activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    """An activation by its name; alpha and beta as the standard has them where they are not given."""
    def or_(x: float | None, default: float) -> float:
        return default if x is None else x

    match name.lower():
        case "relu":
            return F.relu
        case "tanh":
            return F.tanh
        case "sigmoid":
            return F.sigmoid
        case "softsign":
            return formulas.softsign
        case "softplus":
            return F.softplus
        case "affine":
            return lambda x: F.add(F.mul(x, or_(alpha, 1.0)), or_(beta, 0.0))
        case "leakyrelu":
            return lambda x: F.one("leaky_relu", x, slope=or_(alpha, 0.01))
        case "thresholdedrelu":
            return lambda x: F.where(F.greater(x, or_(alpha, 1.0)), x, 0.0)
        case "scaledtanh":
            return lambda x: F.mul(F.tanh(F.mul(x, or_(beta, 1.0))), or_(alpha, 1.0))
        case "hardsigmoid":
            return lambda x: F.minimum(F.maximum(F.add(F.mul(x, or_(alpha, 0.2)), or_(beta, 0.5)), 0.0), 1.0)
        case "elu":
            return lambda x: F.one("elu", x, alpha=or_(alpha, 1.0))
    raise UnsupportedError(f"the activation {name!r} of a recurrent op is not one of the standard's")


def activations(names: Any, alphas: Any, betas: Any, default: Sequence[str], directions: int) -> list[list[Activation]]:
    """One list of activations a direction."""
    every = list(names) if names else list(default) * directions
    takes_alpha = {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"}
    takes_beta = {"affine", "scaledtanh", "hardsigmoid"}
    left, right = list(alphas or ()), list(betas or ())
    made = []
    for n in every:
        a = left.pop(0) if left and n.lower() in takes_alpha else None
        b = right.pop(0) if right and n.lower() in takes_beta else None
        made.append(activation(n, a, b))
    each = len(default)
    return [made[k * each : (k + 1) * each] for k in range(directions)]


def pick(v: Value | None, k: int) -> Value | None:
    """What belongs to direction k: the first axis counts directions."""
    return None if v is None else F.reshape(F.slice_(v, 0, k, 1), v.shape[1:])


def reversed_(c: Context, x: Value, lengths: Value | None) -> Value:
    """x[T, B, …] from the last step to the first; rows with a length of their own within it."""
    if lengths is None:
        return F.flip(x, (0,))
    t = F.iota(c.graph, (x.shape[0], *(1,) * (len(x.shape) - 1)), 0, dt.i64)
    count = F.reshape(F.cast(lengths, dt.i64), (1, x.shape[1], *(1,) * (len(x.shape) - 2)))
    return F.emit(O.GatherAlongAxis(axis=0), x, F.expand(F.where(F.less(t, count), F.sub(F.sub(count, 1), t), t), x.shape))


class Step:
    """One direction: what is computed before the loop, and the loop's body."""

    def __init__(self, c: Context, x: Value, product: Callable[[Value], Value], hidden: Any, bias: Value | None, gates: int,
                 order: Callable[[Value], Value]) -> None:
        """`product` is that of the inputs of all steps with their weights, `order` puts its rows into the order of the steps."""
        self.c = c
        steps, batch, width = x.shape
        turned = isinstance(x.op, O.Transpose) and x.op.perm == (1, 0, 2)  # rows of [B, T] are one matrix, those of [T, B] are not
        made = product(F.reshape(x.node.operands[0] if turned else x, (steps * batch, width)))
        self.rb: Value | None = None
        if bias is not None:
            made = F.add(made, F.slice_(bias, 0, 0, gates * hidden))
            self.rb = F.slice_(bias, 0, gates * hidden, gates * hidden)
        made = F.reshape(made, (batch, steps, gates * hidden) if turned else (steps, batch, gates * hidden))
        self.xs = order(F.transpose(made, (1, 0, 2)) if turned else made)
        self.hidden, self.steps, self.batch = hidden, steps, batch

    def run(self, carries: Sequence[Value], captured: Sequence[Value], lengths: Value | None,
            body: Callable[[Graph, list[Value], Value, list[Value]], list[Value]]) -> tuple[list[Value], Value]:
        """`body(graph, carries, slice, captured)` gives the new carries; the last carries and all first carries, stacked."""
        g = Graph("step")
        n = len(carries)
        inner = [g.input(v.type, "carry") for v in carries]
        row = g.input(self.xs.type.with_shape(self.xs.shape[1:]), "x")
        outer: list[Value] = []
        slices = [self.xs]
        if lengths is not None:
            step = g.input(F.iota(self.c.graph, (self.steps,), 0, dt.i64).type.with_shape(()), "t")
            slices.append(F.iota(self.c.graph, (self.steps,), 0, dt.i64))
        extra = []
        for v in captured:
            weights = self.c.contents.weights(v)  # in the body, so that they are packed once
            if weights is None:
                outer.append(v)
            extra.append(g.input(v.type, "captured") if weights is None else g.constant(np.asarray(weights, order="C"), "weights"))
        new = body(g, inner, row, extra)
        shown = new[0]
        if lengths is not None:
            count = g.input(lengths.type, "lengths")
            outer.append(lengths)
            runs = F.reshape(F.less(step, F.cast(count, dt.i64)), (self.batch, 1))
            shown = F.where(runs, new[0], 0.0)
            new = [F.where(runs, a, b) for a, b in zip(new, inner, strict=True)]
        g.outputs = [*new, shown]
        made = O.Scan(body=g, carries=n, xs=len(slices), length=self.steps)(*carries, *slices, *outer)
        return list(made[:n]), made[n]


def _product(w: Value) -> Callable[[Value], Value]:
    return lambda rows: F.matmul(rows, w, transpose_b=True)


def _clipped(x: Value, clip: float | None) -> Value:
    return x if clip is None else F.minimum(F.maximum(x, -clip), clip)


def _part(gates: Value, k: int, hidden: Any) -> Value:
    return F.slice_(gates, len(gates.shape) - 1, k * hidden, hidden)


def _run(c: Context, x: Value, w: Value, lengths: Value | None, direction: str, layout: int, states: Sequence[Value | None],
         one: Callable[[Value, int, list[Value | None], Callable[[Value], Value]], tuple[list[Value], Value]]) -> tuple[Value, list[Value]]:
    """All directions: Y and the last states. `one(x, k, states, order)` runs direction k, whose steps are the rows of order(x)."""
    if len(x.shape) != 3:
        raise ShapeError(f"X must have three axes, got {x.type}")
    if layout:
        x = F.transpose(x, (1, 0, 2))
        states = [None if s is None else F.transpose(s, (1, 0, 2)) for s in states]
    count = {"forward": 1, "reverse": 1, "bidirectional": 2}[direction]
    rows, finals = [], []
    for k in range(count):
        back = direction == "reverse" or k == 1
        order: Callable[[Value], Value] = (lambda v: reversed_(c, v, lengths)) if back else (lambda v: v)
        last, ys = one(x, k, [pick(s, k) for s in states], order)
        ys = order(ys)
        rows.append(F.reshape(ys, (ys.shape[0], 1, *ys.shape[1:])))
        finals.append([F.reshape(v, (1, *v.shape)) for v in last])
    y = rows[0] if count == 1 else F.concat(rows, 1)
    ends = [v[0] if count == 1 else F.concat(list(v), 0) for v in zip(*finals, strict=True)]
    if layout:
        y = F.transpose(y, (2, 0, 1, 3))
        ends = [F.transpose(v, (1, 0, 2)) for v in ends]
    return y, ends


def _first(c: Context, s: Value | None, step: Step, x: Value) -> Value:
    return s if s is not None else c.full((step.batch, step.hidden), 0.0, x.dtype)


@op("RNN")
def rnn(c: Context, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None, h0: Value | None = None, *,
        hidden_size: int = 0, activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None,
        clip: float | None = None, direction: str = "forward", layout: int = 0, output_sequence: int = 0) -> Any:
    count = 2 if direction == "bidirectional" else 1
    acts = _activations(activations, activation_alpha, activation_beta, ("Tanh",), count)

    def one(xs: Value, k: int, states: list[Value | None], order: Callable[[Value], Value]) -> tuple[list[Value], Value]:
        wk, rk = pick(w, k), pick(r, k)
        assert wk is not None and rk is not None
        step = Step(c, xs, _product(wk), rk.shape[-1], pick(bias, k), 1, order)

        def body(g: Graph, carry: list[Value], row: Value, extra: list[Value]) -> list[Value]:
            total = F.add(row, F.matmul(carry[0], extra[0], transpose_b=True))
            total = F.add(total, extra[1]) if len(extra) > 1 else total
            return [acts[k][0](_clipped(total, clip))]

        return step.run([_first(c, states[0], step, x)], [rk] if step.rb is None else [rk, step.rb], lengths, body)

    y, (h,) = _run(c, x, w, lengths, direction, layout, [h0], one)
    return y, h


@op("GRU")
def gru(c: Context, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None, h0: Value | None = None, *,
        hidden_size: int = 0, activations: Any = None, activation_alpha: Any = None, activation_beta: Any = None,
        clip: float | None = None, direction: str = "forward", layout: int = 0, linear_before_reset: int = 0,
        output_sequence: int = 0) -> Any:
    count = 2 if direction == "bidirectional" else 1
    acts = _activations(activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh"), count)

    def one(xs: Value, k: int, states: list[Value | None], order: Callable[[Value], Value]) -> tuple[list[Value], Value]:
        wk, rk = pick(w, k), pick(r, k)
        assert wk is not None and rk is not None
        step = Step(c, xs, _product(wk), rk.shape[-1], pick(bias, k), 3, order)
        n = step.hidden
        f, g_ = acts[k]

        def body(g: Graph, carry: list[Value], row: Value, extra: list[Value]) -> list[Value]:
            h, rec = carry[0], extra[0]
            rb = extra[1] if len(extra) > 1 else None
            if linear_before_reset:
                old = F.matmul(h, rec, transpose_b=True)
                old = old if rb is None else F.add(old, rb)
                z = f(_clipped(F.add(_part(row, 0, n), _part(old, 0, n)), clip))
                reset = f(_clipped(F.add(_part(row, 1, n), _part(old, 1, n)), clip))
                new = g_(_clipped(F.add(_part(row, 2, n), F.mul(reset, _part(old, 2, n))), clip))
            else:
                both = F.matmul(h, F.slice_(rec, 0, 0, 2 * n), transpose_b=True)
                both = both if rb is None else F.add(both, F.slice_(rb, 0, 0, 2 * n))
                z = f(_clipped(F.add(_part(row, 0, n), _part(both, 0, n)), clip))
                reset = f(_clipped(F.add(_part(row, 1, n), _part(both, 1, n)), clip))
                inner = F.matmul(F.mul(reset, h), F.slice_(rec, 0, 2 * n, n), transpose_b=True)
                inner = inner if rb is None else F.add(inner, F.slice_(rb, 0, 2 * n, n))
                new = g_(_clipped(F.add(_part(row, 2, n), inner), clip))
            return [F.add(F.mul(F.sub(1.0, z), new), F.mul(z, h))]

        return step.run([_first(c, states[0], step, x)], [rk] if step.rb is None else [rk, step.rb], lengths, body)

    y, (h,) = _run(c, x, w, lengths, direction, layout, [h0], one)
    return y, h


@op("LSTM")
def lstm(c: Context, x: Value, w: Value, r: Value, bias: Value | None = None, lengths: Value | None = None, h0: Value | None = None,
         c0: Value | None = None, peepholes: Value | None = None, **attrs: Any) -> Any:
    def products(k: int) -> tuple[Any, list[Value], Any]:
        wk, rk = pick(w, k), pick(r, k)
        assert wk is not None and rk is not None
        return _product(wk), [rk], lambda h, extra: F.matmul(h, extra[0], transpose_b=True)

    return _lstm(c, x, r.shape[-1], products, bias, lengths, [h0, c0], peepholes, **attrs)


@op("DynamicQuantizeLSTM", domain="com.microsoft")
def dynamic_quantize_lstm(c: Context, x: Value, w: Value, r: Value, bias: Value | None, lengths: Value | None, h0: Value | None,
                          c0: Value | None, peepholes: Value | None, sw: Value, zw: Value, sr: Value, zr: Value, **attrs: Any) -> Any:
    """Weights are [directions, K, 4 * hidden] in 8 bits; inputs, and the state before each step, are quantized as they come."""
    def integers(weights: Value, scale: Value, zero: Value, k: int) -> list[Value]:
        """Weights, their sums by columns, scales and zero points of direction k."""
        found, zeros = (np.asarray(c.array(v, "a weight"))[k].astype(np.int32) for v in (weights, zero))
        moved = 128 if weights.dtype is dt.u8 else 0
        found, zeros = found - moved, zeros - moved
        return [c.constant(found.astype(np.int8), "weights"), c.constant(found.sum(0, dtype=np.int32), "columns"),
                c.constant(np.broadcast_to(c.array(scale, "a scale")[k], found.shape[1:]).astype(np.float32), "scales"),
                c.constant(np.broadcast_to(zeros, found.shape[1:]).astype(np.int32), "zeros")]

    def product(values: Value, w: Value, columns: Value, scales: Value, zeros: Value) -> Value:
        quantized, scale, zero = dynamic_quantize(c, values)
        total = F.sub(O.IntMatmul()(quantized, w), F.mul(F.cast(zero, dt.i32), columns))
        rows = F.sub(F.sum_(F.cast(quantized, dt.i32), (1,), keepdims=True), F.mul(F.cast(zero, dt.i32), int(w.shape[0])))
        return F.mul(F.cast(F.sub(total, F.mul(rows, zeros)), dt.f32), F.mul(scale, scales))

    def products(k: int) -> tuple[Any, list[Value], Any]:
        own, again = integers(w, sw, zw, k), integers(r, sr, zr, k)
        return lambda rows: product(rows, *own), again, lambda h, extra: product(h, *extra[:4])

    return _lstm(c, x, r.shape[1], products, bias, lengths, [h0, c0], peepholes, **attrs)


def _lstm(c: Context, x: Value, n: Any, products: Callable[[int], tuple[Any, list[Value], Any]], bias: Value | None, lengths: Value | None,
          first: list[Value | None], peepholes: Value | None, *, hidden_size: int = 0, activations: Any = None,
          activation_alpha: Any = None, activation_beta: Any = None, clip: float | None = None, direction: str = "forward",
          input_forget: int = 0, layout: int = 0, output_sequence: int = 0) -> Any:
    """`products(k)`: the product of the inputs in direction k, what that of the states captures, and it: a function of both."""
    count = 2 if direction == "bidirectional" else 1
    acts = _activations(activations, activation_alpha, activation_beta, ("Sigmoid", "Tanh", "Tanh"), count)

    def one(xs: Value, k: int, states: list[Value | None], order: Callable[[Value], Value]) -> tuple[list[Value], Value]:
        inward, captured, again = products(k)
        peep = pick(peepholes, k)
        step = Step(c, xs, inward, n, pick(bias, k), 4, order)
        f, g_, h_ = acts[k]
        if step.rb is not None:  # nothing stands between the two biases: they are one
            step.xs = F.add(step.xs, step.rb)

        def body(g: Graph, carry: list[Value], row: Value, extra: list[Value]) -> list[Value]:
            h, cell = carry
            gates = F.add(row, again(h, extra))

            def seen(gate: Value, at: int, of: Value) -> Value:
                gate = gate if peep is None else F.add(gate, F.mul(F.slice_(extra[-1], 0, at * n, n), of))
                return f(_clipped(gate, clip))

            add = seen(_part(gates, 0, n), 0, cell)
            keep = F.sub(1.0, add) if input_forget else seen(_part(gates, 2, n), 2, cell)
            new = g_(_clipped(_part(gates, 3, n), clip))
            cell = F.add(F.mul(keep, cell), F.mul(add, new))
            show = seen(_part(gates, 1, n), 1, cell)
            return [F.mul(show, h_(cell)), cell]

        return step.run([_first(c, s, step, x) for s in states], captured if peep is None else [*captured, peep], lengths, body)

    y, (h, cell) = _run(c, x, x, lengths, direction, layout, first, one)
    return y, h, cell


_activations = activations
