"""Numerical stability as N. J. Higham's "Accuracy and Stability of Numerical Algorithms" (2nd edition) defines it: on matrices of his Test
Matrix Toolbox, the backward error bounds that the book proves for each algorithm, and its examples of cancellation and overflow.

gamma(k) = k u / (1 - k u). Residuals are taken in a wider type. The matrices are badly conditioned on purpose: a stable algorithm keeps its
bounds on them, others (Gram-Schmidt, elimination without pivots, one-pass variance) do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng

la = tw.linalg
N = 24
DTYPES = pytest.mark.parametrize("dtype", ["f4", "f8"])


def wide(x: Any) -> Any:
    return np.asarray(x).astype(np.longdouble)


def gamma(k: float, dtype: str) -> float:
    u = float(np.finfo(dtype).eps) / 2
    assert k * u < 0.1
    return k * u / (1 - k * u)


def gallery(dtype: str) -> dict[str, Any]:
    """Matrices of the toolbox, by the names they have there."""
    i, j = np.indices((N, N)) + 1.0
    kahan = np.diag(np.sin(1.2) ** np.arange(N)) @ (np.eye(N) - np.cos(1.2) * np.triu(np.ones((N, N)), 1))
    points = np.linspace(0, 1, N)
    q = np.linalg.qr(fresh_rng().standard_normal((2, N, N)))[0]
    found = {
        "hilb": 1 / (i + j - 1),
        "lotkin": np.where(i == 1, 1.0, 1 / (i + j - 1)),
        "lehmer": np.minimum(i, j) / np.maximum(i, j),
        "minij": np.minimum(i, j),
        "moler": np.where(i == j, i, np.minimum(i, j) - 2),
        "pei": np.ones((N, N)) + np.eye(N),
        "frank": np.where(j >= i - 1, N + 1 - np.maximum(i, j), 0.0),
        "parter": 1 / (i - j + 0.5),
        "dingdong": 0.5 / (N - i - j + 1.5),
        "fiedler": np.abs(i - j),
        "kahan": kahan,
        "triw": np.eye(N) - np.triu(np.ones((N, N)), 1),
        "grcar": np.select([j == i - 1, (j >= i) & (j <= i + 3)], [-1.0, 1.0], 0.0),
        "vand": np.vander(points, increasing=True),
        "prolate": np.where(i == j, 0.5, np.sin(np.pi * (i - j) / 2) / (np.pi * np.where(i == j, 1, i - j))),
        "gfpp": np.where(j == N, 1.0, np.where(i == j, 1.0, np.where(i > j, -1.0, 0.0))),  # pivots grow as 2^(n-1)
        "randsvd": (q[0] * np.logspace(0, -12, N)) @ q[1],
    }
    return {name: a.astype(dtype) for name, a in found.items()}


def every(dtype: str) -> tuple[list[str], Any]:
    found = gallery(dtype)
    return list(found), np.stack(list(found.values()))


def check_below(error: Any, bound: Any, names: list[str]) -> None:
    """Each matrix's errors are inside the bound (of its elements, or of its norm)."""
    tiny = np.finfo("f4").tiny  # what underflow may add
    for name, e, b in zip(names, np.abs(error), bound, strict=True):
        assert np.all(e <= b + tiny), f"{name}: {float(np.max(e / (b + tiny))):.3g} of the bound"


@DTYPES
def test_sums_and_products(dtype: str) -> None:
    """Sections 3.1, 3.5 and 4.2: of inner products, of matrices, of sums; signs alternate, so that sums cancel."""
    rng = fresh_rng()
    n = 1000
    x, y = (rng.standard_normal((3, n)) * 10.0 ** rng.uniform(-3, 3, (3, n))).astype(dtype), rng.standard_normal((3, n)).astype(dtype)
    x[0] = np.where(np.arange(n) % 2, -x[0, ::-1], x[0])
    check_below(wide(tw.jit(lambda a: tw.sum(a, axis=1))(x)) - wide(x).sum(1), gamma(n, dtype) * np.abs(wide(x)).sum(1), ["sum"] * 3)
    got = tw.jit(lambda a, b: tw.sum(a * b, axis=1))(x, y)
    check_below(wide(got) - (wide(x) * wide(y)).sum(1), gamma(n, dtype) * np.abs(wide(x) * wide(y)).sum(1), ["dot"] * 3)
    names, a = every(dtype)
    got = tw.jit(lambda v, w: v @ w)(a, a[::-1].copy())
    check_below(wide(got) - wide(a) @ wide(a[::-1]), gamma(N, dtype) * (np.abs(wide(a)) @ np.abs(wide(a[::-1]))), names)


@DTYPES
def test_elimination(dtype: str) -> None:
    """Theorems 9.3 and 9.4: |PA - LU| <= gamma(n) |L||U|, and |b - Ax| <= gamma(3n) P'|L||U||x|."""
    names, a = every(dtype)
    p, low, up = (wide(x) for x in la.lu(a))
    size = np.abs(low) @ np.abs(up)
    check_below(p.swapaxes(1, 2) @ wide(a) - low @ up, gamma(N, dtype) * size, names)
    assert np.max(np.abs(low)) <= 1  # the largest pivot was taken
    fit = [k for k, name in enumerate(names) if np.all(np.abs(np.diagonal(up[k])) > 0)]
    b = (a @ np.ones((N, 1))).astype(dtype)
    x = wide(la.solve(a[fit], b[fit]))
    check_below(wide(b[fit]) - wide(a[fit]) @ x, gamma(3 * N, dtype) * (p @ size)[fit] @ np.abs(x), [names[k] for k in fit])


