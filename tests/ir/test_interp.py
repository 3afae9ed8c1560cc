"""The interpreter: symbols from shapes, small floats, regions, and clear errors."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from tests.fresh import fresh_rng
from tests.ir.graphs import symbolic
from tilewright.core.dims import sym
from tilewright.core.dtypes import i64
from tilewright.core.errors import InputError, UnsupportedError, VerifyError
from tilewright.ir.graph import Graph
from tilewright.ir.interp import apply, bind_symbols, run
from tilewright.ops import Exp, Input, Iota, Reshape, Sum
from tilewright.ops import functions as F
from tilewright.ops.families import bf16, f32


@pytest.mark.parametrize(("s", "t"), [(1, 0), (3, 5), (64, 7)])
def test_symbols_are_read_off_the_shapes(s: int, t: int) -> None:
    rng = fresh_rng()
    x, y = rng.normal(size=(2, 2 * s + 1)).astype(np.float32), rng.normal(size=(t, 3)).astype(np.float32)
    assert bind_symbols(symbolic(), [x, y]) == {"S": s, "T": t}
    region, scaled, right, negated = run(symbolic(), [x, y])
    np.testing.assert_allclose(region, np.tanh(x[:, :s].astype(np.float64) + 0.1), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(scaled, (np.arange(s) + t // 2) * np.float32(s * t))
    np.testing.assert_array_equal(right, x[:, s:])
    np.testing.assert_array_equal(negated, -y)


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ([zeros(2, 7)], "graph 'symbolic' takes 2 inputs, got 1"),
        ([zeros(2, 8), zeros(5, 3)], r"input 'x' must be f32\[2,2\*S\+1\] with S=3, got float32\[2, 8\]"),
        ([zeros(3, 7), zeros(5, 3)], "input 'x' must be"),
        ([zeros(2, 7, 1), zeros(5, 3)], "input 'x' must be"),
        ([zeros(2, 7, dtype=np.float64), zeros(5, 3)], r"got float64\[2, 7\]"),
        ([zeros(2, 201), zeros(5, 3)], r"dim S must be in 1..64, got 100"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[Any], match: str) -> None:
    with pytest.raises(InputError, match=match):
        run(symbolic(), inputs)


def test_two_inputs_must_agree_on_a_symbol() -> None:
    n = sym("N", 1, 9)
    g = Graph()
    g.outputs = [F.add(g.input(f32(n), "a"), g.input(f32(n), "b"))]
    with pytest.raises(InputError, match=r"input 'b' must be f32\[N\] with N=3, got float32\[4\]"):
        run(g, [zeros(3), zeros(4)])


def test_env_gives_symbols_that_no_shape_shows() -> None:
    n = sym("N", 1, 9)
    g = Graph()
    g.outputs = [F.iota(g, (n,), 0, i64)]
    np.testing.assert_array_equal(run(g, [], {"N": 4})[0], np.arange(4))
    with pytest.raises(KeyError):
        run(g, [])
    with pytest.raises(UnsupportedError, match="iota: its value depends on N; bind the symbols first"):
        Iota(shape=(n,), axis=0, dtype=i64).ref()


def test_small_floats_round_after_every_op_as_pytorch_does() -> None:
    """exp(x) * x + x in bf16: rounding once at the end, or never, gives other bits."""
    x = fresh_rng().normal(size=500).astype(ml_dtypes.bfloat16)
    g = Graph()
    v = g.input(bf16(500))
    g.outputs = [F.add(F.mul(F.exp(v), v), v)]
    (got,) = run(g, [x])
    t = torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    np.testing.assert_array_equal(got.astype(np.float32), (torch.exp(t) * t + t).float().numpy())
    assert got.dtype == ml_dtypes.bfloat16


def test_apply_runs_one_op() -> None:
    (out,) = apply(Sum(axes=(0,)), [np.ones((3, 2), np.float32)])
    np.testing.assert_array_equal(out, [3, 3])


def test_attributes_are_bound() -> None:
    n = sym("N", 1, 9)
    op = Reshape(shape=(n, 2))
    assert op.bind({"N": 3}) == Reshape(shape=(3, 2))
    plain = Reshape(shape=(3, 2))
    assert plain.bind({"N": 3}) is plain


def test_a_reference_that_breaks_its_type_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exp, "ref", lambda self, x: np.exp(x)[..., :1])
    with pytest.raises(VerifyError, match=r"exp: the reference gave float32\[1\] where f32\[3\] was inferred"):
        apply(Exp(), [zeros(3)])


def test_an_input_op_outside_the_list_is_refused() -> None:
    g = Graph("g")
    g.outputs = [g.add(Input(type=f32(3))).value]
    with pytest.raises(VerifyError, match="not among the inputs"):
        run(g, [])
