"""What is one value to a compiler: -0.0 is not 0.0, NaN is itself, and numbers of different types differ, wherever values are compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright import ops as o
from tilewright.core.errors import InputError
from tilewright.core.exact import key_of, same
from tilewright.ir.graph import Graph, Value
from tilewright.ir.interp import run
from tilewright.ir.parse import parse
from tilewright.ir.text import to_text
from tilewright.ops.families import f32
from tilewright.passes.base import Log
from tilewright.passes.cse import Cse

NAN = float("nan")
ROW = np.array([1.0, -2.0], np.float32)
EQUAL = [(NAN, float("nan")), (-0.0, -0.0), (1, 1), ((0.0, NAN), (0.0, NAN)), (np.float32(NAN), np.float32(NAN)), ("a", "a"), (None, None)]
OTHER = [(0.0, -0.0), (0, 0.0), (1, True), (1.0, np.float64(1.0)), ((0.0,), (-0.0,)), (complex(0, 0.0), complex(0, -0.0)),
         (np.float32(0.0), np.float32(-0.0)), (NAN, -NAN), (np.float32(1), np.float64(1)), ("0", 0)]


def test_keys() -> None:
    for a, b in EQUAL:
        assert same(a, b), (a, b)
        assert len({key_of(a), key_of(b)}) == 1
    for a, b in OTHER:
        assert not same(a, b), (a, b)
        assert len({key_of(a), key_of(b)}) == 2


def test_numbers_of_functions_and_static_arguments() -> None:
    divide: Any = tw.jit(lambda x, c: x / c, static=1)
    for zero in (0.0, -0.0, 0.0, -0.0):
        with np.errstate(divide="ignore"):
            np.testing.assert_array_equal(tw.copysign(ROW, zero), np.copysign(ROW, zero))
            np.testing.assert_array_equal(tw.div(ROW, zero), ROW / np.float32(zero))
            np.testing.assert_array_equal(divide(ROW, zero), ROW / np.float32(zero))
            np.testing.assert_array_equal(divide(ROW, np.float32(zero)), ROW / np.float32(zero))
        assert math.copysign(1, tw.full((2,), zero)[0]) == math.copysign(1, zero)
        assert tw.atan2(np.zeros(1, np.float32), zero)[0] == np.float32(math.atan2(0.0, zero))
        assert math.copysign(1, tw.pad(ROW, ((0, 1),), value=zero)[2]) == math.copysign(1, zero)
    assert len(divide._programs.of(divide._number)) == 4  # Python's and NumPy's zeros of both signs


def test_nan_is_one_signature() -> None:
    times: Any = tw.jit(lambda x, c: x * c, static=1)
    for _ in range(5):
        assert np.isnan(times(ROW, float("nan"))).all()
        times(ROW, 0.0)
    assert len(times._programs.of(times._number)) == 2
    pair: Any = tw.jit(lambda x, c: x * c[0] + c[1], static=1)
    for _ in range(3):
        assert np.isnan(pair(ROW, (1.0, float("nan")))).all()
        np.testing.assert_array_equal(pair(ROW, (1.0, 2.0)), ROW + 2)
    assert len(pair._programs.of(pair._number)) == 2


class Signed(torch.nn.Module):
    def forward(self, x: torch.Tensor, c: float) -> torch.Tensor:
        return torch.copysign(x, torch.tensor(c))


def test_numbers_of_sessions() -> None:
    x = torch.ones(3)
    for zero in (0.0, -0.0):
        session = tw.compile(Signed(), (x, zero))
        for _ in range(2):
            assert torch.equal(session(x, zero), Signed()(x, zero))
            message = rf"argument leaf 1 \('c'\) was fixed to {zero} when the model was exported, got {-zero}; compile again"
            with pytest.raises(InputError, match=message):
                session(x, -zero)
    session = tw.compile(Signed(), (x, NAN))
    for _ in range(2):
        assert torch.equal(session(x, float("nan")).abs(), x)


def test_ops_are_compared_by_bits() -> None:
    def pad(value: float) -> o.Pad:
        return o.Pad(lo=(1,), hi=(0,), value=value)

    assert pad(0.0) != pad(-0.0)
    assert pad(NAN) == pad(float("nan"))
    assert len({pad(0.0), pad(-0.0), pad(NAN), pad(float("nan"))}) == 3
    assert str(pad(-0.0)) != str(pad(0.0))
    assert o.Pad(lo=(1,), hi=(0,)) == pad(0.0)


def test_common_subexpressions_and_text() -> None:
    def constant(g: Graph, v: float) -> Value:
        return g.constant(np.asarray(v, np.float32))

    g = Graph()
    x = g.input(f32(2), "x")
    zeros = [o.Pad(lo=(1,), hi=(0,), value=v)(x) for v in (0.0, -0.0, NAN, float("nan"))]
    g.outputs = [*zeros, *(o.Mul()(x, constant(g, v)) for v in (0.0, -0.0))]
    for graph in (Cse().run(g.clone()[0], Log()), parse(to_text(g), {})):
        got = run(graph, [ROW])
        for a, b in zip(got, run(g, [ROW]), strict=True):
            assert a.tobytes() == b.tobytes()
    merged = Cse().run(g.clone()[0], Log())
    assert [n.op.name for n in merged.nodes].count("pad") == 3  # NaN is one value
    assert "value=-0.0" in to_text(g)


def test_programs_keep_both_zeros() -> None:
    """Kernels of one structure are shared: not where a number differs in its sign."""
    made = tw.jit(lambda x: [tw.pad(x, ((1, 0),), value=v) for v in (0.0, -0.0)] + [tw.copysign(x, v) for v in (0.0, -0.0)])(ROW)
    assert [bool(np.signbit(a[0])) for a in made] == [False, True, False, True]
