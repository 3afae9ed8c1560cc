"""Complex numbers: values against NumPy, gradients against PyTorch (same convention), arrays in and out, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.core.errors import ShapeError


def fresh(*shape: int, dtype: str = "c16") -> Any:
    rng = fresh_rng()
    return (rng.normal(size=shape) + 1j * rng.normal(size=shape)).astype(dtype)


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": torch.neg, "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "tanh": torch.tanh, "sinh": torch.sinh, "cosh": torch.cosh, "square": torch.square, "reciprocal": torch.reciprocal, "abs": torch.abs,
    "angle": torch.angle, "conj": torch.conj, "real": torch.real, "imag": torch.imag, "sigmoid": torch.sigmoid, "sign": torch.sgn,
    "abs_squared": lambda z: z.real**2 + z.imag**2, "prod": torch.prod, "sum": torch.sum, "mean": torch.mean,
    "view_as_real": torch.view_as_real, "rsqrt": torch.rsqrt, "cumsum": lambda z: torch.cumsum(z, 0),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow, "matmul": torch.matmul,
}


def size(y: Any) -> Any:
    """A real number that depends on all of a result."""
    return tw.sum(tw.real(y) * 2.0 + tw.imag(y) * 3.0)


def torch_size(y: Any) -> Any:
    return (y.real * 2.0 + y.imag * 3.0).sum() if y.is_complex() else (y * 2.0).sum()


@pytest.mark.parametrize("name", UNARY)
def test_functions_and_gradients(name: str) -> None:
    z, fn = fresh(3, 5), partial(tw.cumsum, axis=0) if name == "cumsum" else getattr(tw, name)
    t = torch.from_numpy(z.copy()).requires_grad_()
    want = UNARY[name](t)
    np.testing.assert_allclose(fn(z), want.detach().resolve_conj().numpy(), rtol=1e-10, atol=1e-12)
    torch_size(want).backward()
    assert t.grad is not None
    np.testing.assert_allclose(tw.grad(lambda x: size(fn(x)))(z), t.grad.resolve_conj().numpy(), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two(name: str) -> None:
    z, w, fn = fresh(4, 4), fresh(4, 4), getattr(tw, name)
    a, b = (torch.from_numpy(v.copy()).requires_grad_() for v in (z, w))
    want = BINARY[name](a, b)
    np.testing.assert_allclose(fn(z, w), want.detach().numpy(), rtol=1e-10, atol=1e-11)
    torch_size(want).backward()
    for got, t in zip(tw.grad(lambda x, y: size(fn(x, y)), argnums=(0, 1))(z, w), (a, b), strict=True):
        assert t.grad is not None
        np.testing.assert_allclose(got, t.grad.numpy(), rtol=1e-8, atol=1e-9)


def test_forward_mode_and_batches() -> None:
    z, dz = fresh(3, 4), fresh(3, 4)
    _, moved = tw.jvp(lambda x: tw.exp(x) * x, (z,), (dz,))
    np.testing.assert_allclose(moved, np.exp(z) * (z + 1) * dz, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(tw.vmap(lambda x: tw.sum(x * x))(z), (z * z).sum(1), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", ["c8", "c16"])
def test_arrays_go_in_and_come_out(dtype: str) -> None:
    z = fresh(5, 6, dtype=dtype)
    same = tw.jit(lambda x: x)(z)
    assert same.dtype == z.dtype and np.array_equal(same, z)
    np.testing.assert_array_equal(tw.jit(lambda x: x.T)(z), z.T)
    np.testing.assert_array_equal(tw.jit(lambda x: x[1:4, ::2])(z), z[1:4, ::2])
    np.testing.assert_array_equal(tw.jit(lambda x: tw.concat([x, x], 0))(z), np.concatenate([z, z]))
    np.testing.assert_allclose(tw.jit(lambda x: x * 2j + 1)(z), z * 2j + 1, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(tw.jit(lambda x: tw.equal(x, x + 1))(z), np.zeros(z.shape, bool))
    assert tw.jit(lambda x: tw.complex(x.real, x.imag))(z[:0]).shape == (0, 6)
    assert tw.jit(lambda x: x + 1j)(np.ones(3, "f4")).dtype == np.complex64
    assert tw.jit(lambda x: x + 1j)(np.ones(3, "f8")).dtype == np.complex128


PARTS = [0.0, -0.0, 1.0, -2.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("dtype", ["c8", "c16"])
@pytest.mark.parametrize("name", ["div", *(n for n in UNARY if n not in ("prod", "sum", "mean", "cumsum"))])
def test_zeros_infinities_and_nan(name: str, dtype: str) -> None:
    """As PyTorch has them. Sines and cosines of two infinite parts are not compared: PyTorch's have infinities of an unknown direction."""
    z = np.array([complex(a, b) for a in PARTS for b in PARTS], dtype)
    if name in ("sin", "cos", "sinh", "cosh"):
        z = z[np.isfinite(z.real) | np.isfinite(z.imag)]
    args = (np.repeat(z, len(z)), np.tile(z, len(z))) if name == "div" else (z,)
    want = (UNARY | BINARY)[name](*map(torch.from_numpy, args)).resolve_conj().numpy()
    got = np.asarray(getattr(tw, name)(*args))
    np.testing.assert_allclose(got.view(got.real.dtype), want.view(want.real.dtype), rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("y", [-1, 2, 0.5, -0.5, 0, 1j, -2j, 1 + 1j, -1 - 2j, complex(np.nan, 1)])
def test_powers_of_zero_and_infinity(y: complex) -> None:
    """As PyTorch has them, but for 0 ** 0, which is 1 as NumPy has it."""
    z = np.array([0, complex(-0.0, 0.0), np.inf, 2, -np.inf], "c16")
    got = np.asarray(tw.pow(z, np.full(5, y, "c16")))
    if y == 0:
        np.testing.assert_array_equal(got, np.ones(5))
        return
    want = torch.pow(torch.from_numpy(z), torch.full((5,), y, dtype=torch.complex128)).numpy()
    same = np.isnan(got) & np.isnan(want) | np.isinf(got.real) & np.isinf(want) | np.isclose(got, want)
    assert same.all(), (got, want)


class Rotation(torch.nn.Module):
    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(turn), turn)
        return torch.view_as_real(z).flatten(-2), z, z.abs(), torch.conj(z) @ z.mT


