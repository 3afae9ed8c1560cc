"""The draw: a known generator, the right frequencies, and the kernel against the reference on many settings."""
from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.ops.index.sampling import uniform
from tilewright.runtime.session import Session


def sampler(vocab: int) -> Session:
    g = Graph("sample")
    logits, seen = g.input(TensorType(dt.f32, (vocab,)), "logits"), g.input(TensorType(dt.u8, (vocab,)), "seen")
    settings, numbers = g.input(TensorType(dt.f32, (4,)), "settings"), g.input(TensorType(dt.i64, (3,)), "numbers")
    g.outputs = [o.Sample()(logits, seen, settings, numbers)]
    return tw.compile(g)


def test_uniform_numbers_fill_the_unit_interval() -> None:
    """(Known answers of the generator: tests/ops/test_random.py.)"""
    drawn = [uniform(7, i) for i in range(4096)]
    assert 0 <= min(drawn) < 0.01 < 0.99 < max(drawn) < 1
    assert abs(np.mean(drawn) - 0.5) < 0.02


def test_the_kernel_is_the_reference() -> None:
    rng = np.random.default_rng(0)
    for vocab in (1, 7, 64, 65, 1000):
        session = sampler(vocab)
        for i in range(60):
            logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
            seen = (rng.random(vocab) < 0.2).astype(np.uint8)
            choices = ([0, 0.5, 1, 1.7], [1, 0.9, 0.5, 0], [0, 0.05, 0.5], [1, 1.3])
            settings = np.array([rng.choice(c) for c in choices], np.float32)
            numbers = np.array([rng.choice([0, 1, 5, 40, vocab]), rng.integers(-(1 << 62), 1 << 62), i], np.int64)
            assert int(session(logits, seen, settings, numbers)) == int(o.Sample().ref(logits, seen, settings, numbers))


def test_frequencies_are_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.07, 0.03], np.float32))
    session, seen = sampler(5), np.zeros(5, np.uint8)
    counts = np.zeros(5)
    n = 4000
    for i in range(n):
        counts[int(session(logits, seen, np.array([1, 1, 0, 1], np.float32), np.array([0, 11, i], np.int64)))] += 1
    expected = n * np.exp(logits)
    assert ((counts - expected) ** 2 / expected).sum() < 18.5  # chi-squared with 4 degrees of freedom: one run in a thousand


def test_equal_probabilities_stay_together() -> None:
    """Three tokens share the second place: top-2 keeps all of them."""
    logits, seen = np.array([3, 1, 1, 1, 0], np.float32), np.zeros(5, np.uint8)
    session = sampler(5)
    drawn = {int(session(logits, seen, np.array([2, 1, 0, 1], np.float32), np.array([2, 5, i], np.int64))) for i in range(300)}
    assert drawn == {0, 1, 2, 3}
