"""tw.sample: the kept tokens and the draw against NumPy, frequencies, rows as they are alone, thread counts, and rows without a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.fresh import fresh_rng
from tilewright.ir.graph import Graph
from tilewright.ops.families import f32, i64, u8
from tilewright.ops.index.sampling import Sample, uniform


def chosen(x: Any, u: float, temperature: float, top_k: int, top_p: float, min_p: float) -> int:
    """One row in f64: the distribution after the filters, and where its running sum passes u."""
    p = np.exp((x - x.max()) / temperature)
    if 0 < top_k < len(p):
        p[p < np.sort(p)[-top_k]] = 0
    order = np.argsort(-p, kind="stable")
    if top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= top_p * p.sum()]] = 0
    p[p < min_p * p.max()] = 0
    return int(np.searchsorted(np.cumsum(p / p.sum()), u, side="right"))


@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.7}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.9, "min_p": 0.05},
                                      {"temperature": 0.4, "top_k": 3}])
def test_every_row_is_the_references(settings: dict[str, Any]) -> None:
    x = fresh_rng().normal(size=(300, 130)).astype(np.float32) * 2
    found = np.asarray(tw.sample(x, seed=5, **settings))
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **settings}
    want = [chosen(row.astype(np.float64), uniform(5, i), **full) for i, row in enumerate(x)]
    assert found.dtype == np.int64 and (found == want).mean() > 0.98  # f32 may move a draw at a boundary
    assert (np.asarray(tw.sample(x, seed=6, **settings)) != found).any()


def test_frequencies_are_the_filtered_probabilities() -> None:
    p = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    n = 6000
    drawn = np.bincount(tw.sample(np.broadcast_to(np.log(p).astype(np.float32), (n, 6)), top_p=0.85, seed=3), minlength=6)
    kept = np.where(np.arange(6) < 4, p, 0) / p[:4].sum()
    assert drawn[4:].sum() == 0
    assert ((drawn - n * kept)[:4] ** 2 / (n * kept[:4])).sum() < 16.3  # chi-squared with 3 degrees of freedom: one run in a thousand


def test_a_row_draws_as_it_does_alone_and_on_any_number_of_threads() -> None:
    x = fresh_rng().normal(size=(2, 7, 90)).astype(np.float32)
    temperature = np.linspace(0, 2, 14, dtype=np.float32).reshape(2, 7)
    whole = np.asarray(tw.sample(x, temperature=temperature, top_p=0.9, seed=11))
    flat = x.reshape(14, 90)
    assert whole.ravel().tolist() == [int(tw.sample(r, temperature=t, top_p=0.9, seed=11, counter=i))
                                      for i, (r, t) in enumerate(zip(flat, temperature.ravel(), strict=True))]
    per_row = tw.vmap(lambda r, t, c: tw.sample(r, temperature=t, top_p=0.9, seed=11, counter=c))
    assert np.array_equal(per_row(flat, temperature.ravel(), np.arange(14)), whole.ravel())
    alike = tw.vmap(lambda r: tw.sample(r, seed=11), in_axes=1)(flat.T)  # one counter: every row's draw uses the same random number
    assert np.array_equal(alike, tw.sample(flat, seed=11, counter=0))
    graph = Graph("sample")
    graph.outputs = [Sample()(*(graph.input(t) for t in (f32(14, 90), u8(14, 90), f32(14, 4), i64(14, 3))))]
    operands = (flat, np.zeros((14, 90), np.uint8), np.tile(np.float32([1, 1, 0, 1]), (14, 1)), np.tile([9, 2, 0], (14, 1)))  # type: ignore[arg-type]
    results = [np.asarray(tw.compile(graph, threads=n)(*operands)).tolist() for n in (1, 2, 3)]
    assert results[0] == results[1] == results[2] == np.asarray(tw.sample(flat, top_k=9, seed=2, counter=0)).tolist()


def test_other_dtypes_penalties_and_empty_batches() -> None:
    x = np.array([[2.0, 1.5, -1.0], [-3.0, -1.0, -2.0]], np.float16)
    seen = np.array([[1, 0, 0], [0, 1, 0]], np.uint8)
    assert np.asarray(tw.sample(x, temperature=0)).tolist() == [0, 1]
    assert np.asarray(tw.sample(x, temperature=0, seen=seen, penalty=3.0)).tolist() == [1, 2]
    assert np.asarray(tw.sample(np.zeros((0, 5), np.float32))).shape == (0,)
    masked = np.full((2, 4), -np.inf, np.float32)
    masked[:, 2] = 0
    assert np.asarray(tw.sample(masked, temperature=3.0)).tolist() == [2, 2]


def test_rows_without_a_choice_are_errors() -> None:
    x = np.zeros((3, 5), np.float32)
    for bad in (np.nan, np.inf):
        x[1, 2] = bad
        with pytest.raises(tw.ExecutionError, match="sample: the largest logit is NaN or infinite, in row 1"):
            np.asarray(tw.sample(x))
    x[1] = -np.inf
    with pytest.raises(tw.ExecutionError, match="in row 1"):
        np.asarray(tw.sample(x, temperature=0))
    with pytest.raises(tw.ShapeError, match=r"sample: needs logits\[..., vocabulary\]"):
        tw.sample(np.float32(1))
    with pytest.raises(tw.ShapeError, match="sample: temperature must be at least 0, got -1"):
        tw.sample(x, temperature=-1)
    with pytest.raises(tw.ShapeError, match="at least one logit"):
        tw.sample(np.zeros((2, 0), np.float32))