@pytest.mark.parametrize("power", [-1, -2, -3, -0.5, 0, 0.5, 2.0, 3])
def test_powers_of_zero_and_of_the_axes(power: float) -> None:
    class Power(torch.nn.Module):
        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return z**power

    z = torch.tensor([0, 1, -2, 3j, -1 - 2j, 0.5 + 1j], dtype=torch.complex128)
    got, want = tw.compile(Power(), (z,))(z), z**power
    torch.testing.assert_close(got, want, rtol=1e-14, atol=1e-15, equal_nan=True)


def test_a_torch_module() -> None:
    x, turn = torch.randn(3, 8), torch.randn(3, 4)
    want = Rotation()(x, turn)
    for got, w in zip(tw.compile(Rotation(), (x, turn))(x, turn), want, strict=True):
        np.testing.assert_allclose(got.numpy(), w.resolve_conj().numpy(), rtol=1e-5, atol=1e-5)
    z = torch.randn(4, dtype=torch.complex64).conj()
    np.testing.assert_allclose(tw.compile(lambda v: v * v, (z,))(z).numpy(), (z * z).resolve_conj().numpy(), rtol=1e-5)


@pytest.mark.parametrize("name", ["maximum", "floor", "softmax", "less"])
def test_what_complex_numbers_do_not_have(name: str) -> None:
    z = fresh(3)
    with pytest.raises(ShapeError, match=rf"{name}: needs .*operands; cast first, got dtype=c128"):
        getattr(tw, name)(*[z, z][: 2 if name in ("maximum", "less") else 1])