@DTYPES
def test_triangular_systems(dtype: str) -> None:
    """Theorem 8.5: |Tx - b| <= gamma(n) |T||x|, whatever the condition of T."""
    names, a = every(dtype)
    t = np.tril(a) + 2 * np.eye(N, dtype=dtype) * (np.abs(np.tril(a).diagonal(0, 1, 2)) < 1e-3)[:, :, None]
    b = fresh_rng().standard_normal((len(names), N, 2)).astype(dtype)
    x = wide(la.solve_triangular(t, b, lower=True))
    check_below(wide(t) @ x - wide(b), gamma(N, dtype) * np.abs(wide(t)) @ np.abs(x), names)


@DTYPES
def test_cholesky(dtype: str) -> None:
    """Theorem 10.3: |A - LL'| <= gamma(n + 1) |L||L'|, on the definite ones."""
    found = gallery(dtype)
    names = ["lehmer", "minij", "pei"] + (["moler"] if dtype == "f8" else [])
    a = np.stack([found[n] for n in names])
    low = wide(la.cholesky(a))
    check_below(wide(a) - low @ low.swapaxes(1, 2), gamma(N + 1, dtype) * np.abs(low) @ np.abs(low.swapaxes(1, 2)), names)


@DTYPES
def test_orthogonal_factors(dtype: str) -> None:
    """Theorem 19.4, for singular values and eigenvalues alike: factors multiply to the matrix and are orthogonal to gamma(6 n^2) of its
    norm, columns that nearly depend on one another or not."""
    names, a = every(dtype)
    norms = np.linalg.norm(wide(a), axis=(1, 2))
    near = gamma(6 * N * N, dtype)

    def whole(product: Any, of: Any, *bases: Any) -> None:
        check_below(np.linalg.norm(product - wide(of), axis=(1, 2)), near * norms, names)
        for q in bases:
            check_below(np.linalg.norm(q.swapaxes(1, 2) @ q - np.eye(N), axis=(1, 2)), near * np.ones(len(names)), names)

    q, r = (wide(x) for x in la.qr(a))
    whole(q @ r, a, q)
    u, s, v = (wide(x) for x in la.svd(a, full_matrices=False))
    whole(u * s[:, None] @ v, a, u, v.swapaxes(1, 2))
    symmetric = ((a + a.swapaxes(1, 2)) / 2).astype(dtype)
    w, x = (wide(y) for y in la.eigh(symmetric))
    whole(x * w[:, None] @ x.swapaxes(1, 2), symmetric, x)


@DTYPES
def test_cancellation(dtype: str) -> None:
    """Sections 1.9 and 1.14.1, problem 1.5: a sample's variance, (exp(x) - 1) / x, and compound interest."""
    u = float(np.finfo(dtype).eps) / 2
    x = np.array([10000, 10001, 10002], dtype)
    assert tw.jit(lambda v: tw.var(v, correction=1))(x) == 1
    small = (10.0 ** fresh_rng().uniform(-15, 0, 1000)).astype(dtype)
    want = np.expm1(wide(small)) / wide(small)
    assert np.max(np.abs(wide(tw.jit(lambda v: tw.expm1(v) / v)(small)) / want - 1)) <= 6 * u  # 2 ulp, one rounding
    n = (10.0 ** fresh_rng().uniform(1, 8, 1000)).astype(dtype)
    want = np.exp(wide(n) * np.log1p(1 / wide(n)))
    assert np.max(np.abs(wide(tw.jit(lambda v: tw.exp(v * tw.log1p(1 / v)))(n)) / want - 1)) <= 12 * u  # 2 ulp each, two roundings


@DTYPES
def test_overflow_between(dtype: str) -> None:
    """Section 27.8 and Blanchard, Higham and Higham (2021): logsumexp-exp and softmax with a shift are right where exp alone overflows."""
    u = float(np.finfo(dtype).eps) / 2
    x = (fresh_rng().standard_normal((4, 200)) * 20 + np.array([[-5000], [0], [700], [3e4]])).astype(dtype)
    top = wide(x).max(1, keepdims=True)
    weights = np.exp(wide(x) - top)
    want = (top + np.log(weights.sum(1, keepdims=True)))[:, 0]
    got = wide(tw.jit(lambda v: tw.logsumexp(v, axis=1))(x))
    assert np.all(np.abs(got - want) <= 4 * u * np.abs(want) + gamma(200, dtype))
    got = wide(tw.jit(lambda v: tw.softmax(v, axis=1))(x))
    assert np.all(np.abs(got - weights / weights.sum(1, keepdims=True)) <= gamma(210 + 2 * 200, dtype) * got + np.finfo(dtype).tiny)
