"""The checks notice a broken op: each is given one that is wrong in exactly the property it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.fresh import fresh_rng
from tests.ops.checks import Case, check_decompose, check_error, check_infer, check_lower, check_views
from tests.ops.oracle import ORACLES
from tests.ops.test_reference import check_reference
from tilewright.core.dims import Shape
from tilewright.ir.graph import Value
from tilewright.ir.layout import Layout
from tilewright.ir.types import TensorType
from tilewright.ops import Exp, Op, Reshape, Silu, Softmax, Sum, Transpose
from tilewright.ops.base import E, S
from tilewright.ops.families import f32

RNG = fresh_rng()


@dataclass(frozen=True, repr=False)
class ForgetsKeepdims(Sum):
    def infer(self, x: TensorType) -> TensorType:
        return Sum(axes=self.axes).infer(x)


@dataclass(frozen=True, repr=False)
class WrongDtype(Exp):
    def ref(self, x: Any) -> Any:
        return np.exp(x.astype(np.float64))


@dataclass(frozen=True, repr=False)
class Unshifted(Softmax):
    """Right but for the sign of the exponent."""

    def ref(self, x: Any) -> Any:
        return super().ref(-x)


@dataclass(frozen=True, repr=False)
class WrongDecomposition(Silu):
    name = "wrong"

    def decompose(self, x: Value) -> Value:
        out: Value = Exp()(x)
        return out


@dataclass(frozen=True, repr=False)
class SwapsOperands(Silu):
    def lower(self, t: Any, x: Any) -> Any:
        return t.unary("sigmoid", x)


@dataclass(frozen=True, repr=False)
class WrongStrides(Transpose):
    def views(self, layout: Layout) -> tuple[Layout | None, ...]:
        shape: Shape = layout.permute(self.perm).shape
        return (Layout.contiguous(shape),)


def test_a_wrong_shape_rule_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_infer(Case(ForgetsKeepdims, S(f32(2, 3), axes=(1,), keepdims=True), {}), RNG)


def test_a_wrong_dtype_is_noticed() -> None:
    with pytest.raises(AssertionError, match="was inferred"):
        check_infer(Case(WrongDtype, S(f32(3)), {}), RNG)


def test_a_wrong_reference_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ORACLES, Unshifted.name, ORACLES["softmax"])
    with pytest.raises(AssertionError):
        check_reference(Case(Unshifted, S(f32(3, 5), axis=1), {}), RNG)


def test_a_wrong_decomposition_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_decompose(Case(WrongDecomposition, S(f32(7)), {}), RNG)


def test_a_wrong_lowering_is_noticed() -> None:
    x = RNG.uniform(1, 2, 7).astype(np.float32)
    with pytest.raises(AssertionError):
        check_lower(SwapsOperands(), [x], Silu().ref(x), "f32")


def test_a_wrong_layout_is_noticed() -> None:
    with pytest.raises(AssertionError):
        check_views(Case(WrongStrides, S(f32(2, 3), perm=(1, 0)), {}), RNG)


@pytest.mark.parametrize(("types", "match"), [((f32(2, 3),), "another message"), ((f32(4, 2),), "cannot change")])
def test_a_missing_or_other_error_is_noticed(types: tuple[TensorType, ...], match: str) -> None:
    op: type[Op] = Reshape
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check_error(op, E(*types, shape=(4, 2), match=match))
