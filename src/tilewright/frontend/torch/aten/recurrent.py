"""Recurrent cells (one step of an RNN, LSTM or GRU) for any batch: torch's own decompositions write into views, so they stand here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .... import ops as O
from ....ir.graph import Value
from .registry import Context, Handler, aten, rows


def _gates(c: Context, x: Value, weight: Value, bias: Value | None) -> Value:
    out = c.emit(O.Matmul(transpose_b=True), x, weight)
    return out if bias is None else c.emit(O.Add(), out, bias)


def _part(c: Context, gates: Value, k: int, count: int) -> Value:
    """The k-th of `count` gates, which lie side by side."""
    width = gates.shape[-1]
    assert isinstance(width, int)
    return c.slice(gates, len(gates.shape) - 1, k * (width // count), width // count)


def _plain_cell(op: Any) -> Handler:
    def handler(c: Context, x: Value, h: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None) -> Value:
        return c.emit(op(), c.emit(O.Add(), _gates(c, x, w_ih, b_ih), _gates(c, h, w_hh, b_hh)))

    return handler


aten("rnn_tanh_cell.default")(_plain_cell(O.Tanh))
aten("rnn_relu_cell.default")(_plain_cell(O.Relu))


@aten("lstm_cell.default")
def lstm_cell(c: Context, x: Value, state: Sequence[Value], w_ih: Value, w_hh: Value, b_ih: Value | None = None,
              b_hh: Value | None = None) -> tuple[Value, Value]:
    h, cell = state
    gates = c.emit(O.Add(), _gates(c, x, w_ih, b_ih), _gates(c, h, w_hh, b_hh))
    add, keep, show = (c.emit(O.Sigmoid(), _part(c, gates, k, 4)) for k in (0, 1, 3))
    new = c.emit(O.Tanh(), _part(c, gates, 2, 4))
    cell = c.emit(O.Add(), c.emit(O.Mul(), keep, cell), c.emit(O.Mul(), add, new))
    return c.emit(O.Mul(), show, c.emit(O.Tanh(), cell)), cell


@aten("gru_cell.default")
def gru_cell(c: Context, x: Value, h: Value, w_ih: Value, w_hh: Value, b_ih: Value | None = None, b_hh: Value | None = None) -> Value:
    mine, old = _gates(c, x, w_ih, b_ih), _gates(c, h, w_hh, b_hh)
    reset, keep = (c.emit(O.Sigmoid(), c.emit(O.Add(), _part(c, mine, k, 3), _part(c, old, k, 3))) for k in (0, 1))
    new = c.emit(O.Tanh(), c.emit(O.Add(), _part(c, mine, 2, 3), c.emit(O.Mul(), reset, _part(c, old, 2, 3))))
    return c.emit(O.Add(), c.emit(O.Mul(), c.emit(O.Sub(), h, new), keep), new)


@aten("tilewright.selective_scan.default")
def selective_scan(c: Context, x: Value, delta: Value, a: Value, b: Value, k: Value, skip: Value, z: Value | None,
                   state: Value) -> tuple[Value, ...]:
    """Mamba's recurrence, as `recurrences.py` calls it."""
    gate = [] if z is None else [z]
    return tuple(c.emit_all(O.SelectiveScan(gated=z is not None), x, delta, a, b, k, skip, *gate, state))


rows({
    "tilewright.gated_delta_rule.default": lambda c, q, k, v, g, beta, state, scale, delta:
        tuple(c.emit_all(O.GatedDeltaRule(scale=scale, delta=delta), q, k, v, g, beta, state)),
    "tilewright.causal_conv.default": lambda c, x, weight, bias, state: tuple(c.emit_all(O.CausalConv(), x, weight, bias, state)),
})
