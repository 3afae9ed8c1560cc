"""NumPy's functions of Arrays inside compiled functions, with their derivatives. The oracles are NumPy and PyTorch."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tilewright.array import composed, traced
from tilewright.core.errors import ArgumentError, ShapeError

X = np.array([[3.0, -1.5, 0.25, 7.0], [2.0, 5.5, -4.0, 1.0], [0.5, 9.0, -2.0, 6.0]], np.float32)
V = np.array([0.5, 1.0, 2.5, 3.0], np.float32)
N = np.array([1.0, np.nan, -2.0, np.inf, 0.0], np.float32)
I = np.array([[7, -3, 2], [5, 4, -9]])
CASES: dict[str, Callable[[Any, Any], Any]] = {  # functions of the module (tw or NumPy) and X
    "shape": lambda m, x: np.zeros(m.shape(x)) + m.ndim(x) * m.size(x),
    "copies": lambda m, x: m.copy(x) + m.ascontiguousarray(x) + m.positive(x) + x.copy(),
    "atleast": lambda m, x: m.atleast_3d(x) * m.atleast_2d(x[0])[..., None] + m.atleast_1d(x[0, 0]),
    "atleast_3d of vectors": lambda m, x: m.atleast_3d(x[0]),
    "flips": lambda m, x: m.fliplr(x) - m.flipud(x),
    "rot90": lambda m, x: m.rot90(x) + m.rot90(x, 3) + m.rot90(m.rot90(x, 2), -1),
    "rollaxis": lambda m, x: m.rollaxis(x[None], 2, 0),
    "array_split": lambda m, x: m.array_split(x, 3, axis=1)[1],
    "splits": lambda m, x: m.vsplit(x, 3)[1] + m.hsplit(x, [1, 3])[1][:, :1] + m.hsplit(x[0], 2)[1][0],
    "stacks": lambda m, x: m.vstack([x, x[0]]) + m.hstack([x[0], x[1, :0]]),
    "dstack": lambda m, x: m.dstack([x, x]) + m.column_stack([x[0], x[1]]).sum(),
    "concat": lambda m, x: m.concatenate([x, x[0][None]], axis=None),
    "append": lambda m, x: m.append(x, [[1.0, 2.0, 3.0, 4.0]], axis=0),
    "delete": lambda m, x: m.delete(x, [0, -1], axis=1),
    "insert": lambda m, x: m.insert(x, [1, 3], 9.0, axis=1) + m.insert(x, 0, x[:, 0], axis=1).sum(),
    "insert of all": lambda m, x: m.insert(x, 2, 9.0),
    "broadcast_arrays": lambda m, x: m.broadcast_arrays(x, x[0])[1],
    "meshgrid": lambda m, x: m.meshgrid(x[0], x[1])[0] * m.meshgrid(x[0], x[1], indexing="ij", sparse=True)[1],
    "expand_dims": lambda m, x: m.expand_dims(x, (0, 2)),
    "diagonals": lambda m, x: m.diagonal(x, 1) + x.diagonal(0)[:3] * m.trace(x),
    "diagonals below": lambda m, x: m.diagonal(x, -2),
    "diag": lambda m, x: m.diag(x[0], 1) + m.diag(x[0, :3], -2).sum() + m.diag(x)[0],
    "roll": lambda m, x: m.roll(x, 3) + m.roll(x, -1, axis=0) + m.roll(x, (1, 6), axis=(0, 1)),
    "tile": lambda m, x: m.tile(x, 2) + m.tile(x, (2, 1, 2)),
    "repeat": lambda m, x: m.repeat(x, 2, axis=1) + m.repeat(x, [1, 0, 2], axis=0)[:, :1] + x.repeat(2).sum(),
    "pads": lambda m, x: (
        m.pad(x, 2) + m.pad(x, ((2, 2), (2, 2)), mode="reflect") + m.pad(x, 2, mode="wrap") * m.pad(x, (2, 2), mode="edge")
    ),
    "pad with": lambda m, x: m.pad(x, (1, 2), constant_values=5.0),
    "take": lambda m, x: x.take(np.array([0, 5])) + m.compress(np.array([True, False, True]), x, axis=0)[0, :2],
    "isclose": lambda m, x: m.isclose(x, x + 1e-7) & m.isclose(N[0], N[0]) & ~m.isclose(x, x + 1),
    "allclose": lambda m, x: m.allclose(x, x + 1e-7) & m.array_equal(x, x),
    "divmod": lambda m, x: m.divmod(x, 2.0)[0] - m.divmod(x, 2.0)[1],
    "remainders": lambda m, x: m.fmod(x, 2.0) + m.fmax(x, 1.0) - m.fmin(x, -1.0),
    "roots": lambda m, x: m.cbrt(x) + m.deg2rad(x) + m.rad2deg(x) + m.degrees(x) + m.radians(x) + m.rint(x) + m.fabs(x),
    "diff": lambda m, x: m.diff(x) + m.diff(x, 2, axis=0)[:, :3],
    "gradient": lambda m, x: m.gradient(x, axis=1) + m.gradient(x, V, axis=1) + m.gradient(x)[0],
    "trapezoid": lambda m, x: m.trapezoid(x, V, axis=1) + m.trapezoid(x, dx=0.5, axis=1),
    "searchsorted": lambda m, x: m.searchsorted(V, x) + m.searchsorted(V, x, side="right") + m.digitize(x, V),
    "isin": lambda m, x: m.isin(x, [7.0, 0.5]),
    "interp": lambda m, x: m.interp(x, V, V * V) + m.interp(x, V, V * V, left=-1.0, right=9.0) + m.interp(x, V[::-1], V, period=2.75),
    "select": lambda m, x: m.select([x > 3, x > 1], [x, -x], 0.5),
    "products": lambda m, x: m.tensordot(x, x, axes=((1,), (1,))) + m.inner(x, x) + m.vdot(x, x) + m.vecdot(x, x)[:, None],
    "kron": lambda m, x: m.kron(x[:2], x),
    "outer": lambda m, x: m.outer(x, x[0]),
    "convolve": lambda m, x: m.convolve(x[0], V, "same") + m.convolve(x[0], V)[:4] + m.correlate(x[0], V),
    "polyval": lambda m, x: m.polyval(V, x),
    "extremes": lambda m, x: m.amax(x, axis=1) - m.amin(x, axis=1) + m.ptp(x, axis=1),
    "count_nonzero": lambda m, x: m.count_nonzero(x > 1, axis=1),
    "quantiles": lambda m, x: m.quantile(x, [0.2, 0.7], axis=1) + m.percentile(x, 30, axis=1) + m.median(x, axis=1),
    "methods of quantiles": lambda m, x: m.quantile(x, 0.4, axis=1, method="lower") + m.quantile(x, 0.4, method="midpoint"),
    "without NaN": lambda m, x: m.nansum(N[:3] * x[:, :3], axis=1) + m.nanmean(N[:3] * x[:, :3]) + m.nanprod(N[:3] * x[0, :3]),
    "extremes without NaN": lambda m, x: m.nanmax(N * x[0, 0]) + m.nanmin(N[:3] * x[0, 0]) + m.nanmedian(N[:3] * x[0, 0]),
    "spread without NaN": lambda m, x: m.nanstd(N[:3] * x[:, :3], axis=1) + m.nanvar(N[:3] * x[:, :3], axis=1),
    "average": lambda m, x: m.average(x, axis=1, weights=V, keepdims=True) + m.average(x),
    "cov": lambda m, x: m.cov(x) + m.corrcoef(x),
    "running": lambda m, x: m.cumulative_sum(x, axis=1, include_initial=True)[:, :4] + m.cumsum(x, axis=1) + m.cumsum(x)[-1],
    "dtypes": lambda m, x: m.sum(x, dtype=np.float64) + m.prod(x, axis=1, dtype=np.float64) + m.cumsum(x, dtype=np.float64)[0],
    "spread": lambda m, x: m.var(x, axis=1, ddof=1) + x.std(ddof=1),
    "arange": lambda m, x: x * m.arange(0, 1, 0.25, dtype=np.float32) + m.arange(4),
    "where of reductions": lambda m, x: (
        m.sum(x, axis=1, where=x > 1, initial=2.0) + m.max(x, initial=-1.0, where=x < 0) + m.mean(x, axis=1, where=x > 0)
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_functions_inside_jit_are_numpys(case: str) -> None:
    wanted = CASES[case](np, X)
    for made in (tw.jit(lambda x: CASES[case](tw, x))(X), CASES[case](tw, tw.asarray(X))):
        assert np.shape(made) == np.shape(wanted)
        np.testing.assert_allclose(np.asarray(made, np.float64), np.asarray(wanted, np.float64), rtol=2e-5, atol=1e-5)


def test_every_function_that_is_made_of_others_is_in_this_file() -> None:
    text = "".join(Path(__file__).with_name(f"test_{name}.py").read_text() for name in ("traced", "anywhere", "arguments"))
    said = set(re.findall(r"(?:\.|\"|\b)(\w+)(?:\(|\")", text)) | set(re.findall(r"\.(\w+)", text))
    assert [n for n in (*composed.FUNCTIONS, *traced.FUNCTIONS) if n not in said] == []


def test_more_functions_inside_jit() -> None:
    made = tw.jit(
        lambda x: (tw.unfold(x, 1, 3), x.unfold(1, 2, 2), tw.unstack(x)[2], tw.matrix_transpose(x), tw.dsplit(x[:, :, None], 1)[0])
    )(X)
    windows = np.lib.stride_tricks.sliding_window_view
    for ours, theirs in zip(made, (windows(X, 3, 1), windows(X, 2, 1)[:, ::2], X[2], X.T, X[:, :, None]), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    cross = tw.jit(lambda x: tw.cross(x[:, :3], x[:, 1:]))(X)
    np.testing.assert_allclose(cross, np.cross(X[:, :3], X[:, 1:]), rtol=1e-5)
    np.testing.assert_allclose(tw.jit(lambda x: tw.vander(x[0], 3))(X), np.vander(X[0], 3), rtol=1e-5)
    np.testing.assert_allclose(tw.jit(lambda x: tw.cumulative_prod(x, axis=0))(X), np.cumprod(X, 0), rtol=1e-5)
    assert tw.jit(tw.empty_like)(X).shape == X.shape
    assert tw.jit(lambda x: (tw.nanmax(x), tw.nansum(x), tw.ptp(x)))(I) == (7, 6, 16)
    with pytest.raises(ArgumentError, match="max: a mask needs `initial`"):
        tw.jit(lambda x: tw.max(x, where=x > 0))(X)


UPDATES: dict[str, tuple[Any, str, Any]] = {
    "row": (1, "set", 5.0), "column": ((slice(None), 2), "add", V[:3]), "steps": ((slice(None, None, 2), slice(1, None)), "multiply", 3.0),
    "twice": (np.array([0, 0, 2]), "add", 1.0), "pairs": ((np.array([0, 2]), np.array([1, 1])), "subtract", V[:2]),
    "backwards": (np.array([-1]), "max", 2.0), "divided": (0, "divide", 4.0), "least": ((Ellipsis, 0), "min", 1.0),
}  # fmt: skip


@pytest.mark.parametrize("case", UPDATES)
def test_updates_inside_jit_are_those_of_arrays(case: str) -> None:
    key, name, value = UPDATES[case]
    wanted = getattr(tw.asarray(X).at[key], name)(value)
    made = tw.jit(lambda x: getattr(x.at[key], name)(value))(X)
    np.testing.assert_allclose(made, np.asarray(wanted), rtol=1e-6)


def test_updates_by_masks_and_traced_indices() -> None:
    np.testing.assert_array_equal(tw.jit(lambda x: x.at[x > 1].set(0.0))(X), np.where(X > 1, 0, X))
    np.testing.assert_array_equal(tw.jit(lambda x: x.at[x > 1].add(x))(X), np.where(X > 1, 2 * X, X))
    made = tw.jit(lambda x: x.at[tw.arange(3), tw.argmax(x, axis=1)].set(0.0))(X)
    assert (np.asarray(made) == np.where(X == X.max(1, keepdims=True), 0, X)).all()
    leaf = torch.tensor(X, requires_grad=True)
    changed = leaf.clone()
    changed[0] = leaf[1] * 2
    (wanted,) = torch.autograd.grad((changed**2).sum(), leaf)
    np.testing.assert_allclose(tw.grad(lambda x: (x.at[0].set(x[1] * 2) ** 2).sum())(X), wanted.numpy(), rtol=1e-6)
    with pytest.raises(ShapeError, match=r"at: cannot put f32 into i64\[2,3\]"):
        tw.jit(lambda x: x.at[0].set(1.5))(I)


def test_gradients_of_functions_that_are_made_of_others() -> None:
    pairs: list[tuple[Callable[[Any], Any], Callable[[Any], Any]]] = [
        (lambda x: (tw.roll(x, 1, axis=1) * x).sum(), lambda x: (torch.roll(x, 1, 1) * x).sum()),
        (lambda x: (tw.diff(x, axis=1) ** 2).sum(), lambda x: (torch.diff(x, dim=1) ** 2).sum()),
        (lambda x: tw.quantile(x, 0.4, axis=1).sum(), lambda x: torch.quantile(x, 0.4, dim=1).sum()),
        (lambda x: (tw.cov(x) ** 2).sum(), lambda x: (torch.cov(x) ** 2).sum()),
        (
            lambda x: (tw.pad(x, 2, mode="reflect") ** 2).sum(),
            lambda x: (torch.nn.functional.pad(x[None], (2, 2, 2, 2), "reflect") ** 2).sum(),
        ),
    ]
    for ours, theirs in pairs:
        leaf = torch.tensor(X, requires_grad=True)
        (wanted,) = torch.autograd.grad(theirs(leaf), leaf)
        np.testing.assert_allclose(tw.grad(ours)(X), wanted.numpy(), rtol=1e-4, atol=1e-4)


def test_functions_of_sizes_that_vary() -> None:
    functions: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "roll": (lambda x: tw.roll(x, 1, axis=0), lambda a: np.roll(a, 1, axis=0)),
        "roll back": (lambda x: tw.roll(x, -1, axis=0), lambda a: np.roll(a, -1, axis=0)),
        "diff": (lambda x: tw.diff(x, axis=0), lambda a: np.diff(a, axis=0)),
        "tile": (lambda x: tw.tile(x, 2), lambda a: np.tile(a, 2)),
        "vstack": (lambda x: tw.vstack([x, x]), lambda a: np.vstack([a, a])),
        "median": (lambda x: tw.median(x, axis=1), lambda a: np.median(a, axis=1)),
        "at": (lambda x: x.at[0].set(1.0), lambda a: np.concatenate([np.ones_like(a[:1]), a[1:]])),
        "where": (lambda x: tw.sum(x, where=x > 0), lambda a: np.sum(a, where=a > 0)),
    }
    for ours, theirs in functions.values():
        compiled = tw.jit(ours, dynamic={0: {0: "N"}})
        for a in (X, X[:1], np.tile(X, (4, 1))):
            np.testing.assert_allclose(compiled(a), theirs(a), rtol=1e-5)
    with pytest.raises(tw.TilewrightError, match="N >= 2 depends on a size"):
        tw.jit(lambda x: tw.roll(x, 2, axis=0), dynamic={0: {0: "N"}})(X)
    with pytest.raises(tw.TilewrightError, match="quantile: where quantiles lie depends on the size"):
        tw.jit(lambda x: tw.median(x, axis=0), dynamic={0: {0: "N"}})(X)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", [tw.float16, tw.bfloat16, tw.float8_e4m3fn, tw.float8_e5m2], ids=lambda d: d.name)
def test_neighbours_of_small_floats(dtype: Any) -> None:
    x = np.arange(1 << 8 * dtype.itemsize).astype(f"u{dtype.itemsize}").view(dtype)
    for y in (np.roll(x, 1), np.flip(x), np.full_like(x, np.inf)):
        wanted, made = np.nextafter(x, y), tw.jit(tw.nextafter)(x, y)
        assert made.dtype == dtype
        np.testing.assert_array_equal(made.astype(np.float32), wanted.astype(np.float32))
        moved = ~np.isnan(wanted.astype(np.float32)) & (x != y)
        assert np.array_equal(made.view(np.uint8).reshape(len(x), -1)[moved], wanted.view(np.uint8).reshape(len(x), -1)[moved])


def test_complex_numbers_bools_and_small_floats() -> None:
    z, b = np.array([1 + 2j, 3 - 1j, np.nan], np.complex64), X > 1
    spreads = ("nanvar", "nanmean", "nanstd", "var", "std")
    for fn in (lambda m, v: m.float_power(v, 2), *(lambda m, v, name=name: getattr(m, name)(v) for name in spreads)):
        np.testing.assert_allclose(tw.jit(lambda v, fn=fn: fn(tw, v))(z), fn(np, z), rtol=1e-5)
    for name, options in (("max", {"axis": 1}), ("min", {"keepdims": True}), ("argmin", {"axis": 0})):
        made = tw.jit(lambda v, name=name, options=options: getattr(tw, name)(v, **options))(b)
        np.testing.assert_array_equal(made, getattr(np, name)(b, **options))
    small = X.astype(tw.bfloat16)
    np.testing.assert_allclose(np.asarray(tw.jit(tw.median)(small), np.float32), np.median(X), rtol=1e-2)


def test_constants_are_indexed_by_traced_numbers() -> None:
    x, i = tw.asarray([10.0, 20.0, 30.0, 40.0]), np.array([-1, 0, -4])
    assert np.asarray(tw.vmap(lambda k: x[k])(i)).tolist() == [40, 10, 10]
    assert np.asarray(tw.jit(lambda k: x[:, None][k, 0])(i)).tolist() == [40, 10, 10]
    assert np.asarray(tw.jit(lambda k, v: x.at[k].add(v))(i, np.float32(1.0))).tolist() == [12, 20, 30, 41]
    assert np.asarray(tw.grad(lambda v: (x.at[1].set(v) ** 2).sum())(np.float32(3.0))) == 6
