"""Statistics of random numbers with bands that a right generator leaves less than once in 10⁹ runs."""

from __future__ import annotations

from collections.abc import Callable
from math import log, sqrt
from typing import Any

import numpy as np

RARE = 1e-9


def assert_distribution(drawn: Any, below: Callable[[Any], Any]) -> None:
    """Kolmogorov and Smirnov: the share of numbers up to x is below(x). Band: Dvoretzky, Kiefer and Wolfowitz's inequality."""
    x = np.sort(np.asarray(drawn, np.float64).reshape(-1))
    n, exact = x.size, np.asarray(below(x), np.float64)
    steps = np.arange(n + 1) / n
    distance = max(np.abs(steps[1:] - exact).max(), np.abs(steps[:-1] - exact).max())
    assert distance < sqrt(log(2 / RARE) / (2 * n)), f"the distribution is {distance:.2e} away from the right one"


def assert_frequencies(drawn: Any, odds: Any) -> None:
    """Pearson's chi-square of the numbers 0, 1, … with these probabilities. Band: Laurent and Massart's bound on its upper tail."""
    p = np.asarray(odds, np.float64)
    values = np.asarray(drawn).reshape(-1)
    assert values.min() >= 0 and values.max() < p.size
    counts, expected = np.bincount(values.astype(np.int64), minlength=p.size), values.size * p
    assert (counts[p == 0] == 0).all()
    used = p > 0
    assert expected[used].min() >= 10, "too few numbers for this test"
    statistic = ((counts[used] - expected[used]) ** 2 / expected[used]).sum()
    k, t = int(used.sum()) - 1, -log(RARE)
    assert statistic < k + 2 * sqrt(k * t) + 2 * t, f"chi-square {statistic:.1f} of {k} degrees of freedom"


def assert_uncorrelated(x: Any, y: Any) -> None:
    """The correlation of independent numbers is below 7 / sqrt(n)."""
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (x, y))
    assert abs(np.corrcoef(a, b)[0, 1]) < 7 / sqrt(a.size)
