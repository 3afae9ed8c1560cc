"""The backward pass of attention by tensor cores, emulated, against PyTorch in f64: masks, biases and their cotangents, soft caps, windows,
key heads, head sizes, odd lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilewright as tw
from tests.cuda.attention_cases import BACKWARD, Case
from tests.cuda.fake_driver import fake_gpu
from tests.cuda.launching import Emulated
from tilewright import ops as o
from tilewright.core.dims import sym
from tilewright.core.dtypes import DType, bf16, f16
from tilewright.kernels.attention.cuda import flash_launches, mma_backward
from tilewright.kernels.attention.cuda.flash_kernels import FlashGradKernel, FlashStatsKernel, MmaGradKernel
from tilewright.kernels.cuda.kernel import FlashKernel, GemmKernel

TOLERANCE = {bf16: 8e-3, f16: 1.2e-3}  # three times the largest error of random inputs
QUICK = (0,)
CASES = [c if i in QUICK else pytest.param(c, marks=pytest.mark.slow) for i, c in enumerate(BACKWARD)]


def inputs(case: Case, dtype: DType, rng: np.random.Generator) -> list[Any]:
    """A mask that hides a third, and random numbers."""
    arrays: list[Any] = [rng.standard_normal(s).astype(np.float32).astype(dtype.np) for s in case.shapes]
    if case.mask is not None:
        arrays[3] = rng.random(case.mask) < 0.7
    return arrays


def check(case: Case, dtype: DType, arch: str, rng: np.random.Generator, names: dict[int, Any] | None = None) -> Emulated:
    arrays = inputs(case, dtype, rng)
    emulated = Emulated(case.graph(dtype, names), arch)
    got = emulated(*arrays)
    want = case.reference([torch.from_numpy(a if a.dtype == bool else a.astype(np.float64)) for a in arrays])
    for x, y in zip(got, want, strict=True):
        wide = y.numpy()
        assert x.shape == wide.shape
        assert np.linalg.norm(x.astype(np.float64) - wide) <= TOLERANCE[dtype] * np.linalg.norm(wide)
    return emulated


@pytest.mark.parametrize("case", CASES, ids=str)
def test_on_hopper(case: Case, rng: np.random.Generator) -> None:
    made = check(case, bf16 if case.sq % 2 else f16, "sm_90a", rng)
    units = [k for k in (type(x.kernel) for x in made.program.launches) if k in (FlashKernel, FlashGradKernel, GemmKernel)]
    assert units == [FlashKernel, FlashGradKernel, FlashGradKernel]


@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow) if i != 6 else c for i, c in enumerate(BACKWARD)], ids=str)
def test_on_other_chips(case: Case, rng: np.random.Generator) -> None:
    arch = "sm_80" if case.d % 16 else "sm_120"
    made = check(case, f16 if case.sq % 2 else bf16, arch, rng)
    units = [x.kernel.mode for x in made.program.launches if isinstance(x.kernel, MmaGradKernel)]
    assert units == ["keys", "queries"]


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_lengths_that_are_known_when_it_runs(arch: str, rng: np.random.Generator) -> None:
    case = Case(2, 2, 1, 37, 90, 24, (2, 1, 1, 90), (37, 90), {"softcap": 3.0, "causal": True, "offset": 53}, forward=True)
    made = check(case, f16, arch, rng, {37: sym("S", 1, 400), 90: sym("T", 1, 400)})
    assert any(isinstance(x.kernel, (FlashGradKernel, MmaGradKernel)) for x in made.program.launches)


@pytest.mark.slow
@pytest.mark.parametrize("case", [Case(1, 2, 1, 70, 150, 64, options={"causal": True, "offset": 80}), Case(1, 1, 1, 130, 65, 128)], ids=str)
def test_a_sweep_finds_logsumexps_that_nobody_saved(case: Case, rng: np.random.Generator) -> None:
    """The kernels as they were measured on a GPU."""
    made = check(case, bf16, "sm_90a", rng)
    assert isinstance(made.program.launches[0].kernel, FlashStatsKernel)


@pytest.mark.slow
def test_a_session_in_planned_memory(rng: np.random.Generator) -> None:
    """On the stand-in for the driver, twice: buffers share one arena, the second call finds what the first has left there."""
    case = BACKWARD[0]
    with fake_gpu():
        session: Any = tw.compile(case.graph(f16), target="cuda")
        for _ in range(2):
            arrays = inputs(case, f16, rng)
            got = [y.numpy() for y in session(*arrays)]
            want = case.reference([torch.from_numpy(a if a.dtype == bool else a.astype(np.float64)) for a in arrays])
            for x, y in zip(got, (w.numpy() for w in want), strict=True):
                assert np.linalg.norm(x.astype(np.float64) - y) <= TOLERANCE[f16] * np.linalg.norm(y)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_memory_is_planned(arch: str) -> None:
    """With and without tiles that nobody sees, whose zeros come from a launch before."""
    for options in ({}, {"causal": True}, {"window": 9}):
        case = Case(1, 2, 1, 20, 30, 16, None, (20, 30), options)
        session: Any = tw.compile(case.graph(f16), target=arch)
        names = [x.name.partition(".")[2] for x in session.executable.program.launches]
        assert ("unseen" in names) == bool(options)


def test_the_launches_say_what_becomes_of_a_bias() -> None:
    """Tiles that nobody sees are cleared, the scores' cotangent is stored, and its sum over broadcast axes is a launch of its own; the
    result is computed where it is asked for."""
    names = [x.name.partition(".")[2] for x in Emulated(BACKWARD[0].graph(f16)).program.launches]
    assert {"unseen", "grad", "dq", "shares"} <= set(names) and len(names) == 7, names


@pytest.mark.parametrize(("arch", "split"), [("sm_90a", 2), ("sm_80", 2), pytest.param("sm_90a", 1, marks=pytest.mark.slow)])
def test_parts_of_the_query_heads_of_a_key_head(arch: str, split: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks take all query heads of a key head, or a part of them; what the parts find is added."""
    for module in (flash_launches, mma_backward):
        monkeypatch.setattr(module, "parts_of", lambda *_: split)
    made = check(Case(2, 8, 2, 40, 70, 24, options={"causal": True, "offset": 30}, forward=True), f16, arch, rng)
    assert any(x.name.endswith(".shares") for x in made.program.launches) == (split > 1)


def test_few_key_heads_fill_the_chip() -> None:
    """As many parts as give every SM a block, twice as many where blocks differ in work; none where there are enough blocks."""
    op = o.AttentionBackward(scale=1.0)
    causal = o.AttentionBackward(scale=1.0, causal=True)
    assert [flash_launches.parts_of(op, 12, n, 132) for n in (200, 32, 5, 1)] == [1, 6, 12, 12]
    assert [flash_launches.parts_of(causal, 12, n, 132) for n in (300, 128, 32)] == [1, 3, 12]
