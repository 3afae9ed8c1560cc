"""Choosing a token on a GPU, in the emulator: against a reference in float64 that allows what rounding may do to a draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.cuda.launching import Emulated
from tilewright import ops as o
from tilewright.core import dtypes as dt
from tilewright.ir.graph import Graph
from tilewright.ir.types import TensorType
from tilewright.kernels.sort.cuda.sampling import LISTED, SampleKernel
from tilewright.kernels.sort.sampling import BAD_LOGITS
from tilewright.ops.index.sampling import uniform
from tilewright.target.cuda.code import emit_cuda
from tilewright.target.cuda.device import cuda_target
from tilewright.target.cuda.ptx.ptxas import assemble, find_ptxas
from tilewright.target.cuda.safety.barrier_safety import check

Array = Any
NEAR = 1e-4  # how near masses must be: a few units of the last place for each of thousands of probabilities
EDGE = 1e-5  # probabilities, tens of such units: that two tokens at a threshold are so close and a draw falls between is one in 10^5


def sampler(vocab: int, arch: str = "sm_90a", rows: tuple[int, ...] = ()) -> Emulated:
    g = Graph("sample")
    logits, seen = g.input(TensorType(dt.f32, (*rows, vocab)), "logits"), g.input(TensorType(dt.u8, (*rows, vocab)), "seen")
    settings, numbers = g.input(TensorType(dt.f32, (*rows, 4)), "settings"), g.input(TensorType(dt.i64, (*rows, 3)), "numbers")
    g.outputs = [o.Sample()(logits, seen, settings, numbers)]
    made = Emulated(g, arch)
    (launch,) = made.program.launches
    assert isinstance(launch.kernel, SampleKernel)
    return made


def may_be(token: int, logits: Array, seen: Array, settings: Array, numbers: Array) -> bool:
    """Whether the token is what the settings ask for, up to `NEAR` in every threshold and sum."""
    temperature, top_p, min_p, _ = (float(x) for x in settings)
    x = np.where(seen != 0, np.where(logits > 0, logits / settings[3], logits * settings[3]), logits).astype(np.float64)
    if temperature == 0:
        return token == int(np.argmax(x.astype(np.float32)))
    p = np.exp((x - x.max()) / temperature)
    order = np.sort(p)[::-1]
    top_k = int(numbers[0])
    limits = [order[min(top_k, len(p)) - 1]] if top_k > 0 else [0.0]
    from_k = p[p >= limits[0] * (1 - EDGE)]
    if top_p < 1:
        sums = np.cumsum(np.sort(from_k)[::-1])
        last = int(np.searchsorted(sums, max(top_p, 1e-30) * sums[-1]))
        near = int(np.searchsorted(sums, (max(top_p, 1e-30) + NEAR) * sums[-1]))
        limits.append(np.sort(from_k)[::-1][min(max(last, near), len(sums) - 1)])
    limits.append(min_p)
    kept = np.where(p >= max(limits) * (1 - EDGE), p, 0)
    running, u = np.cumsum(kept), uniform(int(numbers[1]), int(numbers[2]))
    slack = 3 * NEAR * running[-1] + (2 * kept[kept > 0].min() if top_p < 1 else 0)  # a token at the edge of top-p may go either way
    return bool(kept[token] > 0 and running[token] - kept[token] <= u * running[-1] + slack and running[token] >= u * running[-1] - slack)


@pytest.mark.parametrize("vocab", [1, 65, 1500])
def test_against_the_reference(vocab: int, rng: np.random.Generator) -> None:
    kernel = sampler(vocab)
    seeds = rng.integers(-(1 << 62), 1 << 62, 5)
    for i, (temperature, top_k, top_p, min_p, penalty) in enumerate(
        [(0, 5, 0.5, 0, 1.3), (0.5, 0, 1, 0, 1), (1, 40, 1, 0.05, 1), (1.7, 0, 0.9, 0, 1.3), (1, 5, 0.5, 0.01, 1)]
    ):
        logits = (rng.standard_normal(vocab) * 3).astype(np.float32)
        seen = (rng.random(vocab) < 0.2).astype(np.uint8)
        settings = np.array([temperature, top_p, min_p, penalty], np.float32)
        numbers = np.array([top_k, seeds[i], i], np.int64)
        (token,) = kernel(logits, seen, settings, numbers)
        assert may_be(int(token), logits, seen, settings, numbers), (settings, numbers)
        assert not kernel.errors.any()


def test_every_row_is_a_block(rng: np.random.Generator) -> None:
    logits, seen = (rng.standard_normal((2, 2, 90)) * 3).astype(np.float32), np.zeros((2, 2, 90), np.uint8)
    settings = np.broadcast_to(np.array([1, 0.9, 0, 1], np.float32), (2, 2, 4)).copy()
    numbers = np.broadcast_to(np.array([9, 5, 1], np.int64), (2, 2, 3)) + np.arange(4).reshape(2, 2, 1)
    kernel = sampler(90, rows=(2, 2))
    (tokens,) = kernel(logits, seen, settings, numbers)
    assert all(may_be(int(tokens[i]), logits[i], seen[i], settings[i], numbers[i]) for i in np.ndindex(2, 2))
    logits[1, 0] = np.nan
    kernel(logits, seen, settings, numbers)
    assert kernel.errors[:4].tolist() == [BAD_LOGITS, 0, 2, -1]


@pytest.mark.parametrize("top_k, top_p, flat", [(3, 1.0, False), (0, 0.95, False), (9000, 1.0, False), (50, 0.9, True)])
def test_long_rows_go_on_as_a_list_or_as_they_are(top_k: int, top_p: float, flat: bool, rng: np.random.Generator) -> None:
    """Beyond the list's room, top-p leaves 9,000 of 10,000 tokens, too many for a list; top-k of 3 leaves a list of few. Where all tokens
    are nearly as likely, top-k finds too many in its range for a list, and top-p then lists no more than top-k has left."""
    vocab = 10_000
    assert LISTED < 9000
    order = rng.permutation(vocab)
    logits = (np.maximum(-5e-4 * order, -0.06) if flat else order / vocab).astype(np.float32)  # no two at a threshold are close
    settings, numbers = np.array([1, top_p, 0, 1], np.float32), np.array([top_k, 77, 12], np.int64)
    (token,) = sampler(vocab)(logits, np.zeros(vocab, np.uint8), settings, numbers)
    assert may_be(int(token), logits, np.zeros(vocab, np.uint8), settings, numbers)


def test_every_token_of_a_tie_stays_and_the_first_wins_without_a_draw() -> None:
    """Three tokens share the second place: top-2 keeps all of them. Without a temperature the first of the largest wins."""
    logits, seen = np.array([1, 3, 1, 0, 1, 3], np.float32), np.zeros(6, np.uint8)
    kernel = sampler(6)
    every = {int(5 * uniform(5, i)): i for i in range(24)}  # a counter for every fifth of the mass: five tokens are about equally likely
    drawn = {int(kernel(logits, seen, np.array([99, 1, 0, 1], np.float32), np.array([3, 5, i], np.int64))[0]) for i in every.values()}
    assert drawn == {0, 1, 2, 4, 5}
    assert int(kernel(logits, seen, np.zeros(4, np.float32), np.zeros(3, np.int64))[0]) == 1


def test_probabilities_that_vanish_are_never_drawn() -> None:
    """A temperature at which all but two tokens have probability 0: top-k of 10 finds fewer, and keeps what there is."""
    logits, seen = np.full(1500, -50, np.float32), np.zeros(1500, np.uint8)
    logits[[3, 1400]], logits[7] = 0, -np.inf
    kernel = sampler(1500)
    every = {uniform(1, i) < 0.5: i for i in range(12)}
    drawn = {int(kernel(logits, seen, np.array([0.1, 1, 0, 1], np.float32), np.array([10, 1, i], np.int64))[0]) for i in every.values()}
    assert drawn == {3, 1400}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_an_error(bad: float) -> None:
    logits, kernel = np.zeros(70, np.float32), sampler(70)
    logits[69] = bad
    kernel(logits, np.zeros(70, np.uint8), np.array([1, 1, 0, 1], np.float32), np.zeros(3, np.int64))
    assert kernel.errors[0] == BAD_LOGITS


@pytest.mark.parametrize("arch", ["sm_90a", *(pytest.param(a, marks=pytest.mark.slow) for a in ("sm_80", "sm_120"))])
def test_it_assembles_without_spills_and_no_barrier_is_missed(arch: str) -> None:
    kernel = sampler(128_256, arch).program.launches[0].kernel
    text = emit_cuda(kernel, cuda_target(arch))
    assert not check(text)
    if find_ptxas() is not None:
        assert assemble(text, arch).spilled == 0
